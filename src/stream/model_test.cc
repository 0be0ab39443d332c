// Checks both ends of a stream in all orders of their accesses to the memory within a budget
// (ring/model_test.h), with a simulated TCP that splits and delays bytes.  VB_MODEL_BUDGET sets the
// budget.  AddressSanitizer and ThreadSanitizer do not support the context switches of these tests,
// so the tests do not run under them.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#include "ring/model_test.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <memory>
#include <numeric>
#include <vector>

#include "stream/idle_ring.h"
#include "stream/receiver.h"
#include "stream/sender.h"

namespace verbena::stream {
namespace {

using ring::model::current_explorer;
using ring::model::Explorer;
using ring::model::ModelMemory;

constexpr std::size_t kRingBytes = 16;
constexpr std::size_t kTcpBuffer = 12;

// Simulates the kernel's TCP of one direction.  At each call of send(), receive(), finish() or
// queued(), the explorer may run the other side.
class Tcp {
 public:
  // Accepts fewer bytes than requested if the buffer is full, or if choose() returns true.
  std::size_t send(std::span<const std::byte> bytes) {
    current_explorer->fence();
    std::size_t n = std::min(bytes.size(), kTcpBuffer - queue_.size());
    if (n > 1 && current_explorer->choose()) n = 1;
    queue_.insert(queue_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    return n;
  }
  // Returns the bytes that fit into the buffer, or one byte fewer if choose() returns true, as if
  // that byte came late.
  std::size_t receive(std::span<std::byte> buffer) {
    current_explorer->fence();
    std::size_t n = std::min(buffer.size(), queue_.size());
    if (n > 0 && current_explorer->choose()) --n;
    std::copy_n(queue_.begin(), n, buffer.begin());
    queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(n));
    return n;
  }
  void finish() {
    current_explorer->fence();
    finished_ = true;
  }
  std::size_t queued() const {
    current_explorer->fence();
    return queue_.size();
  }
  bool ended() const { return finished_ && queue_.empty(); }
  bool readable() const { return finished_ || !queue_.empty(); }
  bool writable() const { return queue_.size() < kTcpBuffer; }

 private:
  std::deque<std::byte> queue_;
  bool finished_ = false;
};

// Selects how the reader waits when there is nothing to read.
enum class Wait : std::uint8_t { kRecv, kPoll, kFutex };

struct Program {
  Wait wait = Wait::kRecv;
  std::vector<std::size_t> writes{3, 9, 16, 2};
  // The sender goes back to TCP before the write with this number.
  std::size_t sender_leaves_at = ~std::size_t{0};
  // The receiver goes back to TCP as soon as it can after this many bytes.
  std::size_t receiver_leaves_at = ~std::size_t{0};
  bool closes_at_once = false;    // false: the sender waits until the reader has all bytes
  bool gives_pages_back = false;  // gives the pages of an empty ring back to the system
};

template <class Memory>
class Conversation {
 public:
  explicit Conversation(Program program) : program_(std::move(program)) {}

  std::uint64_t explore(int budget) {
    Explorer explorer(budget);
    return explorer.explore(
        [&] {
          memory_ = std::make_unique<Bytes>();
          sender_end_ = {};
          tcp_ = Tcp();
          bytes_read_.clear();
          ended_ = woken_ = false;
          return Explorer::Scenario{{[&] { send(); }, [&] { receive(); }},
                                    [&] { check(explorer); }};
        },
        [&] { return has_lost_wake_ || has_wrong_bytes_ || has_error_; });
  }
  bool has_lost_wake() const { return has_lost_wake_; }
  bool has_wrong_bytes() const { return has_wrong_bytes_; }
  bool has_error() const { return has_error_; }
  std::uint64_t by_ring() const { return by_ring_; }
  std::uint64_t by_tcp() const { return by_tcp_; }
  std::uint64_t pages_given_back() const { return pages_given_back_; }

 private:
  struct alignas(64) Bytes : std::array<std::byte, memory_bytes(kRingBytes)> {};

  std::size_t total() const {
    return std::accumulate(program_.writes.begin(), program_.writes.end(), std::size_t{0});
  }
  static void wait(const std::function<bool()>& ready) { current_explorer->wait(ready); }

