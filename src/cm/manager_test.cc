#include "cm/manager.h"

#include <gtest/gtest.h>

#include <set>

#include "cm/peer_test.h"
#include "cm/reject_info.h"

// Tests invalid messages, limits, handles, and the contents of messages.

namespace verbena::cm {
namespace {

using namespace std::chrono_literals;
using wire::cm::AttributeId;
using wire::cm::Drep;
using wire::cm::Dreq;
using wire::cm::Message;
using wire::cm::Rej;
using wire::cm::RejReason;
using wire::cm::RejSubject;
using wire::cm::Rep;
using wire::cm::Req;
using wire::cm::Rtu;

using ManagerTest = PeerTest;

RejReason reason(const std::optional<Message>& message) {
  return message ? std::get<Rej>(*message).reason : RejReason{};
}

TEST_F(ManagerTest, RejectsUnsupportedRequests) {
  Req bad = req();
  bad.transport_service = wire::cm::TransportService::kUc;
  EXPECT_EQ(reason(receive(bad)), RejReason::kInvalidTransportType);
  bad = req();
  bad.path_mtu = 0;
  EXPECT_EQ(reason(receive(bad)), RejReason::kInvalidPathMtu);
  bad.path_mtu = 6;
  EXPECT_EQ(reason(receive(bad)), RejReason::kInvalidPathMtu);
  bad = req();
  bad.pkey = {0x8001};
  EXPECT_EQ(reason(receive(bad)), RejReason::kUnsupportedRequest);
  bad = req();
  bad.primary_path.local_gid = wire::ipv4_gid(0x0a000003);
  EXPECT_EQ(reason(receive(bad)), RejReason::kUnsupportedRequest);
  bad = req();
  bad.service_id.value += 1;
  EXPECT_EQ(receive(bad), Message(Rej{.remote_comm_id = {0xaaaa},
                                      .message_rejected = RejSubject::kReq,
                                      .reason = RejReason::kInvalidServiceId}));
  EXPECT_EQ(header.transaction_id, kTid);  // the id of the request
  EXPECT_EQ(cm.endpoints(), 0u);
  EXPECT_EQ(cm.counters().rejects_sent.at(8), 1u);
}

TEST_F(ManagerTest, RejForAForeignGidNamesOurGid) {
  Req bad = req();
  bad.primary_path.remote_gid = wire::ipv4_gid(0x0a000003);
  const auto answer = receive(bad);
  EXPECT_EQ(reason(answer), RejReason::kPrimaryGidRejected);
  const auto info = wire::decode<GidInfo>(wire::cm::reject_info(std::get<Rej>(*answer)));
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->gid, address.local());
  EXPECT_EQ(cm.endpoints(), 0u);
}

TEST_F(ManagerTest, AcceptsLimitedPartitionMembers) {
  Req limited = req();
  limited.pkey = {0x7fff};
  EXPECT_FALSE(receive(limited).has_value());
  EXPECT_EQ(cm.endpoints(), 1u);
}

TEST_F(ManagerTest, PartitionsAreThoseOfThePortOfTheRequest) {
  constexpr PortId kOther{1, 2};
  cm.set_pkeys(kOther, {{0x8001}, {0x0002}});
  std::uint32_t number = 0;
  const auto accepts = [&](Pkey pkey) {
    ++number;
    Req request = req(0xaaaa + number, 0x77 + number);
    request.pkey = pkey;
    const std::size_t before = cm.endpoints();
    (void)receive(request);
    return cm.endpoints() == before + 1;
  };
  EXPECT_FALSE(accepts({0x8001}));
  address.path.port = kOther;
  EXPECT_TRUE(accepts({0x8001}));
  EXPECT_TRUE(accepts({0x0001}));
  EXPECT_TRUE(accepts({0x8002}));
  EXPECT_FALSE(accepts({0x0002})) << "both are limited members";
  EXPECT_FALSE(accepts(kDefaultPkey));
  cm.set_pkeys(kOther, {kDefaultPkey});
  EXPECT_FALSE(accepts({0x8001}));
  EXPECT_EQ(cm.counters().rejects_sent.at(std::to_underlying(RejReason::kUnsupportedRequest)), 4u);
}

TEST_F(ManagerTest, AnswersAnotherClassVersionWithReason31) {
  EXPECT_EQ(reason(receive(req(), 1)), RejReason::kUnsupportedClassVersion);
  EXPECT_EQ(std::get<Rej>(*receive(Rep{.local_comm_id = {5}, .remote_comm_id = {6}}, 3)),
            (Rej{.local_comm_id = {6},
                 .remote_comm_id = {5},
                 .message_rejected = RejSubject::kRep,
                 .reason = RejReason::kUnsupportedClassVersion}));
  EXPECT_FALSE(receive(Rej{.remote_comm_id = {6}}, 3).has_value());  // a REJ is not a request
  EXPECT_EQ(cm.counters().of(Ignored::kOtherVersion), 1u);
  EXPECT_EQ(cm.counters().of(Ignored::kMalformed), 0u);
}

TEST_F(ManagerTest, AnswersMessagesWithoutAnEndpoint) {
  EXPECT_EQ(receive(Dreq{.local_comm_id = {5}, .remote_comm_id = {6}}),
            Message(Drep{.local_comm_id = {6}, .remote_comm_id = {5}}));
  EXPECT_EQ(reason(receive(Rep{.local_comm_id = {5}, .remote_comm_id = {6}})),
            RejReason::kInvalidCommId);
  EXPECT_FALSE(receive(Rtu{.local_comm_id = {5}, .remote_comm_id = {6}}).has_value());
  EXPECT_FALSE(receive(Drep{.local_comm_id = {5}, .remote_comm_id = {6}}).has_value());
  EXPECT_FALSE(receive(Rej{.local_comm_id = {5}, .remote_comm_id = {6}}).has_value());
  EXPECT_FALSE(receive(wire::cm::Mra{}).has_value());
  EXPECT_EQ(std::get<wire::cm::Apr>(*receive(wire::cm::Lap{})).status,
            wire::cm::AprStatus::kInvalidCommId);
  EXPECT_FALSE(receive(wire::cm::Apr{}).has_value());
  EXPECT_TRUE(events.empty());
}

TEST(TimeHistogram, CountsByPowersOfFour) {
  TimeHistogram times;
  using std::chrono::microseconds;
  for (const std::int64_t us : {0, 64, 65, 256, 257}) times.add(microseconds(us));
  times.add(std::chrono::hours(1));
  EXPECT_EQ(times.of(0), 2u);
  EXPECT_EQ(times.of(1), 2u);
  EXPECT_EQ(times.of(2), 1u);
  EXPECT_EQ(times.of(TimeHistogram::kBuckets - 1), 1u);
}

TEST_F(ManagerTest, CountsTheTimeInEachState) {
  const auto count = [&](State state, std::size_t bucket) {
    return cm.counters().times[static_cast<std::size_t>(state)].of(bucket);
  };
  receive(req());
  now += std::chrono::milliseconds(1);
  ASSERT_TRUE(cm.accept(last_request(), {.qpn = {0x500}}, now).has_value());
  const Rep rep = std::get<Rep>(*drain());
  EXPECT_EQ(count(State::kReqReceived, 2), 1u);  // up to 1024 us
  now += std::chrono::microseconds(100);
  receive(Rtu{.local_comm_id = {0xaaaa}, .remote_comm_id = rep.local_comm_id});
  EXPECT_EQ(count(State::kRepSent, 1), 1u);
}

TEST(ManagerTrace, ReportsEachStateChange) {
  Manager traced({.ca_guid = {7}, .trace = true}, Random(1));
  const Time begun{std::chrono::seconds(1)};
  const auto active = traced.connect({.qpn = {0x500}, .path_mtu = 3}, 1, begun);
  ASSERT_TRUE(active.has_value());
  ASSERT_TRUE(traced.destroy(*active, begun + std::chrono::milliseconds(3)).has_value());
  std::vector<StateChanged> changes;
  while (auto output = traced.poll()) {
    const auto* event = std::get_if<Event>(&*output);
    if (event != nullptr) changes.push_back(std::get<StateChanged>(*event));
  }
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[0].from, State::kClosed);
  EXPECT_EQ(changes[0].to, State::kReqSent);
  EXPECT_EQ(changes[1].from, State::kReqSent);
  EXPECT_EQ(changes[1].to, State::kClosed);
  EXPECT_EQ(changes[1].after, Duration(std::chrono::milliseconds(3)));
  EXPECT_EQ(changes[1].local_qpn, Qpn{0x500});
}

