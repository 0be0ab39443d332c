#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "stream/receiver.h"
#include "stream/sender.h"

namespace verbena::stream {
namespace {

constexpr std::size_t kRingBytes = 64;

// Holds one direction with its two ends, and a simulated TCP that delivers bytes at once.  In these
// tests, "the promise" is the receiver's promise to check the ring before it sleeps
// (stream/memory.h).
class StreamTest : public testing::Test {
 protected:
  void start(std::uint64_t tcp_bytes = 0) {
    sender_.start(tcp_bytes);
    receiver_.start(tcp_bytes, 0);
  }
  // Writes the first bytes of a text by one step, and returns the step's kind.  After kPlain, does
  // not write to TCP.
  WriteStep::Kind write(std::string_view text) {
    const WriteStep step = *sender_.write(std::as_bytes(std::span(text)));
    if (step.kind == WriteStep::Kind::kTcp) {
      tcp_ += text.substr(0, step.bytes);
      sender_.sent(std::min(step.bytes, text.size()));
    }
    return step.kind;
  }
  // Reads as a non-blocking call of a program does.  The promise stays valid.
  std::string read(std::size_t bytes = 1000) {
    std::string text_read;
    while (text_read.size() < bytes) {
      std::string piece(bytes - text_read.size(), '\0');
      ReadStep step = *receiver_.read(std::as_writable_bytes(std::span(piece)));
      if (step.kind == ReadStep::Kind::kRingEmpty) {
        step.bytes = *receiver_.begin_queued_read(tcp_.size());
        if (step.bytes == 0) break;
        step.kind = ReadStep::Kind::kTcp;
      }
      if (step.kind == ReadStep::Kind::kTcp) {
        piece = tcp_.substr(0, std::min(step.bytes, piece.size()));
        tcp_.erase(0, piece.size());
        receiver_.received(piece.size());
        if (piece.empty()) break;
      } else {
        piece.resize(step.bytes);
      }
      text_read += piece;
    }
    return text_read;
  }
  Direction& direction() { return *mapped_.direction; }

  alignas(64) std::array<std::byte, memory_bytes(kRingBytes)> memory_{};
  DirectionMemory mapped_ = *direction_memory(memory_, 1);
  Sender sender_{mapped_};
  Receiver receiver_{mapped_};
  std::string tcp_;
};

TEST_F(StreamTest, BytesGoByTheRingWhileThePromiseIsValid) {
  start();
  EXPECT_EQ(write("hello"), WriteStep::Kind::kCopied);
  EXPECT_EQ(read(), "hello");
  EXPECT_EQ(tcp_, "");
}

TEST_F(StreamTest, ReceiverReadsTheTimeOfTheFirstUnreadByte) {
  start();
  sender_.set_unread_since(17);
  write("hello");
  EXPECT_EQ(receiver_.unread_since(), 17U);
}

TEST_F(StreamTest, PeekReturnsBytesOfAllSegmentsAndRemovesNone) {
  start();
  write("one");  // by the ring
  const std::uint64_t tail = receiver_.ring_status().tail;
  ASSERT_TRUE(*receiver_.withdraw(tail));
  write("two");  // by TCP
  receiver_.promise();
  write("three");  // by the ring again
  std::array<std::byte, 100> buffer;
  ASSERT_EQ(receiver_.read(buffer, true)->bytes, 3U);
  const auto in_tcp = receiver_.peek_beyond(buffer, 0, 3);
  EXPECT_EQ(in_tcp->kind, ReadStep::Kind::kTcp);
  EXPECT_EQ(in_tcp->bytes, 3U);
  const auto rest = receiver_.peek_beyond(buffer, 3, 3);
  EXPECT_EQ(rest->kind, ReadStep::Kind::kCopied);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(buffer.data()), rest->bytes), "three");
  EXPECT_EQ(receiver_.peek_beyond(buffer, 3, 8)->kind, ReadStep::Kind::kRingEmpty);
  EXPECT_EQ(read(), "onetwothree");
}

