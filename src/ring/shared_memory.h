#pragma once

#include <atomic>
#include <cstdint>

// Accesses memory that several processes map.  The classes of rings and streams have this class as
// a template parameter.  So a test can run the same code under a scheduler that reorders stores, or
// kill a process at any access.
namespace verbena::ring {

struct SharedMemory {
  template <class Word>
  static Word load_relaxed(const Word& word) {
    return std::atomic_ref(const_cast<Word&>(word)).load(std::memory_order_relaxed);
  }
  template <class Word>
  static Word load_acquire(const Word& word) {
    return std::atomic_ref(const_cast<Word&>(word)).load(std::memory_order_acquire);
  }
  // All threads observe these loads and all read-modify-writes in the same order.
  template <class Word>
  static Word load_seq_cst(const Word& word) {
    return std::atomic_ref(const_cast<Word&>(word)).load(std::memory_order_seq_cst);
  }
  template <class Word>
  static void store_relaxed(Word& word, Word value) {
    std::atomic_ref(word).store(value, std::memory_order_relaxed);
  }
  template <class Word>
  static void store_release(Word& word, Word value) {
    std::atomic_ref(word).store(value, std::memory_order_release);
  }
  template <class Word>
  static Word exchange(Word& word, Word value) {
    return std::atomic_ref(word).exchange(value, std::memory_order_seq_cst);
  }
  template <class Word>
  static Word fetch_or(Word& word, Word bits) {
    return std::atomic_ref(word).fetch_or(bits, std::memory_order_seq_cst);
  }
  template <class Word>
  static Word fetch_and(Word& word, Word bits) {
    return std::atomic_ref(word).fetch_and(bits, std::memory_order_seq_cst);
  }
  template <class Word>
  static Word fetch_add(Word& word, Word value) {
    return std::atomic_ref(word).fetch_add(value, std::memory_order_seq_cst);
  }
  // Stores `desired` and returns true if the word equals `expected`.  Otherwise writes the word to
  // `expected` and returns false.
  template <class Word>
  static bool compare_exchange(Word& word, Word& expected, Word desired) {
    return std::atomic_ref(word).compare_exchange_strong(expected, desired,
                                                         std::memory_order_seq_cst);
  }
  // Makes all earlier stores visible to all processors before any later load is carried out.
  static void fence() {
#if defined(__SANITIZE_THREAD__)
    // ThreadSanitizer does not support fences.  A read-modify-write has the same effect on x86 and
    // arm64.
    static std::atomic<int> order;
    order.fetch_add(0, std::memory_order_seq_cst);
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
  }
};

static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic_ref<std::uint32_t>::is_always_lock_free);

}  // namespace verbena::ring
