#include "hosts/switch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hosts/test_program.h"
#include "ipc/counters.h"
#include "wire/address_text.h"
#include "wire/bth.h"

namespace verbena::hosts {
namespace {

constexpr const char* kPlan = R"(
  [[hosts]]
  name = "a"
  rails = [ { network = "red", addresses = ["10.0.0.1"] } ]
  [[hosts]]
  name = "b"
  rails = [ { network = "red", addresses = ["10.0.0.2"] },
            { network = "blue", addresses = ["10.0.1.2"] } ]
)";
constexpr HostIndex kA = 0, kB = 1;
constexpr Time kStart{std::chrono::seconds(1)};

Gid ip(const char* text) { return wire::parse_address(text).value(); }

std::vector<std::byte> packet(Qpn destination, std::size_t bytes = 64) {
  std::vector<std::byte> transport(bytes);
  wire::encode_to(std::span(transport), wire::Bth{.destination_qpn = destination});
  return transport;
}

bool send(TestProgram& program, const char* from, const char* to, Qpn destination,
          std::size_t bytes = 64) {
  return program.send({.source = ip(from), .destination = ip(to), .interface = 7},
                      packet(destination, bytes));
}

class SwitchTest : public testing::Test, public Switch::Station {
 protected:
  SwitchTest() {
    switch_->connect(kA, *this);
    switch_->connect(kB, *this);
  }

  std::unique_ptr<TestProgram> program(HostIndex host, node::ClientId client) {
    return std::make_unique<TestProgram>(switch_->uplinks(), agent::ProgramId{host, client},
                                         random_);
  }
  std::uint64_t counter(const std::string& name) const {
    std::vector<ipc::NamedCount> all;
    switch_->add_counters(all);
    return std::ranges::find(all, name, &ipc::NamedCount::name)->value;
  }
  void arrived(const link::Arrival& arrival) override { to_nodes_.push_back(arrival.address); }
  void notify_user(node::ClientId, const std::string& text) override { notices_.push_back(text); }

