#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/strong.h"

namespace verbena::subnet {

// These constants limit the size of a topology.  The specification allows 48 K unicast LIDs in a
// subnet (vol1 4.1.3), and 254 external ports of a switch (vol1 14.2.5.3).
inline constexpr std::size_t kNodesMax = 8192;
inline constexpr std::size_t kPortsMax = 65536;  // the ports of all nodes together
inline constexpr std::uint8_t kSwitchPortsMax = 254;
inline constexpr std::uint8_t kHcaPortsMax = 2;
inline constexpr std::uint8_t kRouterPortsMax = 254;
inline constexpr std::size_t kNodeNameBytesMax = 63;
inline constexpr std::size_t kDescriptionBytesMax = 64;  // vol1 14.2.5.2

// Names a port by the index of its node in Topology::nodes, and by its number.  The ports of an HCA
// have numbers from 1.  Port 0 of a switch is its management port (vol1 18.2.4.1).
struct PortRef {
  std::uint32_t node = 0;
  std::uint8_t port = 0;
  friend constexpr auto operator<=>(const PortRef&, const PortRef&) = default;
};

// The numbers are those of NodeInfo.NodeType (vol1 14.2.5.3).
enum class NodeType : std::uint8_t { kHca = 1, kSwitch = 2, kRouter = 3 };

// The numbers are those of PortInfo.LinkWidthActive and of MTUs (vol1 14.2.5.6).
enum class LinkWidth : std::uint8_t { k1x = 1, k4x = 2, k8x = 4, k12x = 8, k2x = 16 };
enum class Mtu : std::uint8_t { k256 = 1, k512 = 2, k1024 = 3, k2048 = 4, k4096 = 5 };
// Speeds up to QDR are in PortInfo.LinkSpeedActive, those from FDR to NDR in LinkSpeedExtActive.
// PortInfo shows the others as speed_in_port_info() says.
enum class LinkSpeed : std::uint8_t { kSdr, kDdr, kQdr, kFdr, kEdr, kHdr, kNdr, kXdr, kFdr10 };

// Returns the speed that PortInfo shows.  PortInfo has no code for FDR10, and none for XDR that
// today's subnet managers know.
constexpr LinkSpeed speed_in_port_info(LinkSpeed speed) {
  if (speed == LinkSpeed::kFdr10) return LinkSpeed::kQdr;
  return speed == LinkSpeed::kXdr ? LinkSpeed::kNdr : speed;
}

constexpr std::size_t mtu_bytes(Mtu mtu) { return std::size_t{128} << static_cast<unsigned>(mtu); }

struct Node {
  NodeType type = NodeType::kHca;
  std::string name{};         // unique; programs and commands use it
  std::string description{};  // NodeDescription; if it is empty, the name is used
  std::uint8_t ports = 1;     // the number of external ports
  Guid node_guid{};
  Guid system_guid{};
  std::vector<Guid> port_guids{};  // of all ports of an HCA or router, or of port 0 of a switch
  std::uint32_t vendor_id = 0;     // 24 bits
  std::uint16_t device_id = 0;

  bool is_switch() const { return type == NodeType::kSwitch; }
  // Programs run only on HCAs.  A router has ports like an HCA.
  bool is_hca() const { return type == NodeType::kHca; }
  // Returns the GUID of a port.  All ports of a switch have the GUID of port 0 (vol1 14.2.5.3).
  Guid port_guid(std::uint8_t port) const {
    return is_switch() ? port_guids.front() : port_guids[port - std::size_t{1}];
  }
};

struct Link {
  PortRef a{};
  PortRef b{};
  LinkWidth width = LinkWidth::k4x;
  LinkSpeed speed = LinkSpeed::kEdr;
  Mtu mtu = Mtu::k4096;
};

// Describes the nodes of a subnet and the cables between them, before a manager configures them.
struct Topology {
  std::vector<Node> nodes{};
  std::vector<Link> links{};

  // Adds a node without GUIDs, and returns its index.  set_missing_guids() makes its GUIDs.
  std::uint32_t add_hca(std::string_view name, std::uint8_t ports = 1);
  std::uint32_t add_switch(std::string_view name, std::uint8_t ports);
  // Adds a cable with the default width, speed and MTU; the caller may change these in the result.
  Link& connect(PortRef a, PortRef b);

  std::optional<std::uint32_t> find(std::string_view name) const;
  // Returns the index in `links` of the cable at this port; nothing if the port has no cable.
  std::optional<std::size_t> link_at(PortRef port) const;
};

// Returns true for 1 to kNodeNameBytesMax bytes without quotes and control characters.
bool is_node_name(std::string_view text);
// Returns the text as a NodeDescription: up to kDescriptionBytesMax bytes, and a blank in place of
// each control character.
std::string description_of(std::string_view text);

// Gives a GUID to every node and port that has none.  HCAs get numbers from 0x100000, and switches
// get numbers from 0x200000, as in ibsim.  Numbers that the topology already uses are skipped.
void set_missing_guids(Topology& topology);

struct TopologyProblem {
  std::string text{};                   // names the node or the port
  std::optional<std::uint32_t> node{};  // the index of the node
};

// Returns a problem of a topology, or nothing.
// Problems are, for example: no nodes, no ports, too many ports, a name or GUID that occurs twice,
// two cables in one port, a cable to a missing port, a cable from a port to the same port.
std::optional<TopologyProblem> find_problem_and_node(const Topology& topology);
// Returns only the text of the problem.
std::optional<std::string> find_problem(const Topology& topology);

}  // namespace verbena::subnet
