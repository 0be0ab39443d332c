#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "node/node.h"
#include "sa/model_sa_test.h"
#include "wire/headers.h"
#include "wire/ip.h"
#include "wire/mgid.h"

namespace verbena::node {
namespace {

using namespace std::chrono_literals;

// Provides a node with one InfiniBand port and one program, and a modelled manager that knows the
// ports 1 to 9 of the subnet.
class ShowSaTest : public testing::Test {
 protected:
  static constexpr Lid kSaLid{100};

  ShowSaTest() {
    for (unsigned i = 1; i < 10; ++i) subnet_[gid(i)] = lid(i);
    EXPECT_TRUE(node_.set_port_state(
        PortId{}, {.lid = lid(1), .sm_lid = kSaLid, .gids = {gid(1)}, .active_mtu = 4}, now()));
    node_.set_port(std::nullopt, now());
    node_.on_addresses({{.gid = own_ip_, .interface = 1, .prefix_bits = 16}}, now());
    client_ = node_.connected(now());
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

  // Makes an id that seeks the route to this address.
  void resolve(const rdmacm::SocketAddress& to) {
    const rdmacm::IdHandle id{std::uint64_t{1} << 32 | ipc::kNamed | ++ids_};
    node_.on_message(client_, ipc::encode(0, ipc::CreateId{id, rdmacm::kPortSpaceTcp, 2}), now());
    node_.on_message(client_, ipc::encode(0, ipc::ResolveAddress{id, {}, to, 30s}), now());
    exchange();
  }
  void resolve_gid(unsigned i) {
    resolve({.ip = gid(i), .family = 6, .by_gid = true, .service = {0x01060007}});
  }

  // Moves MADs between the node and the manager until none is under way.
  void exchange() {
    for (bool some = true; some;) {
      some = false;
      while (node_.poll()) {
      }
      link::Burst burst;
      node_.transmit(burst, now());
      for (const link::Burst::Packet& packet : burst.packets()) {
        if (packet.address.destination_lid != kSaLid) continue;
        some = true;
        const auto bytes = burst.transport(packet);
        mad::SendMad request{.to = {.path = packet.address}};
        std::ranges::copy(bytes.last(wire::kMadBytes), request.mad.begin());
        manager_.receive(request);
      }
      while (const auto answer = manager_.next_packet()) {
        some = true;
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
    from.port = PortId{};
    node_.receive({from, transport}, now());
  }

  ipc::SaReply page(ipc::SaTopic topic, std::uint32_t skip = 0) {
    const auto reply = node_.show_sa({.topic = topic, .skip = skip}, now());
    EXPECT_TRUE(reply);
    return reply.value_or(ipc::SaReply{});
  }
  std::uint64_t counter(const char* name) {
    const auto all = page(ipc::SaTopic::kCounters).counters;
    const auto found = std::ranges::find(all, name, &ipc::NamedCount::name);
    EXPECT_NE(found, all.end()) << name;
    return found == all.end() ? 0 : found->value;
  }

  const Gid own_ip_ = wire::ipv4_gid(0x0a000001);
  sim::World world_{};
  sa::Subnet subnet_{};
  sa::ModelSa manager_{world_, subnet_, kSaLid, Random(9)};
  Node node_{{.node_guid = {5},
              .devices = {{.ports = {{.link_layer = LinkLayer::kInfiniband}}}},
              .build = "test"},
             Random(1)};
  ClientId client_ = 0;
  std::uint32_t ids_ = 0;
};

TEST_F(ShowSaTest, PathsHaveWhatTheManagerHasAnswered) {
  resolve_gid(2);
  resolve_gid(3);
  resolve_gid(40);  // not in the subnet
  world_.run_until(now() + 2s);
  const auto paths = page(ipc::SaTopic::kPaths).paths;
  ASSERT_EQ(paths.size(), 3u);
  EXPECT_EQ(paths[0], (ipc::SaPathRow{.state = "known",
                                      .destination = gid(2),
                                      .source = gid(1),
                                      .destination_lid = lid(2),
                                      .source_lid = lid(1),
                                      .pkey = {0xffff},
                                      .mtu = 4,
                                      .rate = 3,
                                      .age = 2s}));
  EXPECT_EQ(paths[1].destination, gid(3));
  EXPECT_EQ(paths[1].destination_lid, lid(3));
  EXPECT_EQ(paths[2], (ipc::SaPathRow{.state = "absent",
                                      .destination = gid(40),
                                      .source = gid(1),
                                      .pkey = {0xffff},
                                      .age = 2s,
                                      .error = "the subnet manager knows no such record"}));
  EXPECT_FALSE(page(ipc::SaTopic::kPaths).more);
}

TEST_F(ShowSaTest, QuestionsUnderWayAreShownInBoundedPages) {
  manager_.die();
  const unsigned all = 2 * ipc::kSaRowsPerReply + 3;
  for (unsigned i = 0; i < all; ++i) resolve_gid(1000 + i);
  std::set<Gid> seen;
  for (const unsigned rows : {unsigned{ipc::kSaRowsPerReply}, unsigned{ipc::kSaRowsPerReply}, 3u}) {
    const auto one = page(ipc::SaTopic::kPaths, static_cast<std::uint32_t>(seen.size()));
    ASSERT_EQ(one.paths.size(), rows);
    EXPECT_EQ(one.more, rows != 3);
    for (const ipc::SaPathRow& row : one.paths) {
      EXPECT_EQ(row.state, "asked");
      EXPECT_EQ(row.waiters, 1u);
      EXPECT_TRUE(seen.insert(row.destination).second);
    }
  }
  EXPECT_EQ(seen.size(), all);
  EXPECT_TRUE(page(ipc::SaTopic::kPaths, all).paths.empty());
  EXPECT_FALSE(page(ipc::SaTopic::kPaths, all).more);
}

TEST_F(ShowSaTest, GroupsBeginWithTheBroadcastGroup) {
  exchange();
  const auto groups = page(ipc::SaTopic::kGroups).groups;
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].mgid, wire::broadcast_mgid({0xffff}));
  EXPECT_EQ(groups[0].join_state, wire::join_state::kFullMember);
  EXPECT_EQ(groups[0].wanted, wire::join_state::kFullMember);
  EXPECT_EQ(groups[0].members, 1u);
  EXPECT_EQ(groups[0].qkey, Qkey{0xb1b});
  EXPECT_GE(groups[0].mlid, Lid{0xc000});
  EXPECT_FALSE(groups[0].busy);
}

TEST_F(ShowSaTest, AddressesThatAreSoughtHaveWaiters) {
  exchange();
  const Gid neighbour = wire::ipv4_gid(0x0a000002);
  resolve({.ip = neighbour, .port = 7, .family = 4});
  resolve({.ip = neighbour, .port = 8, .family = 4});
  const auto addresses = page(ipc::SaTopic::kAddresses).addresses;
  ASSERT_EQ(addresses.size(), 1u);
  EXPECT_EQ(addresses[0],
            (ipc::SaAddressRow{.ip = neighbour, .state = "incomplete", .waiters = 2, .tries = 1}));
}

TEST_F(ShowSaTest, FlushMakesTheNextRouteAskAgainAndKeepsGroups) {
  resolve_gid(2);
  resolve_gid(40);
  const std::uint64_t asked = counter("sa_queries");
  resolve_gid(2);
  EXPECT_EQ(counter("sa_queries"), asked);
  EXPECT_EQ(node_.flush_sa(now()).value(), (ipc::SaFlushed{.paths = 2, .addresses = 0}));
  EXPECT_TRUE(page(ipc::SaTopic::kPaths).paths.empty());
  EXPECT_EQ(page(ipc::SaTopic::kGroups).groups.size(), 1u);
  resolve_gid(2);
  EXPECT_EQ(counter("sa_queries"), asked + 1);
  EXPECT_EQ(page(ipc::SaTopic::kPaths).paths.size(), 1u);
}

TEST_F(ShowSaTest, UnknownTopicIsRefused) {
  const auto reply = node_.show_sa({.topic = static_cast<ipc::SaTopic>(77)}, now());
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, Errc::kInvalidArgument);
}

TEST(ShowSa, HostWithoutInfinibandPortsSaysSo) {
  Node node({.node_guid = {5}, .build = "test"}, Random(1));
  const auto reply = node.show_sa({}, Time{});
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, Errc::kNotSupported);
  EXPECT_STREQ(reply.error().context,
               "this host has no InfiniBand port: it asks no subnet administration");
  EXPECT_EQ(node.flush_sa(Time{}).error().code, Errc::kNotSupported);
}

}  // namespace
}  // namespace verbena::node
