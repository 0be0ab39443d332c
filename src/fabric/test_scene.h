#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "fabric/network.h"
#include "fabric/programs.h"
#include "wire/ip.h"

// Provides the addresses and the hosts of this layer's tests.
namespace verbena::fabric::testing {

using namespace std::chrono_literals;

inline constexpr std::uint16_t kPort = 7471;
inline constexpr Qkey kQkey{0x11111111};
inline constexpr std::size_t kGrhBytes = 40;

// Returns the address of a server on the host with this number.
inline rdmacm::SocketAddress server_address(std::uint32_t host, bool ipv6 = false) {
  return {.ip = Network::address(host, ipv6),
          .port = kPort,
          .family = static_cast<std::uint8_t>(ipv6 ? 6 : 4)};
}
// Returns the wildcard address, at which a server listens on all interfaces.
inline rdmacm::SocketAddress any_address(bool ipv6 = false) {
  return {.ip = ipv6 ? Gid{} : wire::ipv4_gid(0),
          .port = kPort,
          .family = static_cast<std::uint8_t>(ipv6 ? 6 : 4)};
}

inline const std::vector<Operation> kRping = {
    {Operation::Kind::kSend, 16}, {Operation::Kind::kWrite, 1000}, {Operation::Kind::kRead, 1000}};

// Simulates two hosts.  The client is on host a, and the server is on host b.
struct Scene {
  explicit Scene(const Network::Config& config = {}) : network(config) {}

  void listen(const std::string& name = "server", std::uint32_t clients = 1) {
    server = &b.run<Server>(name, Server::Config{.address = any_address(), .clients = clients});
    server_id = server->sim_process().id();
  }
  void connect(Client::Config config = {}) {
    config.server = server_address(2);
    if (config.operations.empty()) config.operations = kRping;
    client = &a.run<Client>("client", std::move(config));
    client_id = client->sim_process().id();
  }
  // connect_again() and listen_again() start a new agent on a host.  The host's program connects to
  // the new agent and starts from the beginning.
  void connect_again(Client::Config config = {}) {
    a.start_agent();
    config.server = server_address(2);
    if (config.operations.empty()) config.operations = kRping;
    SimProcess& sim_process = client->sim_process();
    client = &sim_process.install<Client>(std::move(config));
    a.connect_to_agent(sim_process);
  }
  void listen_again() {
    b.start_agent();
    SimProcess& sim_process = server->sim_process();
    server = &sim_process.install<Server>(Server::Config{.address = any_address()});
    b.connect_to_agent(sim_process);
  }
  bool finish(Duration limit = 5s) {
    return network.run_until([&] { return server->finished() && client->finished(); }, limit);
  }
  // Kills both programs, and checks that the hosts have freed all resources after 70 seconds.
  void kill_all_and_check() {
    a.kill(client_id);
    b.kill(server_id);
    network.run(70s);
    for (const auto& host : network.hosts()) {
      EXPECT_EQ(host->used_range_count(), 0u);
      if (!host->has_agent()) continue;
      EXPECT_TRUE(host->node().is_idle());
      EXPECT_EQ(host->node().ids(), 0u);
      EXPECT_EQ(host->node().deadline(), kNever);
    }
    EXPECT_TRUE(network.world.is_idle());
    EXPECT_THAT(network.violations(), ::testing::IsEmpty());
  }

  Network network;
  Host& a = network.add_host("a");
  Host& b = network.add_host("b");
  // The pointers are valid until their program is killed.
  Server* server = nullptr;
  Client* client = nullptr;
  SimProcess::Id server_id = 0;
  SimProcess::Id client_id = 0;
};

}  // namespace verbena::fabric::testing
