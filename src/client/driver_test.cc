#include "client/driver.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

namespace verbena::client {
namespace {

// Plays a program's engine, whose posts can wait if `can_wait` is set.
struct TestWork final : Driver::Work {
  bool receive(Time, std::optional<os::UdpReceiver::Poll>) override { return false; }
  void flush() override {
    posts = 0;
    ++flushes;
  }
  bool take_unfinished() override { return false; }
  void deliver(Time) override {}
  Time deadline() const override { return kNever; }
  void begin_turn() override {}
  bool end_turn(Time) override { return false; }
  bool park() override { return true; }
  void unpark() override {}
  bool has_lanes() override { return false; }
  bool waits_for_room() override { return lane_is_full.load(); }
  bool has_posts() override { return posts.load() > 0; }
  bool posts_can_wait() const override {
    const bool can = can_wait.load();
    if (after_decision) std::exchange(after_decision, nullptr)();
    return can;
  }
  bool acknowledgements_can_wait() const override { return true; }
  bool needs_flush() const override { return false; }
  bool needs_turn() const override { return false; }
  bool delegate_messages() override { return true; }
  void after_turn() override {
    if (!should_stop) return;
    is_stopped = true;
    is_stopped.notify_all();
    should_stop.wait(true);
    is_stopped = false;
  }
  void ready(Watches::Kind) override {}

  std::atomic<int> posts{0};
  std::atomic<int> flushes{0};
  std::atomic<bool> can_wait{false};
  std::atomic<bool> lane_is_full{false};           // packets wait for room in a lane
  mutable std::function<void()> after_decision{};  // runs once, after posts_can_wait() has decided
  std::atomic<bool> should_stop{false};            // the progress thread stops after its next turn
  std::atomic<bool> is_stopped{false};  // the progress thread has stopped, without the lock
};

struct DriverTest : testing::Test {
  void TearDown() override { let_progress_thread_continue(); }

  void let_progress_thread_continue() {
    work.should_stop = false;
    work.should_stop.notify_all();
  }
  void post() {
    ++work.posts;
    driver.kick();
  }
  // Lets the progress thread take its first turn, and stops it after that.
  void take_one_turn() {
    work.should_stop = true;
    ASSERT_TRUE(driver.start());
    work.is_stopped.wait(false);
  }
  // Returns true if the progress thread, which is stopped, will take another turn at once.
  bool will_take_a_turn() { return !watches.wait(Watches::For::kAll, Time{}).empty(); }
  // Polls and posts until a post waits.  The progress thread is stopped when this returns.
  void post_one_that_waits() {
    work.can_wait = true;
    ASSERT_TRUE(driver.start());
    for (;;) {
      work.should_stop = true;
      for (std::uint32_t i = 0; i < 2 * PollPolicy::kPollsBusy; ++i) driver.poll();
      driver.wake();
      work.is_stopped.wait(false);
      post();
      if (work.has_posts()) return;
      let_progress_thread_continue();
    }
  }

  Watches watches = std::move(*Watches::create());
  TestWork work{};
  Driver driver{work, watches};
};

TEST_F(DriverTest, PostsOfAProgramThatDoesNotPollAreSentAtOnce) {
  work.can_wait = true;
  for (int i = 0; i < 100; ++i) {
    post();
    ASSERT_FALSE(work.has_posts());
  }
}

TEST_F(DriverTest, APostThatWaitsIsSentByTheNextPoll) {
  post_one_that_waits();
  driver.poll();
  EXPECT_FALSE(work.has_posts());
}

TEST_F(DriverTest, APostThatWaitsIsSentWithTheFirstThatCannotWait) {
  post_one_that_waits();
  work.can_wait = false;
  post();
  EXPECT_FALSE(work.has_posts());
}

// The second thread does not get the lock.  So the thread that holds it must send both posts,
// although its own could wait.
TEST_F(DriverTest, APostOfAnotherThreadIsSentTogetherWithOneThatCouldWait) {
  post_one_that_waits();
  work.after_decision = [&] { std::thread([&] { post(); }).join(); };
  post();
  EXPECT_FALSE(work.has_posts());
}

TEST_F(DriverTest, ACommandSendsPostsThatWait) {
  post_one_that_waits();
  const Driving lock(driver);
  driver.send_deferred();
  EXPECT_FALSE(work.has_posts());
}

TEST_F(DriverTest, TheProgressThreadSendsPostsIfTheProgramStopsPolling) {
  post_one_that_waits();
  let_progress_thread_continue();
  while (work.has_posts()) std::this_thread::yield();
}

TEST_F(DriverTest, TheProgressThreadDoesNotWakeItselfWhileALaneIsFull) {
  work.lane_is_full = true;
  take_one_turn();
  EXPECT_FALSE(will_take_a_turn());
}

TEST_F(DriverTest, AThreadThatFillsALaneWakesTheProgressThreadWhichAsksForRoom) {
  take_one_turn();
  work.lane_is_full = true;
  post();
  EXPECT_TRUE(will_take_a_turn());
}

// Threads post at the same time.  A post is sent by its own thread, by the thread that holds the
// lock, or by a later poll.
TEST_F(DriverTest, NoPostIsForgottenWhileThreadsPostTogether) {
  post_one_that_waits();
  let_progress_thread_continue();
  const auto run = [&] {
    for (int i = 0; i < 20'000; ++i) {
      if (i % 8 == 0) driver.poll();
      post();
    }
  };
  std::thread other(run);
  run();
  other.join();
  while (work.has_posts()) std::this_thread::yield();
  EXPECT_GT(work.flushes.load(), 0);
}

}  // namespace
}  // namespace verbena::client
