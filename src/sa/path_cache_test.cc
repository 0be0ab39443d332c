#include "sa/path_cache.h"

#include <gtest/gtest.h>

#include <vector>

#include "sa/manual_sa_test.h"

namespace verbena::sa {
namespace {

using namespace std::chrono_literals;
using wire::Method;
using wire::PathRecord;
using wire::SaStatus;

class PathCacheTest : public ManualSaTest {
 protected:
  PathCacheTest() { make_cache({}); }

  std::optional<PathCache> cache;

  void make_cache(const PathCache::Config& config) {
    cache.emplace(config, queries, Random(3));
    cache->set_port(port, PortChange::between({}, port), now);
  }
  void change_port(const PortState& state) {
    const auto change = PortChange::between(port, state);
    port = state;
    queries.set_port({}, state, now);
    cache->set_port(state, change, now);
  }
  void on_query_result(const QueryResult& result) override { cache->receive(result, now); }
  void on_timer() override { cache->on_timer(now); }
  Time deadline() override { return cache->deadline(); }

  static PathQuery query_to(unsigned destination) {
    return {.destination = test_gid(destination), .source = test_gid(5)};
  }
  static PathRecord path_to(unsigned destination, Lid lid = {}) {
    return {.destination_gid = test_gid(destination),
            .source_gid = test_gid(5),
            .destination_lid = lid == Lid{} ? Lid{static_cast<std::uint16_t>(destination)} : lid,
            .source_lid = {5},
            .reversible = true,
            .pkey = wire::kDefaultPkey,
            .mtu = 4,
            .rate = 3};
  }
  Result<PathCache::Lookup> find(const PathQuery& query, std::uint64_t cookie = 0) {
    return cache->find(query, cookie, 10s, now);
  }
  bool is_known(const PathQuery& query) {
    const auto found = find(query);
    return found && std::holds_alternative<KnownPaths>(*found);
  }
  Lid lid_of(const PathQuery& query) {
    const auto found = find(query);
    if (!found || !std::holds_alternative<KnownPaths>(*found)) return {};
    return std::get<KnownPaths>(*found).path.destination_lid;
  }
  // Makes the cache store a path.
  void learn(unsigned destination) { learn(query_to(destination), {path_to(destination)}); }
  void learn(const PathQuery& query, const std::vector<PathRecord>& paths) {
    ASSERT_FALSE(is_known(query));
    answer(request(), 0, paths, wire::SaAttribute::kPathRecord);
    while (cache->next_event()) {
    }
  }
};

TEST_F(PathCacheTest, MissSendsAQueryAndHitDoesNot) {
  const auto ticket = find(query_to(9), 42);
  ASSERT_TRUE(ticket);
  now += 2ms;
  answer(request(), path_to(9));
  const auto event = cache->next_event();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->cookie, 42U);
  EXPECT_EQ(event->ticket, std::get<PathTicket>(*ticket));
  EXPECT_EQ(event->paths, std::vector{path_to(9)});
  EXPECT_EQ(event->waited, 2ms);
  EXPECT_EQ(lid_of(query_to(9)), Lid{9});
  EXPECT_TRUE(sent().empty());
  EXPECT_FALSE(cache->next_event());
  EXPECT_EQ(cache->counters().hits, 1U);
  EXPECT_EQ(cache->counters().misses, 1U);
}

// On Linux, each connection sends its own query.
TEST_F(PathCacheTest, IdenticalQueriesInFlightAreSentOnce) {
  for (std::uint64_t i = 0; i < 1000; ++i) ASSERT_TRUE(find(query_to(9), i));
  answer(request(), path_to(9));
  for (std::uint64_t i = 0; i < 1000; ++i) EXPECT_EQ(cache->next_event()->cookie, i);
  EXPECT_FALSE(cache->next_event());
  EXPECT_EQ(cache->counters().shared, 999U);
}

// OFED's local_sa ignored the service ID and the QoS class when it compared queries.
TEST_F(PathCacheTest, EveryFieldOfTheQueryIsCompared) {
  learn(9);
  std::vector<PathQuery> others(15, query_to(9));
  others[0].source_lid = Lid{4};
  others[1].destination_lid = Lid{8};
  others[2].pkey = Pkey{0x8001};
  others[3].service_id = ServiceId{1};
  others[4].qos_class = 1;
  others[5].service_level = 1;
  others[6].traffic_class = 1;
  others[7].flow_label = 1;
  others[8].raw_traffic = true;
  others[9].hop_limit = 1;
  others[10].numb_path = 2;
  others[11].mtu = PathQuery::Limit{wire::Selector::kGreater, 4};
  others[12].rate = PathQuery::Limit{wire::Selector::kLess, 3};
  others[13].packet_life = PathQuery::Limit{wire::Selector::kBest, 0};
  others[14].destination = test_gid(10);
  std::set<std::uint64_t> masks;
  for (const PathQuery& other : others) {
    EXPECT_FALSE(is_known(other));
    const auto sent_now = sent();
    ASSERT_EQ(sent_now.size(), 1U);
    masks.insert(header_in(sent_now[0]).component_mask);
    EXPECT_TRUE(cache->cancel(std::get<PathTicket>(*find(other)), now));
    EXPECT_TRUE(sent().empty());
    run_for(10s);
    sent();
  }
  EXPECT_EQ(masks.size(), 14U) << "numb_path and another destination do not change the mask";
}

TEST_F(PathCacheTest, NarrowerQueryIsAnsweredByKnownPathsThatMatch) {
  learn(9);
  PathQuery other = query_to(9);
  other.pkey = wire::kDefaultPkey;
  other.mtu = PathQuery::Limit{wire::Selector::kGreater, 3};
  EXPECT_TRUE(is_known(other));
}

TEST_F(PathCacheTest, SeveralPathsAreChosenInTurn) {
  PathQuery query = query_to(9);
  query.numb_path = 3;
  EXPECT_FALSE(is_known(query));
  const auto packet = request();
  EXPECT_EQ(header_in(packet).mad.method, Method::kGetTable);
  EXPECT_EQ(record_in<PathRecord>(packet).numb_path, 3);
  answer(packet, 0, std::vector{path_to(9, {90}), path_to(9, {91}), path_to(9, {92})},
         wire::SaAttribute::kPathRecord);
  EXPECT_EQ(cache->next_event()->paths.size(), 3U);
  std::map<Lid, int> chosen;
  for (int i = 0; i < 300; ++i) ++chosen[lid_of(query)];
  EXPECT_EQ(chosen, (std::map<Lid, int>{{{90}, 100}, {{91}, 100}, {{92}, 100}}));
}

// The routes of ibacm never expire.
TEST_F(PathCacheTest, PathIsForgottenWhenItsAgeIsOver) {
  learn(9);
  now += 60s - 1ns;
  EXPECT_TRUE(is_known(query_to(9)));
  now += 1ns;
  EXPECT_FALSE(is_known(query_to(9)));
  EXPECT_EQ(sent().size(), 1U);
  EXPECT_EQ(cache->counters().expired, 1U);
}

TEST_F(PathCacheTest, PathsAreUsedLongerWhileTheManagerReportsChanges) {
  cache->set_notices(true);
  learn(9);
  now += 61s;
  EXPECT_TRUE(is_known(query_to(9)));
  cache->set_notices(false);
  EXPECT_FALSE(is_known(query_to(9)));
}

TEST_F(PathCacheTest, NegativeAnswerIsStoredForAShortTime) {
  ASSERT_TRUE(find(query_to(9), 1));
  refuse(request(), SaStatus::kNoRecords);
  EXPECT_EQ(cache->next_event()->error->code, Errc::kUnreachable);
  EXPECT_EQ(find(query_to(9)).error().code, Errc::kUnreachable);
  EXPECT_TRUE(sent().empty());
  now += 5s;
  EXPECT_TRUE(find(query_to(9)));
  EXPECT_EQ(sent().size(), 1U);
}

TEST_F(PathCacheTest, OtherErrorsAreNotStored) {
  ASSERT_TRUE(find(query_to(9)));
  refuse(request(), SaStatus::kNoResources);
  EXPECT_EQ(cache->next_event()->error->code, Errc::kRejected);
  EXPECT_TRUE(find(query_to(9)));
}

TEST_F(PathCacheTest, AnswerToAnotherQueryIsAnError) {
  ASSERT_TRUE(find(query_to(9)));
  answer(request(), path_to(10));
  EXPECT_EQ(cache->next_event()->error->code, Errc::kMalformed);
  EXPECT_EQ(cache->counters().malformed, 1U);
  EXPECT_EQ(cache->size(), 0U);
}

TEST_F(PathCacheTest, EachWaiterHasItsOwnDeadline) {
  ASSERT_TRUE(cache->find(query_to(9), 1, 2s, now));
  ASSERT_TRUE(cache->find(query_to(9), 2, 20s, now));
  run_for(2s);
  const auto first = cache->next_event();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->cookie, 1U);
  EXPECT_EQ(first->error->code, Errc::kTimedOut);
  EXPECT_EQ(first->waited, 2s);
  EXPECT_GE(first->tries, 1U);
  EXPECT_FALSE(cache->next_event());
  run_for(18s);
  EXPECT_EQ(cache->next_event()->cookie, 2U);
  EXPECT_FALSE(cache->next_event());
  EXPECT_EQ(cache->size(), 0U);
}

