#include "subnet/subnet.h"

#include <gtest/gtest.h>

#include <functional>

#include "subnet/generate.h"
#include "subnet/test_subnet.h"
#include "wire/notice.h"
#include "wire/performance.h"

// Most tests use three hosts (nodes 1 to 3) at one switch (node 0), which a manager at host 1 has
// configured.  The tests of loops use other topologies.
namespace verbena::subnet {
namespace {

using wire::Method;
using wire::PortInfo;
using wire::Smp;
using wire::SmpAttribute;
using wire::SmpData;

class ManagedHosts : public testing::Test {
 protected:
  static constexpr PortRef kHost1{1, 1};
  static constexpr PortRef kHost2{2, 1};
  static constexpr PortRef kHost3{3, 1};
  using Ports = std::vector<PortRef>;

  // The manager stops after it has configured the subnet, so that it does not undo changes of
  // tests.
  void SetUp() override {
    ASSERT_TRUE(world_.settle());
    world_.manager_is_connected = false;
  }

  std::optional<Smp> request_smp(Method method, SmpAttribute attribute, std::uint32_t modifier,
                                 const std::vector<std::uint8_t>& path, const SmpData& data = {}) {
    return world_.send_smp(kHost1, directed_smp(method, attribute, modifier, path, data));
  }
  void set_attribute(SmpAttribute attribute, std::uint32_t modifier,
                     const std::vector<std::uint8_t>& path, const SmpData& data) {
    const auto answer = request_smp(Method::kSet, attribute, modifier, path, data);
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->header.status, wire::kSmpReturning);
  }
  void change_port(std::uint32_t port, const std::vector<std::uint8_t>& path,
                   const std::function<void(PortInfo&)>& change) {
    const auto answer = request_smp(Method::kGet, SmpAttribute::kPortInfo, port, path);
    ASSERT_TRUE(answer.has_value());
    auto info = wire::from_smp_data<PortInfo>(answer->data);
    info.port_state = wire::PortState::kNop;
    info.port_physical_state = wire::PortPhysicalState::kNop;
    change(info);
    set_attribute(SmpAttribute::kPortInfo, port, path, wire::smp_data(info));
  }

  // Sends a MAD from QP1 of host 1, and returns the MAD that host 1 gets as the answer.
  std::optional<mad::Mad> request_gsi(Lid to, const wire::MadHeader& header,
                                      std::span<const std::byte> data = {}) {
    mad::SendMad send{.to = {.path = {.destination_lid = to}}};
    wire::encode_to(send.mad, header);
    std::ranges::copy(data, send.mad.begin() + wire::kPerformanceDataOffset);
    world_.subnet.send_mad(kHost1, send, world_.now).value();
    while (auto delivery = world_.subnet.next_delivery()) {
      const auto mad = world_.subnet.as_mad(*delivery);
      if (delivery->port == kHost1 && mad) return mad->mad;
    }
    return std::nullopt;
  }
  template <class Attribute>
  Attribute request_counters(Method method, wire::PerformanceAttribute id, Lid to,
                             const Attribute& request) {
    const auto answer = request_gsi(to,
                                    {.mgmt_class = wire::MgmtClass::kPerformance,
                                     .class_version = 1,
                                     .method = method,
                                     .attribute_id = std::to_underlying(id)},
                                    wire::encode(request));
    EXPECT_TRUE(answer.has_value());
    if (!answer) return {};
    EXPECT_EQ(wire::decode<wire::MadHeader>(*answer)->status, 0);
    return *wire::decode<Attribute>(std::span(*answer).subspan(wire::kPerformanceDataOffset));
  }
  wire::PortCounters counters(Lid to, std::uint8_t port) {
    return request_counters(Method::kGet, wire::PerformanceAttribute::kPortCounters, to,
                            wire::PortCounters{.port_select = port});
  }

  // Takes the next trap that has arrived at the manager's port.
  std::optional<wire::Notice> next_trap() {
    while (auto delivery = world_.subnet.next_delivery()) {
      const auto mad = world_.subnet.as_mad(*delivery);
      if (!mad) continue;
      const auto smp = wire::decode_exact<Smp>(mad->mad);
      if (smp.header.method == Method::kTrap) return wire::from_smp_data<wire::Notice>(smp.data);
    }
    return std::nullopt;
  }

  Lid lid(PortRef port) const { return world_.lid(port); }

