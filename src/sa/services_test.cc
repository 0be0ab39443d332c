#include "sa/services.h"

#include <gtest/gtest.h>

#include <vector>

#include "sa/manual_sa_test.h"

namespace verbena::sa {
namespace {

using namespace std::chrono_literals;
using wire::Method;
using wire::SaStatus;
using wire::ServiceRecord;

class ServicesTest : public ManualSaTest {
 protected:
  ServicesTest() { services.set_port(port, PortChange::between({}, port), now); }

  Services services{queries, Random(3)};
  const ServiceRecord record{.service_id = {0x77},
                             .service_pkey = wire::kDefaultPkey,
                             .lease_seconds = 80,
                             .name = ServiceQuery::name_of("files")};

  void change_port(const PortState& state) {
    const auto change = PortChange::between(port, state);
    port = state;
    queries.set_port({}, state, now);
    services.set_port(state, change, now);
  }
  void on_query_result(const QueryResult& result) override { services.receive(result, now); }
  void on_timer() override { services.on_timer(now); }
  Time deadline() override { return services.deadline(); }

  ServiceTicket become_registered() {
    const auto ticket = *services.add(record, 5, now);
    answer(request(), record);
    EXPECT_EQ(services.next_event()->what, ServiceEvent::What::kRegistered);
    return ticket;
  }
};

TEST_F(ServicesTest, RegistrationIsRenewedBeforeItsLeaseEnds) {
  const auto ticket = *services.add(record, 5, now);
  const auto first = request();
  EXPECT_EQ(header_in(first).mad.method, Method::kSet);
  EXPECT_EQ(record_in<ServiceRecord>(first).service_gid, test_gid(5)) << "the GID of the port";
  answer(first, record);
  const auto event = services.next_event();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->ticket, ticket);
  EXPECT_EQ(event->cookie, 5U);
  EXPECT_EQ(event->what, ServiceEvent::What::kRegistered);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(run_for(29s).empty());
    const auto renewal = run_for(11s);
    ASSERT_FALSE(renewal.empty());
    answer(renewal[0], record);
  }
  EXPECT_FALSE(services.next_event());
  EXPECT_EQ(services.counters().renewed, 3U);
}

TEST_F(ServicesTest, LeaseForeverNeedsNoRenewal) {
  ServiceRecord forever = record;
  forever.lease_seconds = ServiceRecord::kLeaseForever;
  ASSERT_TRUE(services.add(forever, 0, now));
  answer(request(), forever);
  EXPECT_TRUE(run_for(24h).empty());
}

TEST_F(ServicesTest, RemovedServiceIsDeleted) {
  const auto ticket = become_registered();
  EXPECT_TRUE(services.remove(ticket, now));
  EXPECT_FALSE(services.remove(ticket, now));
  const auto deleted = request();
  EXPECT_EQ(header_in(deleted).mad.method, Method::kDelete);
  answer(deleted, record);
  EXPECT_EQ(services.size(), 0U);
  EXPECT_EQ(services.deadline(), kNever);
}

TEST_F(ServicesTest, ServiceThatIsRemovedBeforeItsRegistrationEndsIsDeletedAfterwards) {
  const auto ticket = *services.add(record, 0, now);
  const auto first = request();
  EXPECT_TRUE(services.remove(ticket, now));
  EXPECT_TRUE(sent().empty());
  answer(first, record);
  EXPECT_EQ(header_in(request()).mad.method, Method::kDelete);
  EXPECT_FALSE(services.next_event());
}

TEST_F(ServicesTest, RefusedRegistrationFails) {
  ASSERT_TRUE(services.add(record, 0, now));
  refuse(request(), SaStatus::kRequestDenied);
  EXPECT_EQ(services.next_event()->error->code, Errc::kRejected);
  EXPECT_EQ(services.size(), 0U);
  EXPECT_TRUE(sent().empty());
}

TEST_F(ServicesTest, ServiceIsSentAgainToANewManagerAndAfterAReregistration) {
  become_registered();
  PortState other = port;
  other.sm_lid = {2};
  change_port(other);
  answer(request(), record);
  services.reregister(now);
  const auto before = request();
  services.reregister(now);
  answer(before, record);
  answer(request(), record);
  EXPECT_TRUE(sent().empty());
  EXPECT_FALSE(services.next_event());
}

TEST_F(ServicesTest, RenewalThatIsRefusedTooOftenEndsTheRegistration) {
  become_registered();
  auto renewal = run_for(40s);
  unsigned refusals = 0;
  while (!renewal.empty() && header_in(renewal.back()).mad.method == Method::kSet) {
    refuse(renewal.back(), SaStatus::kNoResources);
    ++refusals;
    renewal = run_for(Services::kRefusalPause);
  }
  EXPECT_EQ(refusals, Services::kRefusalsMax);
  EXPECT_EQ(services.next_event()->what, ServiceEvent::What::kFailed);
}

TEST_F(ServicesTest, QueryIsAnsweredWithAllRecords) {
  const auto ticket = *services.find({.name = ServiceQuery::name_of("files")}, 9, 10s, now);
  const auto packet = request();
  EXPECT_EQ(header_in(packet).mad.method, Method::kGetTable);
  EXPECT_EQ(header_in(packet).component_mask, ServiceRecord::Mask::kName);
  answer(packet, 0, std::vector{record, record}, wire::SaAttribute::kServiceRecord);
  const auto event = services.next_event();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->ticket, ticket);
  EXPECT_EQ(event->what, ServiceEvent::What::kFound);
  EXPECT_EQ(event->records, (std::vector{record, record}));
}

TEST_F(ServicesTest, NoRecordsAreAnEmptyAnswerAndSilenceIsAnError) {
  ASSERT_TRUE(services.find({.service_id = ServiceId{1}}, 0, 10s, now));
  refuse(request(), SaStatus::kNoRecords);
  auto event = services.next_event();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->what, ServiceEvent::What::kFound);
  EXPECT_TRUE(event->records.empty());
  ASSERT_TRUE(services.find({.service_id = ServiceId{1}}, 0, 10s, now));
  run_for(10s);
  event = services.next_event();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->error->code, Errc::kTimedOut);
}

TEST_F(ServicesTest, QueryCanBeCancelled) {
  const auto ticket = *services.find({.service_id = ServiceId{1}}, 0, 10s, now);
  EXPECT_TRUE(services.remove(ticket, now));
  EXPECT_EQ(queries.outstanding(), 0U);
  run_for(20s);
  EXPECT_FALSE(services.next_event());
}

TEST_F(ServicesTest, ServicesHaveALimit) {
  for (std::size_t i = 0; i < Services::kServicesMax; ++i) {
    ASSERT_TRUE(services.add(record, 0, now));
  }
  EXPECT_FALSE(services.add(record, 0, now));
  EXPECT_FALSE(services.find({}, 0, 1s, now));
  EXPECT_EQ(services.counters().limit_services, 2U);
}

}  // namespace
}  // namespace verbena::sa