TEST_F(PathCacheTest, QueryIsCancelledWhenItsLastWaiterIsCancelled) {
  const auto a = std::get<PathTicket>(*find(query_to(9)));
  const auto b = std::get<PathTicket>(*find(query_to(9)));
  const auto packet = request();
  EXPECT_TRUE(cache->cancel(a, now));
  EXPECT_EQ(queries.outstanding(), 1U);
  EXPECT_TRUE(cache->cancel(b, now));
  EXPECT_FALSE(cache->cancel(b, now));
  EXPECT_EQ(queries.outstanding(), 0U);
  answer(packet, path_to(9));
  EXPECT_FALSE(cache->next_event());
}

TEST_F(PathCacheTest, LeastRecentlyUsedPathIsEvicted) {
  make_cache({.entries_max = 3});
  for (unsigned i = 10; i < 13; ++i) learn(i);
  EXPECT_TRUE(is_known(query_to(10)));
  learn(13);
  EXPECT_TRUE(is_known(query_to(10)));
  EXPECT_TRUE(is_known(query_to(12)));
  EXPECT_EQ(cache->counters().evicted, 1U);
  EXPECT_EQ(cache->size(), 3U);
  EXPECT_FALSE(is_known(query_to(11)));
}

TEST_F(PathCacheTest, LimitsAreCounted) {
  make_cache({.entries_max = 2, .waiters_max = 3});
  ASSERT_TRUE(find(query_to(10)));
  ASSERT_TRUE(find(query_to(11)));
  EXPECT_EQ(find(query_to(12)).error().code, Errc::kNoResources);
  EXPECT_EQ(cache->counters().limit_entries, 1U);
  ASSERT_TRUE(find(query_to(10)));
  EXPECT_EQ(find(query_to(10)).error().code, Errc::kNoResources);
  EXPECT_EQ(cache->counters().limit_waiters, 1U);
}

