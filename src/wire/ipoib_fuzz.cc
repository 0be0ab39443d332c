// Parses arbitrary bytes as an IPoIB frame.  parse_ipoib_frame() must drop the bytes with a reason,
// or return a message that does not change when it is written and parsed again.  If bit 0 of the
// first byte is set, the target first corrects the ICMPv6 checksum.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "wire/drop.h"
#include "wire/ipoib.h"

namespace {

using namespace verbena;
using namespace verbena::wire;

constexpr std::size_t kMessageOffset = kSize<IpoibHeader> + kSize<Ipv6Header>;

void correct_checksum(std::span<std::byte> frame) {
  if (frame.size() < kMessageOffset + 4) return;
  const auto ip = decode_exact<Ipv6Header>(frame.subspan<kSize<IpoibHeader>, kSize<Ipv6Header>>());
  const auto message = frame.subspan(
      kMessageOffset, std::min<std::size_t>(ip.payload_length, frame.size() - kMessageOffset));
  if (message.size() < 4) return;
  message[2] = message[3] = std::byte{0};
  const std::uint16_t sum = icmpv6_checksum(ip.source, ip.destination, message);
  message[2] = static_cast<std::byte>(sum >> 8);
  message[3] = static_cast<std::byte>(sum & 0xff);
}

void check_frame(std::span<const std::byte> bytes) {
  const auto message = parse_ipoib_frame(bytes);
  if (!message) {
    const Drop reason = drop_reason(message.error());
    VB_CHECK(reason != Drop::kNone && reason < Drop::kCount);
    return;
  }
  const auto parsed_again = parse_ipoib_frame(write_ipoib_frame(*message));
  VB_CHECK(parsed_again.has_value());
  VB_CHECK(*parsed_again == *message);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  std::vector<std::byte> frame(bytes.begin(), bytes.end());
  if ((data[0] & 1) != 0) correct_checksum(frame);
  check_frame(frame);
  return 0;
}
