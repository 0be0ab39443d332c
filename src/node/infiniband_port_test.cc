#include "node/infiniband_port.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <map>
#include <optional>
#include <vector>

#include "sa/model_sa_test.h"
#include "wire/ip.h"
#include "wire/mgid.h"

// Tests two objects of class InfinibandPort in one subnet with a simulated SA.
namespace verbena::node {
namespace {

using namespace std::chrono_literals;
using RouteFound = InfinibandPort::RouteFound;

class SubnetPortTest : public testing::Test {
 protected:
  static constexpr Gid kIps[] = {wire::ipv4_gid(0x0a000001), wire::ipv4_gid(0x0a000002)};
  static constexpr Lid kSaLid{1};

  SubnetPortTest() {
    for (unsigned i = 0; i < 2; ++i) {
      subnet_[gid(i)] = lid(i);
      ports_[i].emplace(PortId{}, sa::Client::Config{}, Random(i + 1));
      ports_[i]->set_addresses({{kIps[i], 16}}, world_.now());
    }
  }

  static Gid gid(unsigned i) {
    Gid gid{};
    gid.bytes[0] = std::byte{0xfe};
    gid.bytes[1] = std::byte{0x80};
    gid.bytes[15] = static_cast<std::byte>(i + 1);
    return gid;
  }
  static Lid lid(unsigned i) { return Lid{static_cast<std::uint16_t>(10 + i)}; }
  InfinibandPort& port(unsigned i) { return *ports_[i]; }
  static PortState state(unsigned i) {
    return {.lid = lid(i), .sm_lid = kSaLid, .gids = {gid(i)}, .active_mtu = 4};
  }
  void set_state(unsigned i, const PortState& state) {
    port(i).set_state(state, world_.now());
    pump();
  }
  void start() {
    for (unsigned i = 0; i < 2; ++i) set_state(i, state(i));
  }

  // Delivers packets until there are no more, and stores the other outputs.
  void pump() {
    for (bool has_output = true; has_output;) {
      has_output = false;
      while (const auto packet = manager.next_packet()) {
        has_output = true;
        deliver(*packet);
      }
      for (unsigned i = 0; i < 2; ++i) has_output = take_outputs(i) || has_output;
    }
  }
  // Lets time pass, and runs the timers that are due.
  void run_for(Duration duration) {
    const Time end = world_.now() + duration;
    pump();
    for (;;) {
      const Time next = std::min({port(0).deadline(), port(1).deadline(), manager.deadline(), end});
      world_.run_until(std::max(world_.now(), next));
      for (unsigned i = 0; i < 2; ++i) port(i).on_timer(world_.now());
      manager.on_timer();
      pump();
      if (next >= end) return;
    }
  }
  std::optional<RouteFound> route(unsigned from, const Gid& to, bool by_gid = false) {
    port(from).find_route({.token = 7,
                           .destination = to,
                           .by_gid = by_gid,
                           .source = by_gid ? gid(from) : kIps[from]},
                          world_.now());
    run_for(5s);
    return std::exchange(found_[from], std::nullopt);
  }

  sim::World world_{};
  sa::Subnet subnet_{};
  sa::ModelSa manager{world_, subnet_, kSaLid, Random(9)};
  std::array<std::optional<InfinibandPort>, 2> ports_{};
  std::array<std::optional<RouteFound>, 2> found_{};
  std::array<std::vector<InfinibandPort::GroupJoined>, 2> joined_{};
  std::array<std::vector<std::uint64_t>, 2> lost_{};  // the tokens of the groups that were lost
  bool loses_frames_ = false;