TEST_F(PathCacheTest, InvalidQueriesAreRefused) {
  PathQuery query = query_to(9);
  query.source = test_gid(6);
  EXPECT_EQ(find(query).error().code, Errc::kAddressNotFound);
  EXPECT_EQ(find({.source = test_gid(5)}).error().code, Errc::kInvalidArgument);
  query = query_to(9);
  query.numb_path = 128;
  EXPECT_EQ(find(query).error().code, Errc::kInvalidArgument);
}

// ---- changes ------------------------------------------------------------------------------------

// OFED's local_sa used the old paths until the answer to a new query came.
TEST_F(PathCacheTest, PortThatGoesDownForgetsAllPathsAtOnce) {
  learn(9);
  PortState down = port;
  down.active = false;
  change_port(down);
  EXPECT_EQ(cache->size(), 0U);
  EXPECT_EQ(cache->counters().port_down, 1U);
}

TEST_F(PathCacheTest, ChangeOfTheLidOrTheManagerForgetsAllPaths) {
  learn(9);
  PortState other = port;
  other.lid = {6};
  change_port(other);
  EXPECT_FALSE(is_known(query_to(9)));
  EXPECT_EQ(request().to.path.source_lid, Lid{6});
  EXPECT_EQ(cache->counters().lid_changed, 1U);
  other.sm_lid = {2};
  change_port(other);
  answer(request(), path_to(9));
  ASSERT_TRUE(is_known(query_to(9)));
  other.sm_lid = {3};
  change_port(other);
  EXPECT_FALSE(is_known(query_to(9)));
  EXPECT_EQ(cache->counters().manager_changed, 1U);
}

