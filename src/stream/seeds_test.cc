// Runs random calls of two processes at each end of a stream, one call at a time.
// VB_SEED=17 runs only that seed; VB_SEEDS=10000 runs this number of seeds.
#include "sim/seeds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <vector>

#include "base/random.h"
#include "stream/receiver.h"
#include "stream/sender.h"
#include "stream/test_bytes.h"

namespace verbena::stream {
namespace {

constexpr std::size_t kRingBytes = 64;
constexpr std::size_t kTcpBuffer = 100;
constexpr std::size_t kBytesPerCall = 40;

class SimulatedStream {
 public:
  explicit SimulatedStream(std::uint64_t seed) : random_(seed) {
    // Some streams begin just before positions and offsets wrap.
    if (one_in(2)) {
      const std::uint64_t position = kOffsetMask - random_.below(200);
      mapped_.direction->head = position;
      mapped_.direction->state = position << State::kTailShift;
    }
    const std::uint64_t tcp_bytes =
        one_in(2) ? random_.below(100) : kOffsetMask - random_.below(99);
    senders_[0].start(tcp_bytes);
    // The first reader was in recv() when the receiver started to use the ring.
    readers_[0].state = Reader::kInRecv;
    receivers_[0].start(tcp_bytes, 1);
  }

  void run() {
    const std::uint64_t calls = 200 + random_.below(400);
    for (std::uint64_t i = 0; i < calls && !testing::Test::HasFailure(); ++i) run_step();
    finished_ = true;
    if (senders_[0].wake_needed()) woken_ = true;
    // Lets the readers read until one of them has reached the end.
    for (int i = 0; i < 5000 && !ended_ && !testing::Test::HasFailure(); ++i) read_step();
    EXPECT_TRUE(ended_);
    EXPECT_EQ(bytes_read_, bytes_written_);
  }
  std::uint64_t by_ring() const { return by_ring_; }

 private:
  struct Reader {
    enum State : std::uint8_t { kAwake, kInRecv, kAfterRecv, kInPoll, kInFutex };
    State state = kAwake;
    // Bytes that recv() has returned, and that the reader has not reported to its receiver yet.
    std::size_t unreported = 0;
  };

  // Returns true in one of `n` calls on average.
  bool one_in(std::uint64_t n) { return random_.below(n) == 0; }
  std::size_t random_size() { return 1 + static_cast<std::size_t>(random_.below(kBytesPerCall)); }

  void run_step() {
    if (one_in(2)) {
      write(senders_[random_.below(2)]);
    } else {
      read_step();
    }
    if (one_in(300)) leave_at_one_end();
    check();
  }

