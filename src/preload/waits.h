#pragma once

#include <atomic>
#include <cstdint>

#include "preload/socket_table.h"

// Lets threads wait for connections that have changed over, in poll() and select(); epolls.h is for
// epoll.
//
// The kernel knows nothing of a ring.  So a thread looks at the rings before it sleeps in the
// kernel, and withdraws the promises of their receivers for as long as it sleeps: bytes that come
// during the sleep come by TCP and wake it.  A connection that has not changed over yet counts its
// sleepers, so that its receiver starts with as many withdrawals.
namespace verbena::preload::waits {

// Calls `begin(sleepers)`, which starts the receiver and changes the state.  No other thread can
// begin or end a wait for the socket during the call.
template <class Begin>
void start(Socket& socket, Begin begin);

// Call this before the thread sleeps in the kernel for the socket.  Returns false if the ring has
// bytes; then the thread must not sleep.
bool begin_sleep(Socket& socket);
// Works as begin_sleep(), but also returns true if only bytes up to `known_tail`
// (Receiver::Look::tail) lie in the ring.
bool begin_sleep_beyond(Socket& socket, std::uint64_t known_tail);
// Works as begin_sleep(), but allows the sleep even if bytes lie in the ring.
void begin_sleep_always(Socket& socket);
// Call this after the thread has slept.
void end_sleep(Socket& socket);

// Ends the waits and locks of the parent's other threads, which the child does not have.
void after_fork_in_child();

// Locks the socket's waits for a few instructions: no other thread can begin or end one.
class WaitLock {
 public:
  explicit WaitLock(Socket& socket) : flag_(socket.wait_lock) {
    while (flag_.exchange(true, std::memory_order_acquire)) {
    }
  }
  WaitLock(const WaitLock&) = delete;
  WaitLock& operator=(const WaitLock&) = delete;
  ~WaitLock() { flag_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool>& flag_;
};

template <class Begin>
void start(Socket& socket, Begin begin) {
  const WaitLock lock(socket);
  begin(socket.sleepers);
}

}  // namespace verbena::preload::waits
