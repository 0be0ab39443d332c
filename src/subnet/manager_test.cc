#include "subnet/manager.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/random.h"
#include "sim/seeds.h"
#include "subnet/generate.h"
#include "subnet/test_subnet.h"

namespace verbena::subnet {
namespace {

std::vector<PortRef> host_ports(const Topology& topology) {
  std::vector<PortRef> ports;
  for (std::uint32_t i = 0; i < topology.nodes.size(); ++i) {
    if (!topology.nodes[i].is_switch()) ports.push_back({i, 1});
  }
  return ports;
}

// Returns one bool for each node: true if a path of links that are up connects it with `from`.
std::vector<bool> connected_nodes(const Subnet& subnet, std::uint32_t from) {
  const Topology& topology = subnet.topology();
  std::vector<bool> reached(topology.nodes.size());
  std::vector<std::uint32_t> to_visit{from};
  reached[from] = true;
  while (!to_visit.empty()) {
    const std::uint32_t node = to_visit.back();
    to_visit.pop_back();
    if (node != from && !topology.nodes[node].is_switch()) continue;
    for (std::size_t i = 0; i < topology.links.size(); ++i) {
      const Link& link = topology.links[i];
      if (!subnet.link_is_up(i) || (link.a.node != node && link.b.node != node)) continue;
      const std::uint32_t other = link.a.node == node ? link.b.node : link.a.node;
      if (!reached[other]) to_visit.push_back(other);
      reached[other] = true;
    }
  }
  return reached;
}

// Returns a problem as text: a packet between two hosts is lost, loops, or arrives although no link
// connects the hosts.  Returns an empty text if there is no problem.
std::string first_problem(ManagedSubnet& world, PortRef manager_port) {
  const auto ports = host_ports(world.subnet.topology());
  const auto reached = connected_nodes(world.subnet, manager_port.node);
  const std::uint64_t loops = world.subnet.counters().too_many_hops;
  for (const PortRef from : ports) {
    for (const PortRef to : ports) {
      const Lid lid = world.lid(to);
      if (from == to || lid.value == 0 || !reached[from.node]) continue;
      const auto arrival_ports = world.send_data(from, lid);
      const std::string pair = world.subnet.topology().nodes[from.node].name + " to " +
                               world.subnet.topology().nodes[to.node].name;
      if (reached[to.node] && arrival_ports != std::vector{to}) return pair + " is lost";
      if (!reached[to.node] && !arrival_ports.empty()) return pair + " arrived without a link";
      if (world.subnet.counters().too_many_hops != loops) return pair + " loops";
    }
  }
  return "";
}

TEST(Manager, ThreeHostsAtOneSwitchCanCommunicate) {
  const Topology topology = *make_hosts(3);
  ManagedSubnet world(topology, {1, 1});
  EXPECT_EQ(world.subnet.status({1, 1}).state, PortState::kInit);
  EXPECT_TRUE(world.send_data({1, 1}, Lid{1}).empty());
  ASSERT_TRUE(world.settle());
  EXPECT_EQ(world.manager.sweeps(), 1u);
  EXPECT_EQ(world.subnet.status({1, 1}).lid, Lid{1});
  EXPECT_EQ(world.subnet.status({3, 1}).state, PortState::kActive);
  EXPECT_EQ(world.subnet.status({3, 1}).sm_lid, Lid{1});
  EXPECT_EQ(world.subnet.status({0, 2}).state, PortState::kActive);
  EXPECT_EQ(first_problem(world, {1, 1}), "");
}

TEST(Manager, SixteenHostsOfAFatTreeCanCommunicate) {
  const Topology topology = *make_fat_tree(16);
  const PortRef manager_port{topology.find("host1").value(), 1};
  ManagedSubnet world(topology, manager_port);
  ASSERT_TRUE(world.settle());
  EXPECT_EQ(first_problem(world, manager_port), "");
}

TEST(Manager, RoutesAvoidALinkThatIsDown) {
  const Topology topology = *make_fat_tree(4);
  const PortRef manager_port{topology.find("host1").value(), 1};
  ManagedSubnet world(topology, manager_port);
  ASSERT_TRUE(world.settle());
  const PortRef leaf_uplink{topology.find("leaf1").value(), 3};
  world.subnet.set_link(topology.link_at(leaf_uplink).value(), false, world.now);
  ASSERT_TRUE(world.settle());
  EXPECT_EQ(first_problem(world, manager_port), "");
  // The switch repeats a trap that was lost on the failed link, and then the manager represses it.
  world.now += std::chrono::seconds(5);
  world.subnet.advance(world.now);
  ASSERT_TRUE(world.settle());
  EXPECT_EQ(world.subnet.next_deadline(), kNever);
}

// A directed route may have 63 hops each way (vol1 14.2.2).  So two hosts may be twice as far
// from each other, if the manager is between them.
TEST(Manager, HostsAreManagedAndReachedOverLongChainsOfSwitches) {
  constexpr std::uint32_t kSwitches = 122;
  Topology chain;
  for (std::uint32_t i = 0; i < kSwitches; ++i) chain.add_switch("s" + std::to_string(i), 3);
  for (std::uint32_t i = 1; i < kSwitches; ++i) chain.connect({i - 1, 2}, {i, 1});
  const PortRef first{chain.add_hca("first"), 1}, middle{chain.add_hca("middle"), 1},
      last{chain.add_hca("last"), 1};
  chain.connect(first, {0, 3});
  chain.connect(middle, {kSwitches / 2, 3});
  chain.connect(last, {kSwitches - 1, 3});
  set_missing_guids(chain);
  ManagedSubnet world(chain, middle);
  ASSERT_TRUE(world.settle());
  EXPECT_EQ(world.send_data(first, world.lid(last)), std::vector{last});
  EXPECT_EQ(world.send_data(last, world.lid(first)), std::vector{first});
  EXPECT_EQ(world.subnet.counters().too_many_hops, 0u);
}

// Runs one simulation.  While the manager works, links and switches fail and recover, nodes pause,
// and links lose and delay packets.
class SubnetRun {
 public:
  explicit SubnetRun(std::uint64_t seed)
      : random_(seed),
        topology_(random_.below(2) == 0 ? *make_fat_tree(4 + static_cast<std::uint32_t>(seed % 6))
                                        : ring(2 + static_cast<std::uint32_t>(seed % 4))),
        manager_port_{first_host(), 1},
        world_(topology_, manager_port_) {}

