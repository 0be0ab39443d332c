#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "base/error.h"
#include "client/watches.h"
#include "ipc/lane_messages.h"
#include "ipc/messages.h"
#include "os/event_fd.h"
#include "os/peer_memory.h"
#include "os/shared_memory.h"
#include "process/process.h"

namespace verbena::client {

// Owns the kernel's objects for a program's lanes (link/lane.h): their memory, the descriptors that
// wake the programs at the other ends, and the handles for direct access to memory in both
// directions.  The drive lock guards this object.
class LaneLinks {
 public:
  // REQUIRES: both outlive this object.
  LaneLinks(process::LaneManager& lanes, Watches& watches) : lanes_(lanes), watches_(watches) {}

  // Publishes the access table, so that other programs can access this program's memory.  If the
  // system does not allow such accesses, the other programs send packets.  REQUIRES: the process
  // outlives this object, and has no lanes yet.
  void publish(process::Process& process);
  // Returns the descriptor of the table that publish() has made, or -1.
  int access_table_fd() const { return table_.fd.get(); }

  // Takes the descriptors of ipc::Lane, and gives the memory to the LaneManager.  kMalformed,
  // kSystem: the lane cannot be used.
  Result<void> add(const ipc::Lane& message, std::vector<os::Fd> fds);
  // Wakes the programs that must be woken, and unmaps the memory of closed lanes.
  void handle_wakes_and_closes();
  // Clears the sockets by which programs of other users wake this program.  Call it together with
  // Watches::clear_lanes().
  void clear_wakes();
  // Returns how many times another program was woken.
  std::uint64_t wakes_sent() const { return wakes_sent_; }
  // Closes the descriptors in a forked child.
  void abandon();

 private:
  using Wake = std::variant<os::WakeFd, os::WakeSocket>;
  struct Link {
    os::Mapping memory{};
    Wake peer_wake;                                    // wakes the program at the other end
    std::unique_ptr<os::ProcessMemory> peer_memory{};  // null: the memory is not accessible
  };

  Result<Wake> watch(const ipc::Lane& message, std::vector<os::Fd>& fds);
  std::unique_ptr<os::ProcessMemory> open_memory(const ipc::DirectAccess& direct,
                                                 const os::Fd& table) const;

  process::LaneManager& lanes_;
  Watches& watches_;
  std::map<process::LaneManager::Id, Link> links_{};
  std::size_t other_user_links_ = 0;  // the number of links whose peer_wake is a socket
  std::uint64_t wakes_sent_ = 0;
  os::SharedMemory table_{};
  os::MemoryMark mark_{};
  std::optional<link::AccessTable> access_table_{};
};

}  // namespace verbena::client
