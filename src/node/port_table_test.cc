#include "node/port_table.h"

#include <gtest/gtest.h>

namespace verbena::node {
namespace {

constexpr PortId kPort{0, 1};

Gid gid_of(std::uint8_t number) {
  Gid gid{};
  gid.bytes[0] = std::byte{0xfe};
  gid.bytes[15] = std::byte{number};
  return gid;
}

struct InfinibandPortTest : ::testing::Test {
  InfinibandPortTest() { table.set_all_down_reason(std::nullopt); }
  ipc::Port port() const { return table.devices().front().ports.front(); }

  PortTable table{{DeviceConfig{.ports = {{.link_layer = LinkLayer::kInfiniband}}}}};
};

TEST_F(InfinibandPortTest, ReportsTheStateThatTheSubnetManagerHasSet) {
  const ipc::InfinibandLink link{.state = 4, .physical_state = 5, .speed = 32};
  ASSERT_TRUE(table.set_state(kPort, {.pkeys = {{0x8001}},
                                      .lid = {7},
                                      .lmc = 1,
                                      .sm_lid = {3},
                                      .gids = {gid_of(1)},
                                      .active_mtu = 4,
                                      .link = link}));
  EXPECT_TRUE(port().active);
  EXPECT_EQ(port().lid, Lid{7});
  EXPECT_EQ(port().lmc, 1);
  EXPECT_EQ(port().sm_lid, Lid{3});
  EXPECT_EQ(port().active_mtu, 4);
  EXPECT_EQ(port().link, link);
  EXPECT_EQ(port().pkeys, std::vector<Pkey>{{0x8001}});
}

TEST_F(InfinibandPortTest, GidsKeepTheIndexesOfTheirGuids) {
  ASSERT_TRUE(table.set_state(kPort, {.gids = {gid_of(1), Gid{}, gid_of(3)}}));
  EXPECT_EQ(port().gid_indexes, 3u);
  ASSERT_EQ(port().gids.size(), 2u) << "the entry of zeros is empty";
  EXPECT_EQ(port().gids[1].index, 2u);
  EXPECT_EQ(port().gids[1].gid, gid_of(3));
  const auto source = table.find(gid_of(3), 0);
  ASSERT_TRUE(source.has_value());
  EXPECT_EQ(source->gid_index, 2u);
  EXPECT_EQ(source->link_layer, LinkLayer::kInfiniband);
  // The subnet manager changes the prefix of all GIDs, and each GID keeps its index.
  ASSERT_TRUE(table.set_state(kPort, {.gids = {gid_of(11), Gid{}, gid_of(13)}}));
  EXPECT_EQ(port().gids[0].index, 0u);
  EXPECT_FALSE(table.find(gid_of(3), 0).has_value());
}

TEST_F(InfinibandPortTest, AddressesOfTheHostAreNotGids) {
  table.set_addresses({{.port = kPort, .gid = gid_of(9), .interface = 2}});
  EXPECT_TRUE(port().gids.empty());
}

TEST_F(InfinibandPortTest, ReportsTheReasonWhyThePortIsNotActive) {
  ASSERT_TRUE(table.set_state(kPort, {.down_reason = "no manager", .link = {.state = 2}}));
  EXPECT_FALSE(port().active);
  EXPECT_EQ(port().down_reason, "no manager");
  EXPECT_EQ(port().link.state, 2);
}

TEST_F(InfinibandPortTest, MoreGidsThanAPortCanHaveAreRefused) {
  const auto refused =
      table.set_state(kPort, {.gids = std::vector<Gid>(ipc::Port::kGidsMax + 1, gid_of(1))});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::kInvalidArgument);
}

}  // namespace
}  // namespace verbena::node
