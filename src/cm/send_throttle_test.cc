#include "cm/send_throttle.h"

#include <gtest/gtest.h>

#include <set>

#include "cm/pair_test.h"

// Tests the SendThrottle in a Manager, with many requests to one host at once.
namespace verbena::cm {
namespace {

using namespace std::chrono_literals;
using wire::cm::AttributeId;

constexpr std::uint32_t kLimit = SendThrottle::kInFlightMax;

class SendThrottleTest : public testing::Test {
 protected:
  SendThrottleTest() : net(0, {}, 3) {
    net.host(2).call([](Manager& m) { ASSERT_TRUE(m.listen({.id = kService}, kListenerCookie)); });
  }
  void connect(std::uint32_t count, const Gid& target) {
    for (std::uint32_t i = 0; i < count; ++i) net.a.connect(Qpn{next_qpn++}, target);
  }
  std::uint64_t reqs_sent() const { return net.a.cm.counters().of(AttributeId::kReq).sent; }
  std::uint64_t reqs_repeated() const { return net.a.cm.counters().of(AttributeId::kReq).repeated; }
  std::uint64_t reqs_queued() const { return net.a.cm.counters().requests_queued; }
  std::size_t connections() const {
    return static_cast<std::size_t>(std::ranges::count_if(
        net.p.outcomes, [](const auto& one) { return one.second.established == 1; }));
  }