TEST_F(StreamTest, ReceiverReadsWhyTheSenderWentBackToTcp) {
  start();
  EXPECT_EQ(receiver_.sender_leave_reason(), Reason::kNone);
  ASSERT_TRUE(sender_.leave(Reason::kEnd).has_value());
  EXPECT_TRUE(sender_.has_left());
  EXPECT_EQ(receiver_.sender_leave_reason(), Reason::kEnd);
  EXPECT_EQ(write("late"), WriteStep::Kind::kPlain);
}

TEST_F(StreamTest, BytesGoByTcpBeforeTheReceiverHasStarted) {
  sender_.start(0);
  EXPECT_EQ(write("hello"), WriteStep::Kind::kTcp);
  EXPECT_EQ(tcp_, "hello");
}

TEST_F(StreamTest, BytesGoByTcpWhileTheReceiverMaySleepAndByTheRingAfterwards) {
  start();
  ASSERT_TRUE(*receiver_.withdraw(receiver_.ring_status().tail));
  EXPECT_EQ(write("one"), WriteStep::Kind::kTcp);
  receiver_.promise();
  EXPECT_EQ(write("two"), WriteStep::Kind::kCopied);
  EXPECT_EQ(tcp_, "one");
  EXPECT_EQ(read(), "onetwo");
}

TEST_F(StreamTest, RingIsUsedAgainOnlyAfterAllReceiversHaveWokenUp) {
  start();
  ASSERT_TRUE(*receiver_.withdraw(receiver_.ring_status().tail));
  ASSERT_TRUE(*receiver_.withdraw(receiver_.ring_status().tail));
  receiver_.promise();
  EXPECT_EQ(write("one"), WriteStep::Kind::kTcp);
  receiver_.promise();
  EXPECT_EQ(write("two"), WriteStep::Kind::kCopied);
}

TEST_F(StreamTest, ReceiverMayNotSleepIfNewBytesAreInTheRing) {
  start();
  const std::uint64_t tail = receiver_.ring_status().tail;
  write("new");
  EXPECT_FALSE(*receiver_.withdraw(tail));
  EXPECT_FALSE(receiver_.prepare_futex_wait(tail).has_value());
  EXPECT_EQ(receiver_.ring_status().bytes, 3U);
}

TEST_F(StreamTest, ReaderTakesNoTcpBytesOfALaterSegment) {
  start();
  ASSERT_TRUE(*receiver_.withdraw(receiver_.ring_status().tail));
  write("a");
  receiver_.promise();
  write("b");
  ASSERT_TRUE(*receiver_.withdraw(receiver_.ring_status().tail));
  write("c");
  ASSERT_EQ(tcp_, "ac");
  std::array<std::byte, 10> buffer{};
  const ReadStep step = *receiver_.read(buffer);
  EXPECT_EQ(step.kind, ReadStep::Kind::kTcp);
  EXPECT_EQ(step.bytes, 1U);
  receiver_.received(0);
  EXPECT_EQ(read(), "abc");
}

// With kCached, the sender fills only a part of a large ring.  With kWhole, which callers choose
// while the receiver waits for CPU time, the sender fills the rest as well.
TEST(StreamSender, FillsTheWholeRingOnlyWithDepthWhole) {
  constexpr std::size_t kBytes = 2 * Sender::kCachedBytes;
  const auto memory = std::make_unique<std::array<std::byte, memory_bytes(kBytes) + 64>>();
  void* at = memory->data();
  std::size_t space = memory->size();
  std::align(64, memory_bytes(kBytes), at, space);
  const auto mapped =
      direction_memory(std::span(static_cast<std::byte*>(at), memory_bytes(kBytes)), 0).value();
  Sender sender(mapped);
  Receiver receiver(mapped);
  sender.start(0);
  receiver.start(0, 0);
  const std::array<std::byte, 1000> piece{};
  const auto fill = [&](Sender::Depth depth) {
    while (sender.write(piece, depth)->kind == WriteStep::Kind::kCopied) {
    }
    return sender.unread();
  };
  EXPECT_EQ(fill(Sender::Depth::kCached), Sender::kCachedBytes);
  EXPECT_TRUE(sender.is_writable());
  EXPECT_EQ(fill(Sender::Depth::kWhole), kBytes);
  EXPECT_FALSE(sender.is_writable());
}

