#pragma once

#include <cstdint>
#include <utility>

#include "base/error.h"

// Names the reasons why received bytes are dropped.  The reason is the detail of an
// Errc::kMalformed, and the caller counts the dropped packet by this number.
namespace verbena::wire {

enum class Drop : std::uint16_t {
  kNone = 0,
  kTooShort,            // fewer bytes than the headers or the message need
  kNotWords,            // BTH to pad is not a multiple of 4 bytes (vol1 9.1)
  kUnknownOpcode,       // BTH opcode that this stack does not know
  kTransportVersion,    // BTH TVer is not 0 (vol1 9.2.5)
  kPadTooLong,          // the pad is longer than the bytes after the headers
  kPayloadNotAllowed,   // payload on an acknowledgement, a READ request or an atomic
  kIcrc,                // the invariant CRC does not match
  kNotIp,               // neither IPv4 nor IPv6, or an invalid header
  kIpOptions,           // IPv4 options or IPv6 extension headers: not part of RoCEv2 (A17.3.1)
  kIpChecksum,          // the IPv4 header checksum is wrong
  kFragment,            // a fragment of a datagram
  kNotUdp,              // an IP protocol other than UDP
  kLength,              // IP and UDP lengths disagree, or exceed the received bytes
  kUnknownAttribute,    // MAD attribute that is not a CM message
  kNotInfiniband,       // LRH or GRH with an unknown version or next header
  kNotResolution,       // IPoIB: neither ARP nor neighbour discovery
  kArp,                 // ARP with a hardware type, protocol or operation that IPoIB does not use
  kNeighbourDiscovery,  // a solicitation or advertisement that RFC 4861 does not allow
  kIcmpChecksum,        // the ICMPv6 checksum is wrong
  kCount,               // not a reason: the number of reasons
};

// Returns a name for counters and messages, never null.
const char* to_string(Drop reason);

constexpr std::unexpected<Error> drop(Drop reason, const char* context = "dropped") {
  return fail(Errc::kMalformed, context, std::to_underlying(reason));
}

// Returns the reason in an error that drop() created, and kNone for other errors.
constexpr Drop drop_reason(const Error& error) {
  return error.code == Errc::kMalformed ? static_cast<Drop>(error.detail) : Drop::kNone;
}

}  // namespace verbena::wire
