#pragma once

#include <map>
#include <optional>
#include <vector>

#include "base/error.h"
#include "client/watches.h"
#include "ipc/messages.h"
#include "os/event_fd.h"
#include "os/shared_memory.h"
#include "process/lane_manager.h"

namespace verbena::client {

// Owns what the kernel has of a program's lanes (link/lane.h): their memory, and the descriptors
// that wake the programs at their other ends.  The drive lock guards it.
class LaneLinks {
 public:
  // REQUIRES: both outlive this object.
  LaneLinks(process::LaneManager& lanes, Watches& watches) : lanes_(lanes), watches_(watches) {}

  // Takes the descriptors of ipc::Lane: memory, the eventfd of this program, that of the other one.
  // The manager gets the memory.  kMalformed, kSystem: the lane cannot be used.
  Result<void> add(const ipc::Lane& message, std::vector<os::Fd> fds);
  // Wakes the programs that must be woken, and unmaps the memory of closed lanes.
  void carry_out();
  // Closes the descriptors in a forked child.
  void abandon();

 private:
  struct Link {
    os::Mapping memory{};
    os::WakeFd other;
  };

  process::LaneManager& lanes_;
  Watches& watches_;
  std::map<process::LaneManager::Id, Link> links_{};
};

}  // namespace verbena::client
