#include <gtest/gtest.h>

#include "cm/manager.h"
#include "cm/peer_test.h"

// Tests the repeats of a REP, the timeout that an MRA extends, and timewait.

namespace verbena::cm {
namespace {

using namespace std::chrono_literals;
using wire::cm::Dreq;
using wire::cm::Rej;
using wire::cm::RejReason;
using wire::cm::RejSubject;
using wire::cm::Rep;
using wire::cm::Req;

using TimeoutTest = PeerTest;

TEST_F(TimeoutTest, LimitedRepeatsLastUntilTheTimeout) {
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

// For the active side, 15 retries may mean no limit (cm/retry.h).  For the passive side they are a
// limit, because a REQ from a forged address must not cause more messages than the REQ allows.
TEST_F(TimeoutTest, RepIsRepeatedNoMoreThanTheReqAllows) {
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

// All repeats of the REP that the peer allows may get lost.  A repeated REQ shows that this has
// happened.
TEST_F(TimeoutTest, RepeatedReqAllowsTheRepeatsOfTheRepAgain) {
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

TEST_F(TimeoutTest, AnMraKeepsTheActiveSideWaiting) {
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

TEST_F(TimeoutTest, GivesUpOnEndlessMras) {
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

// Timewait depends on the ack timeout of the path, and is at most kTimewaitMax.
TEST_F(TimeoutTest, TimewaitFollowsThePathAndHasALimit) {
  const auto timewait = [&](std::uint32_t id, std::uint8_t ack_timeout, Guid guid) {
    Req request = req(id, id);
    request.local_ca_guid = guid;
    request.primary_path.local_ack_timeout = ack_timeout;
    receive(request);
    const auto endpoint = last_request();
    EXPECT_TRUE(cm.accept(endpoint, {.qpn = {id}, .target_ack_delay = 15}, now).has_value());
    const Rep rep = std::get<Rep>(*drain());
    receive(Dreq{.local_comm_id = {id}, .remote_comm_id = rep.local_comm_id, .remote_qpn = {id}});
    const Duration remaining = cm.deadline() - now;
    now = cm.deadline();
    cm.on_timer(now);
    drain();
    EXPECT_TRUE(std::holds_alternative<TimewaitExit>(events.back()));
    return remaining;
  };
  EXPECT_EQ(timewait(1, 19, kPeerGuid), 2 * timeout_of_code(18) + timeout_of_code(15));
  EXPECT_EQ(timewait(2, 31, kPeerGuid), Endpoint::kTimewaitMax);
  EXPECT_EQ(timewait(3, 0, kPeerGuid), 2 * timeout_of_code(0) + timeout_of_code(15));
  EXPECT_EQ(timewait(4, 19, Guid{0x5054}), 2 * timeout_of_code(8));  // the peer is on this host
}

TEST_F(TimeoutTest, MraForAQueuedReqIsIgnored) {
  const EndpointHandle first = connect();
  receive(Rej{.local_comm_id = {0xaaaa},
              .remote_comm_id = cm.view(first)->local_comm_id,
              .message_rejected = RejSubject::kReq,
              .reason = RejReason::kStaleConnection});
  const EndpointHandle second = connect();  // its REQ waits until the timewait of the QP ends
  EXPECT_EQ(cm.view(second)->tries, 0u);
  receive(wire::cm::Mra{.local_comm_id = {0xbbbb},
                        .remote_comm_id = cm.view(second)->local_comm_id,
                        .message_mraed = wire::cm::MraSubject::kReq,
                        .service_timeout = 20});
  EXPECT_EQ(cm.view(second)->state, State::kReqSent);
  EXPECT_EQ(cm.counters().of(Ignored::kWrongState), 1u);
}

}  // namespace
}  // namespace verbena::cm
