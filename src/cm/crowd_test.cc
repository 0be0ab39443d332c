#include <gtest/gtest.h>

#include <array>
#include <set>
#include <utility>

#include "cm/pair_test.h"
#include "sim/seeds.h"

// Two to eight hosts connect, also peer to peer, offer paths, reject, delay, destroy and restart,
// in random order and over a faulty network.  Every endpoint must end with exactly one outcome,
// nothing may stay scheduled, and both sides must agree on which connections exist.

namespace verbena::cm {
namespace {

using namespace std::chrono_literals;

class Crowd {
 public:
  explicit Crowd(std::uint64_t seed)
      : random_(seed ^ 0xc0d), net(seed, faults(random_), 2 + random_.below(7)) {
    for (std::size_t i = 0; i < net.hosts(); ++i) {
      net.host(i).packet_life = 15;  // 134 ms
      if (&net.host(i) != &net.p) listen(net.host(i));
    }
  }

  // Runs `calls` random calls of random hosts within this time.
  void make_random_calls(int calls, Duration within) {
    for (int i = 0; i < calls; ++i) {
      const auto when = random_.below(static_cast<std::uint64_t>(within.count()));
      net.world.after(Duration(static_cast<std::int64_t>(when)), [this] { random_call(); });
    }
    net.run(within);
  }
  // Ends the faults, answers all open requests, and runs until the timers have expired.
  void stop_faults() {
    net.set_faults({.delay_min = 1ms, .delay_max = 1ms});
    for (std::size_t i = 0; i < net.hosts(); ++i) answer_all(net.host(i));
    net.run(70s);
  }
  void destroy_all() {
    for (std::size_t i = 0; i < net.hosts(); ++i) {
      Host& host = net.host(i);
      for (const EndpointHandle endpoint : host.endpoints) {
        host.call([&](Manager& m) { (void)m.destroy(endpoint, net.world.now()); });
      }
    }
    net.run(70s);
  }

  // Checks that the peer of each established endpoint is established, too.  (Skips the check if a
  // host was restarted: its peers would learn only from data that their connections are over.)
  void check_agreement() {
    if (restarted_) return;
    const auto ends = established_ends();
    for (const auto& [ours, theirs] : ends) {
      EXPECT_TRUE(ends.contains({theirs, ours})) << net.text();
    }
    established_ = ends.size();
  }
  void check_outcomes() {
    for (std::size_t i = 0; i < net.hosts(); ++i) {
      Host& host = net.host(i);
      for (const EndpointHandle endpoint : host.endpoints) {
        (void)host.outcomes[endpoint];  // makes an empty outcome if no event came
      }
      for (const auto& [endpoint, outcome] : host.outcomes) {
        EXPECT_LE(outcome.requests, 1);
        EXPECT_LE(outcome.responses, 1);
        EXPECT_LE(outcome.requests + outcome.responses, 1);
        EXPECT_LE(outcome.established, 1);
        EXPECT_TRUE(host.reported_once(endpoint)) << host.name();
        EXPECT_LE(outcome.timewait_exits, 1);
        laps_ += outcome.laps;
        turned_passive_ += outcome.requests == 1 && peer_to_peer_.contains({i, endpoint});
      }
    }
  }
  std::size_t established() const { return established_; }
  int laps() const { return laps_; }
  int turned_passive() const { return turned_passive_; }

