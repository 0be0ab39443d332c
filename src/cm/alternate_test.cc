#include <gtest/gtest.h>

#include <array>

#include "cm/pair_test.h"
#include "cm/peer_test.h"

// Tests alternate paths of a connection: LAP, APR, and the migration.

namespace verbena::cm {
namespace {

using namespace std::chrono_literals;
using wire::cm::Apr;
using wire::cm::AprStatus;
using wire::cm::AttributeId;
using wire::cm::FailoverAccepted;
using wire::cm::Lap;
using wire::cm::Message;
using wire::cm::Mra;
using wire::cm::MraSubject;
using wire::cm::Rep;
using wire::cm::Req;
using wire::cm::Rtu;

class AlternatePathTest : public testing::Test {
 protected:
  AlternatePathTest() : a(net.a.connect({0x11}, net.p.gid())) {
    net.run(1s);
    p = net.p.last();
    net.clear();
  }

  Result<void> offer(Duration give_up_after = 5s) {
    Result<void> offered{};
    net.a.call([&](Manager& m) {
      offered = m.load_alternate_path(a, net.a.alternate_to(net.p.gid2()), {}, give_up_after,
                                      net.world.now());
    });
    return offered;
  }

  Net net;
  EndpointHandle a;
  EndpointHandle p;
};

TEST_F(AlternatePathTest, PathIsOfferedAcceptedAndUsed) {
  ASSERT_TRUE(offer().has_value());
  net.run(1s);
  EXPECT_EQ(net.text(), R"(
  1000 ms  A --- LAP --> P
  1001 ms  P LapReceived
  1001 ms  A <-- APR --- P
  1002 ms  A AprReceived 0)");
  EXPECT_EQ(net.last_to.remote(), net.a.gid());  // not migrated yet

  net.p.call([&](Manager& m) { m.path_migrated(p); });
  net.a.call([&](Manager& m) { m.path_migrated(a); });
  net.a.call([&](Manager& m) { EXPECT_TRUE(m.disconnect(a, {}, net.world.now()).has_value()); });
  EXPECT_EQ(net.last_to, net.a.alternate_to(net.p.gid2()).address);
  net.run(1500us);
  EXPECT_EQ(net.last_to.local(), net.p.gid2());
  EXPECT_EQ(net.last_to.remote(), net.a.gid2());
  net.run(10s);
  EXPECT_TRUE(net.world.is_idle());
}

TEST_F(AlternatePathTest, ALostLapIsRepeated) {
  net.lose("LAP");
  ASSERT_TRUE(offer().has_value());
  net.run(1s);
  EXPECT_EQ(net.p.outcomes[p].laps, 1) << net.text();
  EXPECT_EQ(net.a.outcomes[a].aprs, 1);
  EXPECT_EQ(net.a.cm.counters().of(AttributeId::kLap).repeated, 1u);
}

TEST_F(AlternatePathTest, LostAprIsRepeatedWithoutTheConsumer) {
  net.lose("APR");
  ASSERT_TRUE(offer().has_value());
  net.run(1s);
  EXPECT_EQ(net.p.outcomes[p].laps, 1) << net.text();
  EXPECT_EQ(net.a.outcomes[a].aprs, 1);
  EXPECT_EQ(net.p.cm.counters().of(AttributeId::kApr).repeated, 1u);
  EXPECT_EQ(net.p.cm.counters().of(AttributeId::kLap).duplicate, 1u);
}

TEST_F(AlternatePathTest, RejectedOfferKeepsThePath) {
  net.p.on_lap = Host::Reaction::kReject;
  ASSERT_TRUE(offer().has_value());
  net.run(1s);
  EXPECT_NE(net.text().find("A AprReceived 3"), std::string::npos) << net.text();
  net.a.call([&](Manager& m) { m.path_migrated(a); });
  net.a.call([&](Manager& m) { EXPECT_TRUE(m.disconnect(a, {}, net.world.now()).has_value()); });
  EXPECT_EQ(net.last_to.remote(), net.p.gid());
}

TEST_F(AlternatePathTest, OfferWaitsForASlowConsumer) {
  net.p.on_lap = Host::Reaction::kNoAnswer;
  ASSERT_TRUE(offer(2s).has_value());
  net.run(15s);
  EXPECT_EQ(net.a.outcomes[a].laps_unanswered, 0) << net.text();
  EXPECT_GE(net.p.cm.counters().of(AttributeId::kMra).sent, 1u);
  EXPECT_EQ(net.p.outcomes[p].laps, 1);
  net.p.call([&](Manager& m) { EXPECT_TRUE(m.answer_alternate_path(p, {}).has_value()); });
  net.run(1s);
  EXPECT_EQ(net.a.outcomes[a].aprs, 1);
  net.a.call([&](Manager& m) { EXPECT_TRUE(m.disconnect(a, {}, net.world.now()).has_value()); });
  net.run(10s);
  EXPECT_TRUE(net.world.is_idle());
}

TEST_F(AlternatePathTest, UnansweredOfferKeepsTheConnection) {
  net.lose("LAP", -1);
  ASSERT_TRUE(offer(2s).has_value());
  EXPECT_EQ(offer().error().code, Errc::kBusy);
  net.run(3s);
  EXPECT_EQ(net.a.outcomes[a].laps_unanswered, 1) << net.text();
  EXPECT_EQ(net.a.cm.view(a)->state, State::kEstablished);
  net.lose("LAP", 0);
  ASSERT_TRUE(offer().has_value());
  net.run(1s);
  EXPECT_EQ(net.a.outcomes[a].aprs, 1);
}

// The answer to an offer that was given up does not count for the next offer.
TEST_F(AlternatePathTest, LateAprIsIgnored) {
  net.delay_of = [&](const std::string&, const std::string& name) -> Duration {
    return name == "APR" ? 3s : 1ms;
  };
  net.p.on_lap = Host::Reaction::kReject;
  ASSERT_TRUE(offer(2s).has_value());
  net.run(2500ms);
  ASSERT_EQ(net.a.outcomes[a].laps_unanswered, 1) << net.text();
  net.delay_of = {};
  net.p.on_lap = Host::Reaction::kNoAnswer;
  ASSERT_TRUE(offer(2s).has_value());
  net.run(1s);
  EXPECT_EQ(net.a.outcomes[a].aprs, 0) << net.text();
  EXPECT_GE(net.a.cm.counters().of(AttributeId::kApr).duplicate, 1u);
}

TEST_F(AlternatePathTest, OnlyTheActiveSideOffers) {
  net.p.call([&](Manager& m) {
    const auto offered =
        m.load_alternate_path(p, net.p.alternate_to(net.a.gid2()), {}, 1s, net.world.now());
    EXPECT_EQ(offered.error().code, Errc::kNotSupported);
    EXPECT_EQ(m.answer_alternate_path(p, {}).error().code, Errc::kBadState);
  });
}

TEST_F(AlternatePathTest, ArgumentsAreChecked) {
  const std::array<std::byte, 169> too_much{};
  net.a.call([&](Manager& m) {
    AlternatePath path = net.a.alternate_to(net.p.gid2());
    const auto offer = [&](std::span<const std::byte> data, Duration give_up_after) {
      return m.load_alternate_path(a, path, data, give_up_after, net.world.now()).error().code;
    };
    EXPECT_EQ(offer(too_much, 1s), Errc::kInvalidArgument);
    EXPECT_EQ(offer({}, 0s), Errc::kInvalidArgument);
    path.address.path.flow_label = 0x100000;
    EXPECT_EQ(offer({}, 1s), Errc::kInvalidArgument);
    path = {.local_ack_timeout = 32};
    EXPECT_EQ(offer({}, 1s), Errc::kInvalidArgument);
    EXPECT_EQ(m.answer_alternate_path(a, {.private_data = too_much}).error().code,
              Errc::kInvalidArgument);
    EXPECT_EQ(m.answer_alternate_path({}, {}).error().code, Errc::kBadHandle);
  });
}

TEST_F(AlternatePathTest, DisconnectEndsTheOffer) {
  net.lose("LAP", -1);
  ASSERT_TRUE(offer(20s).has_value());
  net.a.call([&](Manager& m) { EXPECT_TRUE(m.disconnect(a, {}, net.world.now()).has_value()); });
  EXPECT_EQ(offer().error().code, Errc::kBadState);
  net.run(30s);
  EXPECT_EQ(net.a.outcomes[a].laps_unanswered, 0) << net.text();
  EXPECT_EQ(net.a.outcomes[a].disconnected, 1);
  EXPECT_TRUE(net.world.is_idle());
}

// ---- Message by message

class LapTest : public PeerTest {
 protected:
  LapTest() {
    receive(req());
    EXPECT_TRUE(cm.accept(last_request(), {.qpn = {0x500}}, now).has_value());
    our_id = std::get<Rep>(*drain()).local_comm_id;
  }
  Lap lap() const {
    return {.local_comm_id = {0xaaaa},
            .remote_comm_id = our_id,
            .remote_qpn = {0x500},
            .alternate_local_gid = wire::ipv4_gid(0x0b000002),
            .alternate_remote_gid = wire::ipv4_gid(0x0b000001)};
  }
  void establish() { receive(Rtu{.local_comm_id = {0xaaaa}, .remote_comm_id = our_id}); }

