#include "client/poll_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/random.h"

namespace verbena::client {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Simulates a program and the progress thread in virtual time.  As in the Driver, the progress
// thread sleeps until a packet comes, kCheckEvery has passed, or it is woken.  Each packet causes
// an event.  A program that waits for events (kWaits) takes the role of the receiver.  If it does
// not get the role, it sleeps.
struct Simulation {
  enum class Program { kPolls, kWatchesMemory, kSleeps, kWaits };

  PollPolicy policy;
  Time now{microseconds(1000)};
  Program program = Program::kSleeps;
  bool packet_waits = false;
  Time packet_arrived_at{};
  bool program_receives = false;
  Time wakes_at{};
  ReceiverRole::Wait wait = 0;
  int iterations = 0;
  int packets = 0;
  int packets_of_waiter = 0;
  Duration longest_wait{};

  void set(Program new_program) {
    end_wait();
    program = new_program;
    // A program arms its CQ before it sleeps.
    if (new_program >= Program::kSleeps && policy.cq_armed()) wakes_at = now;
    if (new_program != Program::kWaits) return;
    const ReceiverRole::TakenRole role = policy.take_role(ReceiverRole::For::kCompletions, now);
    wait = role.wait;
    if (role.from_progress_thread) wakes_at = now;
    if (wait != 0 && packet_waits) take_as_waiter();
  }
  // Ends the program's wait, because the program has its event or does something else.
  void end_wait() {
    if (wait == 0) return;
    if (policy.role().end_wait(std::exchange(wait, 0)))
      wakes_at = std::min(wakes_at, now + PollPolicy::kCheckEvery);
  }
  void take_as_waiter() {
    ++packets_of_waiter;
    packet_taken();
    end_wait();
  }
  void packet() {
    if (packet_waits) return;
    packet_waits = true;
    packet_arrived_at = now;
    ++packets;
    if (wait != 0) take_as_waiter();
    if (packet_waits && !program_receives) {
      policy.packets_came();
      wakes_at = now;
    }
  }
  void packet_taken() {
    longest_wait = std::max(longest_wait, now - packet_arrived_at);
    packet_waits = false;
  }
  void run_iteration() {
    ++iterations;
    const auto iteration = policy.begin_iteration(now);
    if (!iteration.program_receives) {
      // Reports packets that are already in the sockets, because the real wait would end at once.
      if (packet_waits) policy.packets_came();
      const bool found = policy.should_poll_sockets() && packet_waits;
      if (found) packet_taken();
      policy.sockets_polled(iteration, found, now);
    }
    policy.end_iteration(iteration);
    program_receives = iteration.program_receives;
    wakes_at = iteration.checks_again ? now + PollPolicy::kCheckEvery : kNever;
  }
  // Advances the time by one microsecond, which a poll takes.
  void step() {
    now += microseconds(1);
    if (program == Program::kPolls) {
      policy.polled();
      const bool found = packet_waits;
      if (found) packet_taken();
      (void)policy.should_yield(found);
    }
    if (now >= wakes_at) run_iteration();
  }
  void run(Duration time) {
    for (const Time end = now + time; now < end;) step();
  }
  // Delivers a packet every `interval`.
  void run_with_packets(Duration time, Duration interval) {
    Time next = now + interval;
    for (const Time end = now + time; now < end;) {
      if (now >= next) {
        packet();
        next = now + interval;
      }
      step();
    }
  }
};

TEST(PollPolicy, TheProgressThreadTakesPacketsOfAProgramThatSleeps) {
  Simulation simulation;
  simulation.run_iteration();
  simulation.run_with_packets(milliseconds(100), microseconds(50));
  EXPECT_GT(simulation.packets, 1000);
  EXPECT_LE(simulation.longest_wait, microseconds(1));
}

TEST(PollPolicy, TheProgressThreadMakesOnlyChecksWhileAProgramPolls) {
  Simulation simulation;
  simulation.set(Simulation::Program::kPolls);
  simulation.run_iteration();
  // Runs until the policy knows that the program polls.
  simulation.run_with_packets(milliseconds(2), microseconds(5));
  simulation.iterations = 0;
  simulation.run_with_packets(milliseconds(100), microseconds(5));
  EXPECT_LE(simulation.iterations, 101);
  EXPECT_LE(simulation.longest_wait, microseconds(1));
}

// The program answers each message, and waits again after a few microseconds.
TEST(PollPolicy, AProgramThatWaitsForEachEventTakesItsPacketsItself) {
  Simulation simulation;
  simulation.run_iteration();
  simulation.set(Simulation::Program::kWaits);
  simulation.step();  // the progress thread is woken once
  simulation.iterations = 0;
  constexpr int kMessages = 10'000;
  for (int i = 0; i < kMessages; ++i) {
    simulation.run(microseconds(40));
    simulation.packet();
    simulation.run(microseconds(10));
    simulation.set(Simulation::Program::kWaits);
  }
  EXPECT_EQ(simulation.packets_of_waiter, kMessages);
  EXPECT_LE(simulation.iterations, 501) << "more than one check in a millisecond";
}

TEST(PollPolicy, TheProgressThreadSleepsWhileAProgramWaits) {
  Simulation simulation;
  simulation.run_iteration();
  simulation.set(Simulation::Program::kWaits);
  simulation.run(milliseconds(1));
  simulation.iterations = 0;
  simulation.run(milliseconds(100));
  EXPECT_EQ(simulation.iterations, 0);
}

TEST(PollPolicy, AProgramThatDoesNotWaitAgainIsServedByTheProgressThread) {
  Simulation simulation;
  simulation.run_iteration();
  simulation.set(Simulation::Program::kWaits);
  simulation.run(milliseconds(10));
  simulation.packet();
  simulation.run(milliseconds(3));
  simulation.longest_wait = {};
  simulation.run_with_packets(milliseconds(100), microseconds(50));
  EXPECT_LE(simulation.longest_wait, microseconds(1));
}

// A program that computes does not receive packets, so the progress thread must receive them.
TEST(PollPolicy, AProgramThatComputesWhilePacketsComeIsServedByTheProgressThread) {
  Simulation simulation;
  simulation.run_iteration();
  int slow_rounds = 0;
  for (int round = 0; round < 1000; ++round) {
    simulation.set(Simulation::Program::kWaits);
    simulation.run(microseconds(10));
    simulation.packet();
    simulation.set(Simulation::Program::kWatchesMemory);
    simulation.longest_wait = {};
    simulation.packet();
    simulation.run(milliseconds(5));
    ASSERT_FALSE(simulation.packet_waits);
    slow_rounds += simulation.longest_wait > microseconds(10) ? 1 : 0;
  }
  EXPECT_LE(slow_rounds, 20);
}

// A program whose polls always find packets makes few or no empty polls.
TEST(PollPolicy, AProgramWhosePollsFindBatchesOfPacketsTakesThemItself) {
  PollPolicy policy;
  Time now(milliseconds(10));
  PollPolicy::Iteration iteration = policy.begin_iteration(now);
  policy.end_iteration(iteration);
  for (int batch = 0; batch < 10; ++batch) {
    policy.polled();
    policy.took_packets();
  }
  iteration = policy.begin_iteration(now + PollPolicy::kCheckEvery);
  EXPECT_TRUE(iteration.program_receives);
}

TEST(PollPolicy, ArmingACqEndsThePollingAtOnce) {
  Simulation simulation;
  simulation.set(Simulation::Program::kPolls);
  simulation.run_iteration();
  simulation.run_with_packets(milliseconds(10), microseconds(5));
  ASSERT_TRUE(simulation.program_receives);
  simulation.set(Simulation::Program::kSleeps);
  simulation.step();
  EXPECT_FALSE(simulation.program_receives);
}

// If a program polls its queue and then watches its memory, packets may wait for up to kCheckEvery.
// If the program does this repeatedly, the policy adapts, and few packets wait.
TEST(PollPolicy, AProgramThatWatchesItsMemoryIsServedByTheProgressThread) {
  Simulation simulation;
  simulation.run_iteration();
  int slow_rounds = 0;
  for (int round = 0; round < 1000; ++round) {
    simulation.set(Simulation::Program::kPolls);
    simulation.run(microseconds(500));
    simulation.set(Simulation::Program::kWatchesMemory);
    simulation.longest_wait = {};
    simulation.packet();
    simulation.run(milliseconds(2));
    ASSERT_FALSE(simulation.packet_waits);
    slow_rounds += simulation.longest_wait > microseconds(10) ? 1 : 0;
  }
  EXPECT_LE(slow_rounds, 20);
}

TEST(PollPolicy, AThreadWhosePollsFindNothingYieldsUntilAPacketComes) {
  PollPolicy policy;
  for (std::uint32_t i = 0; i < PollPolicy::kPollsUntilYield; ++i) {
    EXPECT_FALSE(policy.should_yield(false));
  }
  EXPECT_TRUE(policy.should_yield(false));
  EXPECT_TRUE(policy.should_yield(false));
  EXPECT_FALSE(policy.should_yield(true));
  EXPECT_FALSE(policy.should_yield(false));
}

TEST(PollPolicy, AThreadWhoseProcessorIsBusyYieldsAfterFewPolls) {
  PollPolicy policy;
  for (std::uint32_t i = 0; i < PollPolicy::kPollsUntilYieldIfBusy; ++i) {
    EXPECT_FALSE(policy.should_yield(false, true));
  }
  EXPECT_TRUE(policy.should_yield(false, true));
  EXPECT_FALSE(policy.should_yield(true, true));
}

TEST(PollPolicy, APollThatSleepsCountsAsManyPolls) {
  PollPolicy policy;
  policy.polled();
  policy.poll_will_sleep();
  EXPECT_TRUE(policy.begin_iteration(Time{seconds(1)}).program_receives);
}

// If a program computes for long after its polls, deferred acknowledgements leave late, and peers
// wait.
TEST(PollPolicy, PacketsOfAProgramThatComputesAfterItsPollsAreRarelyDeferred) {
  Simulation simulation;
  simulation.set(Simulation::Program::kPolls);
  simulation.run_iteration();
  EXPECT_FALSE(simulation.policy.may_defer()) << "the progress thread still takes the packets";
  simulation.run_with_packets(milliseconds(10), microseconds(5));
  ASSERT_TRUE(simulation.program_receives);
  int expired_deferrals = 0;
  for (int i = 0; i < 100'000; ++i) {
    if (!simulation.policy.may_defer()) continue;
    ++expired_deferrals;
    simulation.policy.deferral_expired();
  }
  EXPECT_LE(expired_deferrals, 16);
  // From here on the program polls all the time.
  int deferred = 0;
  for (int i = 0; i < 100'000; ++i) {
    if (!simulation.policy.may_defer()) continue;
    ++deferred;
    simulation.policy.deferred_was_sent();
  }
  EXPECT_GE(deferred, 80'000);
}

// The program does random things.  No packet waits much longer than the interval of the progress
// thread's checks.  The progress thread runs about one iteration per packet and two per millisecond
// at most.
TEST(PollPolicy, NoPacketWaitsLongIfTheProgramBehavesRandomly) {
  const char* seed_text = std::getenv("VB_SEED");
  const char* seeds_text = std::getenv("VB_SEEDS");
  const std::uint64_t first_seed = seed_text == nullptr ? 1 : std::strtoull(seed_text, nullptr, 10);
  const std::uint64_t count =
      seed_text != nullptr ? 1
                           : (seeds_text == nullptr ? 100 : std::strtoull(seeds_text, nullptr, 10));
  for (std::uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    SCOPED_TRACE("VB_SEED=" + std::to_string(seed));
    Random random(seed);
    Simulation simulation;
    simulation.run_iteration();
    const Time began = simulation.now;
    for (int i = 0; i < 200; ++i) {
      simulation.set(static_cast<Simulation::Program>(random.below(4)));
      const auto time = microseconds(1 + random.below(2000));
      if (random.below(2) == 0) {
        simulation.run(time);
      } else {
        simulation.run_with_packets(time, microseconds(1 + random.below(300)));
      }
    }
    // After the program has stopped polling, the next check may still count its polls of the last
    // interval, and let it receive.  So a packet may wait for two intervals.
    ASSERT_LE(simulation.longest_wait, 2 * PollPolicy::kCheckEvery + microseconds(10));
    const auto spent = std::chrono::duration_cast<milliseconds>(simulation.now - began).count();
    ASSERT_LE(simulation.iterations, simulation.packets + 2 * spent + 400);
  }
}

}  // namespace
}  // namespace verbena::client
