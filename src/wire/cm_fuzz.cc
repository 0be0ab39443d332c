// Decodes arbitrary bytes as a CM MAD.  Encoding and decoding a message must give the same message,
// and encoding it again must give the same bytes.

#include <cstdint>

#include "wire/cm.h"
#include "wire/rdma_ip_cm.h"

namespace {

using namespace verbena;
using namespace verbena::wire;

void check_private_data(std::span<const std::byte> private_data) {
  const auto header = decode<RdmaIpCmHeader>(private_data);
  VB_CHECK(header.has_value());
  VB_CHECK(*decode<RdmaIpCmHeader>(encode(*header)) == *header);
  (void)addresses(*header);
}

void check_mad(std::span<const std::byte> bytes) {
  const auto header = decode<MadHeader>(bytes);
  if (!header) return;
  const auto message = cm::decode_message(header->attribute_id, bytes.subspan(kMadHeaderBytes));
  if (!message) {
    const Drop reason = drop_reason(message.error());
    VB_CHECK(reason == Drop::kTooShort || reason == Drop::kUnknownAttribute);
    return;
  }
  const auto mad = cm::encode_mad(*header, *message);
  const auto decoded_again =
      cm::decode_message(header->attribute_id, std::span(mad).subspan(kMadHeaderBytes));
  VB_CHECK(decoded_again.has_value() && *decoded_again == *message);
  VB_CHECK(*decode<MadHeader>(mad) == *header);
  VB_CHECK(cm::encode_mad(*header, *decoded_again) == mad);

  if (const auto* req = std::get_if<cm::Req>(&*message)) {
    check_private_data(req->private_data);
    (void)rdma_cm_service(req->service_id);
  } else if (const auto* rej = std::get_if<cm::Rej>(&*message)) {
    VB_CHECK(cm::reject_info(*rej).size() <= rej->additional_reject_info.size());
    VB_CHECK(cm::to_string(rej->reason) != nullptr);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  check_mad(std::as_bytes(std::span(data, size)));
  return 0;
}
