#include "client/spin_then_sleep.h"

#include <gtest/gtest.h>

namespace verbena::client {
namespace {

using std::chrono::microseconds;

// Simulates a host in virtual time: packets come at intervals, and each system call takes a
// microsecond.
struct Host {
  SpinThenSleep waits;
  Time now{microseconds(1)};
  Time next_packet = kNever;
  Time next_wake = kNever;  // a wake-up that is not a packet
  Duration others_compute_for{};
  bool program_polls = false;
  int sleeps = 0;
  int polls = 0;

  std::size_t wait(Time deadline = kNever) {
    return waits.wait(
        deadline, [this] { return now; }, [this] { now += others_compute_for; },
        [this](Time until) {
          now += microseconds(1);
          const Time next = std::min(next_packet, next_wake);
          if (until <= now) {
            ++polls;
          } else {
            ++sleeps;
            now = std::max(now, std::min(next, until));
          }
          const bool packets = next_packet <= now;
          const bool wakes = next_wake <= now;
          if (packets) next_packet = kNever;
          if (wakes) next_wake = kNever;
          return std::pair<std::size_t, bool>((packets ? 1 : 0) + (wakes ? 1 : 0), packets);
        },
        [this] { return program_polls; });
  }
  // Waits for `count` packets, which come at this interval.
  void receive_packets(int count, Duration interval) {
    for (int i = 0; i < count; ++i) {
      next_packet = now + interval;
      EXPECT_EQ(wait(), 1u);
    }
  }
};

TEST(SpinThenSleep, AStreamOfPacketsCausesFewSleeps) {
  Host host;
  host.receive_packets(1000, microseconds(20));
  EXPECT_LE(host.sleeps, 4);
}

TEST(SpinThenSleep, PacketsAtLongIntervalsCauseNoSpin) {
  Host host;
  host.receive_packets(1000, microseconds(500));
  EXPECT_EQ(host.sleeps, 1000);
  EXPECT_EQ(host.polls, 0);
}

TEST(SpinThenSleep, TheThreadSleepsAfterTheEndOfAStream) {
  Host host;
  host.receive_packets(100, microseconds(20));
  host.polls = host.sleeps = 0;
  EXPECT_EQ(host.wait(host.now + microseconds(10'000)), 0u);
  EXPECT_EQ(host.sleeps, 1);
  EXPECT_LE(host.polls, 100);
  host.polls = 0;
  EXPECT_EQ(host.wait(host.now + microseconds(10'000)), 0u);
  EXPECT_EQ(host.polls, 0);
}

TEST(SpinThenSleep, TheThreadSleepsIfOtherThreadsComputeOnItsProcessor) {
  for (const Duration compute_time : {microseconds(300), microseconds(3000)}) {
    Host host;
    host.receive_packets(100, microseconds(20));
    host.others_compute_for = compute_time;
    host.polls = host.sleeps = 0;
    host.receive_packets(10'000, microseconds(20));
    EXPECT_LE(host.polls, 10);
    EXPECT_GE(host.sleeps, 9'990);
  }
}

TEST(SpinThenSleep, AnotherThreadThatRunsForAShortTimeDoesNotEndTheSpin) {
  Host host;
  host.others_compute_for = microseconds(30);  // like a thread that takes completions
  host.receive_packets(1000, microseconds(50));
  EXPECT_LE(host.sleeps, 4);
}

TEST(SpinThenSleep, TheThreadSpinsAgainSoonAfterOtherThreadsComputedOnce) {
  Host host;
  host.receive_packets(100, microseconds(20));
  host.others_compute_for = microseconds(3000);
  host.receive_packets(1, microseconds(20));
  host.others_compute_for = Duration{};
  host.sleeps = 0;
  host.receive_packets(10'000, microseconds(20));
  EXPECT_LE(host.sleeps, 1'000);
}

TEST(SpinThenSleep, TheThreadSleepsIfTheProgramPolls) {
  Host host;
  host.receive_packets(100, microseconds(20));
  host.program_polls = true;
  host.polls = host.sleeps = 0;
  host.receive_packets(100, microseconds(20));
  EXPECT_EQ(host.sleeps, 100);
}

TEST(SpinThenSleep, AWakeUpWithoutAPacketCausesNoSpin) {
  Host host;
  for (int i = 0; i < 100; ++i) {
    host.next_wake = host.now + microseconds(20);
    EXPECT_EQ(host.wait(), 1u);
  }
  EXPECT_EQ(host.polls, 0);
}

TEST(SpinThenSleep, ASpinNeverExceedsTheDeadline) {
  Host host;
  host.receive_packets(100, microseconds(20));
  const Time deadline = host.now + microseconds(10);
  EXPECT_EQ(host.wait(deadline), 0u);
  EXPECT_LE(host.now, deadline + microseconds(2));
}

}  // namespace
}  // namespace verbena::client
