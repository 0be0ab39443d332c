#include "subnet/generate.h"

#include <string>
#include <vector>

namespace verbena::subnet {
namespace {

std::string numbered(const char* name, std::uint32_t index) {
  return name + std::to_string(index + 1);
}

// Returns the smallest number whose square is at least n.
std::uint32_t square_root_up(std::uint32_t n) {
  std::uint32_t root = 1;
  while (root * root < n) ++root;
  return root;
}

std::uint8_t port_number(std::uint32_t index) { return static_cast<std::uint8_t>(index + 1); }

}  // namespace

std::optional<Topology> make_hosts(std::uint32_t hosts, std::uint8_t ports) {
  if (hosts == 0 || hosts > kHostsOfSwitchMax || ports == 0 || ports > kHcaPortsMax) {
    return std::nullopt;
  }
  Topology topology;
  std::vector<std::uint32_t> switches;
  for (std::uint32_t i = 0; i < ports; ++i) {
    switches.push_back(
        topology.add_switch(numbered("switch", i), static_cast<std::uint8_t>(hosts)));
  }
  for (std::uint32_t i = 0; i < hosts; ++i) {
    const std::uint32_t host = topology.add_hca(numbered("host", i), ports);
    for (std::uint32_t rail = 0; rail < ports; ++rail) {
      topology.connect({host, port_number(rail)}, {switches[rail], port_number(i)});
    }
  }
  set_missing_guids(topology);
  return topology;
}

std::optional<Topology> make_fat_tree(std::uint32_t hosts) {
  if (hosts == 0 || hosts > kHostsOfFatTreeMax) return std::nullopt;
  const std::uint32_t hosts_of_leaf = square_root_up(hosts);
  const std::uint32_t leaves = (hosts + hosts_of_leaf - 1) / hosts_of_leaf;
  const std::uint32_t spines = hosts_of_leaf;
  Topology topology;
  std::vector<std::uint32_t> leaf_nodes, spine_nodes;
  for (std::uint32_t i = 0; i < leaves; ++i) {
    leaf_nodes.push_back(topology.add_switch(numbered("leaf", i),
                                             static_cast<std::uint8_t>(hosts_of_leaf + spines)));
  }
  for (std::uint32_t i = 0; i < spines; ++i) {
    spine_nodes.push_back(
        topology.add_switch(numbered("spine", i), static_cast<std::uint8_t>(leaves)));
  }
  for (std::uint32_t i = 0; i < hosts; ++i) {
    const std::uint32_t host = topology.add_hca(numbered("host", i));
    topology.connect({host, 1}, {leaf_nodes[i / hosts_of_leaf], port_number(i % hosts_of_leaf)});
  }
  for (std::uint32_t leaf = 0; leaf < leaves; ++leaf) {
    for (std::uint32_t spine = 0; spine < spines; ++spine) {
      topology.connect({leaf_nodes[leaf], port_number(hosts_of_leaf + spine)},
                       {spine_nodes[spine], port_number(leaf)});
    }
  }
  set_missing_guids(topology);
  return topology;
}

}  // namespace verbena::subnet
