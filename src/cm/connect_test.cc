#include <gtest/gtest.h>

#include "cm/pair_test.h"

// Tests how connections are established, as exchanges of messages.

namespace verbena::cm {
namespace {

using namespace std::chrono_literals;

TEST(Connect, ExchangesReqRepAndRtu) {
  Net net;
  net.a.connect({0x11}, net.p.gid());
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
     0 ms  A --- REQ --> P
     1 ms  P ReqReceived
     1 ms  A <-- REP --- P
     2 ms  A RepReceived
     2 ms  A --- RTU --> P
     3 ms  P Established by RTU)");
}

TEST(Connect, ALostReqIsRepeated) {
  Net net;
  net.lose("REQ");
  net.a.connect({0x11}, net.p.gid());
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
     0 ms  A --- REQ --> P   (lost)
    20 ms  A --- REQ --> P
    21 ms  P ReqReceived
    21 ms  A <-- REP --- P
    22 ms  A RepReceived
    22 ms  A --- RTU --> P
    23 ms  P Established by RTU)");
}

TEST(Connect, BothSidesRepeatAfterALostRep) {
  Net net;
  net.lose("REP");
  net.a.connect({0x11}, net.p.gid());
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
     0 ms  A --- REQ --> P
     1 ms  P ReqReceived
     1 ms  A <-- REP --- P   (lost)
    19 ms  A <-- REP --- P
    20 ms  A --- REQ --> P
    20 ms  A RepReceived
    20 ms  A --- RTU --> P
    21 ms  A <-- REP --- P
    21 ms  P Established by RTU
    22 ms  A --- RTU --> P)");
}

TEST(Connect, FirstRepeatWaitsForTheMeasuredRoundTrip) {
  Net net(1, sim::Faults{.delay_min = 150ms, .delay_max = 150ms});
  for (std::uint32_t qpn = 0x11; qpn < 0x13; ++qpn) {
    const auto active_endpoint = net.a.connect({qpn}, net.p.gid());
    net.run(1s);
    net.a.call([&](Manager& m) { (void)m.disconnect(active_endpoint, {}, net.world.now()); });
    net.run(1s);
  }
  net.clear();
  net.a.connect({0x20}, net.p.gid());
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
  4000 ms  A --- REQ --> P
  4150 ms  P ReqReceived
  4150 ms  A <-- REP --- P
  4300 ms  A RepReceived
  4300 ms  A --- RTU --> P
  4450 ms  P Established by RTU)");
}

TEST(Connect, FirstDataReplacesALostRtu) {
  Net net;
  net.lose("RTU");
  net.a.connect({0x11}, net.p.gid());
  net.run(5ms);
  net.p.call([&](Manager& m) { m.comm_established(Qpn{0x900}, net.world.now()); });
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
     0 ms  A --- REQ --> P
     1 ms  P ReqReceived
     1 ms  A <-- REP --- P
     2 ms  A RepReceived
     2 ms  A --- RTU --> P   (lost)
     5 ms  P Established by data)");
}

TEST(Connect, RepeatedRepBringsBackALostRtu) {
  Net net;
  net.lose("RTU");
  net.a.connect({0x11}, net.p.gid());
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
     0 ms  A --- REQ --> P
     1 ms  P ReqReceived
     1 ms  A <-- REP --- P
     2 ms  A RepReceived
     2 ms  A --- RTU --> P   (lost)
    19 ms  A <-- REP --- P
    20 ms  A --- RTU --> P
    21 ms  P Established by RTU)");
}

TEST(Connect, ALateRtuIsCountedAndIgnored) {
  Net net;
  net.p.on_req = Host::Reaction::kNoAnswer;
  const auto active_endpoint = net.a.connect({0x11}, net.p.gid());
  net.run(5ms);
  net.a.on_rep = Host::Reaction::kNoAnswer;
  net.p.accept(net.p.last());
  net.run(2ms);
  net.p.call([&](Manager& m) {
    m.comm_established(Qpn{0x900}, net.world.now());
  });  // the data overtakes the RTU
  net.a.call([&](Manager& m) { (void)m.establish(active_endpoint, {}, net.world.now()); });
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
     0 ms  A --- REQ --> P
     1 ms  P ReqReceived
     5 ms  A <-- REP --- P
     6 ms  A RepReceived
     7 ms  P Established by data
     7 ms  A --- RTU --> P)");
  EXPECT_EQ(net.p.cm.counters().late_rtu, 1u);
}