TEST_F(ManagerTest, IgnoresIdsAndQpnsOfOtherPeers) {
  receive(req());
  ASSERT_TRUE(cm.accept(last_request(), {.qpn = {0x500}}, now).has_value());
  const Rep rep = std::get<Rep>(*drain());
  receive(Rtu{.local_comm_id = {0xaaab}, .remote_comm_id = rep.local_comm_id});
  EXPECT_EQ(cm.counters().of(Ignored::kWrongRemoteId), 1u);
  receive(Rtu{.local_comm_id = {0xaaaa}, .remote_comm_id = rep.local_comm_id});
  EXPECT_TRUE(std::holds_alternative<Established>(events.back()));
  const Dreq dreq{
      .local_comm_id = {0xaaaa}, .remote_comm_id = rep.local_comm_id, .remote_qpn = {0x501}};
  EXPECT_FALSE(receive(dreq).has_value());
  EXPECT_EQ(cm.counters().of(Ignored::kWrongQpn), 1u);
  EXPECT_TRUE(std::holds_alternative<Established>(events.back()));
}

// manager_fuzz found this case.
TEST_F(ManagerTest, ARepOrRtuForTheWrongSideIsIgnored) {
  receive(req());
  ASSERT_TRUE(cm.accept(last_request(), {.qpn = {0x500}}, now).has_value());
  const CommId ours = std::get<Rep>(*drain()).local_comm_id;
  cm.comm_established(last_request(), now);
  EXPECT_FALSE(receive(Rep{.local_comm_id = {0xaaaa}, .remote_comm_id = ours}).has_value());
  EXPECT_EQ(cm.counters().of(Ignored::kWrongState), 1u);
  connect();
  const CommId active = std::get<Req>(*drain()).local_comm_id;
  EXPECT_FALSE(receive(Rtu{.local_comm_id = {1}, .remote_comm_id = active}).has_value());
  EXPECT_EQ(cm.counters().of(Ignored::kWrongState), 2u);
}

