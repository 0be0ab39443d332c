#include "preload/end_lock.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <optional>

#include "os/system_call.h"
#include "stream/memory.h"

namespace verbena::preload {
namespace {

constexpr int kSpins = 200;
// A sleeping thread checks the lock at this interval, in case that a process has broken the word.
constexpr timespec kCheckEvery{.tv_sec = 0, .tv_nsec = 20'000'000};
constexpr int kTimeoutsMax = 500;      // 10 s
constexpr int kSleepsMax = 1'000'000;  // a hostile owner may wake the sleeper all the time

// The word holds the owner's thread number in the form that the kernel expects: at the death of a
// thread, the kernel looks for the thread's own number, sets FUTEX_OWNER_DIED, and wakes a waiter.
using Word = std::atomic<std::uint32_t>;
Word& word_of(std::byte* lock) { return *reinterpret_cast<Word*>(lock); }

using Node = robust_list;
// Returns the link that precedes the element's own link.  The C library keeps it for its robust
// mutexes, so that it can remove an element from the middle of the list.
Node*& link_before(Node* element) { return *(reinterpret_cast<Node**>(element) - 1); }

// The lowest bit of a link tells the kernel that the element is a mutex with priority inheritance.
Node* element_of(Node* link) {
  const std::uintptr_t mark = reinterpret_cast<std::uintptr_t>(link) & 1;
  return reinterpret_cast<Node*>(reinterpret_cast<char*>(link) - mark);
}

// Keeps the robust list of this thread.  The C library has registered the list, and uses it for its
// own mutexes.  A forged link in the end's memory must not lead this process to other memory.  So
// this class never follows a link there, but has its own copy of each.
class HeldLocks {
 public:
  bool has(const std::byte* lock) const {
    return std::any_of(held_.begin(), held_.begin() + count_,
                       [lock](const Held& one) { return one.lock == lock; });
  }
  bool is_full() const { return count_ == static_cast<int>(held_.size()); }
  std::uint32_t thread_number() {
    if (thread_number_ == 0) {
      thread_number_ = static_cast<std::uint32_t>(os::system_call(SYS_gettid)) & FUTEX_TID_MASK;
    }
    return thread_number_;
  }
  // Announces that this thread is about to take or release the lock.  If the thread dies before
  // clear_pending(), and the word has its number, the kernel marks the lock.
  void set_pending(std::byte* lock) {
    if (robust_list_head* list = head(); list != nullptr) {
      list->list_op_pending = node_of(lock);
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
  }
  void clear_pending() {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (head_ != nullptr) head_->list_op_pending = nullptr;
  }
  void add(std::byte* lock) {
    Held& one = held_[static_cast<std::size_t>(count_++)];
    one = {.lock = lock, .link = nullptr};
    if (head_ == nullptr) return;
    Node* const node = node_of(lock);
    one.link = head_->list.next;
    node->next = one.link;
    link_before(node) = &head_->list;
    if (Node* next = element_of(one.link); next != &head_->list) link_before(next) = node;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    head_->list.next = node;
  }
  // Returns false if this thread does not hold the lock.
  bool remove(const std::byte* lock) {
    const auto end = held_.begin() + count_;
    const auto found =
        std::find_if(held_.begin(), end, [lock](const Held& one) { return one.lock == lock; });
    if (found == end) return false;
    const Held removed = *found;
    std::copy(found + 1, end, found);
    --count_;
    if (head_ != nullptr) unlink(removed);
    return true;
  }
  void after_fork_in_child() { *this = HeldLocks(); }

 private:
  struct Held {
    std::byte* lock;
    Node* link;  // the next element of the list, as it was when this one was added
  };
  static constexpr std::size_t kHeldMax = 8;  // a thread holds one, and each signal handler another
  static constexpr int kElementsMax = 2048;   // the kernel follows at most as many links

  Node* node_of(std::byte* lock) const {
    return reinterpret_cast<Node*>(lock - head_->futex_offset);
  }
  // Returns the head of the list, or nullptr if a lock has no space for the list's element.
  robust_list_head* head() {
    if (!has_head_) {
      has_head_ = true;
      robust_list_head* list = nullptr;
      std::size_t bytes = 0;
      const int error = errno;
      const bool is_known = os::system_call(SYS_get_robust_list, 0, &list, &bytes) == 0;
      errno = error;
      constexpr auto kLinksMax = static_cast<long>(stream::EndState::kLockBytes - sizeof(Node));
      constexpr auto kLinksMin = static_cast<long>(2 * sizeof(Node));
      if (is_known && list != nullptr && -list->futex_offset >= kLinksMin &&
          -list->futex_offset <= kLinksMax) {
        head_ = list;
      }
    }
    return head_;
  }
  // Removes an element.  It is usually the first one.
  void unlink(const Held& removed) {
    Node* const node = node_of(removed.lock);
    Node* before = &head_->list;
    for (int i = 0; i < kElementsMax && before->next != node; ++i) {
      before = element_of(next_of(before));
      if (before == &head_->list) return;
    }
    if (before->next != node) return;
    for (int i = 0; i < count_; ++i) {
      Held& one = held_[static_cast<std::size_t>(i)];
      if (node_of(one.lock) == before) one.link = removed.link;
    }
    before->next = removed.link;
    if (Node* next = element_of(removed.link); next != &head_->list) link_before(next) = before;
  }
  Node* next_of(Node* element) const {
    for (int i = 0; i < count_; ++i) {
      const Held& one = held_[static_cast<std::size_t>(i)];
      if (node_of(one.lock) == element) return one.link;
    }
    return element->next;
  }

  std::array<Held, kHeldMax> held_{};
  int count_ = 0;
  std::uint32_t thread_number_ = 0;
  robust_list_head* head_ = nullptr;
  bool has_head_ = false;
};
constinit thread_local HeldLocks held_locks{};

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Counts how long a thread has waited for one lock.  Uses no clock, because a program may have
// replaced the functions that read it.
class Patience {
 public:
  // Sleeps while the word has this value.  Returns false if the thread has waited long enough.
  bool sleep(Word& word, std::uint32_t value) {
    if (++sleeps_ > kSleepsMax || timeouts_ >= kTimeoutsMax) return false;
    const int error = errno;
    if (os::system_call(SYS_futex, &word, FUTEX_WAIT, value, &kCheckEvery, nullptr, 0) != 0 &&
        errno == ETIMEDOUT) {
      ++timeouts_;
    }
    errno = error;
    return true;
  }