  CommId our_id{};
};

AprStatus status(const std::optional<Message>& message) {
  return message ? std::get<Apr>(*message).status : AprStatus::kAccepted;
}

TEST_F(LapTest, LapReplacesALostRtu) {
  EXPECT_FALSE(receive(lap()).has_value());
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(std::get<Established>(events[1]).cause, Established::Cause::kLap);
  EXPECT_EQ(std::get<LapReceived>(events[2]).lap, lap());
  EXPECT_EQ(std::get<LapReceived>(events[2]).cookie, kListenerCookie);
}

TEST_F(LapTest, UnknownIdOrQpnGetsAnErrorStatus) {
  establish();
  Lap bad_lap = lap();
  bad_lap.remote_qpn = {0x501};
  EXPECT_EQ(status(receive(bad_lap)), AprStatus::kInvalidQpn);
  EXPECT_EQ(header.transaction_id, kTid);
  EXPECT_EQ(status(receive(Lap{.local_comm_id = {5}, .remote_comm_id = {6}})),
            AprStatus::kInvalidCommId);
  bad_lap = lap();
  bad_lap.local_comm_id = {0xaaab};
  EXPECT_EQ(status(receive(bad_lap)), AprStatus::kInvalidCommId);
  EXPECT_EQ(events.size(), 2u);  // ReqReceived and Established
}

// A LAP with a wrong QPN affects neither the LAP that the consumer is answering, nor a REP that
// waits for its RTU.
TEST_F(LapTest, WrongQpnChangesNothing) {
  Lap bad_lap = lap();
  bad_lap.remote_qpn = {0x501};
  EXPECT_EQ(status(receive(bad_lap)), AprStatus::kInvalidQpn);
  EXPECT_EQ(events.size(), 1u);  // not established
  establish();
  receive(lap());
  EXPECT_EQ(status(receive(bad_lap)), AprStatus::kInvalidQpn);
  EXPECT_TRUE(cm.answer_alternate_path(last_request(), {}).has_value());
}

// Linux uses one transaction id for all LAPs of a connection, so only the path shows that this LAP
// is not a repeat.
TEST_F(LapTest, AnotherPathIsANewRequest) {
  establish();
  receive(lap());
  ASSERT_TRUE(cm.answer_alternate_path(last_request(), {}).has_value());
  drain();
  Lap other_lap = lap();
  other_lap.alternate_local_gid = wire::ipv4_gid(0x0b000003);
  EXPECT_FALSE(receive(other_lap).has_value());
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(std::get<LapReceived>(events.back()).lap, other_lap);
}

// The QP migrates to the first path while the consumer still decides about the second one.
TEST_F(LapTest, MigrationKeepsThePathThatWaitsForAnAnswer) {
  establish();
  receive(lap());
  ASSERT_TRUE(cm.answer_alternate_path(last_request(), {}).has_value());
  drain();
  Lap second_lap = lap();
  second_lap.alternate_local_gid = wire::ipv4_gid(0x0b000003);
  receive(second_lap);
  cm.path_migrated(last_request());
  // PeerTest checks the address of each message.
  address = {
      .path = {.source = wire::ipv4_gid(0x0b000001), .destination = wire::ipv4_gid(0x0b000002)}};
  ASSERT_TRUE(cm.answer_alternate_path(last_request(), {}).has_value());
  EXPECT_TRUE(drain().has_value());
  cm.path_migrated(last_request());
  address.path.destination = wire::ipv4_gid(0x0b000003);
  ASSERT_TRUE(cm.disconnect(last_request(), {}, now).has_value());
  EXPECT_TRUE(drain().has_value());
}

TEST_F(LapTest, RepeatedLapGetsAnMraWhileTheConsumerIsSlow) {
  establish();
  EXPECT_FALSE(receive(lap()).has_value());
  const auto mra = std::get<Mra>(*receive(lap()));
  EXPECT_EQ(mra.message_mraed, MraSubject::kLap);
  EXPECT_EQ(mra.remote_comm_id, CommId{0xaaaa});
  EXPECT_EQ(std::get<Mra>(*receive(lap())), mra);
  ASSERT_TRUE(
      cm.answer_alternate_path(last_request(), {.status = AprStatus::kIsCurrentPath}).has_value());
  EXPECT_EQ(status(drain()), AprStatus::kIsCurrentPath);
  EXPECT_EQ(status(receive(lap())), AprStatus::kIsCurrentPath);  // a duplicate
  EXPECT_EQ(cm.answer_alternate_path(last_request(), {}).error().code, Errc::kBadState);
}

TEST_F(LapTest, LapIsIgnoredAfterDisconnect) {
  establish();
  ASSERT_TRUE(cm.disconnect(last_request(), {}, now).has_value());
  drain();
  EXPECT_FALSE(receive(lap()).has_value());
  EXPECT_EQ(cm.counters().of(Ignored::kWrongState), 1u);
  // This APR answers no LAP.
  EXPECT_FALSE(receive(Apr{.local_comm_id = {0xaaaa}, .remote_comm_id = our_id}).has_value());
  EXPECT_EQ(cm.counters().of(Ignored::kWrongState), 2u);
}

TEST_F(LapTest, AprCarriesInfoAndPrivateData) {
  establish();
  receive(lap());
  const std::array info{std::byte{7}};
  const std::array data{std::byte{9}};
  ASSERT_TRUE(cm.answer_alternate_path(last_request(), {.status = AprStatus::kGidRejected,
                                                        .additional_info = info,
                                                        .private_data = data})
                  .has_value());
  const Apr apr = std::get<Apr>(*drain());
  EXPECT_EQ(apr.additional_info_length_bytes, 1);
  EXPECT_EQ(apr.additional_info[0], std::byte{7});
  EXPECT_EQ(apr.private_data[0], std::byte{9});
}

// ---- The alternate path that the REQ names

class ReqWithTwoPaths : public PeerTest {
 protected:
  Req two_paths() const {
    Req made = req();
    made.alternate_path = {.local_gid = wire::ipv4_gid(0x0b000002),
                           .remote_gid = wire::ipv4_gid(0x0b000001),
                           .hop_limit = 9};
    return made;
  }
  FailoverAccepted answer(bool accepted) {
    receive(two_paths());
    EXPECT_TRUE(
        cm.accept(last_request(), {.qpn = {0x500}, .alternate_path_accepted = accepted}, now)
            .has_value());
    return std::get<Rep>(*drain()).failover_accepted;
  }
};

TEST_F(ReqWithTwoPaths, ConsumerMayDeclineTheAlternatePath) {
  EXPECT_EQ(answer(false), FailoverAccepted::kNotSupported);
}

TEST_F(ReqWithTwoPaths, AcceptedPathIsUsedAfterTheMigration) {
  EXPECT_EQ(answer(true), FailoverAccepted::kAccepted);
  cm.path_migrated(last_request());
  address = {.path = {.source = wire::ipv4_gid(0x0b000001),
                      .destination = wire::ipv4_gid(0x0b000002),
                      .hop_limit = 9}};
  ASSERT_TRUE(cm.disconnect(last_request(), {}, now).has_value());
  EXPECT_TRUE(drain().has_value());  // PeerTest has checked the address of the message
}

TEST(TwoPaths, RejectedAlternatePathIsNotUsed) {
  Net net;
  ConnectRequest request = net.a.request({0x11}, net.p.gid());
  request.alternate_path = net.a.alternate_to(net.p.gid2());
  const EndpointHandle a = net.a.connect(request, 1);
  net.run(1s);
  // The consumer of P accepts only the primary path, so there is nothing to migrate to.
  net.a.call([&](Manager& m) { m.path_migrated(a); });
  net.a.call([&](Manager& m) { EXPECT_TRUE(m.disconnect(a, {}, net.world.now()).has_value()); });
  EXPECT_EQ(net.last_to.remote(), net.p.gid());
}

}  // namespace
}  // namespace verbena::cm
