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
  static constexpr PortRef kHost1{1, 1};
  static constexpr PortRef kHost2{2, 1};
  static constexpr PortRef kHost3{3, 1};
  static constexpr std::uint32_t kSwitch = 0;
  using Ports = std::vector<PortRef>;

  void SetUp() override { ASSERT_TRUE(world_.settle()); }

  Subnet& subnet() { return world_.subnet; }
  std::size_t link_of(PortRef port) { return subnet().topology().link_at(port).value(); }
  void send(PortRef from, PortRef to, std::size_t bytes = 64) {
    subnet().send(from, world_.data_packet(from, world_.lid(to), wire::kDefaultPkey, bytes),
                  world_.now);
  }
  // Sends a request for the NodeInfo of host 2 by a directed route.
  void send_smp_to_host2() {
    const Link& link = subnet().topology().links[link_of(kHost2)];
    const std::uint8_t egress = (link.a == kHost2 ? link.b : link.a).port;
    const auto smp =
        directed_smp(wire::Method::kGet, wire::SmpAttribute::kNodeInfo, 0, {1, egress});
    EXPECT_FALSE(world_.send_smp(kHost1, smp).has_value());
  }
  // Takes all deliveries, and returns true if an SMP has arrived at the port before other packets.
  bool take_smp_first(PortRef port) {
    bool is_first = true, smp_was_first = false;
    while (const auto delivery = subnet().next_delivery()) {
      if (delivery->port != port) continue;
      smp_was_first |= is_first && delivery->destination_qpn == wire::kSmiQpn;
      is_first = false;
    }
    return smp_was_first;
  }
  // Takes all deliveries, and returns the payload sizes of the data packets at this port.
  std::vector<std::size_t> take_sizes(PortRef port) {
    std::vector<std::size_t> sizes;
    while (const auto delivery = subnet().next_delivery()) {
      if (delivery->port != port || delivery->destination_qpn != ManagedSubnet::kDataQpn) continue;
      sizes.push_back(view_packet(delivery->packet)->payload_bytes);
    }
    return sizes;
  }
  std::vector<std::size_t> take_sizes_after(PortRef port, Duration time) {
    world_.now += time;
    subnet().advance(world_.now);
    return take_sizes(port);
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
    subnet().send_mad(kHost1, request, world_.now).value();
    while (const auto delivery = subnet().next_delivery()) {
      const auto mad = subnet().as_mad(*delivery);
      if (delivery->port != kHost1 || !mad) continue;
      return *wire::decode<wire::PortCounters>(
          std::span(mad->mad).subspan(wire::kPerformanceDataOffset));
    }
    ADD_FAILURE() << "the PMA did not answer";
    return {};
  }
  static PortRef lid_port(PortRef port) {
    return port.node == kSwitch ? PortRef{kSwitch, 0} : port;
  }

  ManagedSubnet world_{*make_hosts(3), kHost1};
};

// ---- pauses

TEST_F(FaultyHosts, APausedHostReceivesItsPacketsAfterThePause) {
  subnet().set_paused(kHost2.node, true, world_.now);
  EXPECT_TRUE(subnet().is_paused(kHost2.node));
  for (const std::size_t bytes : {4u, 8u, 12u}) send(kHost1, kHost2, bytes);
  EXPECT_TRUE(take_sizes(kHost2).empty());
  EXPECT_EQ(subnet().late(), 3u);
  subnet().set_paused(kHost2.node, false, world_.now);
  EXPECT_EQ(subnet().late(), 0u);
  EXPECT_EQ(take_sizes(kHost2), (std::vector<std::size_t>{4, 8, 12}))
      << "no packet is lost, and the packets keep their order";
  send(kHost1, kHost2, 16);
  EXPECT_EQ(take_sizes(kHost2), (std::vector<std::size_t>{16}));
}

TEST_F(FaultyHosts, APausedHostSendsItsPacketsAfterThePause) {
  subnet().set_paused(kHost2.node, true, world_.now);
  send(kHost2, kHost1, 4);
  send(kHost2, kHost1, 8);
  EXPECT_TRUE(take_sizes(kHost1).empty());
  subnet().set_paused(kHost2.node, false, world_.now);
  EXPECT_EQ(take_sizes(kHost1), (std::vector<std::size_t>{4, 8}));
}

TEST_F(FaultyHosts, AgentsOfAPausedNodeDoNotAnswer) {
  const auto smp = directed_smp(wire::Method::kGet, wire::SmpAttribute::kNodeInfo, 0, {1});
  ASSERT_TRUE(world_.send_smp(kHost1, smp).has_value());
  subnet().set_paused(kSwitch, true, world_.now);
  EXPECT_FALSE(world_.send_smp(kHost1, smp).has_value());
  subnet().set_paused(kSwitch, false, world_.now);
  EXPECT_TRUE(world_.send_smp(kHost1, smp).has_value());
}