  ManagedSubnet world_{*make_hosts(3), kHost1};
};

TEST_F(ManagedHosts, APacketArrivesUnchangedAndOnce) {
  const Packet packet = world_.data_packet(kHost1, lid(kHost2), wire::kDefaultPkey, 64);
  world_.subnet.send(kHost1, packet, world_.now);
  const auto delivery = world_.subnet.next_delivery();
  ASSERT_TRUE(delivery.has_value());
  EXPECT_EQ(delivery->port, kHost2);
  EXPECT_EQ(delivery->destination_qpn, ManagedSubnet::kDataQpn);
  EXPECT_EQ(delivery->packet, packet);
  EXPECT_TRUE(link::open_infiniband(delivery->packet).has_value());
  EXPECT_FALSE(world_.subnet.next_delivery().has_value());
}

TEST_F(ManagedHosts, PacketsOfAPathKeepTheirOrder) {
  for (std::size_t i = 1; i <= 100; ++i) {
    world_.subnet.send(kHost1, world_.data_packet(kHost1, lid(kHost2), wire::kDefaultPkey, i * 4),
                       world_.now);
  }
  std::size_t last_size = 0;
  for (std::size_t i = 1; i <= 100; ++i) {
    const auto delivery = world_.subnet.next_delivery();
    ASSERT_TRUE(delivery.has_value());
    EXPECT_GT(delivery->packet.size(), last_size);
    last_size = delivery->packet.size();
  }
}

TEST_F(ManagedHosts, APacketToAnUnknownLidIsLostAndCounted) {
  EXPECT_EQ(world_.send_data(kHost1, Lid{77}), Ports{});
  EXPECT_EQ(world_.send_data(kHost1, Lid{0}), Ports{});
  const auto count = counters(lid({0, 0}), 1);
  EXPECT_EQ(count.rcv_switch_relay_errors, 2);
  const auto details =
      request_counters(Method::kGet, wire::PerformanceAttribute::kPortRcvErrorDetails, lid({0, 0}),
                       wire::PortRcvErrorDetails{.port_select = 1});
  EXPECT_EQ(details.dlid_mapping_errors, 2);
}

TEST_F(ManagedHosts, APacketLargerThanTheMtuIsLostAndCounted) {
  EXPECT_EQ(world_.send_data(kHost1, lid(kHost2), wire::kDefaultPkey, 4096), Ports{kHost2});
  change_port(2, {1}, [](PortInfo& info) { info.neighbor_mtu = 4; });
  EXPECT_EQ(world_.send_data(kHost1, lid(kHost2), wire::kDefaultPkey, 2048), Ports{kHost2});
  EXPECT_EQ(world_.send_data(kHost1, lid(kHost2), wire::kDefaultPkey, 2052), Ports{});
  EXPECT_EQ(counters(lid({0, 0}), 2).xmit_discards, 1);
  const auto details =
      request_counters(Method::kGet, wire::PerformanceAttribute::kPortXmitDiscardDetails,
                       lid({0, 0}), wire::PortXmitDiscardDetails{.port_select = 2});
  EXPECT_EQ(details.neighbor_mtu_discards, 1);
}

TEST_F(ManagedHosts, DataNeedsActivePortsAndActivatesAnArmedPort) {
  const auto bring_port_to = [&](wire::PortState state) {
    change_port(1, {1, 2}, [](PortInfo& info) { info.port_state = wire::PortState::kDown; });
    change_port(2, {1}, [](PortInfo& info) { info.port_state = wire::PortState::kArmed; });
    change_port(2, {1}, [](PortInfo& info) { info.port_state = wire::PortState::kActive; });
    if (state == wire::PortState::kInit) return;
    change_port(1, {1, 2}, [&](PortInfo& info) { info.port_state = state; });
  };
  bring_port_to(wire::PortState::kInit);
  EXPECT_EQ(world_.send_data(kHost1, lid(kHost2)), Ports{});
  bring_port_to(wire::PortState::kArmed);
  EXPECT_EQ(world_.subnet.status(kHost2).state, PortState::kArmed);
  EXPECT_EQ(world_.send_data(kHost2, lid(kHost1)), Ports{});
  EXPECT_EQ(world_.send_data(kHost1, lid(kHost2)), Ports{kHost2});
  EXPECT_EQ(world_.subnet.status(kHost2).state, PortState::kActive);
  EXPECT_EQ(world_.send_data(kHost2, lid(kHost1)), Ports{kHost1});
}

TEST_F(ManagedHosts, APortAnswersToAllLidsOfItsLmc) {
  change_port(1, {1, 2}, [](PortInfo& info) { info.lid = Lid{8}, info.lmc = 2; });
  wire::LftBlock block;
  block.fill(wire::kLftNoPort);
  for (std::size_t i = 8; i < 12; ++i) block[i] = 2;
  set_attribute(SmpAttribute::kLinearForwardingTable, 0, {1}, wire::encode_lft(block));
  set_attribute(SmpAttribute::kSwitchInfo, 0, {1},
                wire::smp_data(wire::SwitchInfo{.linear_fdb_top = 12}));
  for (std::uint16_t to = 8; to < 12; ++to) {
    EXPECT_EQ(world_.send_data(kHost1, Lid{to}), Ports{kHost2}) << to;
  }
  EXPECT_EQ(world_.send_data(kHost1, Lid{12}), Ports{});
}

TEST_F(ManagedHosts, GroupMembersAndTheSenderGetACopy) {
  wire::MftBlock masks{};
  masks[1] = 1u << 1 | 1u << 2 | 1u << 3;
  set_attribute(SmpAttribute::kMulticastForwardingTable, 0, {1}, wire::encode_mft(masks));
  EXPECT_EQ(world_.send_data(kHost1, Lid{0xc001}), (Ports{kHost1, kHost2, kHost3}));
  EXPECT_EQ(world_.send_data(kHost1, Lid{0xc002}), Ports{kHost1});
  EXPECT_EQ(request_counters(Method::kGet, wire::PerformanceAttribute::kPortCountersExtended,
                             lid(kHost2), wire::PortCountersExtended{.port_select = 1})
                .multicast_rcv_packets,
            1u);
}

TEST_F(ManagedHosts, APartitionIsEnforcedAtTheDestination) {
  set_attribute(SmpAttribute::kPkeyTable, 0, {1, 2}, wire::encode_pkeys({Pkey{0x8001}, Pkey{2}}));
  EXPECT_EQ(world_.send_data(kHost1, lid(kHost2), Pkey{0x8001}), Ports{kHost2});
  EXPECT_EQ(world_.send_data(kHost1, lid(kHost2), Pkey{0x0001}), Ports{kHost2});
  EXPECT_EQ(world_.send_data(kHost1, lid(kHost2), Pkey{0x8002}), Ports{kHost2});
  EXPECT_EQ(world_.subnet.status(kHost2).pkey_violations, 0);
  world_.subnet.send(kHost1, world_.data_packet(kHost1, lid(kHost2), Pkey{0x0002}, 64), world_.now);
  EXPECT_EQ(world_.subnet.status(kHost2).pkey_violations, 1);
  const auto trap = next_trap();
  ASSERT_TRUE(trap.has_value());
  EXPECT_EQ(trap->trap_number, wire::TrapNumber::kBadPkey);
  EXPECT_EQ(trap->issuer, lid(kHost2));
  const auto details = wire::decode_exact<wire::BadKey>(trap->details);
  EXPECT_EQ(details.key, 2u);
  EXPECT_EQ(details.source, lid(kHost1));
  EXPECT_EQ(details.source_qpn, Qpn{4});
}

TEST_F(ManagedHosts, APartitionIsEnforcedAtTheSwitch) {
  set_attribute(SmpAttribute::kPkeyTable, 0x00020000, {1}, wire::encode_pkeys({Pkey{0x0001}}));
  change_port(2, {1}, [](PortInfo& info) {
    info.partition_enforcement_inbound = info.partition_enforcement_outbound = true;
  });
  set_attribute(SmpAttribute::kPkeyTable, 0, {1, 2}, wire::encode_pkeys({Pkey{0x0001}}));
  set_attribute(SmpAttribute::kPkeyTable, 0, {}, wire::encode_pkeys({Pkey{0xffff}, Pkey{0x8001}}));
  // A limited member accepts packets only from full members.  It must send with the P_Key of a
  // limited member.
  EXPECT_EQ(world_.send_data(kHost1, lid(kHost2), Pkey{0x8001}), Ports{kHost2});
  EXPECT_EQ(world_.send_data(kHost2, lid(kHost1), Pkey{0x0001}), Ports{kHost1});
  EXPECT_EQ(world_.send_data(kHost2, lid(kHost1), Pkey{0x8001}), Ports{});
  EXPECT_EQ(world_.send_data(kHost1, lid(kHost2), Pkey{0x0001}), Ports{});
  EXPECT_EQ(world_.send_data(kHost1, lid(kHost2)), Ports{});
  const auto count = counters(lid({0, 0}), 2);
  EXPECT_EQ(count.rcv_constraint_errors, 1);
  EXPECT_EQ(count.xmit_constraint_errors, 2);
  EXPECT_EQ(world_.subnet.status(kHost2).pkey_violations, 0)
      << "the switch dropped the packets before they reached the host";

  world_.subnet.send(kHost2, world_.data_packet(kHost2, lid(kHost1), Pkey{0x8003}, 64), world_.now);
  const auto trap = next_trap();
  ASSERT_TRUE(trap.has_value());
  EXPECT_EQ(trap->trap_number, wire::TrapNumber::kBadPkeyAtSwitch);
  const auto details = wire::decode_exact<wire::BadPkeyAtSwitch>(trap->details);
  EXPECT_EQ(details.port, 2);
  EXPECT_EQ(details.pkey, Pkey{0x8003});
  EXPECT_EQ(details.switch_lid, lid({0, 0}));
}

TEST_F(ManagedHosts, ALimitedMemberAnswersAsALimitedMember) {
  constexpr Pkey kLimitedPkey{0x7fff};
  set_attribute(SmpAttribute::kPkeyTable, 0x00020000, {1}, wire::encode_pkeys({kLimitedPkey}));
  change_port(2, {1}, [](PortInfo& info) {
    info.partition_enforcement_inbound = info.partition_enforcement_outbound = true;
  });
  set_attribute(SmpAttribute::kPkeyTable, 0, {1, 2}, wire::encode_pkeys({kLimitedPkey}));
  EXPECT_GT(counters(lid(kHost2), 1).rcv_packets, 0u);
  EXPECT_EQ(counters(lid({0, 0}), 2).rcv_constraint_errors, 0);
}

TEST_F(ManagedHosts, ATrapIsRepeatedUntilItIsRepressed) {
  world_.subnet.set_link(2, false, world_.now);
  const auto first = world_.subnet.next_delivery();
  ASSERT_TRUE(first.has_value());
  const auto mad = world_.subnet.as_mad(*first).value();
  Smp smp = wire::decode_exact<Smp>(mad.mad);
  const auto notice = wire::from_smp_data<wire::Notice>(smp.data);
  EXPECT_EQ(notice.trap_number, wire::TrapNumber::kLinkStateChange);
  EXPECT_EQ(wire::decode_exact<wire::LinkStateChange>(notice.details).switch_lid, lid({0, 0}));

  const Time next_send = world_.subnet.next_deadline();
  EXPECT_GE(next_send - world_.now, std::chrono::seconds(1))
      << "PortInfo.SubnetTimeOut is the interval";
  world_.subnet.advance(next_send);
  EXPECT_TRUE(world_.subnet.next_delivery().has_value());
  smp.header.method = Method::kTrapRepress;
  world_.subnet.send_mad(kHost1, {.to = mad.from, .mad = wire::encode(smp)}, next_send).value();
  EXPECT_EQ(world_.subnet.next_deadline(), kNever);
}

TEST_F(ManagedHosts, ANewManagerIsReportedByTrap144) {
  world_.subnet.set_is_sm(kHost3, true, world_.now);
  const auto trap = next_trap();
  ASSERT_TRUE(trap.has_value());
  EXPECT_EQ(trap->trap_number, wire::TrapNumber::kLocalChange);
  const auto details = wire::decode_exact<wire::LocalChange>(trap->details);
  EXPECT_EQ(details.lid, lid(kHost3));
  EXPECT_EQ(details.capability_mask & wire::port_capability::kIsSm, wire::port_capability::kIsSm);
}

TEST_F(ManagedHosts, AWrongMkeyIsReportedByTrap256) {
  change_port(1, {1, 2}, [](PortInfo& info) { info.m_key = 0x1234; });
  Smp smp = directed_smp(Method::kSet, SmpAttribute::kPkeyTable, 1, {1, 2});
  smp.m_key = 0x99;
  world_.subnet
      .send_mad(
          kHost1,
          {.to = {.path = {.destination_lid = wire::kPermissiveLid}, .remote_qpn = wire::kSmiQpn},
           .mad = wire::encode(smp)},
          world_.now)
      .value();
  const auto trap = next_trap();
  ASSERT_TRUE(trap.has_value());
  EXPECT_EQ(trap->trap_number, wire::TrapNumber::kBadMkey);
  const auto details = wire::decode_exact<wire::BadMkey>(trap->details);
  EXPECT_EQ(details.m_key, 0x99u);
  EXPECT_EQ(details.attribute_id, std::to_underlying(SmpAttribute::kPkeyTable));
  EXPECT_EQ(details.attribute_modifier, 1u);
  EXPECT_TRUE(details.is_directed);
  EXPECT_EQ(details.hop_count, 2);
  EXPECT_EQ(details.return_path[1], std::byte{1});
}

TEST_F(ManagedHosts, AWrongQkeyOfAManagementDatagramIsReportedByTrap258) {
  std::vector<std::byte> transport(wire::header_bytes(wire::Opcode::kUdSendOnly) + wire::kMadBytes);
  wire::write_headers(
      transport, {.bth = {.opcode = wire::Opcode::kUdSendOnly, .destination_qpn = wire::kGsiQpn},
                  .deth = {.qkey = Qkey{5}, .source_qpn = wire::kGsiQpn}});
  world_.subnet.send(kHost1,
                     link::seal_infiniband({.link_layer = LinkLayer::kInfiniband,
                                            .source_lid = lid(kHost1),
                                            .destination_lid = lid(kHost2)},
                                           transport),
                     world_.now);
  EXPECT_EQ(world_.subnet.status(kHost2).qkey_violations, 1);
  const auto trap = next_trap();
  ASSERT_TRUE(trap.has_value());
  EXPECT_EQ(trap->trap_number, wire::TrapNumber::kBadQkey);
  EXPECT_EQ(wire::decode_exact<wire::BadKey>(trap->details).key, 5u);
}

TEST_F(ManagedHosts, CountersGrowWithTrafficAndCanBeReset) {
  const auto before = counters(lid(kHost2), 1);
  EXPECT_EQ(world_.send_data(kHost1, lid(kHost2), wire::kDefaultPkey, 256), Ports{kHost2});
  const auto after = counters(lid(kHost2), 1);
  // The request for the counters is a packet of the same size, and is counted as well.
  constexpr std::uint32_t kWords = (8 + 12 + 8 + 256 + 4) / 4;
  EXPECT_EQ(after.rcv_packets - before.rcv_packets, 2u);
  EXPECT_EQ(after.rcv_data - before.rcv_data, 2 * kWords);
  EXPECT_EQ(after.xmit_packets - before.xmit_packets, 1u);

  const auto reset = request_counters(
      Method::kSet, wire::PerformanceAttribute::kPortCounters, lid(kHost2),
      wire::PortCounters{.port_select = 1, .counter_select = 0x8000, .rcv_packets = 7});
  EXPECT_EQ(reset.rcv_packets, 7u);
  EXPECT_GT(reset.rcv_data, 0u) << "the counter was not selected";
  EXPECT_GT(request_counters(Method::kGet, wire::PerformanceAttribute::kPortCountersExtended,
                             lid(kHost2), wire::PortCountersExtended{.port_select = 1})
                .rcv_packets,
            7u)
      << "a Set of PortCounters does not change PortCountersExtended";
}

TEST_F(ManagedHosts, SelectingAllPortsReturnsTheSumOfTheirCounters) {
  const auto all = counters(lid({0, 0}), wire::kAllPorts);
  const auto one = counters(lid({0, 0}), 1);
  EXPECT_GT(all.rcv_packets, one.rcv_packets);
}

TEST_F(ManagedHosts, ManagementClassesWithoutAnAgentAreRefused) {
  const auto status = [&](Lid to, wire::MgmtClass mgmt_class, std::uint16_t attribute) {
    const auto answer = request_gsi(to, {.mgmt_class = mgmt_class,
                                         .class_version = 1,
                                         .method = Method::kGet,
                                         .attribute_id = attribute});
    return answer ? wire::decode<wire::MadHeader>(*answer)->status : std::uint16_t{0xdead};
  };
  using namespace wire::mad_status;
  const Lid switch_lid = lid({0, 0});
  EXPECT_EQ(status(switch_lid, wire::MgmtClass::kVendorOuiFirst, 1), kMethodAttributeNotSupported);
  EXPECT_EQ(status(switch_lid, wire::MgmtClass::kCongestion, 1), kMethodAttributeNotSupported);
  EXPECT_EQ(status(switch_lid, wire::MgmtClass::kPerformance, 0x10), kMethodAttributeNotSupported);
  EXPECT_EQ(status(lid(kHost2), wire::MgmtClass::kPerformance, 0x11), kMethodAttributeNotSupported);
  EXPECT_EQ(status(lid(kHost2), wire::MgmtClass::kPerformance, 0x1), 0);
  // At an HCA, the owner of the subnet passes such MADs to programs, but this test has no programs.
  EXPECT_EQ(status(lid(kHost2), wire::MgmtClass::kVendorOuiFirst, 1), 0xdead);
}

TEST_F(ManagedHosts, AMadToTheLidOfTheSendingPortReachesThatPort) {
  const auto answer = request_counters(Method::kGet, wire::PerformanceAttribute::kPortCounters,
                                       lid(kHost1), wire::PortCounters{.port_select = 1});
  EXPECT_GT(answer.xmit_packets, 0u);
}

TEST_F(ManagedHosts, AnSmpByLidReachesSwitchesAndHosts) {
  for (const PortRef port : {kHost1, kHost2, PortRef{0, 0}}) {
    Smp smp = directed_smp(Method::kGet, SmpAttribute::kNodeInfo, 0, {});
    smp.header.mgmt_class = wire::MgmtClass::kSubnetManagementLid;
    const auto answer = world_.send_smp(kHost1, smp, lid(port));
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->header.status, 0);
    EXPECT_EQ(wire::from_smp_data<wire::NodeInfo>(answer->data).node_guid,
              world_.subnet.topology().nodes[port.node].node_guid);
  }
}

