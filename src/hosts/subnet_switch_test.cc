#include "hosts/subnet_switch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hosts/subnet_network.h"
#include "hosts/test_program.h"
#include "ipc/counters.h"
#include "subnet/manager.h"
#include "wire/headers.h"
#include "wire/mad.h"

namespace verbena::hosts {
namespace {

constexpr HostIndex kHcaA = 0, kHcaB = 1;
constexpr Time kNow{std::chrono::seconds(1)};
constexpr Pkey kPkey = wire::kDefaultPkey;

// Connects HCA a to HCA b through two switches.  The second port of b has no cable.
subnet::Topology two_hcas() {
  subnet::Topology topology;
  const auto a = topology.add_hca("a"), b = topology.add_hca("b", 2);
  const auto left = topology.add_switch("left", 2), right = topology.add_switch("right", 2);
  topology.connect({a, 1}, {left, 1});
  topology.connect({left, 2}, {right, 2});
  topology.connect({right, 1}, {b, 1});
  subnet::set_missing_guids(topology);
  return topology;
}

std::vector<std::byte> ud_packet(Qpn destination, Pkey pkey = kPkey, std::size_t payload = 64) {
  std::vector<std::byte> transport(wire::header_bytes(wire::Opcode::kUdSendOnly) + payload);
  wire::write_headers(
      transport,
      {.bth = {.opcode = wire::Opcode::kUdSendOnly, .pkey = pkey, .destination_qpn = destination}});
  return transport;
}

// Provides a subnet of two HCAs with simulated agents.  A subnet manager runs on HCA a.
class SubnetSwitchTest : public testing::Test {
 protected:
  struct Agent final : SubnetSwitch::Station {
    void arrived(const link::Arrival& arrival) override {
      mad_addresses.push_back(arrival.address);
    }
    void port_changed(std::uint8_t port, bool) override { changed_ports.push_back(port); }
    void notify_user(node::ClientId, const std::string& text) override { notices.push_back(text); }
    std::vector<link::Address> mad_addresses{};
    std::vector<std::uint8_t> changed_ports{};
    std::vector<std::string> notices{};
  };

  SubnetSwitchTest() {
    switch_->connect(kHcaA, agents_[kHcaA]);
    switch_->connect(kHcaB, agents_[kHcaB]);
    switch_->set_mad_receiver([this](const subnet::MadDelivery& mad) {
      if (mad.destination_qpn == wire::kSmiQpn && mad.port.node == kHcaA) {
        manager_.receive(mad.from, mad.mad, now_);
      } else {
        mad_hcas_.push_back(mad.port.node);
      }
    });
  }

  // Runs the manager until it has configured the subnet.
  void configure_subnet() {
    manager_.advance(now_);
    while (!manager_.is_up() || manager_.sweeps() == 0) {
      auto mad = manager_.next_send();
      while (mad) {
        (void)switch_->subnet().send_mad({kHcaA, 1}, *mad, now_);
        switch_->pump(now_);
        mad = manager_.next_send();
      }
      now_ = std::min(manager_.next_deadline(), switch_->subnet().next_deadline());
      if (manager_.is_up()) break;
      switch_->subnet().advance(now_);
      switch_->pump(now_);
      manager_.advance(now_);
    }
    loop_.poll();
  }
  std::unique_ptr<TestProgram> program(HostIndex host, node::ClientId client) {
    return std::make_unique<TestProgram>(switch_->uplinks(), agent::ProgramId{host, client},
                                         random_);
  }
  Lid lid(HostIndex host) const { return switch_->status({host, 1}).lid; }
  link::Address address_of_b() const {
    return {.link_layer = LinkLayer::kInfiniband,
            .source_lid = lid(kHcaA),
            .destination_lid = lid(kHcaB)};
  }
  link::Address address_of_b_with_gids() const {
    link::Address address = address_of_b();
    address.has_grh = true;
    address.source = switch_->status({kHcaA, 1}).gid(0);
    address.destination = switch_->status({kHcaB, 1}).gid(0);
    return address;
  }
  std::uint64_t counter(const std::string& name) const {
    std::vector<ipc::NamedCount> all;
    switch_->add_counters(all);
    return std::ranges::find(all, name, &ipc::NamedCount::name)->value;
  }
  // Sends a packet between two programs, and returns true if it arrives.
  bool arrives(TestProgram& from, TestProgram& to, const link::Address& address,
               Pkey pkey = kPkey) {
    EXPECT_TRUE(from.send(address, ud_packet(to.qpn(), pkey)));
    EXPECT_TRUE(switch_->forward(now_));
    arrived_ = to.receive();
    return !arrived_.empty();
  }

