#include <gtest/gtest.h>

#include <vector>

#include "sa/manual_sa_test.h"
#include "sa/path_cache.h"

namespace verbena::sa {
namespace {

using namespace std::chrono_literals;
using wire::PathRecord;
using wire::SaStatus;

class UncachedPathsTest : public ManualSaTest {
 protected:
  UncachedPathsTest() { cache.set_port(port, PortChange::between({}, port), now); }

  PathCache cache{{.mode = PathCache::Mode::kUncached, .waiters_max = 3}, queries, Random(3)};

  void on_query_result(const QueryResult& result) override { cache.receive(result, now); }
  void on_timer() override { cache.on_timer(now); }
  Time deadline() override { return cache.deadline(); }

  static PathRecord path() {
    return {.destination_gid = test_gid(9),
            .source_gid = test_gid(5),
            .destination_lid = {9},
            .source_lid = {5},
            .reversible = true,
            .pkey = wire::kDefaultPkey};
  }
  static PathQuery query() { return {.destination = test_gid(9), .source = test_gid(5)}; }
  PathTicket connect(std::uint64_t cookie) {
    const auto found = cache.find_for_connection(query(), cookie, 10s, now);
    EXPECT_TRUE(found && std::holds_alternative<PathTicket>(*found));
    return found ? std::get<PathTicket>(*found) : PathTicket{};
  }
};

TEST_F(UncachedPathsTest, EachConnectionSendsAQueryEvenForTheSameDestination) {
  connect(1);
  connect(2);
  const auto requests = sent();
  ASSERT_EQ(requests.size(), 2U);
  now += 2ms;
  answer(requests[1], path());
  answer(requests[0], path());
  auto event = cache.next_event();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->cookie, 2U);
  EXPECT_EQ(event->waited, 2ms);
  ASSERT_EQ(event->paths.size(), 1U);
  EXPECT_EQ(event->paths[0].destination_lid, Lid{9});
  EXPECT_EQ(cache.next_event()->cookie, 1U);
  EXPECT_EQ(cache.size(), 0U);
  connect(3);
  answer(request(), path());
  EXPECT_EQ(cache.next_event()->cookie, 3U);
  EXPECT_EQ(cache.counters().uncached, 3U);
  EXPECT_EQ(cache.counters().hits + cache.counters().misses + cache.counters().shared, 0U);
}

TEST_F(UncachedPathsTest, FindStillUsesTheCache) {
  ASSERT_TRUE(cache.find(query(), 1, 10s, now));
  answer(request(), path());
  const auto found = cache.find(query(), 2, 10s, now);
  ASSERT_TRUE(found);
  EXPECT_TRUE(std::holds_alternative<KnownPaths>(*found));
  connect(3);
  EXPECT_EQ(sent().size(), 1U) << "a connection sends a query although the path is known";
}

TEST_F(UncachedPathsTest, RefusalAndSilenceEndEachQueryWithAnError) {
  connect(1);
  refuse(request(), SaStatus::kNoRecords);
  auto event = cache.next_event();
  ASSERT_TRUE(event && event->error);
  EXPECT_EQ(event->error->code, Errc::kUnreachable);
  connect(2);
  EXPECT_EQ(sent().size(), 1U) << "a negative answer is not stored";
  run_for(11s);
  event = cache.next_event();
  ASSERT_TRUE(event && event->error);
  EXPECT_EQ(event->cookie, 2U);
  EXPECT_EQ(event->error->code, Errc::kTimedOut);
  EXPECT_FALSE(cache.next_event());
}

TEST_F(UncachedPathsTest, CancelledQueryGetsNoAnswer) {
  const PathTicket ticket = connect(1);
  const auto query = request();
  EXPECT_TRUE(cache.cancel(ticket, now));
  EXPECT_FALSE(cache.cancel(ticket, now));
  answer(query, path());
  EXPECT_FALSE(cache.next_event());
  EXPECT_EQ(queries.outstanding(), 0U);
}

TEST_F(UncachedPathsTest, TooManyWaitersAreRefused) {
  for (std::uint64_t i = 0; i < 3; ++i) connect(i);
  const auto refused = cache.find_for_connection(query(), 4, 10s, now);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kNoResources);
  EXPECT_EQ(cache.counters().limit_waiters, 1U);
}

}  // namespace
}  // namespace verbena::sa
