#include "subnet/sma.h"

#include <gtest/gtest.h>

#include <functional>

#include "subnet/generate.h"
#include "subnet/test_subnet.h"

// Each test sends SMPs from host 1 to the SMAs of a switch (node 0) and two hosts (nodes 1 and 2),
// as a manager does.  Host 1 is at port 1 of the switch.
namespace verbena::subnet {
namespace {

using wire::Method;
using wire::PortInfo;
using wire::PortPhysicalState;
using wire::Smp;
using wire::SmpAttribute;
using wire::SmpData;
using namespace wire::mad_status;

constexpr std::uint16_t kNoAnswer = 0xdead;

class Sma : public testing::Test {
 protected:
  static constexpr PortRef kHost1{1, 1};
  static constexpr PortRef kHost2{2, 1};
  using Path = std::vector<std::uint8_t>;
  const Path own_path_{};
  const Path switch_path_{1};
  const Path host2_path_{1, 2};

  std::optional<Smp> request(Method method, SmpAttribute attribute, std::uint32_t modifier,
                             const Path& path, const SmpData& data = {}) {
    Smp smp = directed_smp(method, attribute, modifier, path, data);
    smp.m_key = m_key_;
    return world_.send_smp(kHost1, smp);
  }
  std::uint16_t status(Method method, SmpAttribute attribute, std::uint32_t modifier,
                       const Path& path, const SmpData& data = {}) {
    const auto answer = request(method, attribute, modifier, path, data);
    if (!answer) return kNoAnswer;
    EXPECT_TRUE(answer->header.response);
    EXPECT_EQ(answer->header.method, Method::kGet);
    return answer->header.status & ~wire::kSmpReturning;
  }
  PortInfo port_info(std::uint32_t port, const Path& path) {
    const auto answer = request(Method::kGet, SmpAttribute::kPortInfo, port, path);
    EXPECT_TRUE(answer.has_value());
    return answer ? wire::from_smp_data<PortInfo>(answer->data) : PortInfo{};
  }
  // Reads the PortInfo of a port, calls `change` to modify it, and writes it.
  std::uint16_t change_port_info(std::uint32_t port, const Path& path,
                                 const std::function<void(PortInfo&)>& change) {
    PortInfo info = port_info(port, path);
    info.port_state = wire::PortState::kNop;
    info.port_physical_state = PortPhysicalState::kNop;
    change(info);
    return status(Method::kSet, SmpAttribute::kPortInfo, port, path, wire::smp_data(info));
  }
  static void configure(PortInfo& info, std::uint16_t lid) {
    info.lid = Lid{lid};
    info.master_sm_lid = Lid{1};
  }

  ManagedSubnet world_{*make_hosts(2), kHost1};
  std::uint64_t m_key_ = 0;
};

TEST_F(Sma, NodeInfoNamesThePortWhereTheRequestArrived) {
  const auto host1_info = wire::from_smp_data<wire::NodeInfo>(
      request(Method::kGet, SmpAttribute::kNodeInfo, 0, own_path_)->data);
  EXPECT_EQ(host1_info.node_type, wire::NodeType::kChannelAdapter);
  EXPECT_EQ(host1_info.num_ports, 1);
  EXPECT_EQ(host1_info.port_guid, world_.subnet.topology().nodes[1].port_guid(1));
  const auto sw = wire::from_smp_data<wire::NodeInfo>(
      request(Method::kGet, SmpAttribute::kNodeInfo, 0, switch_path_)->data);
  EXPECT_EQ(sw.node_type, wire::NodeType::kSwitch);
  EXPECT_EQ(sw.num_ports, 2);
  EXPECT_EQ(sw.local_port_num, 1);
  EXPECT_EQ(sw.node_guid, sw.port_guid);
  const auto host2_info = wire::from_smp_data<wire::NodeInfo>(
      request(Method::kGet, SmpAttribute::kNodeInfo, 0, host2_path_)->data);
  EXPECT_EQ(host2_info.port_guid, world_.subnet.topology().nodes[2].port_guid(1));
}

TEST_F(Sma, NodeDescriptionIsTheName) {
  const auto answer = request(Method::kGet, SmpAttribute::kNodeDescription, 0, host2_path_);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(answer->data.data())), "host2");
}