// The peer's host was restarted, and uses the same QP numbers again.
TEST_F(ManagerTest, RepOfAConnectedQpEndsItsOldConnection) {
  const EndpointHandle old = connect();
  const CommId first = std::get<Req>(*drain()).local_comm_id;
  receive(Rep{.local_comm_id = {1},
              .remote_comm_id = first,
              .local_qpn = {0x77},
              .local_ca_guid = kPeerGuid});
  ASSERT_TRUE(cm.establish(old, {}, now).has_value());
  drain();

  const EndpointHandle fresh = connect();
  const CommId second = std::get<Req>(*drain()).local_comm_id;
  Rep rep{.local_comm_id = {2},
          .remote_comm_id = second,
          .local_qpn = {0x77},
          .local_ca_guid = kPeerGuid};
  const auto last = receive(rep);
  ASSERT_TRUE(last && std::holds_alternative<Dreq>(*last));
  EXPECT_EQ(std::get<Dreq>(*last).local_comm_id, first);
  EXPECT_EQ(cm.counters().rejects_sent.at(10), 1u);
  EXPECT_EQ(std::get<Disconnected>(events.back()).cause, Disconnected::Cause::kReset);

  EXPECT_EQ(std::get<Rejected>(events.end()[-2]).endpoint, fresh);
  EXPECT_EQ(std::get<Rejected>(events.end()[-2]).rej.reason, RejReason::kStaleConnection);

  // Connect with another QP of ours, since the old one still waits for DREP.
  ASSERT_TRUE(cm.connect({.address = address, .service_id = kService, .qpn = {0x12}, .path_mtu = 3},
                         5, now));
  rep.remote_comm_id = std::get<Req>(*drain()).local_comm_id;
  receive(rep);
  EXPECT_TRUE(std::holds_alternative<RepReceived>(events.back()));
}

class OtherAddressTest : public ManagerTest {
 protected:
  OtherAddressTest() { peer_moves = true; }
  // Connects with the peer's QP 0x77, whose REQ may name an alternate path.
  EndpointHandle connected(const wire::cm::Path& other) {
    Req request = req();
    request.alternate_path = other;
    receive(request);
    const EndpointHandle endpoint = last_request();
    EXPECT_TRUE(cm.accept(endpoint, {.qpn = {0x500}, .alternate_path_accepted = true}, now));
    const CommId ours = std::get<Rep>(*drain()).local_comm_id;
    receive(Rtu{.local_comm_id = {0xaaaa}, .remote_comm_id = ours});
    return endpoint;
  }
  // Returns true if the connection ends when a REQ with the same QP and CA GUID arrives from this
  // address.
  bool ends_by_req_from(EndpointHandle endpoint, const Gid& remote) {
    address.path.destination = remote;
    receive(req(++next_id));  // its primary path begins at `remote` as well
    return cm.view(endpoint)->state != State::kEstablished;
  }