TEST_F(ManagedHosts, ADirectedRouteMayBeginWithALidRoutedPart) {
  Smp smp = directed_smp(Method::kGet, SmpAttribute::kNodeInfo, 0, {2});
  smp.dr_source = lid(kHost1);
  const auto answer = world_.send_smp(kHost1, smp, lid({0, 0}));
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(wire::from_smp_data<wire::NodeInfo>(answer->data).node_guid,
            world_.subnet.topology().nodes[2].node_guid);
}

TEST_F(ManagedHosts, APacketInALoopIsLost) {
  Topology ring;
  const auto a = ring.add_switch("a", 3), b = ring.add_switch("b", 3), h = ring.add_hca("h");
  ring.connect({h, 1}, {a, 1});
  ring.connect({a, 2}, {b, 2});
  ring.connect({a, 3}, {b, 3});
  set_missing_guids(ring);
  ManagedSubnet world(ring, {h, 1});
  ASSERT_TRUE(world.settle());
  const auto forward_all_lids = [&](const std::vector<std::uint8_t>& path, std::uint8_t port) {
    wire::LftBlock block;
    block.fill(port);
    (void)world.send_smp({h, 1}, directed_smp(Method::kSet, SmpAttribute::kLinearForwardingTable, 0,
                                              path, wire::encode_lft(block)));
  };
  forward_all_lids({1}, 2);
  forward_all_lids({1, 2}, 3);
  (void)world.send_smp({h, 1},
                       directed_smp(Method::kSet, SmpAttribute::kSwitchInfo, 0, {1},
                                    wire::smp_data(wire::SwitchInfo{.linear_fdb_top = 60})));
  (void)world.send_smp({h, 1},
                       directed_smp(Method::kSet, SmpAttribute::kSwitchInfo, 0, {1, 2},
                                    wire::smp_data(wire::SwitchInfo{.linear_fdb_top = 60})));
  EXPECT_TRUE(world.send_data({h, 1}, Lid{50}).empty());
  EXPECT_EQ(world.subnet.counters().too_many_hops, 1u);
}