TEST(Connect, RtuPrivateDataArrives) {
  Net net;
  net.a.on_rep = Host::Reaction::kNoAnswer;
  const auto active_endpoint = net.a.connect({0x11}, net.p.gid());
  net.run(3ms);
  const std::vector<std::byte> data(224, std::byte{0x5a});
  EXPECT_TRUE(net.a.cm.establish(active_endpoint, data, net.world.now()).has_value());
  const auto output = net.a.cm.poll();
  ASSERT_TRUE(output.has_value());
  const auto& send = std::get<mad::SendMad>(*output);
  const auto received = net.p.dispatcher.receive(send.to, send.mad);
  net.p.cm.receive(std::get<mad::Delivered>(received), net.world.now());
  const auto event = net.p.cm.poll();
  ASSERT_TRUE(event.has_value());
  const auto& established = std::get<Established>(std::get<Event>(*event));
  EXPECT_TRUE(std::ranges::equal(established.private_data, data));
}

TEST(Connect, RepeatedReqGetsAnMraWhileTheConsumerIsSlow) {
  Net net;
  net.p.on_req = Host::Reaction::kNoAnswer;
  net.a.connect({0x11}, net.p.gid());
  net.run(10s);
  net.p.accept(net.p.last());
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
     0 ms  A --- REQ --> P
     1 ms  P ReqReceived
    20 ms  A --- REQ --> P
    21 ms  A <-- MRA --- P
   963 ms  A --- REQ --> P
   964 ms  A <-- MRA --- P
  1929 ms  A --- REQ --> P
  1930 ms  A <-- MRA --- P
  2983 ms  A --- REQ --> P
  2984 ms  A <-- MRA --- P
  3969 ms  A --- REQ --> P
  3970 ms  A <-- MRA --- P
  5081 ms  A --- REQ --> P
  5082 ms  A <-- MRA --- P
  6078 ms  A --- REQ --> P
  6079 ms  A <-- MRA --- P
  7112 ms  A --- REQ --> P
  7113 ms  A <-- MRA --- P
  8110 ms  A --- REQ --> P
  8111 ms  A <-- MRA --- P
  9179 ms  A --- REQ --> P
  9180 ms  A <-- MRA --- P
 10000 ms  A <-- REP --- P
 10001 ms  A RepReceived
 10001 ms  A --- RTU --> P
 10002 ms  P Established by RTU)");
}

TEST(Connect, RepeatedRepGetsAnMraWhileTheConsumerIsSlow) {
  Net net;
  net.a.on_rep = Host::Reaction::kNoAnswer;
  const EndpointHandle a = net.a.connect({0x11}, net.p.gid());
  net.run(60s);
  EXPECT_EQ(net.p.outcomes[net.p.last()].failed, 0) << net.text();
  EXPECT_EQ(net.p.cm.view(net.p.last())->state, State::kMraRepReceived);
  net.a.call([&](Manager& m) { EXPECT_TRUE(m.establish(a, {}, net.world.now()).has_value()); });
  net.run(1s);
  EXPECT_EQ(net.p.outcomes[net.p.last()].established, 1);
}

TEST(Connect, ReqWithoutListenerIsRejected) {
  Net net;
  EXPECT_TRUE(net.p.cm.unlisten({.id = kService}).has_value());
  net.a.connect({0x11}, net.p.gid());
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
     0 ms  A --- REQ --> P
     1 ms  A <-- REJ --- P  8
     2 ms  A Rejected 8)");
}

TEST(Connect, LostRejIsSentAgain) {
  Net net;
  net.p.on_req = Host::Reaction::kReject;
  net.p.reject_data.assign(148, std::byte{7});
  net.lose("REJ");
  net.a.connect({0x11}, net.p.gid());
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
     0 ms  A --- REQ --> P
     1 ms  P ReqReceived
     1 ms  A <-- REJ --- P  28   (lost)
    20 ms  A --- REQ --> P
    21 ms  A <-- REJ --- P  28
    22 ms  A Rejected 28)");
  EXPECT_EQ(net.p.outcomes.size(), 1u);
}

TEST(Connect, ActiveConsumerRejectsTheRep) {
  Net net;
  net.a.on_rep = Host::Reaction::kReject;
  net.lose("REJ");
  net.a.connect({0x11}, net.p.gid());
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
     0 ms  A --- REQ --> P
     1 ms  P ReqReceived
     1 ms  A <-- REP --- P
     2 ms  A RepReceived
     2 ms  A --- REJ --> P  28   (lost)
     5 ms  A TimewaitExit
    19 ms  A <-- REP --- P
    20 ms  A --- REJ --> P  28
    21 ms  P Rejected 28
    24 ms  P TimewaitExit)");
}

TEST(Connect, DroppedReqIsReportedAgain) {
  Net net;
  net.p.on_req = Host::Reaction::kDrop;
  net.a.connect({0x11}, net.p.gid());
  net.run(5ms);
  net.p.on_req = Host::Reaction::kProceed;
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
     0 ms  A --- REQ --> P
     1 ms  P ReqReceived
    20 ms  A --- REQ --> P
    21 ms  P ReqReceived
    21 ms  A <-- REP --- P
    22 ms  A RepReceived
    22 ms  A --- RTU --> P
    23 ms  P Established by RTU)");
}