  std::uint32_t next_id = 0xbbbb;
  const Gid primary = address.remote();
  const Gid alternate = wire::ipv4_gid(0x0a000012);
  const Gid elsewhere = wire::ipv4_gid(0x0a000003);
  const wire::cm::Path other_path{.local_gid = alternate, .remote_gid = address.local()};
};

TEST_F(OtherAddressTest, ReqFromAnotherHostDoesNotEndAConnection) {
  const EndpointHandle endpoint = connected({});
  EXPECT_FALSE(ends_by_req_from(endpoint, elsewhere));
  EXPECT_FALSE(ends_by_req_from(endpoint, alternate));
  EXPECT_EQ(cm.counters().rejects_sent.count(10), 0u);
  EXPECT_TRUE(ends_by_req_from(endpoint, primary));
  EXPECT_EQ(cm.counters().rejects_sent.at(10), 1u);
}

TEST_F(OtherAddressTest, ReqFromTheAlternatePathEndsAConnection) {
  EXPECT_TRUE(ends_by_req_from(connected(other_path), alternate));
}

TEST_F(OtherAddressTest, BothPathsBelongToThePeerAfterMigration) {
  const EndpointHandle endpoint = connected(other_path);
  cm.path_migrated(endpoint);
  EXPECT_FALSE(ends_by_req_from(endpoint, elsewhere));
  EXPECT_TRUE(ends_by_req_from(endpoint, primary));
}

TEST_F(ManagerTest, AnAnswerRepeatsTheTransactionId) {
  receive(req());
  ASSERT_TRUE(
      cm.accept(last_request(), {.qpn = {0x500}, .private_data = {std::byte{1}}}, now).has_value());
  const Rep rep = std::get<Rep>(*drain());
  EXPECT_EQ(header.transaction_id, kTid);
  EXPECT_EQ(rep.local_ca_guid, Guid{0x5054});
  EXPECT_EQ(rep.private_data[0], std::byte{1});
  ASSERT_TRUE(cm.disconnect(last_request(), {}, now).has_value());
  EXPECT_EQ(std::get<Dreq>(*drain()).remote_qpn, Qpn{0x77});
  EXPECT_EQ(header.transaction_id, kTid);
}

TEST_F(ManagerTest, LimitedRepeatsLastUntilTheTimeout) {
  Req request = req();
  request.max_cm_retries = 12;
  receive(request);
  ASSERT_TRUE(cm.accept(last_request(), {.qpn = {0x500}}, now).has_value());
  drain();
  std::vector<Time> repeats;
  while (cm.deadline() < Time(30s)) {
    cm.on_timer(now = cm.deadline());
    if (drain()) repeats.push_back(now);
  }
  ASSERT_EQ(repeats.size(), 12u);
  EXPECT_GT(repeats.back(), Time(25s));
}

// Even 15 retries are a limit: a REQ from a forged address must not cause more messages than it
// allows.
TEST_F(ManagerTest, RepIsRepeatedNoMoreThanTheReqAllows) {
  Req request = req();
  request.max_cm_retries = 15;
  receive(request);
  ASSERT_TRUE(cm.accept(last_request(), {.qpn = {0x500}}, now).has_value());
  ASSERT_TRUE(drain().has_value());
  int repeats = 0;
  while (cm.deadline() < Time(120s)) {
    cm.on_timer(now = cm.deadline());
    while (const auto message = drain()) repeats += std::holds_alternative<Rep>(*message);
  }
  EXPECT_EQ(repeats, 15);
}

