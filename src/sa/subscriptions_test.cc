#include "sa/subscriptions.h"

#include <gtest/gtest.h>

#include <vector>

#include "sa/manual_sa_test.h"

namespace verbena::sa {
namespace {

using namespace std::chrono_literals;
using wire::InformInfo;
using wire::SaNotice;
using wire::TrapNumber;

class SubscriptionsTest : public ManualSaTest {
 protected:
  SubscriptionsTest() { subscriptions.set_port(port, PortChange::between({}, port), now); }

  Subscriptions subscriptions{queries, mads, agent, Random(3)};

  void change_port(const PortState& state) {
    const auto change = PortChange::between(port, state);
    port = state;
    queries.set_port({}, state, now);
    subscriptions.set_port(state, change, now);
  }
  void on_query_result(const QueryResult& result) override { subscriptions.receive(result, now); }
  void on_timer() override { subscriptions.on_timer(now); }
  Time deadline() override { return subscriptions.deadline(); }

  SubscriptionId subscribe(std::uint64_t cookie = 0) {
    return *subscriptions.subscribe(TrapNumber::kGidInService, cookie, now);
  }
  static InformInfo inform_in(const mad::SendMad& packet) { return record_in<InformInfo>(packet); }

  std::optional<SaNotice> report(std::uint64_t transaction, const Gid& gid,
                                 TrapNumber trap = TrapNumber::kGidInService,
                                 std::uint16_t status = 0) {
    SaNotice notice{.notice = {.trap_number = trap}};
    notice.notice.details = wire::encode(wire::GidChange{.gid = gid});
    mad::ManagementPort::Message message{.agent = agent, .mad = std::vector<std::byte>(256)};
    message.from.path.destination_lid = {1};
    wire::encode_to(message.mad,
                    wire::SaHeader{.mad = {.mgmt_class = wire::MgmtClass::kSubnetAdministration,
                                           .class_version = 2,
                                           .method = wire::Method::kReport,
                                           .status = status,
                                           .transaction_id = transaction,
                                           .attribute_id = 2}});
    wire::encode_to(std::span(message.mad).subspan(wire::kSaHeaderBytes), notice);
    return subscriptions.receive_report(message, now);
  }
};

// The OFED stack of RHEL 4 (notice.c) counted subscribers for each trap and port as well.
TEST_F(SubscriptionsTest, FirstUserSubscribesAtTheSaAndLastUserUnsubscribes) {
  const SubscriptionId a = subscribe();
  const auto registration = request();
  EXPECT_TRUE(inform_in(registration).subscribe);
  EXPECT_EQ(inform_in(registration).trap_number, 64);
  EXPECT_EQ(inform_in(registration).lid_begin, InformInfo::kAnyLid);
  EXPECT_FALSE(subscriptions.is_registered(TrapNumber::kGidInService));
  answer(registration, inform_in(registration));
  EXPECT_TRUE(subscriptions.is_registered(TrapNumber::kGidInService));
  const SubscriptionId b = subscribe();
  EXPECT_TRUE(sent().empty());
  EXPECT_TRUE(subscriptions.unsubscribe(a, now));
  EXPECT_TRUE(sent().empty());
  EXPECT_TRUE(subscriptions.unsubscribe(b, now));
  EXPECT_FALSE(subscriptions.unsubscribe(b, now));
  const auto unsubscription = request();
  EXPECT_FALSE(inform_in(unsubscription).subscribe);
  answer(unsubscription, inform_in(unsubscription));
  EXPECT_FALSE(subscriptions.is_registered(TrapNumber::kGidInService));
}

TEST_F(SubscriptionsTest, ReportsAreAnsweredAndDeliveredInOrderToEachSubscriber) {
  subscribe(1);
  subscribe(2);
  sent();
  ASSERT_TRUE(report(100, test_gid(10)));
  ASSERT_TRUE(report(101, test_gid(11)));
  const auto responses = sent();
  ASSERT_EQ(responses.size(), 2U);
  EXPECT_EQ(header_in(responses[0]).mad.method, wire::Method::kReport);
  EXPECT_TRUE(header_in(responses[0]).mad.response);
  EXPECT_EQ(header_in(responses[0]).mad.transaction_id, 100U);
  for (const auto gid : {test_gid(10), test_gid(11)}) {
    for (const std::uint64_t cookie : {1U, 2U}) {
      const auto event = subscriptions.next_event();
      ASSERT_TRUE(event);
      EXPECT_EQ(event->cookie, cookie);
      EXPECT_EQ(wire::decode_exact<wire::GidChange>(event->notice.notice.details).gid, gid);
    }
  }
}

TEST_F(SubscriptionsTest, RepeatedReportIsAnsweredAgainAndDeliveredOnce) {
  subscribe();
  sent();
  EXPECT_TRUE(report(100, test_gid(10)));
  EXPECT_FALSE(report(100, test_gid(10)));
  EXPECT_EQ(sent().size(), 2U);
  EXPECT_TRUE(subscriptions.next_event());
  EXPECT_FALSE(subscriptions.next_event());
  EXPECT_EQ(subscriptions.counters().repeated, 1U);
}

// OpenSM begins with the same transaction ID at each start.
TEST_F(SubscriptionsTest, ReportOfARestartedManagerIsNotARepeat) {
  subscribe();
  EXPECT_TRUE(report(7, test_gid(1)));
  subscriptions.reregister(now);
  EXPECT_TRUE(report(7, test_gid(2)));
  EXPECT_FALSE(report(7, test_gid(2)));
  EXPECT_EQ(subscriptions.counters().repeated, 1U);
}

TEST_F(SubscriptionsTest, SubscriptionIsSentAgainToANewManagerAndAfterAReregistration) {
  subscribe();
  answer(request(), InformInfo{});
  PortState other = port;
  other.sm_lid = {2};
  change_port(other);
  EXPECT_FALSE(subscriptions.is_registered(TrapNumber::kGidInService));
  answer(request(), InformInfo{});
  EXPECT_TRUE(subscriptions.is_registered(TrapNumber::kGidInService));
  subscriptions.reregister(now);
  const auto first_request = request();
  subscriptions.reregister(now);
  answer(first_request, InformInfo{});
  EXPECT_FALSE(subscriptions.is_registered(TrapNumber::kGidInService))
      << "the SA may have forgotten it";
  answer(request(), InformInfo{});
  EXPECT_TRUE(subscriptions.is_registered(TrapNumber::kGidInService));
}

TEST_F(SubscriptionsTest, RefusedSubscriptionIsTriedAgainLater) {
  subscribe();
  refuse(request(), wire::SaStatus::kNoResources);
  EXPECT_TRUE(run_for(Subscriptions::kRetryPause - 1ms).empty());
  EXPECT_FALSE(run_for(Subscriptions::kRetryPause + 1ms).empty());
}

TEST_F(SubscriptionsTest, SilentSubscriberGetsNoEvents) {
  ASSERT_TRUE(subscriptions.subscribe_silently(TrapNumber::kGidInService, now));
  EXPECT_TRUE(report(1, test_gid(10)));
  EXPECT_FALSE(subscriptions.next_event());
}

TEST_F(SubscriptionsTest, LimitsAreCounted) {
  const SubscriptionId id = subscribe();
  for (std::size_t i = 0; i < Subscriptions::kEventsMax + 5; ++i) report(i, test_gid(10));
  EXPECT_EQ(subscriptions.counters().limit_events, 5U);
  subscriptions.unsubscribe(id, now);
  EXPECT_FALSE(subscriptions.next_event());
  for (std::size_t i = 0; i < Subscriptions::kSubscribersMax; ++i) subscribe();
  EXPECT_FALSE(subscriptions.subscribe(TrapNumber::kRepath, 0, now));
  EXPECT_EQ(subscriptions.counters().limit_subscribers, 1U);
}

// BUSY is a status of responses only.  If a report with BUSY were dropped, it would be lost.
TEST_F(SubscriptionsTest, ReportWithTheBusyStatusIsDeliveredAndAnswered) {
  subscribe();
  sent();
  EXPECT_TRUE(report(1, test_gid(10), TrapNumber::kGidInService, wire::mad_status::kBusy));
  EXPECT_TRUE(subscriptions.next_event());
  EXPECT_EQ(header_in(request()).mad.status, 0) << "the status of the response";
}

TEST_F(SubscriptionsTest, MadThatIsNotAReportIsCountedAsMalformed) {
  mad::ManagementPort::Message message{.mad = std::vector<std::byte>(256)};
  EXPECT_FALSE(subscriptions.receive_report(message, now));
  EXPECT_EQ(subscriptions.counters().malformed, 1U);
  EXPECT_TRUE(sent().empty());
}

}  // namespace
}  // namespace verbena::sa
