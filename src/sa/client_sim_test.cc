#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "sa/net_test.h"
#include "sim/seeds.h"

// Runs clients with managers that lose requests and answers, are busy and slow, and die and restart
// with empty memory.  The network loses, repeats and reorders packets.
namespace verbena::sa {
namespace {

using namespace std::chrono_literals;

constexpr unsigned kHosts = 4;
constexpr unsigned kGroups = 3;

class ClientSim {
 public:
  explicit ClientSim(std::uint64_t seed)
      : random_(seed ^ 0x5a5a), net_(seed, kHosts, random_config(random_)) {
    age_ = 20s;
    net_.set_faults(bad_wire());
  }

  void run() {
    const Time end = net_.world.now() + 150s;
    while (net_.world.now() < end && !testing::Test::HasFatalFailure()) {
      do_random_action();
      net_.run_for(random_between(1ms, 2s));
      check_events();
    }
    end_faults_and_wait();
    check_final_state();
  }

 private:
  static Client::Config random_config(Random& random) {
    const bool has_table = random.chance({1, 3});
    return {.paths = {.mode = has_table ? PathCache::Mode::kTable : PathCache::Mode::kGet,
                      .entries_max = random.chance({1, 3}) ? std::size_t{2} : std::size_t{64},
                      .age = 20s,
                      .age_with_notices = 20s,
                      .negative_age = 2s},
            .notices = random.chance({3, 4})};
  }
  static sim::Faults bad_wire() {
    return {
        .delay_min = 10us, .delay_max = 400ms, .loss = {1, 6}, .duplicate = {1, 8}, .corrupt = {}};
  }
  Duration random_between(Duration from, Duration to) {
    return from + Duration(static_cast<std::int64_t>(
                      random_.below(static_cast<std::uint64_t>((to - from).count()))));
  }
  unsigned any_host() { return static_cast<unsigned>(random_.below(kHosts)); }
  Gid any_group() {
    Gid gid{.bytes = {std::byte{0xff}, std::byte{0x12}}};
    gid.bytes[15] = static_cast<std::byte>(1 + random_.below(kGroups));
    return gid;
  }

  // ---- load and faults

  void do_random_action() {
    switch (random_.below(12)) {
      case 0:
      case 1:
      case 2:
      case 3: return find(any_host(), any_host());
      case 4:
      case 5: return join(any_host());
      case 6: return leave_any();
      case 7: return cancel_oldest_query();
      case 8: return change_host(any_host());
      case 9: return change_manager();
      case 10: return change_manager_faults();
      case 11: return add_service(any_host());
      default: return;
    }
  }

  void find(unsigned from, unsigned to) {
    const PathQuery query{.destination = Net::gid(to), .source = Net::gid(from)};
    const Time now = net_.world.now();
    const std::uint64_t cookie = ++last_cookie_;
    const auto found = net_.client(from).paths().find(query, cookie, random_between(1s, 40s), now);
    if (found && std::holds_alternative<KnownPaths>(*found)) {
      const Lid lid = std::get<KnownPaths>(*found).path.destination_lid;
      EXPECT_TRUE(net_.had_lid_since(to, lid, now - age_)) << "the path is older than its age";
    } else if (found) {
      pending_.emplace(cookie, std::pair(from, std::get<PathTicket>(*found)));
    }
    net_.pump();
  }
  void cancel_oldest_query() {
    if (pending_.empty()) return;
    const auto cookie = pending_.begin()->first;
    const auto [host, ticket] = pending_.begin()->second;
    check_events();
    if (!pending_.contains(cookie)) return;
    EXPECT_TRUE(net_.client(host).paths().cancel(ticket, net_.world.now()));
    pending_.erase(cookie);
    net_.pump();
  }

  struct User {
    unsigned host = 0;
    MemberId id{};
    Gid mgid{};
    std::uint8_t state = 0;
    bool has_joined = false;
  };
  void join(unsigned host) {
    const std::uint64_t cookie = ++last_cookie_;
    const auto state = static_cast<std::uint8_t>(1 + random_.below(15));
    const Gid mgid = any_group();
    const auto id = net_.client(host).memberships().join(
        {.mgid = mgid, .join_state = state, .give_up_after = random_between(1s, 60s)}, cookie,
        net_.world.now());
    ASSERT_TRUE(id);
    users_.emplace(cookie, User{.host = host, .id = *id, .mgid = mgid, .state = state});
    net_.pump();
  }
  void leave_any() {
    if (users_.empty()) return;
    auto chosen = users_.begin();
    std::advance(chosen, static_cast<std::ptrdiff_t>(random_.below(users_.size())));
    const std::uint64_t cookie = chosen->first;
    check_events();
    const auto user = users_.find(cookie);
    if (user == users_.end()) return;
    EXPECT_TRUE(
        net_.client(user->second.host).memberships().leave(user->second.id, net_.world.now()));
    users_.erase(user);
    net_.pump();
  }
  void add_service(unsigned host) {
    const std::uint64_t id = ++last_cookie_;
    ASSERT_TRUE(net_.client(host).services().add({.service_id = {id}, .lease_seconds = 3600}, id,
                                                 net_.world.now()));
    net_.pump();
  }
  void change_host(unsigned host) {
    if (!net_.host(host).port.active) return net_.set_port_active(host, true);
    if (random_.chance({1, 2})) return net_.set_port_active(host, false);
    net_.change_lid(host, {next_lid_++});
  }
  void change_manager() {
    if (random_.chance({1, 2})) return net_.master().die();
    net_.change_master(static_cast<unsigned>(random_.below(2)));
  }
  void change_manager_faults() {
    auto& faults = net_.master().faults;
    faults = {};
    if (random_.chance({1, 3})) faults.loss = {1, 3};
    if (random_.chance({1, 3})) faults.silent = {1, 3};
    if (random_.chance({1, 3})) faults.busy = {1, 2};
    if (random_.chance({1, 3})) faults.delay_max = 2s;
  }

