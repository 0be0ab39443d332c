#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "ethernet/network.h"
#include "hosts/subnet_nodes.h"
#include "ipc/fabric.h"

namespace verbena::hosts {

// Carries out `verbena fabric fault`, and remembers what a user has broken.  One thread.
class Faults {
 public:
  Faults() = default;
  Faults(const Faults&) = delete;
  Faults& operator=(const Faults&) = delete;
  virtual ~Faults() = default;

  // Returns the new state as a line for the user, or what is wrong with the request.
  virtual std::expected<std::string, std::string> set(const ipc::SetFault& wanted) = 0;
  // Returns everything that is broken now.
  virtual std::vector<ipc::FaultStatus> status() const = 0;
};

// Breaks links and nodes of an InfiniBand subnet.
class SubnetFaults final : public Faults {
 public:
  // REQUIRES: the nodes outlive this object.
  explicit SubnetFaults(SubnetNodes& nodes) : nodes_(nodes) {}

  std::expected<std::string, std::string> set(const ipc::SetFault& wanted) override;
  std::vector<ipc::FaultStatus> status() const override;

 private:
  std::expected<std::string, std::string> set_link(const ipc::SetFault& wanted);
  std::expected<std::string, std::string> set_node(const ipc::SetFault& wanted);

  SubnetNodes& nodes_;
  std::set<std::size_t> pulled_{};  // places in Topology::links
  std::set<std::uint32_t> off_{};   // places in Topology::nodes
};

// Breaks links of hosts with Ethernet networks, and cuts hosts off.
class HostFaults final : public Faults {
 public:
  // `changed` is called when links of a host may have gone down or come up.  REQUIRES: the network
  // outlives this object.
  HostFaults(ethernet::Network& network, std::move_only_function<void(ethernet::HostIndex)> changed)
      : network_(network), changed_(std::move(changed)) {}

  std::expected<std::string, std::string> set(const ipc::SetFault& wanted) override;
  std::vector<ipc::FaultStatus> status() const override;

 private:
  std::expected<std::string, std::string> set_link(const ipc::SetFault& wanted);
  std::expected<std::string, std::string> set_host(const ipc::SetFault& wanted);

  ethernet::Network& network_;
  std::move_only_function<void(ethernet::HostIndex)> changed_;
};

}  // namespace verbena::hosts