  // Simulates a program that writes and closes.
  void send() {
    BasicSender<Memory> sender(*direction_memory(*memory_, 0));
    sender.start(0);
    std::size_t offset = 0;
    for (std::size_t i = 0; i < program_.writes.size(); ++i) {
      if (i == program_.sender_leaves_at) {
        const Result<bool> must_wake = sender.leave(Reason::kExec);
        has_error_ |= !must_wake.has_value();
        if (must_wake.has_value() && *must_wake) woken_ = true;
      }
      std::vector<std::byte> bytes(program_.writes[i]);
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(offset++);
      write(sender, bytes);
    }
    // The sender waits before it closes, so that the test detects a lost wake-up.  Without this
    // wait, the end of file would wake the reader.
    if (!program_.closes_at_once) wait([&] { return bytes_read_.size() == total(); });
    tcp_.finish();
    if (sender.wake_needed()) woken_ = true;
  }
  void write(BasicSender<Memory>& sender, std::span<const std::byte> bytes) {
    while (!bytes.empty() && !has_error_) {
      // Only this process sends, so it does not wait for the lock.
      if (program_.gives_pages_back) Memory::fetch_or(send_lock(), 1U);
      const std::size_t n = write_step(sender, bytes);
      if (program_.gives_pages_back) Memory::exchange(send_lock(), 0U);
      bytes = bytes.subspan(n);
      if (n == 0 && !has_error_) wait([&] { return tcp_.writable(); });
    }
  }
  std::uint32_t& send_lock() { return const_cast<std::uint32_t&>(send_lock_of(sender_end_)); }
  // Returns how many bytes were written; 0: TCP is full, or there was an error.
  std::size_t write_step(BasicSender<Memory>& sender, std::span<const std::byte> bytes) {
    Result<WriteStep> step = sender.write(bytes);
    if (step.has_value() && step->kind == WriteStep::Kind::kFull) {
      step = sender.write_by_tcp(bytes.size());
    }
    if (!step.has_value()) {
      has_error_ = true;
      return 0;
    }
    if (step->kind == WriteStep::Kind::kCopied) {
      if (step->wake) woken_ = true;
      by_ring_ += step->bytes;
      return step->bytes;
    }
    const bool is_plain = step->kind == WriteStep::Kind::kPlain;
    const std::size_t n = tcp_.send(is_plain ? bytes : bytes.first(step->bytes));
    if (!is_plain && sender.sent(n)) woken_ = true;
    by_tcp_ += n;
    return n;
  }

