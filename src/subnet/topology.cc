#include "subnet/topology.h"

#include <algorithm>
#include <set>
#include <unordered_set>
#include <utility>

#include "base/printable.h"

namespace verbena::subnet {
namespace {

constexpr std::uint64_t kFirstHcaGuid = 0x100000;
constexpr std::uint64_t kFirstSwitchGuid = 0x200000;

std::string port_text(const Topology& topology, PortRef port) {
  if (port.node >= topology.nodes.size()) return "node " + std::to_string(port.node);
  return "port " + std::to_string(port.port) + " of \"" +
         printable_name(topology.nodes[port.node].name) + '"';
}

bool is_control(char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }

std::optional<std::string> problem_of(const Node& node) {
  const std::string name = '"' + printable_name(node.name) + '"';
  if (node.name.empty()) return "a node has no name";
  if (node.name.size() > kNodeNameBytesMax) return "the name " + name + " has more than 63 bytes";
  if (!is_node_name(node.name)) return name + " has a quote or a control character in its name";
  if (node.description.size() > kDescriptionBytesMax) {
    return name + " has a description of more than 64 bytes";
  }
  if (std::ranges::any_of(node.description, is_control)) {
    return name + " has a control character in its description";
  }
  if (node.ports == 0) return name + " has no ports";
  if (node.is_hca() && node.ports > kHcaPortsMax) return name + " is an HCA with more than 2 ports";
  if (node.ports > kSwitchPortsMax) return name + " has more than 254 ports";
  const std::size_t guid_count = node.is_switch() ? 1 : node.ports;
  if (node.port_guids.size() != guid_count) return name + " does not have one GUID for each port";
  return std::nullopt;
}

std::optional<std::string> problem_of(const Topology& topology, const Link& link,
                                      std::set<PortRef>& linked_ports) {
  for (const PortRef end : {link.a, link.b}) {
    const std::string port = port_text(topology, end);
    if (end.node >= topology.nodes.size()) return "a link uses " + port + ", which does not exist";
    if (end.port == 0 || end.port > topology.nodes[end.node].ports) {
      return "a link uses " + port + ", which has only ports 1 to " +
             std::to_string(topology.nodes[end.node].ports);
    }
    if (!linked_ports.insert(end).second) return "two links use " + port;
  }
  return std::nullopt;
}

// Returns false if a GUID of the node is 0, or is in `guids` already.  Adds the GUIDs to `guids`.
bool has_unique_guids(const Node& node, std::unordered_set<std::uint64_t>& guids) {
  const auto is_new = [&](Guid guid) { return guid.value != 0 && guids.insert(guid.value).second; };
  bool are_unique = is_new(node.node_guid);
  bool has_node_guid = false;  // one of the node's ports may have the GUID of the node
  for (const Guid guid : node.port_guids) {
    const bool is_free =
        guid == node.node_guid ? !std::exchange(has_node_guid, true) : is_new(guid);
    are_unique = are_unique && is_free;
  }
  return are_unique;
}

}  // namespace

std::uint32_t Topology::add_hca(std::string_view name, std::uint8_t ports) {
  nodes.push_back({.type = NodeType::kHca,
                   .name = std::string(name),
                   .ports = ports,
                   .port_guids = std::vector<Guid>(ports)});
  return static_cast<std::uint32_t>(nodes.size() - 1);
}

std::uint32_t Topology::add_switch(std::string_view name, std::uint8_t ports) {
  nodes.push_back({.type = NodeType::kSwitch,
                   .name = std::string(name),
                   .ports = ports,
                   .port_guids = std::vector<Guid>(1)});
  return static_cast<std::uint32_t>(nodes.size() - 1);
}

Link& Topology::connect(PortRef a, PortRef b) { return links.emplace_back(Link{.a = a, .b = b}); }

std::optional<std::uint32_t> Topology::find(std::string_view name) const {
  const auto found = std::ranges::find(nodes, name, &Node::name);
  if (found == nodes.end()) return std::nullopt;
  return static_cast<std::uint32_t>(found - nodes.begin());
}

std::optional<std::size_t> Topology::link_at(PortRef port) const {
  const auto found = std::ranges::find_if(
      links, [&](const Link& link) { return link.a == port || link.b == port; });
  if (found == links.end()) return std::nullopt;
  return static_cast<std::size_t>(found - links.begin());
}

bool is_node_name(std::string_view text) {
  const auto is_forbidden = [](char c) { return c == '"' || is_control(c); };
  return !text.empty() && text.size() <= kNodeNameBytesMax &&
         std::ranges::none_of(text, is_forbidden);
}

std::string description_of(std::string_view text) {
  std::string description(text.substr(0, kDescriptionBytesMax));
  std::ranges::replace_if(description, is_control, ' ');
  return description;
}

void set_missing_guids(Topology& topology) {
  std::unordered_set<std::uint64_t> used_guids;
  for (const Node& node : topology.nodes) {
    used_guids.insert(node.node_guid.value);
    for (const Guid guid : node.port_guids) used_guids.insert(guid.value);
  }
  std::uint64_t next_hca_guid = kFirstHcaGuid, next_switch_guid = kFirstSwitchGuid;
  for (Node& node : topology.nodes) {
    std::uint64_t& next_guid = node.is_switch() ? next_switch_guid : next_hca_guid;
    const std::uint64_t first_guid = next_guid;
    next_guid += node.ports + std::uint64_t{1};
    const auto fill = [&](Guid& guid, std::uint64_t candidate) {
      if (guid.value != 0) return;
      while (used_guids.contains(candidate)) ++next_guid, ++candidate;
      guid.value = candidate;
      used_guids.insert(candidate);
    };
    fill(node.node_guid, first_guid);
    if (node.system_guid.value == 0) node.system_guid = node.node_guid;
    if (node.is_switch()) {
      if (node.port_guids.front().value == 0) node.port_guids.front() = node.node_guid;
      continue;
    }
    for (std::size_t i = 0; i < node.port_guids.size(); ++i) {
      fill(node.port_guids[i], node.node_guid.value + i + 1);
    }
  }
}

std::optional<TopologyProblem> find_problem_and_node(const Topology& topology) {
  if (topology.nodes.empty()) return TopologyProblem{"there are no nodes"};
  if (topology.nodes.size() > kNodesMax) {
    return TopologyProblem{"there are more than " + std::to_string(kNodesMax) + " nodes"};
  }
  std::unordered_set<std::string_view> names;
  std::unordered_set<std::uint64_t> guids;
  std::size_t port_count = 0;
  for (std::uint32_t i = 0; i < topology.nodes.size(); ++i) {
    const Node& node = topology.nodes[i];
    if (auto what = problem_of(node)) return TopologyProblem{std::move(*what), i};
    port_count += node.ports;
    if (port_count > kPortsMax) {
      return TopologyProblem{"there are more than " + std::to_string(kPortsMax) + " ports", i};
    }
    const std::string name = '"' + printable_name(node.name) + '"';
    if (!names.insert(node.name).second) {
      return TopologyProblem{"two nodes have the name " + name, i};
    }
    if (!has_unique_guids(node, guids)) {
      return TopologyProblem{name + " has a GUID that is 0 or that occurs twice", i};
    }
  }
  std::set<PortRef> linked_ports;
  for (const Link& link : topology.links) {
    if (auto what = problem_of(topology, link, linked_ports)) {
      return TopologyProblem{std::move(*what), link.a.node};
    }
  }
  return std::nullopt;
}

std::optional<std::string> find_problem(const Topology& topology) {
  auto problem = find_problem_and_node(topology);
  if (!problem) return std::nullopt;
  return std::move(problem->text);
}

}  // namespace verbena::subnet
