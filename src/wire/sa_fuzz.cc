// Decodes arbitrary bytes as a message of subnet administration.  A record must not change when it
// is encoded and decoded again.  A table must not have more records than its bytes can contain.

#include <cstdint>
#include <span>

#include "wire/sa.h"

namespace {

using namespace verbena;
using namespace verbena::wire;

template <Message M>
void check_record(std::span<const std::byte> bytes) {
  const M message = decode_exact<M>(bytes.first<kSize<M>>());
  VB_CHECK(decode_exact<M>(encode(message)) == message);
}

template <Message M>
void check_records(std::span<const std::byte> data, std::uint16_t attribute_offset) {
  const auto table = SaTable::of<M>(data, attribute_offset);
  if (!table) return;
  VB_CHECK(table->size() * kSize<M> <= data.size());
  for (std::size_t i = 0; i < table->size(); ++i) {
    const M record = table->template at<M>(i);
    VB_CHECK(decode_exact<M>(encode(record)) == record);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto header = decode<SaHeader>(bytes);
  if (!header) {
    VB_CHECK(size < kSaHeaderBytes);
    return 0;
  }
  VB_CHECK(decode_exact<SaHeader>(encode(*header)) == *header);
  const auto records = bytes.subspan(kSaHeaderBytes);
  check_records<PathRecord>(records, header->attribute_offset);
  check_records<McMemberRecord>(records, header->attribute_offset);
  check_records<InformInfoRecord>(records, header->attribute_offset);
  check_records<ServiceRecord>(records, header->attribute_offset);
  if (records.size() < kSaDataBytes) return 0;
  check_record<PathRecord>(records);
  check_record<McMemberRecord>(records);
  check_record<InformInfo>(records);
  check_record<InformInfoRecord>(records);
  check_record<SaNotice>(records);
  check_record<ServiceRecord>(records);
  check_record<ClassPortInfo>(records);
  check_record<GidChange>(decode_exact<Notice>(records.first<kSize<Notice>>()).details);
  return 0;
}
