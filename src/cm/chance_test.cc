#include <gtest/gtest.h>

#include "cm/pair_test.h"
#include "sim/seeds.h"

// Tests that every connect ends exactly once on each side, whatever the network does, and that
// nothing stays scheduled afterwards.

namespace verbena::cm {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kConnections = 6;

Host::Reaction random_reaction(Random& random) {
  switch (random.below(8)) {
    case 0: return Host::Reaction::kReject;
    case 1: return Host::Reaction::kDestroy;
    case 2: return Host::Reaction::kNoAnswer;
    default: return Host::Reaction::kProceed;
  }
}

// Makes a random call for a random endpoint, whether or not the endpoint's state allows the call.
void random_call(Net& net, Host& host, Random& random) {
  if (host.endpoints.empty()) return;
  const EndpointHandle endpoint = host.endpoints[random.below(host.endpoints.size())];
  const Time now = net.world.now();
  const auto call = random.below(6);
  if (call == 3) return host.reject(endpoint);
  host.call([&](Manager& m) {
    switch (call) {
      case 0: return (void)m.disconnect(endpoint, {}, now);
      case 1: return (void)m.destroy(endpoint, now);
      case 2: return (void)m.establish(endpoint, {}, now);
      case 4: return m.comm_established(endpoint, now);
      default: return (void)m.accept(endpoint, {.qpn = {0xa00}, .target_ack_delay = 8}, now);
    }
  });
}

void check_outcome(const Host::Outcome& outcome) {
  EXPECT_LE(outcome.requests, 1);
  EXPECT_LE(outcome.responses, 1);
  EXPECT_LE(outcome.established, 1);
  EXPECT_LE(outcome.failed + outcome.disconnected, 1);
  EXPECT_LE(outcome.timewait_exits, 1);
}

TEST(ConnectionSim, EveryConnectEndsExactlyOnce) {
  for (const std::uint64_t seed : sim::seeds(300)) {
    SCOPED_TRACE(testing::Message() << "replay with VB_SEED=" << seed);
    Random random(seed ^ 0x5eed);
    Net net(seed, sim::Faults{.delay_min = 100us,
                              .delay_max = 150ms,
                              .loss = {1, 4},
                              .duplicate = {1, 4},
                              .corrupt = {}});
    const bool random_calls = random.chance({1, 2});
    for (std::uint32_t i = 0; i < kConnections; ++i) {
      net.world.after(Duration(static_cast<std::int64_t>(random.below(2'000'000'000))), [&, i] {
        net.p.on_req = random_reaction(random);
        net.a.on_rep = random_reaction(random);
        net.a.connect({0x11 + i}, net.p.gid(), i + 1);
      });
    }
    if (random_calls) {
      for (int i = 0; i < 10; ++i) {
        net.world.after(Duration(static_cast<std::int64_t>(random.below(20'000'000'000))), [&] {
          random_call(net, random.chance({1, 2}) ? net.a : net.p, random);
        });
      }
    }
    net.run(30s);

    // The faults stop, and all consumers destroy their endpoints.
    net.set_faults(
        {.delay_min = 1ms, .delay_max = 1ms, .loss = {}, .duplicate = {}, .corrupt = {}});
    net.run(5s);
    for (Host* host : {&net.a, &net.p}) {
      for (const auto& [endpoint, outcome] : host->outcomes) check_outcome(outcome);
      for (const EndpointHandle endpoint : host->endpoints) {
        (void)host->outcomes[endpoint];  // makes an empty outcome if no event came
        EXPECT_TRUE(host->reported_once(endpoint)) << host->name();
        host->call([&](Manager& m) { (void)m.destroy(endpoint, net.world.now()); });
      }
    }
    net.run(70s);
    ASSERT_TRUE(net.world.is_idle()) << "something is still scheduled" << net.text();
    ASSERT_EQ(net.a.cm.endpoints(), 0u) << net.text();
    ASSERT_EQ(net.p.cm.endpoints(), 0u) << net.text();
    ASSERT_FALSE(net.a.cm.has_orphans() || net.p.cm.has_orphans());
    if (testing::Test::HasFailure()) FAIL() << net.text();
  }
}

// Both sides report the same outcome if the consumers always answer.
TEST(ConnectionSim, BothSidesAgree) {
  for (const std::uint64_t seed : sim::seeds(300)) {
    SCOPED_TRACE(testing::Message() << "replay with VB_SEED=" << seed);
    Random random(seed ^ 0xa9ee);
    Net net(seed, sim::Faults{.delay_min = 100us,
                              .delay_max = 60ms,
                              .loss = {1, 5},
                              .duplicate = {1, 5},
                              .corrupt = {}});
    if (random.chance({1, 3})) net.p.on_req = Host::Reaction::kReject;
    const EndpointHandle active_endpoint = net.a.connect({0x11}, net.p.gid());
    net.run(35s);
    const auto& outcome = net.a.outcomes[active_endpoint];
    ASSERT_EQ(outcome.responses + outcome.failed, 1) << net.text();
    ASSERT_EQ(net.p.outcomes.size(), 1u) << net.text();
    const EndpointHandle passive_endpoint = net.p.last();
    ASSERT_EQ(net.p.outcomes[passive_endpoint].established, outcome.responses) << net.text();
    if (outcome.responses == 0) {
      ASSERT_EQ(outcome.reason, 28);
      continue;
    }
    const bool both_disconnect = random.chance({1, 2});
    net.a.call([&](Manager& m) { (void)m.disconnect(active_endpoint, {}, net.world.now()); });
    if (both_disconnect)
      net.p.call([&](Manager& m) { (void)m.disconnect(passive_endpoint, {}, net.world.now()); });
    net.run(30s);
    for (const auto& side : {net.a.outcomes[active_endpoint], net.p.outcomes[passive_endpoint]}) {
      ASSERT_EQ(side.disconnected, 1) << net.text();
      ASSERT_EQ(side.timewait_exits, 1) << net.text();
    }
    ASSERT_TRUE(net.world.is_idle()) << net.text();
  }
}

}  // namespace
}  // namespace verbena::cm
