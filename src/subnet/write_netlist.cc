#include <algorithm>
#include <array>
#include <charconv>
#include <utility>
#include <vector>

#include "subnet/netlist.h"
#include "subnet/netlist_words.h"

namespace verbena::subnet {
namespace {

std::string hex_text(std::uint64_t number) {
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number, 16).ptr;
  return {digits.data(), end};
}

std::string port_line(const Topology& topology, PortRef port, const Link& link) {
  const PortRef other = link.a == port ? link.b : link.a;
  std::string line = '[' + std::to_string(port.port) + ']';
  const Node& node = topology.nodes[port.node];
  if (!node.is_switch()) line += '(' + hex_text(node.port_guid(port.port).value) + ')';
  line += "\t\"" + topology.nodes[other.node].name + "\"[" + std::to_string(other.port) + "]\t# " +
          std::to_string(lanes_of(link.width)) + 'x' + std::string(name_of(link.speed)) + " mtu " +
          std::to_string(mtu_bytes(link.mtu)) + '\n';
  return line;
}

}  // namespace

std::string write_netlist(const Topology& topology) {
  std::vector<std::vector<std::pair<PortRef, const Link*>>> ports(topology.nodes.size());
  for (const Link& link : topology.links) {
    ports[link.a.node].emplace_back(link.a, &link);
    ports[link.b.node].emplace_back(link.b, &link);
  }
  std::string text;
  for (std::size_t i = 0; i < topology.nodes.size(); ++i) {
    const Node& node = topology.nodes[i];
    const std::string guid = hex_text(node.node_guid.value);
    text += "vendid=0x" + hex_text(node.vendor_id) + "\ndevid=0x" + hex_text(node.device_id) +
            "\nsysimgguid=0x" + hex_text(node.system_guid.value) + '\n';
    switch (node.type) {
      case NodeType::kHca: text += "caguid=0x" + guid + "\nCa\t"; break;
      case NodeType::kRouter: text += "rtguid=0x" + guid + "\nRt\t"; break;
      case NodeType::kSwitch:
        text +=
            "switchguid=0x" + guid + '(' + hex_text(node.port_guids.front().value) + ")\nSwitch\t";
        break;
    }
    text += std::to_string(node.ports) + " \"" + node.name + '"';
    if (!node.description.empty()) text += "\t# \"" + node.description + '"';
    text += '\n';
    std::ranges::sort(ports[i]);
    for (const auto& [port, link] : ports[i]) text += port_line(topology, port, *link);
    text += '\n';
  }
  return text;
}

}  // namespace verbena::subnet