// All repeats of the REP that the peer allows may get lost.  A repeated REQ shows that they did.
TEST_F(ManagerTest, RepeatedReqAllowsTheRepeatsOfTheRepAgain) {
  constexpr Time kEnd(30s);  // the timeout of the REP
  const auto repeats_until = [this](Time end) {
    int repeats = 0;
    for (; cm.deadline() < end; repeats += drain().has_value()) cm.on_timer(now = cm.deadline());
    return repeats;
  };
  Req request = req();
  request.max_cm_retries = 3;
  receive(request);
  ASSERT_TRUE(cm.accept(last_request(), {.qpn = {0x500}}, now).has_value());
  drain();
  EXPECT_EQ(repeats_until(kEnd - 10s), 3);

  now = kEnd - 10s;
  EXPECT_TRUE(std::holds_alternative<Rep>(*receive(request)));
  EXPECT_EQ(repeats_until(kEnd), 3);
  EXPECT_EQ(cm.deadline(), kEnd);  // repeated REQs do not extend the timeout
}

// The MAD's attribute modifier carries the options, as on Linux.
TEST_F(ManagerTest, ReqAndRepCarryVendorOptions) {
  constexpr Ece kOurs{.vendor_id = 0x123456, .options = 0x89abcdef};
  constexpr Ece kTheirs{.vendor_id = 0x654321, .options = 7};
  Req request = req();
  request.vendor_id = kTheirs.vendor_id;
  receive(request, 2, kTheirs.options);
  EXPECT_EQ(std::get<ReqReceived>(events.back()).ece, kTheirs);
  ASSERT_TRUE(cm.accept(last_request(), {.qpn = {0x500}, .ece = kOurs}, now).has_value());
  EXPECT_EQ(std::get<Rep>(*drain()).vendor_id(), kOurs.vendor_id);
  EXPECT_EQ(header.attribute_modifier, kOurs.options);

  ASSERT_TRUE(cm.connect(
      {.address = address, .service_id = kService, .qpn = {0x11}, .path_mtu = 3, .ece = kOurs}, 5,
      now));
  const Req sent = std::get<Req>(*drain());
  EXPECT_EQ(sent.vendor_id, kOurs.vendor_id);
  EXPECT_EQ(header.attribute_modifier, kOurs.options);
  Rep rep{.local_comm_id = {9}, .remote_comm_id = sent.local_comm_id};
  rep.set_vendor_id(kTheirs.vendor_id);
  receive(rep, 2, kTheirs.options);
  EXPECT_EQ(std::get<RepReceived>(events.back()).ece, kTheirs);

  const Ece too_long{.vendor_id = 0x1000000};
  EXPECT_EQ(cm.connect({.address = address, .path_mtu = 3, .ece = too_long}, 5, now).error().code,
            Errc::kInvalidArgument);
}

TEST_F(ManagerTest, ListenerWithAMaskGetsMatchingRequests) {
  ASSERT_TRUE(cm.listen({.id = {0xf00}, .mask = {~std::uint64_t{0xff}}}, 77));
  Req request = req();
  request.service_id = {0xf42};
  receive(request);
  EXPECT_EQ(std::get<ReqReceived>(events.back()).cookie, 77u);
  ASSERT_TRUE(cm.unlisten({.id = {0xf00}, .mask = {~std::uint64_t{0xff}}}));
  request = req(0xbbbb, 0x78);
  request.service_id = {0xf42};
  EXPECT_EQ(std::get<Rej>(*receive(request)).reason, RejReason::kInvalidServiceId);
}

TEST_F(ManagerTest, ReqHasTheValuesThatLinuxExpects) {
  connect();
  const Req sent = std::get<Req>(*drain());
  EXPECT_EQ(sent.local_ca_guid, Guid{0x5054});
  EXPECT_EQ(sent.pkey, Pkey{0xffff});
  EXPECT_EQ(sent.primary_path.local_lid, Lid{0xffff});
  EXPECT_EQ(sent.primary_path.remote_lid, Lid{0xffff});
  EXPECT_EQ(sent.primary_path.local_gid, address.local());
  EXPECT_EQ(sent.primary_path.remote_gid, address.remote());
  EXPECT_EQ(sent.primary_path.hop_limit, 64);
  EXPECT_EQ(sent.primary_path.local_ack_timeout, 15);
  EXPECT_EQ(sent.alternate_path, wire::cm::Path{});
  EXPECT_EQ(sent.max_cm_retries, 15);
  EXPECT_EQ(sent.local_cm_response_timeout, 18);
  EXPECT_EQ(sent.remote_cm_response_timeout, 20);
}