TEST_F(ManagedHosts, ANodeThatIsSwitchedOffSendsNoTrapsAndReportsItsPorts) {
  world_.subnet.set_is_sm(kHost3, true, world_.now);
  ASSERT_EQ(next_trap().value().trap_number, wire::TrapNumber::kLocalChange);
  ASSERT_NE(world_.subnet.next_deadline(), kNever) << "the trap is repeated";
  while (world_.subnet.next_event()) {
  }
  world_.subnet.set_power(3, false, world_.now);
  std::vector<PortRef> ports;
  while (const auto event = world_.subnet.next_event()) ports.push_back(event->port);
  EXPECT_EQ(std::ranges::count(ports, kHost3), 1);
  world_.subnet.set_power(3, true, world_.now);
  EXPECT_NE(world_.subnet.status(kHost3).capability_mask & wire::port_capability::kIsSm, 0u)
      << "the manager on the node still runs";
  // The switch repeats trap 128, but the host does not repeat its own trap.
  world_.subnet.advance(world_.subnet.next_deadline());
  while (const auto delivery = world_.subnet.next_delivery()) {
    const auto smp = wire::decode_exact<Smp>(world_.subnet.as_mad(*delivery).value().mad);
    EXPECT_EQ(wire::from_smp_data<wire::Notice>(smp.data).trap_number,
              wire::TrapNumber::kLinkStateChange);
  }
}

