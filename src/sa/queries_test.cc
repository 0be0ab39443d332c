#include "sa/queries.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "sa/manual_sa_test.h"
#include "wire/bth.h"

namespace verbena::sa {
namespace {

using namespace std::chrono_literals;
using wire::Method;
using wire::PathRecord;
using wire::SaAttribute;
using wire::SaHeader;
using wire::SaStatus;

class QueriesTest : public ManualSaTest {
 protected:
  QueriesTest() { test_reads_results = true; }

  static Query path_query(std::uint8_t destination = 9) {
    return Query::of(Method::kGet, SaAttribute::kPathRecord, PathRecord::Mask::kDestinationGid,
                     PathRecord{.destination_gid = test_gid(destination)});
  }
  QueryId ask(std::uint64_t cookie = 0, const Query& query = path_query()) {
    return *queries.ask(query, QueryOwner::kPaths, cookie, now);
  }
  using ManualSaTest::answer;
  template <class Record = PathRecord>
  void answer(const mad::SendMad& request, std::uint16_t status, const Record& record = {},
              SaAttribute attribute = SaAttribute::kPathRecord) {
    answer(request, status, std::vector{record}, attribute);
  }
};

TEST_F(QueriesTest, RequestGoesToTheManagerAndItsAnswerComesBackOnce) {
  const QueryId id = ask(77);
  const auto requests = sent();
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_EQ(requests[0].to.path.destination_lid, Lid{1});
  EXPECT_EQ(requests[0].to.path.source_lid, Lid{5});
  EXPECT_EQ(requests[0].to.path.service_level, 3);
  EXPECT_EQ(requests[0].to.pkey_index, 1) << "the index of the default P_Key";
  EXPECT_EQ(requests[0].to.remote_qpn, wire::kGsiQpn);
  const SaHeader header = header_in(requests[0]);
  EXPECT_EQ(header.mad.class_version, 2);
  EXPECT_EQ(header.mad.method, Method::kGet);
  EXPECT_EQ(header.component_mask, PathRecord::Mask::kDestinationGid);
  now += 3ms;
  answer(requests[0], 0, PathRecord{.destination_lid = {9}});
  answer(requests[0], 0, PathRecord{.destination_lid = {10}});
  const auto result = queries.next_result();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->id, id);
  EXPECT_EQ(result->cookie, 77U);
  EXPECT_EQ(result->outcome, QueryResult::Outcome::kAnswered);
  EXPECT_EQ(result->waited, 3ms);
  EXPECT_EQ(result->tries, 1U);
  EXPECT_EQ(result->records<PathRecord>(1)->at(0).destination_lid, Lid{9});
  EXPECT_FALSE(queries.next_result());
  EXPECT_EQ(queries.deadline(), kNever);
  EXPECT_EQ(mads.deadline(), kNever);
}

TEST_F(QueriesTest, ErrorStatusEndsTheQuery) {
  ask();
  answer(sent().at(0), wire::mad_status_of(SaStatus::kNoRecords));
  const auto result = queries.next_result();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->outcome, QueryResult::Outcome::kRefused);
  EXPECT_EQ(result->sa_status(), SaStatus::kNoRecords);
  EXPECT_EQ(result->error().code, Errc::kUnreachable);
  EXPECT_EQ(to_errno(result->error()), EHOSTUNREACH) << "a MAD status is not an errno";
}

TEST_F(QueriesTest, TotalDeadlineEndsTheQueryAndReportsTimeAndTries) {
  Query query = path_query();
  query.give_up_after = 10s;
  ask(0, query);
  const Time began = now;
  const auto requests = run_until(now + 60s);
  const auto result = queries.next_result();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->outcome, QueryResult::Outcome::kTimedOut);
  EXPECT_EQ(result->waited, 10s);
  EXPECT_EQ(result->tries, requests.size());
  EXPECT_EQ(result->error().code, Errc::kTimedOut);
  EXPECT_EQ(to_errno(result->error()), ETIMEDOUT);
  EXPECT_FALSE(queries.next_result());
  EXPECT_GT(now, began);
  EXPECT_EQ(queries.outstanding(), 0U);
}

TEST_F(QueriesTest, LimitOfTriesEndsTheQueryEarlier) {
  Query query = path_query();
  query.tries_max = 3;
  ask(0, query);
  EXPECT_EQ(run_until(now + 29s).size(), 3U);
  const auto result = queries.next_result();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->tries, 3U);
}