  asio::io_context loop_{1};
  Random random_{1};
  Time now_ = kNow;
  std::unique_ptr<SubnetSwitch> switch_ = SubnetSwitch::create(loop_, two_hcas()).value();
  subnet::Manager manager_{{}};
  std::array<Agent, 2> agents_{};
  // Lists the HCAs that received MADs.  MADs for the manager are not listed.
  std::vector<std::uint32_t> mad_hcas_{};
  std::vector<link::Address> arrived_{};
};

TEST_F(SubnetSwitchTest, PacketIsRoutedByItsDestinationLid) {
  configure_subnet();
  const auto a = program(kHcaA, 1), b = program(kHcaB, 1);
  ASSERT_TRUE(arrives(*a, *b, address_of_b()));
  EXPECT_EQ(arrived_[0].source_lid, lid(kHcaA));
  EXPECT_EQ(arrived_[0].destination_lid, lid(kHcaB));
  EXPECT_EQ(arrived_[0].port, (PortId{0, 1}));
  EXPECT_FALSE(arrived_[0].has_grh);
  EXPECT_TRUE(a->receive().empty());
}

TEST_F(SubnetSwitchTest, PacketWithAGrhKeepsItsGids) {
  configure_subnet();
  const auto a = program(kHcaA, 1), b = program(kHcaB, 1);
  ASSERT_TRUE(arrives(*a, *b, address_of_b_with_gids()));
  EXPECT_TRUE(arrived_[0].has_grh);
  EXPECT_EQ(arrived_[0].source, address_of_b_with_gids().source);
  EXPECT_EQ(arrived_[0].destination, address_of_b_with_gids().destination);
}

TEST_F(SubnetSwitchTest, PacketToTheSendersOwnLidIsLoopedBack) {
  configure_subnet();
  const auto a = program(kHcaA, 1), other = program(kHcaA, 2);
  link::Address to_a = address_of_b();
  to_a.destination_lid = lid(kHcaA);
  EXPECT_TRUE(arrives(*a, *other, to_a));
}

TEST_F(SubnetSwitchTest, PacketsAreDroppedUntilAManagerHasConfiguredThePorts) {
  const auto a = program(kHcaA, 1), b = program(kHcaB, 1);
  EXPECT_FALSE(arrives(*a, *b, address_of_b()));
  EXPECT_FALSE(arrives(*a, *b, address_of_b()));
  EXPECT_EQ(counter("dropped_inactive"), 2u);
  ASSERT_EQ(agents_[kHcaA].notices.size(), 1u) << "each reason is reported to a program once";
  EXPECT_NE(agents_[kHcaA].notices[0].find("port 1 of a is not active"), std::string::npos);
}

TEST_F(SubnetSwitchTest, AgentsGetTheStateOfTheirPorts) {
  EXPECT_EQ(switch_->status({kHcaA, 1}).state, subnet::PortState::kInit);
  configure_subnet();
  EXPECT_FALSE(agents_[kHcaA].changed_ports.empty());
  ASSERT_FALSE(agents_[kHcaB].changed_ports.empty());
  EXPECT_EQ(agents_[kHcaB].changed_ports[0], 1);
  EXPECT_EQ(switch_->status({kHcaA, 1}).state, subnet::PortState::kActive);
}

TEST_F(SubnetSwitchTest, ForgedSourceLidIsReplacedByThePortsLid) {
  configure_subnet();
  const auto a = program(kHcaA, 1), b = program(kHcaB, 1);
  link::Address forged = address_of_b();
  forged.source_lid = {0x1234};
  ASSERT_TRUE(arrives(*a, *b, forged));
  EXPECT_EQ(arrived_[0].source_lid, lid(kHcaA));
}

TEST_F(SubnetSwitchTest, RefusesPkeysGidsAndPortsThatTheHcaDoesNotHave) {
  configure_subnet();
  const auto a = program(kHcaA, 1), b = program(kHcaB, 1);
  EXPECT_FALSE(arrives(*a, *b, address_of_b(), Pkey{0x8005}));
  EXPECT_FALSE(arrives(*a, *b, address_of_b(), Pkey{0}))
      << "the empty entries of the table are no P_Keys";
  EXPECT_EQ(counter("dropped_foreign_pkey"), 2u);
  link::Address forged = address_of_b_with_gids();
  forged.source = forged.destination;
  EXPECT_FALSE(arrives(*a, *b, forged));
  EXPECT_EQ(counter("dropped_foreign_source"), 1u);
  link::Address other = address_of_b();
  other.port.number = 2;
  EXPECT_FALSE(arrives(*a, *b, other)) << "a has one port";
  other.port = {.device = 1, .number = 1};
  EXPECT_FALSE(arrives(*a, *b, other));
  EXPECT_FALSE(arrives(*a, *b, {.source_port = 0xc000})) << "not an address of InfiniBand";
  EXPECT_EQ(counter("dropped_malformed"), 3u);
}

TEST_F(SubnetSwitchTest, PacketForAnotherGidOfThePortIsDropped) {
  configure_subnet();
  const auto a = program(kHcaA, 1), b = program(kHcaB, 1);
  link::Address address = address_of_b_with_gids();
  address.destination.bytes[15] ^= std::byte{1};
  EXPECT_FALSE(arrives(*a, *b, address));
  EXPECT_EQ(counter("dropped_wrong_destination_gid"), 1u);
}

TEST_F(SubnetSwitchTest, ProgramsCannotSendToQp0) {
  configure_subnet();
  const auto a = program(kHcaA, 1);
  mad_hcas_.clear();
  ASSERT_TRUE(a->send(address_of_b(), ud_packet(wire::kSmiQpn, kPkey, wire::kMadBytes)));
  EXPECT_TRUE(switch_->forward(now_));
  EXPECT_EQ(counter("dropped_malformed"), 1u);
  EXPECT_TRUE(mad_hcas_.empty());
}

TEST_F(SubnetSwitchTest, PacketForTheQueuePairOfAnotherHcaIsDropped) {
  configure_subnet();
  const auto a = program(kHcaA, 1), b = program(kHcaB, 1);
  link::Address to_a = address_of_b();
  to_a.destination_lid = lid(kHcaA);
  EXPECT_FALSE(arrives(*a, *b, to_a));
  EXPECT_EQ(counter("dropped_unknown_qp"), 1u);
}

// Sends a MAD from QP1 of a's agent to QP1 of b.
void send_mad(SubnetSwitch& subnet_switch, const link::Address& to, wire::MgmtClass mgmt_class) {
  auto transport = ud_packet(wire::kGsiQpn, kPkey, wire::kMadBytes);
  wire::write_headers(transport, {.bth = {.opcode = wire::Opcode::kUdSendOnly,
                                          .pkey = kPkey,
                                          .destination_qpn = wire::kGsiQpn},
                                  .deth = {.qkey = wire::kGsiQkey, .source_qpn = wire::kGsiQpn}});
  wire::encode_to(std::span(transport).last<wire::kMadBytes>().first<wire::kMadHeaderBytes>(),
                  wire::MadHeader{.mgmt_class = mgmt_class, .method = wire::Method::kSend});
  link::Burst burst;
  std::ranges::copy(transport, burst.prepare().begin());
  burst.commit(to, transport.size());
  subnet_switch.send(kHcaA, burst, kNow);
}

TEST_F(SubnetSwitchTest, CmMadsGoToTheAgentAndVendorMadsToPrograms) {
  configure_subnet();
  mad_hcas_.clear();
  send_mad(*switch_, address_of_b(), wire::MgmtClass::kCommunication);
  loop_.poll();
  ASSERT_EQ(agents_[kHcaB].mad_addresses.size(), 1u);
  EXPECT_EQ(agents_[kHcaB].mad_addresses[0].source_lid, lid(kHcaA));
  EXPECT_TRUE(mad_hcas_.empty());
  send_mad(*switch_, address_of_b(), wire::MgmtClass{0x32});
  loop_.poll();
  EXPECT_EQ(agents_[kHcaB].mad_addresses.size(), 1u);
  EXPECT_EQ(mad_hcas_, std::vector<std::uint32_t>{kHcaB});
}

TEST_F(SubnetSwitchTest, FullUplinkBlocksTheProgramThatSendsToItForALimitedTime) {
  configure_subnet();
  const auto a = program(kHcaA, 1), b = program(kHcaB, 1), c = program(kHcaB, 2),
             d = program(kHcaA, 2);
  const auto large = ud_packet(b->qpn(), kPkey, 4096);
  std::size_t sent = 0;
  do {
    while (a->send(address_of_b(), large)) ++sent;
  } while (switch_->forward(now_));
  EXPECT_EQ(counter("dropped_receiver_full"), 0u);
  EXPECT_TRUE(arrives(*d, *c, address_of_b()))
      << "programs that send to other receivers are not blocked";
  EXPECT_TRUE(switch_->park()) << "a blocked sender does not keep the loop awake";
  switch_->unpark();
  // All packets arrive, because the receiver reads them in time.
  std::size_t received = b->receive().size();
  EXPECT_TRUE(b->wakes_switch());
  while (switch_->forward(now_)) received += b->receive().size();
  EXPECT_EQ(received, sent);

  do {
    while (a->send(address_of_b(), large)) {
    }
  } while (switch_->forward(now_));
  while (switch_->forward(now_ + agent::Uplinks::kFullLaneTimeout)) {
  }
  EXPECT_GT(counter("dropped_receiver_full"), 0u);
}

// A program may end as soon as its packets are in the uplink, because requests of UC and UD are
// complete then.
TEST_F(SubnetSwitchTest, PacketsOfAnEndedProgramWaitUntilTheirReceiverHasSpace) {
  configure_subnet();
  const auto a = program(kHcaA, 1), b = program(kHcaB, 1);
  const auto large = ud_packet(b->qpn(), kPkey, 4096);
  std::size_t sent = 0;
  while (a->send(address_of_b(), large)) ++sent;
  while (switch_->forward(now_)) {
  }
  // After this loop both uplinks are full, and no packet is between them.
  while (a->send(address_of_b(), large)) ++sent;
  switch_->detach({kHcaA, 1});
  std::size_t received = b->receive().size();
  EXPECT_LT(received, sent);
  while (switch_->forward(now_)) received += b->receive().size();
  EXPECT_EQ(received, sent);
  EXPECT_EQ(counter("dropped_receiver_full"), 0u);
}

TEST_F(SubnetSwitchTest, AnEndedReceiverDoesNotBlockItsSenders) {
  configure_subnet();
  const auto a = program(kHcaA, 1), b = program(kHcaB, 1), c = program(kHcaB, 2);
  do {
    while (a->send(address_of_b(), ud_packet(b->qpn(), kPkey, 4096))) {
    }
  } while (switch_->forward(now_));
  switch_->detach({kHcaB, 1});
  while (switch_->forward(now_)) {
  }
  EXPECT_TRUE(arrives(*a, *c, address_of_b()));
}

TEST(PortStateOf, GivesTheReasonWhyThePortIsNotActive) {
  subnet::PortStatus port{.state = subnet::PortState::kInit, .pkeys = {kPkey}};
  EXPECT_NE(port_state_of(port).down_reason->find("no subnet manager"), std::string::npos);
  port.state = subnet::PortState::kDown;
  EXPECT_NE(port_state_of(port).down_reason->find("no link"), std::string::npos);
  port.physical_state = subnet::PhysicalState::kDisabled;
  EXPECT_NE(port_state_of(port).down_reason->find("disabled"), std::string::npos);
  port.state = subnet::PortState::kActive;
  EXPECT_EQ(port_state_of(port).down_reason, std::nullopt);
}

TEST(PortStateOf, UsesTheValuesOfTheVerbsEnumerations) {
  const subnet::PortStatus port{.state = subnet::PortState::kActive,
                                .gid_prefix = 0xfe80000000000000,
                                .mtu_active = subnet::Mtu::k2048,
                                .width_active = subnet::LinkWidth::k4x,
                                .speed_active = subnet::LinkSpeed::kHdr,
                                .max_virtual_lanes = 8,
                                .guids = {Guid{0x0102030405060708}, Guid{}},
                                .pkeys = {kPkey}};
  const node::PortState state = port_state_of(port);
  EXPECT_EQ(state.active_mtu, 4);          // IBV_MTU_2048
  EXPECT_EQ(state.link.state, 4);          // IBV_PORT_ACTIVE
  EXPECT_EQ(state.link.width, 2);          // 4x
  EXPECT_EQ(state.link.speed, 64);         // HDR
  EXPECT_EQ(state.link.virtual_lanes, 4);  // the code for VL0 to VL7
  ASSERT_EQ(state.gids.size(), 2u);
  EXPECT_EQ(state.gids[0].bytes[0], std::byte{0xfe});
  EXPECT_EQ(state.gids[0].bytes[15], std::byte{8});
  EXPECT_EQ(state.gids[1], Gid{});
}

}  // namespace
}  // namespace verbena::hosts
