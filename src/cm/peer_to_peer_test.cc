#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "cm/pair_test.h"
#include "sim/seeds.h"

// Tests that two hosts that connect to each other get one connection (vol1 12.10.4).  A has the
// larger CA GUID, so it is the active side.

namespace verbena::cm {
namespace {

using namespace std::chrono_literals;

// Expects exactly one connection, with A as the active side.
void expect_one_connection(Net& net, EndpointHandle a, EndpointHandle p) {
  const auto active = net.a.cm.view(a);
  const auto passive = net.p.cm.view(p);
  ASSERT_TRUE(active && passive) << net.text();
  ASSERT_EQ(active->state, State::kEstablished) << net.text();
  ASSERT_EQ(passive->state, State::kEstablished) << net.text();
  EXPECT_EQ(active->remote_comm_id, passive->local_comm_id);
  EXPECT_EQ(active->remote_qpn, passive->local_qpn);
  EXPECT_EQ(passive->remote_qpn, active->local_qpn);
  EXPECT_EQ(net.a.outcomes[a].responses, 1);
  EXPECT_EQ(net.p.outcomes[p].requests, 1);
  EXPECT_EQ(net.p.outcomes[p].established, 1);
  EXPECT_EQ(net.a.outcomes[a].failed + net.p.outcomes[p].failed, 0) << net.text();
  EXPECT_EQ(net.a.cm.endpoints(), 1u);
  EXPECT_EQ(net.p.cm.endpoints(), 1u);
}

void disconnect_and_expect_end(Net& net, EndpointHandle a, EndpointHandle p) {
  net.a.call([&](Manager& m) { EXPECT_TRUE(m.disconnect(a, {}, net.world.now()).has_value()); });
  net.run(10s);
  EXPECT_EQ(net.a.outcomes[a].disconnected + net.p.outcomes[p].disconnected, 2) << net.text();
  EXPECT_EQ(net.a.outcomes[a].timewait_exits + net.p.outcomes[p].timewait_exits, 2) << net.text();
  EXPECT_TRUE(net.world.is_idle()) << net.text();
}

TEST(PeerToPeer, TwoReqsThatCrossBecomeOneConnection) {
  Net net;
  const EndpointHandle a = net.a.connect_peer_to_peer({0x11}, net.p.gid());
  const EndpointHandle p = net.p.connect_peer_to_peer({0x900}, net.a.gid());
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
     0 ms  A --- REQ --> P
     0 ms  A <-- REQ --- P
     1 ms  P ReqReceived
     1 ms  A <-- REP --- P
     2 ms  A RepReceived
     2 ms  A --- RTU --> P
     3 ms  P Established by RTU)");
  expect_one_connection(net, a, p);
  EXPECT_EQ(net.a.cm.counters().of(Ignored::kPeerIsPassive), 1u);
  disconnect_and_expect_end(net, a, p);
}

TEST(PeerToPeer, ActiveSideThatBeginsFirstWaits) {
  Net net;
  const EndpointHandle a = net.a.connect_peer_to_peer({0x11}, net.p.gid());
  net.run(10ms);
  const EndpointHandle p = net.p.connect_peer_to_peer({0x900}, net.a.gid());
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
     0 ms  A --- REQ --> P
     1 ms  A <-- REJ --- P  8
    10 ms  A <-- REQ --- P
    11 ms  A --- REQ --> P
    12 ms  P ReqReceived
    12 ms  A <-- REP --- P
    13 ms  A RepReceived
    13 ms  A --- RTU --> P
    14 ms  P Established by RTU)");
  expect_one_connection(net, a, p);
}

TEST(PeerToPeer, PassiveSideThatBeginsFirstWaits) {
  Net net;
  const EndpointHandle p = net.p.connect_peer_to_peer({0x900}, net.a.gid());
  net.run(10ms);
  const EndpointHandle a = net.a.connect_peer_to_peer({0x11}, net.p.gid());
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
     0 ms  A <-- REQ --- P
     1 ms  A --- REJ --> P  8
    10 ms  A --- REQ --> P
    11 ms  P ReqReceived
    11 ms  A <-- REP --- P
    12 ms  A RepReceived
    12 ms  A --- RTU --> P
    13 ms  P Established by RTU)");
  expect_one_connection(net, a, p);
}