TEST_F(Sma, AnswerReturnsByTheDirectedRouteOfTheRequest) {
  const auto answer = request(Method::kGet, SmpAttribute::kNodeInfo, 0, host2_path_);
  ASSERT_TRUE(answer.has_value());
  EXPECT_TRUE(answer->is_returning());
  EXPECT_EQ(answer->hop_pointer(), 0);
  EXPECT_EQ(answer->hop_count(), 2);
  EXPECT_EQ(answer->header.transaction_id, ManagedSubnet::kTestTransaction);
  EXPECT_EQ(answer->return_path[1], std::byte{1});
  EXPECT_EQ(answer->return_path[2], std::byte{1});
}

TEST_F(Sma, ADirectedRouteThatCannotBeFollowedHasNoAnswer) {
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kNodeInfo, 0, {1, 3}), kNoAnswer);
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kNodeInfo, 0, {2}), kNoAnswer);
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kNodeInfo, 0, {1, 2, 1}), kNoAnswer);
  world_.subnet.set_link(1, false, world_.now);
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kNodeInfo, 0, host2_path_), kNoAnswer);
}

TEST_F(Sma, AttributesThatANodeDoesNotHaveAreRefused) {
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kSwitchInfo, 0, own_path_),
            kMethodAttributeNotSupported);
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kLinearForwardingTable, 0, host2_path_),
            kMethodAttributeNotSupported);
  EXPECT_EQ(status(Method::kSet, SmpAttribute::kNodeInfo, 0, switch_path_),
            kMethodAttributeNotSupported);
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kRandomForwardingTable, 0, switch_path_),
            kMethodAttributeNotSupported);
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kSmInfo, 0, host2_path_),
            kMethodAttributeNotSupported);
  EXPECT_EQ(status(Method::kGet, SmpAttribute{0x7777}, 0, switch_path_),
            kMethodAttributeNotSupported);
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kPortInfo, 3, switch_path_), kInvalidValue);
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kPkeyTable, 2, host2_path_), kInvalidValue);
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kGuidInfo, 4, host2_path_), kInvalidValue);
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kGuidInfo, 0xffffffff, host2_path_), kInvalidValue);
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kLinearForwardingTable, 768, switch_path_),
            kInvalidValue);
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kMulticastForwardingTable, 0x10000000, switch_path_),
            kInvalidValue);
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kMulticastForwardingTable, 32, switch_path_),
            kInvalidValue);
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kSlToVlMappingTable, 0x0301, switch_path_),
            kInvalidValue);
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kVlArbitrationTable, 0x20001, switch_path_),
            kInvalidValue);
}

TEST_F(Sma, AnotherClassVersionIsRefused) {
  Smp smp = directed_smp(Method::kGet, SmpAttribute::kNodeInfo, 0, switch_path_);
  smp.header.class_version = 2;
  const auto answer = world_.send_smp(kHost1, smp);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->header.status, wire::kSmpReturning | kBadVersion);
}

TEST_F(Sma, TablesStoreWhatTheManagerWrites) {
  const auto expect_stored = [&](SmpAttribute attribute, std::uint32_t modifier, const Path& path,
                                 const SmpData& data) {
    EXPECT_EQ(status(Method::kSet, attribute, modifier, path, data), 0);
    const auto answer = request(Method::kGet, attribute, modifier, path);
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->data, data) << std::to_underlying(attribute);
  };
  expect_stored(SmpAttribute::kLinearForwardingTable, 767, switch_path_,
                wire::encode_lft({1, 2, 0, 255}));
  expect_stored(SmpAttribute::kMulticastForwardingTable, 31, switch_path_,
                wire::encode_mft({3, 0, 1}));
  expect_stored(SmpAttribute::kPkeyTable, 1, host2_path_,
                wire::encode_pkeys({Pkey{0x8001}, Pkey{2}}));
  expect_stored(SmpAttribute::kPkeyTable, 0x00020000, switch_path_,
                wire::encode_pkeys({Pkey{0x8001}}));
  expect_stored(SmpAttribute::kGuidInfo, 1, host2_path_, wire::encode_guids({Guid{5}, Guid{6}}));
  expect_stored(SmpAttribute::kSlToVlMappingTable, 0, host2_path_,
                wire::encode_sl_to_vl({1, 2, 3, 15}));
  expect_stored(SmpAttribute::kSlToVlMappingTable, 0x0102, switch_path_,
                wire::encode_sl_to_vl({1, 2, 3}));
  expect_stored(SmpAttribute::kVlArbitrationTable, 0x30001, switch_path_,
                wire::encode_vl_arbitration({wire::VlWeight{1, 2}}));
  EXPECT_EQ(world_.subnet.status(kHost2).pkeys[32], Pkey{0x8001});
  EXPECT_EQ(world_.subnet.status(kHost2).guids[8], Guid{5});
}

