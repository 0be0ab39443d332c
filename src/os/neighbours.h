#pragma once

#include <cstdint>

#include "base/error.h"
#include "base/strong.h"
#include "os/fd.h"

// Reads the states of neighbours on a link from the kernel, which learns them by ARP and neighbour
// discovery.
namespace verbena::os {

struct Neighbour {
  Gid address{};
  std::uint32_t interface = 0;

  friend bool operator==(const Neighbour&, const Neighbour&) = default;
};

enum class NeighbourState : std::uint8_t {
  kReachable,    // the neighbour has answered, or is a multicast group, or its link has no ARP
  kResolving,    // the kernel has sent a request and waits for an answer
  kUnreachable,  // the kernel has sent requests and got no answer
  kUnknown,      // the kernel has sent no request
};
Result<NeighbourState> neighbour_state(const Neighbour& neighbour);

// Makes the kernel resolve the next hop on the way to `destination`.  Needs no privilege, because
// it sends an empty datagram to the destination's discard port (RFC 863).  A hop limit of 1 keeps
// the datagram from going beyond the next hop.
Result<void> resolve_neighbour(const Gid& destination, const Gid& source, std::uint32_t interface);

// Owns a descriptor that becomes readable when a neighbour's state may have changed.
class NeighbourMonitor {
 public:
  static Result<NeighbourMonitor> create();

  int fd() const { return fd_.get(); }
  // Discards all notifications.  Call neighbour_state() afterwards.
  void drain();

 private:
  explicit NeighbourMonitor(Fd fd) : fd_(std::move(fd)) {}

  Fd fd_;
};

}  // namespace verbena::os