  Net net;
  std::uint32_t next_qpn = 0x100;
};

TEST_F(SendThrottleTest, AnswerReleasesTheNextRequest) {
  connect(3 * kLimit, net.p.gid());
  EXPECT_EQ(reqs_sent(), kLimit);
  EXPECT_EQ(reqs_queued(), 2 * kLimit);
  net.run(500ms);
  EXPECT_EQ(connections(), 3 * kLimit);
  EXPECT_EQ(reqs_sent(), 3 * kLimit);
  EXPECT_EQ(reqs_repeated(), 0u);
  connect(kLimit, net.p.gid());
  EXPECT_EQ(reqs_sent(), 4 * kLimit) << "all permits are free again";
  EXPECT_EQ(reqs_queued(), 2 * kLimit);
}

TEST_F(SendThrottleTest, EachHostAndServiceHasItsOwnLimit) {
  connect(kLimit + 1, net.p.gid());
  connect(1, net.host(2).gid());
  EXPECT_EQ(reqs_sent(), kLimit + 1);
  ConnectRequest request = net.a.request(Qpn{next_qpn++}, net.p.gid());
  request.service_id.value += 1;
  net.a.connect(request, 1);
  EXPECT_EQ(reqs_sent(), kLimit + 2);
}

TEST_F(SendThrottleTest, DestroyingAllEndpointsSendsNoQueuedRequest) {
  connect(3 * kLimit, net.p.gid());
  for (const EndpointHandle endpoint : net.a.endpoints) {
    net.a.call([&](Manager& m) { EXPECT_TRUE(m.destroy(endpoint, net.world.now())); });
  }
  EXPECT_EQ(net.a.cm.counters().of(AttributeId::kRej).sent, kLimit);
  EXPECT_EQ(net.a.cm.endpoints(), 0u);
  net.run(500ms);
  EXPECT_EQ(reqs_sent(), kLimit);
}

TEST_F(SendThrottleTest, RejOfAnAbsentPeerReleasesThePermit) {
  for (std::uint32_t i = 0; i < kLimit; ++i)
    net.a.connect_peer_to_peer(Qpn{next_qpn++}, net.p.gid(), i);
  net.run(5ms);
  EXPECT_EQ(net.a.cm.counters().of(AttributeId::kRej).received, kLimit);
  net.a.connect_peer_to_peer(Qpn{next_qpn++}, net.p.gid(), kLimit);
  EXPECT_EQ(reqs_sent(), kLimit + 1);
}

// The REQ of the peer arrives while our REQ is still queued.
TEST_F(SendThrottleTest, QueuedPeerToPeerEndpointBecomesPassive) {
  Host &smaller_guid_host = net.p, &larger_guid_host = net.a;
  net.lose("REQ", static_cast<int>(kLimit));
  for (std::uint32_t i = 0; i < kLimit; ++i) {
    ConnectRequest request = smaller_guid_host.request(Qpn{next_qpn++}, larger_guid_host.gid());
    request.service_id = kPeerToPeerService;
    smaller_guid_host.connect(request, i);
  }
  const EndpointHandle queued =
      smaller_guid_host.connect_peer_to_peer({0x11}, larger_guid_host.gid());
  EXPECT_EQ(smaller_guid_host.cm.view(queued)->tries, 0u);
  larger_guid_host.connect_peer_to_peer({0x22}, smaller_guid_host.gid());
  net.run(10ms);
  EXPECT_EQ(smaller_guid_host.cm.counters().of(AttributeId::kReq).sent, kLimit);
  EXPECT_EQ(smaller_guid_host.outcomes[queued].requests, 1) << net.text();
  EXPECT_EQ(smaller_guid_host.outcomes[queued].established, 1) << net.text();
}

// More requests would not help a host that may be overloaded already.
TEST_F(SendThrottleTest, SilentHostGetsNoMoreRequests) {
  net.lose("REQ", -1);
  connect(2 * kLimit, net.p.gid());
  net.run(10s);
  EXPECT_EQ(reqs_sent(), kLimit);
  EXPECT_GT(reqs_repeated(), 10 * kLimit);
  net.lose("REQ", 0);
  net.run(2s);
  EXPECT_EQ(connections(), 2 * kLimit);
}

// After an MRA the peer's consumer has the REQ, and may be waiting for the next ones.
TEST_F(SendThrottleTest, MraReleasesTheNextRequest) {
  net.p.on_req = Host::Reaction::kNoAnswer;
  connect(3 * kLimit, net.p.gid());
  net.run(1s);
  EXPECT_EQ(reqs_sent(), 3 * kLimit);
}

TEST_F(SendThrottleTest, LimitsDreqsInFlight) {
  connect(3 * kLimit, net.p.gid());
  net.run(500ms);
  ASSERT_EQ(connections(), 3 * kLimit);
  const auto& dreqs = net.a.cm.counters().of(AttributeId::kDreq);
  const auto disconnect_all = [&] {
    for (const EndpointHandle endpoint : net.a.endpoints) {
      net.a.call([&](Manager& m) { EXPECT_TRUE(m.disconnect(endpoint, {}, net.world.now())); });
    }
  };
  disconnect_all();
  EXPECT_EQ(dreqs.sent, kLimit);
  EXPECT_EQ(net.a.cm.counters().disconnects_queued, 2 * kLimit);
  net.run(30ms);
  EXPECT_EQ(dreqs.sent, 3 * kLimit);
  EXPECT_EQ(dreqs.repeated, 0u);
  for (const EndpointHandle endpoint : net.a.endpoints) {
    EXPECT_EQ(net.a.outcomes[endpoint].disconnected, 1);
  }
}

// A DREQ that is still queued at its timeout is sent once.  The peer has probably failed.  If not,
// the DREQ tells it of the disconnect.
TEST_F(SendThrottleTest, QueuedDreqIsSentOnceAtItsTimeout) {
  connect(2 * kLimit, net.p.gid());
  net.run(500ms);
  net.lose("DREP", -1);
  for (const EndpointHandle endpoint : net.a.endpoints) {
    net.a.call([&](Manager& m) { EXPECT_TRUE(m.destroy(endpoint, net.world.now())); });
  }
  net.run(Endpoint::kDisconnectTimeout - 1s);
  EXPECT_EQ(net.a.cm.counters().of(AttributeId::kDreq).sent, kLimit);
  net.run(5s);
  EXPECT_EQ(net.a.cm.counters().of(AttributeId::kDreq).sent, 2 * kLimit);
  EXPECT_EQ(net.a.cm.endpoints(), 0u);
  for (const auto& [endpoint, outcome] : net.p.outcomes) EXPECT_EQ(outcome.disconnected, 1);
}

// If the REQ arrived before the DREQ, the peer would see two connections with one QP, and would
// reject the second connection.
TEST_F(SendThrottleTest, ReusedQpSendsItsQueuedDreqFirst) {
  connect(kLimit + 1, net.p.gid());
  net.run(500ms);
  const Qpn last_qpn{next_qpn - 1};
  for (const EndpointHandle endpoint : net.a.endpoints) {
    net.a.call([&](Manager& m) { EXPECT_TRUE(m.destroy(endpoint, net.world.now())); });
  }
  ASSERT_EQ(net.a.cm.counters().disconnects_queued, 1u);
  net.a.connect(last_qpn, net.p.gid());
  EXPECT_EQ(net.a.cm.counters().of(AttributeId::kDreq).sent, kLimit + 1);
  net.run(500ms);
  EXPECT_EQ(connections(), kLimit + 2);
  EXPECT_EQ(net.p.cm.counters().rejects_sent.count(10), 0u);
}

TEST_F(SendThrottleTest, FlushSendsAllQueuedDreqs) {
  connect(3 * kLimit, net.p.gid());
  net.run(500ms);
  net.lose("DREP", -1);
  for (const EndpointHandle endpoint : net.a.endpoints) {
    net.a.call([&](Manager& m) { EXPECT_TRUE(m.destroy(endpoint, net.world.now())); });
  }
  net.a.call([&](Manager& m) {
    EXPECT_TRUE(m.flush_disconnects(net.world.now()));
    EXPECT_FALSE(m.flush_disconnects(net.world.now()));
  });
  EXPECT_EQ(net.a.cm.counters().of(AttributeId::kDreq).sent, 3 * kLimit);
  net.run(60s);
  EXPECT_EQ(net.a.cm.endpoints(), 0u);
  EXPECT_TRUE(net.world.is_idle());
}

// The passive side limits its replies as well, whatever the active side does.
TEST_F(SendThrottleTest, LimitsRepsInFlight) {
  net.p.on_req = Host::Reaction::kNoAnswer;
  connect(3 * kLimit, net.p.gid());
  net.run(300ms);
  ASSERT_EQ(net.p.endpoints.size(), 3 * kLimit);
  for (const EndpointHandle request : net.p.endpoints) net.p.accept(request);
  const auto& replies = net.p.cm.counters().of(AttributeId::kRep);
  EXPECT_EQ(replies.sent, kLimit);
  EXPECT_EQ(net.p.cm.counters().replies_queued, 2 * kLimit);
  net.run(20ms);
  EXPECT_EQ(connections(), 3 * kLimit);
  EXPECT_EQ(replies.sent, 3 * kLimit);
  EXPECT_EQ(replies.repeated, 0u);
}

// The peer gets a REJ for its REQ, because no REP was sent yet.
TEST_F(SendThrottleTest, DestroyWithAQueuedRepRejectsTheReq) {
  net.p.on_req = Host::Reaction::kNoAnswer;
  connect(kLimit + 1, net.p.gid());
  net.run(1s);
  for (const EndpointHandle request : net.p.endpoints) net.p.accept(request);
  ASSERT_EQ(net.p.cm.counters().replies_queued, 1u);
  const EndpointHandle queued = net.p.endpoints.back();
  ASSERT_EQ(net.p.cm.view(queued)->tries, 0u);
  net.p.call([&](Manager& m) { EXPECT_TRUE(m.destroy(queued, net.world.now())); });
  net.run(1s);
  EXPECT_EQ(connections(), kLimit);
  EXPECT_EQ(net.a.cm.counters().rejects_received.at(28), 1u);
  EXPECT_EQ(net.p.cm.counters().of(AttributeId::kRep).sent, kLimit);
}

TEST_F(SendThrottleTest, RequestsQueueAfterTimewait) {
  net.a.packet_life = 14;  // timewait: twice 67 ms
  connect(kLimit + 1, net.p.gid());
  net.run(100ms);
  ASSERT_EQ(connections(), kLimit + 1);
  for (const EndpointHandle endpoint : net.a.endpoints) {
    net.a.call([&](Manager& m) { EXPECT_TRUE(m.disconnect(endpoint, {}, net.world.now())); });
  }
  net.run(10ms);
  const std::uint64_t before = reqs_queued();
  net.lose("REQ", -1);
  next_qpn -= kLimit + 1;
  connect(kLimit + 1, net.p.gid());
  EXPECT_EQ(reqs_sent(), kLimit + 1) << "none of the new requests is sent";
  EXPECT_EQ(reqs_queued(), before);
  for (int ms = 0; ms < 500 && reqs_sent() < 2 * kLimit + 1; ++ms) net.run(1ms);
  net.run(5ms);
  EXPECT_EQ(reqs_sent(), 2 * kLimit + 1) << "one of the new requests is still queued";
  EXPECT_EQ(reqs_queued(), before + 1);
  net.lose("REQ", 0);
  net.run(2s);
  EXPECT_EQ(connections(), 2 * (kLimit + 1));
}

TEST_F(SendThrottleTest, EndpointDestroyedInTheQueueSendsNothing) {
  connect(kLimit + 2, net.p.gid());
  const EndpointHandle destroyed = net.a.endpoints[kLimit];
  net.a.call([&](Manager& m) { EXPECT_TRUE(m.destroy(destroyed, net.world.now())); });
  EXPECT_EQ(net.a.cm.counters().of(AttributeId::kRej).sent, 0u);
  net.run(500ms);
  EXPECT_EQ(connections(), kLimit + 1);
  EXPECT_EQ(reqs_sent(), kLimit + 1);
}

TEST_F(SendThrottleTest, QueuedRequestTimesOut) {
  net.lose("REQ", -1);
  for (std::uint32_t i = 0; i < 3 * kLimit; ++i) {
    ConnectRequest request = net.a.request(Qpn{next_qpn++}, net.p.gid());
    request.give_up_after = i < kLimit ? 500ms : i < 2 * kLimit ? 1s : 4 * Retry::kFirstIntervalMin;
    net.a.connect(request, i);
  }
  net.run(5s);
  // The second batch is sent when the first batch times out, after 500 ms.
  EXPECT_EQ(reqs_sent(), 2 * kLimit);
  for (const EndpointHandle endpoint : net.a.endpoints) {
    EXPECT_EQ(net.a.outcomes[endpoint].failed, 1);
  }
  EXPECT_EQ(net.a.cm.endpoints(), 0u);
  EXPECT_TRUE(net.world.is_idle());
}

// The timeout restarts because the answers show that the peer is alive, but slow.
TEST_F(SendThrottleTest, AnswersToOtherRequestsRestartTheTimeout) {
  net.delay_of = [](const std::string&, const std::string&) { return 100ms; };
  constexpr std::uint32_t kCount = 16 * kLimit;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    ConnectRequest request = net.a.request(Qpn{next_qpn++}, net.p.gid());
    request.give_up_after = 600ms;
    net.a.connect(request, i);
  }
  net.run(2s);
  EXPECT_GT(connections(), 4 * kLimit);
  EXPECT_LT(reqs_sent(), kCount);
  net.run(3s);
  EXPECT_EQ(connections(), kCount);
}

TEST_F(SendThrottleTest, QueuedRequestTimesOutWhenAnswersStop) {
  net.delay_of = [](const std::string&, const std::string&) { return 100ms; };
  constexpr std::uint32_t kCount = 16 * kLimit;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    ConnectRequest request = net.a.request(Qpn{next_qpn++}, net.p.gid());
    request.give_up_after = 600ms;
    net.a.connect(request, i);
  }
  net.run(1s);
  for (const char* name : {"REP", "MRA"}) net.lose(name, -1);
  net.run(200ms);  // time for the messages in flight, and their RTUs
  const std::size_t answered_count = connections();
  EXPECT_GT(answered_count, kLimit);
  net.run(200ms);
  EXPECT_EQ(net.a.cm.endpoints(), kCount);
  net.run(500ms);
  std::size_t failed_count = 0;
  for (const auto& [endpoint, outcome] : net.a.outcomes)
    failed_count += outcome.failed == 1 ? 1 : 0;
  EXPECT_EQ(failed_count, kCount - answered_count);
  EXPECT_EQ(net.a.cm.endpoints(), answered_count);
  EXPECT_EQ(connections(), answered_count);
}

