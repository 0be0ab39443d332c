// Runs random calls of several processes at each end of a stream, one call at a time.
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

constexpr std::size_t kRing = 64;
constexpr std::size_t kTcpBuffer = 100;
constexpr std::size_t kBytesPerCall = 40;

class World {
 public:
  explicit World(std::uint64_t seed) : random_(seed) {
    // Some streams begin just before positions and offsets wrap.
    if (chance(2)) {
      const std::uint64_t position = kOffsetMask - random_.below(200);
      place_.direction->head = position;
      place_.direction->state = position << State::kTailShift;
    }
    const std::uint64_t tcp_bytes =
        chance(2) ? random_.below(100) : kOffsetMask - random_.below(99);
    senders_[0].start(tcp_bytes);
    // The first reader was in recv() when the receiver started to use the ring.
    readers_[0].state = Reader::kInRecv;
    receivers_[0].start(tcp_bytes, 1);
  }

  void run() {
    const std::uint64_t calls = 200 + random_.below(400);
    for (std::uint64_t i = 0; i < calls && !testing::Test::HasFailure(); ++i) step();
    finished_ = true;
    if (senders_[0].wake_needed()) woken_ = true;
    // All readers get turns until they have seen the end.
    for (int i = 0; i < 5000 && !ended_ && !testing::Test::HasFailure(); ++i) read_step();
    EXPECT_TRUE(ended_);
    EXPECT_EQ(read_, written_);
  }
  std::uint64_t by_ring() const { return by_ring_; }

 private:
  struct Reader {
    enum State : std::uint8_t { kAwake, kInRecv, kAfterRecv, kInPoll, kInFutex };
    State state = kAwake;
    std::size_t unreported = 0;  // bytes that recv() returned, without a report to the receiver yet
  };

  bool chance(std::uint64_t n) { return random_.below(n) == 0; }
  std::size_t size() { return 1 + static_cast<std::size_t>(random_.below(kBytesPerCall)); }

  void step() {
    if (chance(2)) {
      write(senders_[random_.below(2)]);
    } else {
      read_step();
    }
    if (chance(300)) leave();
    check();
  }

