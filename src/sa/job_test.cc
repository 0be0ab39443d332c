#include "sa/job_test.h"

#include <gtest/gtest.h>

namespace verbena::sa {
namespace {

using namespace std::chrono_literals;
using Mode = PathCache::Mode;

constexpr unsigned kJobHosts = 20;
constexpr unsigned kJobProcesses = 3;
constexpr std::uint64_t kJobRoutes = std::uint64_t{kJobHosts} * (kJobHosts - 1) * kJobProcesses;

Job::Plan plan_of(Mode mode) {
  return {.mode = mode, .processes = kJobProcesses, .manager = {.hosts = kJobHosts}};
}

// Returns the number of queries that the mode needs without faults.
std::uint64_t queries_of(Mode mode) {
  switch (mode) {
    case Mode::kGet: return kJobRoutes / kJobProcesses;
    case Mode::kTable: return kJobHosts;
    case Mode::kUncached: return kJobRoutes;
  }
  return 0;
}

TEST(JobTest, EachModeSendsTheExpectedNumberOfQueries) {
  for (const Mode mode : {Mode::kGet, Mode::kTable, Mode::kUncached}) {
    SCOPED_TRACE(static_cast<int>(mode));
    Job job(plan_of(mode));
    const Job::Result result = job.run();
    EXPECT_EQ(result.routes, kJobRoutes);
    EXPECT_EQ(result.failed, 0U);
    EXPECT_EQ(result.queries, queries_of(mode));
    EXPECT_EQ(result.repeated, 0U);
    EXPECT_EQ(job.manager().counters().paths + job.manager().counters().tables, queries_of(mode));
    EXPECT_EQ(job.manager().counters().others, result.subscriptions);
  }
}

TEST(JobTest, SpeedOfTheManagerDeterminesTheTime) {
  const JobManager::Config costs{};
  const auto duration_of = [&](Mode mode) { return Job(plan_of(mode)).run().took; };
  // Each host sends five subscriptions and a query for the ClassPortInfo.
  const auto subscribe_duration = 6 * kJobHosts * costs.per_request;
  const auto get_duration = queries_of(Mode::kGet) * costs.per_request + subscribe_duration;
  EXPECT_GE(duration_of(Mode::kGet), get_duration);
  EXPECT_LE(duration_of(Mode::kGet), get_duration + 1ms);
  EXPECT_GE(duration_of(Mode::kUncached), queries_of(Mode::kUncached) * costs.per_request);
  EXPECT_LE(duration_of(Mode::kTable), PathCache::Config{}.table_delay_max + 100ms);
}

// The manager loses requests, so only the repeats that it receives cost time.
TEST(JobTest, ManagerThatLosesRequestsServesFewRepeats) {
  for (const Mode mode : {Mode::kGet, Mode::kTable}) {
    SCOPED_TRACE(static_cast<int>(mode));
    auto plan = plan_of(mode);
    plan.manager.deaf = {2, 3};
    Job job(plan);
    const Job::Result result = job.run();
    EXPECT_EQ(result.routes, kJobRoutes);
    EXPECT_EQ(result.queries, queries_of(mode));
    EXPECT_GT(result.repeated, 0U);
    EXPECT_LE(job.manager().counters().paths + job.manager().counters().tables,
              queries_of(mode) * 5 / 4);
  }
}

TEST(JobTest, BusyManagerGetsAtMostTwiceTheQueries) {
  for (const Mode mode : {Mode::kGet, Mode::kTable}) {
    SCOPED_TRACE(static_cast<int>(mode));
    auto plan = plan_of(mode);
    plan.manager.busy = {1, 3};
    Job job(plan);
    const Job::Result result = job.run();
    EXPECT_EQ(result.routes, kJobRoutes);
    EXPECT_GT(job.manager().counters().busy, 0U);
    EXPECT_EQ(result.queries, queries_of(mode));
    EXPECT_LE(result.sent, 2 * (result.queries + result.subscriptions));
  }
}

// The manager has 4 s of work in its queue, so hosts wait for much longer than the first interval.
// When the interval could not grow beyond 4 s, the manager got more and more repeats.
TEST(JobTest, SlowManagerGetsAtMostTwiceTheQueries) {
  constexpr unsigned kHosts = 64;
  for (const Mode mode : {Mode::kGet, Mode::kTable}) {
    SCOPED_TRACE(static_cast<int>(mode));
    Job job({.mode = mode, .manager = {.hosts = kHosts, .per_request = 4ms}});
    const Job::Result result = job.run();
    EXPECT_EQ(result.failed, 0U);
    EXPECT_EQ(result.queries, mode == Mode::kGet ? kHosts * (kHosts - 1) : kHosts);
    EXPECT_LE(result.sent, 2 * (result.queries + result.subscriptions));
  }
}

}  // namespace
}  // namespace verbena::sa
