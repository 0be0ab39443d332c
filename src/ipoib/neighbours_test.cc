#include "ipoib/neighbours.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "ipoib/link_test.h"

// Tests an interface that resolves addresses.  The tests act as its neighbours.

namespace verbena::ipoib {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::IsEmpty;

const Gid kIp2 = ip_of("10.0.0.2");
const Gid kIp3 = ip_of("10.0.0.3");
const Gid kIpv6 = ip_of("fd00::2");

struct NeighboursTest : ::testing::Test {
  NeighboursTest() {
    station.neighbours.set_joined(true, now);
    (void)station.frames();
  }
  // Calls resolve() for an address that is not known yet.
  void start_resolve(const Gid& ip, std::uint64_t cookie) {
    const auto answer = station.neighbours.resolve(ip, cookie, now);
    ASSERT_TRUE(answer.has_value()) << answer.error().context;
    EXPECT_FALSE(answer->has_value()) << "the address is already known";
  }
  // Returns the link address if it is known.
  std::optional<LinkAddress> known_address(const Gid& ip) {
    const auto answer = station.neighbours.resolve(ip, 999, now);
    return answer ? *answer : std::nullopt;
  }
  // Advances the time, and runs the timers that are due.
  void advance(Duration time) {
    const Time until = now + time;
    while (station.neighbours.deadline() <= until) {
      now = std::max(now, station.neighbours.deadline());
      station.neighbours.on_timer(now);
    }
    now = until;
  }
  // Resolves the IPv4 address of the second interface.
  void learn_host2() {
    start_resolve(kIp2, 100);
    station.receive(arp_answer(host2, self), host2.link_address, now);
    (void)station.frames();
    ASSERT_EQ(station.result(100), host2.link_address);
  }
  std::uint64_t ignored(Ignored reason) const { return station.neighbours.counters().of(reason); }
  State state_of_host2() { return station.neighbours.rows(now).at(0).state; }

  const Interface self = interface_of(1);
  const Interface host2 = interface_of(2);
  Time now{1h};
  Station station{self};
};

TEST_F(NeighboursTest, RequestForAnIpv4AddressGoesToTheBroadcastGroup) {
  start_resolve(kIp2, 7);
  const auto frames = station.frames();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frame_text(frames[0]), "who has 10.0.0.2, for 10.0.0.1 -> group");
  EXPECT_EQ(frames[0].to.gid, wire::broadcast_mgid(kTestPkey));
  EXPECT_FALSE(frames[0].reply_path.has_value());

  now += 1ms;
  station.receive(arp_answer(host2, self), host2.link_address, now);
  EXPECT_THAT(station.texts(), IsEmpty());
  EXPECT_EQ(station.result(7), host2.link_address);
  EXPECT_EQ(known_address(kIp2), host2.link_address);
  EXPECT_EQ(station.neighbours.deadline(), kNever);
}

TEST_F(NeighboursTest, RequestForAnIpv6AddressGoesToTheSolicitedNodeGroup) {
  start_resolve(kIpv6, 7);
  const auto frames = station.frames();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frame_text(frames[0]), "who has fd00::2, for fd00::1 -> group");
  EXPECT_EQ(frames[0].to.gid, ip_of("ff12:601b:8001::1:ff00:2"));
  station.receive(wire::NeighbourAdvertisement{.source = kIpv6,
                                               .destination = self.addresses[1].ip,
                                               .target = kIpv6,
                                               .solicited = true,
                                               .override_cache = true,
                                               .target_link_address = host2.wire_address()},
                  host2.link_address, now);
  (void)station.frames();
  EXPECT_EQ(station.result(7), host2.link_address);
  EXPECT_EQ(state_of_host2(), State::kReachable);
}

TEST_F(NeighboursTest, AllWaitersShareTheRequests) {
  for (std::uint64_t cookie = 0; cookie < 10; ++cookie) start_resolve(kIp2, cookie);
  EXPECT_EQ(station.frames().size(), 1u);
  station.receive(arp_answer(host2, self), host2.link_address, now);
  EXPECT_EQ(station.frames().size(), 0u);
  for (std::uint64_t cookie = 0; cookie < 10; ++cookie) {
    EXPECT_EQ(station.result(cookie), host2.link_address) << cookie;
  }
}

