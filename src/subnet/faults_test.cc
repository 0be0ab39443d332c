#include <gtest/gtest.h>

#include "subnet/device.h"
#include "subnet/generate.h"
#include "subnet/impairments.h"
#include "subnet/test_subnet.h"
#include "wire/performance.h"

// Tests faults in a subnet of three hosts (nodes 1 to 3) at one switch (node 0).  The manager runs
// at host 1.
namespace verbena::subnet {
namespace {

using namespace std::chrono_literals;
constexpr std::size_t kDelayLineMax = faults::DelayLine<InFlight>::kPacketsMax;

class FaultyHosts : public testing::Test {
 protected:
  static constexpr PortRef kOne{1, 1};
  static constexpr PortRef kTwo{2, 1};
  static constexpr PortRef kThree{3, 1};
  static constexpr std::uint32_t kSwitch = 0;
  using Ports = std::vector<PortRef>;

  void SetUp() override { ASSERT_TRUE(world_.settle()); }

  Subnet& subnet() { return world_.subnet; }
  std::size_t link_of(PortRef port) { return subnet().topology().link_at(port).value(); }
  void send(PortRef from, PortRef to, std::size_t bytes = 64) {
    subnet().send(from, world_.data_packet(from, world_.lid(to), wire::kDefaultPkey, bytes),
                  world_.now);
  }
  // Takes all deliveries, and returns the payload sizes of the data packets at this port.
  std::vector<std::size_t> arrived(PortRef port) {
    std::vector<std::size_t> all;
    while (const auto delivery = subnet().next_delivery()) {
      if (delivery->port != port || delivery->destination_qpn != ManagedSubnet::kDataQpn) continue;
      all.push_back(view_packet(delivery->packet)->payload_bytes);
    }
    return all;
  }
  std::vector<std::size_t> arrived_after(PortRef port, Duration time) {
    world_.now += time;
    subnet().advance(world_.now);
    return arrived(port);
  }
  // Reads the counters of a port from the PMA of its node.
  wire::PortCounters counters(PortRef port) {
    mad::SendMad request{.to = {.path = {.destination_lid = world_.lid(lid_port(port))}}};
    wire::encode_to(request.mad, wire::MadHeader{.mgmt_class = wire::MgmtClass::kPerformance,
                                                 .class_version = 1,
                                                 .method = wire::Method::kGet,
                                                 .attribute_id = std::to_underlying(
                                                     wire::PerformanceAttribute::kPortCounters)});
    const auto data = wire::encode(wire::PortCounters{.port_select = port.port});
    std::ranges::copy(data, request.mad.begin() + wire::kPerformanceDataOffset);
    subnet().send_mad(kOne, request, world_.now).value();
    while (const auto delivery = subnet().next_delivery()) {
      const auto mad = subnet().as_mad(*delivery);
      if (delivery->port != kOne || !mad) continue;
      return *wire::decode<wire::PortCounters>(
          std::span(mad->mad).subspan(wire::kPerformanceDataOffset));
    }
    ADD_FAILURE() << "the PMA did not answer";
    return {};
  }
  static PortRef lid_port(PortRef port) {
    return port.node == kSwitch ? PortRef{kSwitch, 0} : port;
  }

