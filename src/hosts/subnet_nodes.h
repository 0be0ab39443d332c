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
  // Starts an agent and a MAD service for each HCA, which listen on the HCA's socket names.  The
  // error is a line for the user.
  static std::expected<std::unique_ptr<SubnetNodes>, std::string> create(asio::io_context& loop,
                                                                         subnet::Topology topology,
                                                                         const Options& options,
                                                                         const agent::Log& log);

  const subnet::Subnet& subnet() const { return switch_->subnet(); }
  bool resolves_addresses(subnet::PortRef port) const { return switch_->resolves_addresses(port); }
  // Sets a function that is called soon after the state of ports, or what resolves_addresses()
  // returns, has changed.
  void when_ports_change(std::move_only_function<void()> on_change) {
    switch_->when_ports_change(std::move(on_change));
  }

  // set_link() to set_mtu() do the same as the functions of subnet::Subnet with these names, and
  // then deliver the packets and events that result, if there are any.
  void set_link(std::size_t link, bool up);
  void set_power(std::uint32_t node, bool on);
  void set_paused(std::uint32_t node, bool paused);
  void set_loss(std::size_t link, const faults::Loss& loss);
  void set_delay(std::size_t link, Duration delay);
  void set_mtu(std::size_t link, std::optional<subnet::Mtu> mtu);
  // Adds a P_Key to the table of a port, or removes it.  Returns false if the table is full, or
  // does not have the P_Key to remove.
  bool set_pkey(subnet::PortRef port, Pkey pkey, bool present);

  Forwarder& forwarder() override { return *switch_; }
  std::size_t size() const override { return hcas_.size(); }
  // name(), status() and interfaces() count only the HCAs: 0 is the first HCA of the topology.
  const std::string& name(std::size_t host) const override {
    return subnet().topology().nodes[hcas_[host]].name;
  }
  ipc::HostStatus status(std::size_t host) const override;
  std::vector<interfaces::Interface> interfaces(std::size_t host) const override;
  void add_counters(std::vector<ipc::NamedCount>& counters) const override;
  void stop(const char* why) override;

 private:
  SubnetNodes(asio::io_context& loop, std::unique_ptr<SubnetSwitch> subnet_switch,
              const std::string& build);
  // Starts the MAD service and the agent of the HCA that has this index in the topology.  The error
  // is a line for the user.
  std::expected<void, std::string> serve(asio::io_context& loop, std::uint32_t node,
                                         const Options& options, const agent::Log& log);

  std::unique_ptr<SubnetSwitch> switch_;
  std::vector<std::uint32_t> hcas_{};  // the HCAs' indexes in the topology
  madservice::Service mads_;
  std::vector<std::unique_ptr<agent::Agent>> agents_{};  // in the order of hcas_
};

}  // namespace verbena::hosts
