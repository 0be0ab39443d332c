#include "cm/sidr.h"

#include <gtest/gtest.h>

#include <string_view>

#include "cm/peer_test.h"

// Tests SIDR, which resolves service ids to datagram QPs.

namespace verbena::cm {
namespace {

using namespace std::chrono_literals;
using wire::cm::AttributeId;
using wire::cm::Message;
using wire::cm::SidrRep;
using wire::cm::SidrReq;
using wire::cm::SidrStatus;

constexpr SidrReq kRequest{.request_id = {0xaaaa}, .pkey = {0xffff}, .service_id = kService};

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

class SidrTest : public PeerTest {
 protected:
  explicit SidrTest(Config config = {.ca_guid = {0x5054}}) : PeerTest(config) {}

  ResolutionHandle resolve(std::uint64_t cookie = 5) {
    return *cm.sidr().resolve({.address = address, .service_id = {0x1110001}}, cookie, now);
  }
  // Runs all timers; returns how many messages were sent.
  std::uint32_t run_all_timers() {
    std::uint32_t sent = 0;
    while (cm.deadline() != kNever) {
      now = cm.deadline();
      cm.on_timer(now);
      if (drain()) ++sent;
    }
    return sent;
  }
  const Counters::Message& count(AttributeId id) { return cm.counters().of(id); }
};

TEST_F(SidrTest, OnlyTheFirstAnswerIsReported) {
  const ResolutionHandle active_side = resolve();
  const SidrReq req = std::get<SidrReq>(*drain());
  EXPECT_EQ(req.service_id, ServiceId{0x1110001});
  EXPECT_EQ(req.pkey, kDefaultPkey);
  EXPECT_EQ(cm.sidr().row(active_side)->tries, 1u);
  SidrRep rep{.request_id = req.request_id, .qpn = {0x11}, .qkey = {7}};
  rep.set_vendor_id(0x123456);
  receive(rep, 2, 99);
  ASSERT_EQ(events.size(), 1u);
  const auto& received = std::get<SidrRepReceived>(events[0]);
  EXPECT_EQ(received.cookie, 5u);
  EXPECT_EQ(received.rep, rep);
  EXPECT_EQ(received.ece, (Ece{0x123456, 99}));
  EXPECT_EQ(cm.sidr().destroy(active_side, now).error().code,
            Errc::kBadHandle);  // the answer has ended the resolution
  receive(rep);
  EXPECT_EQ(events.size(), 1u);
  EXPECT_EQ(cm.counters().of(Ignored::kUnknownId), 1u);
  EXPECT_EQ(cm.deadline(), kNever);
}

TEST_F(SidrTest, OtherPartitionHasNoService) {
  SidrReq other_partition = kRequest;
  other_partition.pkey = {0x8001};
  EXPECT_EQ(std::get<SidrRep>(*receive(other_partition)).status,
            SidrStatus::kServiceIdNotSupported);
  EXPECT_TRUE(events.empty());
  EXPECT_FALSE(receive(kRequest).has_value());  // the consumer has to answer it
  EXPECT_EQ(events.size(), 1u);
}

TEST_F(SidrTest, RequestIsRepeatedUnchangedUntilTheTimeout) {
  (void)resolve();
  const Message first = *drain();
  now = cm.deadline();
  cm.on_timer(now);
  EXPECT_EQ(drain(), first);
  const std::uint32_t sent = 2 + run_all_timers();
  ASSERT_EQ(events.size(), 1u);
  const auto& event = std::get<SidrUnreachable>(events[0]);
  EXPECT_EQ(event.tries, sent);
  EXPECT_EQ(event.spent, 30s);
  EXPECT_GT(sent, 20u);
  EXPECT_EQ(count(AttributeId::kSidrReq).sent, 1u);
  EXPECT_EQ(count(AttributeId::kSidrReq).repeated, sent - 1);
  EXPECT_EQ(cm.sidr().size(), 0u);
}

TEST_F(SidrTest, AnswersOfOtherHostsAreIgnored) {
  (void)resolve();
  const SidrReq req = std::get<SidrReq>(*drain());
  address.path.destination = wire::ipv4_gid(0x0a000003);
  receive(SidrRep{.request_id = req.request_id});
  EXPECT_TRUE(events.empty());
  EXPECT_EQ(cm.counters().of(Ignored::kWrongRemoteId), 1u);
}

TEST_F(SidrTest, DestroyedRequestReportsNothing) {
  const ResolutionHandle active_side = resolve();
  const SidrReq req = std::get<SidrReq>(*drain());
  ASSERT_TRUE(cm.sidr().destroy(active_side, now).has_value());
  EXPECT_FALSE(drain().has_value());
  receive(SidrRep{.request_id = req.request_id});
  EXPECT_EQ(run_all_timers(), 0u);
  EXPECT_TRUE(events.empty());
}

TEST_F(SidrTest, DuplicateGetsTheSameAnswer) {
  EXPECT_FALSE(receive(kRequest).has_value());
  const auto& request = std::get<SidrReqReceived>(events.at(0));
  EXPECT_EQ(request.cookie, kListenerCookie);
  EXPECT_EQ(request.req, kRequest);
  EXPECT_EQ(request.address, address);
  EXPECT_FALSE(receive(kRequest).has_value());  // SIDR has no MRA
  EXPECT_EQ(events.size(), 1u);
  ASSERT_TRUE(cm.sidr()
                  .answer(request.resolution,
                          {.qpn = {0x22}, .qkey = {9}, .private_data = bytes("hello")}, now)
                  .has_value());
  const Message rep = *drain();
  EXPECT_EQ(header.transaction_id, kTid);
  EXPECT_EQ(std::get<SidrRep>(rep).request_id, kRequest.request_id);
  EXPECT_EQ(std::get<SidrRep>(rep).service_id, kService);
  EXPECT_EQ(std::get<SidrRep>(rep).qpn, Qpn{0x22});
  EXPECT_EQ(std::get<SidrRep>(rep).qkey, Qkey{9});
  EXPECT_EQ(receive(kRequest), rep);
  EXPECT_EQ(count(AttributeId::kSidrReq).duplicate, 2u);
  EXPECT_EQ(count(AttributeId::kSidrRep).repeated, 1u);
  EXPECT_EQ(events.size(), 1u);
  now += Sidr::kAnswerLifetime + 1ms;
  EXPECT_FALSE(receive(kRequest).has_value());  // the repeat counts as a new request
  EXPECT_EQ(events.size(), 2u);
}

// Two hosts may choose the same request id.  RoCE has no LIDs, so the GID has to distinguish the
// hosts.
TEST_F(SidrTest, TwoHostsMayUseTheSameRequestId) {
  receive(kRequest);
  address.path.destination = wire::ipv4_gid(0x0a000003);
  receive(kRequest);
  ASSERT_EQ(events.size(), 2u);
  const auto& second = std::get<SidrReqReceived>(events[1]);
  EXPECT_EQ(second.address, address);
  SidrReq other = kRequest;
  other.request_id = {0xaaab};
  receive(other);
  EXPECT_EQ(events.size(), 3u);
}

TEST_F(SidrTest, RequestThatNobodyAcceptsGetsAnErrorStatus) {
  const auto status = [](const std::optional<Message>& message) {
    return std::get<SidrRep>(*message).status;
  };
  SidrReq no_listener = kRequest;
  no_listener.service_id.value += 1;
  EXPECT_EQ(status(receive(no_listener)), SidrStatus::kServiceIdNotSupported);
  EXPECT_EQ(status(receive(kRequest, 1)), SidrStatus::kVersionNotSupported);
  EXPECT_TRUE(events.empty());
  receive(kRequest);
  ASSERT_TRUE(cm.sidr().destroy(std::get<SidrReqReceived>(events[0]).resolution, now).has_value());
  EXPECT_EQ(status(drain()), SidrStatus::kRejected);
  EXPECT_EQ(std::get<SidrRep>(*receive(kRequest)).qpn, Qpn{});
}

TEST_F(SidrTest, DroppedRequestIsReportedAgain) {
  receive(kRequest);
  ASSERT_TRUE(cm.sidr().drop(std::get<SidrReqReceived>(events[0]).resolution).has_value());
  EXPECT_FALSE(drain().has_value());
  receive(kRequest);
  EXPECT_EQ(events.size(), 2u);
  EXPECT_EQ(cm.counters().requests_dropped, 1u);
}

TEST_F(SidrTest, CallsForThePassiveSideFailOnTheActiveSide) {
  const ResolutionHandle active_side = resolve();
  EXPECT_EQ(cm.sidr().answer(active_side, {}, now).error().code, Errc::kBadState);
  EXPECT_EQ(cm.sidr().drop(active_side).error().code, Errc::kBadState);
  EXPECT_EQ(cm.sidr().set_cookie({}, 1).error().code, Errc::kBadHandle);
}

TEST_F(SidrTest, ArgumentsOfAnAnswerAreChecked) {
  receive(kRequest);
  const ResolutionHandle passive_side = std::get<SidrReqReceived>(events.at(0)).resolution;
  const std::array<std::byte, 137> too_much{};
  EXPECT_EQ(cm.sidr().answer(passive_side, {.private_data = too_much}, now).error().code,
            Errc::kInvalidArgument);
  EXPECT_EQ(cm.sidr().answer(passive_side, {.qpn = {1 << 24}}, now).error().code,
            Errc::kInvalidArgument);
  EXPECT_TRUE(cm.sidr().answer(passive_side, {.status = SidrStatus::kNoQp}, now).has_value());
}

class SidrLimitTest : public SidrTest {
 protected:
  SidrLimitTest() : SidrTest({.ca_guid = {0x5054}, .resolutions_max = 2}) {}
};

TEST_F(SidrLimitTest, RequestsOverTheLimitAreCounted) {
  const ResolutionHandle active_side = resolve();
  receive(kRequest);
  EXPECT_EQ(cm.sidr().resolve({.address = address}, 1, now).error().code, Errc::kNoResources);
  SidrReq other = kRequest;
  other.request_id = {1};
  EXPECT_FALSE(receive(other).has_value());
  EXPECT_EQ(events.size(), 1u);
  EXPECT_EQ(cm.counters().resolutions_refused, 2u);
  EXPECT_EQ(cm.counters().of(Ignored::kLimitReached), 1u);
  ASSERT_TRUE(cm.sidr().destroy(active_side, now).has_value());
  receive(other);
  EXPECT_EQ(events.size(), 2u);
}

}  // namespace
}  // namespace verbena::cm
