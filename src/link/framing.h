#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "link/address.h"

// Converts between UDP payloads and transport packets: writes and checks the ICRC of the payloads.
namespace verbena::link {

// Holds a received packet.  Its ICRC was checked, unless the packet came by a lane, which is memory
// that two programs share (link/lane.h).
struct Arrival {
  Address address;                       // the source is the peer
  std::span<const std::byte> transport;  // BTH to pad
  // Holds at least the headers of the packet.  Parse these bytes, not `transport`: a peer at the
  // other end of a lane can change `transport` while this process reads it.
  std::span<const std::byte> headers = transport;
};

// Writes the ICRC to the last four bytes of `datagram`, which contains the bytes from BTH to ICRC.
// `identification` must be the value that the kernel will put in the IPv4 header.  With UDP_SEGMENT
// the kernel uses the packet's index in its batch.  Otherwise it uses 0, because the socket is
// unconnected and has IP_PMTUDISC_DO.
void seal(const Address& address, std::span<std::byte> datagram, std::uint16_t identification);

// Checks the length and the ICRC of a UDP payload.  A socket does not return the IPv4
// identification, so this function searches for an identification for which the ICRC is right
// (wire/icrc.h).  The search is short if the caller passes the right identification.  If the peer
// sends as seal() describes, the right identification is the packet's index in its batch.
Result<Arrival> open(const Address& address, std::span<const std::byte> datagram,
                     std::uint16_t expected_identification = 0);

// Returns the IPv4 identification for which the ICRC of a received UDP payload is right.  A capture
// needs it for the IPv4 header.  Returns 0 if there is no such identification, because the payload
// is short or damaged, or came by IPv6.
std::uint16_t identification_of(const Address& address, std::span<const std::byte> datagram);

}  // namespace verbena::link