TEST_F(FaultyHosts, APausedSwitchForwardsAfterThePause) {
  subnet().set_paused(kSwitch, true, world_.now);
  send(kHost1, kHost2);
  EXPECT_TRUE(take_sizes(kHost2).empty());
  subnet().set_paused(kSwitch, false, world_.now);
  EXPECT_EQ(take_sizes(kHost2).size(), 1u);
}

TEST_F(FaultyHosts, APausedNodeHasNoTimerForItsTraps) {
  subnet().set_paused(kSwitch, true, world_.now);
  subnet().set_link(link_of(kHost3), false, world_.now);  // the switch now has a pending trap
  EXPECT_EQ(subnet().next_deadline(), kNever);
  subnet().set_paused(kSwitch, false, world_.now);
  EXPECT_NE(subnet().next_deadline(), kNever) << "the trap is repeated";
}

TEST_F(FaultyHosts, PacketsForAPausedHostAreLimited) {
  subnet().set_paused(kHost2.node, true, world_.now);
  for (std::size_t i = 0; i < kDelayLineMax + 3; ++i) send(kHost1, kHost2);
  subnet().set_paused(kHost2.node, false, world_.now);
  EXPECT_EQ(take_sizes(kHost2).size(), kDelayLineMax);
  const auto port_counters = counters(kHost2);
  EXPECT_EQ(port_counters.rcv_errors, 3u);
  EXPECT_EQ(port_counters.excessive_buffer_overrun_errors, 3u);
}

TEST_F(FaultyHosts, ManagementPacketsForAPausedHostAreLimited) {
  subnet().set_paused(kHost2.node, true, world_.now);
  for (std::size_t i = 0; i < kDelayLineMax + 2; ++i) send_smp_to_host2();
  subnet().set_paused(kHost2.node, false, world_.now);
  EXPECT_TRUE(take_sizes(kHost2).empty());  // discards the answers to the SMPs
  EXPECT_EQ(counters(kHost2).vl15_dropped, 2u);
}

TEST_F(FaultyHosts, PacketsOfAPausedHostAreLimited) {
  subnet().set_paused(kHost2.node, true, world_.now);
  for (std::size_t i = 0; i < kDelayLineMax + 3; ++i) send(kHost2, kHost1);
  EXPECT_EQ(subnet().counters().paused_queue_full, 3u);
  subnet().set_paused(kHost2.node, false, world_.now);
  EXPECT_EQ(take_sizes(kHost1).size(), kDelayLineMax);
}

TEST_F(FaultyHosts, DataForAPausedHostTakesNoSpaceOfSmps) {
  subnet().set_paused(kHost2.node, true, world_.now);
  for (std::size_t i = 0; i < kDelayLineMax + 3; ++i) send(kHost1, kHost2);
  send_smp_to_host2();
  subnet().set_paused(kHost2.node, false, world_.now);
  EXPECT_TRUE(take_smp_first(kHost1)) << "the answer";
  EXPECT_EQ(counters(kHost2).vl15_dropped, 0u);
}

TEST_F(FaultyHosts, DataOfAPausedHostTakesNoSpaceOfSmps) {
  subnet().set_paused(kHost1.node, true, world_.now);
  for (std::size_t i = 0; i < kDelayLineMax + 3; ++i) send(kHost1, kHost2);
  send_smp_to_host2();
  subnet().set_paused(kHost1.node, false, world_.now);
  EXPECT_TRUE(take_smp_first(kHost1)) << "the answer";
}

TEST_F(FaultyHosts, AtTheEndOfAPauseSmpsAreForwardedBeforeData) {
  world_.manager_is_connected = false;
  subnet().set_paused(kHost1.node, true, world_.now);
  for (int i = 0; i < 3; ++i) send(kHost2, kHost1);
  subnet().set_link(link_of(kHost3), false, world_.now);  // the switch sends a trap to host 1
  subnet().set_paused(kHost1.node, false, world_.now);
  EXPECT_TRUE(take_smp_first(kHost1));
}

TEST_F(FaultyHosts, APauseEndsWhenTheNodeIsSwitchedOff) {
  subnet().set_paused(kHost2.node, true, world_.now);
  send(kHost1, kHost2);
  subnet().set_power(kHost2.node, false, world_.now);
  EXPECT_FALSE(subnet().is_paused(kHost2.node));
  subnet().set_paused(kHost2.node, true, world_.now);
  EXPECT_FALSE(subnet().is_paused(kHost2.node)) << "a node without power cannot be paused";
  subnet().set_power(kHost2.node, true, world_.now);
  EXPECT_TRUE(take_sizes(kHost2).empty());
}

