#include "client/driver.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

namespace verbena::client {
namespace {

// Simulates a program's engine.  Its posts may wait if `can_wait` is set.
struct TestWork final : Driver::Work {
  bool receive(Time, std::optional<os::UdpReceiver::Poll>) override { return false; }
  void flush() override {
    posts = 0;
    ++flushes;
  }
  bool take_unfinished() override { return false; }
  void deliver(Time) override {}
  Time deadline() const override { return kNever; }
  void begin_iteration() override {}
  bool end_iteration(Time) override { return false; }
  bool park() override { return true; }
  void unpark() override {}
  bool has_lanes() override { return false; }
  bool waits_for_lane_space() override { return lane_is_full.load(); }
  bool has_posts() override { return posts.load() > 0; }
  bool posts_can_wait() const override {
    const bool can = can_wait.load();
    if (after_decision) std::exchange(after_decision, nullptr)();
    return can;
  }
  bool acknowledgements_can_wait() const override { return true; }
  bool needs_flush() const override { return false; }
  bool needs_progress_thread() const override { return false; }
  bool delegate_messages() override { return true; }
  void after_iteration() override {
    if (!should_stop) return;
    is_stopped = true;
    is_stopped.notify_all();
    should_stop.wait(true);
    is_stopped = false;
  }
  void on_ready(Watches::Kind) override {}

  std::atomic<int> posts{0};
  std::atomic<int> flushes{0};
  std::atomic<bool> can_wait{false};
  std::atomic<bool> lane_is_full{false};           // packets wait for space in a lane
  mutable std::function<void()> after_decision{};  // runs once, after posts_can_wait() has decided
  std::atomic<bool> should_stop{false};  // makes the progress thread stop after its next iteration
  // The progress thread has stopped, and does not have the lock.
  std::atomic<bool> is_stopped{false};
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
  // Lets the progress thread run its first iteration, and stops it before its first sleep.
  void run_one_iteration() {
    work.should_stop = true;
    ASSERT_TRUE(driver.start());
    work.is_stopped.wait(false);
  }
  // Returns true if the progress thread, which is stopped, will begin another iteration at once.
  bool will_iterate_at_once() { return !watches.wait(Watches::For::kAll, Time{}).empty(); }
  // Polls and posts until a post waits.  When this function returns, the progress thread is
  // stopped.
  void make_a_waiting_post() {
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
  make_a_waiting_post();
  driver.poll();
  EXPECT_FALSE(work.has_posts());
}

TEST_F(DriverTest, APostThatWaitsIsSentWithTheFirstPostThatCannotWait) {
  make_a_waiting_post();
  work.can_wait = false;
  post();
  EXPECT_FALSE(work.has_posts());
}

// The second thread does not get the lock.  So the thread that has the lock must send both posts,
// although its own post could wait.
TEST_F(DriverTest, APostOfAnotherThreadIsSentTogetherWithAPostThatCouldWait) {
  make_a_waiting_post();
  work.after_decision = [&] { std::thread([&] { post(); }).join(); };
  post();
  EXPECT_FALSE(work.has_posts());
}

TEST_F(DriverTest, ACommandSendsPostsThatWait) {
  make_a_waiting_post();
  const Driving lock(driver);
  driver.send_deferred();
  EXPECT_FALSE(work.has_posts());
}

TEST_F(DriverTest, TheProgressThreadSendsPostsIfTheProgramStopsPolling) {
  make_a_waiting_post();
  let_progress_thread_continue();
  while (work.has_posts()) std::this_thread::yield();
}

TEST_F(DriverTest, TheProgressThreadDoesNotWakeItselfWhileALaneIsFull) {
  work.lane_is_full = true;
  run_one_iteration();
  EXPECT_FALSE(will_iterate_at_once());
}

// The progress thread then asks the peer for a wake-up when the lane has space.
TEST_F(DriverTest, AThreadThatFillsALaneWakesTheProgressThread) {
  run_one_iteration();
  work.lane_is_full = true;
  post();
  EXPECT_TRUE(will_iterate_at_once());
}

// Threads post at the same time.  A post is sent by its own thread, by the thread that holds the
// lock, or by a later poll.
TEST_F(DriverTest, NoPostIsLostWhileThreadsPostAtTheSameTime) {
  make_a_waiting_post();
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
