#include "faults.h"

#include <gtest/gtest.h>

#include <cstring>

namespace verbena::wire_bench {
namespace {

using std::chrono::milliseconds;

constexpr Time kStart{milliseconds(1000)};

// Returns an Ethernet frame with IPv4 and UDP headers, and a number in the first bytes of its
// payload.
std::vector<std::byte> packet(std::uint32_t number, std::uint16_t port = 4791) {
  std::vector<std::byte> frame(14 + 20 + 8 + 32);
  frame[12] = std::byte{8};
  frame[14] = std::byte{0x45};
  frame[14 + 9] = std::byte{17};
  frame[34 + 2] = static_cast<std::byte>(port >> 8);
  frame[34 + 3] = static_cast<std::byte>(port);
  frame[40] = frame[41] = std::byte{0xaa};
  std::memcpy(frame.data() + 42, &number, sizeof number);
  return frame;
}
std::uint32_t number_of(const std::vector<std::byte>& frame) {
  std::uint32_t number = 0;
  std::memcpy(&number, frame.data() + 42, sizeof number);
  return number;
}

struct Line {
  explicit Line(std::string_view faults, std::uint64_t seed = 1) : direction(Random(seed), kStart) {
    std::string problem;
    const auto parsed = parse_faults(faults, problem);
    EXPECT_TRUE(parsed) << problem;
    if (parsed) direction.set_faults(*parsed, kStart);
  }
  // Sends `count` frames, one every 100 us.  Returns the frames that arrive, in their order.
  std::vector<std::vector<std::byte>> send_frames(std::uint32_t count) {
    std::vector<std::vector<std::byte>> out;
    Time now = kStart;
    for (std::uint32_t i = 0; i < count; ++i, now += std::chrono::microseconds(100)) {
      direction.accept(packet(i), now);
      while (auto frame = direction.next_due_frame(now)) out.push_back(*std::move(frame));
    }
    while (direction.deadline() != kNever)
      out.push_back(*direction.next_due_frame(direction.deadline()));
    return out;
  }
  Direction direction;
};

TEST(Faults, APerfectLineCarriesAllFramesInOrder) {
  Line line("");
  const auto arrived = line.send_frames(1000);
  ASSERT_EQ(arrived.size(), 1000u);
  for (std::uint32_t i = 0; i < 1000; ++i) EXPECT_EQ(arrived[i], packet(i));
}

TEST(Faults, LossIsCloseToTheWantedRatio) {
  Line line("loss=10");
  const auto lost = 10'000 - line.send_frames(10'000).size();
  EXPECT_GT(lost, 900u);
  EXPECT_LT(lost, 1100u);
  EXPECT_EQ(line.direction.counts().lost, lost);
}

TEST(Faults, LossInBurstsIsCloseToTheWantedRatio) {
  Line line("loss=30 burst=3");
  const auto lost = 10'000 - line.send_frames(10'000).size();
  EXPECT_GT(lost, 2800u);
  EXPECT_LT(lost, 3200u);
}

TEST(Faults, LossesComeInBursts) {
  Line line("loss=2 burst=3");
  const auto arrived = line.send_frames(10'000);
  std::uint32_t expected = 0;
  for (const auto& frame : arrived) {
    const std::uint32_t gap = number_of(frame) - expected;
    EXPECT_TRUE(gap == 0 || gap >= 3) << gap;
    expected = number_of(frame) + 1;
  }
}

TEST(Faults, TheSameSeedGivesTheSameFaults) {
  const auto run = [](std::uint64_t seed) {
    return Line("loss=5 duplicate=5 reorder=5 corrupt=5 jitter=1", seed).send_frames(500);
  };
  EXPECT_EQ(run(7), run(7));
  EXPECT_NE(run(7), run(8));
}

TEST(Faults, ReorderedFramesArriveLater) {
  Line line("reorder=20");
  const auto arrived = line.send_frames(1000);
  ASSERT_EQ(arrived.size(), 1000u);
  unsigned out_of_order = 0;
  for (std::size_t i = 1; i < arrived.size(); ++i) {
    out_of_order += number_of(arrived[i]) < number_of(arrived[i - 1]) ? 1 : 0;
  }
  EXPECT_GT(out_of_order, 50u);
}

TEST(Faults, DelayAndJitterKeepTheOrder) {
  Line line("delay=100 jitter=20");
  line.direction.accept(packet(0), kStart);
  EXPECT_FALSE(line.direction.next_due_frame(kStart + milliseconds(99)));
  EXPECT_TRUE(line.direction.next_due_frame(kStart + milliseconds(120)));
  const auto arrived = line.send_frames(300);
  for (std::uint32_t i = 0; i < 300; ++i) EXPECT_EQ(number_of(arrived[i]), i);
}

TEST(Faults, CorruptionRemovesTheUdpChecksum) {
  Line line("corrupt=100");
  std::uint32_t number = 0;
  unsigned with_changed_payload = 0;
  for (const auto& frame : line.send_frames(100)) {
    EXPECT_EQ(frame[40], std::byte{0});
    EXPECT_EQ(frame[41], std::byte{0});
    EXPECT_TRUE(std::equal(frame.begin(), frame.begin() + 40, packet(0).begin()));
    const auto sent = packet(number++);
    with_changed_payload += std::equal(frame.begin() + 42, frame.end(), sent.begin() + 42) ? 0 : 1;
  }
  // A payload may be unchanged, because two flips may hit the same bit.
  EXPECT_GT(with_changed_payload, 90u);
}

TEST(Faults, FaultsHitTcpOnlyIfWanted) {
  std::vector<std::byte> frame = packet(1);
  frame[14 + 9] = std::byte{6};
  for (const bool hits_tcp : {false, true}) {
    Line line(hits_tcp ? "loss=100 tcp=1" : "loss=100");
    line.direction.accept(frame, kStart);
    EXPECT_EQ(line.direction.next_due_frame(kStart).has_value(), !hits_tcp);
    EXPECT_EQ(line.direction.counts().others, hits_tcp ? 0u : 1u);
  }
}

TEST(Faults, CutsRepeat) {
  Line line("cut=5/2");  // loses 50 frames, carries 20, loses 50, carries 20
  EXPECT_EQ(line.send_frames(140).size(), 40u);
  EXPECT_EQ(line.direction.counts().cut, 100u);
}

TEST(Faults, FaultsDoNotHitOtherTraffic) {
  Line line("loss=100");
  line.direction.accept(packet(1, 53), kStart);
  line.direction.accept(packet(2), kStart);
  ASSERT_TRUE(line.direction.next_due_frame(kStart));
  EXPECT_FALSE(line.direction.next_due_frame(kStart));
  EXPECT_EQ(line.direction.counts().others, 1u);
}

TEST(Faults, DelayedFramesAreLimited) {
  Line line("delay=1000");
  for (std::uint32_t i = 0; i < Direction::kDelayedMax + 5; ++i) {
    line.direction.accept(packet(i), kStart);
  }
  EXPECT_EQ(line.direction.counts().overflowed, 5u);
}

TEST(Faults, AnErrorNamesTheWrongWord) {
  for (const char* text : {"los=1", "loss", "loss=x", "loss=101", "loss=1.234", "burst=0", "cut=5",
                           "delay=-1", "delay=9999999"}) {
    std::string problem;
    EXPECT_FALSE(parse_faults(text, problem)) << text;
    EXPECT_NE(problem.find(text), std::string::npos) << problem;
  }
  std::string problem;
  EXPECT_EQ(parse_faults("loss=0.5", problem)->loss.numerator, 50u);
}

}  // namespace
}  // namespace verbena::wire_bench
