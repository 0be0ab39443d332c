#include "sockets/pair_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sockets/ring_sizes.h"
#include "stream/receiver.h"
#include "stream/sender.h"

namespace verbena::sockets {
namespace {

constexpr std::size_t kPage = 4096;
constexpr Time kBegin{std::chrono::seconds(100)};
constexpr std::size_t kStreamBytes = stream::memory_bytes(RingSizes::kMediumRingBytes);

// Simulates both programs of a connection.
class PairMemoryTest : public testing::Test {
 protected:
  PairMemoryTest() {
    for (std::size_t i = 0; i < 2; ++i) {
      sender(i).start(0);
      receiver(i).start(0, 0);
    }
  }
  stream::DirectionMemory mapped(std::size_t side) const {
    return *stream::direction_memory(program_memory_.bytes(), side);
  }
  stream::Sender sender(std::size_t side) const { return stream::Sender(mapped(side)); }
  stream::Receiver receiver(std::size_t side) const { return stream::Receiver(mapped(side)); }

  void write(std::size_t side, std::size_t bytes) {
    const std::vector<std::byte> text(bytes, std::byte{'x'});
    for (std::size_t n = 0; n < bytes;) {
      n += sender(side).write(std::span(text).subspan(n))->bytes;
    }
  }
  // Returns true if the bytes are those that write() writes.
  bool read(std::size_t side, std::size_t bytes) {
    std::vector<std::byte> text(bytes);
    for (std::size_t n = 0; n < bytes;) n += receiver(side).read(std::span(text).subspan(n))->bytes;
    return text == std::vector<std::byte>(bytes, std::byte{'x'});
  }

  PairMemory memory_ = *PairMemory::create(RingSizes::kMediumRingBytes, kBegin);
  os::Mapping program_memory_ =
      *os::map_shared(memory_.fd().get(), kStreamBytes, kStreamBytes, true);
};

TEST_F(PairMemoryTest, ImpossibleNumbersOfAProgramAreNotReported) {
  write(0, 1000);
  EXPECT_EQ(memory_.traffic(0, kBegin).by_ring, 1000U);
  EXPECT_EQ(memory_.traffic(0, kBegin).implausible, 0U);
  mapped(0).direction->tcp_sent = 79'991'436'625'481'677;
  const broker::Traffic traffic = memory_.traffic(0, kBegin + std::chrono::seconds(1));
  EXPECT_EQ(traffic.by_tcp, 0U);
  EXPECT_EQ(traffic.by_ring, 1000U);
  EXPECT_EQ(traffic.implausible, 1U);
}

TEST_F(PairMemoryTest, PagesOfAnIdleRingAreGivenBack) {
  write(0, 300'000);
  ASSERT_TRUE(read(0, 300'000));
  EXPECT_GT(memory_.resident_bytes(), 300'000U);
  EXPECT_EQ(memory_.release_idle_rings().active_rings, 1U);
  EXPECT_GT(memory_.resident_bytes(), 300'000U);
  const auto result = memory_.release_idle_rings();
  EXPECT_EQ(result.active_rings, 0U);
  EXPECT_GE(result.released_bytes, 300'000U);
  EXPECT_EQ(memory_.resident_bytes(), 3 * kPage);
  EXPECT_EQ(memory_.release_idle_rings().released_bytes, 0U);
}

TEST_F(PairMemoryTest, ARingIsUsedAgainAfterItsPagesWereGivenBack) {
  for (int i = 0; i < 3; ++i) {
    write(1, 50'000);
    ASSERT_TRUE(read(1, 50'000)) << i;
    memory_.release_idle_rings();
    EXPECT_GE(memory_.release_idle_rings().released_bytes, 50'000U) << i;
  }
}

TEST_F(PairMemoryTest, EachEndHasAMemoryThatThePeersProcessesDoNotGet) {
  const auto map_end = [this](std::uint32_t side) {
    return *os::map_shared(memory_.end_fd(side).get(), stream::kEndBytes, stream::kEndBytes, true);
  };
  const os::Mapping first = map_end(0);
  const os::Mapping second = map_end(1);
  std::ranges::fill(first.bytes(), std::byte{0xff});
  EXPECT_EQ(std::ranges::count(second.bytes(), std::byte{}), std::ssize(second.bytes()));
  EXPECT_EQ(
      std::ranges::count(program_memory_.bytes().first(sizeof(stream::Control)), std::byte{0xff}),
      0);
}

TEST_F(PairMemoryTest, PagesStayWhileASenderHoldsItsLock) {
  write(0, 9'000);
  ASSERT_TRUE(read(0, 9'000));
  const os::Mapping end =
      *os::map_shared(memory_.end_fd(0).get(), stream::kEndBytes, stream::kEndBytes, true);
  auto& state = *reinterpret_cast<stream::EndState*>(end.bytes().data());
  state.send_lock[0] = std::byte{1};
  for (int i = 0; i < 3; ++i) EXPECT_EQ(memory_.release_idle_rings().released_bytes, 0U);
  state.send_lock[0] = std::byte{};
  EXPECT_EQ(memory_.release_idle_rings().released_bytes, 3 * kPage);
}

TEST_F(PairMemoryTest, PagesWithUnreadBytesStay) {
  write(0, 50'000);
  ASSERT_TRUE(read(0, 20'000));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(memory_.release_idle_rings().released_bytes, 0U);
  EXPECT_TRUE(read(0, 30'000));
  EXPECT_GE(memory_.release_idle_rings().released_bytes, 50'000U);
}

TEST_F(PairMemoryTest, PagesOfARingInUseStay) {
  for (int i = 0; i < 5; ++i) {
    write(0, 5'000);
    ASSERT_TRUE(read(0, 5'000));
    EXPECT_EQ(memory_.release_idle_rings().released_bytes, 0U);
  }
}

TEST_F(PairMemoryTest, PagesWithUnpublishedBytesAreGivenBack) {
  // The state is as if the receiver had withdrawn its promise while a sender copied bytes.
  mapped(0).ring[5] = std::byte{1};
  EXPECT_EQ(memory_.release_idle_rings().released_bytes, kPage);
}

TEST_F(PairMemoryTest, PagesOfOneRingAreGivenBackWhileTheOtherRingIsInUse) {
  write(0, 9'000);
  ASSERT_TRUE(read(0, 9'000));
  write(1, 9'000);
  memory_.release_idle_rings();
  EXPECT_EQ(memory_.release_idle_rings().released_bytes, 3 * kPage);
  EXPECT_TRUE(read(1, 9'000));
}

}  // namespace
}  // namespace verbena::sockets