TEST_F(Sma, TheFirstGuidCannotBeChanged) {
  EXPECT_EQ(status(Method::kSet, SmpAttribute::kGuidInfo, 0, host2_path_,
                   wire::encode_guids({Guid{5}, Guid{6}})),
            0);
  EXPECT_EQ(world_.subnet.status(kHost2).guids[0], world_.subnet.topology().nodes[2].port_guid(1));
  EXPECT_EQ(world_.subnet.status(kHost2).guids[1], Guid{6});
}

TEST_F(Sma, PortInfoRefusesValuesThatThePortDoesNotSupport) {
  const auto refuses = [&](const std::function<void(PortInfo&)>& change) {
    const auto configure_and_change = [&](PortInfo& info) {
      configure(info, 2);
      change(info);
    };
    const PortInfo old_info = port_info(1, host2_path_);
    const std::uint16_t result = change_port_info(1, host2_path_, configure_and_change);
    EXPECT_EQ(port_info(1, host2_path_), old_info);
    return result == kInvalidValue;
  };
  EXPECT_TRUE(refuses([](PortInfo& info) { info.lid = Lid{0}; }));
  EXPECT_TRUE(refuses([](PortInfo& info) { info.lid = Lid{0xc000}; }));
  EXPECT_TRUE(refuses([](PortInfo& info) { info.master_sm_lid = Lid{0}; }));
  EXPECT_TRUE(refuses([](PortInfo& info) { info.lmc = 2; }));
  EXPECT_TRUE(refuses([](PortInfo& info) { info.neighbor_mtu = 0; }));
  EXPECT_TRUE(refuses([](PortInfo& info) { info.neighbor_mtu = 6; }));
  EXPECT_TRUE(refuses([](PortInfo& info) { info.operational_vls = 5; }));
  EXPECT_TRUE(refuses([](PortInfo& info) { info.link_width_enabled = 8; }));
  EXPECT_TRUE(refuses([](PortInfo& info) { info.link_speed_enabled = 8; }));
  EXPECT_TRUE(refuses([](PortInfo& info) { info.link_speed_ext_enabled = 8; }));
  EXPECT_TRUE(refuses([](PortInfo& info) { info.port_state = wire::PortState::kInit; }));
  EXPECT_TRUE(refuses([](PortInfo& info) { info.port_state = wire::PortState::kActive; }));
  EXPECT_TRUE(refuses([](PortInfo& info) { info.port_state = wire::PortState{9}; }));
  EXPECT_TRUE(
      refuses([](PortInfo& info) { info.port_physical_state = PortPhysicalState::kLinkUp; }));
  EXPECT_TRUE(
      refuses([](PortInfo& info) { info.link_down_default_state = PortPhysicalState::kDisabled; }));
}

TEST_F(Sma, TheTopBitOfThePortInfoModifierIsIgnored) {
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kPortInfo, 0x80000002, switch_path_), 0);
  EXPECT_EQ(change_port_info(0x80000001, host2_path_, [](PortInfo& info) { configure(info, 2); }),
            0);
}

TEST_F(Sma, APortMustBeArmedBeforeItBecomesActive) {
  const auto move_to = [&](wire::PortState state) {
    return change_port_info(1, host2_path_, [&](PortInfo& info) {
      configure(info, 2);
      info.port_state = state;
    });
  };
  EXPECT_EQ(move_to(wire::PortState::kArmed), 0);
  EXPECT_EQ(world_.subnet.status(kHost2).state, PortState::kArmed);
  EXPECT_EQ(move_to(wire::PortState::kActive), 0);
  EXPECT_EQ(world_.subnet.status(kHost2).state, PortState::kActive);
  EXPECT_EQ(move_to(wire::PortState::kArmed), kInvalidValue);
  EXPECT_EQ(world_.subnet.status(kHost2).lid, Lid{2});
}