// Tries all combinations of which side begins and how much earlier, and of the delay or loss of
// each side's first REQ, of the first REP and of the first RTU.
TEST(PeerToPeer, EveryOrderOfArrivalMakesOneConnection) {
  constexpr std::array kStartDelays = {-40ms, -9ms, -2ms, 0ms, 2ms, 9ms, 40ms};  // of P after A
  constexpr std::array kDelays = {Duration(-1), Duration(1ms), Duration(7ms), Duration(45ms)};
  for (const auto start_delay : kStartDelays) {
    for (const Duration req_a : kDelays) {
      for (const Duration req_p : kDelays) {
        for (const Duration rep : kDelays) {
          for (const Duration rtu : kDelays) {
            Net net;
            std::map<std::string, Duration> first_delays{
                {"A REQ", req_a}, {"P REQ", req_p}, {"P REP", rep}, {"A RTU", rtu}};
            net.delay_of = [&](const std::string& from, const std::string& name) {
              const auto found = first_delays.extract(from + " " + name);
              return found ? found.mapped() : Duration(1ms);
            };
            EndpointHandle a{};
            EndpointHandle p{};
            net.world.after(50ms, [&] { a = net.a.connect_peer_to_peer({0x11}, net.p.gid()); });
            net.world.after(50ms + start_delay,
                            [&] { p = net.p.connect_peer_to_peer({0x900}, net.a.gid()); });
            net.run(10s);
            expect_one_connection(net, a, p);
            disconnect_and_expect_end(net, a, p);
            if (testing::Test::HasFailure()) FAIL() << net.text();
          }
        }
      }
    }
  }
}

// The first REQ of the passive side arrives after the connection is established, and must not reset
// the connection.
TEST(PeerToPeer, ALateReqOfThePassiveSideChangesNothing) {
  Net net;
  bool is_first_req = true;
  net.delay_of = [&](const std::string& from, const std::string& name) -> Duration {
    if (from == "P" && name == "REQ") return std::exchange(is_first_req, false) ? 100ms : 1ms;
    return 1ms;
  };
  const EndpointHandle p = net.p.connect_peer_to_peer({0x900}, net.a.gid());
  const EndpointHandle a = net.a.connect_peer_to_peer({0x11}, net.p.gid());
  net.run(1s);
  expect_one_connection(net, a, p);
  EXPECT_EQ(net.a.cm.counters().of(wire::cm::AttributeId::kReq).duplicate, 1u) << net.text();
  EXPECT_EQ(net.a.cm.counters().of(Ignored::kPeerIsPassive), 0u);
}

TEST(PeerToPeer, EndsUnreachableWithoutAPeer) {
  Net net;
  const EndpointHandle a = net.a.connect_peer_to_peer({0x11}, net.p.gid());
  net.run(29s);
  EXPECT_EQ(net.a.outcomes[a].failed, 0);
  net.run(2s);
  EXPECT_EQ(net.a.outcomes[a].failed, 1) << net.text();
  EXPECT_EQ(net.a.outcomes[a].reason, 0);
  EXPECT_TRUE(net.world.is_idle());
}

TEST(PeerToPeer, OtherServiceOrAddressDoesNotMatch) {
  Net net;
  ConnectRequest other = net.p.request({0x900}, net.a.gid());
  other.peer_to_peer = true;
  other.service_id = {kPeerToPeerService.value + 1};
  const EndpointHandle with_other_service = net.p.connect(other, 1);
  const EndpointHandle with_other_address = net.p.connect_peer_to_peer({0x901}, net.a.gid2());
  const EndpointHandle a = net.a.connect_peer_to_peer({0x11}, net.p.gid());
  net.run(3s);
  EXPECT_EQ(net.a.cm.view(a)->state, State::kReqSent) << net.text();
  EXPECT_EQ(net.p.cm.view(with_other_service)->state, State::kReqSent);
  EXPECT_EQ(net.p.cm.view(with_other_address)->state, State::kReqSent);
}

TEST(PeerToPeer, ListenerAcceptsAPeerToPeerReq) {
  Net net;
  net.p.call([](Manager& m) {
    ASSERT_TRUE(m.listen({.id = kPeerToPeerService}, kListenerCookie).has_value());
  });
  const EndpointHandle a = net.a.connect_peer_to_peer({0x11}, net.p.gid());
  net.run(1s);
  expect_one_connection(net, a, net.p.last());
}

TEST(PeerToPeer, PassiveSideMayReject) {
  Net net;
  net.p.on_req = Host::Reaction::kReject;
  const EndpointHandle a = net.a.connect_peer_to_peer({0x11}, net.p.gid());
  const EndpointHandle p = net.p.connect_peer_to_peer({0x900}, net.a.gid());
  net.run(10s);
  EXPECT_EQ(net.a.outcomes[a].failed, 1) << net.text();
  EXPECT_EQ(net.a.outcomes[a].reason, 28);
  EXPECT_EQ(net.p.outcomes[p].requests, 1);
  EXPECT_TRUE(net.world.is_idle());
}