TEST(Connect, TheActiveSideGivesUp) {
  Net net;
  net.lose("REQ", -1);
  ConnectRequest request = net.a.request({0x11}, net.p.gid());
  request.give_up_after = 4s;
  net.a.connect(request, 1);
  net.run(60s);

  EXPECT_EQ(net.text(), R"(
     0 ms  A --- REQ --> P   (lost)
    20 ms  A --- REQ --> P   (lost)
    59 ms  A --- REQ --> P   (lost)
   141 ms  A --- REQ --> P   (lost)
   311 ms  A --- REQ --> P   (lost)
   664 ms  A --- REQ --> P   (lost)
  1117 ms  A --- REQ --> P   (lost)
  1648 ms  A --- REQ --> P   (lost)
  2120 ms  A --- REQ --> P   (lost)
  2620 ms  A --- REQ --> P   (lost)
  3110 ms  A --- REQ --> P   (lost)
  3615 ms  A --- REQ --> P   (lost)
  4000 ms  A --- REJ --> P  4
  4000 ms  A Unreachable: REQ 12 times in 4 s)");
}

// The passive endpoint ends, too.  The REJ with reason 4 has the id and the CA GUID of the active
// side, so P finds its endpoint.
TEST(Connect, PassiveSideLearnsThatTheActiveSideGaveUp) {
  Net net;
  net.p.on_req = Host::Reaction::kNoAnswer;
  net.lose("MRA", -1);
  net.a.connect({0x11}, net.p.gid());
  net.run(29500ms);
  net.clear();
  net.run(5s);

  EXPECT_EQ(net.text(), R"(
 29928 ms  A --- REQ --> P
 29929 ms  A <-- MRA --- P   (lost)
 30000 ms  A --- REJ --> P  4
 30000 ms  A Unreachable: REQ 64 times in 30 s
 30001 ms  P Rejected 4)");
}

TEST(Connect, ThePassiveSideGivesUp) {
  Net net;
  net.lose("RTU", -1);
  net.a.connect({0x11}, net.p.gid());
  net.run(29500ms);
  net.clear();
  net.run(5s);

  EXPECT_EQ(net.text(), R"(
 30001 ms  A <-- REJ --- P  4
 30001 ms  P Unreachable: REP 16 times in 30 s
 30002 ms  A Disconnected: reset
 30004 ms  P TimewaitExit
 30005 ms  A TimewaitExit)");
}

// The consumer of A has destroyed its endpoint, but P has not got the DREQ.  Then A uses the same
// QP number again.
TEST(Connect, AStaleConnectionIsReset) {
  Net net;
  const auto first = net.a.connect({0x11}, net.p.gid());
  net.run(10ms);
  net.lose("DREQ", -1);
  net.a.call([&](Manager& m) { (void)m.destroy(first, net.world.now()); });
  net.run(11s);
  net.lose("DREQ", 0);
  net.clear();
  net.a.connect({0x11}, net.p.gid(), 2);
  net.run(10ms);
  net.a.connect({0x11}, net.p.gid(), 3);
  net.run(1s);

  EXPECT_EQ(net.text(), R"(
 11010 ms  A --- REQ --> P
 11011 ms  A <-- REJ --- P  10
 11011 ms  A <-- DREQ --- P
 11012 ms  A Rejected 10
 11012 ms  A --- DREP --> P
 11013 ms  P Disconnected: reset
 11014 ms  A TimewaitExit
 11016 ms  P TimewaitExit
 11020 ms  A --- REQ --> P
 11021 ms  P ReqReceived
 11021 ms  A <-- REP --- P
 11022 ms  A RepReceived
 11022 ms  A --- RTU --> P
 11023 ms  P Established by RTU)");
}

// A bug or an attack: the REQ names a QP of A that has a connection, but A knows this connection.
TEST(Connect, ConnectionThatThePeerStillHasSurvivesAReqOfItsQp) {
  Net net;
  const auto first = net.a.connect({0x11}, net.p.gid());
  net.run(10ms);
  net.clear();
  net.a.connect({0x11}, net.p.gid(), 2);
  net.run(10s);
  const auto disconnected_at_p = [&] {
    int count = 0;
    for (const auto& [endpoint, outcome] : net.p.outcomes) count += outcome.disconnected;
    return count;
  };
  EXPECT_EQ(net.a.cm.view(first)->state, State::kEstablished);
  EXPECT_EQ(disconnected_at_p(), 0) << net.text();
  net.a.call([&](Manager& m) { (void)m.disconnect(first, {}, net.world.now()); });
  net.run(1s);
  EXPECT_EQ(disconnected_at_p(), 1) << net.text();
  EXPECT_EQ(net.a.outcomes.at(first).disconnected, 1) << net.text();
}

}  // namespace
}  // namespace verbena::cm
