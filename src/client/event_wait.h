#pragma once

#include <optional>

#include "base/time.h"
#include "client/agent_link.h"
#include "client/blocked_wait.h"
#include "client/channels.h"
#include "client/driver.h"

namespace verbena::client {

// Lets threads of the program wait for events of the RDMA CM.
//
// A thread that polls for events receives the agent's messages itself, so that no other thread must
// be woken for the messages.  A thread that waits also receives them itself for a moment before it
// sleeps, as long as its waits are short (adaptive spin).  Then it sleeps as BlockedWait does.
class EventWait {
 public:
  // REQUIRES: all outlive this object.
  EventWait(Driver& driver, AgentLink& agent, BlockedWait& blocked)
      : driver_(driver), agent_(agent), blocked_(blocked) {}

  // Takes the next event of the channel.  Waits as read(2) on its descriptor does, and returns 0 or
  // the errno.  Any thread.  The function is a cancellation point, and may unwind.
  int next(CmChannel& channel, process::CmNotice& notice);
  // Notes that this thread may wait for something else.  So its delayed messages are sent now.  Any
  // thread.
  void note_other_wait();

 private:
  int wait(CmChannel& channel, process::CmNotice& notice);
  bool is_time_to_listen(Time now) const;
  std::optional<int> spin(CmChannel& channel, process::CmNotice& notice, Time began);
  std::optional<int> listen();
  void send_delayed_messages();

  Driver& driver_;
  AgentLink& agent_;
  BlockedWait& blocked_;
};

}  // namespace verbena::client
