// Parses any bytes as an InfiniBand packet from LRH to ICRC.  parse_routed_packet() must either
// drop them with a reason, or return headers that are still the same after they were written and
// parsed again.  If bit 0 of the first byte is set, the lengths and the ICRC are corrected first.

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

// Replaces the lengths and the ICRC by the right ones, if there is room for the headers.
void correct(std::span<std::byte> packet) {
  if (packet.size() < kSize<Lrh> || packet.size() % 4 != 0) return;
  RouteHeaders headers{.lrh = decode_exact<Lrh>(packet.first<kSize<Lrh>>())};
  const std::size_t front = route_header_bytes(headers.has_grh());
  if (packet.size() < front + kSize<Bth> + kIcrcBytes) return;
  if (headers.has_grh()) {
    headers.grh = decode_exact<Ipv6Header>(packet.subspan<kSize<Lrh>, kSize<Ipv6Header>>());
  }
  write_route_headers(packet, headers, packet.size() - front - kIcrcBytes);
  store_icrc(packet.last(kIcrcBytes), infiniband_icrc(packet.first(packet.size() - kIcrcBytes)));
}

void check_packet(std::span<const std::byte> bytes) {
  const auto packet = parse_routed_packet(bytes);
  if (!packet) {
    const Drop reason = drop_reason(packet.error());
    VB_CHECK(reason != Drop::kNone && reason < Drop::kCount);
    return;
  }
  std::vector<std::byte> again(bytes.begin(), bytes.end());
  const std::size_t front = write_route_headers(again, packet->headers, packet->bth_to_pad.size());
  VB_CHECK(front + packet->bth_to_pad.size() + kIcrcBytes == bytes.size());
  const auto second = parse_routed_packet(again);
  VB_CHECK(second.has_value());
  VB_CHECK(second->headers.lrh == packet->headers.lrh);
  VB_CHECK(second->headers.grh == packet->headers.grh);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  std::vector<std::byte> packet(bytes.begin(), bytes.end());
  if ((data[0] & 1) != 0) correct(packet);
  check_packet(packet);
  return 0;
}
