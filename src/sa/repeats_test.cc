#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "sa/manual_sa_test.h"
#include "sa/queries.h"

namespace verbena::sa {
namespace {

using namespace std::chrono_literals;
using wire::PathRecord;
using wire::SaAttribute;

class RepeatsTest : public ManualSaTest {
 protected:
  RepeatsTest() { test_reads_results = true; }

  void ask(std::size_t count) {
    Query query =
        Query::of(wire::Method::kGet, SaAttribute::kPathRecord, PathRecord::Mask::kDestinationGid,
                  PathRecord{.destination_gid = test_gid(9)});
    query.give_up_after = 10min;
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_TRUE(queries.ask(query, QueryOwner::kPaths, 0, now));
    }
  }
  void answer_with_path(const mad::SendMad& request) { answer(request, PathRecord{}); }

  // Returns the times at which a request is sent again.
  std::vector<Time> repeat_times(const mad::SendMad& request, Duration duration) {
    std::vector<Time> times;
    const Time end = now + duration;
    while (std::min(mads.deadline(), queries.deadline()) <= end) {
      for (const auto& repeated : run_until(std::min(mads.deadline(), queries.deadline()))) {
        if (repeated == request) times.push_back(now);
      }
    }
    return times;
  }
};

// On Linux, retries were 100 ms apart.  Slides of Sean Hefty about scalability report that each
// retry had another transaction ID, so the SA served it as another request.
TEST_F(RepeatsTest, RepeatsBackOffWithJitterAndKeepTheTransactionId) {
  ask(Queries::kOutstandingMax);
  Time last_sent = now;
  const auto times = repeat_times(sent().at(0), 60s);
  Duration interval = Queries::kFirstInterval;
  bool has_jitter = false;
  for (const Time time : times) {
    const Duration gap = time - last_sent;
    EXPECT_GE(gap, interval * 3 / 4);
    EXPECT_LE(gap, interval * 5 / 4);
    has_jitter = has_jitter || gap != interval;
    interval = std::min<Duration>(interval * 2, Queries::kRepeatGap * Queries::kOutstandingMax);
    last_sent = time;
  }
  EXPECT_TRUE(has_jitter);
  EXPECT_GE(times.size(), 5U);
  EXPECT_EQ(interval, 8s);
}

// An SA that loses two of three requests leaves 17 of 1,000 queries unanswered if each is sent ten
// times.  If each is sent every second for a minute, nearly all are answered.
TEST_F(RepeatsTest, LastQueriesAreRepeatedEverySecond) {
  ask(2);
  Time last_sent = now;
  for (const Time time : repeat_times(sent().at(0), 60s)) {
    EXPECT_LE(time - last_sent, Queries::kFewQueriesIntervalMax * 5 / 4);
    last_sent = time;
  }
  EXPECT_GE(last_sent, now - Queries::kFewQueriesIntervalMax * 5 / 4);
}

TEST_F(RepeatsTest, LostQueriesAreRepeatedSoonWhileOthersAreAnswered) {
  ask(Queries::kOutstandingMax - 1);
  const auto lost_requests = sent();
  std::size_t tries = 0;
  for (int i = 0; i < 200; ++i) {
    ask(1);
    answer_with_path(request());
    ASSERT_TRUE(queries.next_result());
    for (const auto& repeated : run_for(100ms)) tries += repeated == lost_requests[0] ? 1 : 0;
  }
  EXPECT_GE(tries, 15U) << "in 20 s";
  EXPECT_EQ(queries.window(), Queries::kOutstandingMax) << "loss does not shrink the window";
}

TEST_F(RepeatsTest, WindowShrinksWithoutAnswersAndGrowsAgain) {
  ask(100);
  const auto first_requests = sent();
  ASSERT_EQ(first_requests.size(), Queries::kOutstandingMax);
  run_for(60s);
  EXPECT_EQ(queries.window(), Queries::kWindowMin);
  for (const auto& request : first_requests) answer_with_path(request);
  EXPECT_EQ(queries.window(), Queries::kWindowMin)
      << "answers to repeats do not measure the round trip";
  EXPECT_EQ(queries.outstanding(), Queries::kWindowMin);
  for (std::size_t window = Queries::kWindowMin; window < Queries::kOutstandingMax;) {
    for (const auto& request : sent()) {
      now += 1ms;
      answer_with_path(request);
      window = std::min(window + 1, Queries::kOutstandingMax);
      ASSERT_EQ(queries.window(), window);
    }
  }
}

TEST_F(RepeatsTest, SlowAnswersShrinkTheWindowOnceInAnInterval) {
  // The client has learned that the SA takes 3 s, so it waits long enough for an answer.
  for (int i = 0; i < 20; ++i) {
    ask(1);
    const auto packet = request();
    run_for(3s);
    answer_with_path(packet);
  }
  ask(Queries::kOutstandingMax);
  const auto slow_requests = sent();
  ASSERT_EQ(slow_requests.size(), Queries::kOutstandingMax);
  EXPECT_TRUE(run_for(Queries::kRoundTripMax + 1ms).empty());
  for (const auto& request : slow_requests) answer_with_path(request);
  EXPECT_EQ(queries.window(), Queries::kOutstandingMax / 2);
}

}  // namespace
}  // namespace verbena::sa
