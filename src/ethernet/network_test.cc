#include "ethernet/network.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "wire/address_text.h"
#include "wire/loopback.h"

namespace verbena::ethernet {
namespace {

using Drop = Network::Drop;

Gid ip(const char* text) { return wire::parse_address(text).value(); }

// Returns a network with four hosts.  Hosts a and b have one rail each in network "red".  Host c
// has a rail with MTU 1500 in "blue".  Host a has a second rail in "green".  Host d has a
// rail in "red" with VLAN 7.  If `has_router` is true, a router connects "red" and "blue".
Network network(bool has_router = true) {
  std::string text = R"(
    [[hosts]]
    name = "a"
    rails = [ { network = "red", addresses = ["10.0.0.1", "fd00::1"] },
              { network = "green", addresses = ["10.0.9.1"] } ]
    [[hosts]]
    name = "b"
    rails = [ { network = "red", addresses = ["10.0.0.2"] } ]
    [[hosts]]
    name = "c"
    rails = [ { network = "blue", addresses = ["10.0.1.3"], mtu = 1500 } ]
    [[hosts]]
    name = "d"
    rails = [ { network = "red", addresses = ["10.0.0.4"], vlan = 7 } ]
  )";
  if (has_router) text += "[[routers]]\nnetworks = [\"red\", \"blue\"]\n";
  return Network(plan::parse(text).value());
}

constexpr HostIndex kA = 0, kB = 1, kC = 2, kD = 3;

TEST(Network, RoutesFromTheRailThatReachesTheDestination) {
  Network n = network();
  const auto route = n.route(kA, ip("10.0.0.2"), {});
  ASSERT_TRUE(route.has_value()) << route.error();
  EXPECT_EQ(route->source, ip("10.0.0.1"));
  EXPECT_EQ(route->mtu_bytes, plan::kMtuDefault);
  EXPECT_FALSE(route->loopback);
}

TEST(Network, RouteThroughARouterHasTheSmallerMtu) {
  EXPECT_EQ(network().route(kA, ip("10.0.1.3"), {}).value().mtu_bytes, 1500u);
  const auto no_route = network(false).route(kA, ip("10.0.1.3"), {});
  ASSERT_FALSE(no_route.has_value());
  EXPECT_EQ(no_route.error(),
            "no route to 10.0.1.3: rail verbena0 of host a (network red, MTU 9000) does not reach "
            "rail verbena0 of host c (network blue, MTU 1500); rail verbena1 of host a (network "
            "green, MTU 9000) does not reach rail verbena0 of host c (network blue, MTU 1500)");
}

TEST(Network, SourceAddressDecidesTheRail) {
  Network n = network();
  EXPECT_EQ(
      n.route(kA, ip("10.0.0.2"), ip("10.0.9.1")).error(),
      "no route to 10.0.0.2: rail verbena1 of host a (network green, MTU 9000) does not reach "
      "rail verbena0 of host b (network red, MTU 9000)");
  EXPECT_EQ(n.route(kA, ip("10.0.0.2"), ip("10.0.0.2")).error(),
            "the host a has no address 10.0.0.2");
}

TEST(Network, OwnAddressesAreReachedByLoopback) {
  Network n = network();
  const auto own = n.route(kA, ip("10.0.9.1"), {});
  EXPECT_TRUE(own.value().loopback);
  EXPECT_EQ(own->source, ip("10.0.9.1"));
  EXPECT_EQ(own->interface, Network::interface_of(1));
  const auto loopback = n.route(kA, wire::kLoopbackIpv4, {});
  EXPECT_TRUE(loopback.value().loopback);
  EXPECT_EQ(loopback->interface, Network::kLoopbackInterface);
  EXPECT_EQ(n.forward(kA, ip("10.0.0.1"), ip("10.0.9.1"), 60000), (RailId{kA, 1}));
  EXPECT_EQ(n.forward(kA, wire::kLoopbackIpv4, wire::kLoopbackIpv4, 100), (RailId{kA, 0}));
}

TEST(Network, ForwardsPacketsToTheRailOfTheirAddress) {
  Network n = network();
  EXPECT_EQ(n.forward(kA, ip("10.0.0.1"), ip("10.0.0.2"), 9000), (RailId{kB, 0}));
  EXPECT_EQ(n.forward(kB, ip("10.0.0.2"), ip("10.0.1.3"), 1500), (RailId{kC, 0}));
}

TEST(Network, DropsPacketsThatCannotReachTheirDestination) {
  Network n = network();
  const auto drop_of = [&](HostIndex host, const char* from, const char* to, std::size_t bytes) {
    return n.forward(host, ip(from), ip(to), bytes).error();
  };
  EXPECT_EQ(drop_of(kA, "10.0.0.2", "10.0.0.2", 100), Drop::kForeignSource);
  EXPECT_EQ(drop_of(kA, "10.0.0.1", "10.0.0.9", 100), Drop::kNoSuchAddress);
  EXPECT_EQ(drop_of(kA, "10.0.9.1", "10.0.0.2", 100), Drop::kNoRoute);
  EXPECT_EQ(drop_of(kA, "10.0.0.1", "10.0.0.4", 100), Drop::kNoRoute);  // another VLAN
  EXPECT_EQ(drop_of(kA, "127.0.0.1", "10.0.0.2", 100), Drop::kNoRoute);
  EXPECT_EQ(drop_of(kA, "10.0.0.1", "10.0.0.2", 9001), Drop::kTooLong);
  EXPECT_EQ(drop_of(kA, "10.0.0.1", "10.0.1.3", 1501), Drop::kTooLong);
  EXPECT_EQ(
      n.reason(Drop::kTooLong, kA, ip("10.0.0.1"), ip("10.0.1.3"), 1501),
      "packets of 1501 bytes are too long for the route from rail verbena0 of host a (network "
      "red, MTU 9000) to rail verbena0 of host c (network blue, MTU 1500)");
}

TEST(Network, ListsTheHostsAddressesWithTheirInterfacesAndPorts) {
  const auto all = network().addresses(kA);
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all[2].gid, ip("10.0.9.1"));
  EXPECT_EQ(all[2].port, (PortId{1, 1}));
  EXPECT_EQ(all[2].interface, Network::interface_of(1));
  EXPECT_EQ(all[2].interface_name, "verbena1");
  EXPECT_TRUE(all[3].loopback);
}

