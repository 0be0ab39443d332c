#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/network.h"
#include "hosts/subnet_switch.h"
#include "ipc/counters.h"

namespace verbena::hosts {

// Provides the network of the agent of one HCA of a subnet.  The subnet manager configures the
// state of the ports, and packets go through the subnet.
//
// Its ports have the IP addresses of ipoib_addresses(), so that the RDMA CM can find them.
class SubnetNetwork final : public agent::Network, private SubnetSwitch::Station {
 public:
  // The device of each HCA has this name, also for programs that use libibumad.
  static constexpr const char* kDevice = "verbena0";

  // Returns the name that Linux would give to the IPoIB interface of the port.
  static std::string interface_name(std::uint8_t port) { return "ib" + std::to_string(port - 1); }

  // REQUIRES: the switch outlives this object, and `hca` is the index of an HCA in the topology.
  SubnetNetwork(SubnetSwitch& subnet_switch, HostIndex hca, const sa::Client::Config& sa)
      : switch_(subnet_switch), hca_(hca), sa_(sa) {}
  ~SubnetNetwork() override { close(); }

  Identity identity() const override;
  void open(User& user) override;
  void close() override;
  bool is_open() const override { return user_ != nullptr; }
  std::string state() const override { return "an HCA of a simulated subnet"; }
  std::span<const link::Arrival> send(link::Burst& burst, Time now) override;
  Answer route(const node::Node::RouteRequest& request) override;
  Result<std::uint16_t> lease(Random& random, const node::Node::LeaseRequest& request) override {
    return switch_.uplinks().lease(hca_, random, request.avoid);
  }
  void release(std::uint16_t range) override { switch_.uplinks().release(range); }
  std::vector<int> sockets_of(std::uint16_t) const override { return {}; }
  void release_passed_descriptors(std::uint16_t) override {
    switch_.uplinks().release_passed_descriptors();
  }
  Result<std::vector<int>> attach(node::ClientId client, std::uint16_t range,
                                  std::optional<int> wake) override {
    return switch_.uplinks().attach({hca_, client}, range, wake);
  }
  void detach(node::ClientId client) override { switch_.detach({hca_, client}); }
  Result<void> set_members(std::uint16_t range, const Gid& group,
                           std::span<const std::uint32_t> interfaces) override;
  std::size_t leases() const override { return switch_.uplinks().leases(hca_); }
  void add_counters(std::vector<ipc::NamedCount>& out) const override;

 private:
  void arrived(const link::Arrival& arrival) override;
  void port_changed(std::uint8_t port, bool client_reregister) override;
  void notify_user(node::ClientId client, const std::string& text) override;
  std::uint8_t port_count() const;
  std::vector<node::HostAddress> addresses() const;

  SubnetSwitch& switch_;
  HostIndex hca_;
  sa::Client::Config sa_;
  User* user_ = nullptr;                          // null while the network is closed
  std::vector<std::uint32_t> reregistrations_{};  // counts client reregistrations, by port
  std::uint64_t qp1_packets_ = 0;
};

// Converts the state of a port into the form that the node and the programs of an HCA get.
node::PortState port_state_of(const subnet::PortStatus& port);

}  // namespace verbena::hosts
