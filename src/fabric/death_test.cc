#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "fabric/test_scene.h"

// Programs and agents that die, at every moment of a connection's life.
namespace verbena::fabric {
namespace {

using namespace testing;

constexpr Duration kStep = 3us;
constexpr Duration kWhole = 240us;   // an exchange without faults, and some more
constexpr Duration kPatience = 45s;  // 30 s of connecting, and then some

Client::Config config(bool server_hangs_up) {
  Client::Config made{.operations = kRping, .window = 2, .server_hangs_up = server_hangs_up};
  made.operations.push_back({Operation::Kind::kSend, 2500});
  return made;
}

class Death : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(WhoHangsUp, Death, ::testing::Bool(),
                         [](const auto& of) { return of.param ? "TheServer" : "TheClient"; });

TEST_P(Death, OfAClientInEachState) {
  std::set<Client::State> states;
  for (Duration moment{}; moment < kWhole; moment += kStep) {
    SCOPED_TRACE(moment.count());
    Scene scene;
    scene.listen();
    scene.network.run(100us);
    scene.connect(config(GetParam()));
    scene.network.run(moment);
    states.insert(scene.client->state());
    scene.a.kill(scene.client_seat);
    scene.network.run(kPatience);
    // The server has seen the end of whatever it had seen the beginning of.
    EXPECT_THAT(scene.server->peers(), ::testing::IsEmpty());
    for (const Story& story : scene.server->stories()) {
      EXPECT_EQ(story.disconnected + story.rejected + story.unreachable, 1u);
      EXPECT_LE(story.disconnected, story.established);
    }
    EXPECT_EQ(scene.b.node().ids(), scene.server->finished() ? 0u : 1u);
    scene.end();
    if (::testing::Test::HasFailure()) {
      std::puts(scene.network.diagram.text().c_str());
      return;
    }
  }
  EXPECT_EQ(states.size(), GetParam() ? 6u : 7u);  // hanging up second takes no time
}

TEST_P(Death, OfAServerInEachState) {
  std::set<Server::State> states;
  std::set<Server::PeerState> peer_states;
  for (Duration moment{}; moment < kWhole; moment += kStep) {
    SCOPED_TRACE(moment.count());
    Scene scene;
    scene.listen();
    scene.connect(config(GetParam()));
    scene.network.run(moment);
    states.insert(scene.server->state());
    for (const auto state : scene.server->peers()) peer_states.insert(state);
    scene.b.kill(scene.server_seat);
    EXPECT_TRUE(scene.network.run_until([&] { return scene.client->finished(); }, kPatience));
    const Story& story = scene.client->story();
    EXPECT_EQ(story.disconnected + story.rejected + story.unreachable, 1u);
    EXPECT_LE(story.disconnected, story.established);
    scene.end();
    if (::testing::Test::HasFailure()) {
      std::puts(scene.network.diagram.text().c_str());
      return;
    }
  }
  EXPECT_EQ(states.size(), 4u);
  EXPECT_EQ(peer_states.size(), GetParam() ? 4u : 3u);  // hanging up second takes no time
}

TEST_P(Death, OfTheClientsAgentAtAnyMoment) {
  for (Duration moment{}; moment < kWhole; moment += kStep) {
    SCOPED_TRACE(moment.count());
    Scene scene;
    scene.listen();
    scene.network.run(100us);
    scene.connect(config(GetParam()));
    scene.network.run(moment);
    const bool was_finished = scene.client->finished();
    const bool welcomed = moment >= 5us;  // or the word is on its way
    scene.a.kill_agent();
    scene.network.run(1ms);
    Client& client = *scene.client;
    if (!was_finished && welcomed) {
      EXPECT_TRUE(client.finished());
      EXPECT_LE(client.story().device_removed, 1u);
    }
    EXPECT_EQ(client.device_fatal(), welcomed ? 1u : 0u);
    for (const Seat::Refusal& refusal : client.seat().refusals) {
      EXPECT_EQ(refusal.code, Errc::kDeviceFatal) << refusal.what;
    }
    EXPECT_EQ(client.seat().engine().qp_count(), 0u);
    scene.b.kill(scene.server_seat);
    scene.end();
    if (::testing::Test::HasFailure()) {
      std::puts(scene.network.diagram.text().c_str());
      return;
    }
  }
}

// The client finds out: by what it does, or by its goodbye.
TEST(AgentDeath, OfTheServersAgentAtAnyMoment) {
  for (Duration moment{}; moment < kWhole; moment += kStep) {
    SCOPED_TRACE(moment.count());
    Scene scene;
    scene.listen();
    scene.network.run(100us);
    scene.connect(config(false));
    scene.network.run(moment);
    scene.b.kill_agent();
    EXPECT_TRUE(scene.network.run_until([&] { return scene.client->finished(); }, kPatience));
    EXPECT_TRUE(scene.server->finished());
    EXPECT_EQ(scene.server->seat().engine().qp_count(), 0u);
    scene.end();
    if (::testing::Test::HasFailure()) {
      std::puts(scene.network.diagram.text().c_str());
      return;
    }
  }
}

// The program goes on with the next agent, in the same process; the server hears from that agent
// that the first connection is over, also if that word gets lost for some time.
TEST_P(Death, OfTheClientsAgentAndTheNextOne) {
  constexpr Duration kHears = 2s;
  for (Duration moment = 6us; moment < kWhole; moment += kStep) {
    SCOPED_TRACE(moment.count());
    Scene scene;
    scene.listen("server", 100);
    scene.network.run(100us);
    scene.connect(config(GetParam()));
    scene.network.run(moment);
    scene.a.kill_agent();
    scene.network.run(1ms);
    EXPECT_TRUE(scene.client->finished());
    scene.network.lose("DREQ", 2);
    scene.connect_again();
    const auto over = [&] { return scene.client->finished() && scene.server->peers().empty(); };
    EXPECT_TRUE(scene.network.run_until(over, kHears));
    EXPECT_TRUE(scene.client->succeeded());
    for (const Story& story : scene.server->stories()) {
      EXPECT_EQ(story.disconnected + story.rejected + story.unreachable, 1u);
      EXPECT_LE(story.disconnected, story.established);
    }
    scene.end();
    if (::testing::Test::HasFailure()) {
      std::puts(scene.network.diagram.text().c_str());
      return;
    }
  }
}

TEST(AgentDeath, OfTheServersAgentAndTheNextOne) {
  constexpr Duration kHears = 2s;
  for (Duration moment{}; moment < kWhole; moment += kStep) {
    SCOPED_TRACE(moment.count());
    Scene scene;
    scene.listen();
    scene.network.run(100us);
    scene.connect(config(true));
    scene.network.run(moment);
    scene.b.kill_agent();
    scene.network.run(1ms);
    scene.listen_again();
    EXPECT_TRUE(scene.network.run_until([&] { return scene.client->finished(); }, kHears));
    scene.end();
    if (::testing::Test::HasFailure()) {
      std::puts(scene.network.diagram.text().c_str());
      return;
    }
  }
}

// Both programs lose their agents at once, and both go on.
TEST(AgentDeath, OfBothAndTheNextOnes) {
  for (Duration moment = 6us; moment < kWhole; moment += kStep) {
    SCOPED_TRACE(moment.count());
    Scene scene;
    scene.listen();
    scene.network.run(100us);
    scene.connect(config(false));
    scene.network.run(moment);
    scene.a.kill_agent();
    scene.b.kill_agent();
    scene.network.run(1ms);
    scene.listen_again();
    scene.network.run(1ms);
    scene.connect_again();
    EXPECT_TRUE(scene.finish());
    EXPECT_TRUE(scene.client->succeeded());
    scene.end();
    if (::testing::Test::HasFailure()) {
      std::puts(scene.network.diagram.text().c_str());
      return;
    }
  }
}

TEST(Ranges, RestBeforeTheyAreLeasedAgain) {
  Scene scene;
  scene.listen();
  scene.network.run(100us);
  scene.connect();
  scene.network.run(100us);
  ASSERT_EQ(scene.a.ranges_taken(), 1u);
  scene.a.kill(scene.client_seat);
  scene.network.run(999ms);
  EXPECT_EQ(scene.a.ranges_taken(), 1u);
  scene.network.run(2ms);
  EXPECT_EQ(scene.a.ranges_taken(), 0u);
  scene.end();
}

}  // namespace
}  // namespace verbena::fabric