// If a permit were released twice or never, the limit would be wrong from then on.
TEST_F(SendThrottleTest, EveryEndOfAConnectReleasesItsPermitOnce) {
  const auto expect_all_permits_free = [&](const char* after) {
    const std::uint64_t before = reqs_queued();
    net.p.on_req = Host::Reaction::kReject;
    connect(kLimit, net.p.gid());
    EXPECT_EQ(reqs_queued(), before) << after;
    connect(1, net.p.gid());
    EXPECT_EQ(reqs_queued(), before + 1) << after;
    net.run(10s);
  };
  for (const auto reaction :
       {Host::Reaction::kProceed, Host::Reaction::kReject, Host::Reaction::kDestroy,
        Host::Reaction::kDrop, Host::Reaction::kNoAnswer}) {
    net.p.on_req = reaction;
    connect(2 * kLimit, net.p.gid());
    net.run(100ms);
    for (const EndpointHandle endpoint : net.a.endpoints) {
      net.a.call([&](Manager& m) { (void)m.destroy(endpoint, net.world.now()); });
    }
    net.run(10s);
    expect_all_permits_free("an answer");
  }
  net.lose("REQ", -1);
  connect(2 * kLimit, net.p.gid());
  net.run(60s);
  net.lose("REQ", 0);
  expect_all_permits_free("silence");
}

