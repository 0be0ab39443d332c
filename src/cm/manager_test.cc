#include "cm/manager.h"

#include <gtest/gtest.h>

#include <set>

#include "cm/peer_test.h"
#include "cm/reject_info.h"

// Tests invalid messages, limits, handles, and the contents of messages.  Tests of repeats are in
// timeouts_test.cc, and tests of who may send a message in peer_identity_test.cc.

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

TEST_F(ManagerTest, RequestMustBeForAPartitionOfItsPort) {
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
  const Time start_time{std::chrono::seconds(1)};
  const auto active_endpoint = traced.connect({.qpn = {0x500}, .path_mtu = 3}, 1, start_time);
  ASSERT_TRUE(active_endpoint.has_value());
  ASSERT_TRUE(
      traced.destroy(*active_endpoint, start_time + std::chrono::milliseconds(3)).has_value());
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

TEST_F(ManagerTest, CallsInTheWrongStateChangeNothing) {
  const auto active_endpoint = connect();
  drain();
  EXPECT_EQ(cm.accept(active_endpoint, {.qpn = {1}}, now).error().code, Errc::kBadState);
  EXPECT_EQ(cm.reject(active_endpoint, {}, now).error().code, Errc::kBadState);
  EXPECT_EQ(cm.establish(active_endpoint, {}, now).error().code, Errc::kBadState);
  EXPECT_EQ(cm.disconnect(active_endpoint, {}, now).error().code, Errc::kBadState);
  EXPECT_EQ(cm.drop(active_endpoint).error().code, Errc::kBadState);
  receive(req());
  const auto passive_endpoint = last_request();
  EXPECT_EQ(cm.establish(passive_endpoint, {}, now).error().code, Errc::kBadState);
  EXPECT_EQ(cm.disconnect(passive_endpoint, {}, now).error().code, Errc::kBadState);
  EXPECT_FALSE(drain().has_value());
  EXPECT_EQ(cm.view(active_endpoint)->state, State::kReqSent);
  EXPECT_EQ(cm.view(passive_endpoint)->state, State::kReqReceived);
}

TEST_F(ManagerTest, ArgumentsAreChecked) {
  receive(req());
  const auto passive_endpoint = last_request();
  const std::vector<std::byte> big(1000);
  const auto bytes = [&](std::size_t n) { return std::span(big).first(n); };
  EXPECT_EQ(cm.reject(passive_endpoint, {.private_data = bytes(149)}, now).error().code,
            Errc::kInvalidArgument);
  EXPECT_EQ(cm.reject(passive_endpoint, {.additional_info = bytes(73)}, now).error().code,
            Errc::kInvalidArgument);
  EXPECT_EQ(cm.establish(passive_endpoint, bytes(225), now).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(cm.disconnect(passive_endpoint, bytes(221), now).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(cm.accept(passive_endpoint, {.qpn = {0x1000000}}, now).error().code,
            Errc::kInvalidArgument);
  ConnectRequest request{.qpn = {1}, .path_mtu = 0};
  EXPECT_EQ(cm.connect(request, 0, now).error().code, Errc::kInvalidArgument);
  request = {.qpn = {1}, .path_mtu = 3, .packet_life = 32};
  EXPECT_EQ(cm.connect(request, 0, now).error().code, Errc::kInvalidArgument);
  EXPECT_TRUE(
      cm.reject(passive_endpoint, {.additional_info = bytes(72), .private_data = bytes(148)}, now)
          .has_value());
}

TEST_F(ManagerTest, ForgedAndStaleHandlesAreErrors) {
  const auto active_endpoint = connect();
  ASSERT_TRUE(cm.destroy(active_endpoint, now).has_value());
  for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{1}, active_endpoint.value,
                                    active_endpoint.value + 1, ~std::uint64_t{0}}) {
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

class ManagerLimitTest : public ManagerTest {
 protected:
  ManagerLimitTest() : ManagerTest({.ca_guid = {1}, .endpoints_max = 2, .listeners_max = 1}) {}
};

TEST_F(ManagerLimitTest, RequestsOverTheLimitAreDropped) {
  EXPECT_EQ(cm.listen({.id = {1}}, 0).error().code, Errc::kNoResources);
  const auto first = connect();
  receive(req(1, 1));
  const auto second = last_request();
  EXPECT_FALSE(receive(req(2, 2)).has_value());
  EXPECT_EQ(cm.counters().of(Ignored::kLimitReached), 1u);
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
  now += 60s;  // the stored REJ has expired by then
  receive(req(RejCache::kMax, RejCache::kMax));
  EXPECT_EQ(events.size(), before + 2);
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
  const auto active_endpoint = net.p.endpoints[0];
  const auto passive_endpoint = net.p.endpoints[1];
  EXPECT_EQ(net.p.cm.view(active_endpoint)->state, State::kEstablished);
  EXPECT_EQ(net.p.cm.view(passive_endpoint)->state, State::kEstablished);
  net.p.call([&](Manager& m) { (void)m.destroy(active_endpoint, net.world.now()); });
  net.run(1s);
  EXPECT_EQ(net.p.outcomes[passive_endpoint].disconnected, 1);
  EXPECT_EQ(net.p.outcomes[passive_endpoint].timewait_exits, 1);
  EXPECT_TRUE(net.world.is_idle());
}

}  // namespace
}  // namespace verbena::cm