TEST_F(Sma, ADisabledPortKeepsTheLinkDownUntilItIsEnabled) {
  const auto answer_state = [&](PortPhysicalState physical_state) {
    PortInfo info = port_info(2, switch_path_);
    info.port_state = wire::PortState::kDown;
    info.port_physical_state = physical_state;
    const auto answer =
        request(Method::kSet, SmpAttribute::kPortInfo, 2, switch_path_, wire::smp_data(info));
    return answer ? wire::from_smp_data<PortInfo>(answer->data) : PortInfo{};
  };
  EXPECT_EQ(answer_state(PortPhysicalState::kDisabled).port_physical_state,
            PortPhysicalState::kDisabled);
  EXPECT_EQ(port_info(2, switch_path_).port_state, wire::PortState::kDown);
  EXPECT_EQ(world_.subnet.status(kHost2).state, PortState::kDown);
  EXPECT_EQ(world_.subnet.status(kHost2).physical_state, PhysicalState::kPolling);
  answer_state(PortPhysicalState::kPolling);
  EXPECT_EQ(port_info(2, switch_path_).port_state, wire::PortState::kInit);
  EXPECT_EQ(world_.subnet.status(kHost2).state, PortState::kInit);
}

TEST_F(Sma, ThePortThatLeadsToTheManagerAnswersBeforeItGoesDown) {
  EXPECT_EQ(change_port_info(1, switch_path_,
                             [](PortInfo& info) {
                               info.port_state = wire::PortState::kDown;
                               info.port_physical_state = PortPhysicalState::kDisabled;
                             }),
            0);
  EXPECT_EQ(world_.subnet.status(kHost1).state, PortState::kDown);
}

TEST_F(Sma, ALinkUsesWidthAndSpeedThatBothEndsHaveEnabled) {
  EXPECT_EQ(world_.subnet.status(kHost2).width_active, LinkWidth::k4x);
  EXPECT_EQ(world_.subnet.status(kHost2).speed_active, LinkSpeed::kEdr);
  EXPECT_EQ(change_port_info(2, switch_path_,
                             [](PortInfo& info) {
                               info.link_width_enabled = 1;
                               info.link_speed_ext_enabled = 0x1e;
                               info.link_speed_enabled = 3;
                               info.port_state = wire::PortState::kDown;
                             }),
            0);
  EXPECT_EQ(world_.subnet.status(kHost2).width_active, LinkWidth::k1x);
  EXPECT_EQ(world_.subnet.status(kHost2).speed_active, LinkSpeed::kDdr);
  EXPECT_EQ(world_.subnet.status(kHost2).state, PortState::kInit);
}

TEST_F(Sma, ClientReregisterIsReportedAndNotStored) {
  while (world_.subnet.next_event()) {
  }
  EXPECT_EQ(change_port_info(1, host2_path_,
                             [](PortInfo& info) {
                               configure(info, 2);
                               info.client_reregister = true;
                             }),
            0);
  const auto event = world_.subnet.next_event();
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->port, kHost2);
  EXPECT_TRUE(event->client_reregister);
  EXPECT_FALSE(port_info(1, host2_path_).client_reregister);
  EXPECT_FALSE(world_.subnet.next_event().has_value());

  // Ports of a switch are reported as well, because one of them may become active last.
  EXPECT_EQ(change_port_info(2, switch_path_,
                             [](PortInfo& info) { info.port_state = wire::PortState::kArmed; }),
            0);
  const auto switch_event = world_.subnet.next_event();
  ASSERT_TRUE(switch_event.has_value());
  EXPECT_EQ(switch_event->port, (PortRef{0, 2}));
}

TEST_F(Sma, PortStateChangeIsSetByALinkAndClearedByTheManager) {
  const auto state_change = [&] {
    return wire::from_smp_data<wire::SwitchInfo>(
               request(Method::kGet, SmpAttribute::kSwitchInfo, 0, switch_path_)->data)
        .port_state_change;
  };
  EXPECT_EQ(status(Method::kSet, SmpAttribute::kSwitchInfo, 0, switch_path_,
                   wire::smp_data(wire::SwitchInfo{.port_state_change = true})),
            0);
  EXPECT_FALSE(state_change());
  world_.subnet.set_link(1, false, world_.now);
  EXPECT_TRUE(state_change());
}