TEST_F(NeighboursTest, EntryIsRemovedAfterThreeRequestsWithoutAnswer) {
  start_resolve(kIp2, 7);
  EXPECT_EQ(station.frames().size(), 1u);
  advance(999ms);
  EXPECT_EQ(station.frames().size(), 0u);
  advance(1ms);
  EXPECT_EQ(station.frames().size(), 1u);
  advance(1s);
  EXPECT_EQ(station.frames().size(), 1u);
  advance(999ms);
  EXPECT_EQ(station.frames().size(), 0u);
  EXPECT_FALSE(station.has_ended(7));
  advance(1ms);
  EXPECT_EQ(station.frames().size(), 0u);
  ASSERT_TRUE(station.has_ended(7));
  EXPECT_EQ(station.result(7).error().code, Errc::kAddressNotFound);
  EXPECT_EQ(station.neighbours.size(), 0u);
  EXPECT_EQ(station.neighbours.deadline(), kNever);
}

TEST_F(NeighboursTest, LateCallForTheSameAddressAlsoHasThreeTries) {
  start_resolve(kIp2, 1);
  advance(2900ms);
  start_resolve(kIp2, 2);
  advance(100ms);
  (void)station.frames();
  EXPECT_TRUE(station.has_ended(1));
  advance(2899ms);
  EXPECT_EQ(station.frames().size(), 2u) << "requests at 4 s and 5 s";
  EXPECT_FALSE(station.has_ended(2));
  advance(1ms);
  (void)station.frames();
  EXPECT_TRUE(station.has_ended(2));
  EXPECT_EQ(station.neighbours.counters().requests, 6u);
}

TEST_F(NeighboursTest, CancelledCallGetsNoEvent) {
  start_resolve(kIp2, 1);
  start_resolve(kIp2, 2);
  EXPECT_TRUE(station.neighbours.cancel(kIp2, 1));
  EXPECT_FALSE(station.neighbours.cancel(kIp2, 1));
  EXPECT_FALSE(station.neighbours.cancel(kIp3, 2));
  EXPECT_TRUE(station.neighbours.cancel(kIp2, 2));
  EXPECT_EQ(station.neighbours.size(), 0u);
  EXPECT_EQ(station.neighbours.deadline(), kNever);
  advance(10s);
  (void)station.frames();
  EXPECT_THAT(station.results, IsEmpty());
}

TEST_F(NeighboursTest, ResolveRefusesAddressesThatNoHostOnTheLinkCanHave) {
  const auto error_for = [&](const char* text) {
    const auto answer = station.neighbours.resolve(ip_of(text), 1, now);
    return answer ? Errc::kBadState : answer.error().code;
  };
  for (const char* text :
       {"0.0.0.0", "::", "127.0.0.1", "::1", "224.0.0.1", "ff02::1", "255.255.255.255"}) {
    EXPECT_EQ(error_for(text), Errc::kInvalidArgument) << text;
  }
  for (const char* text : {"10.0.1.1", "10.0.0.0", "10.0.0.255", "fd00:0:0:1::2", "fe80::2"}) {
    EXPECT_EQ(error_for(text), Errc::kAddressNotFound) << text;
  }
  EXPECT_EQ(station.neighbours.size(), 0u);
}

TEST_F(NeighboursTest, OwnAddressesNeedNoRequest) {
  EXPECT_EQ(known_address(ip_of("10.0.0.1")), self.link_address);
  EXPECT_EQ(known_address(ip_of("fd00::1")), self.link_address);
  EXPECT_THAT(station.texts(), IsEmpty());
}

// ---- Age

