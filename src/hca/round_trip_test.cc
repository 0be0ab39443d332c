#include "hca/round_trip.h"

#include <gtest/gtest.h>

#include "hca/test_pair.h"

namespace verbena::hca {
namespace {

using namespace testing;
using Lines = std::vector<std::string>;
using std::chrono::milliseconds;

TEST(RoundTrip, ProbesDoNotUseUpRetries) {
  HostUnderTest s({.timeout = 14, .retry_count = 0});
  const Time begin = s.now;
  s.post(WrOpcode::kSend, 1, 10);
  s.out();
  s.wait_for_timer();
  EXPECT_EQ(s.now, begin + std::chrono::milliseconds(50));  // no round trip was measured yet
  EXPECT_EQ(s.out(), Lines{"SEND_ONLY 1000 10 A"});
  s.wait_for_timer();
  EXPECT_EQ(s.now, begin + timeout_of_code(14));
  EXPECT_EQ(text(s.host.poll()), "1:retries exceeded");
}

// Returns the time until the host sends a packet again.
Duration time_to_probe(HostUnderTest& s) {
  const Time begin = s.now;
  do s.wait_for_timer();
  while (s.out().empty());
  return s.now - begin;
}

TEST(RoundTrip, TheProbeTimeoutFollowsTheRoundTrip) {
  HostUnderTest s({.timeout = 18});  // 1 s
  const auto round_trip = [&](std::uint32_t psn, Duration time) {
    s.post(WrOpcode::kSend, 1, 10);
    s.out();
    s.now += time;
    s.acknowledge(psn, wire::ack(1));
    s.host.poll();
  };
  round_trip(1000, milliseconds(40));
  s.post(WrOpcode::kSend, 2, 10);
  s.out();
  EXPECT_EQ(time_to_probe(s), milliseconds(40 + 4 * 20));
  EXPECT_EQ(time_to_probe(s), milliseconds(240));
  s.now += milliseconds(40);
  // This acknowledgement is not measured, because it may answer any of 3 packets.
  s.acknowledge(1001, wire::ack(2));
  s.post(WrOpcode::kSend, 3, 10);
  s.out();
  EXPECT_EQ(time_to_probe(s), milliseconds(120));  // progress has reset the doubling
  s.acknowledge(1002, wire::ack(3));  // the probe was too early: the round trip took 120 ms
  s.post(WrOpcode::kSend, 4, 10);
  s.out();
  EXPECT_GT(time_to_probe(s), milliseconds(120));
  s.now += milliseconds(300);
  s.acknowledge(1003, wire::ack(4));
  for (std::uint32_t psn = 1004; psn < 1200; ++psn) round_trip(psn, milliseconds(1));
  s.post(WrOpcode::kSend, 5, 10);
  s.out();
  // Now the lower bound of the timeout applies.  The bound was 5 ms at first.  A loss has halved
  // it, the early probe has doubled it, and another loss has halved it.
  EXPECT_EQ(time_to_probe(s), std::chrono::microseconds(2500));
}

TEST(RoundTrip, LossesShortenTheProbeTimeout) {
  HostUnderTest s({.timeout = 18});
  const Duration round_trip = std::chrono::microseconds(20);
  std::uint32_t psn = 1000;
  const auto exchange = [&] {
    s.post(WrOpcode::kSend, 1, 10);
    s.out();
    s.now += round_trip;
    s.acknowledge(psn++, wire::ack(1));
    s.host.poll();
  };
  const auto time_to_probe_after_round_trips = [&](bool lost) {
    for (int i = 0; i < 40; ++i) exchange();
    s.post(WrOpcode::kSend, 1, 10);
    s.out();
    const Duration time = time_to_probe(s);
    if (lost) s.now += round_trip;  // the peer answers the probe, not the first transmission
    s.acknowledge(psn++, wire::ack(1));
    s.host.poll();
    return time;
  };
  EXPECT_EQ(time_to_probe_after_round_trips(true), milliseconds(5));
  EXPECT_EQ(time_to_probe_after_round_trips(true), std::chrono::microseconds(2500));
  for (int i = 0; i < 10; ++i) time_to_probe_after_round_trips(true);
  EXPECT_EQ(time_to_probe_after_round_trips(true), std::chrono::microseconds(200));  // the minimum
  for (int i = 0; i < 10; ++i) time_to_probe_after_round_trips(false);
  EXPECT_GE(time_to_probe_after_round_trips(false),
            milliseconds(5));  // the peer is slow, but nothing is lost
}

TEST(RoundTrip, ProbesAtLeastOnceASecond) {
  HostUnderTest s({.timeout = 21});  // 8.6 s
  s.post(WrOpcode::kSend, 1, 10);
  s.out();
  Duration longest{};
  while (s.now - Time{} < std::chrono::seconds(60)) longest = std::max(longest, time_to_probe(s));
  EXPECT_EQ(longest, std::chrono::seconds(1));
}

TEST(RoundTrip, AnRnrDelayIsNotMeasuredAsARoundTrip) {
  HostUnderTest s({.timeout = 18});
  s.post(WrOpcode::kSend, 1, 10);
  s.out();
  s.acknowledge(1000, wire::rnr_nak(0, 0));
  EXPECT_GT(time_to_probe(s), milliseconds(600));
  s.acknowledge(1000, wire::ack(1));
  s.post(WrOpcode::kSend, 2, 10);
  s.out();
  EXPECT_EQ(time_to_probe(s), milliseconds(50));  // the value for an unknown round trip
}

TEST(RoundTrip, AnEarlyProbeDoesNotReduceTheWindow) {
  HostUnderTest s({.timeout = 18});
  const auto window = [&] {
    QpRow row;
    EXPECT_EQ(s.host.engine.rows({&row, 1}), 1u);
    return row.window_packets;
  };
  s.post(WrOpcode::kSend, 1, 10 * 1024);
  s.out();
  const std::uint32_t before = window();
  s.wait_for_timer();
  EXPECT_EQ(s.out().size(), 2u);
  s.acknowledge(1009, wire::ack(1));  // all ten packets had arrived before the probe
  EXPECT_GE(window(), before);
  EXPECT_EQ(text(s.host.poll()), "1");

  s.post(WrOpcode::kSend, 2, 10 * 1024);
  s.out();
  time_to_probe(s);
  s.acknowledge(1011, wire::ack(1));  // only the two packets of the probe have arrived
  EXPECT_LT(window(), before);
}

}  // namespace
}  // namespace verbena::hca
