#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

#include "subnet/topology.h"

// Finds nodes and links by the names that a user writes.  Errors are lines for the user.
namespace verbena::subnet {

// Limits the links that a message names.
inline constexpr std::size_t kLinksNamedMax = 4;

// Finds a node by its name, by its description, or by its GUID ("0x2c90300000001", or an ID such
// as "H-0002c90300000001").  A description must belong to only one node.
std::expected<std::uint32_t, std::string> find_node(const Topology& topology,
                                                    std::string_view name);
// Finds the link between two nodes, and returns its index in Topology::links.  `a` and `b` are NAME
// or NAME:PORT; a port is needed only if several links join the two nodes.
std::expected<std::size_t, std::string> find_link(const Topology& topology, std::string_view a,
                                                  std::string_view b);
// Returns the text for a link, for example "Hca1:1 - Switch1:3".
std::string link_text(const Topology& topology, std::size_t link);

}  // namespace verbena::subnet