 private:
  // Returns pairs of our id and the peer's id.
  std::set<std::pair<CommId, CommId>> established_ends() const {
    std::set<std::pair<CommId, CommId>> ends;
    for (std::size_t i = 0; i < net.hosts(); ++i) {
      net.host(i).cm.visit([&](const View& view) {
        if (view.state != State::kEstablished) return;
        ends.emplace(view.local_comm_id, view.remote_comm_id);
      });
    }
    return ends;
  }
  static sim::Faults faults(Random& random) {
    const auto percent = [&](std::uint32_t max) {
      return Ratio{static_cast<std::uint32_t>(random.below(max + 1)), 100};
    };
    return {.delay_min = 100us,
            .delay_max = Duration(1ms) * static_cast<int>(1 + random.below(100)),
            .loss = percent(25),
            .duplicate = percent(25),
            .corrupt = percent(10),
            .burst = static_cast<unsigned>(1 + random.below(3))};
  }
  static void listen(Host& host) {
    host.call([](Manager& m) { (void)m.listen({.id = kService}, kListenerCookie); });
  }
  Host::Reaction random_reaction() {
    constexpr std::array kOthers = {Host::Reaction::kReject, Host::Reaction::kDestroy,
                                    Host::Reaction::kNoAnswer, Host::Reaction::kDrop};
    return random_.chance({2, 3}) ? Host::Reaction::kProceed
                                  : kOthers[random_.below(kOthers.size())];
  }
  // Answers all requests that have no answer yet.
  void answer_all(Host& host) {
    for (const EndpointHandle endpoint : host.endpoints) {
      const auto view = host.cm.view(endpoint);
      if (!view) continue;
      if (view->state == State::kRepReceived) {
        host.call([&](Manager& m) { (void)m.establish(endpoint, {}, net.world.now()); });
      } else if (view->state == State::kReqReceived || view->state == State::kMraReqSent) {
        host.accept(endpoint);
      }
    }
  }
  std::pair<Host&, Host&> random_hosts() {
    const std::size_t one = random_.below(net.hosts());
    const std::size_t other = (one + 1 + random_.below(net.hosts() - 1)) % net.hosts();
    return {net.host(one), net.host(other)};
  }
  void note_peer_to_peer(Host& host, EndpointHandle endpoint) {
    for (std::size_t i = 0; i < net.hosts(); ++i) {
      if (&net.host(i) == &host) peer_to_peer_.emplace(i, endpoint);
    }
  }
  void random_call() {
    auto [host, other] = random_hosts();
    host.on_req = random_reaction(), host.on_rep = random_reaction(),
    host.on_lap = random_reaction();
    const Qpn qpn{next_qpn_++};
    const Time now = net.world.now();
    const EndpointHandle endpoint = host.endpoints.empty()
                                        ? EndpointHandle{}
                                        : host.endpoints[random_.below(host.endpoints.size())];
    switch (random_.below(16)) {
      case 0:
      case 1:
      case 2:
      case 3: return (void)host.connect(qpn, other.gid());
      case 4:
      case 5:
        note_peer_to_peer(host, host.connect_peer_to_peer(qpn, other.gid()));
        return note_peer_to_peer(other, other.connect_peer_to_peer({next_qpn_++}, host.gid()));
      case 6: return note_peer_to_peer(host, host.connect_peer_to_peer(qpn, other.gid()));
      case 7:
      case 8: return offer_path(host, endpoint);
      case 9: return host.call([&](Manager& m) { m.path_migrated(endpoint); });
      case 10: return host.call([&](Manager& m) { (void)m.disconnect(endpoint, {}, now); });
      case 11: return host.call([&](Manager& m) { (void)m.destroy(endpoint, now); });
      case 12: return deliver_data(host, endpoint);
      case 13: return host.call([&](Manager& m) { (void)m.unlisten({.id = kService}); });
      case 14: return listen(host);
      default: return restart(host);
    }
  }
  // Reports the peer's first data, if the peer is established.  Other peers send no data.
  void deliver_data(Host& host, EndpointHandle endpoint) {
    const auto view = host.cm.view(endpoint);
    if (!view || !established_ends().contains({view->remote_comm_id, view->local_comm_id})) return;
    host.call([&](Manager& m) { m.comm_established(endpoint, net.world.now()); });
  }
  void offer_path(Host& host, EndpointHandle endpoint) {
    const auto view = host.cm.view(endpoint);
    if (!view) return;
    for (std::size_t i = 0; i < net.hosts(); ++i) {
      bool is_peer = false;
      net.host(i).cm.visit(
          [&](const View& other) { is_peer |= other.local_comm_id == view->remote_comm_id; });
      if (!is_peer) continue;
      const AlternatePath path = host.alternate_to(net.host(i).gid2());
      host.call([&](Manager& m) {
        (void)m.load_alternate_path(endpoint, path, {}, 5s, net.world.now());
      });
    }
  }
  // Restarts a host, but in only one of eight calls, because the test cannot check its endpoints
  // any more.
  void restart(Host& host) {
    if (!random_.chance({1, 8})) return;
    restarted_ = true;
    host.restart();
    host.endpoints.clear();
    host.outcomes.clear();
    listen(host);
  }

  Random random_;
  std::uint32_t next_qpn_ = 0x11;
  bool restarted_ = false;
  std::set<std::pair<std::size_t, EndpointHandle>> peer_to_peer_;
  std::size_t established_ = 0;
  int laps_ = 0;
  int turned_passive_ = 0;

 public:
  Net net;
};

TEST(CrowdSim, EveryEndpointEndsAndBothSidesAgree) {
  std::size_t established = 0;
  int laps = 0;
  int turned_passive = 0;
  const auto seeds = sim::seeds(100);
  for (const std::uint64_t seed : seeds) {
    SCOPED_TRACE(testing::Message() << "replay with VB_SEED=" << seed);
    Crowd crowd(seed);
    crowd.make_random_calls(60, 30s);
    crowd.stop_faults();
    crowd.check_agreement();
    crowd.check_outcomes();
    crowd.destroy_all();
    established += crowd.established();
    laps += crowd.laps();
    turned_passive += crowd.turned_passive();
    ASSERT_TRUE(crowd.net.world.is_idle()) << "something is still scheduled" << crowd.net.text();
    for (std::size_t i = 0; i < crowd.net.hosts(); ++i) {
      ASSERT_EQ(crowd.net.host(i).cm.endpoints(), 0u) << i << crowd.net.text();
    }
    if (testing::Test::HasFailure()) FAIL() << crowd.net.text();
  }
  if (seeds.size() < 10) return;
  EXPECT_GT(established, seeds.size());
  EXPECT_GT(laps, 0);
  EXPECT_GT(turned_passive, 0);
}

}  // namespace
}  // namespace verbena::cm
