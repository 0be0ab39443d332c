#include "subnet/node_names.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/host_name.h"
#include "subnet/netlist_words.h"

namespace verbena::subnet {
namespace {

using Uses = std::map<std::string, unsigned, std::less<>>;

// Names like a GUID are only for nodes that have no better name.
bool may_be_name(const Node& node, std::string_view text) {
  return !guid_in_id(text) && (node.is_hca() ? is_host_name(text) : is_node_name(text));
}

std::string clean(std::string_view text) {
  std::string cleaned;
  for (const char c : text) {
    const bool is_allowed = is_host_name(std::string_view(&c, 1)) || c == '-';
    if (is_allowed) {
      cleaned += c;
    } else if (!cleaned.empty() && cleaned.back() != '-') {
      cleaned += '-';
    }
  }
  cleaned.erase(0, cleaned.find_first_not_of('-'));
  cleaned.erase(cleaned.find_last_not_of('-') + 1);
  return cleaned;
}

// Returns the name that a node would get if no other node had a similar one.
std::string_view wanted_name(const Node& node) {
  if (may_be_name(node, node.name)) return node.name;
  return may_be_name(node, node.description) ? std::string_view(node.description) : "";
}

Uses count_uses(const Topology& topology) {
  Uses uses;
  for (const Node& node : topology.nodes) {
    const std::string_view name = wanted_name(node);
    if (!name.empty()) ++uses[std::string(name)];
    if (!node.description.empty() && node.description != name) ++uses[node.description];
  }
  return uses;
}

std::set<std::string> ids_with_guids(const Topology& topology) {
  std::set<std::string> ids;
  for (const Node& node : topology.nodes) {
    if (guid_in_id(node.name)) ids.insert(node.name);
  }
  return ids;
}

// Names a node by its GUID.  Chooses another number if a node without this GUID has such an ID.
void name_by_guid(Node& node, std::set<std::string>& ids) {
  if (guid_in_id(node.name)) return;
  Guid guid = node.node_guid;
  while (!ids.insert(node.name = id_of(node.type, guid)).second) ++guid.value;
}

}  // namespace

void name_nodes(Topology& topology) {
  for (Node& node : topology.nodes) {
    const bool is_lost = !guid_in_id(node.name) && !may_be_name(node, node.name);
    if (is_lost && node.description.empty()) node.description = description_of(node.name);
  }
  const Uses uses = count_uses(topology);
  std::set<std::string> ids = ids_with_guids(topology);
  std::vector<std::pair<Node*, std::string>> unnamed;
  Uses cleaned_uses;
  for (Node& node : topology.nodes) {
    if (may_be_name(node, node.name)) continue;
    const std::string wanted(wanted_name(node));
    if (!wanted.empty() && uses.at(wanted) == 1) {
      node.name = wanted;
      continue;
    }
    unnamed.emplace_back(&node, clean(node.description));
    ++cleaned_uses[unnamed.back().second];
  }
  for (const auto& [node, cleaned] : unnamed) {
    const bool is_unique = cleaned_uses[cleaned] == 1 && !uses.contains(cleaned);
    if (is_unique && may_be_name(*node, cleaned)) {
      node->name = cleaned;
    } else {
      name_by_guid(*node, ids);
    }
  }
}

}  // namespace verbena::subnet