  asio::io_context loop_{1};
  Random random_{1};
  std::unique_ptr<Switch> switch_ = Switch::create(loop_, plan::parse(kPlan).value()).value();
  std::vector<link::Address> to_nodes_{};
  std::vector<std::string> notices_{};
};

TEST_F(SwitchTest, CarriesPacketToTheProgramThatHasTheQueuePair) {
  const auto a = program(kA, 1), b = program(kB, 1), other = program(kB, 2);
  EXPECT_NE(a->range(), b->range());
  ASSERT_TRUE(send(*a, "10.0.0.1", "10.0.0.2", b->qpn()));
  EXPECT_TRUE(switch_->forward(kStart));
  EXPECT_FALSE(switch_->forward(kStart));
  const auto arrived = b->receive();
  ASSERT_EQ(arrived.size(), 1u);
  EXPECT_EQ(arrived[0].source, ip("10.0.0.1"));
  EXPECT_EQ(arrived[0].destination, ip("10.0.0.2"));
  EXPECT_TRUE(other->receive().empty());
}

TEST_F(SwitchTest, DropsPacketForQueuePairOfAnotherHost) {
  const auto a = program(kA, 1), b = program(kB, 1);
  ASSERT_TRUE(send(*b, "10.0.0.2", "10.0.0.1", b->qpn()));  // b's QP number, but a's address
  EXPECT_TRUE(switch_->forward(kStart));
  EXPECT_TRUE(a->receive().empty());
  EXPECT_TRUE(b->receive().empty());
  EXPECT_EQ(counter("dropped_unknown_qp"), 1u);
}

TEST_F(SwitchTest, CarriesPacketsForQp1ToTheNodeOfTheHost) {
  const auto a = program(kA, 1);
  ASSERT_TRUE(send(*a, "10.0.0.1", "10.0.1.2", Qpn{1}));
  ASSERT_TRUE(send(*a, "10.0.0.1", "10.0.0.2", Qpn{1}));
  EXPECT_TRUE(switch_->forward(kStart));
  loop_.poll();
  ASSERT_EQ(to_nodes_.size(), 1u);
  EXPECT_EQ(to_nodes_[0].destination, ip("10.0.0.2"));
  EXPECT_EQ(to_nodes_[0].port, (PortId{0, 1}));
  EXPECT_EQ(to_nodes_[0].interface, 0u) << "the sender's interface has no meaning for the receiver";
}

TEST_F(SwitchTest, CarriesPacketsOfNodes) {
  link::Burst burst;
  const auto transport = packet(Qpn{1});
  std::ranges::copy(transport, burst.prepare().begin());
  burst.commit({.source = ip("10.0.0.1"), .destination = ip("10.0.0.2")}, transport.size());
  switch_->send(kA, burst, kStart);
  loop_.poll();
  ASSERT_EQ(to_nodes_.size(), 1u);
}

TEST_F(SwitchTest, ReportsTheReasonForDroppedPacketsOnce) {
  const auto a = program(kA, 1), b = program(kB, 1);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(send(*a, "10.0.0.1", "10.0.1.2", b->qpn()));
  EXPECT_TRUE(switch_->forward(kStart));
  EXPECT_EQ(counter("dropped_no_route"), 3u);
  EXPECT_EQ(notices_, (std::vector<std::string>{
                          "packets are dropped: rail verbena0 of host a (network red, MTU 9000) "
                          "does not reach rail verbena1 of host b (network blue, MTU 9000)"}));
}

TEST_F(SwitchTest, RefusesSourceAddressOfAnotherHost) {
  const auto a = program(kA, 1), b = program(kB, 1);
  ASSERT_TRUE(send(*a, "10.0.0.2", "10.0.0.2", b->qpn()));
  EXPECT_TRUE(switch_->forward(kStart));
  EXPECT_TRUE(b->receive().empty());
  EXPECT_EQ(counter("dropped_foreign_source"), 1u);
}

TEST_F(SwitchTest, CopiesForGroupMembersHaveTheInterfaceOfTheReceiver) {
  const auto a = program(kA, 1), b = program(kB, 1);
  const std::array<std::uint32_t, 1> first_interface{ethernet::Network::interface_of(0)};
  ASSERT_TRUE(switch_->network().set_members(kB, b->range(), ip("239.1.1.1"), first_interface));
  ASSERT_TRUE(send(*a, "10.0.0.1", "239.1.1.1", wire::kMulticastQpn));
  EXPECT_TRUE(switch_->forward(kStart));
  const auto arrived = b->receive();
  ASSERT_EQ(arrived.size(), 1u);
  EXPECT_EQ(arrived[0].interface, first_interface[0]);
  EXPECT_TRUE(a->receive().empty());
}

// Fills the uplink of b, which does not read, with packets of a.
void fill(Switch& fabric_switch, TestProgram& a, TestProgram& b) {
  while (true) {
    while (send(a, "10.0.0.1", "10.0.0.2", b.qpn(), 4096)) {
    }
    if (!fabric_switch.forward(kStart)) return;
  }
}

TEST_F(SwitchTest, FullUplinkBlocksTheProgramThatSendsToItForALimitedTime) {
  const auto a = program(kA, 1), b = program(kB, 1), c = program(kB, 2);
  fill(*switch_, *a, *b);
  EXPECT_EQ(counter("dropped_receiver_full"), 0u);
  EXPECT_FALSE(switch_->forward(kStart + agent::Uplinks::kFullLaneTimeout / 2));
  EXPECT_TRUE(switch_->forward(kStart + agent::Uplinks::kFullLaneTimeout));
  EXPECT_GT(counter("dropped_receiver_full"), 0u);
  // Now a can send to c, because b does not block a any more.
  ASSERT_TRUE(send(*a, "10.0.0.1", "10.0.0.2", c->qpn()));
  while (switch_->forward(kStart + agent::Uplinks::kFullLaneTimeout)) {
  }
  EXPECT_EQ(c->receive().size(), 1u);
}

TEST_F(SwitchTest, FullUplinkWakesTheLoopOnlyOnceForItsTimeout) {
  const auto a = program(kA, 1), b = program(kB, 1);
  fill(*switch_, *a, *b);
  loop_.restart();
  EXPECT_EQ(loop_.run_one_for(std::chrono::seconds(10)), 1u)
      << "the timer expires at once, because kStart is long ago";
  while (switch_->forward(kStart + agent::Uplinks::kFullLaneTimeout)) {
  }
  EXPECT_GT(counter("dropped_receiver_full"), 0u);
  loop_.restart();
  EXPECT_EQ(loop_.poll(), 0u) << "no packet waits for the full uplink any more";
}

TEST_F(SwitchTest, SenderContinuesWhenTheFullUplinkHasSpace) {
  const auto a = program(kA, 1), b = program(kB, 1);
  fill(*switch_, *a, *b);
  EXPECT_TRUE(switch_->park()) << "a blocked packet does not keep the switch awake";
  switch_->unpark();
  const std::size_t received_first = b->receive().size();
  EXPECT_TRUE(b->wakes_switch());
  EXPECT_TRUE(switch_->forward(kStart));
  EXPECT_GT(b->receive().size(), 0u);
  EXPECT_GT(received_first, 0u);
  EXPECT_EQ(counter("dropped_receiver_full"), 0u);
}

constexpr RailId kARail{kA, 0}, kBRail{kB, 0};
constexpr Duration kDelay = std::chrono::milliseconds(5);

TEST_F(SwitchTest, APausedHostReceivesItsPacketsAfterThePause) {
  const auto a = program(kA, 1), b = program(kB, 1);
  switch_->network().faults().set_paused(kB, true);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(send(*a, "10.0.0.1", "10.0.0.2", b->qpn()));
  ASSERT_TRUE(send(*a, "10.0.0.1", "10.0.0.2", Qpn{1}));
  EXPECT_TRUE(switch_->forward(kStart));
  EXPECT_FALSE(switch_->forward(kStart + kDelay));
  EXPECT_TRUE(switch_->park()) << "packets of a paused host do not keep the loop awake";
  switch_->unpark();
  loop_.poll();
  EXPECT_TRUE(b->receive().empty());
  EXPECT_TRUE(to_nodes_.empty());
  EXPECT_EQ(counter("late"), 4u);
  switch_->network().faults().set_paused(kB, false);
  EXPECT_TRUE(switch_->forward(kStart + kDelay));
  loop_.poll();
  EXPECT_EQ(b->receive().size(), 3u);
  EXPECT_EQ(to_nodes_.size(), 1u);
  EXPECT_EQ(counter("late"), 0u);
}

TEST_F(SwitchTest, APausedHostSendsItsPacketsAfterThePause) {
  const auto a = program(kA, 1), b = program(kB, 1);
  switch_->network().faults().set_paused(kA, true);
  ASSERT_TRUE(send(*a, "10.0.0.1", "10.0.0.2", b->qpn()));
  ASSERT_TRUE(send(*a, "10.0.0.1", "10.0.0.1", a->qpn()));  // a sends to itself
  link::Burst burst;
  const auto transport = packet(Qpn{1});
  std::ranges::copy(transport, burst.prepare().begin());
  burst.commit({.source = ip("10.0.0.1"), .destination = ip("10.0.0.2")}, transport.size());
  switch_->send(kA, burst, kStart);
  EXPECT_TRUE(switch_->forward(kStart));
  loop_.poll();
  EXPECT_TRUE(a->receive().empty());
  EXPECT_TRUE(b->receive().empty());
  EXPECT_TRUE(to_nodes_.empty());
  switch_->network().faults().set_paused(kA, false);
  EXPECT_TRUE(switch_->forward(kStart));
  loop_.poll();
  EXPECT_EQ(a->receive().size(), 1u);
  EXPECT_EQ(b->receive().size(), 1u);
  EXPECT_EQ(to_nodes_.size(), 1u);
}

TEST_F(SwitchTest, NumberOfPacketsForAPausedHostIsLimited) {
  const auto a = program(kA, 1), b = program(kB, 1);
  switch_->network().faults().set_paused(kB, true);
  for (std::size_t i = 0; i < LatePackets::Queue::kPacketsMax + 2; ++i) {
    while (!send(*a, "10.0.0.1", "10.0.0.2", b->qpn())) (void)switch_->forward(kStart);
  }
  while (switch_->forward(kStart)) {
  }
  EXPECT_EQ(counter("late"), LatePackets::Queue::kPacketsMax);
  EXPECT_EQ(counter("dropped_late_full"), 2u);
}

TEST_F(SwitchTest, LatePacketsWaitUntilTheirReceiverHasSpace) {
  const auto a = program(kA, 1), b = program(kB, 1);
  switch_->network().faults().set_paused(kB, true);
  constexpr std::size_t kPackets = 500;  // of 4096 bytes, more than fit into a lane
  for (std::size_t i = 0; i < kPackets; ++i) {
    while (!send(*a, "10.0.0.1", "10.0.0.2", b->qpn(), 4096)) (void)switch_->forward(kStart);
  }
  while (switch_->forward(kStart)) {
  }
  switch_->network().faults().set_paused(kB, false);
  std::size_t arrived = 0;
  for (int rounds = 0; arrived < kPackets && rounds < 1000; ++rounds) {
    (void)switch_->forward(kStart);
    if (counter("late") != 0) {
      EXPECT_TRUE(switch_->park()) << "packets that wait for space do not keep the loop awake";
      switch_->unpark();
    }
    arrived += b->receive().size();
  }
  EXPECT_EQ(arrived, kPackets);
  EXPECT_EQ(counter("dropped_receiver_full"), 0u);
}

TEST_F(SwitchTest, PacketsOfASlowLinkAreLateInBothDirections) {
  const auto a = program(kA, 1), b = program(kB, 1);
  switch_->network().faults().set_delay(kBRail, kDelay);
  ASSERT_TRUE(send(*a, "10.0.0.1", "10.0.0.2", b->qpn()));
  ASSERT_TRUE(send(*b, "10.0.0.2", "10.0.0.1", a->qpn()));
  ASSERT_TRUE(send(*b, "10.0.1.2", "10.0.0.2", b->qpn()));  // does not leave host b
  EXPECT_TRUE(switch_->forward(kStart));
  EXPECT_TRUE(a->receive().empty());
  EXPECT_EQ(b->receive().size(), 1u) << "only the packet that uses no link arrives at once";
  EXPECT_FALSE(switch_->forward(kStart + kDelay / 2));
  EXPECT_TRUE(switch_->forward(kStart + kDelay));
  EXPECT_EQ(a->receive().size(), 1u);
  EXPECT_EQ(b->receive().size(), 1u);
}

TEST_F(SwitchTest, DelaysOfTwoLinksAddUp) {
  const auto a = program(kA, 1), b = program(kB, 1);
  switch_->network().faults().set_delay(kARail, kDelay);
  switch_->network().faults().set_delay(kBRail, kDelay);
  ASSERT_TRUE(send(*a, "10.0.0.1", "10.0.0.2", b->qpn()));
  EXPECT_TRUE(switch_->forward(kStart));
  EXPECT_TRUE(switch_->forward(kStart + kDelay));
  EXPECT_TRUE(b->receive().empty());
  EXPECT_TRUE(switch_->forward(kStart + 2 * kDelay));
  EXPECT_EQ(b->receive().size(), 1u);
}

TEST_F(SwitchTest, MulticastCopiesForASlowLinkAreLate) {
  const auto a = program(kA, 1), b = program(kB, 1);
  const std::array<std::uint32_t, 1> first_interface{ethernet::Network::interface_of(0)};
  ASSERT_TRUE(switch_->network().set_members(kB, b->range(), ip("239.1.1.1"), first_interface));
  switch_->network().faults().set_delay(kBRail, kDelay);
  ASSERT_TRUE(send(*a, "10.0.0.1", "239.1.1.1", wire::kMulticastQpn));
  EXPECT_TRUE(switch_->forward(kStart));
  EXPECT_TRUE(b->receive().empty());
  EXPECT_TRUE(switch_->forward(kStart + kDelay));
  const auto arrived = b->receive();
  ASSERT_EQ(arrived.size(), 1u);
  EXPECT_EQ(arrived[0].interface, first_interface[0]);
}

TEST_F(SwitchTest, DroppedLatePacketsOfAnEndedProgramAreOnlyCounted) {
  auto a = program(kA, 1);
  switch_->network().faults().set_paused(kA, true);
  ASSERT_TRUE(send(*a, "10.0.0.1", "10.0.1.2", Qpn{77}));  // there is no route to this address
  EXPECT_TRUE(switch_->forward(kStart));
  switch_->detach({kA, 1});
  switch_->network().faults().set_paused(kA, false);
  EXPECT_TRUE(switch_->forward(kStart));
  EXPECT_EQ(counter("dropped_no_route"), 1u);
  EXPECT_TRUE(notices_.empty()) << "the program that would get the notice has ended";
}

TEST_F(SwitchTest, BrokenUplinkIsClosedAndOtherUplinksWork) {
  const auto a = program(kA, 1), b = program(kB, 1);
  std::ranges::fill(a->memory(), std::byte{0xff});
  (void)switch_->forward(kStart);
  EXPECT_EQ(counter("uplinks_broken"), 1u);
  EXPECT_EQ(counter("uplinks"), 1u);
  ASSERT_TRUE(send(*b, "10.0.0.2", "10.0.0.2", b->qpn()));
  EXPECT_TRUE(switch_->forward(kStart));
  EXPECT_EQ(b->receive().size(), 1u);
}

TEST_F(SwitchTest, DetachForwardsTheLastPacketsOfTheProgram) {
  const auto a = program(kA, 1), b = program(kB, 1);
  ASSERT_TRUE(send(*a, "10.0.0.1", "10.0.0.2", b->qpn()));
  switch_->detach({kA, 1});
  EXPECT_EQ(b->receive().size(), 1u);
}

TEST_F(SwitchTest, DetachedProgramGetsNoPackets) {
  const auto a = program(kA, 1), b = program(kB, 1);
  switch_->detach({kB, 1});
  ASSERT_TRUE(send(*a, "10.0.0.1", "10.0.0.2", b->qpn()));
  EXPECT_TRUE(switch_->forward(kStart));
  EXPECT_EQ(counter("dropped_unknown_qp"), 1u);
  EXPECT_EQ(switch_->uplinks().leases(kB), 1u);
  switch_->uplinks().release(b->range());
  EXPECT_EQ(switch_->uplinks().leases(kB), 0u);
}

}  // namespace
}  // namespace verbena::hosts
