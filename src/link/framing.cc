#include "link/framing.h"

#include "wire/drop.h"
#include "wire/icrc.h"

namespace verbena::link {
namespace {

wire::IcrcInputs inputs_of(const Address& address, std::uint16_t identification) {
  return {.source = address.source,
          .destination = address.destination,
          .source_port = address.source_port,
          .identification = identification};
}

}  // namespace

void seal(const Address& address, std::span<std::byte> datagram, std::uint16_t identification) {
  VB_CHECK(datagram.size() > wire::kIcrcBytes);
  const auto transport = datagram.first(datagram.size() - wire::kIcrcBytes);
  wire::store_icrc(datagram.last(wire::kIcrcBytes),
                   wire::icrc(inputs_of(address, identification), transport));
}

Result<Arrival> open(const Address& address, std::span<const std::byte> datagram,
                     std::uint16_t expected_identification) {
  const wire::IcrcSplit split = VB_TRY(wire::split_icrc(datagram));
  if (!wire::find_identification(inputs_of(address, expected_identification), split.bth_to_pad,
                                 split.icrc)) {
    return wire::drop(wire::Drop::kIcrc, "the ICRC does not match");
  }
  return Arrival{address, split.bth_to_pad};
}

std::uint16_t identification_of(const Address& address, std::span<const std::byte> datagram) {
  const Result<wire::IcrcSplit> split = wire::split_icrc(datagram);
  if (!split) return 0;
  return wire::find_identification(inputs_of(address, 0), split->bth_to_pad, split->icrc)
      .value_or(0);
}

}  // namespace verbena::link
