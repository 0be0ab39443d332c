#include <gtest/gtest.h>

#include <cerrno>

#include "rdmacm/hosts_test.h"

// Tests connections, from rdma_resolve_addr() to TIMEWAIT_EXIT.

namespace verbena::rdmacm {
namespace {

using namespace std::chrono_literals;

class ConnectTest : public testing::Test {
 protected:
  void connect(const std::string& data = "") {
    listener = hosts.p.create_listener(any4(kPort));
    active_id = hosts.a.connect(address(hosts.p.ip4(), kPort), data);
    hosts.run(100ms);
    passive_id = hosts.p.last(EventKind::kConnectRequest)->id;
  }
  Hosts hosts;
  IdHandle listener{};
  IdHandle active_id{};
  IdHandle passive_id{};
};

TEST_F(ConnectTest, ConnectionRunsFromResolveToTimewait) {
  connect("ping");
  hosts.a.call([&](Manager& m) {
    EXPECT_TRUE(m.disconnect(kProgram, active_id, hosts.world.now()).has_value());
  });
  hosts.run(5s);

  EXPECT_EQ(hosts.text(), R"(
A ADDR_RESOLVED
A --- REQ -->
P CONNECT_REQUEST 'ping'
  <-- REP --- P
A CONNECT_RESPONSE 'hello'
A --- RTU -->
P ESTABLISHED
A --- DREQ -->
  <-- DREP --- P
P DISCONNECTED
A DISCONNECTED
A TIMEWAIT_EXIT
P TIMEWAIT_EXIT)");
  EXPECT_TRUE(hosts.p.cm.disconnect(kProgram, passive_id, hosts.world.now()).has_value());
  EXPECT_TRUE(hosts.world.is_idle());
}

SocketAddress by_gid(SocketAddress address) {
  address.by_gid = true;
  if (address.port != 0) address.service = service_id(kPortSpaceTcp, address.port);
  return address;
}

// Tests ids of AF_IB.
TEST_F(ConnectTest, IdsByGidGiveTheProgramAllPrivateData) {
  listener = hosts.p.create_id();
  // Family-only affects IPv6 addresses, and not GIDs.
  EXPECT_TRUE(hosts.p.cm.set_option(kProgram, listener, Option::kAfOnly, 1));
  ASSERT_TRUE(
      hosts.p.cm.bind(kProgram, listener, by_gid({.port = kPort, .family = 6}), hosts.world.now()));
  ASSERT_TRUE(hosts.p.cm.listen(kProgram, listener, 0));
  const std::string max_data(kConnectByGidPrivateBytes, 'x');
  active_id = hosts.a.connect(by_gid(address(hosts.p.ip4(), kPort)), max_data);
  hosts.run(100ms);
  const Event* request = hosts.p.last(EventKind::kConnectRequest);
  ASSERT_NE(request, nullptr) << hosts.text();
  EXPECT_EQ(request->param.private_data_bytes, max_data.size());
  EXPECT_EQ(request->param.private_data.at(max_data.size() - 1), std::byte{'x'});
  EXPECT_EQ(request->source, by_gid(address(hosts.p.ip4(), kPort)));
  EXPECT_EQ(request->destination.ip, hosts.a.ip4());
  EXPECT_TRUE(request->destination.by_gid);
  EXPECT_NE(hosts.p.last(EventKind::kEstablished), nullptr) << hosts.text();
  const Event& resolved = *hosts.a.last(EventKind::kAddrResolved);
  EXPECT_EQ(resolved.source.service, service_id(kPortSpaceTcp, resolved.source.port));
}

// A listener at a GID gets all requests, with or without a header; a listener at an IP address
// needs the header.
TEST_F(ConnectTest, GidsAndAddressesShareThePorts) {
  listener = hosts.p.create_listener(by_gid({.port = kPort, .family = 6}));
  EXPECT_FALSE(hosts.p.create_listener(any4(kPort)));
  hosts.a.connect(address(hosts.p.ip4(), kPort), "ping");
  hosts.run(100ms);
  const Event* request = hosts.p.last(EventKind::kConnectRequest);
  ASSERT_NE(request, nullptr) << hosts.text();
  EXPECT_EQ(request->param.private_data.at(wire::kRdmaIpCmHeaderBytes), std::byte{'p'});

  ASSERT_TRUE(hosts.p.create_listener(any4(kPort + 1)));
  hosts.a.connect(by_gid(address(hosts.p.ip4(), kPort + 1)), "no header");
  hosts.run(100ms);
  ASSERT_EQ(hosts.a.count(EventKind::kRejected), 1u) << hosts.text();
  EXPECT_EQ(hosts.p.count(EventKind::kConnectRequest), 1u);

  const IdHandle id = hosts.p.create_id();
  SocketAddress other = by_gid({.port = kPort + 2, .family = 6});
  other.service = service_id(kPortSpaceUdp, other.port);
  EXPECT_EQ(hosts.p.cm.bind(kProgram, id, other, hosts.world.now()).error().code,
            Errc::kNotSupported);
  ASSERT_TRUE(hosts.p.cm.bind(kProgram, id, by_gid({.family = 6}), hosts.world.now()));
  // Ids of RDMA_PS_IB may use service ids of TCP's port space.
  other.service = service_id(kPortSpaceTcp, other.port);
  const auto ib_id = hosts.p.cm.create_id(kProgram, kPortSpaceIb, kQpTypeRc, hosts.world.now());
  ASSERT_TRUE(hosts.p.cm.bind(kProgram, *ib_id, other, hosts.world.now()));
  EXPECT_EQ(hosts.p.cm.info(kProgram, *ib_id)->port_space, kPortSpaceTcp);
  EXPECT_FALSE(hosts.p.create_listener(any4(kPort + 2)));
  const auto second = hosts.p.cm.create_id(kProgram, kPortSpaceIb, kQpTypeRc, hosts.world.now());
  EXPECT_EQ(hosts.p.cm.bind(kProgram, *second, other, hosts.world.now()).error().code,
            Errc::kAddressInUse);
  const auto holder = hosts.p.cm.find_conflict(kProgram, *second, &other);
  ASSERT_TRUE(holder);
  EXPECT_EQ(holder->id, *ib_id);
  EXPECT_EQ(
      hosts.p.cm
          .resolve_addr(kProgram, id, nullptr, address(hosts.a.ip4(), kPort), 1s, hosts.world.now())
          .error()
          .code,
      Errc::kInvalidArgument);
}

// The service id may belong to an endpoint that is not an RDMA CM id.
TEST_F(ConnectTest, IdsByGidSendRequestsForAnyServiceId) {
  SocketAddress to = by_gid(address(hosts.p.ip4(), 0));
  to.service = {0x1000'0000'0000'0042};
  hosts.a.connect(to);
  hosts.run(100ms);
  EXPECT_EQ(hosts.a.last(EventKind::kRejected)->status, 8) << hosts.text();
}

TEST_F(ConnectTest, VendorOptionsReachThePeer) {
  listener = hosts.p.create_listener(any4(kPort));
  hosts.a.vendor = 0x123456;
  hosts.p.vendor = 0x654321;
  hosts.a.connect(address(hosts.p.ip4(), kPort));
  hosts.run(100ms);
  const Event& request = *hosts.p.last(EventKind::kConnectRequest);
  EXPECT_EQ(request.param.ece_vendor_id, 0x123456u);
  EXPECT_EQ(request.param.ece_options, kVendorOptions);
  const Event& response = *hosts.a.last(EventKind::kConnectResponse);
  EXPECT_EQ(response.param.ece_vendor_id, 0x654321u);
  EXPECT_EQ(response.param.ece_options, kVendorOptions);
}

TEST_F(ConnectTest, ProgramRejectsWithTheVendorReason) {
  listener = hosts.p.create_listener(any4(kPort));
  hosts.p.auto_continue = false;
  hosts.a.connect(address(hosts.p.ip4(), kPort));
  hosts.run(100ms);
  passive_id = hosts.p.last(EventKind::kConnectRequest)->id;
  hosts.p.call([&](Manager& m) {
    EXPECT_EQ(m.reject(kProgram, passive_id, {.reason = 8}, hosts.world.now()).error().code,
              Errc::kInvalidArgument);
    EXPECT_TRUE(m.reject(kProgram, passive_id, {.reason = kRejectVendorOption}, hosts.world.now())
                    .has_value());
  });
  hosts.run(100ms);
  EXPECT_EQ(hosts.a.last(EventKind::kRejected)->status, kRejectVendorOption);
}

TEST_F(ConnectTest, EventsCarryAllThatAQpNeeds) {
  connect("ping");
  const Event& request = *hosts.p.last(EventKind::kConnectRequest);
  EXPECT_EQ(request.owner, kProgram);
  EXPECT_EQ(request.listen_id, listener);
  EXPECT_EQ(request.qp_type, kQpTypeRc);
  EXPECT_EQ(request.source, address(hosts.p.ip4(), kPort));
  EXPECT_EQ(request.destination.ip, hosts.a.ip4());
  EXPECT_GE(request.destination.port, kEphemeralFirst);
  EXPECT_EQ(request.param.private_data_bytes, kConnectPrivateBytes);
  EXPECT_EQ(request.param.responder_resources, 3);  // the peer's initiator depth
  EXPECT_EQ(request.param.initiator_depth, 4);
  EXPECT_EQ(request.path.sgid_index, 1u);

  const Event& response = *hosts.a.last(EventKind::kConnectResponse);
  EXPECT_EQ(response.param.private_data_bytes, kAcceptPrivateBytes);
  const QpTransition& ours = response.qp;
  const QpTransition& theirs = request.qp;
  EXPECT_EQ(ours.valid, 1);
  EXPECT_EQ(theirs.valid, 1);
  EXPECT_EQ(ours.remote_qpn, 0x22u);
  EXPECT_EQ(theirs.remote_qpn, 0x11u);
  EXPECT_EQ(ours.sq_psn, theirs.rq_psn);
  EXPECT_EQ(theirs.sq_psn, ours.rq_psn);
  EXPECT_EQ(ours.path_mtu, 3);
  EXPECT_EQ(theirs.path_mtu, 3);
  EXPECT_EQ(ours.initiator_depth, 3);
  EXPECT_EQ(theirs.responder_resources, 3);
  EXPECT_EQ(ours.responder_resources, 3);  // the smaller of 4 and the 3 that P asked for
  EXPECT_EQ(theirs.initiator_depth, 4);    // the offer of A; accept() of P lowers it to 3
  EXPECT_EQ(ours.rnr_retry_count, 6);
  EXPECT_EQ(ours.min_rnr_timer, min_rnr_timer(ours.peer_rnr_retries));
  EXPECT_EQ(theirs.min_rnr_timer, min_rnr_timer(0));  // accept() tells how often A retries
  EXPECT_EQ(ours.path.address.flow_label, theirs.path.address.flow_label);
  EXPECT_NE(ours.path.address.flow_label, 0u);
  EXPECT_EQ(ours.ack_timeout, 19);
  EXPECT_EQ(ours.path.address.source, hosts.a.ip4());
  EXPECT_EQ(ours.path.address.destination, hosts.p.ip4());
}

TEST_F(ConnectTest, RefusedAcceptDoesNotLowerTheDepths) {
  hosts.p.auto_continue = false;
  connect();
  ConnParam refused = param(0x22, "", 0x1000000);  // a vendor id has 24 bits
  refused.responder_resources = refused.initiator_depth = 0;
  refused.psn = 0x123456;
  hosts.p.call([&](Manager& m) {
    EXPECT_EQ(m.accept(kProgram, passive_id, refused, hosts.world.now()).error().code,
              Errc::kInvalidArgument);
    EXPECT_TRUE(m.accept(kProgram, passive_id, param(0x22), hosts.world.now()).has_value());
  });
  hosts.run(100ms);
  const QpTransition& ours = hosts.a.last(EventKind::kConnectResponse)->qp;
  EXPECT_EQ(ours.responder_resources, 3);
  EXPECT_EQ(ours.initiator_depth, 3);
  EXPECT_EQ(ours.sq_psn, hosts.p.last(EventKind::kConnectRequest)->qp.rq_psn);
}

TEST_F(ConnectTest, TheProgramMayChoosePsnAndAckTimeout) {
  listener = hosts.p.create_listener(any4(kPort));
  hosts.a.auto_continue = false;
  active_id = hosts.a.connect(address(hosts.p.ip4(), kPort));
  EXPECT_TRUE(hosts.a.cm.set_option(kProgram, active_id, Option::kAckTimeout, 20).has_value());
  EXPECT_TRUE(hosts.a.cm.set_option(kProgram, active_id, Option::kTos, 0x28).has_value());
  ConnParam wanted = param(0x11);
  wanted.psn = 0x123456;
  hosts.a.call(
      [&](Manager& m) { (void)m.connect(kProgram, active_id, wanted, hosts.world.now()); });
  hosts.run(100ms);
  EXPECT_EQ(hosts.p.last(EventKind::kConnectRequest)->qp.sq_psn, 0x123456u);
  EXPECT_EQ(hosts.p.last(EventKind::kConnectRequest)->qp.ack_timeout, 20);
  EXPECT_EQ(hosts.p.last(EventKind::kConnectRequest)->path.address.traffic_class, 0x28);
  EXPECT_EQ(hosts.a.last(EventKind::kConnectResponse)->qp.ack_timeout, 20);
}

TEST_F(ConnectTest, ConnectsOverIpv6) {
  listener = hosts.p.create_listener(any6(kPort));
  hosts.a.connect(address(hosts.p.ip6(), kPort));
  hosts.run(100ms);
  const Event& request = *hosts.p.last(EventKind::kConnectRequest);
  EXPECT_EQ(request.source, address(hosts.p.ip6(), kPort));
  EXPECT_EQ(request.destination.ip, hosts.a.ip6());
  EXPECT_EQ(hosts.p.count(EventKind::kEstablished), 1u);
}

TEST_F(ConnectTest, Ipv6WildcardAcceptsIpv4) {
  listener = hosts.p.create_listener(any6(kPort));
  hosts.a.connect(address(hosts.p.ip4(), kPort));
  hosts.run(100ms);
  EXPECT_EQ(hosts.p.last(EventKind::kConnectRequest)->source, address(hosts.p.ip4(), kPort));
}

TEST_F(ConnectTest, FamilyOnlyListenerRejectsIpv4) {
  const IdHandle id = hosts.p.create_id();
  EXPECT_TRUE(hosts.p.cm.set_option(kProgram, id, Option::kAfOnly, 1).has_value());
  EXPECT_TRUE(hosts.p.cm.bind(kProgram, id, any6(kPort), hosts.world.now()).has_value());
  EXPECT_TRUE(hosts.p.cm.listen(kProgram, id, 0).has_value());
  hosts.a.connect(address(hosts.p.ip4(), kPort));
  hosts.run(100ms);
  EXPECT_EQ(hosts.a.last(EventKind::kRejected)->status, 8);
}

// The program has bound the port, and may have told it to its peers, but does not listen yet.
TEST_F(ConnectTest, RequestBeforeListenIsReportedAfterwards) {
  const IdHandle id = hosts.p.create_id();
  EXPECT_TRUE(hosts.p.cm.bind(kProgram, id, any4(kPort), hosts.world.now()).has_value());
  hosts.a.connect(address(hosts.p.ip4(), kPort));
  hosts.run(300ms);
  EXPECT_EQ(hosts.a.count(EventKind::kRejected), 0u);
  EXPECT_GE(hosts.p.cm.cm_counters().of(cm::Ignored::kNotListeningYet), 2u);
  EXPECT_TRUE(hosts.p.cm.listen(kProgram, id, 0).has_value());
  hosts.run(1s);
  EXPECT_EQ(hosts.p.count(EventKind::kEstablished), 1u);
}

TEST_F(ConnectTest, BoundPortWithoutListenerRejectsSoon) {
  const IdHandle id = hosts.p.create_id();
  EXPECT_TRUE(hosts.p.cm.bind(kProgram, id, any4(kPort), hosts.world.now()).has_value());
  hosts.a.connect(address(hosts.p.ip4(), kPort));
  hosts.run(Manager::kListenGrace / 2);
  EXPECT_EQ(hosts.a.count(EventKind::kRejected), 0u);
  hosts.run(3 * Manager::kListenGrace);
  EXPECT_EQ(hosts.a.last(EventKind::kRejected)->status, 8);

  const IdHandle other = hosts.p.create_id();
  EXPECT_TRUE(hosts.p.cm.bind(kProgram, other, any4(kPort + 1), hosts.world.now()).has_value());
  EXPECT_TRUE(hosts.p.cm.destroy_id(kProgram, other, hosts.world.now()).has_value());
  hosts.a.connect(address(hosts.p.ip4(), kPort + 1));
  hosts.run(100ms);
  EXPECT_EQ(hosts.a.count(EventKind::kRejected), 2u);
}

// Two ids have bound one port, and one of them is destroyed before the other one listens.
TEST_F(ConnectTest, RequestWaitsForTheOtherIdOfThePort) {
  const IdHandle id = hosts.p.create_id(), other = hosts.p.create_id();
  for (const IdHandle one : {id, other}) {
    EXPECT_TRUE(hosts.p.cm.set_option(kProgram, one, Option::kReuseAddr, 1).has_value());
    EXPECT_TRUE(hosts.p.cm.bind(kProgram, one, any4(kPort), hosts.world.now()).has_value());
  }
  EXPECT_TRUE(hosts.p.cm.destroy_id(kProgram, other, hosts.world.now()).has_value());
  hosts.a.connect(address(hosts.p.ip4(), kPort));
  hosts.run(300ms);
  EXPECT_EQ(hosts.a.count(EventKind::kRejected), 0u);
}

TEST_F(ConnectTest, ConnectsOverLoopback) {
  hosts.a.create_listener(any4(kPort));
  hosts.a.connect(address(wire::ipv4_gid(kLocalhost), kPort));
  hosts.run(100ms);
  EXPECT_EQ(hosts.a.count(EventKind::kEstablished), 1u);
  const Event& response = *hosts.a.last(EventKind::kConnectResponse);
  EXPECT_EQ(response.path.packet_life_time, 8);
  EXPECT_EQ(response.qp.path_mtu, 5);
  hosts.a.call([&](Manager& m) {
    EXPECT_TRUE(m.disconnect(kProgram, response.id, hosts.world.now()).has_value());
  });
  hosts.run(10ms);
  EXPECT_EQ(hosts.a.count(EventKind::kTimewaitExit), 2u);  // loopback has a short timewait
}

TEST_F(ConnectTest, RequestWithoutListenerIsRejected) {
  hosts.a.connect(address(hosts.p.ip4(), kPort));
  hosts.run(100ms);
  EXPECT_EQ(hosts.text(), R"(
A ADDR_RESOLVED
A --- REQ -->
  <-- REJ --- P
A REJECTED 8)");
}

TEST_F(ConnectTest, SilentPeerIsUnreachable) {
  hosts.lose_all = true;
  active_id = hosts.a.connect(address(hosts.p.ip4(), kPort));
  hosts.run(60s);
  ASSERT_NE(hosts.a.last(EventKind::kUnreachable), nullptr);
  EXPECT_EQ(hosts.a.last(EventKind::kUnreachable)->status, -ETIMEDOUT);
  EXPECT_TRUE(hosts.world.is_idle());
}

TEST_F(ConnectTest, RejectCarriesPrivateData) {
  hosts.p.auto_continue = false;
  connect("ping");
  hosts.p.call([&](Manager& m) {
    const std::string no = "no";
    EXPECT_TRUE(m.reject(kProgram, passive_id, {.private_data = std::as_bytes(std::span(no))},
                         hosts.world.now())
                    .has_value());
  });
  hosts.run(100ms);
  EXPECT_EQ(hosts.text(), R"(
A ADDR_RESOLVED
A --- REQ -->
P CONNECT_REQUEST 'ping'
  <-- REJ --- P
A REJECTED 28 'no')");
  EXPECT_EQ(hosts.a.last(EventKind::kRejected)->param.private_data_bytes, kRejectPrivateBytes);
}

TEST_F(ConnectTest, DestroyBeforeTheAnswerIsReportedToThePeerAsRejected) {
  hosts.p.auto_continue = false;
  connect();
  hosts.a.call([&](Manager& m) {
    EXPECT_TRUE(m.destroy_id(kProgram, active_id, hosts.world.now()).has_value());
  });
  hosts.run(100ms);
  EXPECT_EQ(hosts.p.last(EventKind::kRejected)->status, 4);
  EXPECT_EQ(hosts.p.cm.accept(kProgram, passive_id, param(1), hosts.world.now()).error().code,
            Errc::kBadState);
}

TEST_F(ConnectTest, BothSidesDisconnect) {
  connect();
  hosts.clear();
  hosts.a.call([&](Manager& m) { (void)m.disconnect(kProgram, active_id, hosts.world.now()); });
  hosts.p.call([&](Manager& m) { (void)m.disconnect(kProgram, passive_id, hosts.world.now()); });
  hosts.run(5s);
  EXPECT_EQ(hosts.text(), R"(
A --- DREQ -->
  <-- DREQ --- P
  <-- DREP --- P
P DISCONNECTED
A --- DREP -->
A DISCONNECTED
A TIMEWAIT_EXIT
P TIMEWAIT_EXIT)");
}

TEST_F(ConnectTest, PassiveSideMayDisconnectBeforeTheRtu) {
  hosts.a.auto_continue = false;
  listener = hosts.p.create_listener(any4(kPort));
  active_id = hosts.a.connect(address(hosts.p.ip4(), kPort));
  hosts.a.call(
      [&](Manager& m) { (void)m.connect(kProgram, active_id, param(1), hosts.world.now()); });
  hosts.run(3ms);
  passive_id = hosts.p.last(EventKind::kConnectRequest)->id;
  hosts.p.call([&](Manager& m) {
    EXPECT_TRUE(m.disconnect(kProgram, passive_id, hosts.world.now()).has_value());
  });
  hosts.run(5s);
  EXPECT_EQ(hosts.a.count(EventKind::kDisconnected), 1u);
  EXPECT_EQ(hosts.p.count(EventKind::kDisconnected), 1u);
  EXPECT_EQ(hosts.a.cm.establish(kProgram, active_id, hosts.world.now()).error().code,
            Errc::kBadState);
}

TEST_F(ConnectTest, FirstDataEstablishesTheConnection) {
  listener = hosts.p.create_listener(any4(kPort));
  active_id = hosts.a.connect(address(hosts.p.ip4(), kPort));
  hosts.run(2ms);  // the REP is in flight
  EXPECT_EQ(hosts.p.count(EventKind::kEstablished), 0u);
  hosts.p.call([&](Manager& m) { m.comm_established({0x22}, hosts.world.now()); });
  EXPECT_EQ(hosts.p.count(EventKind::kEstablished), 1u);
  hosts.run(5s);
  EXPECT_EQ(hosts.p.count(EventKind::kEstablished), 1u);
}

TEST_F(ConnectTest, RequestsOverTheBacklogAreRepeated) {
  hosts.p.auto_continue = false;
  listener = hosts.p.create_listener(any4(kPort), 2);
  for (int i = 0; i < 3; ++i) {
    // Each request needs its own QP; otherwise the third one would be stale.
    hosts.a.auto_continue = false;
    const IdHandle id = hosts.a.connect(address(hosts.p.ip4(), kPort));
    hosts.a.call([&](Manager& m) {
      (void)m.connect(kProgram, id, param(0x11 + static_cast<std::uint32_t>(i)), hosts.world.now());
    });
  }
  hosts.run(10ms);
  EXPECT_EQ(hosts.p.count(EventKind::kConnectRequest), 2u);
  EXPECT_EQ(hosts.p.cm.cm_counters().requests_dropped, 1u);
  hosts.p.call([&](Manager& m) {
    const IdHandle first = hosts.p.events.front().id;
    EXPECT_TRUE(m.accept(kProgram, first, param(0x22), hosts.world.now()).has_value());
  });
  hosts.run(5s);
  EXPECT_EQ(hosts.p.count(EventKind::kConnectRequest), 3u);
}

TEST_F(ConnectTest, UnknownHeaderVersionIsRejected) {
  listener = hosts.p.create_listener(any4(kPort));
  const auto receive_req = [&](std::byte version, std::byte ip_version) {
    const mad::Address from{.path = {.source = hosts.p.ip4(), .destination = hosts.a.ip4()}};
    wire::cm::Req req{.local_comm_id = {std::to_integer<std::uint32_t>(version) + 1},
                      .service_id = service_id(kPortSpaceTcp, kPort),
                      .local_ca_guid = {0xbeef},
                      .local_qpn = {std::to_integer<std::uint32_t>(ip_version)},
                      .pkey = cm::kDefaultPkey,
                      .path_mtu = 3,
                      .primary_path = {.local_gid = from.remote(), .remote_gid = from.local()}};
    req.private_data[0] = version;
    req.private_data[1] = ip_version;
    hosts.clear();
    hosts.p.receive(
        from, wire::cm::encode_mad(wire::cm::mad_header(wire::cm::AttributeId::kReq, 1), req));
    return hosts.text();
  };
  EXPECT_EQ(receive_req(std::byte{0x10}, std::byte{0x40}), "\n  <-- REJ --- P");
  EXPECT_EQ(receive_req(std::byte{0x00}, std::byte{0x50}), "\n  <-- REJ --- P");
  EXPECT_EQ(hosts.p.cm.cm_counters().rejects_sent.at(28), 2u);
  EXPECT_EQ(hosts.p.count(EventKind::kConnectRequest), 0u);
  EXPECT_EQ(hosts.p.cm.endpoints(), 0u);
}

TEST_F(ConnectTest, ProgramExitDestroysItsIds) {
  connect();
  const IdHandle second = hosts.p.create_id(kOther);
  hosts.clear();
  hosts.p.auto_continue = false;
  // The QP number is the same, so the old connection is stale.
  hosts.a.connect(address(hosts.p.ip4(), kPort));
  hosts.run(1ms);
  hosts.p.call([&](Manager& m) { m.remove_client(kProgram, hosts.world.now()); });
  EXPECT_EQ(hosts.p.cm.ids(), 1u);
  hosts.run(5s);
  EXPECT_FALSE(hosts.p.cm.has_orphans());
  EXPECT_EQ(hosts.a.count(EventKind::kDisconnected), 1u);
  EXPECT_TRUE(hosts.p.cm.bind(kOther, second, any4(kPort), hosts.world.now())
                  .has_value());                          // the port is free
  hosts.p.cm.remove_client(kProgram, hosts.world.now());  // the program has no ids any more
}

}  // namespace
}  // namespace verbena::rdmacm