TEST_F(ManagedHosts, ASwitchThatIsSwitchedOnAgainHasEmptyTables) {
  world_.subnet.set_power(0, false, world_.now);
  EXPECT_EQ(world_.subnet.status(kHost2).state, PortState::kDown);
  EXPECT_EQ(world_.send_data(kHost1, lid(kHost2)), Ports{});
  world_.subnet.set_power(0, true, world_.now);
  EXPECT_EQ(world_.subnet.status(kHost2).state, PortState::kInit);
  EXPECT_EQ(world_.lid({0, 0}), Lid{});
  world_.manager_is_connected = true;
  world_.now = world_.manager.next_deadline();
  world_.manager.advance(world_.now);
  ASSERT_TRUE(world_.settle());
  EXPECT_EQ(world_.send_data(kHost1, lid(kHost2)), Ports{kHost2});
}

TEST_F(ManagedHosts, InvalidPacketsAreCountedAndLost) {
  world_.subnet.send(kHost1, {}, world_.now);
  world_.subnet.send(kHost1, Packet(7), world_.now);
  world_.subnet.send(kHost1, Packet(64), world_.now);
  Packet mad =
      seal_mad({.address = {.link_layer = LinkLayer::kInfiniband, .destination_lid = lid(kHost2)},
                .pkey = wire::kDefaultPkey,
                .destination_qpn = wire::kGsiQpn});
  mad[60] ^= std::byte{1};
  world_.subnet.send(kHost1, mad, world_.now);
  EXPECT_EQ(world_.subnet.counters().malformed, 4u);
  EXPECT_FALSE(world_.subnet.next_delivery().has_value());
}

