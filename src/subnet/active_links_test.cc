#include "subnet/active_links.h"

#include <gtest/gtest.h>

#include <array>
#include <optional>

#include "subnet/generate.h"
#include "subnet/test_subnet.h"

namespace verbena::subnet {
namespace {

// Returns a port of the HCA with the name host1.
PortRef port_of_first_hca(const Topology& topology, std::uint8_t port = 1) {
  return {.node = *topology.find("host1"), .port = port};
}

struct ActiveLinksTest : ::testing::Test {
  void start(const std::optional<Topology>& topology) {
    manager_port = port_of_first_hca(*topology);
    world.emplace(*topology, manager_port);
    links.emplace(world->subnet, std::array{manager_port});
  }
  PortRef manager_port{};
  std::optional<ManagedSubnet> world{};
  std::optional<ActiveLinks> links{};
};

TEST_F(ActiveLinksTest, PortsAreInactiveUntilAManagerHasActivatedThem) {
  start(make_hosts(3));
  EXPECT_FALSE(links->are_all_active());
  EXPECT_EQ(links->inactive_ports(100).size(), 6U) << "three links have two ends each";
  EXPECT_EQ(links->inactive_ports(2).size(), 2U);
  ASSERT_TRUE(world->settle());
  EXPECT_TRUE(links->are_all_active());
  EXPECT_TRUE(links->inactive_ports(100).empty());
}

TEST_F(ActiveLinksTest, ThePortsOfHcasAreThoseThatTheManagerReaches) {
  start(make_hosts(3, 2));
  const std::vector<PortRef> ports = links->hca_ports();
  ASSERT_EQ(ports.size(), 3u) << "the second ports are at another switch";
  for (const PortRef port : ports) {
    EXPECT_TRUE(world->subnet.topology().nodes[port.node].is_hca());
    EXPECT_EQ(port.port, 1);
  }
}

TEST_F(ActiveLinksTest, AWholeFatTreeBecomesActive) {
  start(make_fat_tree(16));
  EXPECT_EQ(links->inactive_ports(1000).size(), 2 * world->subnet.topology().links.size());
  ASSERT_TRUE(world->settle());
  EXPECT_TRUE(links->are_all_active());
}

TEST_F(ActiveLinksTest, ALinkThatTrainsAgainIsInactive) {
  start(make_hosts(3));
  ASSERT_TRUE(world->settle());
  ASSERT_TRUE(links->are_all_active());
  world->subnet.set_link(0, false, world->now);
  EXPECT_TRUE(links->are_all_active()) << "a link with a pulled cable is ignored";
  world->subnet.set_link(0, true, world->now);
  EXPECT_FALSE(links->are_all_active());
}

TEST_F(ActiveLinksTest, LinksThatTheManagerCannotReachAreIgnored) {
  // The second ports of the hosts are at a second switch, which is not connected to the first.
  start(make_hosts(2, 2));
  ASSERT_TRUE(world->settle());
  EXPECT_TRUE(links->are_all_active());
  const std::array manager_ports{manager_port, port_of_first_hca(world->subnet.topology(), 2)};
  const ActiveLinks all_links(world->subnet, manager_ports);
  EXPECT_EQ(all_links.inactive_ports(100).size(), 4U);
}

}  // namespace
}  // namespace verbena::subnet
