#pragma once

#include <cstdint>
#include <span>

#include "base/error.h"
#include "link/burst.h"

// The seam between the engine and what carries its packets.  Three verbs: send a packet, execute
// remotely, wake the peer.  UDP knows the first alone; memory shared between processes of one host
// will know all three.
namespace verbena::link {

// A one-sided copy that the initiator may do itself where it can reach the target's memory.
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

  // Sends what is in the burst and empties it.  A packet that the network does not take is lost,
  // and counted: repeating is the transport's business.
  virtual void send(Burst& burst) = 0;

  // kNotSupported: the engine does it with packets instead.
  virtual Result<void> execute(const Flow& /*flow*/, const RemoteCopy& /*copy*/) {
    return fail(Errc::kNotSupported, "this link cannot reach the peer's memory");
  }

  // Tells a sleeping peer that there is something for it.  A link whose packets wake does nothing.
  virtual void wake(const Flow& /*flow*/, Qpn /*destination*/) {}
};

}  // namespace verbena::link