TEST_F(NeighboursTest, StaleEntryIsUsedWhileARequestConfirmsIt) {
  learn_host2();
  advance(kReachableTime - 1ms);
  EXPECT_EQ(known_address(kIp2), host2.link_address);
  EXPECT_THAT(station.texts(), IsEmpty());
  advance(1ms);
  EXPECT_EQ(state_of_host2(), State::kStale);
  EXPECT_EQ(known_address(kIp2), host2.link_address);
  EXPECT_EQ(state_of_host2(), State::kProbe);
  const auto frames = station.frames();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].to, host2.link_address) << "the first request goes only to the neighbour";
  EXPECT_EQ(known_address(kIp2), host2.link_address);
  EXPECT_THAT(station.texts(), IsEmpty()) << "a request is already pending";

  station.receive(arp_answer(host2, self), host2.link_address, now);
  EXPECT_EQ(state_of_host2(), State::kReachable);
  EXPECT_EQ(station.neighbours.deadline(), kNever);
}

TEST_F(NeighboursTest, NeighbourThatHasMovedIsFoundByRequestsToTheGroup) {
  learn_host2();
  advance(kReachableTime);
  EXPECT_EQ(known_address(kIp2), host2.link_address);
  advance(1s);
  EXPECT_THAT(station.texts(), ElementsAre("who has 10.0.0.2, for 10.0.0.1 -> fe80::2:c903:0:2",
                                           "who has 10.0.0.2, for 10.0.0.1 -> group"));
  Interface moved = host2;
  moved.link_address = {.gid = port_gid(77), .qpn = {0x300}};
  station.receive(arp_answer(moved, self), moved.link_address, now);
  EXPECT_EQ(known_address(kIp2), moved.link_address);
  EXPECT_EQ(state_of_host2(), State::kReachable);
  EXPECT_EQ(station.neighbours.counters().moved, 1u);
}

TEST_F(NeighboursTest, NeighbourThatDoesNotAnswerIsRemoved) {
  learn_host2();
  advance(kReachableTime);
  EXPECT_EQ(known_address(kIp2), host2.link_address);
  advance(kAnswerTimeout - 1ms);
  EXPECT_EQ(known_address(kIp2), host2.link_address);
  advance(1ms);
  EXPECT_EQ(station.frames().size(), 3u);
  EXPECT_EQ(station.neighbours.size(), 0u);
  EXPECT_EQ(station.neighbours.counters().lost, 1u);
}

TEST_F(NeighboursTest, EntryOlderThanAgeMaxIsNotUsed) {
  learn_host2();
  advance(kAgeMax);
  EXPECT_EQ(known_address(kIp2), host2.link_address);
  advance(1ns);
  station.neighbours.on_timer(now);
  start_resolve(kIp2, 5);
  EXPECT_EQ(state_of_host2(), State::kIncomplete);
  (void)station.frames();
  EXPECT_FALSE(station.has_ended(5));
  station.receive(arp_answer(host2, self), host2.link_address, now);
  (void)station.frames();
  EXPECT_EQ(station.result(5), host2.link_address);
}

// ---- Limits

TEST_F(NeighboursTest, NewEntryReplacesTheLeastRecentlyUsedEntry) {
  Station limited_station(self, {.entries_max = 3});
  limited_station.neighbours.set_joined(true, now);
  for (std::uint32_t i = 2; i <= 4; ++i) {
    const Interface peer = interface_of(i);
    ASSERT_TRUE(limited_station.neighbours.resolve(peer.addresses[0].ip, i, now).has_value());
    limited_station.receive(arp_answer(peer, self), peer.link_address, now);
  }
  // After this call, 10.0.0.3 is the least recently used entry.
  (void)limited_station.neighbours.resolve(kIp2, 0, now);
  ASSERT_TRUE(limited_station.neighbours.resolve(ip_of("10.0.0.5"), 5, now).has_value());
  std::vector<Gid> remaining_ips;
  for (const Row& row : limited_station.neighbours.rows(now)) remaining_ips.push_back(row.ip);
  EXPECT_THAT(remaining_ips, ElementsAre(kIp2, ip_of("10.0.0.4"), ip_of("10.0.0.5")));
  EXPECT_EQ(limited_station.neighbours.counters().evicted, 1u);
}

