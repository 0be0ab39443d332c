// Parses arbitrary bytes as an Ethernet frame.  parse_frame() must drop the bytes with a reason, or
// return values that do not change when they are written and parsed again.  The target
// does not write frames again whose IPv6 header contains mapped IPv4 addresses.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "wire/drop.h"
#include "wire/ip.h"

namespace {

using namespace verbena;
using namespace verbena::wire;

bool is_inside(std::span<const std::byte> part, std::span<const std::byte> whole) {
  return part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size();
}

void check_frame(std::span<const std::byte> bytes) {
  const auto frame = parse_frame(bytes);
  if (!frame) {
    const Drop reason = drop_reason(frame.error());
    VB_CHECK(reason != Drop::kNone && reason < Drop::kCount);
    return;
  }
  VB_CHECK(is_inside(frame->ip_header, bytes) && is_inside(frame->udp_header, bytes) &&
           is_inside(frame->udp_payload, bytes));

  // An IPv6 header may contain mapped IPv4 addresses.  Such a frame would be written as IPv4.
  const bool is_v4 = frame->ip_header.size() == kSize<Ipv4Header>;
  if (is_ipv4(frame->headers.destination) != is_v4 || is_ipv4(frame->headers.source) != is_v4)
    return;
  std::vector<std::byte> written(frame_header_bytes(frame->headers.destination) +
                                 frame->udp_payload.size());
  const std::size_t at = write_frame_headers(written, frame->headers, frame->udp_payload.size());
  std::ranges::copy(frame->udp_payload, written.begin() + static_cast<std::ptrdiff_t>(at));
  const auto parsed_again = parse_frame(written);
  VB_CHECK(parsed_again.has_value());
  VB_CHECK(parsed_again->headers == frame->headers);
  VB_CHECK(std::ranges::equal(parsed_again->udp_payload, frame->udp_payload));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  check_frame(std::as_bytes(std::span(data, size)));
  return 0;
}
