// Tests a node whose HCA has two ports in one subnet.
#include <gmock/gmock.h>

#include "node/test_subnet_node.h"

namespace verbena::node {
namespace {

using testing::ElementsAre;

struct TwoPortsTest : SubnetNodeTest {
  TwoPortsTest() : SubnetNodeTest(2) {}
};

// Each report of a membership replaces the previous report, so it must name all ports that are
// members.
TEST_F(TwoPortsTest, BothPortsGetThePacketsOfTheBroadcastGroup) {
  exchange();
  ASSERT_FALSE(memberships_.empty());
  EXPECT_EQ(memberships_.back().group, wire::broadcast_mgid({0xffff}));
  EXPECT_THAT(memberships_.back().interfaces, ElementsAre(1, 2));

  memberships_.clear();
  ASSERT_TRUE(node_.set_port_state(PortId{}, {.down_reason = "unplugged"}, now()));
  exchange();
  ASSERT_FALSE(memberships_.empty());
  EXPECT_THAT(memberships_.back().interfaces, ElementsAre(2));
}

// A program that attaches a QP with ibv_attach_mcast() names no port.
TEST_F(TwoPortsTest, AJoinOfAllInterfacesIsForEachPort) {
  constexpr std::uint16_t kRange = 7;
  exchange();
  node_.on_message(client_, ipc::encode(1, ipc::Lease{}), now());
  while (const auto output = node_.poll()) {
    const auto* lease = std::get_if<Node::LeaseRequest>(&*output);
    if (lease != nullptr) node_.on_lease(lease->token, kRange, now());
  }
  const Gid group = wire::broadcast_mgid({0x8123});
  const auto ports_after = [&](const auto& message) {
    memberships_.clear();
    node_.on_message(client_, ipc::encode(2, message), now());
    exchange();
    EXPECT_EQ(memberships_.size(), 1u);
    if (memberships_.empty()) return std::vector<std::uint32_t>{};
    EXPECT_EQ(memberships_.back().range, kRange);
    EXPECT_EQ(memberships_.back().group, group);
    return memberships_.back().interfaces;
  };
  EXPECT_THAT(ports_after(ipc::JoinGroup{kRange, group, 0}), ElementsAre(1, 2));
  EXPECT_THAT(ports_after(ipc::LeaveGroup{kRange, group, 0}), testing::IsEmpty());
}

}  // namespace
}  // namespace verbena::node