 private:
  void deliver(const mad::SendMad& packet) {
    for (unsigned i = 0; i < 2; ++i) {
      if (packet.to.path.destination_lid != lid(i)) continue;
      mad::Address from = packet.to;
      from.path = packet.to.path.reversed();
      port(i).receive_mad(from, packet.mad, world_.now());
    }
  }
  bool take_outputs(unsigned i) {
    bool has_output = false;
    while (auto output = port(i).poll()) {
      has_output = true;
      if (const auto* mad = std::get_if<mad::SendMad>(&*output)) manager.receive(*mad);
      if (const auto* found = std::get_if<RouteFound>(&*output)) found_[i] = *found;
      if (const auto* joined = std::get_if<InfinibandPort::GroupJoined>(&*output)) {
        joined_[i].push_back(*joined);
      }
      if (const auto* lost = std::get_if<InfinibandPort::GroupLost>(&*output)) {
        lost_[i].push_back(lost->token);
      }
    }
    link::Burst burst;
    port(i).transmit(burst);
    for (const link::Burst::Packet& packet : burst.packets()) {
      has_output = true;
      const unsigned other = 1 - i;
      const bool is_group = packet.address.destination_lid.value >= 0xc000;
      if (loses_frames_ || (!is_group && packet.address.destination_lid != lid(other))) continue;
      link::Address from = packet.address;
      from.port = {};
      port(other).receive({from, burst.transport(packet)}, world_.now());
    }
    return has_output;
  }
};

// The route leads to the port that has the IP address.
TEST_F(SubnetPortTest, RouteToAnIpAddressHasThePathOfItsPort) {
  start();
  const auto found = route(0, kIps[1]);
  ASSERT_TRUE(found && found->route) << (found ? found->route.error().context : "no answer");
  const rdmacm::Route& route = *found->route;
  EXPECT_EQ(route.source, kIps[0]);
  EXPECT_EQ(route.address.source, gid(0));
  EXPECT_EQ(route.address.destination, gid(1));
  EXPECT_EQ(route.address.source_lid, lid(0));
  EXPECT_EQ(route.address.destination_lid, lid(1));
  EXPECT_TRUE(route.address.is_infiniband());
  EXPECT_FALSE(route.address.has_grh);
  EXPECT_EQ(route.pkey, 0xffff);
  EXPECT_EQ(route.mtu, 4);
  EXPECT_FALSE(route.is_loopback);
}

// The MTU of a path may differ from the MTU of the port.  ibacm assumes 2048 bytes and 10 Gbit/s
// for each path that it makes itself.
TEST_F(SubnetPortTest, RouteHasTheMtuOfThePathRecord) {
  start();
  for (const std::uint8_t mtu : {std::uint8_t{1}, std::uint8_t{5}}) {
    manager.path_mtu = mtu;
    port(0).flush(world_.now());
    const auto found = route(0, kIps[1]);
    ASSERT_TRUE(found && found->route);
    EXPECT_EQ(found->route->mtu, mtu);
  }
}

TEST_F(SubnetPortTest, RouteOfPortsWithSeveralLidsHasAnAlternatePath) {
  start();
  const auto single = route(0, gid(1), true);
  ASSERT_TRUE(single && single->route);
  EXPECT_FALSE(single->route->alternate);
  manager.lids_per_port = 2;
  PortState with_two_lids = state(0);
  with_two_lids.lmc = 1;
  set_state(0, with_two_lids);
  for (int attempt = 0; attempt < 2; ++attempt) {  // the SA answers first, and then the cache
    const auto found = route(0, gid(1), true);
    ASSERT_TRUE(found && found->route);
    ASSERT_TRUE(found->route->alternate);
    const link::Address& path = found->route->address;
    const link::Address& alternate = *found->route->alternate;
    EXPECT_EQ(path.destination_lid.value + alternate.destination_lid.value, 2 * lid(1).value + 1);
    EXPECT_EQ(path.source_lid.value + alternate.source_lid.value, 2 * lid(0).value + 1);
    EXPECT_EQ(alternate.destination, gid(1));
    EXPECT_TRUE(alternate.is_infiniband());
  }
  manager.lids_per_port = 1;
  port(0).flush(world_.now());
  const auto found = route(0, gid(1), true);
  ASSERT_TRUE(found && found->route);
  EXPECT_FALSE(found->route->alternate) << "the SA knows only one path";
}

TEST_F(SubnetPortTest, SecondRouteNeedsNeitherTheSaNorTheNeighbour) {
  start();
  ASSERT_TRUE(route(0, kIps[1]));
  const auto queries_before = port(0).client().queries().counters().asked;
  loses_frames_ = true;
  const auto second = route(0, kIps[1]);
  ASSERT_TRUE(second && second->route);
  EXPECT_EQ(port(0).client().queries().counters().asked, queries_before);
}

// A route to a GID needs no address resolution between the ports, so lost frames do not matter.
TEST_F(SubnetPortTest, RouteToAGidNeedsNoAddressResolution) {
  start();
  loses_frames_ = true;
  const auto found = route(0, gid(1), true);
  ASSERT_TRUE(found && found->route);
  EXPECT_EQ(found->route->address.destination_lid, lid(1));
}

TEST_F(SubnetPortTest, RouteToTheHostItselfNeedsNoRequest) {
  set_state(0, state(0));
  manager.die();
  for (const Gid& to : {kIps[0], wire::ipv4_gid(0x7f000001)}) {
    const auto found = route(0, to);
    ASSERT_TRUE(found && found->route);
    EXPECT_TRUE(found->route->is_loopback);
    EXPECT_EQ(found->route->address.destination_lid, lid(0));
  }
}

TEST_F(SubnetPortTest, FailedRoutesHaveAReason) {
  const auto port_down = route(0, kIps[1]);
  ASSERT_TRUE(port_down && !port_down->route);
  EXPECT_EQ(port_down->route.error().code, Errc::kUnreachable);
  start();
  const auto unknown_host = route(0, wire::ipv4_gid(0x0a000009));
  ASSERT_TRUE(unknown_host && !unknown_host->route);
  EXPECT_EQ(unknown_host->route.error().code, Errc::kAddressNotFound);
  const auto other_subnet = route(0, wire::ipv4_gid(0xc0a80001));
  ASSERT_TRUE(other_subnet && !other_subnet->route);
  EXPECT_EQ(other_subnet->route.error().code, Errc::kAddressNotFound);
  const auto unknown_gid = route(0, gid(40), true);
  ASSERT_TRUE(unknown_gid && !unknown_gid->route);
  EXPECT_EQ(unknown_gid->route.error().code, Errc::kUnreachable);
}

TEST_F(SubnetPortTest, RouteIsFoundWhenAManagerHasStarted) {
  manager.die();
  start();
  port(0).find_route({.token = 7, .destination = kIps[1], .source = kIps[0]}, world_.now());
  run_for(2s);
  EXPECT_FALSE(found_[0]);
  manager.start();
  run_for(5s);
  ASSERT_TRUE(found_[0]);
  EXPECT_TRUE(found_[0]->route.has_value());
}

TEST_F(SubnetPortTest, RoutesAreQueriedAgainAfterThePortWasDown) {
  start();
  ASSERT_TRUE(route(0, kIps[1]));
  PortState down_state = state(0);
  down_state.down_reason = "the cable is pulled";
  set_state(0, down_state);
  set_state(0, state(0));
  EXPECT_EQ(port(0).client().paths().size(), 0u);
  EXPECT_EQ(port(0).neighbours().size(), 0u);
  const auto found = route(0, kIps[1]);
  EXPECT_TRUE(found && found->route);
}

// The join waits until the port has joined the broadcast group, whose P_Key is a part of the MGID.
// Then leave() ends the membership at the SA.
TEST_F(SubnetPortTest, GroupOfAProgramHasTheParametersOfTheBroadcastGroup) {
  port(0).join({.token = 3,
                .port_space = rdmacm::kPortSpaceIpoib,
                .pkey = wire::kDefaultPkey,
                .group = wire::ipv4_gid(0xef010203),
                .join_state = wire::join_state::kFullMember},
               world_.now());
  run_for(1s);
  EXPECT_TRUE(joined_[0].empty()) << "the port is down";
  start();
  ASSERT_EQ(joined_[0].size(), 1u);
  ASSERT_TRUE(joined_[0][0].group) << joined_[0][0].group.error().context;
  const Gid mgid =
      wire::multicast_mgid(wire::ipv4_gid(0xef010203), wire::MgidUser::kIpoib, {0xffff});
  EXPECT_EQ(joined_[0][0].group->mgid, mgid);
  EXPECT_TRUE(manager.members.contains(mgid));
  port(0).leave(3, world_.now());
  run_for(1s);
  EXPECT_FALSE(manager.members.contains(mgid));
  EXPECT_TRUE(lost_[0].empty());
}

TEST_F(SubnetPortTest, MgidThatTheSaHasAssignedCanBeJoinedAsAnIpv6Address) {
  start();
  for (const auto port_space : {rdmacm::kPortSpaceIpoib, rdmacm::kPortSpaceUdp}) {
    Gid mgid = wire::multicast_mgid(wire::ipv4_gid(port_space), wire::MgidUser::kIpoib, {0xffff});
    mgid.bytes[2] = std::byte{0xa0};
    ASSERT_TRUE(wire::is_sa_assigned(mgid));
    port(0).join({.token = port_space,
                  .port_space = port_space,
                  .pkey = wire::kDefaultPkey,
                  .group = mgid,
                  .join_state = wire::join_state::kFullMember},
                 world_.now());
    run_for(1s);
    ASSERT_FALSE(joined_[0].empty());
    const auto& group = joined_[0].back().group;
    ASSERT_TRUE(group) << group.error().context;
    EXPECT_EQ(group->mgid, mgid);
  }
}

// The port joins the broadcast group after the four joins.  Then two of them fail, one succeeds,
// and one was cancelled before.
TEST_F(SubnetPortTest, WaitingJoinsAreAnsweredWhenTheBroadcastGroupIsJoined) {
  const auto join = [this](std::uint64_t token, Pkey pkey, const Gid& group, bool is_mgid) {
    port(0).join({.token = token,
                  .port_space = rdmacm::kPortSpaceIpoib,
                  .pkey = pkey,
                  .group = group,
                  .is_mgid = is_mgid,
                  .join_state = wire::join_state::kFullMember},
                 world_.now());
  };
  join(3, wire::kDefaultPkey, gid(1), true);  // not an MGID
  join(4, Pkey{0x8005}, wire::ipv4_gid(0xef010203), false);
  join(5, wire::kDefaultPkey, wire::ipv4_gid(0xef010203), false);
  join(6, wire::kDefaultPkey, wire::ipv4_gid(0xef010204), false);
  port(0).leave(6, world_.now());
  start();
  run_for(1s);
  std::map<std::uint64_t, bool> answers;
  for (const auto& joined : joined_[0]) answers[joined.token] = joined.group.has_value();
  EXPECT_EQ(answers, (std::map<std::uint64_t, bool>{{3, false}, {4, false}, {5, true}}));
  run_for(InfinibandPort::kGroupTimeout);
  EXPECT_EQ(joined_[0].size(), 3u);
}

TEST_F(SubnetPortTest, JoinWithoutABroadcastGroupTimesOut) {
  manager.die();
  start();
  port(0).join({.token = 3,
                .port_space = rdmacm::kPortSpaceUdp,
                .pkey = wire::kDefaultPkey,
                .group = wire::ipv4_gid(0xef010203),
                .join_state = 1},
               world_.now());
  run_for(InfinibandPort::kGroupTimeout + 1s);
  ASSERT_EQ(joined_[0].size(), 1u);
  ASSERT_FALSE(joined_[0][0].group);
  EXPECT_EQ(joined_[0][0].group.error().code, Errc::kTimedOut);
}

// The program gets EOPNOTSUPP, as on Linux.
TEST_F(SubnetPortTest, SendOnlyJoinIsRefusedIfTheSaDoesNotSupportIt) {
  manager.capability_mask2 = 0;
  start();
  for (const std::uint8_t state :
       {wire::join_state::kSendOnlyFullMember, wire::join_state::kFullMember}) {
    port(0).join({.token = state,
                  .port_space = rdmacm::kPortSpaceUdp,
                  .pkey = wire::kDefaultPkey,
                  .group = wire::ipv4_gid(0xef010203),
                  .join_state = state},
                 world_.now());
    run_for(1s);
  }
  ASSERT_EQ(joined_[0].size(), 2u);
  ASSERT_FALSE(joined_[0][0].group);
  EXPECT_EQ(to_errno(joined_[0][0].group.error()), EOPNOTSUPP);
  EXPECT_TRUE(joined_[0][1].group);
}

// A restarted manager may give the group another MLID.  Members then get GroupLost.
TEST_F(SubnetPortTest, MembersRejoinAtANewManagerOrLoseTheirMembership) {
  start();
  port(0).join({.token = 3,
                .port_space = rdmacm::kPortSpaceIpoib,
                .pkey = wire::kDefaultPkey,
                .group = wire::ipv4_gid(0xef010203),
                .join_state = 1},
               world_.now());
  run_for(1s);
  ASSERT_EQ(joined_[0].size(), 1u);
  const Gid mgid = joined_[0][0].group.value().mgid;
  manager.start();
  ASSERT_TRUE(manager.members.empty());
  PortState new_state = state(0);
  ++new_state.link.reregistrations;
  set_state(0, new_state);
  run_for(30s);
  EXPECT_EQ(manager.members.contains(mgid), lost_[0].empty());
  EXPECT_TRUE(manager.members.contains(wire::broadcast_mgid({0xffff})));
}

// The old manager did not answer the join of the new group, so the join is sent to the new manager.
TEST_F(SubnetPortTest, NewManagerGetsRejoinsBeforeJoinsOfNewGroups) {
  start();
  const Gid old_mgid = wire::broadcast_mgid({0xffff});
  const Gid new_mgid =
      wire::multicast_mgid(wire::ipv4_gid(0xef010203), wire::MgidUser::kIpoib, {0xffff});
  manager.die();
  port(0).join({.token = 3,
                .port_space = rdmacm::kPortSpaceIpoib,
                .pkey = wire::kDefaultPkey,
                .group = wire::ipv4_gid(0xef010203),
                .join_state = 1},
               world_.now());
  run_for(1s);
  manager.start();
  PortState new_state = state(0);
  new_state.sm_lid = Lid{2};
  set_state(0, new_state);
  EXPECT_TRUE(manager.members.contains(old_mgid));
  EXPECT_FALSE(manager.members.contains(new_mgid));
  run_for(sa::Memberships::kNewGroupDelay);
  EXPECT_TRUE(manager.members.contains(new_mgid));
}

// A new manager writes its LID and asks for a reregistration in the same PortInfo.
TEST_F(SubnetPortTest, NewManagerGetsEachRegistrationOnce) {
  start();
  run_for(1s);
  const auto queries_before = port(0).client().queries().counters().asked;
  manager.start();
  PortState new_state = state(0);
  new_state.sm_lid = Lid{2};
  ++new_state.link.reregistrations;
  set_state(0, new_state);
  run_for(30s);
  EXPECT_EQ(port(0).client().queries().counters().asked - queries_before, queries_before);
  EXPECT_EQ(manager.subscriptions.size(), 5u);
  EXPECT_TRUE(manager.members.contains(wire::broadcast_mgid({0xffff})));
}

}  // namespace
}  // namespace verbena::node
