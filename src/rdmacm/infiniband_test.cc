#include <gtest/gtest.h>

#include "rdmacm/hosts_test.h"

// Tests ids on InfiniBand, where a packet has LIDs, and GIDs only if it has a GRH.
namespace verbena::rdmacm {
namespace {

using namespace std::chrono_literals;

class InfinibandIdsTest : public testing::Test {
 protected:
  static constexpr Lid kLidOfA{3}, kLidOfP{2};
  static constexpr std::uint32_t kSgidIndex = 5;
  static constexpr std::uint8_t kTrafficClass = 9;

  InfinibandIdsTest() {
    use_infiniband(hosts.a);
    use_infiniband(hosts.p);
    hosts.a.route = [this](const RouteQuery& query) -> Result<Route> {
      return Route{.source = query.destination.by_gid ? gid_of_a : hosts.a.ip4(),
                   .address = {.link_layer = LinkLayer::kInfiniband,
                               .source = gid_of_a,
                               .destination = gid_of_p,
                               .traffic_class = kTrafficClass,
                               .source_lid = kLidOfA,
                               .destination_lid = kLidOfP,
                               .has_grh = has_grh},
                   .mtu = 4};
    };
  }
  static void use_infiniband(Host& host) {
    host.cm.on_interfaces({{.link_layer = LinkLayer::kInfiniband,
                            .address = host.ip4(),
                            .gid = host.link_local(),
                            .index = 2,
                            .mtu = 4,
                            .sgid_index = kSgidIndex,
                            .up = true}},
                          Time{});
  }
  static SocketAddress by_gid(const Gid& gid, std::uint16_t space) {
    SocketAddress result = address(gid, kPort);
    result.by_gid = true;
    result.service = service_id(space, kPort);
    return result;
  }
  // Host P receives a REQ from the port with this LID.  The header of the REQ has these addresses.
  void receive_req(Lid from, const Gid& source, const Gid& destination) {
    ++last_id;
    const mad::Address arrival{.path = {.link_layer = LinkLayer::kInfiniband,
                                        .source_lid = kLidOfP,
                                        .destination_lid = from}};
    wire::cm::Req req{.local_comm_id = {last_id},
                      .service_id = service_id(kPortSpaceTcp, kPort),
                      .local_ca_guid = {0xbeef},
                      .local_qpn = {last_id},
                      .pkey = cm::kDefaultPkey,
                      .path_mtu = 4,
                      // The sender may write any LIDs into the path.
                      .primary_path = {.local_lid = kLidOfP,
                                       .remote_lid = kLidOfP,
                                       .local_gid = gid_of_a,
                                       .remote_gid = gid_of_p}};
    wire::encode_to(std::span(req.private_data).first<wire::kRdmaIpCmHeaderBytes>(),
                    wire::rdma_ip_cm_header(source, destination, 1234));
    hosts.p.receive(
        arrival, wire::cm::encode_mad(wire::cm::mad_header(wire::cm::AttributeId::kReq, 1), req));
  }

  Hosts hosts;
  bool has_grh = false;
  std::uint32_t last_id = 0;
  const Gid gid_of_a = hosts.a.link_local();
  const Gid gid_of_p = hosts.p.link_local();
};

// A program that connects by GID writes the header itself, so it can write any addresses.
TEST_F(InfinibandIdsTest, OnlyTheOwnPortSendsRequestsWithLoopbackAddresses) {
  const Gid localhost = wire::ipv4_gid(kLocalhost);
  hosts.p.auto_continue = false;
  ASSERT_TRUE(hosts.p.create_listener(any4(kPort)));
  receive_req(kLidOfA, localhost, hosts.p.ip4());
  receive_req(kLidOfA, hosts.a.ip4(), localhost);
  receive_req(kLidOfA, localhost, localhost);
  EXPECT_EQ(hosts.p.cm.cm_counters().rejects_sent.at(28), 3u) << hosts.text();
  EXPECT_EQ(hosts.p.count(EventKind::kConnectRequest), 0u);
  receive_req(kLidOfA, hosts.a.ip4(), hosts.p.ip4());
  EXPECT_EQ(hosts.p.count(EventKind::kConnectRequest), 1u) << hosts.text();
  receive_req(kLidOfP, localhost, localhost);
  EXPECT_EQ(hosts.p.count(EventKind::kConnectRequest), 2u) << hosts.text();
  EXPECT_EQ(hosts.p.last(EventKind::kConnectRequest)->destination.ip, localhost);
}

TEST_F(InfinibandIdsTest, DatagramListenerAtAGidGetsRequestsWithoutAGrh) {
  const SocketAddress to = by_gid(gid_of_p, kPortSpaceUdp);
  const IdHandle listener = hosts.p.create_listener(to, 0, kProgram, kPortSpaceUdp);
  hosts.a.connect(to, "", kPortSpaceUdp);
  hosts.run(100ms);
  ASSERT_EQ(hosts.p.count(EventKind::kConnectRequest), 1u) << hosts.text();
  const Event& request = *hosts.p.last(EventKind::kConnectRequest);
  EXPECT_EQ(request.listen_id, listener);
  EXPECT_EQ(request.source, to);
  EXPECT_EQ(request.path.address.source, gid_of_p);
  EXPECT_EQ(request.path.sgid_index, kSgidIndex);
  EXPECT_EQ(hosts.a.count(EventKind::kEstablished), 1u) << hosts.text();
}

TEST_F(InfinibandIdsTest, TrafficClassIsThatOfThePathRecord) {
  has_grh = true;
  ASSERT_TRUE(hosts.p.create_listener(any4(kPort)));
  hosts.a.connect(address(hosts.p.ip4(), kPort));
  hosts.run(100ms);
  ASSERT_EQ(hosts.p.count(EventKind::kEstablished), 1u) << hosts.text();
  EXPECT_EQ(hosts.p.last(EventKind::kConnectRequest)->path.address.traffic_class, kTrafficClass);
  EXPECT_EQ(hosts.a.last(EventKind::kConnectResponse)->path.address.traffic_class, kTrafficClass);
  ASSERT_TRUE(hosts.p.create_listener(any4(kPort), 0, kProgram, kPortSpaceUdp));
  hosts.a.connect(address(hosts.p.ip4(), kPort), "", kPortSpaceUdp);
  hosts.run(100ms);
  EXPECT_EQ(hosts.p.count(EventKind::kConnectRequest), 2u) << hosts.text();
  EXPECT_EQ(hosts.p.last(EventKind::kConnectRequest)->path.address.traffic_class, kTrafficClass);
}

}  // namespace
}  // namespace verbena::rdmacm