  // Simulates a program that reads up to the end.
  void receive() {
    BasicReceiver<Memory> receiver(*direction_memory(*memory_, 0));
    receiver.start(0, 0);
    while (!ended_ && !has_error_) {
      if (bytes_read_.size() >= program_.receiver_leaves_at) {
        has_error_ |= !receiver.leave(Reason::kPassed).has_value();
      }
      std::array<std::byte, 7> buffer{};
      const Result<ReadStep> step = receiver.read(buffer);
      if (!step.has_value()) {
        has_error_ = true;
        return;
      }
      switch (step->kind) {
        case ReadStep::Kind::kCopied: append_read(std::span(buffer).first(step->bytes)); break;
        case ReadStep::Kind::kTcp: read_tcp(receiver, std::span(buffer).first(step->bytes)); break;
        case ReadStep::Kind::kPlain: {
          const std::size_t n = tcp_.receive(buffer);
          append_read(std::span(buffer).first(n));
          if (n == 0) wait_for_tcp();
          ended_ = n == 0 && tcp_.ended();
          break;
        }
        case ReadStep::Kind::kRingEmpty: read_with_empty_ring(receiver, *step, buffer); break;
      }
    }
  }
  void read_tcp(BasicReceiver<Memory>& receiver, std::span<std::byte> buffer) {
    const std::size_t n = tcp_.receive(buffer);
    const bool is_at_end = n == 0 && tcp_.ended();
    append_read(buffer.first(n));
    receiver.received(n);
    if (is_at_end) {
      const Result<bool> is_end = receiver.check_end();
      has_error_ |= !is_end.has_value();
      ended_ = is_end.has_value() && *is_end;
    } else if (n == 0) {
      wait_for_tcp();
    }
  }
  void read_with_empty_ring(BasicReceiver<Memory>& receiver, const ReadStep& step,
                            std::span<std::byte> buffer) {
    if (program_.gives_pages_back && current_explorer->choose()) return release_pages();
    if (program_.wait != Wait::kRecv) {
      const Result<std::size_t> allowed = receiver.begin_queued_read(tcp_.queued());
      has_error_ |= !allowed.has_value();
      if (has_error_) return;
      if (*allowed != 0) return read_tcp(receiver, buffer.first(std::min(*allowed, buffer.size())));
    }
    if (program_.wait == Wait::kFutex && !tcp_.ended()) {
      const std::optional<std::uint32_t> value = receiver.prepare_futex_wait(step.tail);
      current_explorer->fence();
      if (value && tcp_.readable()) return;
      if (value) return futex_wait(*receiver.futex_word(), *value);
      // New bytes are in the ring, or the sender has gone back to TCP and does not use the futex.
    }
    sleep_in_kernel(receiver, step, buffer);
  }
  // Simulates the service, which makes a hole in the ring.
  void release_pages() {
    const DirectionMemory mapped = *direction_memory(*memory_, 0);
    BasicIdleRing<Memory> ring(*mapped.direction, sender_end_);
    if (!ring.begin()) return;
    current_explorer->fence();
    std::ranges::fill(mapped.ring, std::byte{0xee});
    ++pages_given_back_;
    ring.end();
  }
  void sleep_in_kernel(BasicReceiver<Memory>& receiver, const ReadStep& step,
                       std::span<std::byte> buffer) {
    const Result<bool> may_sleep = receiver.withdraw(step.tail);
    has_error_ |= !may_sleep.has_value();
    if (has_error_ || !*may_sleep) return;
    wait_for_tcp();
    if (program_.wait != Wait::kPoll || tcp_.ended()) {
      const std::size_t n = tcp_.receive(buffer);
      ended_ = n == 0 && tcp_.ended();
      append_read(buffer.first(n));
      receiver.received_while_withdrawn(n);
    }
    receiver.promise();
  }
  void wait_for_tcp() {
    wait([&] { return tcp_.readable(); });
  }
  void futex_wait(const std::uint32_t& word, std::uint32_t value) {
    bool asleep = false;
    wait([&] {
      // The kernel compares the value once.  After that, only a wake ends the wait.
      if (!asleep) {
        woken_ = false;
        asleep = true;
        if (word != value) woken_ = true;
      }
      return woken_;
    });
  }
  void append_read(std::span<const std::byte> bytes) {
    bytes_read_.insert(bytes_read_.end(), bytes.begin(), bytes.end());
  }

  void check(const Explorer& explorer) {
    has_lost_wake_ |= explorer.deadlocked() && !has_error_;
    for (std::size_t i = 0; i < bytes_read_.size(); ++i) {
      has_wrong_bytes_ |= bytes_read_[i] != static_cast<std::byte>(i);
    }
    if (ended_) has_wrong_bytes_ |= bytes_read_.size() != total();
  }