TEST(Network, MulticastReachesMembersOnTheSameNetworkAndVlanOnly) {
  Network n = network();
  const Gid group = ip("239.1.2.3");
  const std::array<std::uint32_t, 1> first_interface{Network::interface_of(0)};
  for (const HostIndex host : {kA, kB, kC, kD}) {
    EXPECT_TRUE(
        n.set_members(host, static_cast<std::uint16_t>(100 + host), group, first_interface));
  }
  using Members = std::vector<Network::Member>;
  EXPECT_EQ(n.receivers(kA, ip("10.0.0.1"), group, 1000),
            (Members{{{kA, 0}, 100}, {{kB, 0}, 101}}));
  EXPECT_EQ(n.receivers(kA, ip("10.0.9.1"), group, 1000), Members{});
  EXPECT_EQ(n.receivers(kA, ip("10.0.0.1"), group, 9001), Members{});
  EXPECT_TRUE(n.set_members(kB, 101, group, {}));
  EXPECT_EQ(n.receivers(kA, ip("10.0.0.1"), group, 1000), (Members{{{kA, 0}, 100}}));
}

TEST(Network, MulticastFromALoopbackAddressStaysInItsHost) {
  Network n = network();
  const Gid group = ip("239.1.2.3");
  const std::array<std::uint32_t, 1> first_interface{Network::interface_of(0)};
  ASSERT_TRUE(n.set_members(kA, 100, group, first_interface));
  ASSERT_TRUE(n.set_members(kB, 101, group, first_interface));
  for (const auto& member : n.receivers(kA, ip("127.0.0.1"), group, 1000)) {
    EXPECT_EQ(member.rail.host, kA);
  }
}

TEST(Network, LimitsTheMembersOfAGroup) {
  Network n = network();
  const std::array<std::uint32_t, 1> first_interface{Network::interface_of(0)};
  const Gid group = ip("239.1.2.3");
  for (std::size_t i = 0; i < Network::kMembersMax; ++i) {
    ASSERT_TRUE(n.set_members(kA, static_cast<std::uint16_t>(i), group, first_interface));
  }
  EXPECT_FALSE(n.set_members(kB, 1, group, first_interface));
  EXPECT_EQ(n.receivers(kA, ip("10.0.0.1"), group, 100).size(), Network::kMembersMax);
}

constexpr RailId kARed{kA, 0}, kBRed{kB, 0};

TEST(Network, ALinkThatIsDownDropsPackets) {
  for (const RailId rail : {kARed, kBRed}) {
    Network n = network();
    n.faults().set_link(rail, false);
    EXPECT_EQ(n.forward(kA, ip("10.0.0.1"), ip("10.0.0.2"), 100).error(), Drop::kLinkDown);
    EXPECT_EQ(n.forward(kA, ip("10.0.0.1"), ip("10.0.0.1"), 100), kARed)
        << "a packet to its own host needs no link";
    EXPECT_TRUE(n.down_reason(rail).has_value());
    n.faults().set_link(rail, true);
    EXPECT_EQ(n.forward(kA, ip("10.0.0.1"), ip("10.0.0.2"), 100), kBRed);
    EXPECT_FALSE(n.down_reason(rail).has_value());
  }
}

