#include "stream/idle_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "stream/receiver.h"
#include "stream/sender.h"

namespace verbena::stream {
namespace {

constexpr std::size_t kRing = 64;

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

  alignas(64) std::array<std::byte, memory_bytes(kRing)> memory_{};
  Place place_ = *place_of(memory_, 0);
  Sender sender_{place_};
  Receiver receiver_{place_};
  IdleRing ring_{*place_.direction};
};

TEST_F(IdleRingTest, BytesGoByTcpWhilePagesAreGivenBack) {
  write("by the ring");
  read(100);
  ASSERT_TRUE(ring_.begin());
  std::ranges::fill(place_.ring, std::byte{});
  EXPECT_EQ(write("by TCP"), WriteStep::Kind::kTcp);
  ring_.end();
  receiver_.received(*receiver_.queued_bound(6));
  EXPECT_EQ(write("by the ring again"), WriteStep::Kind::kCopied);
  EXPECT_EQ(read(100), "by the ring again");
}

TEST_F(IdleRingTest, ARingWithUnreadBytesIsKept) {
  write("two words");
  read(3);
  EXPECT_FALSE(ring_.begin());
  EXPECT_EQ(read(100), " words");
  EXPECT_TRUE(ring_.begin());
}

TEST_F(IdleRingTest, ARingIsKeptWhileSomebodyHoldsTheSendersLock) {
  place_.direction->send_lock[1] = std::byte{1};
  EXPECT_FALSE(ring_.begin());
  EXPECT_EQ(write("by the ring"), WriteStep::Kind::kCopied);
}

TEST_F(IdleRingTest, PagesCanBeGivenBackWhileAReceiverSleeps) {
  ASSERT_TRUE(*receiver_.withdraw(receiver_.look().tail));
  ASSERT_TRUE(ring_.begin());
  ring_.end();
  EXPECT_EQ(write("by TCP"), WriteStep::Kind::kTcp);
}

TEST_F(IdleRingTest, ADeathBetweenBeginAndEndLeavesTheDirectionOnTcp) {
  ASSERT_TRUE(ring_.begin());
  EXPECT_EQ(write("by TCP"), WriteStep::Kind::kTcp);
  EXPECT_FALSE(sender_.writable());
}

TEST_F(IdleRingTest, PositionCountsTheBytesOfTheRing) {
  EXPECT_EQ(ring_.position(), 0U);
  write("12345");
  EXPECT_EQ(ring_.position(), 5U);
}

}  // namespace
}  // namespace verbena::stream