  std::string run() {
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < 4; ++i) add_fault();
      end_impairments();
      if (!world_.settle()) return "the manager does not bring the subnet up";
      // The manager gets no trap for some changes, for example at its own link or behind a failed
      // switch.  The next periodic sweep finds such a change.
      world_.now = world_.manager.next_deadline();
      world_.manager.advance(world_.now);
      if (!world_.settle()) return "the manager does not finish its periodic sweep";
      if (auto what = first_problem(world_, manager_port_); !what.empty()) return what;
    }
    return "";
  }

 private:
  // Returns switches in a ring, each with two hosts.
  static Topology ring(std::uint32_t switch_count) {
    Topology topology;
    for (std::uint32_t i = 0; i < switch_count; ++i) {
      topology.add_switch("switch" + std::to_string(i), 4);
    }
    for (std::uint32_t i = 0; i < switch_count; ++i) {
      for (std::uint8_t port = 3; port <= 4; ++port) {
        const auto host = topology.add_hca("host" + std::to_string(i) + std::to_string(port));
        topology.connect({host, 1}, {i, port});
      }
      topology.connect({i, 1}, {(i + 1) % switch_count, 2});
    }
    set_missing_guids(topology);
    return topology;
  }

  std::uint32_t first_host() const {
    return static_cast<std::uint32_t>(
        std::ranges::find_if(topology_.nodes, [](const Node& n) { return !n.is_switch(); }) -
        topology_.nodes.begin());
  }

  // Pauses a node, or makes a link lose or delay packets.
  void add_impairment() {
    const auto node = static_cast<std::uint32_t>(random_.below(topology_.nodes.size()));
    const std::size_t link = random_.below(topology_.links.size());
    switch (random_.below(3)) {
      case 0:
        if (node != manager_port_.node) world_.subnet.set_paused(node, true, world_.now);
        break;
      case 1: world_.subnet.set_loss(link, {.per_million = 300'000, .seed = random_.next()}); break;
      default: world_.subnet.set_delay(link, std::chrono::milliseconds(1 + random_.below(200)));
    }
  }

  // Ends the faults of add_impairment().  Delayed packets still arrive later.
  void end_impairments() {
    for (std::uint32_t node = 0; node < topology_.nodes.size(); ++node) {
      world_.subnet.set_paused(node, false, world_.now);
    }
    for (std::size_t link = 0; link < topology_.links.size(); ++link) {
      world_.subnet.set_loss(link, {});
      world_.subnet.set_delay(link, {});
    }
  }

  // Makes or ends random faults.  Hosts are never switched off, so that the manager works.
  void add_fault() {
    if (random_.below(3) == 0) add_impairment();
    if (random_.below(4) == 0) {
      const auto node = static_cast<std::uint32_t>(random_.below(topology_.nodes.size()));
      if (topology_.nodes[node].is_switch()) {
        world_.subnet.set_power(node, random_.below(2) == 0, world_.now);
      }
    } else {
      const std::size_t link = random_.below(topology_.links.size());
      world_.subnet.set_link(link, random_.below(2) == 0, world_.now);
    }
    if (random_.below(2) == 0) {
      (void)world_.settle(Duration(static_cast<std::int64_t>(random_.below(300'000'000))));
    }
  }

  Random random_;
  Topology topology_;
  PortRef manager_port_;
  ManagedSubnet world_;
};

TEST(ManagerSim, ConnectedHostsCanCommunicateAfterTheFaults) {
  for (const std::uint64_t seed : sim::seeds(1000)) {
    ASSERT_EQ(SubnetRun(seed).run(), "") << "VB_SEED=" << seed;
  }
}

}  // namespace
}  // namespace verbena::subnet
