#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "fabric/test_scene.h"

// Kills programs and agents at many moments during the life of a connection, kStep apart.
namespace verbena::fabric {
namespace {

using namespace testing;

constexpr Duration kStep = 3us;
constexpr Duration kExchangeDuration = 240us;  // longer than an exchange without faults
constexpr Duration kTimeout = 45s;  // longer than the 30 s for which a client tries to connect

Client::Config config(bool server_disconnects) {
  Client::Config client_config{
      .operations = kRping, .window = 2, .server_disconnects = server_disconnects};
  client_config.operations.push_back({Operation::Kind::kSend, 2500});
  return client_config;
}

class Death : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(WhoDisconnects, Death, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "TheServer" : "TheClient"; });

TEST_P(Death, ServerNoticesTheClientsDeathInEachState) {
  std::set<Client::State> states;
  for (Duration moment{}; moment < kExchangeDuration; moment += kStep) {
    SCOPED_TRACE(moment.count());
    Scene scene;
    scene.listen();
    scene.network.run(100us);
    scene.connect(config(GetParam()));
    scene.network.run(moment);
    states.insert(scene.client->state());
    scene.a.kill(scene.client_id);
    scene.network.run(kTimeout);
    // The server received an event for the end of each connection.
    EXPECT_THAT(scene.server->peers(), ::testing::IsEmpty());
    for (const Outcome& outcome : scene.server->outcomes()) {
      EXPECT_EQ(outcome.disconnected + outcome.rejected + outcome.unreachable, 1u);
      EXPECT_LE(outcome.disconnected, outcome.established);
    }
    EXPECT_EQ(scene.b.node().ids(), scene.server->finished() ? 0u : 1u);
    scene.kill_all_and_check();
    if (::testing::Test::HasFailure()) {
      std::puts(scene.network.diagram.text().c_str());
      return;
    }
  }
  // The side that is not the first to disconnect leaves kDisconnecting at once, so the test does
  // not see this state.
  EXPECT_EQ(states.size(), GetParam() ? 6u : 7u);
}

TEST_P(Death, ClientNoticesTheServersDeathInEachState) {
  std::set<Server::State> states;
  std::set<Server::PeerState> peer_states;
  for (Duration moment{}; moment < kExchangeDuration; moment += kStep) {
    SCOPED_TRACE(moment.count());
    Scene scene;
    scene.listen();
    scene.connect(config(GetParam()));
    scene.network.run(moment);
    states.insert(scene.server->state());
    for (const auto state : scene.server->peers()) peer_states.insert(state);
    scene.b.kill(scene.server_id);
    EXPECT_TRUE(scene.network.run_until([&] { return scene.client->finished(); }, kTimeout));
    const Outcome& outcome = scene.client->outcome();
    EXPECT_EQ(outcome.disconnected + outcome.rejected + outcome.unreachable, 1u);
    EXPECT_LE(outcome.disconnected, outcome.established);
    scene.kill_all_and_check();
    if (::testing::Test::HasFailure()) {
      std::puts(scene.network.diagram.text().c_str());
      return;
    }
  }
  EXPECT_EQ(states.size(), 4u);
  // The side that is not the first to disconnect leaves kDisconnecting at once, so the test does
  // not see this state.
  EXPECT_EQ(peer_states.size(), GetParam() ? 4u : 3u);
}

TEST_P(Death, ClientEndsWhenItsAgentDies) {
  for (Duration moment{}; moment < kExchangeDuration; moment += kStep) {
    SCOPED_TRACE(moment.count());
    Scene scene;
    scene.listen();
    scene.network.run(100us);
    scene.connect(config(GetParam()));
    scene.network.run(moment);
    const bool was_finished = scene.client->finished();
    const bool gets_welcome = moment >= 5us;  // the agent receives the Hello after 5 us
    scene.a.kill_agent();
    scene.network.run(1ms);
    Client& client = *scene.client;
    if (!was_finished && gets_welcome) {
      EXPECT_TRUE(client.finished());
      EXPECT_LE(client.outcome().device_removed, 1u);
    }
    EXPECT_EQ(client.device_fatal_count(), gets_welcome ? 1u : 0u);
    for (const SimProcess::FailedCall& failed_call : client.sim_process().failed_calls) {
      EXPECT_EQ(failed_call.code, Errc::kDeviceFatal) << failed_call.call;
    }
    EXPECT_EQ(client.sim_process().engine().qp_count(), 0u);
    scene.b.kill(scene.server_id);
    scene.kill_all_and_check();
    if (::testing::Test::HasFailure()) {
      std::puts(scene.network.diagram.text().c_str());
      return;
    }
  }
}

// The client detects the death of the agent, because the client's operations fail or its DREQ gets
// no reply.
TEST(AgentDeath, ClientNoticesTheDeathOfTheServersAgent) {
  for (Duration moment{}; moment < kExchangeDuration; moment += kStep) {
    SCOPED_TRACE(moment.count());
    Scene scene;
    scene.listen();
    scene.network.run(100us);
    scene.connect(config(false));
    scene.network.run(moment);
    scene.b.kill_agent();
    EXPECT_TRUE(scene.network.run_until([&] { return scene.client->finished(); }, kTimeout));
    EXPECT_TRUE(scene.server->finished());
    EXPECT_EQ(scene.server->sim_process().engine().qp_count(), 0u);
    scene.kill_all_and_check();
    if (::testing::Test::HasFailure()) {
      std::puts(scene.network.diagram.text().c_str());
      return;
    }
  }
}

// The program continues with a new agent, in the same process.  The new agent sends DREQs for the
// old connection to the server, and repeats them if they are lost.
TEST_P(Death, ClientContinuesWithTheNextAgent) {
  constexpr Duration kNoticeLimit = 2s;
  for (Duration moment = 6us; moment < kExchangeDuration; moment += kStep) {
    SCOPED_TRACE(moment.count());
    Scene scene;
    scene.listen("server", 100);
    scene.network.run(100us);
    scene.connect(config(GetParam()));
    scene.network.run(moment);
    scene.a.kill_agent();
    scene.network.run(1ms);
    EXPECT_TRUE(scene.client->finished());
    scene.network.lose("DisconnectRequest", 2);
    scene.connect_again();
    const auto all_have_ended = [&] {
      return scene.client->finished() && scene.server->peers().empty();
    };
    EXPECT_TRUE(scene.network.run_until(all_have_ended, kNoticeLimit));
    EXPECT_TRUE(scene.client->succeeded());
    for (const Outcome& outcome : scene.server->outcomes()) {
      EXPECT_EQ(outcome.disconnected + outcome.rejected + outcome.unreachable, 1u);
      EXPECT_LE(outcome.disconnected, outcome.established);
    }
    scene.kill_all_and_check();
    if (::testing::Test::HasFailure()) {
      std::puts(scene.network.diagram.text().c_str());
      return;
    }
  }
}

TEST(AgentDeath, ServerContinuesWithTheNextAgent) {
  constexpr Duration kNoticeLimit = 2s;
  for (Duration moment{}; moment < kExchangeDuration; moment += kStep) {
    SCOPED_TRACE(moment.count());
    Scene scene;
    scene.listen();
    scene.network.run(100us);
    scene.connect(config(true));
    scene.network.run(moment);
    scene.b.kill_agent();
    scene.network.run(1ms);
    scene.listen_again();
    EXPECT_TRUE(scene.network.run_until([&] { return scene.client->finished(); }, kNoticeLimit));
    scene.kill_all_and_check();
    if (::testing::Test::HasFailure()) {
      std::puts(scene.network.diagram.text().c_str());
      return;
    }
  }
}

// Both programs lose their agents at the same time, and both continue with new agents.
TEST(AgentDeath, BothProgramsContinueWithNewAgents) {
  for (Duration moment = 6us; moment < kExchangeDuration; moment += kStep) {
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
    scene.kill_all_and_check();
    if (::testing::Test::HasFailure()) {
      std::puts(scene.network.diagram.text().c_str());
      return;
    }
  }
}

TEST(QpnRanges, QuiesceBeforeTheyAreLeasedAgain) {
  Scene scene;
  scene.listen();
  scene.network.run(100us);
  scene.connect();
  scene.network.run(100us);
  ASSERT_EQ(scene.a.used_range_count(), 1u);
  scene.a.kill(scene.client_id);
  scene.network.run(999ms);
  EXPECT_EQ(scene.a.used_range_count(), 1u);
  scene.network.run(2ms);
  EXPECT_EQ(scene.a.used_range_count(), 0u);
  scene.kill_all_and_check();
}

}  // namespace
}  // namespace verbena::fabric
