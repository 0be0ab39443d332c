#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fabric/test_scene.h"

// Tests connections between whole hosts.  Most tests compare the complete exchange, with names and
// times of all packets.
namespace verbena::fabric {
namespace {

using namespace testing;

// Starts a server, then a client that does what rping does, and returns the diagram.  Loses the
// first packet named `lost_packet`.
std::string exchange_diagram(const std::string& lost_packet = {}) {
  Scene scene;
  scene.listen();
  scene.network.run(1ms);
  if (!lost_packet.empty()) scene.network.lose(lost_packet);
  scene.connect();
  EXPECT_TRUE(scene.finish()) << lost_packet;
  EXPECT_TRUE(scene.client->succeeded()) << lost_packet;
  EXPECT_EQ(scene.client->outcome().established, 1u) << lost_packet;
  EXPECT_EQ(scene.client->outcome().disconnected, 1u) << lost_packet;
  EXPECT_EQ(scene.server->outcomes().at(0).established, 1u) << lost_packet;
  EXPECT_EQ(scene.server->outcomes().at(0).disconnected, 1u) << lost_packet;
  std::string text = scene.network.diagram.text();
  scene.kill_all_and_check();
  return text;
}

TEST(Fabric, ConnectsTransfersDataAndDisconnects) {
  EXPECT_EQ(exchange_diagram(), R"(
    1025 us  client: ADDR_RESOLVED
    1025 us  client: ROUTE_RESOLVED
    1045 us  a -- ConnectRequest --> b
    1060 us  server: CONNECT_REQUEST
    1080 us  b -- ConnectReply --> a
    1095 us  client: ESTABLISHED
    1095 us  client -- SEND only --> server
    1100 us  a -- ReadyToUse --> b
    1105 us  server -- ACK --> client
    1105 us  server -- SEND only --> client
    1115 us  client -- ACK --> server
    1115 us  client -- RDMA WRITE only --> server
    1115 us  server: ESTABLISHED
    1125 us  server -- ACK --> client
    1135 us  client -- READ request --> server
    1145 us  server -- READ response only --> client
    1160 us  a -- DisconnectRequest --> b
    1170 us  b -- DisconnectReply --> a
    1175 us  server: DISCONNECTED
    1185 us  client: DISCONNECTED)");
}

TEST(Fabric, RepeatsALostConnectReply) {
  EXPECT_EQ(exchange_diagram("ConnectReply"), R"(
    1025 us  client: ADDR_RESOLVED
    1025 us  client: ROUTE_RESOLVED
    1045 us  a -- ConnectRequest --> b
    1060 us  server: CONNECT_REQUEST
    1080 us  b -- ConnectReply --> a   (lost)
   20546 us  b -- ConnectReply --> a
   20561 us  client: ESTABLISHED
   20561 us  client -- SEND only --> server
   20566 us  a -- ReadyToUse --> b
   20571 us  server -- ACK --> client
   20571 us  server -- SEND only --> client
   20581 us  client -- ACK --> server
   20581 us  client -- RDMA WRITE only --> server
   20581 us  server: ESTABLISHED
   20591 us  server -- ACK --> client
   20601 us  client -- READ request --> server
   20611 us  server -- READ response only --> client
   20626 us  a -- DisconnectRequest --> b
   20636 us  b -- DisconnectReply --> a
   20641 us  server: DISCONNECTED
   20651 us  client: DISCONNECTED)");
}

// The passive side learns from the data that the active side is connected.
TEST(Fabric, DataReplacesALostReadyToUse) {
  EXPECT_EQ(exchange_diagram("ReadyToUse"), R"(
    1025 us  client: ADDR_RESOLVED
    1025 us  client: ROUTE_RESOLVED
    1045 us  a -- ConnectRequest --> b
    1060 us  server: CONNECT_REQUEST
    1080 us  b -- ConnectReply --> a
    1095 us  client: ESTABLISHED
    1095 us  client -- SEND only --> server
    1100 us  a -- ReadyToUse --> b   (lost)
    1105 us  server -- ACK --> client
    1105 us  server -- SEND only --> client
    1115 us  client -- ACK --> server
    1115 us  client -- RDMA WRITE only --> server
    1115 us  server: ESTABLISHED
    1125 us  server -- ACK --> client
    1135 us  client -- READ request --> server
    1145 us  server -- READ response only --> client
    1160 us  a -- DisconnectRequest --> b
    1170 us  b -- DisconnectReply --> a
    1175 us  server: DISCONNECTED
    1185 us  client: DISCONNECTED)");
}

TEST(Fabric, RepeatsAReadAfterALostResponse) {
  EXPECT_EQ(exchange_diagram("READ response only"), R"(
    1025 us  client: ADDR_RESOLVED
    1025 us  client: ROUTE_RESOLVED
    1045 us  a -- ConnectRequest --> b
    1060 us  server: CONNECT_REQUEST
    1080 us  b -- ConnectReply --> a
    1095 us  client: ESTABLISHED
    1095 us  client -- SEND only --> server
    1100 us  a -- ReadyToUse --> b
    1105 us  server -- ACK --> client
    1105 us  server -- SEND only --> client
    1115 us  client -- ACK --> server
    1115 us  client -- RDMA WRITE only --> server
    1115 us  server: ESTABLISHED
    1125 us  server -- ACK --> client
    1135 us  client -- READ request --> server
    1145 us  server -- READ response only --> client   (lost)
    6135 us  client -- READ request --> server
    6145 us  server -- READ response only --> client
    6160 us  a -- DisconnectRequest --> b
    6170 us  b -- DisconnectReply --> a
    6175 us  server: DISCONNECTED
    6185 us  client: DISCONNECTED)");
}

TEST(Fabric, SurvivesTheLossOfAnySinglePacket) {
  for (const char* name : {"ConnectRequest", "SEND only", "ACK", "RDMA WRITE only", "READ request",
                           "DisconnectRequest", "DisconnectReply"}) {
    EXPECT_NE(exchange_diagram(name).find(std::string("-- ") + name), std::string::npos);
  }
}

TEST(Fabric, ConnectWithoutAListenerIsRejectedWithinOneRoundTrip) {
  Scene scene;
  scene.connect();
  EXPECT_TRUE(scene.network.run_until([&] { return scene.client->finished(); }, 1s));
  EXPECT_EQ(scene.client->outcome().rejected, 1u);
  EXPECT_EQ(scene.client->outcome().status, 8);  // invalid service id
  // The exchange takes two messages within the host and two packets.
  EXPECT_EQ(scene.client->ended_at() - scene.client->connect_called_at(), 2 * 5us + 2 * 10us);
  scene.kill_all_and_check();
}

// A route to the address exists, but no host has the address.
TEST(Fabric, ConnectToAMissingHostIsUnreachable) {
  Scene scene;
  Client& client = scene.a.run<Client>("client", Client::Config{.server = server_address(9)});
  EXPECT_TRUE(scene.network.run_until([&] { return client.finished(); }, 40s));
  EXPECT_EQ(client.outcome().unreachable, 1u);
  EXPECT_EQ(client.outcome().status, -110);  // -ETIMEDOUT
  scene.a.kill(client.sim_process().id());
  scene.kill_all_and_check();
}

TEST(Fabric, WithinOneHostPacketsDoNotReachTheWire) {
  Network network({.wire = {.loss = {1, 1}}});
  Host& a = network.add_host("a");
  Server& server = a.run<Server>("server", Server::Config{.address = any_address()});
  network.run(1ms);
  Client& client =
      a.run<Client>("client", Client::Config{.server = server_address(1), .operations = kRping});
  EXPECT_TRUE(network.run_until([&] { return server.finished() && client.finished(); }, 1s));
  EXPECT_TRUE(client.succeeded());
  EXPECT_THAT(network.violations(), ::testing::IsEmpty());
  EXPECT_EQ(a.node_counter("qp1_drop_unknown_qp"), 0u);
}

TEST(Fabric, DetectsAndCountsCorruptPackets) {
  Network network({.seed = 5, .wire = {.corrupt = {1, 3}}});
  Host& a = network.add_host("a", true);
  Host& b = network.add_host("b", true);
  Server& server = b.run<Server>("server", Server::Config{.address = any_address(true)});
  network.run(1ms);
  Client& client = a.run<Client>(
      "client", Client::Config{.server = server_address(2, true), .operations = kRping});
  EXPECT_TRUE(network.run_until([&] { return server.finished() && client.finished(); }, 60s));
  EXPECT_TRUE(client.succeeded());
  EXPECT_THAT(network.violations(), ::testing::IsEmpty());
  EXPECT_GT(a.counters().wrong_icrc + b.counters().wrong_icrc, 0u);
}

}  // namespace
}  // namespace verbena::fabric
