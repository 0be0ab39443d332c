#pragma once

#include <cstdint>

#include "base/error.h"
#include "base/strong.h"
#include "os/fd.h"

// Who answers on a link: what the kernel knows by ARP and neighbour discovery.
namespace verbena::os {

struct Neighbour {
  Gid address{};
  std::uint32_t interface = 0;

  friend bool operator==(const Neighbour&, const Neighbour&) = default;
};

enum class Presence : std::uint8_t {
  kHere,     // answers, has answered, or need not: a group, a link without such questions
  kAsked,    // the question is out
  kNobody,   // asked in vain
  kUnasked,  // nothing known
};
Result<Presence> presence(const Neighbour& neighbour);

// Makes the kernel ask: sends an empty datagram to the discard port (RFC 863) of `destination`,
// whose next hop the neighbour is; it dies there at the latest.  No right is needed for that.
Result<void> ask_neighbour(const Gid& destination, const Gid& source, std::uint32_t interface);

// A descriptor that becomes readable when a neighbour's presence may have changed.
class NeighbourMonitor {
 public:
  static Result<NeighbourMonitor> create();

  int fd() const { return fd_.get(); }
  // Empties it.  Ask presence() afterwards.
  void drain();

 private:
  explicit NeighbourMonitor(Fd fd) : fd_(std::move(fd)) {}

  Fd fd_;
};

}  // namespace verbena::os