// The peer gave up before our REP, so its REJ names no id of ours, only its own id and CA GUID.
TEST_F(ManagerTest, RejTimeoutIsMatchedByCaGuid) {
  receive(req());
  const auto rej = [](Guid guid, std::uint32_t id) {
    Rej made{.local_comm_id = {id}, .reject_info_length_bytes = 8, .reason = RejReason::kTimeout};
    wire::encode_to(made.additional_reject_info, CaGuidInfo{guid});
    return made;
  };
  receive(rej({0xbad}, 0xaaaa));
  receive(rej(kPeerGuid, 0xaaab));
  EXPECT_TRUE(std::holds_alternative<ReqReceived>(events.back()));
  const auto endpoint = last_request();
  receive(rej(kPeerGuid, 0xaaaa));
  ASSERT_TRUE(std::holds_alternative<Rejected>(events.back()));
  EXPECT_EQ(std::get<Rejected>(events.back()).rej.reason, RejReason::kTimeout);
  EXPECT_EQ(cm.accept(endpoint, {.qpn = {1}}, now).error().code, Errc::kBadState);
}

// Both sides know both ids when the connection is established, so a REJ without ours must not end
// it.
TEST_F(ManagerTest, RejTimeoutWithoutIdsDoesNotEndAConnection) {
  receive(req());
  ASSERT_TRUE(cm.accept(last_request(), {.qpn = {0x500}}, now).has_value());
  drain();
  cm.comm_established(last_request(), now);
  drain();
  Rej rej{.local_comm_id = {0xaaaa}, .reject_info_length_bytes = 8, .reason = RejReason::kTimeout};
  wire::encode_to(rej.additional_reject_info, CaGuidInfo{kPeerGuid});
  receive(rej);
  EXPECT_TRUE(std::holds_alternative<Established>(events.back()));
}

TEST_F(ManagerTest, AnMraKeepsTheActiveSideWaiting) {
  connect();
  const Req sent = std::get<Req>(*drain());
  receive(wire::cm::Mra{.local_comm_id = {9},
                        .remote_comm_id = sent.local_comm_id,
                        .service_timeout = 24});  // the value of Linux: 68.7 s
  while (cm.deadline() < Time(60s)) {
    now = cm.deadline();
    cm.on_timer(now);
  }
  drain();
  EXPECT_TRUE(events.empty());
  receive(Rep{.local_comm_id = {9}, .remote_comm_id = sent.local_comm_id});
  EXPECT_TRUE(std::holds_alternative<RepReceived>(events.back()));
  EXPECT_EQ(cm.deadline(), kNever);
}

TEST_F(ManagerTest, GivesUpOnEndlessMras) {
  connect();
  const Req sent = std::get<Req>(*drain());
  while (events.empty() && now < Time(std::chrono::hours(1))) {
    receive(wire::cm::Mra{.remote_comm_id = sent.local_comm_id, .service_timeout = 31});
    now = cm.deadline();
    cm.on_timer(now);
    drain();
  }
  EXPECT_TRUE(std::holds_alternative<Unreachable>(events.back()));
  EXPECT_LE(now, Time(Retry::kExtensionMax));
}

TEST_F(ManagerTest, TimewaitFollowsThePathAndHasALimit) {
  const auto timewait = [&](std::uint32_t id, std::uint8_t ack_timeout, Guid guid) {
    Req request = req(id, id);
    request.local_ca_guid = guid;
    request.primary_path.local_ack_timeout = ack_timeout;
    receive(request);
    const auto endpoint = last_request();
    EXPECT_TRUE(cm.accept(endpoint, {.qpn = {id}, .target_ack_delay = 15}, now).has_value());
    const Rep rep = std::get<Rep>(*drain());
    receive(Dreq{.local_comm_id = {id}, .remote_comm_id = rep.local_comm_id, .remote_qpn = {id}});
    const Duration left = cm.deadline() - now;
    now = cm.deadline();
    cm.on_timer(now);
    drain();
    EXPECT_TRUE(std::holds_alternative<TimewaitExit>(events.back()));
    return left;
  };
  EXPECT_EQ(timewait(1, 19, kPeerGuid), 2 * timeout_of_code(18) + timeout_of_code(15));
  EXPECT_EQ(timewait(2, 31, kPeerGuid), Endpoint::kTimewaitMax);
  EXPECT_EQ(timewait(3, 0, kPeerGuid), 2 * timeout_of_code(0) + timeout_of_code(15));
  EXPECT_EQ(timewait(4, 19, Guid{0x5054}), 2 * timeout_of_code(8));  // the peer is on this host
}