 private:
  int sleeps_ = 0;
  int timeouts_ = 0;
};

// Takes the lock if it is free or if its owner has died.  Otherwise, returns nothing and stores the
// word.  `waiters` is FUTEX_WAITERS if other threads may sleep as well.
std::optional<EndLock::Outcome> try_lock(std::byte* lock, std::uint32_t waiters,
                                         std::uint32_t& word) {
  const auto is_free = [](std::uint32_t value) {
    return (value & FUTEX_TID_MASK) == 0 || (value & FUTEX_OWNER_DIED) != 0;
  };
  word = word_of(lock).load(std::memory_order_relaxed);
  if (!is_free(word)) return std::nullopt;
  const std::uint32_t number = held_locks.thread_number();
  std::optional<EndLock::Outcome> outcome;
  held_locks.set_pending(lock);
  while (is_free(word)) {
    const std::uint32_t taken = number | waiters | (word & FUTEX_WAITERS);
    if (!word_of(lock).compare_exchange_weak(word, taken, std::memory_order_seq_cst)) continue;
    held_locks.add(lock);
    outcome =
        (word & FUTEX_OWNER_DIED) != 0 ? EndLock::Outcome::kOwnerDied : EndLock::Outcome::kTaken;
    break;
  }
  held_locks.clear_pending();
  return outcome;
}

}  // namespace

EndLock::EndLock(std::span<std::byte> memory, std::atomic<bool>& is_stuck)
    : memory_(memory.data()), is_stuck_(is_stuck) {
  lock_again();
}

void EndLock::lock_again() {
  outcome_ = Outcome::kNotTaken;
  if (held_locks.has(memory_) || held_locks.is_full()) return;
  Word& lock = word_of(memory_);
  std::uint32_t waiters = 0;
  Patience patience;
  for (int tries = 0;; ++tries) {
    std::uint32_t word = 0;
    if (const auto outcome = try_lock(memory_, waiters, word)) {
      outcome_ = *outcome;
      return;
    }
    if (tries < kSpins) {
      pause();
      continue;
    }
    if (is_stuck_.load(std::memory_order_relaxed)) break;
    if ((word & FUTEX_WAITERS) == 0 && !lock.compare_exchange_strong(word, word | FUTEX_WAITERS)) {
      continue;
    }
    waiters = FUTEX_WAITERS;  // keeps the bit, because other threads may sleep as well
    if (!patience.sleep(lock, word | FUTEX_WAITERS)) break;
  }
  is_stuck_.store(true);
  outcome_ = Outcome::kGivenUp;
}

void EndLock::unlock() {
  if (outcome_ != Outcome::kTaken && outcome_ != Outcome::kOwnerDied) return;
  outcome_ = Outcome::kNotTaken;
  Word& lock = word_of(memory_);
  held_locks.set_pending(memory_);
  std::uint32_t word = 0;
  // A forked child may run the rest of its parent's call, but the parent holds the lock.
  const bool is_held = held_locks.remove(memory_);
  if (is_held) word = lock.exchange(0, std::memory_order_seq_cst);
  held_locks.clear_pending();
  if ((word & FUTEX_WAITERS) == 0) return;
  const int error = errno;
  os::system_call(SYS_futex, &lock, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  errno = error;
}

void EndLock::after_fork_in_child() { held_locks.after_fork_in_child(); }

}  // namespace verbena::preload
