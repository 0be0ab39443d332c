#include "subnet/generate.h"

#include <string>
#include <vector>

namespace verbena::subnet {
namespace {

std::string numbered_name(const char* name, std::uint32_t index) {
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

std::optional<Topology> make_hosts(std::uint32_t host_count, std::uint8_t ports_per_host) {
  if (host_count == 0 || host_count > kHostsOfSwitchMax || ports_per_host == 0 ||
      ports_per_host > kHcaPortsMax) {
    return std::nullopt;
  }
  Topology topology;
  std::vector<std::uint32_t> switches;
  for (std::uint32_t i = 0; i < ports_per_host; ++i) {
    switches.push_back(
        topology.add_switch(numbered_name("switch", i), static_cast<std::uint8_t>(host_count)));
  }
  for (std::uint32_t i = 0; i < host_count; ++i) {
    const std::uint32_t host = topology.add_hca(numbered_name("host", i), ports_per_host);
    for (std::uint32_t port = 0; port < ports_per_host; ++port) {
      topology.connect({host, port_number(port)}, {switches[port], port_number(i)});
    }
  }
  set_missing_guids(topology);
  return topology;
}

std::optional<Topology> make_fat_tree(std::uint32_t host_count) {
  if (host_count == 0 || host_count > kHostsOfFatTreeMax) return std::nullopt;
  const std::uint32_t hosts_of_leaf = square_root_up(host_count);
  const std::uint32_t leaf_count = (host_count + hosts_of_leaf - 1) / hosts_of_leaf;
  const std::uint32_t spine_count = hosts_of_leaf;
  Topology topology;
  std::vector<std::uint32_t> leaf_nodes, spine_nodes;
  for (std::uint32_t i = 0; i < leaf_count; ++i) {
    leaf_nodes.push_back(topology.add_switch(
        numbered_name("leaf", i), static_cast<std::uint8_t>(hosts_of_leaf + spine_count)));
  }
  for (std::uint32_t i = 0; i < spine_count; ++i) {
    spine_nodes.push_back(
        topology.add_switch(numbered_name("spine", i), static_cast<std::uint8_t>(leaf_count)));
  }
  for (std::uint32_t i = 0; i < host_count; ++i) {
    const std::uint32_t host = topology.add_hca(numbered_name("host", i));
    topology.connect({host, 1}, {leaf_nodes[i / hosts_of_leaf], port_number(i % hosts_of_leaf)});
  }
  for (std::uint32_t leaf = 0; leaf < leaf_count; ++leaf) {
    for (std::uint32_t spine = 0; spine < spine_count; ++spine) {
      topology.connect({leaf_nodes[leaf], port_number(hosts_of_leaf + spine)},
                       {spine_nodes[spine], port_number(leaf)});
    }
  }
  set_missing_guids(topology);
  return topology;
}

}  // namespace verbena::subnet
