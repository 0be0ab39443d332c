#pragma once

#include <cstdint>
#include <span>

#include "base/error.h"
#include "link/burst.h"

// The interface between the engine and the transport of its packets.  It has three operations: send
// packets, copy remotely, wake the peer.  UDP has only the first.  Memory shared between processes
// of one host will have all three.
namespace verbena::link {

// A one-sided copy that the initiator may execute itself if it can access the target's memory.
struct RemoteCopy {
  enum class Kind : std::uint8_t { kWrite, kRead } kind{};
  Qpn destination_qpn{};
  std::uint64_t remote_address = 0;
  std::uint32_t r_key = 0;
  std::span<std::byte> local{};
};

class Link {
 public:
  Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  virtual ~Link() = default;

  // Sends the packets of the burst and empties it.  A packet that the network does not accept is
  // lost and counted, because the transport retransmits.
  virtual void send(Burst& burst) = 0;

  // kNotSupported: the engine uses packets instead.
  virtual Result<void> execute(const Flow& /*flow*/, const RemoteCopy& /*copy*/) {
    return fail(Errc::kNotSupported, "this link cannot reach the peer's memory");
  }

  // Wakes a sleeping peer.  Does nothing if the link's packets already wake it.
  virtual void wake(const Flow& /*flow*/, Qpn /*destination*/) {}
};

}  // namespace verbena::link
