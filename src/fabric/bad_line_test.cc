#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "fabric/test_scene.h"
#include "sim/seeds.h"

// Lines that are bad for longer than an answer takes: in bursts, or dead for seconds.  No
// connection may fail.
namespace verbena::fabric {
namespace {

using namespace testing;

constexpr std::uint32_t kConnections = 50;

// Fifty clients of host a, all of one server of host b.
struct Crowd {
  Crowd(std::uint64_t seed, const sim::Faults& faults)
      : random(seed), network({.seed = seed, .wire = faults}) {
    // IPv4 hides the identification, so one corrupt packet of 65,536 would pass.
    a = &network.add_host("a", true);
    Host& b = network.add_host("b", true);
    server =
        &b.run<Server>("server", Server::Config{.address = any(true), .clients = kConnections});
  }
  // Each at its own moment of this time.
  void begin(Duration within) {
    for (std::uint32_t i = 0; i < kConnections; ++i) {
      const auto moment = random.below(static_cast<std::uint64_t>(within.count()));
      network.world.at(Time(1ms + Duration(static_cast<Duration::rep>(moment))), [this, i] {
        clients.push_back(&a->run<Client>(
            "client" + std::to_string(i),
            Client::Config{.server = at(2, true), .operations = kRping, .salt = i}));
      });
    }
  }
  bool finish(Duration limit) {
    return network.run_until(
        [&] {
          return clients.size() == kConnections &&
                 std::ranges::all_of(clients, [](Client* client) { return client->finished(); });
        },
        limit);
  }
  std::uint32_t made() const {
    return static_cast<std::uint32_t>(std::ranges::count_if(
        clients, [](Client* client) { return client->story().established == 1; }));
  }
  std::uint32_t succeeded() const {
    return static_cast<std::uint32_t>(
        std::ranges::count_if(clients, [](Client* client) { return client->succeeded(); }));
  }
  std::string failures() const {
    std::string all;
    for (Client* client : clients) {
      if (client->succeeded()) continue;
      const Story& story = client->story();
      all += client->seat().name() + " (" + std::to_string(story.unreachable) + " unreachable, " +
             std::to_string(story.rejected) + " rejected, " + std::to_string(story.established) +
             " established), ";
    }
    return all;
  }

  Random random;
  Network network;
  Host* a = nullptr;
  Server* server = nullptr;
  std::vector<Client*> clients{};
};

TEST(BadLine, FiftyConnectionsOfFiftyAreMadeInBurstsOfLossAndCorruption) {
  std::uint32_t runs = 0, broken = 0;
  for (const std::uint64_t seed : sim::seeds(20)) {
    Crowd crowd(seed, {.loss = {30, 100}, .corrupt = {30, 100}, .burst = 3});
    crowd.begin(1s);
    EXPECT_TRUE(crowd.finish(120s)) << "VB_SEED=" << seed;
    EXPECT_EQ(crowd.made(), kConnections) << "VB_SEED=" << seed << ": " << crowd.failures();
    ASSERT_THAT(crowd.network.complaints(), ::testing::IsEmpty()) << "VB_SEED=" << seed;
    broken += kConnections - crowd.succeeded();
    ++runs;
  }
  // Half of all packets is bad: now and then a request runs out of retries.
  EXPECT_LE(broken * 200, runs * kConnections);
}

TEST(BadLine, ConnectionsAreMadeThroughALineThatIsDeadForFiveSecondsOfSeven) {
  for (const std::uint64_t seed : sim::seeds(20)) {
    Crowd crowd(seed, {});
    std::function<void(bool)> cut = [&](bool dead) {
      crowd.network.wire().set_faults({.loss = {dead ? 1u : 0u, 1}});
      if (crowd.network.now() > Time(60s)) return;
      crowd.network.world.after(dead ? 5s : 2s, [&cut, dead] { cut(!dead); });
    };
    cut(seed % 2 == 1);
    crowd.begin(14s);
    EXPECT_TRUE(crowd.finish(120s)) << "VB_SEED=" << seed;
    ASSERT_EQ(crowd.succeeded(), kConnections) << "VB_SEED=" << seed << ": " << crowd.failures();
    ASSERT_THAT(crowd.network.complaints(), ::testing::IsEmpty()) << "VB_SEED=" << seed;
  }
}

}  // namespace
}  // namespace verbena::fabric
