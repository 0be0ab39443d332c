#pragma once

#include "client/channels.h"
#include "client/driver.h"
#include "os/fork_mark.h"

namespace verbena::client {

// Lets a thread of the program wait for an event of a channel.  During the wait the thread receives
// packets and the agent's messages in place of the progress thread (ReceiverRole).  So the packet
// or message that causes the event wakes only this thread.
//
// In four cases the thread waits only on the channel's descriptor, and another thread receives.
// First, another thread has the role already.  Second, waits with the role gained nothing recently.
// Third, the program has signal handlers with SA_RESTART and others without SA_RESTART.  Only
// read(2) behaves as each of these handlers requires.  Fourth, the kernel cannot read an eventfd
// without waiting (EventFd::try_take_never_waits()).
class BlockedWait {
 public:
  // REQUIRES: both outlive this object.
  BlockedWait(Driver& driver, const os::ForkMark& fork_mark)
      : driver_(driver), fork_mark_(fork_mark) {}

  // Takes the next event of the channel.  Waits as read(2) on its descriptor does, and returns 0 or
  // the errno.  Any thread.  The function is a cancellation point, and may unwind.
  int next(CompletionChannel& channel, CqEvent& event);
  int next(CmChannel& channel, process::CmNotice& notice);

 private:
  class Role;
  class WithoutRole;
  template <class Queue, class Entry>
  class WaitWithRole;

  template <class Queue, class Entry>
  int next_of(Queue& queue, Entry& entry, ReceiverRole::For events);

  Driver& driver_;
  const os::ForkMark& fork_mark_;
};

}  // namespace verbena::client