// Linux treats BUSY as an error of the request.
TEST_F(QueriesTest, BusyAnswerDelaysTheNextTry) {
  Query query = path_query();
  query.tries_max = 1;
  ask(0, query);
  const auto first = sent().at(0);
  answer(first, wire::mad_status::kBusy);
  EXPECT_FALSE(queries.next_result());
  EXPECT_TRUE(sent().empty()) << "a busy manager is not asked at once";
  EXPECT_GE(queries.deadline(), now + Queries::kFirstInterval * 3 / 4);
  const auto repeated = run_until(now + Queries::kFirstInterval * 5 / 4);
  ASSERT_EQ(repeated.size(), 1U);
  EXPECT_EQ(repeated[0], first);
  answer(repeated[0], 0);
  EXPECT_EQ(queries.next_result()->outcome, QueryResult::Outcome::kAnswered);
  EXPECT_EQ(queries.counters().busy, 1U);
}

TEST_F(QueriesTest, TriesThatAreAnsweredWithBusyDoNotCount) {
  Query query = path_query();
  query.tries_max = 2;
  ask(0, query);
  answer(request(), wire::mad_status::kBusy);
  EXPECT_EQ(run_for(25s).size(), 2U);
  const auto result = queries.next_result();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->tries, 3U);
}

// If a manager has died, its node refuses queries until another manager takes over.
TEST_F(QueriesTest, RefusalsOfANodeWithoutAnSaDoNotEndTheQuery) {
  Query query = path_query();
  query.tries_max = 4;
  ask(0, query);
  mad::SendMad last = request();
  for (const auto status : {wire::mad_status::kMethodAttributeNotSupported,
                            wire::mad_status::kMethodNotSupported, wire::mad_status::kBadVersion}) {
    answer(last, status);
    EXPECT_FALSE(queries.next_result());
    EXPECT_TRUE(sent().empty()) << "the query is not sent again at once";
    last = run_until(queries.deadline()).at(0);
  }
  EXPECT_EQ(queries.counters().unserved, 3U);
  answer(last, 0);
  EXPECT_EQ(queries.next_result()->outcome, QueryResult::Outcome::kAnswered);
}

// The SA answers other queries, so it refuses this query because it does not know such queries.
TEST_F(QueriesTest, UnknownQueryEndsAtItsNextRefusalIfTheSaAnswersOtherQueries) {
  for (const auto status : {wire::mad_status::kMethodAttributeNotSupported,
                            wire::mad_status::kMethodNotSupported, wire::mad_status::kBadVersion}) {
    ask();
    answer(request(), status);
    EXPECT_TRUE(queries.was_refused_since_last_call());
    EXPECT_FALSE(queries.next_result());
    ask(7);
    answer(request(), wire::mad_status_of(SaStatus::kNoRecords));  // only an SA gives this answer
    EXPECT_EQ(queries.next_result()->cookie, 7U);
    EXPECT_FALSE(queries.next_result()) << "the SA may have started after the refusal";
    const Time began = now;
    answer(run_until(queries.deadline()).at(0), status);
    const auto result = queries.next_result();
    ASSERT_TRUE(result);
    EXPECT_EQ(result->outcome, QueryResult::Outcome::kRefused);
    EXPECT_EQ(result->error().code, Errc::kNotSupported);
    EXPECT_EQ(result->mad_status, status);
    EXPECT_EQ(to_errno(result->error()), EOPNOTSUPP);
    EXPECT_LE(now - began, 2s);
    EXPECT_FALSE(queries.was_refused_since_last_call());
  }
  EXPECT_EQ(queries.counters().unsupported, 3U);
}

TEST_F(QueriesTest, AnswersFromBeforeTheRefusalsDoNotProveThatTheSaLives) {
  ask(7);
  answer(request(), 0);
  (void)queries.next_result();
  ask();
  mad::SendMad last = request();
  for (int i = 0; i < 10; ++i) {
    answer(last, wire::mad_status::kMethodAttributeNotSupported);
    EXPECT_FALSE(queries.next_result());
    last = run_until(queries.deadline()).at(0);
  }
  answer(last, 0);
  EXPECT_EQ(queries.next_result()->outcome, QueryResult::Outcome::kAnswered);
}