TEST(Network, ReasonsNameTheRailWhoseLinkIsDown) {
  Network n = network();
  n.faults().set_link(kBRed, false);
  const std::string reason =
      "rail verbena0 of host b (network red, MTU 9000) is down: its link is down because of "
      "'verbena fabric fault'";
  EXPECT_EQ(n.reason(Drop::kLinkDown, kA, ip("10.0.0.1"), ip("10.0.0.2"), 100), reason);
  EXPECT_NE(n.route(kA, ip("10.0.0.2"), {}).error().find(reason), std::string::npos);
  n.faults().set_host(kA, false);
  EXPECT_EQ(n.reason(Drop::kLinkDown, kA, ip("10.0.0.1"), ip("10.0.0.2"), 100),
            "rail verbena0 of host a (network red, MTU 9000) is down: host a is off because of "
            "'verbena fabric fault'");
}

TEST(Network, ALossyLinkLosesPacketsInBothDirections) {
  Network n = network();
  n.faults().set_loss(kBRed, {.per_million = Loss::kAll});
  EXPECT_EQ(n.forward(kA, ip("10.0.0.1"), ip("10.0.0.2"), 100).error(), Drop::kLost);
  EXPECT_EQ(n.forward(kB, ip("10.0.0.2"), ip("10.0.0.1"), 100).error(), Drop::kLost);
  EXPECT_NE(n.reason(Drop::kLost, kA, ip("10.0.0.1"), ip("10.0.0.2"), 100).find("of host b"),
            std::string::npos);
}

TEST(Network, MembersBehindALinkThatIsDownGetNoMulticast) {
  Network n = network();
  const std::array<std::uint32_t, 1> first_interface{Network::interface_of(0)};
  ASSERT_TRUE(n.set_members(kA, 1, ip("239.0.0.1"), first_interface));
  ASSERT_TRUE(n.set_members(kB, 2, ip("239.0.0.1"), first_interface));
  ASSERT_EQ(n.receivers(kA, ip("10.0.0.1"), ip("239.0.0.1"), 100).size(), 2u);
  for (const RailId rail : {kARed, kBRed}) {
    n.faults().set_link(rail, false);
    const auto receivers = n.receivers(kA, ip("10.0.0.1"), ip("239.0.0.1"), 100);
    ASSERT_EQ(receivers.size(), 1u);
    EXPECT_EQ(receivers[0].rail, kARed) << "the host itself needs no link";
    n.faults().set_link(rail, true);
  }
}

TEST(Network, AFaultReplacesTheMtuOfARail) {
  Network n = network();
  n.faults().set_mtu(kBRed, 1500);
  EXPECT_EQ(n.forward(kA, ip("10.0.0.1"), ip("10.0.0.2"), 1501).error(), Drop::kTooLong);
  EXPECT_EQ(n.forward(kA, ip("10.0.0.1"), ip("10.0.0.2"), 1500), kBRed);
  EXPECT_EQ(n.route(kA, ip("10.0.0.2"), {}).value().mtu_bytes, 1500u);
  EXPECT_EQ(n.addresses(kB)[0].mtu_bytes, 1500u);
  EXPECT_NE(n.reason(Drop::kTooLong, kA, ip("10.0.0.1"), ip("10.0.0.2"), 1501).find("MTU 1500"),
            std::string::npos);
  n.faults().set_mtu(kBRed, std::nullopt);
  EXPECT_EQ(n.mtu_bytes(kBRed), plan::kMtuDefault);
}

TEST(Network, AFaultReplacesThePkeysOfARail) {
  Network n = network();
  EXPECT_EQ(n.pkeys(kBRed), std::vector<Pkey>{wire::kDefaultPkey});
  n.faults().set_pkeys(kBRed, {Pkey{0x8001}});
  EXPECT_EQ(n.pkeys(kBRed), std::vector<Pkey>{Pkey{0x8001}});
}

TEST(Network, TellsWhichPacketsUseALink) {
  Network n = network();
  const auto out = n.link_use(kA, ip("10.0.0.1"), ip("10.0.0.2"));
  EXPECT_EQ(out.value().rail, kARed);
  EXPECT_FALSE(out->stays);
  EXPECT_TRUE(n.link_use(kA, ip("10.0.0.1"), ip("10.0.9.1")).value().stays);
  EXPECT_TRUE(n.link_use(kA, wire::kLoopbackIpv4, wire::kLoopbackIpv4).value().stays);
  EXPECT_FALSE(n.link_use(kA, ip("10.0.0.2"), ip("10.0.0.1")).has_value());
}

}  // namespace
}  // namespace verbena::ethernet