TEST_F(StreamTest, IfTheRingIsFullTheCallerMaySendTheRestByTcp) {
  start();
  const std::string text(kRingBytes, 'r');
  EXPECT_EQ(write(text), WriteStep::Kind::kCopied);
  EXPECT_FALSE(sender_.is_writable());
  EXPECT_EQ(write("t"), WriteStep::Kind::kFull);
  const WriteStep step = *sender_.write_by_tcp(1);
  EXPECT_EQ(step.kind, WriteStep::Kind::kTcp);
  tcp_ += 't';
  sender_.sent(1);
  EXPECT_EQ(read(), text + 't');
  EXPECT_EQ(write("again"), WriteStep::Kind::kCopied);
  EXPECT_EQ(counters_of(direction()).overflows, 1U);
}

TEST_F(StreamTest, SenderFillsAnEmptyRingFromItsFirstByte) {
  start();
  for (const std::string_view text : {"first", "other"}) {
    write(text);
    EXPECT_EQ(std::to_integer<char>(mapped_.ring[0]), text[0]);
    EXPECT_EQ(read(), text);
  }
}

TEST_F(StreamTest, RingBytesAndTcpBytesWakeAReceiverThatWaitsOnTheFutex) {
  start();
  ASSERT_TRUE(receiver_.prepare_futex_wait(receiver_.ring_status().tail).has_value());
  WriteStep step = *sender_.write(std::as_bytes(std::span(std::string_view("x"))));
  EXPECT_TRUE(step.wake);
  read();
  ASSERT_TRUE(receiver_.prepare_futex_wait(receiver_.ring_status().tail).has_value());
  ASSERT_TRUE(*receiver_.withdraw(receiver_.ring_status().tail));
  step = *sender_.write(std::as_bytes(std::span(std::string_view("x"))));
  ASSERT_EQ(step.kind, WriteStep::Kind::kTcp);
  EXPECT_TRUE(sender_.sent(1));
  EXPECT_FALSE(sender_.sent(0));
}

TEST_F(StreamTest, PeekRemovesNoBytesFromTheRing) {
  start();
  write("hello");
  std::array<std::byte, 10> buffer{};
  EXPECT_EQ(receiver_.read(buffer, true)->bytes, 5U);
  EXPECT_EQ(read(), "hello");
}

TEST_F(StreamTest, ReceiverReadsRingBytesBeforeTheEndOfFile) {
  start();
  ASSERT_TRUE(*receiver_.withdraw(receiver_.ring_status().tail));
  write("t");
  receiver_.promise();
  std::array<std::byte, 10> buffer{};
  ASSERT_EQ(receiver_.read(buffer)->kind, ReadStep::Kind::kRingEmpty);
  write("ring");
  EXPECT_EQ(read(1), "t");
  EXPECT_FALSE(*receiver_.check_end());
  EXPECT_EQ(read(), "ring");
  EXPECT_TRUE(*receiver_.check_end());
}

TEST_F(StreamTest, EndOfTcpWithinASegmentIsAnError) {
  start();
  ASSERT_TRUE(*receiver_.withdraw(receiver_.ring_status().tail));
  write("tcp");
  receiver_.promise();
  write("ring");
  EXPECT_EQ(read(2), "tc");
  const Result<bool> is_end = receiver_.check_end();
  ASSERT_FALSE(is_end.has_value());
  EXPECT_EQ(is_end.error().detail, static_cast<std::uint16_t>(Fault::kEarlyEnd));
}

TEST_F(StreamTest, ReceiverWithUnreadRingBytesCannotGoBackToTcp) {
  start();
  write("unread");
  EXPECT_EQ(*receiver_.leave(Reason::kExec), Receiver::LeaveResult::kUnread);
  EXPECT_EQ(write("more"), WriteStep::Kind::kCopied);
  EXPECT_EQ(read(), "unreadmore");
  EXPECT_EQ(*receiver_.leave(Reason::kExec), Receiver::LeaveResult::kPlain);
  EXPECT_EQ(write("tcp"), WriteStep::Kind::kTcp);
  std::array<std::byte, 10> buffer{};
  EXPECT_EQ(receiver_.read(buffer)->kind, ReadStep::Kind::kPlain);
  EXPECT_EQ(counters_of(direction()).receiver_leave_reason, Reason::kExec);
}

