#pragma once

#include <cstddef>
#include <expected>
#include <string>
#include <string_view>

#include "subnet/topology.h"

// Reads and writes topologies as text.
namespace verbena::subnet {

// Limits the size of a netlist.  A netlist with kPortsMax ports, each on its own line, has about
// 6 MiB.
inline constexpr std::size_t kNetlistBytesMax = std::size_t{8} << 20;

// Describes an error in a netlist.  Lines and columns count from 1; columns count bytes.
struct NetlistError {
  std::size_t line = 0;
  std::size_t column = 0;
  std::string reason{};

  friend bool operator==(const NetlistError&, const NetlistError&) = default;
};

// Reads the output of `ibnetdiscover` and the netlists of ibsim, whose formats are nearly the same:
//
//   Switch  8 "Switch1"          a node: its type, its number of ports and its ID
//   [1]  "Hca1"[1]               port 1 is connected to port 1 of the node with this ID
//   [2]  "Hca2"[1]  w=12         the width of the link: 1, 2, 4, 8 or 12 lanes
//
// The type of an HCA is `Hca` or `Ca`, and the type of a router is `Rt`.  The line of a port
// belongs to the node above it.  A link may be listed at one end or at both.  The options `s=` and
// `e=` of a port, and the lines `width=`, `speed=` and `extspeed=`, have the masks of ibsim.
//
// A line like `caguid=0x1` or `switchguid=0x1(1)` gives the GUID of the next node.  A number like
// `(1)` after a port of an HCA is the GUID of the port.  set_missing_guids() makes all other GUIDs.
//
// A `#` begins a comment.  The comment may contain the description of a node ("text"), or width and
// speed of a link (4xEDR) and its MTU (mtu 2048).  Other comments are ignored.  By default, a link
// is 4x SDR with an MTU of 2048 bytes, as in ibsim.
//
// Headings such as "Non-Chassis Nodes", and lines that a program wrote to stderr, are ignored, see
// is_remark().  name_nodes() says which names the nodes get.
std::expected<Topology, NetlistError> parse_netlist(std::string_view text);

// Returns true for a netlist, and false for TOML.  A netlist has a line that begins with the type
// of a node.
bool looks_like_netlist(std::string_view text);

// Writes a text that parse_netlist() reads as the same topology.  ibsim reads it too.
// REQUIRES: find_problem(topology) returns nothing.
std::string write_netlist(const Topology& topology);

}  // namespace verbena::subnet