TEST_F(NeighboursTest, EntriesWithWaitersAreNotReplaced) {
  Station limited_station(self, {.entries_max = 2});
  limited_station.neighbours.set_joined(true, now);
  ASSERT_TRUE(limited_station.neighbours.resolve(kIp2, 1, now).has_value());
  ASSERT_TRUE(limited_station.neighbours.resolve(kIp3, 2, now).has_value());
  const auto third = limited_station.neighbours.resolve(ip_of("10.0.0.4"), 3, now);
  ASSERT_FALSE(third.has_value());
  EXPECT_EQ(third.error().code, Errc::kNoResources);
  EXPECT_EQ(limited_station.neighbours.counters().entries_refused, 1u);
  EXPECT_TRUE(limited_station.neighbours.resolve(kIp2, 4, now).has_value());
}

TEST_F(NeighboursTest, WaitersCountTowardsTheLimitUntilTheirResultsAreTaken) {
  Station limited_station(self, {.waiters_max = 2});
  limited_station.neighbours.set_joined(true, now);
  ASSERT_TRUE(limited_station.neighbours.resolve(kIp2, 1, now).has_value());
  ASSERT_TRUE(limited_station.neighbours.resolve(kIp2, 2, now).has_value());
  EXPECT_EQ(limited_station.neighbours.resolve(kIp3, 3, now).error().code, Errc::kNoResources);
  limited_station.receive(arp_answer(host2, self), host2.link_address, now);
  EXPECT_EQ(limited_station.neighbours.resolve(kIp3, 3, now).error().code, Errc::kNoResources);
  EXPECT_EQ(limited_station.neighbours.counters().waiters_refused, 2u);
  (void)limited_station.frames();
  EXPECT_TRUE(limited_station.neighbours.resolve(kIp3, 3, now).has_value());
  EXPECT_TRUE(limited_station.neighbours.cancel(kIp3, 3));
  EXPECT_TRUE(limited_station.neighbours.resolve(kIp3, 4, now).has_value());
  EXPECT_TRUE(limited_station.neighbours.resolve(kIp3, 5, now).has_value());
}

TEST_F(NeighboursTest, FramesOverTheLimitAreLost) {
  Station limited_station(self, {.frames_max = 2});
  limited_station.neighbours.set_joined(true, now);  // sends two announcements
  ASSERT_TRUE(limited_station.neighbours.resolve(kIp2, 1, now).has_value());
  EXPECT_EQ(limited_station.neighbours.counters().frames_dropped, 1u);
  EXPECT_EQ(limited_station.neighbours.counters().requests, 0u);
  EXPECT_EQ(limited_station.frames().size(), 2u);
  now += kRequestInterval;
  limited_station.neighbours.on_timer(now);
  EXPECT_EQ(limited_station.frames().size(), 1u);
}

// ---- The broadcast group

TEST_F(NeighboursTest, RequestsWaitForTheBroadcastGroup) {
  Station other_station(self);
  ASSERT_TRUE(other_station.neighbours.resolve(kIp2, 1, now).has_value());
  EXPECT_THAT(other_station.texts(), IsEmpty());
  EXPECT_EQ(other_station.neighbours.deadline(), now + kGroupTimeout);
  now += kGroupTimeout - 1s;
  other_station.neighbours.set_joined(true, now);
  EXPECT_THAT(other_station.texts(), ElementsAre("who has 10.0.0.1, for 10.0.0.1 -> group",
                                                 "fd00::1 is here, for ff02::1 -> group",
                                                 "who has 10.0.0.2, for 10.0.0.1 -> group"));
  now += kAnswerTimeout - 1ms;
  other_station.neighbours.on_timer(now);
  (void)other_station.frames();
  EXPECT_FALSE(other_station.has_ended(1)) << "kAnswerTimeout begins at the join";
  now += 1ms;
  other_station.neighbours.on_timer(now);
  (void)other_station.frames();
  EXPECT_EQ(other_station.result(1).error().code, Errc::kAddressNotFound);
}

