#pragma once

#include <asio/io_context.hpp>
#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hosts/nodes.h"
#include "hosts/subnet_switch.h"
#include "ipc/counters.h"
#include "madservice/service.h"
#include "subnet/subnet.h"

namespace verbena::hosts {

// Holds the nodes of an InfiniBand fabric: the simulated subnet, an agent for each HCA, and the
// service for programs that use libibumad.
//
// Only the loop's thread uses it.
class SubnetNodes final : public Nodes {
 public:
  // Takes the names of all HCAs.  The error is a line for the user.
  static std::expected<std::unique_ptr<SubnetNodes>, std::string> create(asio::io_context& loop,
                                                                         subnet::Topology topology,
                                                                         const Options& options,
                                                                         const agent::Log& log);

  const subnet::Subnet& subnet() const { return switch_->subnet(); }
  // Calls back soon after the state of ports has changed.
  void when_ports_change(std::move_only_function<void()> call) {
    switch_->when_ports_change(std::move(call));
  }

  // These break links and nodes, as the functions of subnet::Subnet with the same names do.
  void set_link(std::size_t link, bool up);
  void set_power(std::uint32_t node, bool on);
  void set_paused(std::uint32_t node, bool paused);
  void set_loss(std::size_t link, const faults::Loss& loss);
  void set_delay(std::size_t link, Duration delay);
  void set_mtu(std::size_t link, std::optional<subnet::Mtu> mtu);
  // Removes a P_Key from the table of a port, or adds one.
  bool set_pkey(subnet::PortRef port, Pkey pkey, bool present);

  Forwarder& packets() override { return *switch_; }
  std::size_t size() const override { return hcas_.size(); }
  // These name an HCA by its place among the HCAs.
  const std::string& name(std::size_t hca) const override {
    return subnet().topology().nodes[hcas_[hca]].name;
  }
  ipc::HostStatus status(std::size_t hca) const override;
  std::vector<interfaces::Interface> interfaces(std::size_t hca) const override;
  void add_counters(std::vector<ipc::NamedCount>& counters) const override;
  void stop(const char* why) override;

 private:
  SubnetNodes(asio::io_context& loop, std::unique_ptr<SubnetSwitch> packets,
              const std::string& build);
  // Takes the names.  Returns a line for the user if that fails.
  std::expected<void, std::string> serve(asio::io_context& loop, std::uint32_t hca,
                                         const Options& options, const agent::Log& log);

  std::unique_ptr<SubnetSwitch> switch_;
  std::vector<std::uint32_t> hcas_{};  // places in the topology
  madservice::Service mads_;
  std::vector<std::unique_ptr<agent::Agent>> agents_{};  // of each HCA
};

}  // namespace verbena::hosts
