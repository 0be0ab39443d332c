#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/time.h"
#include "os/event_fd.h"
#include "os/poller.h"

namespace verbena::client {

// Holds the descriptors that the progress thread sleeps on.  It waits for all of them, or, while
// the program polls, for all but the sockets and lanes.
//
// Only the progress thread calls wait(); any thread may call the other functions.
class Watches {
 public:
  enum class Kind : std::uint8_t { kAgent = 1, kWake, kSockets, kReaper, kLanes };
  enum class For : std::uint8_t { kAll, kAllButSockets };
  static constexpr std::size_t kReadyMax = 16;

  static Result<Watches> create();

  Result<void> add_socket(int fd);
  void remove_socket(int fd);
  // Adds the descriptor by which other programs report news in a lane.  One serves all lanes: later
  // ones are closed.  The drive lock guards these three.
  Result<void> add_lanes(os::WakeFd wake);
  // Makes the descriptor unreadable again.  Look at the lanes after this call, not before it.
  void clear_lanes();
  void remove_lanes();
  Result<void> add_agent(int fd);
  // Chooses what wakes the progress thread: messages (`readable`), or room in the agent's socket
  // (`writable`).  The end of the agent always wakes it.
  void change_agent(int fd, bool readable, bool writable);
  void remove_agent(int fd);
  // Adds the reaper of an agent (os::Daemon), by its pidfd.
  Result<void> add_reaper(int pidfd);
  void remove_reaper(int pidfd);

  // Ends the current wait, or the next one.
  void wake() { wake_.wake(); }
  // Returns the ready kinds, valid until the next call.  It returns none when the deadline comes
  // first.
  std::span<const Kind> wait(For what, Time deadline);

  // Closes the descriptors in a forked child.  They belong to the parent.
  void abandon();

 private:
  Watches(os::WakeFd wake, os::Poller all, os::Poller all_but_sockets);

  os::WakeFd wake_;
  std::optional<os::WakeFd> lanes_wake_{};
  os::Poller all_;
  os::Poller all_but_sockets_;
  std::array<Kind, kReadyMax> ready_{};
};

}  // namespace verbena::client
