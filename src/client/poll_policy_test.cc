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

// Simulates a program and the progress thread in virtual time.  The thread sleeps until a packet, a
// timer of kCheckEvery or a wake-up, as the Driver does.  Each packet brings an event, for which a
// program waits (kWaits) with the role of the receiver; if it does not get the role, it sleeps.
struct Scene {
  enum class Program { kPolls, kWatchesMemory, kSleeps, kWaits };

  PollPolicy policy;
  Time now{microseconds(1000)};
  Program program = Program::kSleeps;
  bool packet_waits = false;
  Time packet_arrived_at{};
  bool left_to_program = false;
  Time wakes_at{};
  ReceiverRole::Wait wait = 0;
  int turns = 0;
  int packets = 0;
  int packets_of_waiter = 0;
  Duration longest_wait{};

  void set(Program next) {
    leave();
    program = next;
    // A program that sleeps has armed its CQ before.
    if (next >= Program::kSleeps && policy.cq_armed()) wakes_at = now;
    if (next != Program::kWaits) return;
    const ReceiverRole::TakenRole role = policy.take_role(ReceiverRole::For::kCompletions, now);
    wait = role.wait;
    if (role.from_progress_thread) wakes_at = now;
    if (wait != 0 && packet_waits) take_as_waiter();
  }
  // Ends the program's wait: it has its event, or does something else.
  void leave() {
    if (wait == 0) return;
    if (policy.role().leave(std::exchange(wait, 0)))
      wakes_at = std::min(wakes_at, now + PollPolicy::kCheckEvery);
  }
  void take_as_waiter() {
    ++packets_of_waiter;
    packet_taken();
    leave();
  }
  void packet() {
    if (packet_waits) return;
    packet_waits = true;
    packet_arrived_at = now;
    ++packets;
    if (wait != 0) take_as_waiter();
    if (packet_waits && !left_to_program) {
      policy.packets_came();
      wakes_at = now;
    }
  }
  void packet_taken() {
    longest_wait = std::max(longest_wait, now - packet_arrived_at);
    packet_waits = false;
  }
  void turn() {
    ++turns;
    const auto turn = policy.begin_turn(now);
    if (!turn.left_to_program) {
      // A wait ends at once if the sockets have packets, so no packet is overlooked.
      if (packet_waits) policy.packets_came();
      const bool found = policy.should_poll_sockets() && packet_waits;
      if (found) packet_taken();
      policy.sockets_polled(turn, found, now);
    }
    policy.end_turn(turn);
    left_to_program = turn.left_to_program;
    wakes_at = turn.checks_again ? now + PollPolicy::kCheckEvery : kNever;
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
    if (now >= wakes_at) turn();
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
  Scene scene;
  scene.turn();
  scene.run_with_packets(milliseconds(100), microseconds(50));
  EXPECT_GT(scene.packets, 1000);
  EXPECT_LE(scene.longest_wait, microseconds(1));
}

TEST(PollPolicy, TheProgressThreadOnlyChecksOnAProgramThatPolls) {
  Scene scene;
  scene.set(Scene::Program::kPolls);
  scene.turn();
  scene.run_with_packets(milliseconds(2), microseconds(5));  // until the policy notices the program
  scene.turns = 0;
  scene.run_with_packets(milliseconds(100), microseconds(5));
  EXPECT_LE(scene.turns, 101);
  EXPECT_LE(scene.longest_wait, microseconds(1));
}

// The program answers each message: it waits again after a few microseconds.
TEST(PollPolicy, AProgramThatWaitsForEachEventTakesItsPacketsItself) {
  Scene scene;
  scene.turn();
  scene.set(Scene::Program::kWaits);
  scene.step();  // the progress thread is woken once
  scene.turns = 0;
  constexpr int kMessages = 10'000;
  for (int i = 0; i < kMessages; ++i) {
    scene.run(microseconds(40));
    scene.packet();
    scene.run(microseconds(10));
    scene.set(Scene::Program::kWaits);
  }
  EXPECT_EQ(scene.packets_of_waiter, kMessages);
  EXPECT_LE(scene.turns, 501) << "more than one check in a millisecond";
}

TEST(PollPolicy, TheProgressThreadSleepsWhileAProgramWaits) {
  Scene scene;
  scene.turn();
  scene.set(Scene::Program::kWaits);
  scene.run(milliseconds(1));
  scene.turns = 0;
  scene.run(milliseconds(100));
  EXPECT_EQ(scene.turns, 0);
}

TEST(PollPolicy, AProgramThatDoesNotWaitAgainIsServedByTheProgressThread) {
  Scene scene;
  scene.turn();
  scene.set(Scene::Program::kWaits);
  scene.run(milliseconds(10));
  scene.packet();
  scene.run(milliseconds(3));
  scene.longest_wait = {};
  scene.run_with_packets(milliseconds(100), microseconds(50));
  EXPECT_LE(scene.longest_wait, microseconds(1));
}

// A program that computes would be late for its packets each time.
TEST(PollPolicy, AProgramThatComputesWhilePacketsComeIsServedByTheProgressThread) {
  Scene scene;
  scene.turn();
  int slow = 0;
  for (int round = 0; round < 1000; ++round) {
    scene.set(Scene::Program::kWaits);
    scene.run(microseconds(10));
    scene.packet();
    scene.set(Scene::Program::kWatchesMemory);
    scene.longest_wait = {};
    scene.packet();
    scene.run(milliseconds(5));
    ASSERT_FALSE(scene.packet_waits);
    slow += scene.longest_wait > microseconds(10) ? 1 : 0;
  }
  EXPECT_LE(slow, 20);
}

// A program whose polls always find packets makes few or no empty polls.
TEST(PollPolicy, AProgramWhosePollsFindBatchesOfPacketsTakesThemItself) {
  PollPolicy policy;
  Time now(milliseconds(10));
  PollPolicy::Turn turn = policy.begin_turn(now);
  policy.end_turn(turn);
  for (int batch = 0; batch < 10; ++batch) {
    policy.polled();
    policy.took_packets();
  }
  turn = policy.begin_turn(now + PollPolicy::kCheckEvery);
  EXPECT_TRUE(turn.left_to_program);
}

TEST(PollPolicy, ArmingACqEndsThePollingAtOnce) {
  Scene scene;
  scene.set(Scene::Program::kPolls);
  scene.turn();
  scene.run_with_packets(milliseconds(10), microseconds(5));
  ASSERT_TRUE(scene.left_to_program);
  scene.set(Scene::Program::kSleeps);
  scene.step();
  EXPECT_FALSE(scene.left_to_program);
}

// A program that polls its queue and then watches its memory leaves packets for up to kCheckEvery.
// If the program does this repeatedly, few packets wait.
TEST(PollPolicy, AProgramThatWatchesItsMemoryIsServedByTheProgressThread) {
  Scene scene;
  scene.turn();
  int slow = 0;
  for (int round = 0; round < 1000; ++round) {
    scene.set(Scene::Program::kPolls);
    scene.run(microseconds(500));
    scene.set(Scene::Program::kWatchesMemory);
    scene.longest_wait = {};
    scene.packet();
    scene.run(milliseconds(2));
    ASSERT_FALSE(scene.packet_waits);
    slow += scene.longest_wait > microseconds(10) ? 1 : 0;
  }
  EXPECT_LE(slow, 20);
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

// A program that computes for long after its polls would keep its peers waiting each time.
TEST(PollPolicy, PacketsOfProgramsThatComputeAfterAPollAreSeldomDeferred) {
  Scene scene;
  scene.set(Scene::Program::kPolls);
  scene.turn();
  EXPECT_FALSE(scene.policy.may_defer()) << "the progress thread still takes the packets";
  scene.run_with_packets(milliseconds(10), microseconds(5));
  ASSERT_TRUE(scene.left_to_program);
  int expired = 0;
  for (int i = 0; i < 100'000; ++i) {
    if (!scene.policy.may_defer()) continue;
    ++expired;
    scene.policy.deferral_expired();
  }
  EXPECT_LE(expired, 16);
  // From here on the program polls steadily again.
  int deferred = 0;
  for (int i = 0; i < 100'000; ++i) {
    if (!scene.policy.may_defer()) continue;
    ++deferred;
    scene.policy.deferred_was_sent();
  }
  EXPECT_GE(deferred, 80'000);
}

// Whatever a program does, no packet waits much longer than the interval of the progress thread's
// checks.  The thread makes at most one turn per packet and one per millisecond.
TEST(PollPolicy, NoPacketWaitsLongWhateverTheProgramDoes) {
  const char* one = std::getenv("VB_SEED");
  const char* many = std::getenv("VB_SEEDS");
  const std::uint64_t first = one == nullptr ? 1 : std::strtoull(one, nullptr, 10);
  const std::uint64_t count =
      one != nullptr ? 1 : (many == nullptr ? 100 : std::strtoull(many, nullptr, 10));
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE("VB_SEED=" + std::to_string(seed));
    Random random(seed);
    Scene scene;
    scene.turn();
    const Time began = scene.now;
    for (int i = 0; i < 200; ++i) {
      scene.set(static_cast<Scene::Program>(random.below(4)));
      const auto time = microseconds(1 + random.below(2000));
      if (random.below(2) == 0) {
        scene.run(time);
      } else {
        scene.run_with_packets(time, microseconds(1 + random.below(300)));
      }
    }
    // After the program stops polling, one more check may still count its polls of the last
    // interval and leave the sockets to it.  So a packet may wait for two intervals.
    ASSERT_LE(scene.longest_wait, 2 * PollPolicy::kCheckEvery + microseconds(10));
    const auto spent = std::chrono::duration_cast<milliseconds>(scene.now - began).count();
    ASSERT_LE(scene.turns, scene.packets + 2 * spent + 400);
  }
}

}  // namespace
}  // namespace verbena::client
