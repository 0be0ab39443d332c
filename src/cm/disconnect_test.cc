#include <gtest/gtest.h>

#include "cm/pair_test.h"

// Tests how connections end, as exchanges of messages.

namespace verbena::cm {
namespace {

using namespace std::chrono_literals;

class Disconnect : public testing::Test {
 protected:
  void connect() {
    active_endpoint = net.a.connect({0x11}, net.p.gid());
    net.run(10ms);
    passive_endpoint = net.p.last();
    ASSERT_EQ(net.p.cm.view(passive_endpoint)->state, State::kEstablished);
    net.clear();
  }
  void disconnect(Host& host, EndpointHandle endpoint) {
    host.call(
        [&](Manager& m) { EXPECT_TRUE(m.disconnect(endpoint, {}, net.world.now()).has_value()); });
  }
  void destroy(Host& host, EndpointHandle endpoint) {
    host.call([&](Manager& m) { EXPECT_TRUE(m.destroy(endpoint, net.world.now()).has_value()); });
    EXPECT_EQ(host.cm.destroy(endpoint, net.world.now()).error().code, Errc::kBadHandle);
  }
  // Puts a QP of P into timewait for 135 ms.  The next accept() of P uses this QP.
  void put_a_qp_in_timewait() {
    net.p.packet_life = net.a.packet_life = 14;
    connect();
    disconnect(net.a, active_endpoint);
    net.run(10ms);
    net.clear();
    net.p.next_qpn = net.p.cm.view(passive_endpoint)->local_qpn;
  }
  void accept_with_a_qp_in_timewait() {
    put_a_qp_in_timewait();
    active_endpoint = net.a.connect({0x12}, net.p.gid(), 3);
    net.run(5ms);
    passive_endpoint = net.p.last();
  }

  Net net;
  EndpointHandle active_endpoint{};
  EndpointHandle passive_endpoint{};
};

TEST_F(Disconnect, ExchangesDreqAndDrep) {
  connect();
  disconnect(net.a, active_endpoint);
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
    10 ms  A --- DREQ --> P
    11 ms  A <-- DREP --- P
    11 ms  P Disconnected: peer
    12 ms  A Disconnected: local
    14 ms  P TimewaitExit
    15 ms  A TimewaitExit)");
  EXPECT_EQ(net.a.cm.disconnect(active_endpoint, {}, net.world.now()).error().code,
            Errc::kBadState);
}

TEST_F(Disconnect, TwoDreqsCross) {
  connect();
  disconnect(net.a, active_endpoint);
  disconnect(net.p, passive_endpoint);
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
    10 ms  A --- DREQ --> P
    10 ms  A <-- DREQ --- P
    11 ms  A <-- DREP --- P
    11 ms  P Disconnected: peer
    11 ms  A --- DREP --> P
    11 ms  A Disconnected: peer
    14 ms  P TimewaitExit
    14 ms  A TimewaitExit)");
}

TEST_F(Disconnect, ALostDreqIsRepeated) {
  connect();
  net.lose("DREQ");
  disconnect(net.p, passive_endpoint);
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
    10 ms  A <-- DREQ --- P   (lost)
    28 ms  A <-- DREQ --- P
    29 ms  A --- DREP --> P
    29 ms  A Disconnected: peer
    30 ms  P Disconnected: local
    33 ms  A TimewaitExit
    34 ms  P TimewaitExit)");
}

// When the repeated DREQ arrives, timewait on P is over.  A DREQ for an unknown connection gets the
// same answer.
TEST_F(Disconnect, LostDrepIsSentAgain) {
  connect();
  net.lose("DREP");
  disconnect(net.a, active_endpoint);
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
    10 ms  A --- DREQ --> P
    11 ms  A <-- DREP --- P   (lost)
    11 ms  P Disconnected: peer
    14 ms  P TimewaitExit
    28 ms  A --- DREQ --> P
    29 ms  A <-- DREP --- P
    30 ms  A Disconnected: local
    33 ms  A TimewaitExit)");
}

TEST_F(Disconnect, SilentPeerIsGivenUp) {
  connect();
  net.lose("DREQ", -1);
  disconnect(net.a, active_endpoint);
  net.run(9500ms);
  net.clear();
  net.run(5s);

  EXPECT_EQ(net.text(), R"(
  9857 ms  A --- DREQ --> P   (lost)
 10010 ms  A Disconnected: silence
 10013 ms  A TimewaitExit)");
}