TEST_F(ManagerTest, CallsInTheWrongStateChangeNothing) {
  const auto active = connect();
  drain();
  EXPECT_EQ(cm.accept(active, {.qpn = {1}}, now).error().code, Errc::kBadState);
  EXPECT_EQ(cm.reject(active, {}, now).error().code, Errc::kBadState);
  EXPECT_EQ(cm.establish(active, {}, now).error().code, Errc::kBadState);
  EXPECT_EQ(cm.disconnect(active, {}, now).error().code, Errc::kBadState);
  EXPECT_EQ(cm.drop(active).error().code, Errc::kBadState);
  receive(req());
  const auto passive = last_request();
  EXPECT_EQ(cm.establish(passive, {}, now).error().code, Errc::kBadState);
  EXPECT_EQ(cm.disconnect(passive, {}, now).error().code, Errc::kBadState);
  EXPECT_FALSE(drain().has_value());
  EXPECT_EQ(cm.view(active)->state, State::kReqSent);
  EXPECT_EQ(cm.view(passive)->state, State::kReqReceived);
}

TEST_F(ManagerTest, ArgumentsAreChecked) {
  receive(req());
  const auto passive = last_request();
  const std::vector<std::byte> big(1000);
  const auto bytes = [&](std::size_t n) { return std::span(big).first(n); };
  EXPECT_EQ(cm.reject(passive, {.private_data = bytes(149)}, now).error().code,
            Errc::kInvalidArgument);
  EXPECT_EQ(cm.reject(passive, {.additional_info = bytes(73)}, now).error().code,
            Errc::kInvalidArgument);
  EXPECT_EQ(cm.establish(passive, bytes(225), now).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(cm.disconnect(passive, bytes(221), now).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(cm.accept(passive, {.qpn = {0x1000000}}, now).error().code, Errc::kInvalidArgument);
  ConnectRequest request{.qpn = {1}, .path_mtu = 0};
  EXPECT_EQ(cm.connect(request, 0, now).error().code, Errc::kInvalidArgument);
  request = {.qpn = {1}, .path_mtu = 3, .packet_life = 32};
  EXPECT_EQ(cm.connect(request, 0, now).error().code, Errc::kInvalidArgument);
  EXPECT_TRUE(cm.reject(passive, {.additional_info = bytes(72), .private_data = bytes(148)}, now)
                  .has_value());
}

TEST_F(ManagerTest, ForgedAndStaleHandlesAreErrors) {
  const auto active = connect();
  ASSERT_TRUE(cm.destroy(active, now).has_value());
  for (const std::uint64_t value :
       {std::uint64_t{0}, std::uint64_t{1}, active.value, active.value + 1, ~std::uint64_t{0}}) {
    const EndpointHandle forged{value};
    EXPECT_EQ(cm.accept(forged, {}, now).error().code, Errc::kBadHandle);
    EXPECT_EQ(cm.reject(forged, {}, now).error().code, Errc::kBadHandle);
    EXPECT_EQ(cm.establish(forged, {}, now).error().code, Errc::kBadHandle);
    EXPECT_EQ(cm.disconnect(forged, {}, now).error().code, Errc::kBadHandle);
    EXPECT_EQ(cm.drop(forged).error().code, Errc::kBadHandle);
    EXPECT_EQ(cm.destroy(forged, now).error().code, Errc::kBadHandle);
    EXPECT_EQ(cm.set_cookie(forged, 1).error().code, Errc::kBadHandle);
    EXPECT_FALSE(cm.view(forged).has_value());
    cm.comm_established(forged, now);
  }
}

TEST_F(ManagerTest, ListenersAreUnique) {
  EXPECT_EQ(cm.listen({.id = kService}, 2).error().code, Errc::kAddressInUse);
  EXPECT_TRUE(cm.unlisten({.id = kService}).has_value());
  EXPECT_EQ(cm.unlisten({.id = kService}).error().code, Errc::kInvalidArgument);
  EXPECT_TRUE(cm.listen({.id = kService}, 2).has_value());
}

class SmallManagerTest : public ManagerTest {
 protected:
  SmallManagerTest() : ManagerTest({.ca_guid = {1}, .endpoints_max = 2, .listeners_max = 1}) {}
};

TEST_F(SmallManagerTest, RequestsOverTheLimitAreDropped) {
  EXPECT_EQ(cm.listen({.id = {1}}, 0).error().code, Errc::kNoResources);
  const auto first = connect();
  receive(req(1, 1));
  const auto second = last_request();
  EXPECT_FALSE(receive(req(2, 2)).has_value());
  EXPECT_EQ(cm.counters().of(Ignored::kNoRoom), 1u);
  const ConnectRequest third{.address = address, .qpn = {1}, .path_mtu = 3};
  EXPECT_EQ(cm.connect(third, 0, now).error().code, Errc::kNoResources);
  // A connection that is disconnecting counts as well.
  ASSERT_TRUE(cm.accept(second, {.qpn = {3}}, now).has_value());
  ASSERT_TRUE(cm.destroy(second, now).has_value());
  EXPECT_EQ(cm.connect(third, 0, now).error().code, Errc::kNoResources);
  EXPECT_EQ(cm.counters().listeners_refused, 1u);
  EXPECT_EQ(cm.counters().endpoints_refused, 3u);
  ASSERT_TRUE(cm.destroy(first, now).has_value());
  EXPECT_TRUE(cm.connect(third, 0, now).has_value());
}

TEST_F(ManagerTest, ManyRejectsAreRememberedUpToALimit) {
  for (std::uint32_t i = 1; i <= RejCache::kMax + 10; ++i) {
    receive(req(i, i));
    ASSERT_TRUE(cm.reject(last_request(), {}, now).has_value());
    ASSERT_TRUE(cm.destroy(last_request(), now).has_value());
    drain();
  }
  const std::size_t before = events.size();
  EXPECT_EQ(reason(receive(req(RejCache::kMax, RejCache::kMax))), RejReason::kConsumer);
  EXPECT_EQ(events.size(), before);
  receive(req(1, 1));  // the REJ for this REQ is no longer stored
  EXPECT_EQ(events.size(), before + 1);
  now += 60s;  // the REJ has expired by now
  receive(req(RejCache::kMax, RejCache::kMax));
  EXPECT_EQ(events.size(), before + 2);
}

TEST_F(ManagerTest, MraForAQueuedReqIsIgnored) {
  const EndpointHandle first = connect();
  receive(Rej{.local_comm_id = {0xaaaa},
              .remote_comm_id = cm.view(first)->local_comm_id,
              .message_rejected = RejSubject::kReq,
              .reason = RejReason::kStaleConnection});
  const EndpointHandle second = connect();  // its REQ waits for the timewait of its QP
  EXPECT_EQ(cm.view(second)->tries, 0u);
  receive(wire::cm::Mra{.local_comm_id = {0xbbbb},
                        .remote_comm_id = cm.view(second)->local_comm_id,
                        .message_mraed = wire::cm::MraSubject::kReq,
                        .service_timeout = 20});
  EXPECT_EQ(cm.view(second)->state, State::kReqSent);
  EXPECT_EQ(cm.counters().of(Ignored::kWrongState), 1u);
}

TEST(CommIds, DoNotRepeat) {
  Random random(7);
  CommIds ids(random);
  std::set<CommId> seen;
  for (int i = 0; i < 100000; ++i) {
    const CommId id = ids.next();
    EXPECT_NE(id, CommId{});
    EXPECT_TRUE(seen.insert(id).second);
  }
}

TEST(Loopback, AHostConnectsToItself) {
  Net net;
  net.p.connect({0x11}, net.p.gid());
  net.run(1s);
  EXPECT_EQ(net.p.outcomes.size(), 2u);
  const auto active = net.p.endpoints[0];
  const auto passive = net.p.endpoints[1];
  EXPECT_EQ(net.p.cm.view(active)->state, State::kEstablished);
  EXPECT_EQ(net.p.cm.view(passive)->state, State::kEstablished);
  net.p.call([&](Manager& m) { (void)m.destroy(active, net.world.now()); });
  net.run(1s);
  EXPECT_EQ(net.p.outcomes[passive].disconnected, 1);
  EXPECT_EQ(net.p.outcomes[passive].timewait_exits, 1);
  EXPECT_TRUE(net.world.idle());
}

}  // namespace
}  // namespace verbena::cm
