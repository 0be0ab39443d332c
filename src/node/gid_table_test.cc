#include "node/gid_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "node/test_addresses.h"
#include "wire/ip.h"

namespace verbena::node {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(GidTable, OrdersTheDefaultRouteFirstAndLoopbackLast) {
  Gid link_local{};
  link_local.bytes[0] = std::byte{0xfe};
  link_local.bytes[1] = std::byte{0x80};
  HostAddress local = address(link_local, 2, true);
  local.link_local = true;
  HostAddress loopback = address(wire::ipv4_gid(0x7f000001), 1);
  loopback.loopback = true;
  GidTable table;
  table.update({loopback, address(kRemoteIp, 3), address(kLocalIp, 2, true), local});
  std::vector<Gid> order;
  for (const auto& entry : table.entries()) order.push_back(entry.gid);
  EXPECT_THAT(order, ElementsAre(link_local, kLocalIp, kRemoteIp, loopback.gid));
  EXPECT_EQ(table.active_mtu(), 3);  // 1024 bytes, because the interfaces have an MTU of 1,500
}

TEST(GidTable, AddressKeepsItsIndexWhileTheTableIsNotFull) {
  Random random(7);
  GidTable table;
  std::map<std::pair<Gid, std::uint32_t>, std::uint32_t> index_of;
  for (int round = 0; round < 500; ++round) {
    std::vector<HostAddress> present;
    for (std::uint32_t n = 0; n < 20; ++n) {
      if (random.chance({1, 2})) {
        present.push_back(address(wire::ipv4_gid(n), 1 + n % 3, random.chance({1, 2})));
      }
    }
    table.update(present);
    const auto entries = table.entries();
    ASSERT_EQ(entries.size(), present.size());
    for (const auto& entry : entries) {
      const auto [existing, is_new] =
          index_of.emplace(std::pair(entry.gid, entry.interface), entry.index);
      ASSERT_EQ(existing->second, entry.index);
      ASSERT_EQ(table.index_of(entry.gid, entry.interface), entry.index);
    }
  }
  ASSERT_EQ(index_of.size(), 20u);
}

TEST(GidTable, IsUpWithANetworkOrIfTheHostNeverHadANetwork) {
  HostAddress loopback = address(wire::ipv4_gid(0x7f000001), 1);
  loopback.loopback = true;
  HostAddress unplugged = address(kLocalIp, 2);  // like docker0 without a container
  unplugged.up = false;
  GidTable table;
  EXPECT_FALSE(table.is_up());
  table.update({loopback, unplugged});
  EXPECT_TRUE(table.is_up());
  table.update({loopback, address(kLocalIp, 2)});
  EXPECT_TRUE(table.is_up());
  table.update({loopback, unplugged});
  EXPECT_FALSE(table.is_up());
  table.update({loopback});  // IPv6 addresses disappear when their interface goes down
  EXPECT_FALSE(table.is_up());
  table.update({loopback, unplugged, address(kRemoteIp, 3)});
  EXPECT_TRUE(table.is_up());
}

TEST(GidTable, CountsAddressesBeyondItsLimit) {
  std::vector<HostAddress> many;
  for (std::uint32_t n = 0; n < ipc::Port::kGidsMax + 5; ++n) {
    many.push_back(address(wire::ipv4_gid(n), 1));
  }
  GidTable table;
  table.update(many);
  EXPECT_EQ(table.entries().size(), ipc::Port::kGidsMax);
  EXPECT_EQ(table.dropped(), 5u);
}

TEST(GidTable, ReusesUnusedEntriesWhenItIsFull) {
  GidTable table;
  for (std::uint32_t interface = 1; interface < 2 * ipc::Port::kGidsMax; ++interface) {
    table.update({address(kLocalIp, interface)});  // like a tunnel that is often created again
    ASSERT_TRUE(table.index_of(kLocalIp, interface)) << interface;
    ASSERT_EQ(table.dropped(), 0u);
  }
}

}  // namespace
}  // namespace verbena::node