TEST_F(PathCacheTest, PkeyChangeForgetsOnlyPathsOfRemovedPartitions) {
  learn(9);
  PathQuery other = query_to(10);
  other.pkey = Pkey{0x8001};
  PathRecord path = path_to(10);
  path.pkey = Pkey{0x8001};
  learn(other, {path});
  PortState state = port;
  state.pkeys = {wire::kDefaultPkey};
  change_port(state);
  EXPECT_TRUE(is_known(query_to(9)));
  EXPECT_FALSE(is_known(other));
  EXPECT_EQ(cache->counters().pkeys_changed, 1U);
}

TEST_F(PathCacheTest, PathsOfAGidThatThePortHasLostAreForgotten) {
  PortState state = port;
  state.gids = {test_gid(5), test_gid(6)};
  change_port(state);
  learn(9);
  PathQuery other{.destination = test_gid(9), .source = test_gid(6)};
  PathRecord path = path_to(9);
  path.source_gid = test_gid(6);
  learn(other, {path});
  state.gids = {test_gid(5)};
  change_port(state);
  EXPECT_TRUE(is_known(query_to(9)));
  EXPECT_EQ(cache->size(), 1U);
  EXPECT_EQ(cache->counters().gids_changed, 1U);
}

TEST_F(PathCacheTest, GidOutOfServiceForgetsExactlyItsPaths) {
  learn(9);
  learn(10);
  cache->gid_out_of_service(test_gid(9), now);
  EXPECT_TRUE(is_known(query_to(10)));
  EXPECT_FALSE(is_known(query_to(9)));
  EXPECT_EQ(cache->counters().gid_out, 1U);
}

TEST_F(PathCacheTest, GidInServiceRemovesNegativeAnswersAndRefreshesPaths) {
  ASSERT_TRUE(find(query_to(9)));
  refuse(request(), SaStatus::kNoRecords);
  ASSERT_FALSE(find(query_to(9)));
  cache->gid_in_service(test_gid(9), now);
  ASSERT_TRUE(find(query_to(9)));
  answer(request(), path_to(9));
  ASSERT_TRUE(is_known(query_to(9)));
  // The report that the host had disappeared was lost.  The old path is not used any more.
  cache->gid_in_service(test_gid(9), now);
  EXPECT_FALSE(is_known(query_to(9)));
  answer(request(), path_to(9, {19}));
  EXPECT_EQ(lid_of(query_to(9)), Lid{19});
  EXPECT_EQ(cache->counters().refreshed, 1U);
}

TEST_F(PathCacheTest, RepathAndReregistrationAndFlushForgetAllPaths) {
  learn(9);
  cache->paths_changed(now);
  learn(9);
  cache->reregister(now);
  learn(9);
  cache->flush(now);
  EXPECT_EQ(cache->size(), 0U);
  EXPECT_EQ(cache->counters().repathed, 1U);
  EXPECT_EQ(cache->counters().reregistered, 1U);
  EXPECT_EQ(cache->counters().flushed, 1U);
}

TEST_F(PathCacheTest, QueryIsSentAgainAfterAChangeThatMayMakeItsAnswerStale) {
  ASSERT_TRUE(find(query_to(9), 1));
  const auto old_request = request();
  cache->gid_out_of_service(test_gid(9), now);
  answer(old_request, path_to(9));
  EXPECT_FALSE(cache->next_event());
  answer(request(), path_to(9, {19}));
  EXPECT_EQ(cache->next_event()->paths.at(0).destination_lid, Lid{19});
  EXPECT_TRUE(is_known(query_to(9)));
  EXPECT_EQ(cache->counters().stale, 1U);
}

// In OFED's local_sa, each notice invalidated the pending reply, so that no query succeeded while
// many notices arrived.
TEST_F(PathCacheTest, QueriesSucceedDuringAStormOfNotices) {
  ASSERT_TRUE(find(query_to(9), 1));
  unsigned queries_sent = 0;
  for (auto requests = sent(); !requests.empty(); requests = sent()) {
    ++queries_sent;
    cache->gid_in_service(test_gid(9), now);
    answer(requests.at(0), path_to(9));
  }
  EXPECT_EQ(queries_sent, 1U + PathCache::kStaleRetriesMax);
  EXPECT_EQ(cache->next_event()->paths.size(), 1U);
  EXPECT_EQ(cache->size(), 0U) << "a path that may be stale is not stored";
}

