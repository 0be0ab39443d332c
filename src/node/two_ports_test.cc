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

}  // namespace
}  // namespace verbena::node
