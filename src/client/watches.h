#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "base/time.h"
#include "os/event_fd.h"
#include "os/poller.h"

namespace verbena::client {

// The descriptors that the progress thread sleeps on.  It waits for all of them, or, while the
// program polls, for all but the sockets.
//
// wait() is the progress thread's; every other function may be called from any thread.
class Watches {
 public:
  enum class Kind : std::uint8_t { kAgent = 1, kWake, kSockets, kAgentParent };
  enum class For : std::uint8_t { kAll, kAllButSockets };
  static constexpr std::size_t kReadyMax = 16;

  static Result<Watches> create();

  Result<void> add_socket(int fd);
  void remove_socket(int fd);
  Result<void> add_agent(int fd);
  // `readable`: wake for messages; `writable`: wake for room in its socket.  That the agent has
  // gone always wakes.
  void change_agent(int fd, bool readable, bool writable);
  void remove_agent(int fd);
  // The process that waits for the end of an agent (os::Daemon), by its pidfd.
  Result<void> add_agent_parent(int pidfd);
  void remove_agent_parent(int pidfd);

  // Ends the current wait, or the next one.
  void wake() { wake_.wake(); }
  // Gives what is ready; empty at the deadline.  Valid until the next call.
  std::span<const Kind> wait(For what, Time deadline);

  // In a forked child: the descriptors are the parent's.
  void abandon();

 private:
  Watches(os::WakeFd wake, os::Poller all, os::Poller all_but_sockets);

  os::WakeFd wake_;
  os::Poller all_;
  os::Poller all_but_sockets_;
  std::array<Kind, kReadyMax> ready_{};
};

}  // namespace verbena::client