  // ---- checks

  void check_events() {
    net_.pump();
    for (unsigned i = 0; i < kHosts; ++i) {
      for (const Event& event : std::exchange(net_.host(i).events, {})) {
        if (const auto* path = std::get_if<PathEvent>(&event)) {
          EXPECT_EQ(pending_.erase(path->cookie), 1U) << "a query was answered twice";
          EXPECT_NE(path->paths.empty(), !path->error.has_value());
        } else if (const auto* member = std::get_if<MemberEvent>(&event)) {
          check_member_event(*member);
        } else if (const auto* service = std::get_if<ServiceEvent>(&event)) {
          if (service->what == ServiceEvent::What::kRegistered) {
            EXPECT_TRUE(registered_.insert(service->cookie).second);
          } else {
            registered_.erase(service->cookie);
          }
        }
      }
    }
  }
  void check_member_event(const MemberEvent& event) {
    const auto user = users_.find(event.cookie);
    ASSERT_NE(user, users_.end()) << "a user that has left gets an event";
    // Only a user that has joined gets kChanged, and only a user that has not joined gets kJoined.
    EXPECT_EQ(user->second.has_joined,
              event.what == MemberEvent::What::kChanged ||
                  (event.what == MemberEvent::What::kFailed && user->second.has_joined));
    if (event.what == MemberEvent::What::kJoined) user->second.has_joined = true;
    if (event.what == MemberEvent::What::kFailed) users_.erase(user);
  }

  void end_faults_and_wait() {
    net_.set_faults({});
    for (unsigned i = 0; i < 2; ++i) net_.manager(i).faults = {};
    if (!net_.master().is_alive()) net_.change_master(0);
    for (unsigned i = 0; i < kHosts; ++i) net_.set_port_active(i, true);
    net_.run_for(5min);
    check_events();
  }
  void check_final_state() {
    EXPECT_TRUE(pending_.empty()) << "a query has not ended";
    std::map<Gid, std::map<Gid, std::uint8_t>> wanted;
    for (const auto& [cookie, user] : users_) {
      EXPECT_TRUE(user.has_joined);
      auto& state = wanted[user.mgid][Net::gid(user.host)];
      state = static_cast<std::uint8_t>(state | user.state);
    }
    EXPECT_EQ(net_.master().members, wanted)
        << "a membership is not the union of its users' states";
    // The manager may have more services, because a late repeat may register a service again.
    for (const std::uint64_t id : registered_) {
      EXPECT_TRUE(std::ranges::any_of(net_.master().services, [&](const auto& service) {
        return service.first.second == id;
      })) << "a registered service is not at the manager";
    }
    std::size_t services = 0;
    for (unsigned i = 0; i < kHosts; ++i) {
      const Client& client = net_.client(i);
      const auto& counters = client.queries().counters();
      EXPECT_EQ(client.queries().outstanding(), 0U);
      EXPECT_EQ(client.queries().waiting(), 0U);
      EXPECT_EQ(counters.asked,
                counters.answered + counters.refused + counters.timed_out + counters.cancelled);
      services += client.services().size();
    }
    EXPECT_EQ(registered_.size(), services);
    for (unsigned from = 0; from < kHosts; ++from) {
      for (unsigned to = 0; to < kHosts; ++to) check_path(from, to);
    }
  }
  // When all faults have ended, each path must be known or must be found, and it must be correct.
  void check_path(unsigned from, unsigned to) {
    const PathQuery query{.destination = Net::gid(to), .source = Net::gid(from)};
    for (int i = 0; i < 2; ++i) {
      const auto found = net_.client(from).paths().find(query, 0, 10s, net_.world.now());
      ASSERT_TRUE(found);
      if (const auto* known = std::get_if<KnownPaths>(&*found)) {
        EXPECT_EQ(known->path.destination_lid, net_.host(to).port.lid);
        return;
      }
      net_.run_for(1s);
      net_.host(from).events.clear();
    }
    FAIL() << "no path from " << from << " to " << to;
  }

  Random random_;
  Net net_;
  Duration age_{};
  std::uint64_t last_cookie_ = 0;
  std::map<std::uint64_t, std::pair<unsigned, PathTicket>> pending_{};
  std::map<std::uint64_t, User> users_{};
  std::set<std::uint64_t> registered_{};
  std::uint16_t next_lid_ = 500;
};

TEST(ClientSimTest, CacheIsFreshAndMembershipIsTheUnionAndEachQueryEndsOnce) {
  for (const std::uint64_t seed : sim::seeds(100)) {
    SCOPED_TRACE(testing::Message() << "replay with VB_SEED=" << seed);
    ClientSim(seed).run();
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace verbena::sa
