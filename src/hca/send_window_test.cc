#include "hca/send_window.h"

#include <gtest/gtest.h>

#include <chrono>

namespace verbena::hca {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

SendWindow started(std::uint32_t packet_bytes = 1024) {
  SendWindow window;
  window.start(packet_bytes);
  return window;
}

TEST(SendWindow, GrowsByEachAcknowledgedPacketUpToItsLimit) {
  SendWindow window = started();
  EXPECT_EQ(window.packets(), 16u);
  window.acknowledged(16);
  EXPECT_EQ(window.packets(), 32u);
  window.acknowledged(1000);
  EXPECT_EQ(window.packets(), 128u);
  window.acknowledged(1000);
  EXPECT_EQ(window.packets(), 128u);
}

TEST(SendWindow, APacketCountsAsAtLeastAKibibyte) {
  EXPECT_EQ(started(256).limit(), 128u);
  EXPECT_EQ(started(4096).limit(), 32u);
  EXPECT_EQ(started(4096).packets(), 4u);
}

TEST(SendWindow, ALossHalvesTheWindowAndATimeoutLeavesTwoPackets) {
  SendWindow window = started();
  window.acknowledged(1000);
  window.lost();
  EXPECT_EQ(window.packets(), 64u);
  window.acknowledged(63);
  EXPECT_EQ(window.packets(), 64u);
  window.acknowledged(1);
  EXPECT_EQ(window.packets(), 65u);
  window.timed_out();
  EXPECT_EQ(window.packets(), 2u);
  window.acknowledged(100);
  EXPECT_EQ(window.packets(), 32u);
}

TEST(SendWindow, AnEarlyProbeDoesNotEndTheGrowthOnALongLine) {
  SendWindow window = started();
  window.acknowledged(1000);
  window.probed();
  window.acknowledged(2);
  window.probe_was_too_early();
  for (std::uint64_t packets = 128; packets < 4096; packets = window.packets()) {
    const std::uint64_t before = packets;
    window.measured({.took = milliseconds(60), .least = milliseconds(60), .packets = packets});
    window.acknowledged(packets);
    ASSERT_GE(window.packets(), 2 * before) << packets;
  }
}

TEST(SendWindow, AProbeThatWasTooEarlyRestoresTheWindow) {
  SendWindow window = started();
  window.acknowledged(1000);
  window.probed();
  EXPECT_EQ(window.packets(), 2u);
  EXPECT_TRUE(window.probe_is_unanswered());
  window.probe_was_too_early();
  EXPECT_EQ(window.packets(), 128u);
  EXPECT_FALSE(window.probe_is_unanswered());
  window.probed();
  window.probe_was_needed();
  EXPECT_EQ(window.packets(), 2u);
}

TEST(SendWindow, AShortRoundTripDoesNotRaiseTheLimit) {
  SendWindow window = started();
  window.measured({.took = milliseconds(3), .least = microseconds(500), .packets = 128});
  EXPECT_EQ(window.limit(), 128u);
}

TEST(SendWindow, PacketsOnALongLineRaiseTheLimit) {
  SendWindow window = started();
  window.acknowledged(1000);
  window.measured({.took = milliseconds(10), .least = milliseconds(10), .packets = 50});
  EXPECT_EQ(window.limit(), 128u + 100u);
  window.acknowledged(1000);  // no packet was lost yet, so the window grows quickly
  EXPECT_EQ(window.packets(), 228u);
  // Half of that time, packets waited in a queue.
  window.measured({.took = milliseconds(20), .least = milliseconds(10), .packets = 200});
  EXPECT_EQ(window.limit(), 128u + 200u);
  window.lost();
  window.measured({.took = milliseconds(10), .least = milliseconds(10), .packets = 250});
  EXPECT_EQ(window.limit(), 128u + 500u);
  EXPECT_EQ(window.packets(), 64u);
  window.acknowledged(1000);
  EXPECT_EQ(window.packets(), 114u);
  window.acknowledged(114);  // one packet for each half millisecond of the round trip
  EXPECT_EQ(window.packets(), 114u + 20u);
}

TEST(SendWindow, TheLimitOnALongLineIs64MiB) {
  SendWindow window = started(4096);
  window.measured({.took = milliseconds(100), .least = milliseconds(100), .packets = 1u << 30});
  EXPECT_EQ(window.limit(), 16384u);
}

}  // namespace
}  // namespace verbena::hca
