#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <variant>
#include <vector>

#include "node/node.h"
#include "sa/model_sa_test.h"
#include "wire/headers.h"
#include "wire/ip.h"

namespace verbena::node {

// Provides a node with one program and one or two InfiniBand ports, and a simulated manager that
// knows the ports 1 to 9 of the subnet.  The first ports are those of the node.
class SubnetNodeTest : public testing::Test {
 protected:
  static constexpr Lid kSaLid{100};

  explicit SubnetNodeTest(std::uint8_t port_count = 1)
      : node_({.node_guid = {5},
               .devices = {{.ports = std::vector<PortConfig>(
                                port_count, {.link_layer = LinkLayer::kInfiniband})}},
               .build = "test"},
              Random(1)) {
    for (unsigned i = 1; i < 10; ++i) subnet_[gid(i)] = lid(i);
    for (std::uint8_t i = 1; i <= port_count; ++i) {
      EXPECT_TRUE(node_.set_port_state(
          PortId{0, i}, {.lid = lid(i), .sm_lid = kSaLid, .gids = {gid(i)}, .active_mtu = 4},
          now()));
    }
    node_.set_port(std::nullopt, now());
    node_.on_addresses({{.gid = own_ip_, .interface = 1, .prefix_bits = 16}}, now());
    client_ = node_.add_program(now());
  }

  static Gid gid(unsigned i) {
    Gid gid{};
    gid.bytes[0] = std::byte{0xfe};
    gid.bytes[1] = std::byte{0x80};
    gid.bytes[14] = static_cast<std::byte>(i >> 8);
    gid.bytes[15] = static_cast<std::byte>(i);
    return gid;
  }
  static Lid lid(unsigned i) { return {static_cast<std::uint16_t>(10 + i)}; }
  Time now() const { return world_.now(); }

  // Creates an id that resolves this address.
  void resolve(const rdmacm::SocketAddress& to) {
    const rdmacm::IdHandle id{std::uint64_t{1} << 32 | ipc::kNameBit | ++id_count_};
    node_.on_message(client_, ipc::encode(0, ipc::CreateId{id, rdmacm::kPortSpaceTcp, 2}), now());
    node_.on_message(
        client_, ipc::encode(0, ipc::ResolveAddress{id, {}, to, std::chrono::seconds(30)}), now());
    exchange();
  }
  void resolve_gid(unsigned i) {
    resolve({.ip = gid(i), .family = 6, .by_gid = true, .service = {0x01060007}});
  }

  // Delivers MADs between the node and the manager until there are no more.  Stores the other
  // outputs of the node.
  void exchange() {
    for (bool has_output = true; has_output;) {
      has_output = false;
      while (auto output = node_.poll()) {
        if (auto* message = std::get_if<Node::ToClient>(&*output)) {
          messages_[message->client].push_back(std::move(message->message));
        } else if (auto* membership = std::get_if<Node::Membership>(&*output)) {
          memberships_.push_back(std::move(*membership));
        }
      }
      link::Burst burst;
      node_.transmit(burst, now());
      for (const link::Burst::Packet& packet : burst.packets()) {
        if (packet.address.destination_lid != kSaLid) continue;
        has_output = true;
        const auto bytes = burst.transport(packet);
        mad::SendMad request{.to = {.path = packet.address}};
        std::ranges::copy(bytes.last(wire::kMadBytes), request.mad.begin());
        manager_.receive(request);
      }
      while (const auto answer = manager_.next_packet()) {
        has_output = true;
        receive(*answer);
      }
    }
  }
  void receive(const mad::SendMad& answer) {
    wire::TransportPacket packet{.bth = {.opcode = wire::Opcode::kUdSendOnly,
                                         .pkey = {0xffff},
                                         .destination_qpn = wire::kGsiQpn},
                                 .deth = {wire::kGsiQkey, wire::kGsiQpn}};
    const std::size_t headers = wire::header_bytes(packet.bth.opcode);
    std::vector<std::byte> transport(headers + wire::kMadBytes);
    wire::write_headers(transport, packet);
    std::ranges::copy(answer.mad, transport.begin() + static_cast<std::ptrdiff_t>(headers));
    link::Address from = answer.to.path;
    from.port = answer.to.path.destination_lid == lid(2) ? PortId{0, 2} : PortId{};
    node_.receive({from, transport}, now());
  }

  const Gid own_ip_ = wire::ipv4_gid(0x0a000001);
  sim::World world_{};
  sa::Subnet subnet_{};
  sa::ModelSa manager_{world_, subnet_, kSaLid, Random(9)};
  Node node_;
  ClientId client_ = 0;
  std::uint32_t id_count_ = 0;
  std::map<ClientId, std::deque<ipc::Bytes>> messages_{};  // messages from exchange()
  std::vector<Node::Membership> memberships_{};            // memberships from exchange()
};

}  // namespace verbena::node