TEST_F(Sma, RequestWithAWrongMkeyGetsNoAnswerAndIsCounted) {
  EXPECT_EQ(change_port_info(1, host2_path_,
                             [](PortInfo& info) {
                               configure(info, 2);
                               info.m_key = 0x1234;
                               info.m_key_lease_period = 10;
                             }),
            0);
  EXPECT_EQ(change_port_info(1, host2_path_, [](PortInfo& info) { configure(info, 3); }),
            kNoAnswer);
  PortInfo info = port_info(1, host2_path_);
  EXPECT_EQ(info.m_key_violations, 1);
  EXPECT_EQ(info.m_key, 0x1234u) << "with protection 0, a Get returns the M_Key";
  m_key_ = 0x1234;
  EXPECT_EQ(change_port_info(1, host2_path_,
                             [](PortInfo& p) { configure(p, 3), p.m_key_protect_bits = 1; }),
            0);
  m_key_ = 0;
  EXPECT_EQ(port_info(1, host2_path_).m_key, 0u)
      << "with protection 1, a Get does not return the M_Key";
  m_key_ = 0x1234;
  EXPECT_EQ(change_port_info(1, host2_path_,
                             [](PortInfo& p) { p.m_key_protect_bits = 2, p.m_key = 0x1234; }),
            0);
  EXPECT_EQ(port_info(1, host2_path_).m_key, 0x1234u);
  m_key_ = 0;
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kPortInfo, 1, host2_path_), kNoAnswer);
}

TEST_F(Sma, TheMkeyLeaseEndsProtectionAfterAViolation) {
  const auto protect = [](PortInfo& info) {
    configure(info, 2);
    info.m_key = 0x1234;
    info.m_key_protect_bits = 2;
    info.m_key_lease_period = 10;
  };
  EXPECT_EQ(change_port_info(1, host2_path_, protect), 0);
  EXPECT_EQ(world_.subnet.next_deadline(), kNever);
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kPortInfo, 1, host2_path_), kNoAnswer);
  m_key_ = 0x1234;
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kPortInfo, 1, host2_path_), 0)
      << "the right M_Key ends the lease";
  m_key_ = 0;
  world_.now += std::chrono::seconds(11);
  world_.subnet.advance(world_.now);
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kPortInfo, 1, host2_path_), kNoAnswer);
  world_.now += std::chrono::seconds(11);
  world_.subnet.advance(world_.now);
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kPortInfo, 1, host2_path_), 0);
}

TEST_F(Sma, TheMkeyLeaseOfANodeThatAlreadyHasPowerEnds) {
  const auto protect = [](PortInfo& info) {
    configure(info, 2);
    info.m_key = 0x1234;
    info.m_key_protect_bits = 2;
    info.m_key_lease_period = 10;
  };
  EXPECT_EQ(change_port_info(1, host2_path_, protect), 0);
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kPortInfo, 1, host2_path_), kNoAnswer);
  world_.subnet.set_power(kHost2.node, true, world_.now);
  world_.now += std::chrono::seconds(10);
  world_.subnet.advance(world_.now);
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kPortInfo, 1, host2_path_), 0);
}

TEST_F(Sma, SmInfoRequestIsDeliveredToTheManagerOfThePort) {
  world_.subnet.set_is_sm(kHost2, true, world_.now);
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kSmInfo, 0, host2_path_), kNoAnswer);
  ASSERT_EQ(world_.other_deliveries.size(), 1u);
  EXPECT_EQ(world_.other_deliveries[0].port, kHost2);
  const auto mad = world_.subnet.as_mad(world_.other_deliveries[0]);
  ASSERT_TRUE(mad.has_value());
  // An answer of the manager at host 2 reaches host 1.
  Smp smp = wire::decode_exact<Smp>(mad->mad);
  smp.header.response = true;
  smp.header.status = wire::kSmpReturning;
  world_.subnet.send_mad(kHost2, {.to = mad->from, .mad = wire::encode(smp)}, world_.now).value();
  const auto answer = world_.subnet.next_delivery();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->port, kHost1);
}

TEST_F(Sma, AnSmpToTheSendersOwnPortIsAnsweredWithoutALink) {
  world_.subnet.set_link(0, false, world_.now);
  EXPECT_EQ(status(Method::kGet, SmpAttribute::kNodeInfo, 0, own_path_), 0);
}

}  // namespace
}  // namespace verbena::subnet
