#include "cm/round_trips.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "wire/ip.h"

namespace verbena::cm {
namespace {

using namespace std::chrono_literals;

const Gid kPeer = wire::ipv4_gid(0x0a000001);

TEST(RoundTrips, ShorterTimeReplacesAndLongerTimeRaises) {
  RoundTrips trips;
  EXPECT_EQ(trips.find(kPeer), std::nullopt);
  trips.record(kPeer, 8ms, false);
  EXPECT_EQ(trips.find(kPeer), 8ms);
  trips.record(kPeer, 16ms, false);
  EXPECT_EQ(trips.find(kPeer), 9ms);
  trips.record(kPeer, 2ms, false);
  EXPECT_EQ(trips.find(kPeer), 2ms);
  trips.record(kPeer, 0ns, false);  // a coarse clock may show no time at all
  EXPECT_GT(trips.find(kPeer), 0ns);
}

TEST(RoundTrips, AnswerAfterRepeatsCountsForAtMostTwiceTheKnownTime) {
  RoundTrips trips;
  trips.record(kPeer, 10s, true);
  EXPECT_EQ(trips.find(kPeer), 100ms);
  trips.record(kPeer, 10s, true);
  EXPECT_EQ(trips.find(kPeer), 112500us);
  trips.record(kPeer, 1ms, false);
  EXPECT_EQ(trips.find(kPeer), 1ms);
}

TEST(RoundTrips, DistantPeerIsLearntFromAnswersAfterRepeats) {
  RoundTrips trips;
  int exchanges = 0;
  for (; 4 * trips.find(kPeer).value_or(0ns) < 600ms; ++exchanges) {
    ASSERT_LT(exchanges, 10);
    trips.record(kPeer, 600ms, true);
  }
  trips.record(kPeer, 600ms, false);
  EXPECT_LE(trips.find(kPeer), 600ms);
}

TEST(RoundTrips, PeersDoNotShareMeasurements) {
  RoundTrips trips;
  for (std::uint32_t i = 1; i <= 1000; ++i) {
    const Gid peer = wire::ipv4_gid(0x0a000000 + i);
    EXPECT_EQ(trips.find(peer), std::nullopt);
    trips.record(peer, std::chrono::milliseconds(i), false);
    EXPECT_EQ(trips.find(peer), std::chrono::milliseconds(i));
  }
}

}  // namespace
}  // namespace verbena::cm
