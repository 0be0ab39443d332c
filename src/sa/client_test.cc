#include "sa/client.h"

#include <gtest/gtest.h>

#include "sa/net_test.h"
#include "wire/bth.h"

namespace verbena::sa {
namespace {

using namespace std::chrono_literals;
using wire::Method;
using wire::SaAttribute;
using wire::TrapNumber;

PathQuery query_to(unsigned from, unsigned to) {
  return {.destination = Net::gid(to), .source = Net::gid(from)};
}

// Returns the LID of a path that is known.  If the path is not known, begins a query for it, and
// returns nothing.
std::optional<Lid> cached_lid(Net& net, unsigned from, unsigned to) {
  const auto found = net.client(from).paths().find(query_to(from, to), 0, 10s, net.world.now());
  net.pump();
  if (!found || !std::holds_alternative<KnownPaths>(*found)) return std::nullopt;
  return std::get<KnownPaths>(*found).path.destination_lid;
}

std::uint64_t path_requests(Net& net) {
  return net.master().requests[{Method::kGet, SaAttribute::kPathRecord}] +
         net.master().requests[{Method::kGetTable, SaAttribute::kPathRecord}];
}

TEST(ClientTest, ReportsOfTheManagerKeepTheCacheRight) {
  Net net(1, 3, {});
  net.run_for(1s);
  EXPECT_EQ(net.master().subscriptions.size(), 3U * 5);
  cached_lid(net, 0, 1);
  cached_lid(net, 0, 2);
  net.run_for(1s);
  EXPECT_EQ(cached_lid(net, 0, 1), Lid{101});
  EXPECT_EQ(net.client(0).paths().age(), PathCache::Config{}.age_with_notices);
  net.change_lid(1, {300});
  net.run_for(1s);
  EXPECT_EQ(cached_lid(net, 0, 2), Lid{102}) << "only the path that has changed is forgotten";
  cached_lid(net, 0, 1);
  net.run_for(1s);
  EXPECT_EQ(cached_lid(net, 0, 1), Lid{300});
}

TEST(ClientTest, KnownPathsNeedNoManager) {
  Net net(1, 3, {});
  net.run_for(1s);
  cached_lid(net, 0, 1);
  net.run_for(1s);
  net.master().die();
  EXPECT_TRUE(cached_lid(net, 0, 1));
  EXPECT_FALSE(cached_lid(net, 0, 2));
  net.host(0).events.clear();
  net.run_for(11s);
  ASSERT_EQ(net.host(0).events.size(), 1U);
  const auto& failure = std::get<PathEvent>(net.host(0).events[0]);
  EXPECT_EQ(failure.error->code, Errc::kTimedOut);
  EXPECT_STREQ(failure.error->context, "the subnet manager did not answer");
}

TEST(ClientTest, StandbyManagerGetsMembershipsSubscriptionsAndServicesAgain) {
  Net net(1, 3, {});
  const Gid mgid{.bytes = {std::byte{0xff}, std::byte{0x12}}};
  for (unsigned i = 0; i < 3; ++i) {
    ASSERT_TRUE(net.client(i).memberships().join({.mgid = mgid}, i, net.world.now()));
    ASSERT_TRUE(net.client(i).services().add({.service_id = {i + 1}, .lease_seconds = 600}, i,
                                             net.world.now()));
  }
  net.run_for(1s);
  EXPECT_EQ(net.master().members[mgid].size(), 3U);
  for (unsigned i = 0; i < 3; ++i) net.host(i).events.clear();
  net.change_master(1);
  net.run_for(1s);
  EXPECT_EQ(net.master().members[mgid].size(), 3U);
  EXPECT_EQ(net.master().subscriptions.size(), 3U * 5);
  EXPECT_EQ(net.master().services.size(), 3U);
  for (unsigned i = 0; i < 3; ++i) {
    for (const Event& event : net.host(i).events) {
      const auto* member = std::get_if<MemberEvent>(&event);
      ASSERT_TRUE(member != nullptr);
      EXPECT_EQ(member->what, MemberEvent::What::kChanged) << "the new manager chose another MLID";
    }
  }
}

TEST(ClientTest, HundredThousandNoticesDelayNoQueryByMoreThanASecond) {
  Net net(1, 2, {});
  ASSERT_TRUE(
      net.client(0).subscriptions().subscribe(TrapNumber::kGidInService, 7, net.world.now()));
  net.run_for(1s);
  net.host(0).events.clear();
  std::uint64_t queries_begun = 0;
  for (int burst = 0; burst < 1000; ++burst) {
    for (int i = 0; i < 100; ++i) {
      net.master().report(TrapNumber::kGidInService, Net::gid(1));
    }
    net.pump();
    net.client(0).paths().flush(net.world.now());
    ASSERT_TRUE(net.client(0).paths().find(query_to(0, 1), ++queries_begun, 10s, net.world.now()));
    net.run_for(10ms);
  }
  net.run_for(1s);
  std::uint64_t notices = 0;
  std::uint64_t answers = 0;
  for (const Event& event : net.host(0).events) {
    if (std::holds_alternative<NoticeEvent>(event)) ++notices;
    if (const auto* path = std::get_if<PathEvent>(&event)) {
      ++answers;
      EXPECT_FALSE(path->error);
      EXPECT_LT(path->waited, 1s);
    }
  }
  EXPECT_EQ(notices, 100'000U);
  EXPECT_EQ(answers, queries_begun);
}

// OFED and Linux send a query for each connection.  Slides of Sean Hefty about scalability report
// that 1,000 nodes sent 500,000 queries.
TEST(ClientTest, AllToAllJobSendsOneQueryForEachPathOrEachPort) {
  constexpr unsigned kHosts = 24;
  for (const auto mode : {PathCache::Mode::kGet, PathCache::Mode::kTable}) {
    Net net(2, kHosts, {.paths = {.mode = mode}});
    net.run_for(2s);
    for (int round = 0; round < 5; ++round) {
      for (unsigned from = 0; from < kHosts; ++from) {
        for (unsigned to = 0; to < kHosts; ++to) cached_lid(net, from, to);
      }
      net.run_for(1s);
    }
    EXPECT_TRUE(cached_lid(net, 3, 9));
    EXPECT_EQ(path_requests(net),
              mode == PathCache::Mode::kGet ? kHosts * kHosts : std::uint64_t{kHosts});
  }
}

TEST(ClientTest, BusyAndLossyAndSlowManagersServeAJobWithAtMostTwiceTheQueries) {
  constexpr unsigned kHosts = 12;
  for (int kind = 0; kind < 3; ++kind) {
    SCOPED_TRACE(kind);
    Net net(3, kHosts, {.notices = false});
    if (kind == 0) net.master().faults.loss = {2, 3};
    if (kind == 1) net.master().faults.busy = {1, 3};
    if (kind == 2) net.master().faults.delay_max = 3s;
    for (unsigned from = 0; from < kHosts; ++from) {
      for (unsigned to = 0; to < kHosts; ++to) {
        ASSERT_TRUE(net.client(from).paths().find(query_to(from, to), 0, 10min, net.world.now()));
      }
    }
    net.run_for(5min);
    std::size_t answered = 0;
    for (unsigned i = 0; i < kHosts; ++i) {
      for (const Event& event : net.host(i).events) {
        if (!std::get<PathEvent>(event).error) ++answered;
      }
    }
    EXPECT_EQ(answered, std::size_t{kHosts} * kHosts);
    EXPECT_LE(path_requests(net), 2U * kHosts * kHosts) << "the manager has seen more requests";
  }
}

// The client asks for the ClassPortInfo of the SA, to find out whether there is an SA.
TEST(ClientTest, QueryThatTheSaDoesNotKnowEndsSoonWithoutOtherQueries) {
  Net net(1, 1, {.notices = false});
  net.run_for(1min);
  net.master().unsupported_attribute = SaAttribute::kServiceRecord;
  ASSERT_TRUE(net.client(0).services().find({.service_id = {{7}}}, 0, 10min, net.world.now()));
  net.run_for(3s);
  ASSERT_EQ(net.host(0).events.size(), 1U);
  const auto& failure = std::get<ServiceEvent>(net.host(0).events[0]);
  ASSERT_TRUE(failure.error);
  EXPECT_EQ(failure.error->code, Errc::kNotSupported);
  EXPECT_EQ(net.client(0).queries().counters().unsupported, 1U);
}

TEST(ClientTest, JoinOfASendOnlyFullMemberNeedsAManagerThatSupportsSuchMembers) {
  Net net(1, 1, {.notices = false});
  const JoinRequest request{.mgid = {.bytes = {std::byte{0xff}, std::byte{0x12}}},
                            .join_state = wire::join_state::kSendOnlyFullMember};
  net.run_for(1s);
  ASSERT_TRUE(net.client(0).memberships().join(request, 0, net.world.now()));
  net.run_for(1s);
  EXPECT_EQ(net.master().members[request.mgid][Net::gid(0)], request.join_state);
  net.manager(1).capability_mask2 = 0;
  net.host(0).events.clear();
  net.change_master(1);
  net.run_for(1s);
  ASSERT_FALSE(net.host(0).events.empty());
  const auto& event = std::get<MemberEvent>(net.host(0).events.back());
  EXPECT_EQ(event.what, MemberEvent::What::kFailed);
  EXPECT_EQ(event.error->code, Errc::kNotSupported);
  const auto refused = net.client(0).memberships().join(request, 0, net.world.now());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kNotSupported);
}

TEST(ClientTest, ResponsesOfOtherProgramsAreNotWanted) {
  const auto client = Client::create({}, {.notices = false}, Random(1), Time{});
  client->set_port({.active = true, .lid = {5}, .sm_lid = {1}, .gids = {Net::gid(0)}}, Time{});
  ASSERT_TRUE(client->paths().find(query_to(0, 1), 0, 10s, Time{}));
  const auto packet = client->next_packet();
  ASSERT_TRUE(packet);
  auto header = ModelSa::header_in(packet->mad).mad;
  EXPECT_FALSE(client->wants(header)) << "the client receives no requests";
  header.response = true;
  EXPECT_TRUE(client->wants(header));
  header.transaction_id ^= std::uint64_t{1} << 40;
  EXPECT_FALSE(client->wants(header));
  header = {.mgmt_class = wire::MgmtClass::kSubnetAdministration, .method = Method::kReport};
  EXPECT_TRUE(client->wants(header));
  header.mgmt_class = wire::MgmtClass::kPerformance;
  EXPECT_FALSE(client->wants(header));
}

}  // namespace
}  // namespace verbena::sa
