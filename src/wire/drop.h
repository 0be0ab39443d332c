#pragma once

#include <cstdint>
#include <utility>

#include "base/error.h"

// Names the reasons for which received bytes are dropped.  The reason is the detail of an
// Errc::kMalformed.  The caller counts dropped packets by reason.
namespace verbena::wire {

enum class Drop : std::uint16_t {
  kNone = 0,
  kTooShort,              // there are fewer bytes than the headers or the message need
  kNotMultipleOfFour,     // the length from BTH to pad is not a multiple of 4 bytes (vol1 9.1)
  kUnknownOpcode,         // this stack does not know the opcode of the BTH
  kTransportVersion,      // TVer of the BTH is not 0 (vol1 9.2.5)
  kPadTooLong,            // the pad is longer than the bytes after the headers
  kPayloadNotAllowed,     // an acknowledgement, a READ request or an atomic has a payload
  kIcrc,                  // the invariant CRC does not match
  kNotIp,                 // the packet is neither IPv4 nor IPv6, or its header is invalid
  kIpOptions,             // RoCEv2 has no IPv4 options and no IPv6 extension headers (A17.3.1)
  kIpChecksum,            // the IPv4 header checksum is wrong
  kFragment,              // the packet is a fragment of a datagram
  kNotUdp,                // the IP protocol is not UDP
  kLength,                // a length in a header is invalid, or does not match the received bytes
  kUnknownAttribute,      // the attribute of the MAD is not a CM message
  kNotInfiniband,         // the LRH or GRH has an unknown version or next header
  kNotAddressResolution,  // an IPoIB frame is neither ARP nor neighbour discovery
  kArp,                   // IPoIB does not use the types, sizes or operation of the ARP message
  kNeighbourDiscovery,    // RFC 4861 does not allow this solicitation or advertisement
  kIcmpChecksum,          // the ICMPv6 checksum is wrong
  kCount,                 // not a reason: the number of reasons
};

// Returns a name for counters and messages, never null.
const char* to_string(Drop reason);

constexpr std::unexpected<Error> drop(Drop reason, const char* context = "dropped") {
  return fail(Errc::kMalformed, context, std::to_underlying(reason));
}

// Returns the reason in an error that drop() created, and kNone for errors with another code.
constexpr Drop drop_reason(const Error& error) {
  return error.code == Errc::kMalformed ? static_cast<Drop>(error.detail) : Drop::kNone;
}

}  // namespace verbena::wire