TEST_F(StreamTest, NewProcessReadsTheUnreadBytesOfTheRing) {
  start();
  write("before exec");
  EXPECT_EQ(read(7), "before ");
  receiver_ = Receiver(mapped_);
  EXPECT_TRUE(receiver_.has_started());
  EXPECT_EQ(read(), "exec");
}

TEST_F(StreamTest, BytesThatAnotherProgramWritesToTcpAreReadAfterBytesInTheRing) {
  start();
  write("ring ");
  EXPECT_FALSE(*sender_.leave(Reason::kExec));
  EXPECT_EQ(write("x"), WriteStep::Kind::kPlain);
  tcp_ += "other program";
  EXPECT_EQ(read(), "ring other program");
}

TEST_F(StreamTest, SenderThatGoesBackToTcpWakesTheFutexAndPreventsFurtherWaits) {
  start();
  ASSERT_TRUE(receiver_.prepare_futex_wait(receiver_.ring_status().tail).has_value());
  EXPECT_TRUE(*sender_.leave(Reason::kPassed));
  EXPECT_FALSE(receiver_.prepare_futex_wait(receiver_.ring_status().tail).has_value());
}

TEST_F(StreamTest, BytesGoByTcpWhileTheTableOfSegmentsIsFull) {
  start();
  std::string all;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(*receiver_.withdraw(receiver_.ring_status().tail));
    write("t");
    receiver_.promise();
    write("r");
    all += "tr";
  }
  EXPECT_LT(counters_of(direction()).changes, Direction::kSegments);
  EXPECT_EQ(read(), all);
  EXPECT_EQ(write("ring"), WriteStep::Kind::kCopied);
}

TEST_F(StreamTest, RecoverDetectsADeathDuringATcpCall) {
  start();
  EXPECT_TRUE(sender_.recover().has_value());
  ASSERT_TRUE(sender_.write_by_tcp(1).has_value());
  EXPECT_EQ(sender_.recover().error().detail, static_cast<std::uint16_t>(Fault::kOwnerDied));
  sender_.sent(1);
  EXPECT_TRUE(sender_.recover().has_value());
}

TEST_F(StreamTest, InvalidNumbersInTheMemoryAreReportedWithTheirFault) {
  const auto fault = [](const auto& result) {
    return result.has_value() ? Fault{} : static_cast<Fault>(result.error().detail);
  };
  const std::string_view text = "x";
  std::array<std::byte, 10> buffer{};
  start();
  direction().state += std::uint64_t{kRingBytes + 1} << State::kTailShift;
  EXPECT_EQ(fault(receiver_.read(buffer)), Fault::kTail);
  EXPECT_EQ(fault(sender_.write(std::as_bytes(std::span(text)))), Fault::kHead);
  direction().head = State(direction().state).tail();
  direction().read_segment = 7;
  EXPECT_EQ(fault(receiver_.read(buffer)), Fault::kTable);
  EXPECT_EQ(fault(sender_.write(std::as_bytes(std::span(text)))), Fault::kTable);
  direction().state |= State::kSleepersMask;
  EXPECT_EQ(fault(receiver_.withdraw(receiver_.ring_status().tail)), Fault::kSleepers);
}

TEST(DirectionMemory, MemoryOfInvalidSizeOrAlignmentIsRefused) {
  alignas(64) std::array<std::byte, memory_bytes(32) + 64> memory{};
  EXPECT_TRUE(direction_memory(std::span(memory).first(memory_bytes(32)), 0).has_value());
  EXPECT_FALSE(direction_memory(std::span(memory).first(memory_bytes(32) - 1), 0).has_value());
  EXPECT_FALSE(direction_memory(std::span(memory).first(kControlBytes), 0).has_value());
  EXPECT_FALSE(direction_memory(std::span(memory).subspan(1, memory_bytes(32)), 0).has_value());
}

}  // namespace
}  // namespace verbena::stream