// The node of the old manager has refused the query.  The first refusal of the new manager does not
// end the query.
TEST_F(QueriesTest, RefusalsOfTwoManagersAreNotCountedTogether) {
  ask();
  answer(request(), wire::mad_status::kMethodAttributeNotSupported);
  PortState other = port;
  other.sm_lid = {2};
  queries.set_port({}, other, now);
  const auto resent = request();
  ask(7);
  answer(request(), 0);
  EXPECT_EQ(queries.next_result()->cookie, 7U);
  answer(resent, wire::mad_status::kMethodAttributeNotSupported);
  EXPECT_FALSE(queries.next_result());
}

TEST_F(QueriesTest, RefusalsOfANodeWithoutAnSaCountAsTries) {
  Query query = path_query();
  query.tries_max = 1;
  ask(0, query);
  answer(request(), wire::mad_status::kMethodAttributeNotSupported);
  const auto result = queries.next_result();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->outcome, QueryResult::Outcome::kTimedOut);
}

TEST_F(QueriesTest, SixteenQueriesAreOutstandingAndOthersWaitInOrder) {
  for (std::uint64_t i = 0; i < 40; ++i) ask(i);
  auto requests = sent();
  EXPECT_EQ(requests.size(), Queries::kOutstandingMax);
  EXPECT_EQ(queries.waiting(), 24U);
  std::uint64_t expected = 0;
  while (!requests.empty()) {
    for (const auto& request : requests) answer(request, 0);
    requests = sent();
    EXPECT_LE(requests.size(), Queries::kOutstandingMax);
    while (const auto result = queries.next_result()) EXPECT_EQ(result->cookie, expected++);
  }
  EXPECT_EQ(expected, 40U);
}

TEST_F(QueriesTest, QueueHasALimitAndCountsRefusals) {
  queries.set_port({}, {}, now);
  for (std::size_t i = 0; i < Queries::kWaitingMax; ++i) ask();
  const auto refused = queries.ask(path_query(), QueryOwner::kPaths, 0, now);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kNoResources);
  EXPECT_EQ(queries.counters().limit_waiting, 1U);
}

TEST_F(QueriesTest, CancelledQueryEndsWithoutAResultAndAnotherIsSent) {
  std::vector<QueryId> ids;
  for (std::uint64_t i = 0; i < 17; ++i) ids.push_back(ask(i));
  const auto requests = sent();
  EXPECT_TRUE(queries.cancel(ids[0], now));
  EXPECT_FALSE(queries.cancel(ids[0], now));
  EXPECT_EQ(sent().size(), 1U) << "the query that waited is sent";
  answer(requests[0], 0);
  EXPECT_FALSE(queries.next_result());
  // A result that next_result() has not returned yet is dropped.
  answer(requests[1], 0);
  EXPECT_TRUE(queries.cancel(ids[1], now));
  EXPECT_FALSE(queries.next_result());
}

TEST_F(QueriesTest, QueriesWithoutAManagerWaitForOne) {
  queries.set_port({}, PortState{}, now);
  ask();
  EXPECT_TRUE(run_until(now + 5s).empty());
  queries.set_port({}, port, now);
  EXPECT_EQ(sent().size(), 1U);
}

TEST_F(QueriesTest, QueriesAreSentAgainIfThePortGetsMoreLids) {
  ask();
  EXPECT_EQ(sent().size(), 1U);
  PortState other = port;
  other.lmc = 1;
  queries.set_port({}, other, now);
  EXPECT_EQ(sent().size(), 1U);
}

TEST_F(QueriesTest, QueriesAreSentToTheNewManagerAndTheOldManagerCannotAnswer) {
  ask();
  const auto old_request = sent().at(0);
  PortState other = port;
  other.sm_lid = {2};
  queries.set_port({}, other, now);
  const auto resent = sent();
  ASSERT_EQ(resent.size(), 1U);
  EXPECT_EQ(resent[0].to.path.destination_lid, Lid{2});
  EXPECT_NE(header_in(resent[0]).mad.transaction_id, header_in(old_request).mad.transaction_id);
  answer(old_request, 0);
  EXPECT_FALSE(queries.next_result());
  answer(resent[0], 0);
  EXPECT_TRUE(queries.next_result());
  EXPECT_EQ(queries.counters().sent_to_new_manager, 1U);
}

