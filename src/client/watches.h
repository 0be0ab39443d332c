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

// Holds the descriptors that the progress thread sleeps on.  Usually the progress thread waits for
// all of them.  While the program polls, the progress thread waits for all but those that report
// packets.  A thread of the program may wait for packets in its place (for_receiver()).  Then that
// thread sleeps on the agent's descriptor and on those that report packets, and the progress thread
// sleeps on the others.
//
// Only the progress thread calls wait().  Other threads may call the other functions, under the
// lock that each function names.
class Watches {
 public:
  enum class Kind : std::uint8_t {
    kAgent = 1,  // the agent has sent a message, or its socket has space
    kWake,       // wake() was called
    kSockets,    // a socket has packets
    kReaper,     // an agent that this program has started has ended
    kLanes,      // a lane has packets or space, or wake_receiver() was called
    kCheck,      // the time of check_at() has come
  };
  enum class For : std::uint8_t {
    kAll,
    kAllButSockets,   // does not wait for packets
    kNotForReceiver,  // waits only for what for_receiver() does not report
  };
  static constexpr std::size_t kReadyMax = 16;

  static Result<Watches> create();

  Result<void> add_socket(int fd);
  void remove_socket(int fd);
  // Adds the descriptor by which other programs report packets in a lane.  One descriptor serves
  // all lanes, so this function closes later descriptors.  The drive lock guards this group of
  // functions.
  Result<void> add_lanes(os::WakeFd wake);
  // Makes the descriptor of the lanes and that of wake_receiver() unreadable again.  Poll the lanes
  // after this call, not before it.  Only the thread that waits for packets may call it: any other
  // caller would take away that thread's wake-up.
  void clear_lanes();
  void remove_lanes();
  // Adds the descriptor by which one program of another user reports packets in its lane.
  // LaneLinks::clear_wakes() makes it unreadable again.
  Result<void> add_lane_of_other_user(int fd);
  void remove_lane_of_other_user(int fd);
  Result<void> add_agent(int fd);
  // Chooses what wakes the progress thread: messages (`readable`), or space in the agent's socket
  // (`writable`).  The end of the agent always wakes it.
  void change_agent(int fd, bool readable, bool writable);
  void remove_agent(int fd);
  // Adds the reaper of an agent (os::Daemon), by its pidfd.
  Result<void> add_reaper(int pidfd);
  void remove_reaper(int pidfd);

  // Returns the agent's descriptor and those that report packets and space in lanes; -1 stands for
  // a missing descriptor.  After you add a descriptor, call wake_receiver(), so that the receiver
  // calls this function again.  The drive lock guards this and the next function.
  using ForReceiver = std::array<int, 4>;
  static constexpr std::size_t kAgentForReceiver = 0;
  ForReceiver for_receiver() const {
    return {agent_, sockets_.fd(), lanes_wake_ ? lanes_wake_->fd() : -1, receiver_wake_.fd()};
  }

  // Returns true if one of the descriptors of for_receiver() is ready.
  bool receiver_has_work() const;

  // Ends the current wait().  If there is none, the next wait() returns at once.
  void wake() { wake_.wake(); }
  // Makes wait() return at that time (kCheck).  Each call replaces the time of the last call.
  void check_at(Time time) { check_.set(time); }
  // Wakes the thread that waits for packets.  If there is none, the next such wait ends at once.
  void wake_receiver() { receiver_wake_.wake(); }
  // Waits until a descriptor is ready, and returns the ready kinds.  The result is valid until the
  // next call.  At the deadline, returns an empty list.
  std::span<const Kind> wait(For what, Time deadline);

  // Closes the descriptors in a forked child.  They belong to the parent.
  void abandon();

 private:
  struct Parts {
    os::WakeFd wake, receiver_wake;
    os::TimerFd check;
    os::Poller all, all_but_sockets, not_for_receiver, sockets;
  };
  explicit Watches(Parts parts);

  os::WakeFd wake_;
  os::WakeFd receiver_wake_;
  os::TimerFd check_;
  std::optional<os::WakeFd> lanes_wake_{};
  os::Poller all_;
  os::Poller all_but_sockets_;
  os::Poller not_for_receiver_;
  // Watches the sockets and the lanes to other users.  The receiver sleeps on its descriptor.
  os::Poller sockets_;
  int agent_ = -1;
  std::array<Kind, kReadyMax> ready_{};
};

}  // namespace verbena::client