// A host without a listener rejects with the same reason, but the REJ of a consumer names the
// consumer's endpoint.
TEST(PeerToPeer, RejOfTheConsumerIsFinalForAnyReason) {
  Net net;
  net.p.on_req = Host::Reaction::kReject;
  net.p.reject_reason = wire::cm::RejReason::kInvalidServiceId;
  const EndpointHandle a = net.a.connect_peer_to_peer({0x11}, net.p.gid());
  net.p.connect_peer_to_peer({0x900}, net.a.gid());
  net.run(1s);
  EXPECT_EQ(net.a.outcomes[a].failed, 1) << net.text();
  EXPECT_EQ(net.a.outcomes[a].reason, 8);
}

TEST(PeerToPeer, ActiveSideMayBeDestroyedBeforeTheAnswer) {
  Net net;
  net.p.on_req = Host::Reaction::kNoAnswer;
  const EndpointHandle a = net.a.connect_peer_to_peer({0x11}, net.p.gid());
  const EndpointHandle p = net.p.connect_peer_to_peer({0x900}, net.a.gid());
  net.run(10ms);
  net.a.call([&](Manager& m) { EXPECT_TRUE(m.destroy(a, net.world.now()).has_value()); });
  net.run(10s);
  EXPECT_EQ(net.p.outcomes[p].failed, 1) << net.text();
  EXPECT_EQ(net.p.outcomes[p].reason, 4);
  EXPECT_TRUE(net.world.is_idle());
}

// With equal CA GUIDs the larger QPN decides.
TEST(PeerToPeer, TwoEndpointsOfOneHostConnect) {
  Net net;
  net.p.next_qpn = {0x11};
  const EndpointHandle smaller = net.p.connect_peer_to_peer({0x11}, net.p.gid());
  const EndpointHandle larger = net.p.connect_peer_to_peer({0x12}, net.p.gid());
  net.run(1s);
  EXPECT_EQ(net.p.outcomes[smaller].requests, 1) << net.text();
  EXPECT_EQ(net.p.outcomes[smaller].established, 1);
  EXPECT_EQ(net.p.outcomes[larger].responses, 1);
  EXPECT_EQ(net.p.cm.view(smaller)->remote_qpn, Qpn{0x12});
  EXPECT_EQ(net.p.cm.view(larger)->state, State::kEstablished);
}

TEST(PeerToPeerSim, AllPairsConnectOverABadLine) {
  for (const std::uint64_t seed : sim::seeds(100)) {
    SCOPED_TRACE(testing::Message() << "replay with VB_SEED=" << seed);
    Random random(seed ^ 0x9ee9);
    Net net(seed, sim::Faults{.delay_min = 100us,
                              .delay_max = 60ms,
                              .loss = {1, 4},
                              .duplicate = {1, 4},
                              .corrupt = {}});
    constexpr std::uint32_t kPairs = 4;
    std::set<EndpointHandle> a;
    std::set<EndpointHandle> p;
    const auto random_delay = [&] {
      return Duration(static_cast<std::int64_t>(random.below(2'000'000'000)));
    };
    for (std::uint32_t i = 0; i < kPairs; ++i) {
      net.world.after(random_delay(),
                      [&, i] { a.insert(net.a.connect_peer_to_peer({0x11 + i}, net.p.gid())); });
      net.world.after(random_delay(),
                      [&, i] { p.insert(net.p.connect_peer_to_peer({0x800 + i}, net.a.gid())); });
    }
    net.run(40s);
    std::set<Qpn> peers;
    for (const EndpointHandle endpoint : a) {
      const auto view = net.a.cm.view(endpoint);
      ASSERT_EQ(view->state, State::kEstablished) << net.text();
      peers.insert(view->remote_qpn);
    }
    EXPECT_EQ(peers.size(), kPairs) << net.text();
    for (const EndpointHandle endpoint : p) {
      ASSERT_EQ(net.p.outcomes[endpoint].established, 1) << net.text();
      net.p.call([&](Manager& m) { (void)m.destroy(endpoint, net.world.now()); });
    }
    net.run(30s);
    ASSERT_TRUE(net.world.is_idle()) << net.text();
    EXPECT_EQ(net.p.cm.endpoints(), 0u);
  }
}

}  // namespace
}  // namespace verbena::cm
