#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/strong.h"
#include "wire/port_info.h"
#include "wire/smp.h"

namespace verbena::subnet {

// Holds the nodes that a manager has found in a subnet, and computes routes.
class ManagedFabric {
 public:
  struct Neighbor {
    std::size_t node = 0;
    std::uint8_t port = 0;
  };
  struct Port {
    wire::PortInfo info{};
    std::optional<Neighbor> neighbor{};
  };
  // Represents a switch, or one port of an HCA, because a manager treats each HCA port as a node.
  struct Node {
    bool is_switch = false;
    std::uint8_t own_port = 0;  // 0 for a switch
    Guid port_guid{};
    std::vector<std::uint8_t> path{};  // egress ports from the manager's node
    std::map<std::uint8_t, Port> ports{};
    Lid lid{};
  };

  void clear() { *this = {}; }
  std::size_t size() const { return nodes_.size(); }
  Node& operator[](std::size_t node) { return nodes_[node]; }
  const Node& operator[](std::size_t node) const { return nodes_[node]; }

  struct AddResult {
    std::size_t node = 0;  // the index of the node
    bool is_new = false;
  };
  // Adds a node that was found by this path, unless the node is already known.
  AddResult add(const wire::NodeInfo& info, const std::vector<std::uint8_t>& path);
  void connect(std::size_t a, std::uint8_t port_a, std::size_t b, std::uint8_t port_b);

  // Counts the hops from each node to each other node.  REQUIRES: all nodes and connections are
  // known.
  void count_hops();
  // REQUIRES: count_hops() was called.
  bool reaches(std::size_t from, std::size_t to) const;
  // Returns the linear forwarding table of a switch, by LID.  Each egress port is on a path with
  // the fewest hops.  If there are several such ports, the LIDs are spread over them.  REQUIRES:
  // count_hops() was called.
  std::vector<std::uint8_t> forwarding_table(std::size_t switch_node) const;

 private:
  std::vector<std::uint16_t> hops_to(std::size_t node) const;

  std::vector<Node> nodes_{};
  std::map<std::uint64_t, std::size_t> by_guid_{};
  std::vector<std::vector<std::uint16_t>> hops_{};  // by destination and source
};

}  // namespace verbena::subnet