TEST_F(SendThrottleTest, EveryEndOfAnAcceptReleasesItsPermitOnce) {
  net.p.on_req = Host::Reaction::kNoAnswer;
  const auto& replies_queued = net.p.cm.counters().replies_queued;
  const auto connect_without_answer = [&](std::uint32_t count) {
    net.p.endpoints.clear();
    connect(count, net.p.gid());
    net.run(1s);
    ASSERT_EQ(net.p.endpoints.size(), count);
  };
  const auto accept_all = [&] {
    for (const EndpointHandle request : net.p.endpoints) net.p.accept(request);
  };
  const auto expect_all_permits_free = [&](const std::string& after) {
    net.a.on_rep = Host::Reaction::kProceed;
    connect_without_answer(kLimit + 1);
    const std::uint64_t before = replies_queued;
    const EndpointHandle last_request = net.p.endpoints.back();
    net.p.endpoints.pop_back();
    accept_all();
    EXPECT_EQ(replies_queued, before) << after;
    net.p.accept(last_request);
    EXPECT_EQ(replies_queued, before + 1) << after;
    net.run(100s);
  };
  for (const auto reaction : {Host::Reaction::kProceed, Host::Reaction::kReject,
                              Host::Reaction::kDestroy, Host::Reaction::kNoAnswer}) {
    net.a.on_rep = reaction;
    connect_without_answer(2 * kLimit);
    accept_all();
    net.run(100ms);
    for (const EndpointHandle request : net.p.endpoints) {
      net.p.call([&](Manager& m) { (void)m.destroy(request, net.world.now()); });
    }
    net.run(100s);
    expect_all_permits_free("an answer " + std::to_string(static_cast<int>(reaction)));
  }
  connect_without_answer(2 * kLimit);
  net.lose("RTU", -1);
  net.lose("MRA", -1);
  accept_all();
  net.run(400s);
  net.lose("RTU", 0);
  net.lose("MRA", 0);
  expect_all_permits_free("silence");
}

