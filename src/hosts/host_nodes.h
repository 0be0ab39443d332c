#pragma once

#include <asio/io_context.hpp>
#include <cstddef>
#include <expected>
#include <memory>
#include <string>
#include <vector>

#include "hosts/host_network.h"
#include "hosts/nodes.h"
#include "hosts/switch.h"
#include "ipc/counters.h"
#include "plan/plan.h"

namespace verbena::hosts {

// Holds the hosts of an Ethernet fabric, and the switch between them.
class HostNodes final : public Nodes {
 public:
  // Starts an agent for each host, which listens on the host's socket name.  The error is a line
  // for the user.
  static std::expected<std::unique_ptr<HostNodes>, std::string> create(asio::io_context& loop,
                                                                       plan::Fabric fabric,
                                                                       const Options& options,
                                                                       const agent::Log& log);

  ethernet::Network& network() { return switch_->network(); }
  // Reports the links of a host to its programs.  Call this when a link may have changed.
  void report_links(HostIndex host) { networks_[host]->report_links(); }

  Forwarder& forwarder() override { return *switch_; }
  std::size_t size() const override { return agents_.size(); }
  const std::string& name(std::size_t host) const override {
    return switch_->network().fabric().hosts[host].name;
  }
  ipc::HostStatus status(std::size_t host) const override;
  std::vector<interfaces::Interface> interfaces(std::size_t host) const override;
  void add_counters(std::vector<ipc::NamedCount>& counters) const override {
    switch_->add_counters(counters);
  }
  void stop(const char* why) override;

 private:
  explicit HostNodes(std::unique_ptr<Switch> fabric_switch) : switch_(std::move(fabric_switch)) {}

  std::unique_ptr<Switch> switch_;
  std::vector<HostNetwork*> networks_{};                 // by host; the agent of the host owns it
  std::vector<std::unique_ptr<agent::Agent>> agents_{};  // by host
};

}  // namespace verbena::hosts
