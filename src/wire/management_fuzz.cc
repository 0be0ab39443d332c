// Decodes arbitrary bytes as attributes of subnet and performance management.  An attribute must
// not change when it is encoded and decoded again.

#include <cstdint>
#include <span>

#include "wire/notice.h"
#include "wire/performance.h"
#include "wire/port_info.h"
#include "wire/smp.h"

namespace {

using namespace verbena;
using namespace verbena::wire;

template <Message M>
void check_message(std::span<const std::byte> bytes) {
  const M message = decode_exact<M>(bytes.first<kSize<M>>());
  VB_CHECK(decode_exact<M>(encode(message)) == message);
}

// Checks two functions that convert a table to the data of an SMP and back.
void check_table(const SmpData& data, auto&& decode_table, auto&& encode_table) {
  const auto table = decode_table(data);
  VB_CHECK(decode_table(encode_table(table)) == table);
}

void check_notice(std::span<const std::byte> data) {
  check_message<Notice>(data);
  const Notice notice = decode_exact<Notice>(data.first<kSize<Notice>>());
  check_message<LinkStateChange>(notice.details);
  check_message<LocalChange>(notice.details);
  check_message<BadMkey>(notice.details);
  check_message<BadKey>(notice.details);
  check_message<BadPkeyAtSwitch>(notice.details);
}

void check_mad(std::span<const std::byte> mad) {
  check_message<Smp>(mad);
  const Smp smp = decode_exact<Smp>(mad.first<kMadBytes>());
  check_message<NodeInfo>(smp.data);
  check_message<NodeDescription>(smp.data);
  check_message<SwitchInfo>(smp.data);
  check_message<PortInfo>(smp.data);
  check_message<SmInfo>(smp.data);
  check_notice(smp.data);
  check_table(smp.data, decode_guids, encode_guids);
  check_table(smp.data, decode_pkeys, encode_pkeys);
  check_table(smp.data, decode_sl_to_vl, encode_sl_to_vl);
  check_table(smp.data, decode_vl_arbitration, encode_vl_arbitration);
  check_table(smp.data, decode_lft, encode_lft);
  check_table(smp.data, decode_mft, encode_mft);
  const auto performance = mad.subspan(kPerformanceDataOffset);
  check_message<ClassPortInfo>(performance);
  check_message<PortCounters>(performance);
  check_message<PortCountersExtended>(performance);
  check_message<PortRcvErrorDetails>(performance);
  check_message<PortXmitDiscardDetails>(performance);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  if (bytes.size() < kMadBytes) {
    VB_CHECK(!decode<Smp>(bytes).has_value());
    return 0;
  }
  check_mad(bytes);
  return 0;
}