// OFED's local_sa processed notices in reverse order, so that it lost hosts that had returned.
TEST_F(PathCacheTest, OrderOfNoticesDoesNotMatter) {
  for (const bool out_first : {true, false}) {
    if (!is_known(query_to(9))) answer(request(), path_to(9));
    if (out_first) cache->gid_out_of_service(test_gid(9), now);
    cache->gid_in_service(test_gid(9), now);
    if (!out_first) cache->gid_out_of_service(test_gid(9), now);
    while (cache->next_event()) {
    }
    EXPECT_FALSE(is_known(query_to(9)));
    for (auto requests = sent(); !requests.empty(); requests = sent()) {
      answer(requests.at(0), path_to(9, {19}));
    }
    EXPECT_EQ(lid_of(query_to(9)), Lid{19});
    cache->flush(now);
  }
}

// ---- tables -------------------------------------------------------------------------------------

class PathTableTest : public PathCacheTest {
 protected:
  PathTableTest() { make_cache({.mode = PathCache::Mode::kTable}); }

  // Waits until the cache requests the table, and returns the request.
  mad::SendMad load() {
    const auto requests = run_for(500ms);
    EXPECT_EQ(requests.size(), 1U);
    EXPECT_EQ(header_in(requests.at(0)).mad.method, Method::kGetTable);
    EXPECT_EQ(record_in<PathRecord>(requests.at(0)).source_gid, test_gid(5));
    return requests.at(0);
  }
  void answer_table(const mad::SendMad& request, const std::vector<PathRecord>& paths) {
    answer(request, 0, paths, wire::SaAttribute::kPathRecord);
  }
};

TEST_F(PathTableTest, OneQueryLoadsAllPathsOfThePort) {
  std::vector<PathRecord> paths;
  for (unsigned i = 10; i < 1010; ++i) paths.push_back(path_to(i));
  paths.push_back(path_to(10, {2000}));
  answer_table(load(), paths);
  for (unsigned i = 11; i < 1010; ++i) {
    EXPECT_EQ(lid_of(query_to(i)), Lid{static_cast<std::uint16_t>(i)});
  }
  EXPECT_NE(lid_of(query_to(10)), lid_of(query_to(10))) << "the two paths are used in turn";
  EXPECT_TRUE(sent().empty());
  // The cache asks for paths that the table lacks.
  EXPECT_FALSE(is_known(query_to(2000)));
  EXPECT_EQ(header_in(request()).mad.method, Method::kGet);
  EXPECT_EQ(cache->counters().tables, 1U);
  EXPECT_EQ(cache->counters().table_paths, 1001U);
}

TEST_F(PathTableTest, AnswerHasNoMorePathsThanTheQueryAsksFor) {
  PathQuery query = query_to(9);
  query.numb_path = 2;
  ASSERT_TRUE(find(query_to(9)));
  ASSERT_TRUE(find(query));
  std::vector<PathRecord> paths;
  for (std::uint16_t lid = 90; lid < 94; ++lid) paths.push_back(path_to(9, {lid}));
  answer_table(load(), paths);
  EXPECT_EQ(cache->next_event()->paths.size(), 1U);
  EXPECT_EQ(cache->next_event()->paths.size(), 2U);
  for (const PathQuery& known_query : {query_to(9), query}) {
    std::set<Lid> lids;
    for (int i = 0; i < 4; ++i) {
      const auto known_paths = std::get<KnownPaths>(find(known_query).value());
      EXPECT_EQ(known_paths.all.size(), known_query.numb_path);
      EXPECT_EQ(std::ranges::count(known_paths.all, known_paths.path), 1);
      lids.insert(known_paths.path.destination_lid);
    }
    EXPECT_EQ(lids.size(), 4U) << "the paths are used in turn";
  }
}

// A refresh asks for one path, which has no alternate path.
TEST_F(PathTableTest, QueryForSeveralPathsIsSentAfterARefreshOfTheTablesPaths) {
  answer_table(load(), {path_to(9, {90}), path_to(9, {91})});
  PathQuery query = query_to(9);
  query.numb_path = 2;
  EXPECT_TRUE(is_known(query));
  cache->gid_in_service(test_gid(9), now);
  answer(request(), path_to(9, {90}));
  EXPECT_TRUE(is_known(query_to(9)));
  EXPECT_FALSE(is_known(query));
  const auto packet = request();
  EXPECT_EQ(header_in(packet).mad.method, Method::kGetTable);
  EXPECT_EQ(record_in<PathRecord>(packet).numb_path, 2);
}

