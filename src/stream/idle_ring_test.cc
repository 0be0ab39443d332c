#include "stream/idle_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "stream/receiver.h"
#include "stream/sender.h"

namespace verbena::stream {
namespace {

constexpr std::size_t kRingBytes = 64;

class IdleRingTest : public testing::Test {
 protected:
  IdleRingTest() {
    sender_.start(0);
    receiver_.start(0, 0);
  }
  WriteStep::Kind write(std::string_view text) {
    const WriteStep step = *sender_.write(std::as_bytes(std::span(text)));
    if (step.kind == WriteStep::Kind::kTcp) sender_.sent(text.size());
    return step.kind;
  }
  std::string read(std::size_t bytes) {
    std::string text(bytes, '\0');
    const ReadStep step = *receiver_.read(std::as_writable_bytes(std::span(text)));
    text.resize(step.kind == ReadStep::Kind::kCopied ? step.bytes : 0);
    return text;
  }

  alignas(64) std::array<std::byte, memory_bytes(kRingBytes)> memory_{};
  DirectionMemory mapped_ = *direction_memory(memory_, 0);
  Sender sender_{mapped_};
  Receiver receiver_{mapped_};
  EndState sender_end_{};
  IdleRing ring_{*mapped_.direction, sender_end_};
};

TEST_F(IdleRingTest, BytesGoByTcpWhileTheRingsPagesAreGivenBack) {
  write("by the ring");
  read(100);
  ASSERT_TRUE(ring_.begin());
  std::ranges::fill(mapped_.ring, std::byte{});
  EXPECT_EQ(write("by TCP"), WriteStep::Kind::kTcp);
  ring_.end();
  receiver_.received(*receiver_.begin_queued_read(6));
  EXPECT_EQ(write("by the ring again"), WriteStep::Kind::kCopied);
  EXPECT_EQ(read(100), "by the ring again");
}

TEST_F(IdleRingTest, BeginRefusesARingWithUnreadBytes) {
  write("two words");
  read(3);
  EXPECT_FALSE(ring_.begin());
  EXPECT_EQ(read(100), " words");
  EXPECT_TRUE(ring_.begin());
}

TEST_F(IdleRingTest, BeginRefusesARingWhileASenderHoldsItsLock) {
  sender_end_.send_lock[1] = std::byte{1};
  EXPECT_FALSE(ring_.begin());
  EXPECT_EQ(write("by the ring"), WriteStep::Kind::kCopied);
}

TEST_F(IdleRingTest, BeginAcceptsARingWhileAReceiverSleeps) {
  ASSERT_TRUE(*receiver_.withdraw(receiver_.ring_status().tail));
  ASSERT_TRUE(ring_.begin());
  ring_.end();
  EXPECT_EQ(write("by TCP"), WriteStep::Kind::kTcp);
}

TEST_F(IdleRingTest, ADeathBetweenBeginAndEndLeavesTheDirectionOnTcp) {
  ASSERT_TRUE(ring_.begin());
  EXPECT_EQ(write("by TCP"), WriteStep::Kind::kTcp);
  EXPECT_FALSE(sender_.is_writable());
}

TEST_F(IdleRingTest, PositionCountsTheBytesThatHaveEnteredTheRing) {
  EXPECT_EQ(ring_.position(), 0U);
  write("12345");
  EXPECT_EQ(ring_.position(), 5U);
}

}  // namespace
}  // namespace verbena::stream
