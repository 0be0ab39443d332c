#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "fabric/test_scene.h"
#include "process/async_type.h"

// Tests hosts with two devices, of which the second has two ports.
namespace verbena::fabric {
namespace {

using namespace testing;
using process::AsyncType;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr PortId kFirstPort{0, 1}, kSecondPort{1, 1}, kThirdPort{1, 2};
constexpr Pkey kPrivatePartition{0x8123};

// Returns the address of a host on the network of a port.
Gid address(std::uint32_t host, PortId port) {
  return Network::address((port.device * 2u + port.number) << 8 | host);
}
rdmacm::SocketAddress server_address_at(PortId port) {
  return {.ip = address(2, port), .port = kPort, .family = 4};
}

struct DevicesTest : ::testing::TestWithParam<bool> {
  static Host::Config host(const std::string& name, std::uint32_t number) {
    Host::Config config{.name = name,
                        .devices = {{.name = "verbena0", .guid = {number << 8}},
                                    {.name = "verbena1",
                                     .guid = {number << 8 | 1},
                                     .ports = {node::PortConfig{}, node::PortConfig{}}}}};
    std::uint32_t interface = 2;
    for (const PortId port : {kFirstPort, kSecondPort, kThirdPort}) {
      config.addresses.push_back({.port = port,
                                  .gid = address(number, port),
                                  .interface = interface,
                                  .interface_name = "eth" + std::to_string(interface - 2)});
      ++interface;
    }
    return config;
  }

  void listen(const rdmacm::SocketAddress& at, std::uint32_t clients = 1) {
    server = &b.run<Server>("server", Server::Config{.address = at, .clients = clients});
    network.run(1ms);
  }
  Client& connect(PortId to, const rdmacm::SocketAddress& from = {}, Host* host = nullptr) {
    return (host != nullptr ? *host : a)
        .run<Client>(
            "client",
            Client::Config{.server = server_address_at(to), .operations = kRping, .source = from});
  }
  void finish(const Client& client) {
    EXPECT_TRUE(network.run_until([&] { return client.finished(); }, 60s));
  }

  Network network{{.lanes = GetParam()}};
  Host& a = network.add_host(host("a", 1));
  Host& b = network.add_host(host("b", 2));
  Server* server = nullptr;
};

TEST_P(DevicesTest, ConnectionUsesThePortWithARouteToItsPeer) {
  listen(any_address(), 3);
  for (const PortId port : {kFirstPort, kSecondPort, kThirdPort}) {
    Client& client = connect(port);
    finish(client);
    EXPECT_TRUE(client.succeeded());
    EXPECT_EQ(client.port(), port);
  }
  EXPECT_THAT(server->ports(), ElementsAre(kFirstPort, kSecondPort, kThirdPort));
  EXPECT_THAT(network.violations(), IsEmpty());
}

TEST_P(DevicesTest, ConnectionWithinAHostEndsAtThePortOfItsAddress) {
  listen(any_address(), 3);
  for (const PortId port : {kFirstPort, kSecondPort, kThirdPort}) {
    Client& client = connect(port, {}, &b);
    finish(client);
    EXPECT_TRUE(client.succeeded());
  }
  EXPECT_THAT(server->ports(), ElementsAre(kFirstPort, kSecondPort, kThirdPort));
  EXPECT_THAT(network.violations(), IsEmpty());
}

TEST_P(DevicesTest, ListenerAtAnAddressGetsNoRequestsToOtherPorts) {
  listen(server_address_at(kThirdPort));
  Client& rejected_client = connect(kSecondPort);
  finish(rejected_client);
  EXPECT_EQ(rejected_client.outcome().rejected, 1u);
  Client& accepted_client = connect(kThirdPort);
  finish(accepted_client);
  EXPECT_TRUE(accepted_client.succeeded());
  EXPECT_THAT(server->ports(), ElementsAre(kThirdPort));
}

TEST_P(DevicesTest, EachPortHasItsOwnGids) {
  listen(any_address());
  const process::Process& process = server->sim_process().process();
  ASSERT_EQ(process.devices().size(), 2u);
  EXPECT_EQ(process.devices()[1].name, "verbena1");
  for (const PortId port : {kFirstPort, kSecondPort, kThirdPort}) {
    const ipc::Port* const found = process.find_port(port);
    ASSERT_NE(found, nullptr);
    ASSERT_EQ(found->gids.size(), 1u);
    EXPECT_EQ(found->gids[0].gid, address(2, port));
    EXPECT_EQ(found->gids[0].index, 0u);
    const auto path =
        process.path(0, {.destination = address(1, port), .has_grh = true, .port = port});
    ASSERT_TRUE(path.has_value());
    EXPECT_EQ(path->address.source, address(2, port));
    EXPECT_EQ(path->address.port, port);
  }
  EXPECT_EQ(process.find_port({0, 2}), nullptr);
  EXPECT_EQ(process.find_port({2, 1}), nullptr);
}

TEST_P(DevicesTest, PortEventsNameTheirPort) {
  listen(any_address());
  Client& client = connect(kSecondPort);
  finish(client);
  EXPECT_THAT(client.port_events(), IsEmpty());
  a.set_port_state(kThirdPort, {.down_reason = "the link is down"});
  network.run(1ms);
  a.set_port_state(kThirdPort, {});
  network.run(1ms);
  a.set_port_state(kSecondPort, {.pkeys = {wire::kDefaultPkey, kPrivatePartition}});
  network.run(1ms);
  std::vector<std::pair<std::uint32_t, PortId>> events;
  for (const auto& event : client.port_events()) events.emplace_back(event.type, event.port);
  EXPECT_THAT(events,
              ElementsAre(std::pair(std::to_underlying(AsyncType::kPortError), kThirdPort),
                          std::pair(std::to_underlying(AsyncType::kPortActive), kThirdPort),
                          std::pair(std::to_underlying(AsyncType::kPkeyChange), kSecondPort)));
  const process::Process& process = client.sim_process().process();
  EXPECT_TRUE(process.find_port(kFirstPort)->active);
}

TEST_P(DevicesTest, ConnectionUsesThePartitionOfItsPort) {
  for (Host* host : {&a, &b}) host->set_port_state(kThirdPort, {.pkeys = {{}, kPrivatePartition}});
  listen(any_address(), 2);
  for (const PortId port : {kThirdPort, kSecondPort}) {
    Client& client = connect(port);
    finish(client);
    EXPECT_TRUE(client.succeeded());
  }
  EXPECT_THAT(network.violations(), IsEmpty());
}

// A port checks packets by its own P_Key table, not by the table of another port of the device.
TEST_P(DevicesTest, RequestFromAnotherPartitionIsIgnored) {
  a.set_port_state(kThirdPort, {.pkeys = {wire::kDefaultPkey}});
  b.set_port_state(kThirdPort, {.pkeys = {kPrivatePartition}});
  listen(any_address(), 2);
  Client& client = connect(kThirdPort);
  finish(client);
  EXPECT_FALSE(client.succeeded());
  EXPECT_EQ(client.outcome().established, 0u);
  Client& other = connect(kSecondPort);
  finish(other);
  EXPECT_TRUE(other.succeeded());
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutLanes, DevicesTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Lanes" : "Udp"; });

}  // namespace
}  // namespace verbena::fabric