// The SA chooses paths for services and QoS classes by rules that the records of a table do not
// show.
TEST_F(PathTableTest, QueryForAServiceOrAQosClassIsNotAnsweredByTheTable) {
  answer_table(load(), {path_to(9)});
  ASSERT_TRUE(is_known(query_to(9)));
  PathQuery for_service = query_to(9);
  for_service.service_id = ServiceId{7};
  PathQuery for_class = query_to(9);
  for_class.qos_class = 1;
  for (const auto& [query, mask] :
       {std::pair(for_service, std::uint64_t{PathRecord::Mask::kServiceId}),
        std::pair(for_class, std::uint64_t{PathRecord::Mask::kQosClass})}) {
    EXPECT_FALSE(is_known(query));
    const auto packet = request();
    EXPECT_EQ(header_in(packet).mad.method, Method::kGet);
    EXPECT_EQ(header_in(packet).component_mask & mask, mask);
    answer(packet, path_to(9, {19}));
    EXPECT_EQ(lid_of(query), Lid{19});
  }
  EXPECT_EQ(lid_of(query_to(9)), Lid{9});
}

TEST_F(PathTableTest, QueriesWaitForTheTable) {
  ASSERT_TRUE(find(query_to(9), 1));
  ASSERT_TRUE(find(query_to(10), 2));
  PathQuery query_with_pkey = query_to(9);
  query_with_pkey.pkey = wire::kDefaultPkey;
  ASSERT_TRUE(find(query_with_pkey, 3));
  answer_table(load(), {path_to(9)});
  std::set<std::uint64_t> cookies;
  while (const auto event = cache->next_event()) {
    EXPECT_EQ(event->paths.size(), 1U);
    cookies.insert(event->cookie);
  }
  EXPECT_EQ(cookies, (std::set<std::uint64_t>{1, 3}));
  const auto packet = request();
  EXPECT_EQ(record_in<PathRecord>(packet).destination_gid, test_gid(10));
  answer(packet, path_to(10));
  EXPECT_EQ(cache->next_event()->cookie, 2U);
}

TEST_F(PathTableTest, QueriesAreSentOneByOneAfterARefusedTable) {
  ASSERT_TRUE(find(query_to(9), 1));
  refuse(load(), SaStatus::kNoResources);
  answer(request(), path_to(9));
  EXPECT_EQ(cache->next_event()->paths.size(), 1U);
  EXPECT_EQ(cache->counters().table_failures, 1U);
}

TEST_F(PathTableTest, PathsThatChangeWhileTheTableLoadsAreNotStored) {
  const auto packet = load();
  cache->gid_out_of_service(test_gid(9), now);
  answer_table(packet, {path_to(9), path_to(10)});
  EXPECT_TRUE(is_known(query_to(10)));
  EXPECT_FALSE(is_known(query_to(9)));
}

TEST_F(PathTableTest, TableIsLoadedAgainIfAPkeyIsRemovedWhileItLoads) {
  const auto old_request = load();
  auto path = path_to(9);
  path.pkey = port.pkeys[0];
  PortState other = port;
  other.pkeys[0] = Pkey{};
  change_port(other);
  answer_table(old_request, {path});
  EXPECT_EQ(cache->size(), 0U);
  answer_table(load(), {path_to(8)});
  EXPECT_TRUE(is_known(query_to(8)));
}

TEST_F(PathTableTest, NewManagerIsAskedForItsTable) {
  answer_table(load(), {path_to(9)});
  PortState other = port;
  other.sm_lid = {2};
  change_port(other);
  EXPECT_FALSE(is_known(query_to(9)));
  EXPECT_EQ(load().to.path.destination_lid, Lid{2});
}

TEST_F(PathTableTest, TableLargerThanTheCacheIsTruncated) {
  make_cache({.mode = PathCache::Mode::kTable, .entries_max = 5});
  std::vector<PathRecord> paths;
  for (unsigned i = 10; i < 20; ++i) paths.push_back(path_to(i));
  answer_table(load(), paths);
  EXPECT_EQ(cache->size(), 5U);
  EXPECT_EQ(cache->counters().limit_table, 5U);
}

}  // namespace
}  // namespace verbena::sa