// No other implementation follows a redirection.
TEST_F(QueriesTest, RedirectionsAreFollowedUpToALimit) {
  ask();
  wire::ClassPortInfo info{.redirect_sl = 4,
                           .redirect_lid = {20},
                           .redirect_pkey = wire::kDefaultPkey,
                           .redirect_qpn = {7},
                           .redirect_qkey = wire::kGsiQkey};
  for (unsigned i = 0; i < Queries::kRedirectsMax; ++i) {
    answer(sent().at(0), wire::mad_status::kRedirect, info, SaAttribute::kClassPortInfo);
    info.redirect_lid.value++;
  }
  const auto last = sent();
  ASSERT_EQ(last.size(), 1U);
  EXPECT_EQ(last[0].to.path.destination_lid, Lid{20 + Queries::kRedirectsMax - 1});
  EXPECT_EQ(last[0].to.path.service_level, 4);
  EXPECT_EQ(last[0].to.remote_qpn, Qpn{7});
  answer(last[0], wire::mad_status::kRedirect, info, SaAttribute::kClassPortInfo);
  const auto result = queries.next_result();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->outcome, QueryResult::Outcome::kRefused);
  EXPECT_EQ(result->mad_status, wire::mad_status::kRedirect);
}

TEST_F(QueriesTest, RedirectionWithoutALidIsAnError) {
  ask();
  answer(sent().at(0), wire::mad_status::kRedirect, wire::ClassPortInfo{});
  ASSERT_TRUE(queries.next_result());
}

TEST_F(QueriesTest, AnswerOfAnotherAttributeDoesNotEndTheQuery) {
  ask();
  const auto request = sent().at(0);
  answer(request, 0, wire::ServiceRecord{}, SaAttribute::kServiceRecord);
  EXPECT_FALSE(queries.next_result());
  EXPECT_EQ(queries.counters().mismatched, 1U);
  ASSERT_EQ(run_until(now + Queries::kFirstInterval * 5 / 4).size(), 1U);
  answer(request, 0);
  EXPECT_TRUE(queries.next_result());
}

// A manager that needs 3 s for each answer gets few repeats when the client has adapted.
TEST_F(QueriesTest, IntervalsAdaptToASlowManager) {
  for (std::uint64_t i = 0; i < 160; ++i) ask(i);
  std::set<std::uint64_t> known;
  std::vector<std::pair<Time, mad::SendMad>> pending;
  std::size_t ended = 0;
  while (ended < 160) {
    for (const auto& request : sent()) {
      if (known.insert(header_in(request).mad.transaction_id).second) {
        pending.emplace_back(now + 3s, request);
      }
    }
    Time next = std::min(mads.deadline(), queries.deadline());
    if (!pending.empty()) next = std::min(next, pending.front().first);
    ASSERT_NE(next, kNever);
    now = std::max(now, next);
    while (!pending.empty() && pending.front().first <= now) {
      const auto request = pending.front().second;
      pending.erase(pending.begin());
      answer(request, 0);
    }
    mads.on_timer(now);
    pump();
    queries.on_timer(now);
    while (const auto result = queries.next_result()) {
      EXPECT_EQ(result->outcome, QueryResult::Outcome::kAnswered);
      ++ended;
    }
  }
  EXPECT_LE(queries.counters().sent, 2 * 160U);
}

TEST_F(QueriesTest, TableArrivesCompleteAndItsRecordsHaveALimit) {
  ask(0, Query::of(Method::kGetTable, SaAttribute::kPathRecord, 0, PathRecord{}));
  const auto request = sent().at(0);
  constexpr std::size_t kPaths = 100;
  std::vector<PathRecord> paths(kPaths);
  for (std::size_t i = 0; i < kPaths; ++i) {
    paths[i].destination_lid.value = static_cast<std::uint16_t>(i + 1);
  }
  answer(request, 0, paths, SaAttribute::kPathRecord);
  const auto result = queries.next_result();
  ASSERT_TRUE(result);
  const auto records = result->records<PathRecord>(kPaths);
  ASSERT_TRUE(records);
  ASSERT_EQ(records->size(), kPaths);
  EXPECT_EQ(records->back().destination_lid, Lid{kPaths});
  EXPECT_EQ(result->records<PathRecord>(kPaths - 1).error().code, Errc::kNoResources);
}

}  // namespace
}  // namespace verbena::sa
