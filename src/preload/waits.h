#pragma once

#include <atomic>
#include <cstdint>

#include "preload/socket_table.h"

// Lets threads wait for connections that have changed over, in poll() and select().  epolls.h does
// the same for epoll.
//
// The kernel does not wake a thread for bytes in a ring.  So a thread checks the rings before it
// sleeps in the kernel, and withdraws the promises of their receivers while it sleeps: new bytes
// then come by TCP and wake the thread.  A connection that has not changed over yet counts its
// sleepers, so that its receiver starts with as many withdrawals.
namespace verbena::preload::waits {

// Starts a receiver by `begin(sleepers)`, which also changes the socket's state.  No other thread
// can begin or end a wait for the socket during the call.
template <class Begin>
void start_receiver(Socket& socket, Begin begin);

// Call this before the thread sleeps in the kernel for the socket.  Returns false if the ring has
// unread bytes; then the thread must not sleep.
bool begin_sleep(Socket& socket);
// Works as begin_sleep(), but ignores unread bytes if the ring's tail still is `known_tail`
// (Receiver::RingStatus::tail).
bool begin_sleep_with_known_bytes(Socket& socket, std::uint64_t known_tail);
// Works as begin_sleep(), but allows the sleep even if the ring has unread bytes.
void begin_sleep_always(Socket& socket);
// Call this after the thread has slept.
void end_sleep(Socket& socket);

// Resets the waits and locks of the parent's other threads, which do not exist in the child.
void after_fork_in_child();

// Locks the socket's sleeper count for a few instructions.  No other thread can begin or end a
// sleep for the socket meanwhile.
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
void start_receiver(Socket& socket, Begin begin) {
  const WaitLock lock(socket);
  begin(socket.sleepers);
}

}  // namespace verbena::preload::waits
