#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/network.h"
#include "hosts/switch.h"
#include "ipc/counters.h"

namespace verbena::hosts {

// Provides the network of one virtual host.  Addresses, devices and routes come from the fabric's
// file, and packets go to the fabric's switch.
class HostNetwork final : public agent::Network, private Switch::Station {
 public:
  // REQUIRES: the switch outlives this object, and has the host.
  HostNetwork(Switch& fabric_switch, HostIndex host) : switch_(fabric_switch), host_(host) {}
  ~HostNetwork() override { close(); }

  Identity identity() const override;
  void open(User& user) override;
  void close() override;
  bool is_open() const override { return user_ != nullptr; }
  std::string state() const override { return "a virtual host"; }
  std::span<const link::Arrival> send(link::Burst& burst, Time now) override;
  Answer route(const node::Node::RouteRequest& request) override;
  Result<std::uint16_t> lease(Random& random, const node::Node::LeaseRequest& request) override {
    return switch_.uplinks().lease(host_, random, request.avoid);
  }
  void release(std::uint16_t range) override { switch_.uplinks().release(range); }
  std::vector<int> sockets_of(std::uint16_t) const override { return {}; }
  void release_passed_descriptors(std::uint16_t) override {
    switch_.uplinks().release_passed_descriptors();
  }
  Result<std::vector<int>> attach(node::ClientId client, std::uint16_t range,
                                  std::optional<int> wake) override {
    return switch_.uplinks().attach({host_, client}, range, wake);
  }
  void detach(node::ClientId client) override { switch_.detach({host_, client}); }
  Result<void> set_members(std::uint16_t range, const Gid& group,
                           std::span<const std::uint32_t> interfaces) override;
  std::size_t leases() const override { return switch_.uplinks().leases(host_); }
  void add_counters(std::vector<ipc::NamedCount>& out) const override;

  // Reports the state, MTU and P_Keys of the host's ports to its programs.  Call this when
  // ethernet::LinkFaults may have changed them.
  void report_links();

 private:
  void arrived(const link::Arrival& arrival) override;
  void notify_user(node::ClientId client, const std::string& text) override;

  Switch& switch_;
  HostIndex host_;
  User* user_ = nullptr;  // null while the network is closed
  std::uint64_t qp1_packets_ = 0;
};

}  // namespace verbena::hosts