TEST_F(Disconnect, DreqReplacesALostRtu) {
  net.lose("RTU");
  active_endpoint = net.a.connect({0x11}, net.p.gid());
  net.run(4ms);
  disconnect(net.a, active_endpoint);
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
     0 ms  A --- REQ --> P
     1 ms  P ReqReceived
     1 ms  A <-- REP --- P
     2 ms  A RepReceived
     2 ms  A --- RTU --> P   (lost)
     4 ms  A --- DREQ --> P
     5 ms  P Established by DREQ
     5 ms  A <-- DREP --- P
     5 ms  P Disconnected: peer
     6 ms  A Disconnected: local
     8 ms  P TimewaitExit
     9 ms  A TimewaitExit)");
}

TEST_F(Disconnect, QpIsNotReusedBeforeItsTimewaitEnds) {
  put_a_qp_in_timewait();
  net.a.connect({0x11}, net.p.gid(), 2);
  net.a.connect({0x12}, net.p.gid(), 3);
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
    20 ms  A --- REQ --> P
    21 ms  P ReqReceived
    40 ms  A --- REQ --> P
    41 ms  A <-- MRA --- P
   146 ms  P TimewaitExit
   146 ms  A <-- REP --- P
   147 ms  A --- REQ --> P
   147 ms  A TimewaitExit
   147 ms  A RepReceived
   147 ms  A --- RTU --> P
   148 ms  P ReqReceived
   148 ms  A <-- REP --- P
   148 ms  P Established by RTU
   149 ms  A RepReceived
   149 ms  A --- RTU --> P
   150 ms  P Established by RTU)");
}

// The peer derives the packet life from the ACK timeout, so its timewait may be longer than ours.
TEST_F(Disconnect, QpConnectsAtOnceIfOnlyThePeerIsInTimewait) {
  ConnectRequest request = net.a.request({0x11}, net.p.gid());
  request.local_ack_timeout = 16;
  active_endpoint = net.a.connect(request, 1);
  net.run(5ms);
  disconnect(net.a, active_endpoint);
  net.run(5ms);
  net.clear();
  net.a.connect(request, 2);
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
    10 ms  A --- REQ --> P
    10 ms  A TimewaitExit
    11 ms  P ReqReceived
    11 ms  A <-- REP --- P
    12 ms  A RepReceived
    12 ms  A --- RTU --> P
    13 ms  P Established by RTU
   275 ms  P TimewaitExit)");
}

TEST_F(Disconnect, RestartedPeerConnectsDespiteAnUnansweredDreq) {
  connect();
  net.lose("DREQ", -1);
  disconnect(net.p, passive_endpoint);
  net.run(1ms);
  net.a.restart();
  net.a.connect({0x11}, net.p.gid(), 2);
  net.run(5ms);

  EXPECT_EQ(net.text(), R"(
    10 ms  A <-- DREQ --- P   (lost)
    11 ms  A --- REQ --> P
    12 ms  P ReqReceived
    12 ms  A <-- REP --- P
    13 ms  A RepReceived
    13 ms  A --- RTU --> P
    14 ms  P Established by RTU)");
}

TEST_F(Disconnect, DestroyBeforeTheQueuedRepRejectsTheReq) {
  accept_with_a_qp_in_timewait();
  destroy(net.p, passive_endpoint);
  net.run(20ms);

  EXPECT_EQ(net.text(), R"(
    20 ms  A --- REQ --> P
    21 ms  P ReqReceived
    25 ms  A <-- REJ --- P  28
    26 ms  A Rejected 28)");
}

TEST_F(Disconnect, DisconnectBeforeTheQueuedRepRejectsTheReq) {
  accept_with_a_qp_in_timewait();
  disconnect(net.p, passive_endpoint);
  net.run(20ms);

  EXPECT_EQ(net.text(), R"(
    20 ms  A --- REQ --> P
    21 ms  P ReqReceived
    25 ms  P Disconnected: local
    25 ms  A <-- REJ --- P  28
    26 ms  A Rejected 28)");
}

// The peer may connect again at once, because there is no timewait without a REP.
TEST_F(Disconnect, RejBeforeTheQueuedRepNeedsNoTimewait) {
  accept_with_a_qp_in_timewait();
  destroy(net.a, active_endpoint);
  net.run(5ms);
  net.a.connect({0x12}, net.p.gid(), 4);
  net.run(3ms);

  EXPECT_EQ(net.text(), R"(
    20 ms  A --- REQ --> P
    21 ms  P ReqReceived
    25 ms  A --- REJ --> P  4
    26 ms  P Rejected 4
    30 ms  A --- REQ --> P
    31 ms  P ReqReceived
    31 ms  A <-- REP --- P
    32 ms  A RepReceived
    32 ms  A --- RTU --> P
    33 ms  P Established by RTU)");
}

// ---- The owner destroys the endpoint, in every state.