  Program program_;
  std::unique_ptr<Bytes> memory_;
  EndState sender_end_{};
  Tcp tcp_;
  std::vector<std::byte> bytes_read_;
  bool ended_ = false;
  bool woken_ = false;
  bool has_lost_wake_ = false;
  bool has_wrong_bytes_ = false;
  bool has_error_ = false;
  std::uint64_t by_ring_ = 0;
  std::uint64_t by_tcp_ = 0;
  std::uint64_t pages_given_back_ = 0;
};

int budget() {
  const char* text = std::getenv("VB_MODEL_BUDGET");
  return text != nullptr ? std::atoi(text) : 2;
}

void expect_correct(const Program& program) {
  Conversation<ModelMemory<>> conversation(program);
  const std::uint64_t runs = conversation.explore(budget());
  EXPECT_FALSE(conversation.has_lost_wake());
  EXPECT_FALSE(conversation.has_wrong_bytes());
  EXPECT_FALSE(conversation.has_error());
  EXPECT_GT(runs, 500U);
  EXPECT_GT(conversation.by_ring(), 0U);
  EXPECT_GT(conversation.by_tcp(), 0U);
  testing::Test::RecordProperty("runs", static_cast<int>(runs));
}

TEST(StreamModel, AReaderThatBlocksInRecvGetsAllBytesInOrder) {
  expect_correct({.wait = Wait::kRecv});
}

TEST(StreamModel, AReaderThatPollsGetsAllBytesInOrder) { expect_correct({.wait = Wait::kPoll}); }

TEST(StreamModel, AReaderThatWaitsOnAFutexGetsAllBytesInOrder) {
  expect_correct({.wait = Wait::kFutex});
}

TEST(StreamModel, AReaderSeesNoEndBeforeTheLastByte) {
  for (const Wait wait : {Wait::kRecv, Wait::kPoll, Wait::kFutex}) {
    expect_correct({.wait = wait, .writes = {3, 9, 4}, .closes_at_once = true});
  }
}

TEST(StreamModel, ReaderGetsAllBytesIfTheSenderGoesBackToTcp) {
  for (const Wait wait : {Wait::kRecv, Wait::kPoll, Wait::kFutex}) {
    expect_correct({.wait = wait, .writes = {9, 16, 5, 4}, .sender_leaves_at = 2});
  }
}

TEST(StreamModel, ReaderThatGoesBackToTcpGetsAllBytes) {
  for (const Wait wait : {Wait::kRecv, Wait::kPoll, Wait::kFutex}) {
    expect_correct({.wait = wait, .receiver_leaves_at = 5});
  }
}

TEST(StreamModel, NoByteOrWakeIsLostWhileARingsPagesAreGivenBack) {
  for (const Wait wait : {Wait::kRecv, Wait::kPoll, Wait::kFutex}) {
    Conversation<ModelMemory<>> conversation(
        {.wait = wait, .writes = {3, 9, 5}, .gives_pages_back = true});
    conversation.explore(budget() + 1);
    EXPECT_FALSE(conversation.has_lost_wake());
    EXPECT_FALSE(conversation.has_wrong_bytes());
    EXPECT_FALSE(conversation.has_error());
    EXPECT_GT(conversation.pages_given_back(), 100U);
  }
}

// Makes the sender's lock look free to BasicIdleRing::begin().
struct LocklessMemory : ModelMemory<> {
  static std::uint32_t load_seq_cst(const std::uint32_t& lock) { return 0 & load_relaxed(lock); }
  static std::uint64_t load_seq_cst(const std::uint64_t& word) { return load_relaxed(word); }
};

TEST(StreamModel, DetectsWrongBytesIfPagesAreGivenBackWhileSomebodySends) {
  Conversation<LocklessMemory> conversation(
      {.wait = Wait::kFutex, .writes = {3, 9, 5}, .gives_pages_back = true});
  conversation.explore(3);
  EXPECT_TRUE(conversation.has_wrong_bytes());
}

// Changes the promise and the tail as if they were two words: each side first checks the word, and
// then stores only its own part.
struct SplitMemory : ModelMemory<> {
  static bool compare_exchange(std::uint64_t& word, std::uint64_t& expected,
                               std::uint64_t desired) {
    current_explorer->fence();
    if (word != expected) {
      expected = word;
      return false;
    }
    const std::uint64_t changed = expected ^ desired;
    constexpr std::uint64_t kTail = ~std::uint64_t{0} << State::kTailShift;
    const std::uint64_t part = (changed & kTail) != 0 ? kTail : ~kTail;
    current_explorer->before_access();
    word = (word & ~part) | (desired & part);
    return true;
  }
};

TEST(StreamModel, DetectsALostWakeIfPromiseAndTailAreTwoWords) {
  Conversation<SplitMemory> conversation({.wait = Wait::kRecv});
  conversation.explore(3);
  EXPECT_TRUE(conversation.has_lost_wake());
}

TEST(StreamModel, DetectsWrongBytesOrAnErrorWithoutReleaseOrder) {
  Conversation<ModelMemory<true, false>> conversation({.wait = Wait::kPoll});
  conversation.explore(3);
  EXPECT_TRUE(conversation.has_wrong_bytes() || conversation.has_error());
}

TEST(StreamModel, DetectsALostWakeWithoutFences) {
  Conversation<ModelMemory<false, true>> conversation(
      {.wait = Wait::kFutex, .writes = {3, 3}, .sender_leaves_at = 1});
  conversation.explore(4);
  EXPECT_TRUE(conversation.has_lost_wake());
}

}  // namespace
}  // namespace verbena::stream

#endif