TEST_F(NeighboursTest, CallsOutsideTheBroadcastGroupTimeOut) {
  Station other_station(self);
  ASSERT_TRUE(other_station.neighbours.resolve(kIp2, 1, now).has_value());
  other_station.neighbours.on_timer(now + kGroupTimeout - 1ns);
  (void)other_station.frames();
  EXPECT_FALSE(other_station.has_ended(1));
  other_station.neighbours.on_timer(now + kGroupTimeout);
  EXPECT_THAT(other_station.texts(), IsEmpty());
  ASSERT_TRUE(other_station.has_ended(1));
  EXPECT_EQ(other_station.result(1).error().code, Errc::kTimedOut);
  EXPECT_STREQ(other_station.result(1).error().context,
               "the port has not joined the broadcast group of its partition");
  EXPECT_EQ(other_station.neighbours.counters().failed_without_group, 1u);
  EXPECT_EQ(other_station.neighbours.size(), 0u);
}

TEST_F(NeighboursTest, WaitersDoNotWaitForEverIfTheInterfaceKeepsLeavingTheGroup) {
  const auto resolve_while = [&](std::uint64_t cookie, auto&& disturb) {
    start_resolve(kIp2, cookie);
    const Time call_time = now;
    for (int i = 0; i < 100 && !station.has_ended(cookie); ++i) {
      advance(1s);
      disturb(i);
      (void)station.frames();
    }
    EXPECT_TRUE(station.has_ended(cookie));
    EXPECT_LE(now - call_time, kGroupTimeout + kAnswerTimeout);
  };
  resolve_while(1, [&](int i) { station.neighbours.set_joined(i % 2 != 0, now); });
  resolve_while(2, [&](int) {
    station.neighbours.set_joined(false, now);
    station.neighbours.set_joined(true, now);
  });
}

TEST_F(NeighboursTest, StaleEntryIsUsedWithoutARequestOutsideTheGroup) {
  learn_host2();
  advance(kReachableTime);
  EXPECT_EQ(known_address(kIp2), host2.link_address);  // sends a request
  (void)station.frames();
  station.neighbours.set_joined(false, now);
  EXPECT_EQ(state_of_host2(), State::kStale);
  EXPECT_EQ(known_address(kIp2), host2.link_address);
  advance(10s);
  EXPECT_THAT(station.texts(), IsEmpty());
  station.receive(arp_answer(host2, self), host2.link_address, now);
  EXPECT_EQ(ignored(Ignored::kNotJoined), 1u);
}

TEST_F(NeighboursTest, AddressesAreAnnouncedAtTheFirstJoinAndAfterAChange) {
  station.neighbours.set_joined(false, now);
  station.neighbours.set_joined(true, now);
  EXPECT_THAT(station.texts(), IsEmpty()) << "a second join announces nothing";
  Interface changed = self;
  changed.link_address.qpn = {0x500};
  station.neighbours.set_interface(changed, now);
  EXPECT_FALSE(station.neighbours.is_joined());
  station.neighbours.set_joined(true, now);
  EXPECT_EQ(station.frames().size(), 2u);
}

TEST_F(NeighboursTest, GroupsDependOnTheAddresses) {
  EXPECT_THAT(self.groups(),
              ElementsAre(wire::broadcast_mgid(kTestPkey), ip_of("ff12:601b:8001::1"),
                          ip_of("ff12:601b:8001::1:ff00:1")));
  Interface only_ipv4 = self;
  only_ipv4.addresses.resize(1);
  only_ipv4.scope = 5;
  EXPECT_THAT(only_ipv4.groups(), ElementsAre(wire::broadcast_mgid(kTestPkey, 5)));
}

// ---- Changes

TEST_F(NeighboursTest, ForgetRemovesTheEntriesOfAGid) {
  learn_host2();
  start_resolve(kIp3, 1);
  const Interface host3 = interface_of(3);
  station.receive(arp_answer(host3, self), host3.link_address, now);
  start_resolve(kIpv6, 2);
  EXPECT_EQ(station.neighbours.forget(host2.link_address.gid), 1u);
  EXPECT_EQ(station.neighbours.forget(host2.link_address.gid), 0u);
  EXPECT_EQ(known_address(kIp3), host3.link_address);
  EXPECT_EQ(station.neighbours.size(), 2u);
  EXPECT_EQ(station.neighbours.counters().forgotten, 1u);
}