// When a REP has no repeats left, its permit must end after one more interval, not at the timeout.
TEST_F(SendThrottleTest, RepWithoutRepeatsReleasesItsPermitSoon) {
  net.p.on_req = net.a.on_rep = Host::Reaction::kNoAnswer;
  for (const std::uint8_t repeats : {std::uint8_t{0}, std::uint8_t{1}}) {
    net.p.endpoints.clear();
    for (std::uint32_t i = 0; i < kLimit + 1; ++i) {
      ConnectRequest request = net.a.request(Qpn{next_qpn++}, net.p.gid());
      request.max_cm_retries = repeats;
      net.a.connect(request, i);
    }
    net.run(1s);
    const std::uint64_t before = net.p.cm.counters().of(AttributeId::kRep).sent;
    for (const EndpointHandle request : net.p.endpoints) net.p.accept(request);
    EXPECT_EQ(net.p.cm.counters().of(AttributeId::kRep).sent, before + kLimit);
    net.run(200ms);
    EXPECT_EQ(net.p.cm.counters().of(AttributeId::kRep).sent, before + kLimit + 1) << int{repeats};
    net.run(100s);
  }
}

// Queued requests use the round trip that the answered requests have shown, and so repeat less
// often.
TEST_F(SendThrottleTest, QueuedRequestsUseTheMeasuredRoundTrip) {
  net.delay_of = [](const std::string&, const std::string&) { return 30ms; };
  connect(8 * kLimit, net.p.gid());
  net.run(2s);
  EXPECT_EQ(connections(), 8 * kLimit);
  EXPECT_LE(reqs_repeated(), 4 * kLimit);
}

}  // namespace
}  // namespace verbena::cm
