// Parses arbitrary bytes as an InfiniBand packet from LRH to ICRC.  parse_routed_packet() must drop
// the bytes with a reason, or return headers that do not change when they are written and parsed
// again.  If bit 0 of the first byte is set, the target first corrects the lengths and the ICRC.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "wire/bth.h"
#include "wire/drop.h"
#include "wire/icrc.h"
#include "wire/infiniband.h"

namespace {

using namespace verbena;
using namespace verbena::wire;

// Corrects the lengths and the ICRC if the packet is long enough for the headers, and its size is a
// multiple of 4.
void correct_lengths_and_icrc(std::span<std::byte> packet) {
  if (packet.size() < kSize<Lrh> || packet.size() % 4 != 0) return;
  RouteHeaders headers{.lrh = decode_exact<Lrh>(packet.first<kSize<Lrh>>())};
  const std::size_t route_bytes = route_header_bytes(headers.has_grh());
  if (packet.size() < route_bytes + kSize<Bth> + kIcrcBytes) return;
  if (headers.has_grh()) {
    headers.grh = decode_exact<Ipv6Header>(packet.subspan<kSize<Lrh>, kSize<Ipv6Header>>());
  }
  write_route_headers(packet, headers, packet.size() - route_bytes - kIcrcBytes);
  store_icrc(packet.last(kIcrcBytes), infiniband_icrc(packet.first(packet.size() - kIcrcBytes)));
}

void check_packet(std::span<const std::byte> bytes) {
  const auto packet = parse_routed_packet(bytes);
  if (!packet) {
    const Drop reason = drop_reason(packet.error());
    VB_CHECK(reason != Drop::kNone && reason < Drop::kCount);
    return;
  }
  std::vector<std::byte> written(bytes.begin(), bytes.end());
  const std::size_t route_bytes =
      write_route_headers(written, packet->headers, packet->bth_to_pad.size());
  VB_CHECK(route_bytes + packet->bth_to_pad.size() + kIcrcBytes == bytes.size());
  const auto parsed_again = parse_routed_packet(written);
  VB_CHECK(parsed_again.has_value());
  VB_CHECK(parsed_again->headers.lrh == packet->headers.lrh);
  VB_CHECK(parsed_again->headers.grh == packet->headers.grh);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  std::vector<std::byte> packet(bytes.begin(), bytes.end());
  if ((data[0] & 1) != 0) correct_lengths_and_icrc(packet);
  check_packet(packet);
  return 0;
}