TEST_F(FaultyHosts, ANodeThatAlreadyHasPowerKeepsItsTraps) {
  world_.manager_is_connected = false;  // no TrapRepress
  subnet().set_link(link_of(kHost3), false, world_.now);
  const Time next_send = subnet().next_deadline();
  ASSERT_NE(next_send, kNever) << "the trap is repeated";
  subnet().set_power(kSwitch, true, world_.now);
  EXPECT_EQ(subnet().next_deadline(), next_send);
}

// ---- lossy links

TEST_F(FaultyHosts, TheSeedDecidesWhichPacketsALossyLinkLoses) {
  const faults::Loss loss{.per_million = 300'000, .seed = 5};
  subnet().set_loss(link_of(kHost2), loss);
  std::size_t lost_packets = 0;
  for (std::uint64_t i = 0; i < 200; ++i) {
    send(kHost1, kHost2);
    const bool is_lost = faults::is_lost(loss, i);
    EXPECT_EQ(take_sizes(kHost2).size(), is_lost ? 0u : 1u) << i;
    lost_packets += is_lost ? 1 : 0;
  }
  EXPECT_GT(lost_packets, 0u);
  subnet().set_loss(link_of(kHost2), {});
  const auto port_counters = counters(kHost2);
  EXPECT_EQ(port_counters.symbol_errors, lost_packets);
  EXPECT_EQ(port_counters.rcv_errors, lost_packets);
}

TEST_F(FaultyHosts, OnlyTheLossyLinkLosesPackets) {
  subnet().set_loss(link_of(kHost2), {.per_million = faults::Loss::kAll});
  send(kHost1, kHost3);
  EXPECT_EQ(take_sizes(kHost3).size(), 1u);
  send(kHost2, kHost1);
  EXPECT_TRUE(take_sizes(kHost1).empty()) << "a lossy link loses packets in both directions";
}

// ---- slow links

TEST_F(FaultyHosts, PacketsOfASlowLinkAreLateAndInOrder) {
  subnet().set_delay(link_of(kHost2), 5ms);
  send(kHost1, kHost2, 4);
  EXPECT_EQ(subnet().next_deadline(), world_.now + 5ms);
  EXPECT_EQ(subnet().late(), 1u);
  EXPECT_TRUE(take_sizes_after(kHost2, 2ms).empty());
  subnet().set_delay(link_of(kHost2), 1ms);
  send(kHost1, kHost2, 8);
  EXPECT_TRUE(take_sizes_after(kHost2, 2ms).empty())
      << "the second packet does not overtake the first";
  EXPECT_EQ(take_sizes_after(kHost2, 1ms), (std::vector<std::size_t>{4, 8}));
}

// The time may have advanced since the last call, because an idle subnet has no deadline.
TEST_F(FaultyHosts, ADelayBeginsWhenThePacketIsSent) {
  subnet().set_delay(link_of(kHost2), 5ms);
  world_.now += 1s;
  send(kHost2, kHost1, 4);
  EXPECT_TRUE(take_sizes(kHost1).empty());
  EXPECT_EQ(take_sizes_after(kHost1, 5ms), (std::vector<std::size_t>{4}));
  subnet().set_paused(kHost2.node, true, world_.now);
  send(kHost2, kHost1, 8);
  world_.now += 1s;
  subnet().set_paused(kHost2.node, false, world_.now);
  EXPECT_TRUE(take_sizes(kHost1).empty()) << "a packet of a paused host is sent after the pause";
  EXPECT_EQ(take_sizes_after(kHost1, 5ms), (std::vector<std::size_t>{8}));
}

TEST_F(FaultyHosts, NoPacketOvertakesAnotherWhenADelayEnds) {
  subnet().set_delay(link_of(kHost2), 5ms);
  send(kHost1, kHost2, 4);
  subnet().set_delay(link_of(kHost2), {});
  send(kHost1, kHost2, 8);
  EXPECT_TRUE(take_sizes(kHost2).empty());
  EXPECT_EQ(take_sizes_after(kHost2, 5ms), (std::vector<std::size_t>{4, 8}));
  send(kHost1, kHost2, 12);
  EXPECT_EQ(take_sizes(kHost2), (std::vector<std::size_t>{12}));
}

TEST_F(FaultyHosts, PacketsOnALinkThatGoesDownAreLost) {
  subnet().set_delay(link_of(kHost2), 5ms);
  send(kHost2, kHost1);
  subnet().set_link(link_of(kHost2), false, world_.now);
  subnet().set_link(link_of(kHost2), true, world_.now);
  subnet().set_delay(link_of(kHost2), {});
  ASSERT_TRUE(world_.settle());
  EXPECT_TRUE(take_sizes_after(kHost1, 1s).empty());
  EXPECT_EQ(counters(kHost2).xmit_discards, 1u);
}

TEST_F(FaultyHosts, PacketsOnASlowLinkAreLimited) {
  const auto counters_before = counters(kHost2);
  subnet().set_delay(link_of(kHost2), 5ms);
  for (std::size_t i = 0; i < kDelayLineMax + 3; ++i) send(kHost2, kHost1);
  EXPECT_EQ(take_sizes_after(kHost1, 5ms).size(), kDelayLineMax);
  subnet().set_delay(link_of(kHost2), {});
  const auto counters_after = counters(kHost2);
  EXPECT_EQ(counters_after.xmit_discards, 3u);
  EXPECT_EQ(counters_after.xmit_packets - counters_before.xmit_packets, kDelayLineMax + 1)
      << "the answer with the first counters, and the packets that were not discarded";
}

TEST_F(FaultyHosts, DataOnASlowLinkTakesNoSpaceOfSmps) {
  subnet().set_delay(link_of(kHost2), 5ms);
  for (std::size_t i = 0; i < kDelayLineMax + 3; ++i) send(kHost1, kHost2);
  send_smp_to_host2();
  EXPECT_EQ(take_sizes_after(kHost2, 5ms).size(), kDelayLineMax);
  world_.now += 5ms;
  subnet().advance(world_.now);
  EXPECT_TRUE(take_smp_first(kHost1)) << "the answer";
}

// ---- MTUs

TEST_F(FaultyHosts, AnMtuLimitsBothPortsOfItsLink) {
  subnet().set_mtu(link_of(kHost2), Mtu::k1024, world_.now);
  EXPECT_EQ(subnet().status(kHost2).mtu_max, Mtu::k1024);
  EXPECT_EQ(subnet().state(kHost2), PortState::kInit) << "the link has trained again";
  ASSERT_TRUE(world_.settle());
  ASSERT_EQ(subnet().state(kHost2), PortState::kActive);
  EXPECT_EQ(subnet().status(kHost2).mtu_active, Mtu::k1024);
  EXPECT_EQ(world_.send_data(kHost1, world_.lid(kHost2), wire::kDefaultPkey, 1024), Ports{kHost2});
  EXPECT_EQ(world_.send_data(kHost1, world_.lid(kHost2), wire::kDefaultPkey, 1028), Ports{});
  subnet().set_power(kHost2.node, false, world_.now);
  subnet().set_power(kHost2.node, true, world_.now);
  EXPECT_EQ(subnet().status(kHost2).mtu_max, Mtu::k1024) << "the cable limits the MTU";
  subnet().set_mtu(link_of(kHost2), std::nullopt, world_.now);
  EXPECT_EQ(subnet().status(kHost2).mtu_max, Mtu::k4096);
}

// ---- P_Keys

TEST_F(FaultyHosts, APkeyThatIsRemovedIsNoLongerAccepted) {
  while (subnet().next_event()) {
  }
  EXPECT_FALSE(subnet().remove_pkey(kHost2, Pkey{0x8123}));
  EXPECT_FALSE(subnet().remove_pkey(kHost2, Pkey{}));
  ASSERT_TRUE(subnet().remove_pkey(kHost2, wire::kDefaultPkey));
  EXPECT_EQ(subnet().next_event().value().port, kHost2);
  EXPECT_EQ(subnet().status(kHost2).pkeys[0], Pkey{});
  EXPECT_TRUE(world_.send_data(kHost1, world_.lid(kHost2)).empty());
  EXPECT_EQ(subnet().status(kHost2).pkey_violations, 1);
  EXPECT_TRUE(subnet().add_pkey(kHost2, wire::kDefaultPkey));
  EXPECT_EQ(subnet().status(kHost2).pkeys[0], wire::kDefaultPkey);
  EXPECT_EQ(world_.send_data(kHost1, world_.lid(kHost2)), Ports{kHost2});
}

TEST_F(FaultyHosts, APkeyCannotBeAddedToAFullTable) {
  EXPECT_TRUE(subnet().add_pkey(kHost2, wire::kDefaultPkey)) << "the table has the P_Key already";
  for (std::uint16_t i = 1; i < kPartitionCap; ++i) {
    ASSERT_TRUE(subnet().add_pkey(kHost2, Pkey{static_cast<std::uint16_t>(0x8000 + i)}));
  }
  EXPECT_FALSE(subnet().add_pkey(kHost2, Pkey{0x9000}));
}

}  // namespace
}  // namespace verbena::subnet
