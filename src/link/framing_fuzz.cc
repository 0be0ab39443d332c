// Uses any bytes as a UDP payload.  Checks that open() either drops the payload with a reason, or
// accepts it.  If open() accepts the payload, seal() with the right identification must give the
// same bytes.  Bit 0 of the input's first byte selects the IP version.  If bit 1 is set, the fuzz
// target first writes a correct ICRC, to test the code behind the check.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "link/framing.h"
#include "wire/drop.h"
#include "wire/icrc.h"
#include "wire/ip.h"

namespace verbena::link {
namespace {

Address address(bool ipv6) {
  Address out{.source = wire::ipv4_gid(0x0a4e0002),
              .destination = wire::ipv4_gid(0x0a4e0001),
              .source_port = 0xc001};
  if (ipv6) out.source.bytes[0] = out.destination.bytes[0] = std::byte{0xfd};
  return out;
}

void check(const Address& from, std::span<const std::byte> datagram) {
  const auto arrival = open(from, datagram);
  if (!arrival) {
    const wire::Drop reason = wire::drop_reason(arrival.error());
    VB_CHECK(reason == wire::Drop::kTooShort || reason == wire::Drop::kIcrc);
    return;
  }
  VB_CHECK(arrival->address == from);
  VB_CHECK(arrival->transport.data() == datagram.data());
  VB_CHECK(arrival->transport.size() + wire::kIcrcBytes == datagram.size());
  const auto split = wire::split_icrc(datagram);
  const auto identification = wire::find_identification(
      {.source = from.source, .destination = from.destination, .source_port = from.source_port},
      split->bth_to_pad, split->icrc);
  VB_CHECK(identification.has_value());
  std::vector<std::byte> resealed(datagram.begin(), datagram.end());
  seal(from, resealed, *identification);
  VB_CHECK(std::ranges::equal(resealed, datagram));
}

}  // namespace
}  // namespace verbena::link

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace verbena;
  if (size == 0) return 0;
  const link::Address from = link::address((data[0] & 1) != 0);
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  std::vector<std::byte> datagram(bytes.begin(), bytes.end());
  const bool write_icrc = (data[0] & 2) != 0 && wire::split_icrc(datagram).has_value();
  if (write_icrc) link::seal(from, datagram, static_cast<std::uint16_t>(data[0] << 8));
  link::check(from, datagram);
  return 0;
}