  ManagedSubnet world_{*make_hosts(3), kOne};
};

// ---- pauses

TEST_F(FaultyHosts, APausedHostReceivesItsPacketsAfterThePause) {
  subnet().set_paused(kTwo.node, true, world_.now);
  EXPECT_TRUE(subnet().is_paused(kTwo.node));
  for (const std::size_t bytes : {4u, 8u, 12u}) send(kOne, kTwo, bytes);
  EXPECT_TRUE(arrived(kTwo).empty());
  EXPECT_EQ(subnet().late(), 3u);
  subnet().set_paused(kTwo.node, false, world_.now);
  EXPECT_EQ(subnet().late(), 0u);
  EXPECT_EQ(arrived(kTwo), (std::vector<std::size_t>{4, 8, 12}))
      << "no packet is lost, and the packets keep their order";
  send(kOne, kTwo, 16);
  EXPECT_EQ(arrived(kTwo), (std::vector<std::size_t>{16}));
}

TEST_F(FaultyHosts, APausedHostSendsItsPacketsAfterThePause) {
  subnet().set_paused(kTwo.node, true, world_.now);
  send(kTwo, kOne, 4);
  send(kTwo, kOne, 8);
  EXPECT_TRUE(arrived(kOne).empty());
  subnet().set_paused(kTwo.node, false, world_.now);
  EXPECT_EQ(arrived(kOne), (std::vector<std::size_t>{4, 8}));
}

TEST_F(FaultyHosts, AgentsOfAPausedNodeDoNotAnswer) {
  const auto smp = directed_smp(wire::Method::kGet, wire::SmpAttribute::kNodeInfo, 0, {1});
  ASSERT_TRUE(world_.send_smp(kOne, smp).has_value());
  subnet().set_paused(kSwitch, true, world_.now);
  EXPECT_FALSE(world_.send_smp(kOne, smp).has_value());
  subnet().set_paused(kSwitch, false, world_.now);
  EXPECT_TRUE(world_.send_smp(kOne, smp).has_value());
}

TEST_F(FaultyHosts, APausedSwitchForwardsAfterThePause) {
  subnet().set_paused(kSwitch, true, world_.now);
  send(kOne, kTwo);
  EXPECT_TRUE(arrived(kTwo).empty());
  subnet().set_paused(kSwitch, false, world_.now);
  EXPECT_EQ(arrived(kTwo).size(), 1u);
}

TEST_F(FaultyHosts, APausedNodeReportsNothingAndHasNoTimer) {
  subnet().set_paused(kSwitch, true, world_.now);
  subnet().set_link(link_of(kThree), false, world_.now);  // the switch now has a pending trap
  EXPECT_EQ(subnet().next_deadline(), kNever);
  subnet().set_paused(kSwitch, false, world_.now);
  EXPECT_NE(subnet().next_deadline(), kNever) << "the trap is repeated";
}

TEST_F(FaultyHosts, PacketsForAPausedHostAreLimited) {
  subnet().set_paused(kTwo.node, true, world_.now);
  for (std::size_t i = 0; i < kDelayLineMax + 3; ++i) send(kOne, kTwo);
  subnet().set_paused(kTwo.node, false, world_.now);
  EXPECT_EQ(arrived(kTwo).size(), kDelayLineMax);
  const auto port_counters = counters(kTwo);
  EXPECT_EQ(port_counters.rcv_errors, 3u);
  EXPECT_EQ(port_counters.excessive_buffer_overrun_errors, 3u);
}

TEST_F(FaultyHosts, ManagementPacketsForAPausedHostAreLimited) {
  subnet().set_paused(kTwo.node, true, world_.now);
  const std::uint8_t out = subnet().topology().links[link_of(kTwo)].a == kTwo
                               ? subnet().topology().links[link_of(kTwo)].b.port
                               : subnet().topology().links[link_of(kTwo)].a.port;
  const auto smp = directed_smp(wire::Method::kGet, wire::SmpAttribute::kNodeInfo, 0, {1, out});
  for (std::size_t i = 0; i < kDelayLineMax + 2; ++i)
    EXPECT_FALSE(world_.send_smp(kOne, smp).has_value());
  subnet().set_paused(kTwo.node, false, world_.now);
  EXPECT_TRUE(arrived(kTwo).empty());  // discards the answers to the SMPs
  EXPECT_EQ(counters(kTwo).vl15_dropped, 2u);
}

TEST_F(FaultyHosts, PacketsOfAPausedHostAreLimited) {
  subnet().set_paused(kTwo.node, true, world_.now);
  for (std::size_t i = 0; i < kDelayLineMax + 3; ++i) send(kTwo, kOne);
  EXPECT_EQ(subnet().counters().paused_queue_full, 3u);
  subnet().set_paused(kTwo.node, false, world_.now);
  EXPECT_EQ(arrived(kOne).size(), kDelayLineMax);
}

TEST_F(FaultyHosts, APauseEndsWhenTheNodeIsSwitchedOff) {
  subnet().set_paused(kTwo.node, true, world_.now);
  send(kOne, kTwo);
  subnet().set_power(kTwo.node, false, world_.now);
  EXPECT_FALSE(subnet().is_paused(kTwo.node));
  subnet().set_paused(kTwo.node, true, world_.now);
  EXPECT_FALSE(subnet().is_paused(kTwo.node)) << "a node without power cannot be paused";
  subnet().set_power(kTwo.node, true, world_.now);
  EXPECT_TRUE(arrived(kTwo).empty());
}

// ---- lossy links

TEST_F(FaultyHosts, TheSeedDecidesWhichPacketsALossyLinkLoses) {
  const faults::Loss loss{.per_million = 300'000, .seed = 5};
  subnet().set_loss(link_of(kTwo), loss);
  std::size_t lost = 0;
  for (std::uint64_t i = 0; i < 200; ++i) {
    send(kOne, kTwo);
    const bool is_lost = faults::is_lost(loss, i);
    EXPECT_EQ(arrived(kTwo).size(), is_lost ? 0u : 1u) << i;
    lost += is_lost ? 1 : 0;
  }
  EXPECT_GT(lost, 0u);
  subnet().set_loss(link_of(kTwo), {});
  const auto port_counters = counters(kTwo);
  EXPECT_EQ(port_counters.symbol_errors, lost);
  EXPECT_EQ(port_counters.rcv_errors, lost);
}

TEST_F(FaultyHosts, OnlyTheLossyLinkLosesPackets) {
  subnet().set_loss(link_of(kTwo), {.per_million = faults::Loss::kAll});
  send(kOne, kThree);
  EXPECT_EQ(arrived(kThree).size(), 1u);
  send(kTwo, kOne);
  EXPECT_TRUE(arrived(kOne).empty()) << "a lossy link loses packets in both directions";
}

// ---- slow links

TEST_F(FaultyHosts, PacketsOfASlowLinkAreLateAndInOrder) {
  subnet().set_delay(link_of(kTwo), 5ms);
  send(kOne, kTwo, 4);
  EXPECT_EQ(subnet().next_deadline(), world_.now + 5ms);
  EXPECT_EQ(subnet().late(), 1u);
  EXPECT_TRUE(arrived_after(kTwo, 2ms).empty());
  subnet().set_delay(link_of(kTwo), 1ms);
  send(kOne, kTwo, 8);
  EXPECT_TRUE(arrived_after(kTwo, 2ms).empty()) << "the second packet does not overtake the first";
  EXPECT_EQ(arrived_after(kTwo, 1ms), (std::vector<std::size_t>{4, 8}));
}

TEST_F(FaultyHosts, NoPacketOvertakesWhenADelayEnds) {
  subnet().set_delay(link_of(kTwo), 5ms);
  send(kOne, kTwo, 4);
  subnet().set_delay(link_of(kTwo), {});
  send(kOne, kTwo, 8);
  EXPECT_TRUE(arrived(kTwo).empty());
  EXPECT_EQ(arrived_after(kTwo, 5ms), (std::vector<std::size_t>{4, 8}));
  send(kOne, kTwo, 12);
  EXPECT_EQ(arrived(kTwo), (std::vector<std::size_t>{12}));
}

TEST_F(FaultyHosts, PacketsOnALinkThatGoesDownAreLost) {
  subnet().set_delay(link_of(kTwo), 5ms);
  send(kTwo, kOne);
  subnet().set_link(link_of(kTwo), false, world_.now);
  subnet().set_link(link_of(kTwo), true, world_.now);
  subnet().set_delay(link_of(kTwo), {});
  ASSERT_TRUE(world_.settle());
  EXPECT_TRUE(arrived_after(kOne, 1s).empty());
  EXPECT_EQ(counters(kTwo).xmit_discards, 1u);
}

TEST_F(FaultyHosts, PacketsOnASlowLinkAreLimited) {
  subnet().set_delay(link_of(kTwo), 5ms);
  for (std::size_t i = 0; i < kDelayLineMax + 3; ++i) send(kTwo, kOne);
  EXPECT_EQ(arrived_after(kOne, 5ms).size(), kDelayLineMax);
  subnet().set_delay(link_of(kTwo), {});
  EXPECT_EQ(counters(kTwo).xmit_discards, 3u);
}

// ---- MTUs

TEST_F(FaultyHosts, AnMtuLimitsBothPortsOfItsLink) {
  subnet().set_mtu(link_of(kTwo), Mtu::k1024, world_.now);
  EXPECT_EQ(subnet().status(kTwo).mtu_max, Mtu::k1024);
  EXPECT_EQ(subnet().state(kTwo), PortState::kInit) << "the link has trained again";
  ASSERT_TRUE(world_.settle());
  ASSERT_EQ(subnet().state(kTwo), PortState::kActive);
  EXPECT_EQ(subnet().status(kTwo).mtu_active, Mtu::k1024);
  EXPECT_EQ(world_.send_data(kOne, world_.lid(kTwo), wire::kDefaultPkey, 1024), Ports{kTwo});
  EXPECT_EQ(world_.send_data(kOne, world_.lid(kTwo), wire::kDefaultPkey, 1028), Ports{});
  subnet().set_power(kTwo.node, false, world_.now);
  subnet().set_power(kTwo.node, true, world_.now);
  EXPECT_EQ(subnet().status(kTwo).mtu_max, Mtu::k1024) << "the cable limits the MTU";
  subnet().set_mtu(link_of(kTwo), std::nullopt, world_.now);
  EXPECT_EQ(subnet().status(kTwo).mtu_max, Mtu::k4096);
}

// ---- P_Keys

TEST_F(FaultyHosts, APkeyThatIsRemovedIsNoLongerAccepted) {
  while (subnet().next_event()) {
  }
  EXPECT_FALSE(subnet().remove_pkey(kTwo, Pkey{0x8123}));
  EXPECT_FALSE(subnet().remove_pkey(kTwo, Pkey{}));
  ASSERT_TRUE(subnet().remove_pkey(kTwo, wire::kDefaultPkey));
  EXPECT_EQ(subnet().next_event().value().port, kTwo);
  EXPECT_EQ(subnet().status(kTwo).pkeys[0], Pkey{});
  EXPECT_TRUE(world_.send_data(kOne, world_.lid(kTwo)).empty());
  EXPECT_EQ(subnet().status(kTwo).pkey_violations, 1);
  EXPECT_TRUE(subnet().add_pkey(kTwo, wire::kDefaultPkey));
  EXPECT_EQ(subnet().status(kTwo).pkeys[0], wire::kDefaultPkey);
  EXPECT_EQ(world_.send_data(kOne, world_.lid(kTwo)), Ports{kTwo});
}

TEST_F(FaultyHosts, APkeyCannotBeAddedToAFullTable) {
  EXPECT_TRUE(subnet().add_pkey(kTwo, wire::kDefaultPkey)) << "the table has the P_Key already";
  for (std::uint16_t i = 1; i < kPartitionCap; ++i) {
    ASSERT_TRUE(subnet().add_pkey(kTwo, Pkey{static_cast<std::uint16_t>(0x8000 + i)}));
  }
  EXPECT_FALSE(subnet().add_pkey(kTwo, Pkey{0x9000}));
}

}  // namespace
}  // namespace verbena::subnet