TEST_F(Disconnect, DestroyInReqSentSendsARej) {
  net.p.on_req = Host::Reaction::kNoAnswer;
  active_endpoint = net.a.connect({0x11}, net.p.gid());
  net.run(5ms);
  destroy(net.a, active_endpoint);
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
     0 ms  A --- REQ --> P
     1 ms  P ReqReceived
     5 ms  A --- REJ --> P  4
     6 ms  P Rejected 4)");
}

TEST_F(Disconnect, DestroyInReqReceivedSendsARej) {
  net.p.on_req = Host::Reaction::kNoAnswer;
  active_endpoint = net.a.connect({0x11}, net.p.gid());
  net.run(5ms);
  destroy(net.p, net.p.last());
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
     0 ms  A --- REQ --> P
     1 ms  P ReqReceived
     5 ms  A <-- REJ --- P  28
     6 ms  A Rejected 28)");
}

TEST_F(Disconnect, DestroyInRepReceivedSendsARej) {
  net.a.on_rep = Host::Reaction::kNoAnswer;
  active_endpoint = net.a.connect({0x11}, net.p.gid());
  net.run(5ms);
  net.lose("REJ");
  destroy(net.a, active_endpoint);
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
     0 ms  A --- REQ --> P
     1 ms  P ReqReceived
     1 ms  A <-- REP --- P
     2 ms  A RepReceived
     5 ms  A --- REJ --> P  28   (lost)
    19 ms  A <-- REP --- P
    20 ms  A --- REJ --> P  28
    21 ms  P Rejected 28
    24 ms  P TimewaitExit)");
}

TEST_F(Disconnect, DestroyInRepSentSendsADreq) {
  net.lose("RTU", -1);
  active_endpoint = net.a.connect({0x11}, net.p.gid());
  net.run(5ms);
  destroy(net.p, net.p.last());
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
     0 ms  A --- REQ --> P
     1 ms  P ReqReceived
     1 ms  A <-- REP --- P
     2 ms  A RepReceived
     2 ms  A --- RTU --> P   (lost)
     5 ms  A <-- DREQ --- P
     6 ms  A --- DREP --> P
     6 ms  A Disconnected: peer
     9 ms  A TimewaitExit)");
}

// The peer has not seen the REP, so it gets a REJ for the REQ that it repeats.
TEST_F(Disconnect, DestroyAfterALostRepRejectsTheRepeatedReq) {
  net.lose("REP", -1);
  active_endpoint = net.a.connect({0x11}, net.p.gid());
  net.run(5ms);
  destroy(net.p, net.p.last());
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
     0 ms  A --- REQ --> P
     1 ms  P ReqReceived
     1 ms  A <-- REP --- P   (lost)
     5 ms  A <-- DREQ --- P
    20 ms  A --- REQ --> P
    21 ms  A <-- REJ --- P  28
    22 ms  A Rejected 28
    23 ms  A <-- DREQ --- P
    24 ms  A --- DREP --> P)");
}

TEST_F(Disconnect, DestroyOfAConnectionSendsADreq) {
  connect();
  net.lose("DREQ");
  destroy(net.p, passive_endpoint);
  EXPECT_TRUE(net.p.cm.has_orphans());
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
    10 ms  A <-- DREQ --- P   (lost)
    28 ms  A <-- DREQ --- P
    29 ms  A --- DREP --> P
    29 ms  A Disconnected: peer
    33 ms  A TimewaitExit)");
  EXPECT_FALSE(net.p.cm.has_orphans());
}

TEST_F(Disconnect, DestroyInDreqSentOrTimewaitEndsTheReports) {
  connect();
  disconnect(net.a, active_endpoint);
  destroy(net.a, active_endpoint);
  net.run(1500us);
  destroy(net.p, passive_endpoint);
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
    10 ms  A --- DREQ --> P
    11 ms  A <-- DREP --- P
    11 ms  P Disconnected: peer)");
  EXPECT_EQ(net.a.cm.endpoints(), 0u);
  EXPECT_EQ(net.p.cm.endpoints(), 0u);
}

// ---- A new manager ends connections of the former one.

InheritedConnection connection_to_inherit(Host& from, EndpointHandle endpoint, const Host& to) {
  const View view = from.cm.view(endpoint).value();
  return {.address = {.path = {.source = from.gid(), .destination = to.gid()}},
          .local_id = view.local_comm_id,
          .remote_id = view.remote_comm_id,
          .local_qpn = view.local_qpn,
          .remote_qpn = view.remote_qpn,
          .packet_life = 8};
}

