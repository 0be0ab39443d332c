#include "subnet/find_link.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

#include "subnet/netlist_words.h"

namespace verbena::subnet {
namespace {

struct LinkEnd {
  std::uint32_t node = 0;
  std::optional<std::uint8_t> port{};

  bool matches(PortRef other) const { return other.node == node && (!port || *port == other.port); }
};

std::expected<LinkEnd, std::string> parse_end(const Topology& topology, std::string_view text) {
  const auto whole = find_node(topology, text);
  if (whole) return LinkEnd{.node = *whole};
  const auto colon = text.rfind(':');  // the last colon, because a name may contain colons
  if (colon == std::string_view::npos) return std::unexpected(whole.error());
  const auto node = find_node(topology, text.substr(0, colon));
  if (!node) return std::unexpected(node.error());
  const std::string_view digits = text.substr(colon + 1);
  const unsigned ports = topology.nodes[*node].ports;
  unsigned port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size() || port == 0 || port > ports) {
    return std::unexpected("'" + topology.nodes[*node].name + "' has no port '" +
                           std::string(digits) + "': its ports are 1 to " + std::to_string(ports));
  }
  return LinkEnd{.node = *node, .port = static_cast<std::uint8_t>(port)};
}

std::string link_texts(const Topology& topology, const std::vector<std::size_t>& links) {
  std::string text;
  for (std::size_t i = 0; i < links.size() && i <= kLinksNamedMax; ++i) {
    if (i > 0) text += ", ";
    text += i == kLinksNamedMax ? "..." : link_text(topology, links[i]);
  }
  return text;
}

std::string names_text(const Topology& topology, const std::vector<std::uint32_t>& nodes) {
  std::string text;
  for (std::size_t i = 0; i < nodes.size() && i <= kLinksNamedMax; ++i) {
    if (i > 0) text += ", ";
    text += i == kLinksNamedMax ? "..." : topology.nodes[nodes[i]].name;
  }
  return text;
}

std::string no_link_text(const Topology& topology, std::string_view a, const LinkEnd& end_a,
                         std::string_view b) {
  std::vector<std::size_t> links_of_a;
  for (std::size_t i = 0; i < topology.links.size(); ++i) {
    const Link& link = topology.links[i];
    if (link.a.node == end_a.node || link.b.node == end_a.node) links_of_a.push_back(i);
  }
  const std::string beginning =
      "no link joins '" + std::string(a) + "' and '" + std::string(b) + "'";
  const std::string& name = topology.nodes[end_a.node].name;
  if (links_of_a.empty()) return beginning + "; '" + name + "' has no links";
  return beginning + "; '" + name + "' has: " + link_texts(topology, links_of_a);
}

}  // namespace

std::expected<std::uint32_t, std::string> find_node(const Topology& topology,
                                                    std::string_view name) {
  if (const auto node = topology.find(name)) return *node;
  std::vector<std::uint32_t> found;
  for (std::uint32_t i = 0; i < topology.nodes.size(); ++i) {
    if (!name.empty() && topology.nodes[i].description == name) found.push_back(i);
  }
  if (found.empty()) {
    const auto guid = parse_guid(name);
    const auto has_guid = [&](const Node& node) { return guid && node.node_guid == *guid; };
    const auto node = std::ranges::find_if(topology.nodes, has_guid);
    if (node != topology.nodes.end()) {
      return static_cast<std::uint32_t>(node - topology.nodes.begin());
    }
    return std::unexpected("there is no node '" + std::string(name) + "'");
  }
  if (found.size() == 1) return found[0];
  return std::unexpected("several nodes have the description '" + std::string(name) +
                         "': " + names_text(topology, found));
}

std::expected<std::size_t, std::string> find_link(const Topology& topology, std::string_view a,
                                                  std::string_view b) {
  const auto end_a = parse_end(topology, a);
  if (!end_a) return std::unexpected(end_a.error());
  const auto end_b = parse_end(topology, b);
  if (!end_b) return std::unexpected(end_b.error());
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < topology.links.size(); ++i) {
    const Link& link = topology.links[i];
    if ((end_a->matches(link.a) && end_b->matches(link.b)) ||
        (end_a->matches(link.b) && end_b->matches(link.a))) {
      found.push_back(i);
    }
  }
  if (found.empty()) return std::unexpected(no_link_text(topology, a, *end_a, b));
  if (found.size() == 1) return found[0];
  return std::unexpected("several links join '" + std::string(a) + "' and '" + std::string(b) +
                         "', so name a port (NAME:PORT): " + link_texts(topology, found));
}

std::string link_text(const Topology& topology, std::size_t link) {
  const auto end_text = [&](PortRef port) {
    return topology.nodes[port.node].name + ":" + std::to_string(port.port);
  };
  const Link& ends = topology.links[link];
  return end_text(ends.a) + " - " + end_text(ends.b);
}

}  // namespace verbena::subnet