TEST_F(ManagedHosts, PendingDeliveriesAreLimited) {
  const Packet packet = world_.data_packet(kHost1, lid(kHost2), wire::kDefaultPkey, 4);
  for (std::size_t i = 0; i < kDeliveriesMax + 5; ++i) {
    world_.subnet.send(kHost1, packet, world_.now);
  }
  EXPECT_EQ(world_.subnet.counters().dropped_deliveries, 5u);
  EXPECT_TRUE(request_smp(Method::kGet, SmpAttribute::kNodeInfo, 0, {1}).has_value())
      << "SMPs have a queue of their own";
}

TEST_F(ManagedHosts, AnUnknownPkeyIndexIsRefused) {
  const auto result = world_.subnet.send_mad(
      kHost1, {.to = {.path = {.destination_lid = lid(kHost2)}, .pkey_index = 64}}, world_.now);
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, Errc::kInvalidArgument);
}

// PortInfo has no codes for FDR10 and XDR.
TEST(LinkSpeeds, APortHasTheSpeedOfItsCable) {
  using enum LinkSpeed;
  for (const LinkSpeed speed : {kSdr, kDdr, kQdr, kFdr10, kFdr, kEdr, kHdr, kNdr, kXdr}) {
    Topology topology = *make_hosts(1);
    topology.links.at(0).speed = speed;
    const PortRef end = topology.links.at(0).a;
    const Subnet subnet(std::move(topology));
    EXPECT_EQ(subnet.status(end).speed_active, speed);
  }
}

TEST(LinkSpeeds, PortInfoShowsTheNearestSlowerSpeed) {
  EXPECT_EQ(speed_in_port_info(LinkSpeed::kFdr10), LinkSpeed::kQdr);
  EXPECT_EQ(speed_in_port_info(LinkSpeed::kXdr), LinkSpeed::kNdr);
  EXPECT_EQ(speed_in_port_info(LinkSpeed::kNdr), LinkSpeed::kNdr);
}

}  // namespace
}  // namespace verbena::subnet