TEST_F(Disconnect, NextManagerEndsTheConnection) {
  connect();
  const InheritedConnection connection = connection_to_inherit(net.a, active_endpoint, net.p);
  net.a.restart();
  net.lose("DREQ", 2);
  net.a.call([&](Manager& m) { EXPECT_TRUE(m.inherit(connection, net.world.now()).has_value()); });
  EXPECT_TRUE(net.a.cm.has_orphans());
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
    10 ms  A --- DREQ --> P   (lost)
    32 ms  A --- DREQ --> P   (lost)
    69 ms  A --- DREQ --> P
    70 ms  A <-- DREP --- P
    70 ms  P Disconnected: peer
    73 ms  P TimewaitExit)");
  EXPECT_FALSE(net.a.cm.has_orphans());
  EXPECT_EQ(net.a.cm.endpoints(), 0u);
}

// The managers of both sides were restarted.
TEST_F(Disconnect, NextManagersOfBothSidesEndTheConnection) {
  connect();
  const InheritedConnection a = connection_to_inherit(net.a, active_endpoint, net.p);
  const InheritedConnection p = connection_to_inherit(net.p, passive_endpoint, net.a);
  net.a.restart();
  net.p.restart();
  net.a.call([&](Manager& m) { EXPECT_TRUE(m.inherit(a, net.world.now()).has_value()); });
  net.run(5ms);
  net.p.call([&](Manager& m) { EXPECT_TRUE(m.inherit(p, net.world.now()).has_value()); });
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
    10 ms  A --- DREQ --> P
    11 ms  A <-- DREP --- P
    15 ms  A <-- DREQ --- P
    16 ms  A --- DREP --> P)");
  EXPECT_FALSE(net.a.cm.has_orphans());
  EXPECT_FALSE(net.p.cm.has_orphans());
}

// The peer waits for an RTU, which the new manager does not have, and repeats its REP.
TEST_F(Disconnect, NextManagerEndsAConnectionWithoutRtu) {
  net.a.on_rep = Host::Reaction::kNoAnswer;
  active_endpoint = net.a.connect({0x11}, net.p.gid());
  net.run(5ms);
  passive_endpoint = net.p.endpoints.at(0);
  const InheritedConnection connection = connection_to_inherit(net.a, active_endpoint, net.p);
  net.a.restart();
  net.lose("DREQ", 2);
  net.a.call([&](Manager& m) { EXPECT_TRUE(m.inherit(connection, net.world.now()).has_value()); });
  net.run(5s);
  EXPECT_GT(net.a.cm.counters().of(wire::cm::AttributeId::kRep).duplicate, 0u);
  EXPECT_EQ(net.p.outcomes[passive_endpoint].disconnected, 1);
  EXPECT_FALSE(net.a.cm.has_orphans());
}

TEST_F(Disconnect, NextManagerGivesUpOnASilentPeer) {
  connect();
  const InheritedConnection connection = connection_to_inherit(net.a, active_endpoint, net.p);
  net.a.restart();
  net.lose("DREQ", -1);
  net.a.call([&](Manager& m) { EXPECT_TRUE(m.inherit(connection, net.world.now()).has_value()); });
  net.run(Endpoint::kDisconnectTimeout + 1s);
  EXPECT_GT(net.a.cm.counters().of(wire::cm::AttributeId::kDreq).repeated, 4u);
  EXPECT_FALSE(net.a.cm.has_orphans());
  EXPECT_EQ(net.a.cm.deadline(), kNever);
}

TEST(InheritedConnection, AcceptsValidConnectionsUpToTheLimit) {
  Manager manager({.inherited_max = 2}, Random(1));
  const auto with_id = [](std::uint32_t id) {
    return InheritedConnection{
        .local_id = {id}, .remote_id = {9}, .local_qpn = {0x1000}, .remote_qpn = {0x2000}};
  };
  const auto code = [&](const InheritedConnection& connection) {
    const auto result = manager.inherit(connection, Time{});
    return result ? std::nullopt : std::optional(result.error().code);
  };
  EXPECT_EQ(code(with_id(0)), Errc::kInvalidArgument);
  InheritedConnection bad_qpn = with_id(1);
  bad_qpn.remote_qpn = {1 << 24};
  EXPECT_EQ(code(bad_qpn), Errc::kInvalidArgument);
  EXPECT_EQ(code(with_id(1)), std::nullopt);
  EXPECT_EQ(code(with_id(1)), Errc::kBusy);
  EXPECT_EQ(code(with_id(2)), std::nullopt);
  EXPECT_EQ(code(with_id(3)), Errc::kNoResources);
  EXPECT_EQ(manager.counters().inherited, 2u);
  EXPECT_EQ(manager.counters().inherited_refused, 4u);
  EXPECT_EQ(manager.endpoints(), 2u);
  while (manager.deadline() != kNever) manager.on_timer(manager.deadline());
  EXPECT_EQ(manager.endpoints(), 0u);
  EXPECT_EQ(code(with_id(3)), std::nullopt);
}

}  // namespace
}  // namespace verbena::cm
