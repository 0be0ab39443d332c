#include "hca/send_window.h"

#include <gtest/gtest.h>

#include <chrono>

namespace verbena::hca {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

SendWindow started_window(std::uint32_t packet_bytes = 1024) {
  SendWindow window;
  window.start(packet_bytes);
  return window;
}

TEST(SendWindow, GrowsByEachAcknowledgedPacketUpToItsLimit) {
  SendWindow window = started_window();
  EXPECT_EQ(window.packets(), 16u);
  window.on_acknowledged(16);
  EXPECT_EQ(window.packets(), 32u);
  window.on_acknowledged(1000);
  EXPECT_EQ(window.packets(), 128u);
  window.on_acknowledged(1000);
  EXPECT_EQ(window.packets(), 128u);
}

TEST(SendWindow, APacketCountsAsAtLeastAKibibyte) {
  EXPECT_EQ(started_window(256).limit(), 128u);
  EXPECT_EQ(started_window(4096).limit(), 32u);
  EXPECT_EQ(started_window(4096).packets(), 4u);
}

TEST(SendWindow, ALossHalvesTheWindowAndATimeoutLeavesTwoPackets) {
  SendWindow window = started_window();
  window.on_acknowledged(1000);
  window.on_loss();
  EXPECT_EQ(window.packets(), 64u);
  window.on_acknowledged(63);
  EXPECT_EQ(window.packets(), 64u);
  window.on_acknowledged(1);
  EXPECT_EQ(window.packets(), 65u);
  window.on_timeout();
  EXPECT_EQ(window.packets(), 2u);
  window.on_acknowledged(100);
  EXPECT_EQ(window.packets(), 32u);
}

TEST(SendWindow, AnEarlyProbeDoesNotEndTheGrowthOnALongLine) {
  SendWindow window = started_window();
  window.on_acknowledged(1000);
  window.on_probe();
  window.on_acknowledged(2);
  window.probe_was_too_early();
  for (std::uint64_t packets = 128; packets < 4096; packets = window.packets()) {
    const std::uint64_t before = packets;
    window.on_measurement(
        {.duration = milliseconds(60), .shortest = milliseconds(60), .packets = packets});
    window.on_acknowledged(packets);
    ASSERT_GE(window.packets(), 2 * before) << packets;
  }
}

TEST(SendWindow, AProbeThatWasTooEarlyRestoresTheWindow) {
  SendWindow window = started_window();
  window.on_acknowledged(1000);
  window.on_probe();
  EXPECT_EQ(window.packets(), 2u);
  EXPECT_TRUE(window.probe_is_unanswered());
  window.probe_was_too_early();
  EXPECT_EQ(window.packets(), 128u);
  EXPECT_FALSE(window.probe_is_unanswered());
  window.on_probe();
  window.probe_was_needed();
  EXPECT_EQ(window.packets(), 2u);
}

TEST(SendWindow, AShortRoundTripDoesNotRaiseTheLimit) {
  SendWindow window = started_window();
  window.on_measurement(
      {.duration = milliseconds(3), .shortest = microseconds(500), .packets = 128});
  EXPECT_EQ(window.limit(), 128u);
}

TEST(SendWindow, PacketsOnALongLineRaiseTheLimit) {
  SendWindow window = started_window();
  window.on_acknowledged(1000);
  window.on_measurement(
      {.duration = milliseconds(10), .shortest = milliseconds(10), .packets = 50});
  EXPECT_EQ(window.limit(), 128u + 100u);
  window.on_acknowledged(1000);  // no packet was lost yet, so the window grows quickly
  EXPECT_EQ(window.packets(), 228u);
  // The packets waited in a queue during half of this round trip.
  window.on_measurement(
      {.duration = milliseconds(20), .shortest = milliseconds(10), .packets = 200});
  EXPECT_EQ(window.limit(), 128u + 200u);
  window.on_loss();
  window.on_measurement(
      {.duration = milliseconds(10), .shortest = milliseconds(10), .packets = 250});
  EXPECT_EQ(window.limit(), 128u + 500u);
  EXPECT_EQ(window.packets(), 64u);
  window.on_acknowledged(1000);
  EXPECT_EQ(window.packets(), 114u);
  // The whole window is acknowledged, so it grows by one packet for each half millisecond of the
  // round trip.
  window.on_acknowledged(114);
  EXPECT_EQ(window.packets(), 114u + 20u);
}

TEST(SendWindow, TheLimitOfALongLineIs64MiB) {
  SendWindow window = started_window(4096);
  window.on_measurement(
      {.duration = milliseconds(100), .shortest = milliseconds(100), .packets = 1u << 30});
  EXPECT_EQ(window.limit(), 16384u);
}

}  // namespace
}  // namespace verbena::hca
