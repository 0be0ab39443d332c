#pragma once

#include <optional>

#include "base/time.h"
#include "client/agent_link.h"
#include "client/channels.h"
#include "client/driver.h"

namespace verbena::client {

// How threads of the program wait for events of the RDMA CM.
//
// A thread that asks again and again receives the agent's messages itself, so that no other thread
// must be woken for them.  A thread that waits does so too, for a moment before it sleeps, as long
// as its waits are short (adaptive spin).
class EventWait {
 public:
  // Both outlive this.
  EventWait(Driver& driver, AgentLink& agent) : driver_(driver), agent_(agent) {}

  // The next event of the channel; waits as read(2) on its descriptor does, and gives 0 or its
  // errno.  Any thread.  A cancellation point, which may unwind.
  int next(CmChannel& channel, process::CmNotice& notice);
  // This thread may wait for something else, so nothing is held back for it.  Any thread.
  void waits_elsewhere();

 private:
  int wait(CmChannel& channel, process::CmNotice& notice);
  bool is_time_to_listen(Time now) const;
  std::optional<int> spin(CmChannel& channel, process::CmNotice& notice, Time began);
  bool listen();
  void send_held_messages();

  Driver& driver_;
  AgentLink& agent_;
};

}  // namespace verbena::client
