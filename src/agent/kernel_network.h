#pragma once

#include <asio/io_context.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/host.h"
#include "agent/network.h"
#include "agent/port.h"
#include "agent/relay.h"
#include "agent/routes.h"
#include "agent/socketless_ranges.h"
#include "agent/watch.h"
#include "ipc/counters.h"
#include "os/interfaces.h"

namespace verbena::agent {

// Connects an agent with the network of this machine: UDP port 4791 on the kernel's interfaces,
// with the kernel's addresses and routes.
//
// If another socket is bound to the port, for example that of the kernel's soft-RoCE or of another
// user's agent, this class opens an alternative port.  It waits instead if the socket probably
// belongs to a program of a dead agent.  Other hosts cannot reach the alternative port, but
// programs of this host reach each other.  The network returns to port 4791 when port 4791 is free
// and no program has a socket of the alternative port.
class KernelNetwork final : public Network {
 public:
  // open() waits at most this long until the programs of a dead agent have closed their sockets of
  // the port.
  static constexpr Duration kPortTimeout = std::chrono::seconds(2);
  static constexpr Duration kPortRetry = std::chrono::seconds(1);

  // `bind` is the only address to use.  Without it, all addresses are used.
  KernelNetwork(asio::io_context& loop, std::optional<BindAddress> bind);

  Identity identity() const override;
  void open(User& user) override;
  void close() override;
  bool is_open() const override { return port_ != nullptr; }
  // Returns true if other hosts can be reached.
  bool has_roce_port() const { return port_ && why_only_this_host_.empty(); }
  std::string state() const override;
  void retry_port() override;
  std::span<const link::Arrival> send(link::Burst& burst, Time now) override;
  Answer route(const node::Node::RouteRequest& request) override;
  Result<std::uint16_t> lease(Random& random, const node::Node::LeaseRequest& request) override;
  void release(std::uint16_t range) override;
  std::vector<int> sockets_of(std::uint16_t range) const override;
  void release_passed_descriptors(std::uint16_t range) override;
  Result<std::vector<int>> attach(node::ClientId client, std::uint16_t range,
                                  std::optional<int> wake) override;
  void detach(node::ClientId client) override {
    if (relay_) relay_->detach(client);
  }
  Result<void> set_members(std::uint16_t range, const Gid& group,
                           std::span<const std::uint32_t> interfaces) override;
  std::size_t leases() const override { return port_ ? port_->leases() : 0; }
  void add_counters(std::vector<ipc::NamedCount>& out) const override;

 private:
  void open_port();
  Result<std::unique_ptr<Port>> try_port(std::uint16_t number, std::string& problem);
  void open_alternative_port(bool should_wait_for_own_programs);
  void use_port(std::unique_ptr<Port> port);
  Result<node::HostRoute> check_reachable(Result<node::HostRoute> route) const;
  void wait_for_port();
  void refresh_addresses();
  void update_port_addresses();

  asio::io_context& loop_;
  std::optional<BindAddress> bind_;
  User* user_ = nullptr;  // null while the network is closed
  SocketlessRanges socketless_ranges_{};
  std::unique_ptr<Port> port_{};
  std::unique_ptr<Relay> relay_{};  // null until a program of another user needs it
  std::vector<Gid> own_addresses_{};
  bool loopback_up_ = false;
  std::string why_no_port_{};
  std::string why_only_this_host_{};  // the reason why port_ is not port 4791; empty if it is
  // The last try to open port 4791 failed because another socket has the port.
  bool port_taken_ = false;
  std::optional<os::InterfaceMonitor> monitor_{};
  Timer port_timer_;
  Watch monitor_watch_{};
  Routes routes_;
};

}  // namespace verbena::agent