TEST_F(NeighboursTest, FlushKeepsEntriesWithWaiters) {
  learn_host2();
  start_resolve(kIp3, 1);
  station.neighbours.flush();
  EXPECT_EQ(station.neighbours.size(), 1u);
  (void)station.frames();
  EXPECT_FALSE(station.has_ended(1));
  const Interface host3 = interface_of(3);
  station.receive(arp_answer(host3, self), host3.link_address, now);
  (void)station.frames();
  EXPECT_EQ(station.result(1), host3.link_address);
}

TEST_F(NeighboursTest, NewLinkAddressRemovesEntriesAndRepeatsRequests) {
  learn_host2();
  start_resolve(kIp3, 1);
  (void)station.frames();
  Interface changed = self;
  changed.link_address.gid = port_gid(200);
  station.neighbours.set_interface(changed, now);
  EXPECT_EQ(station.neighbours.size(), 1u);
  station.neighbours.set_joined(true, now);
  EXPECT_THAT(station.texts(), testing::Contains("who has 10.0.0.3, for 10.0.0.1 -> group"));
}

TEST_F(NeighboursTest, WaitersEndWhenTheirAddressIsNoLongerOnTheLink) {
  learn_host2();
  start_resolve(kIp3, 1);
  start_resolve(ip_of("fd00::3"), 2);
  start_resolve(ip_of("10.0.0.9"), 3);
  Interface changed = self;
  changed.addresses = {{.ip = ip_of("10.0.0.9"), .prefix_bits = 29}};
  station.neighbours.set_interface(changed, now);
  (void)station.frames();
  EXPECT_EQ(station.result(1).error().code, Errc::kAddressNotFound);
  EXPECT_EQ(station.result(2).error().code, Errc::kAddressNotFound);
  EXPECT_EQ(station.result(3), self.link_address) << "the address is the interface's own now";
  EXPECT_EQ(station.neighbours.size(), 0u);
  EXPECT_TRUE(station.neighbours.is_joined());
}

TEST_F(NeighboursTest, SourceIsTheAddressWithTheLongestPrefix) {
  Interface both = self;
  both.addresses.push_back({.ip = ip_of("10.0.0.130"), .prefix_bits = 25});
  EXPECT_EQ(both.source_for(ip_of("10.0.0.200")), ip_of("10.0.0.130"));
  EXPECT_EQ(both.source_for(ip_of("10.0.0.2")), ip_of("10.0.0.1"));
  EXPECT_EQ(both.source_for(ip_of("10.1.0.2")), std::nullopt);
  both.addresses.push_back({.ip = ip_of("192.168.0.1"), .prefix_bits = 31});
  EXPECT_EQ(both.source_for(ip_of("192.168.0.0")), ip_of("192.168.0.1"));
  both.addresses.push_back({.ip = ip_of("192.168.1.1"), .prefix_bits = 32});
  EXPECT_EQ(both.source_for(ip_of("192.168.1.0")), std::nullopt);
}

// ---- Rows

TEST_F(NeighboursTest, RowsShowEntriesAndTheirWaiters) {
  learn_host2();
  advance(12s);
  start_resolve(kIp3, 1);
  start_resolve(kIp3, 2);
  advance(1500ms);
  const auto rows = station.neighbours.rows(now);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0], (Row{.ip = ip_of("10.0.0.2"),
                          .state = State::kReachable,
                          .neighbour = {port_gid(2), Qpn{0x102}},
                          .age = 13500ms}));
  EXPECT_EQ(rows[1], (Row{.ip = ip_of("10.0.0.3"),
                          .state = State::kIncomplete,
                          .age = 1500ms,
                          .waiters = 2,
                          .tries = 2}));
  for (unsigned i = 0; i < static_cast<unsigned>(Ignored::kCount); ++i) {
    EXPECT_STRNE(to_string(static_cast<Ignored>(i)), "?") << i;
  }
}

}  // namespace
}  // namespace verbena::ipoib