  void write(Sender& sender) {
    std::vector<std::byte> bytes(size());
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = byte_at(written_ + i);
    Result<WriteStep> step = sender.write(bytes);
    ASSERT_TRUE(step.has_value()) << step.error().context;
    if (step->kind == WriteStep::Kind::kFull) {
      if (chance(2)) return;
      step = sender.write_by_tcp(bytes.size());
      ASSERT_TRUE(step.has_value()) << step.error().context;
    }
    if (step->kind == WriteStep::Kind::kCopied) {
      written_ += step->bytes;
      by_ring_ += step->bytes;
      if (step->wake) woken_ = true;
      return;
    }
    std::size_t n = std::min(bytes.size(), kTcpBuffer - tcp_.size());
    if (chance(3)) n = static_cast<std::size_t>(random_.below(n + 1));
    tcp_.insert(tcp_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    written_ += n;
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
        reader.unreported = take_tcp(size());
        ended_ |= reader.unreported == 0 && tcp_.empty();
        reader.state = Reader::kAfterRecv;
        break;
      }
      case Reader::kAfterRecv:
        receiver.received_open(reader.unreported);
        receiver.promise();
        reader.state = Reader::kAwake;
        break;
      case Reader::kInPoll:
        if (tcp_.empty() && !finished_ && !chance(4)) break;  // a timeout may end the poll, too
        receiver.promise();
        reader.state = Reader::kAwake;
        break;
      case Reader::kInFutex:
        if (woken_ || chance(4)) reader.state = Reader::kAwake;
        break;
    }
  }
  void read(Reader& reader, Receiver& receiver) {
    if (chance(4)) return sleep_on_edge(reader, receiver);
    std::vector<std::byte> buffer(size());
    const bool peek = chance(5);
    const Result<ReadStep> step = receiver.read(buffer, peek);
    ASSERT_TRUE(step.has_value()) << step.error().context;
    switch (step->kind) {
      case ReadStep::Kind::kCopied: verify(std::span(buffer).first(step->bytes), peek); break;
      case ReadStep::Kind::kTcp: {
        const std::size_t n = take_tcp(step->bytes);
        receiver.received(n);
        if (n == 0 && finished_ && tcp_.empty()) end(receiver);
        break;
      }
      case ReadStep::Kind::kPlain: ended_ |= take_tcp(buffer.size()) == 0 && at_end(); break;
      case ReadStep::Kind::kOpen: wait(reader, receiver, *step); break;
    }
  }
  void end(Receiver& receiver) {
    const Result<bool> ended = receiver.ended();
    ASSERT_TRUE(ended.has_value()) << ended.error().context;
    ended_ |= *ended;
  }
  bool at_end() const { return finished_ && tcp_.empty(); }
  void wait(Reader& reader, Receiver& receiver, const ReadStep& step) {
    const std::uint64_t how = random_.below(3);
    if (how == 0) {
      const Result<std::size_t> bound = receiver.queued_bound(tcp_.size());
      ASSERT_TRUE(bound.has_value()) << bound.error().context;
      if (*bound != 0) receiver.received(take_tcp(*bound));
    } else if (how == 1 && receiver.wait_value(step.tail).has_value()) {
      if (!tcp_.empty() || finished_) return;
      woken_ = false;
      reader.state = Reader::kInFutex;
    } else if (*receiver.withdraw(step.tail)) {
      reader.state = Reader::kInRecv;
    }
  }
  // Sleeps as an edge-triggered epoll does: the bytes that are there now were reported before.
  void sleep_on_edge(Reader& reader, Receiver& receiver) {
    if (*receiver.withdraw(receiver.look().tail)) reader.state = Reader::kInPoll;
  }

  void leave() {
    if (chance(2)) {
      const Result<bool> left = senders_[random_.below(2)].leave(Reason::kExec);
      ASSERT_TRUE(left.has_value());
      if (*left) woken_ = true;
    } else {
      const std::size_t unread = senders_[0].unread();
      const Result<Receiver::LeaveResult> left =
          receivers_[random_.below(2)].leave(Reason::kPassed);
      ASSERT_TRUE(left.has_value());
      EXPECT_EQ(*left == Receiver::LeaveResult::kUnread, unread != 0);
    }
  }

  // Takes up to `limit` bytes from TCP, and fewer at random.
  std::size_t take_tcp(std::size_t limit) {
    std::size_t n = std::min(limit, tcp_.size());
    if (n > 1 && chance(3)) n = 1 + static_cast<std::size_t>(random_.below(n));
    std::vector<std::byte> bytes(tcp_.begin(), tcp_.begin() + static_cast<std::ptrdiff_t>(n));
    tcp_.erase(tcp_.begin(), tcp_.begin() + static_cast<std::ptrdiff_t>(n));
    verify(bytes, false);
    return n;
  }
  void verify(std::span<const std::byte> bytes, bool peek) {
    for (std::size_t i = 0; i < bytes.size(); ++i) ASSERT_EQ(bytes[i], byte_at(read_ + i));
    if (!peek) read_ += bytes.size();
  }

  // Checks that no reader sleeps while there are bytes that will not wake it.
  void check() {
    const bool waiting = senders_[0].unread() != 0;
    for (const Reader& reader : readers_) {
      EXPECT_FALSE(reader.state == Reader::kInRecv && waiting);
      const bool asleep = reader.state == Reader::kInFutex && !woken_;
      EXPECT_FALSE(asleep && (waiting || !tcp_.empty()));
    }
  }

  Random random_;
  alignas(64) std::array<std::byte, memory_bytes(kRing)> memory_{};
  Place place_ = *place_of(memory_, 0);
  std::array<Sender, 2> senders_{Sender(place_), Sender(place_)};
  std::array<Receiver, 2> receivers_{Receiver(place_), Receiver(place_)};
  std::array<Reader, 2> readers_;
  std::deque<std::byte> tcp_;
  bool finished_ = false;
  bool woken_ = false;
  bool ended_ = false;
  std::uint64_t written_ = 0;
  std::uint64_t read_ = 0;
  std::uint64_t by_ring_ = 0;
};

TEST(StreamSeeds, ManyProcessesAtBothEndsLoseNoByteAndSleepOnlyWithoutUnreadBytes) {
  std::uint64_t by_ring = 0;
  for (const std::uint64_t seed : sim::seeds(1000)) {
    SCOPED_TRACE(testing::Message() << "VB_SEED=" << seed);
    World world(seed);
    world.run();
    by_ring += world.by_ring();
    if (HasFailure()) return;
  }
  EXPECT_GT(by_ring, 0U);
}

}  // namespace
}  // namespace verbena::stream