  void write(Sender& sender) {
    std::vector<std::byte> bytes(random_size());
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = byte_at(bytes_written_ + i);
    Result<WriteStep> step = sender.write(bytes);
    ASSERT_TRUE(step.has_value()) << step.error().context;
    if (step->kind == WriteStep::Kind::kFull) {
      if (one_in(2)) return;
      step = sender.write_by_tcp(bytes.size());
      ASSERT_TRUE(step.has_value()) << step.error().context;
    }
    if (step->kind == WriteStep::Kind::kCopied) {
      bytes_written_ += step->bytes;
      by_ring_ += step->bytes;
      if (step->wake) woken_ = true;
      return;
    }
    std::size_t n = std::min(bytes.size(), kTcpBuffer - tcp_.size());
    if (one_in(3)) n = static_cast<std::size_t>(random_.below(n + 1));
    tcp_.insert(tcp_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    bytes_written_ += n;
    if (step->kind == WriteStep::Kind::kTcp && sender.sent(n)) woken_ = true;
  }

  void read_step() {
    const std::size_t i = random_.below(2);
    Reader& reader = readers_[i];
    Receiver& receiver = receivers_[i];
    switch (reader.state) {
      case Reader::kAwake: read(reader, receiver); break;
      case Reader::kInRecv: {
        if (tcp_.empty() && !finished_) break;
        reader.unreported = take_tcp(random_size());
        ended_ |= reader.unreported == 0 && tcp_.empty();
        reader.state = Reader::kAfterRecv;
        break;
      }
      case Reader::kAfterRecv:
        receiver.received_while_withdrawn(reader.unreported);
        receiver.promise();
        reader.state = Reader::kAwake;
        break;
      case Reader::kInPoll:
        if (tcp_.empty() && !finished_ && !one_in(4)) break;  // a timeout may end the poll
        receiver.promise();
        reader.state = Reader::kAwake;
        break;
      case Reader::kInFutex:
        if (woken_ || one_in(4)) reader.state = Reader::kAwake;
        break;
    }
  }
  void read(Reader& reader, Receiver& receiver) {
    if (one_in(4)) return sleep_on_edge(reader, receiver);
    std::vector<std::byte> buffer(random_size());
    const bool peek = one_in(5);
    const Result<ReadStep> step = receiver.read(buffer, peek);
    ASSERT_TRUE(step.has_value()) << step.error().context;
    switch (step->kind) {
      case ReadStep::Kind::kCopied: verify(std::span(buffer).first(step->bytes), peek); break;
      case ReadStep::Kind::kTcp: {
        const std::size_t n = take_tcp(step->bytes);
        receiver.received(n);
        if (n == 0 && finished_ && tcp_.empty()) check_end(receiver);
        break;
      }
      case ReadStep::Kind::kPlain: ended_ |= take_tcp(buffer.size()) == 0 && at_end(); break;
      case ReadStep::Kind::kRingEmpty: wait(reader, receiver, *step); break;
    }
  }
  void check_end(Receiver& receiver) {
    const Result<bool> is_end = receiver.check_end();
    ASSERT_TRUE(is_end.has_value()) << is_end.error().context;
    ended_ |= *is_end;
  }
  bool at_end() const { return finished_ && tcp_.empty(); }
  void wait(Reader& reader, Receiver& receiver, const ReadStep& step) {
    const std::uint64_t how = random_.below(3);
    if (how == 0) {
      const Result<std::size_t> allowed = receiver.begin_queued_read(tcp_.size());
      ASSERT_TRUE(allowed.has_value()) << allowed.error().context;
      if (*allowed != 0) receiver.received(take_tcp(*allowed));
    } else if (how == 1 && receiver.prepare_futex_wait(step.tail).has_value()) {
      if (!tcp_.empty() || finished_) return;
      woken_ = false;
      reader.state = Reader::kInFutex;
    } else if (*receiver.withdraw(step.tail)) {
      reader.state = Reader::kInRecv;
    }
  }
  // Sleeps as an edge-triggered epoll does, although the ring may have bytes: they were reported
  // before.
  void sleep_on_edge(Reader& reader, Receiver& receiver) {
    if (*receiver.withdraw(receiver.ring_status().tail)) reader.state = Reader::kInPoll;
  }

  void leave_at_one_end() {
    if (one_in(2)) {
      const Result<bool> result = senders_[random_.below(2)].leave(Reason::kExec);
      ASSERT_TRUE(result.has_value());
      if (*result) woken_ = true;
    } else {
      const std::size_t unread = senders_[0].unread();
      const Result<Receiver::LeaveResult> result =
          receivers_[random_.below(2)].leave(Reason::kPassed);
      ASSERT_TRUE(result.has_value());
      EXPECT_EQ(*result == Receiver::LeaveResult::kUnread, unread != 0);
    }
  }

  // Takes at most `limit` bytes from TCP, sometimes fewer than TCP has.
  std::size_t take_tcp(std::size_t limit) {
    std::size_t n = std::min(limit, tcp_.size());
    if (n > 1 && one_in(3)) n = 1 + static_cast<std::size_t>(random_.below(n));
    std::vector<std::byte> bytes(tcp_.begin(), tcp_.begin() + static_cast<std::ptrdiff_t>(n));
    tcp_.erase(tcp_.begin(), tcp_.begin() + static_cast<std::ptrdiff_t>(n));
    verify(bytes, false);
    return n;
  }
  void verify(std::span<const std::byte> bytes, bool peek) {
    for (std::size_t i = 0; i < bytes.size(); ++i) ASSERT_EQ(bytes[i], byte_at(bytes_read_ + i));
    if (!peek) bytes_read_ += bytes.size();
  }

  // Checks that no reader sleeps while there are unread bytes that will not wake it.
  void check() {
    const bool ring_has_bytes = senders_[0].unread() != 0;
    for (const Reader& reader : readers_) {
      EXPECT_FALSE(reader.state == Reader::kInRecv && ring_has_bytes);
      const bool asleep = reader.state == Reader::kInFutex && !woken_;
      EXPECT_FALSE(asleep && (ring_has_bytes || !tcp_.empty()));
    }
  }

  Random random_;
  alignas(64) std::array<std::byte, memory_bytes(kRingBytes)> memory_{};
  DirectionMemory mapped_ = *direction_memory(memory_, 0);
  std::array<Sender, 2> senders_{Sender(mapped_), Sender(mapped_)};
  std::array<Receiver, 2> receivers_{Receiver(mapped_), Receiver(mapped_)};
  std::array<Reader, 2> readers_;
  std::deque<std::byte> tcp_;
  bool finished_ = false;
  bool woken_ = false;
  bool ended_ = false;
  std::uint64_t bytes_written_ = 0;
  std::uint64_t bytes_read_ = 0;
  std::uint64_t by_ring_ = 0;
};

TEST(StreamSeeds, TwoProcessesAtEachEndLoseNoByteAndNoWake) {
  std::uint64_t by_ring = 0;
  for (const std::uint64_t seed : sim::seeds(1000)) {
    SCOPED_TRACE(testing::Message() << "VB_SEED=" << seed);
    SimulatedStream stream(seed);
    stream.run();
    by_ring += stream.by_ring();
    if (HasFailure()) return;
  }
  EXPECT_GT(by_ring, 0U);
}

}  // namespace
}  // namespace verbena::stream
