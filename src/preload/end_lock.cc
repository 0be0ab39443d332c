#include "preload/end_lock.h"

#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>

#include "os/system_call.h"

namespace verbena::preload {
namespace {

constexpr std::uint32_t kOwnerMask = 0x3fffffff;
constexpr std::uint32_t kWaiters = 0x80000000;  // a thread may sleep until the lock is free
constexpr int kSpins = 200;
// A thread that waits for the lock checks at this interval that the owner still lives.
constexpr timespec kCheckOwnerEvery{.tv_sec = 0, .tv_nsec = 20'000'000};

constinit thread_local std::uint32_t thread_number = 0;

std::uint32_t own_number() {
  if (thread_number == 0) {
    thread_number = static_cast<std::uint32_t>(os::system_call(SYS_gettid)) & kOwnerMask;
  }
  return thread_number;
}

bool is_dead(std::uint32_t owner) {
  const int error = errno;
  const bool dead = os::system_call(SYS_tkill, owner, 0) != 0 && errno == ESRCH;
  errno = error;
  return dead;
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

EndLock::EndLock(std::span<std::byte> memory)
    : word_(*reinterpret_cast<std::atomic<std::uint32_t>*>(memory.data())) {
  lock_again();
}

void EndLock::lock_again() {
  std::uint32_t word_to_set = own_number();
  const std::uint32_t number = word_to_set;
  for (int tries = 0;; ++tries) {
    std::uint32_t word = 0;
    if (word_.compare_exchange_strong(word, word_to_set, std::memory_order_seq_cst)) {
      outcome_ = Outcome::kTaken;
      return;
    }
    const std::uint32_t owner = word & kOwnerMask;
    if (owner == number) {
      outcome_ = Outcome::kNotTaken;
      return;
    }
    if (tries < kSpins) {
      pause();
      continue;
    }
    // If the owner is 0, no thread holds the lock, although the bit of waiters is set.
    if (owner == 0 || is_dead(owner)) {
      if (word_.compare_exchange_strong(word, number | kWaiters, std::memory_order_seq_cst)) {
        outcome_ = owner == 0 ? Outcome::kTaken : Outcome::kOwnerDied;
        return;
      }
      continue;
    }
    if ((word & kWaiters) == 0 && !word_.compare_exchange_strong(word, word | kWaiters)) continue;
    word_to_set = number | kWaiters;  // keeps the bit, because other threads may sleep as well
    const int error = errno;
    os::system_call(SYS_futex, &word_, FUTEX_WAIT, owner | kWaiters, &kCheckOwnerEvery, nullptr, 0);
    errno = error;
  }
}

void EndLock::unlock() {
  if (outcome_ == Outcome::kNotTaken) return;
  outcome_ = Outcome::kNotTaken;
  if ((word_.exchange(0, std::memory_order_release) & kWaiters) == 0) return;
  const int error = errno;
  os::system_call(SYS_futex, &word_, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  errno = error;
}

void EndLock::after_fork_in_child() { thread_number = 0; }

}  // namespace verbena::preload
