#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "ethernet/network.h"
#include "hosts/faults.h"
#include "hosts/subnet_nodes.h"
#include "plan/find_rail.h"

namespace verbena::hosts {

// Breaks links and nodes of an InfiniBand subnet.  A link is a cable.
class BreakableSubnet final : public Breakable {
 public:
  // REQUIRES: the nodes outlive this object.
  explicit BreakableSubnet(SubnetNodes& nodes) : nodes_(nodes) {}

  std::optional<std::string> problem_with(const faults::Fault& fault) const override;
  Link find_link(const std::string& a, const std::string& b) const override;
  Node find_node(const std::string& name) const override;
  std::string link_text(Link link) const override;
  std::string node_name(Node node) const override;
  void set_link(Link link, bool up) override { nodes_.set_link(link, up); }
  std::string up_text(Link link) const override;
  void set_loss(Link link, const faults::Loss& loss) override { nodes_.set_loss(link, loss); }
  void set_delay(Link link, Duration delay) override { nodes_.set_delay(link, delay); }
  void set_mtu(Link link, std::uint32_t mtu_bytes) override;
  void set_power(Node node, bool on) override { nodes_.set_power(node, on); }
  std::string off_text() const override { return "is off"; }
  void set_paused(Node node, bool paused) override { nodes_.set_paused(node, paused); }
  Answer<void> set_pkey(Node node, Pkey pkey, bool present) override;
  bool has_pkey(Node node, Pkey pkey) const override;

 private:
  const subnet::Topology& topology() const { return nodes_.subnet().topology(); }

  SubnetNodes& nodes_;
};

// Breaks links and hosts of an Ethernet fabric.  A link joins a host's rail with its network.
class BreakableHosts final : public Breakable {
 public:
  // `on_change` is called when the state, MTU or P_Keys of a host's ports may have changed.
  // REQUIRES: the network outlives this object.
  BreakableHosts(ethernet::Network& network,
                 std::move_only_function<void(ethernet::HostIndex)> on_change)
      : network_(network), on_change_(std::move(on_change)) {}

  std::optional<std::string> problem_with(const faults::Fault& fault) const override;
  Link find_link(const std::string& a, const std::string& b) const override;
  Node find_node(const std::string& name) const override;
  std::string link_text(Link link) const override {
    return plan::link_text(network_.fabric(), rail_of(link));
  }
  std::string node_name(Node node) const override { return network_.fabric().hosts[node].name; }
  void set_link(Link link, bool up) override;
  std::string up_text(Link link) const override;
  void set_loss(Link link, const faults::Loss& loss) override;
  void set_delay(Link link, Duration delay) override;
  void set_mtu(Link link, std::uint32_t mtu_bytes) override;
  void set_power(Node node, bool on) override;
  std::string off_text() const override { return "is off, and disconnected from its networks"; }
  void set_paused(Node node, bool paused) override;
  Answer<void> set_pkey(Node node, Pkey pkey, bool present) override;
  bool has_pkey(Node node, Pkey pkey) const override;

 private:
  static ethernet::RailId rail_of(Link link);
  std::uint8_t rail_count(Node node) const;

  ethernet::Network& network_;
  std::move_only_function<void(ethernet::HostIndex)> on_change_;
};

}  // namespace verbena::hosts
