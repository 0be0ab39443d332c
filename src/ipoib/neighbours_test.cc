#include "ipoib/neighbours.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "ipoib/link_test.h"

// Tests an interface that resolves addresses.  The tests play its neighbours.

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
    one.neighbours.set_joined(true, now);
    (void)one.frames();
  }
  // Asks for an address that is not known yet.
  void ask(const Gid& ip, std::uint64_t cookie) {
    const auto answer = one.neighbours.resolve(ip, cookie, now);
    ASSERT_TRUE(answer.has_value()) << answer.error().context;
    EXPECT_FALSE(answer->has_value()) << "the address is known already";
  }
  std::optional<LinkAddress> known(const Gid& ip) {
    const auto answer = one.neighbours.resolve(ip, 999, now);
    return answer ? *answer : std::nullopt;
  }
  // Lets time pass, and runs the timers that are due.
  void pass(Duration time) {
    const Time until = now + time;
    while (one.neighbours.deadline() <= until) {
      now = std::max(now, one.neighbours.deadline());
      one.neighbours.on_timer(now);
    }
    now = until;
  }
  // Makes the second interface known.
  void learn_two() {
    ask(kIp2, 100);
    one.receive(arp_answer(two, self), two.link_address, now);
    (void)one.frames();
    ASSERT_EQ(one.result(100), two.link_address);
  }
  std::uint64_t ignored(Ignored reason) const { return one.neighbours.counters().of(reason); }
  State state_of_two() { return one.neighbours.rows(now).at(0).state; }

  const Interface self = interface_of(1);
  const Interface two = interface_of(2);
  Time now{1h};
  Station one{self};
};

TEST_F(NeighboursTest, AsksTheBroadcastGroupForAnIpv4Address) {
  ask(kIp2, 7);
  const auto frames = one.frames();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frame_text(frames[0]), "who has 10.0.0.2, for 10.0.0.1 -> group");
  EXPECT_EQ(frames[0].to.gid, wire::broadcast_mgid(kTestPkey));
  EXPECT_FALSE(frames[0].way_back.has_value());

  now += 1ms;
  one.receive(arp_answer(two, self), two.link_address, now);
  EXPECT_THAT(one.texts(), IsEmpty());
  EXPECT_EQ(one.result(7), two.link_address);
  EXPECT_EQ(known(kIp2), two.link_address);
  EXPECT_EQ(one.neighbours.deadline(), kNever);
}

TEST_F(NeighboursTest, AsksTheSolicitedNodeGroupForAnIpv6Address) {
  ask(kIpv6, 7);
  const auto frames = one.frames();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frame_text(frames[0]), "who has fd00::2, for fd00::1 -> group");
  EXPECT_EQ(frames[0].to.gid, ip_of("ff12:601b:8001::1:ff00:2"));
  one.receive(wire::NeighbourAdvertisement{.source = kIpv6,
                                           .destination = self.addresses[1].ip,
                                           .target = kIpv6,
                                           .solicited = true,
                                           .override_cache = true,
                                           .target_link_address = two.wire_address()},
              two.link_address, now);
  (void)one.frames();
  EXPECT_EQ(one.result(7), two.link_address);
  EXPECT_EQ(state_of_two(), State::kReachable);
}

TEST_F(NeighboursTest, AllWaitersShareTheRequests) {
  for (std::uint64_t cookie = 0; cookie < 10; ++cookie) ask(kIp2, cookie);
  EXPECT_EQ(one.frames().size(), 1u);
  one.receive(arp_answer(two, self), two.link_address, now);
  EXPECT_EQ(one.frames().size(), 0u);
  for (std::uint64_t cookie = 0; cookie < 10; ++cookie) {
    EXPECT_EQ(one.result(cookie), two.link_address) << cookie;
  }
}

TEST_F(NeighboursTest, AsksThreeTimesAndForgetsTheAddress) {
  ask(kIp2, 7);
  EXPECT_EQ(one.frames().size(), 1u);
  pass(999ms);
  EXPECT_EQ(one.frames().size(), 0u);
  pass(1ms);
  EXPECT_EQ(one.frames().size(), 1u);
  pass(1s);
  EXPECT_EQ(one.frames().size(), 1u);
  pass(999ms);
  EXPECT_EQ(one.frames().size(), 0u);
  EXPECT_FALSE(one.has_ended(7));
  pass(1ms);
  EXPECT_EQ(one.frames().size(), 0u);
  ASSERT_TRUE(one.has_ended(7));
  EXPECT_EQ(one.result(7).error().code, Errc::kAddressNotFound);
  EXPECT_EQ(one.neighbours.size(), 0u);
  EXPECT_EQ(one.neighbours.deadline(), kNever);
}

TEST_F(NeighboursTest, LateCallAlsoHasThreeTries) {
  ask(kIp2, 1);
  pass(2900ms);
  ask(kIp2, 2);
  pass(100ms);
  (void)one.frames();
  EXPECT_TRUE(one.has_ended(1));
  pass(2899ms);
  EXPECT_EQ(one.frames().size(), 2u) << "requests at 4 s and 5 s";
  EXPECT_FALSE(one.has_ended(2));
  pass(1ms);
  (void)one.frames();
  EXPECT_TRUE(one.has_ended(2));
  EXPECT_EQ(one.neighbours.counters().requests, 6u);
}

TEST_F(NeighboursTest, CancelledCallGetsNoEvent) {
  ask(kIp2, 1);
  ask(kIp2, 2);
  EXPECT_TRUE(one.neighbours.cancel(kIp2, 1));
  EXPECT_FALSE(one.neighbours.cancel(kIp2, 1));
  EXPECT_FALSE(one.neighbours.cancel(kIp3, 2));
  EXPECT_TRUE(one.neighbours.cancel(kIp2, 2));
  EXPECT_EQ(one.neighbours.size(), 0u);
  EXPECT_EQ(one.neighbours.deadline(), kNever);
  pass(10s);
  (void)one.frames();
  EXPECT_THAT(one.results, IsEmpty());
}

TEST_F(NeighboursTest, RefusesAddressesThatNoHostOnTheLinkCanHave) {
  const auto error_for = [&](const char* text) {
    const auto answer = one.neighbours.resolve(ip_of(text), 1, now);
    return answer ? Errc::kBadState : answer.error().code;
  };
  for (const char* text :
       {"0.0.0.0", "::", "127.0.0.1", "::1", "224.0.0.1", "ff02::1", "255.255.255.255"}) {
    EXPECT_EQ(error_for(text), Errc::kInvalidArgument) << text;
  }
  for (const char* text : {"10.0.1.1", "10.0.0.0", "10.0.0.255", "fd00:0:0:1::2", "fe80::2"}) {
    EXPECT_EQ(error_for(text), Errc::kAddressNotFound) << text;
  }
  EXPECT_EQ(one.neighbours.size(), 0u);
}

TEST_F(NeighboursTest, OwnAddressesNeedNoRequest) {
  EXPECT_EQ(known(ip_of("10.0.0.1")), self.link_address);
  EXPECT_EQ(known(ip_of("fd00::1")), self.link_address);
  EXPECT_THAT(one.texts(), IsEmpty());
}

// ---- Age

TEST_F(NeighboursTest, StaleEntryIsUsedWhileARequestConfirmsIt) {
  learn_two();
  pass(kReachableTime - 1ms);
  EXPECT_EQ(known(kIp2), two.link_address);
  EXPECT_THAT(one.texts(), IsEmpty());
  pass(1ms);
  EXPECT_EQ(state_of_two(), State::kStale);
  EXPECT_EQ(known(kIp2), two.link_address);
  EXPECT_EQ(state_of_two(), State::kProbe);
  const auto frames = one.frames();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].to, two.link_address) << "the first request goes only to the neighbour";
  EXPECT_EQ(known(kIp2), two.link_address);
  EXPECT_THAT(one.texts(), IsEmpty()) << "a request is pending already";

  one.receive(arp_answer(two, self), two.link_address, now);
  EXPECT_EQ(state_of_two(), State::kReachable);
  EXPECT_EQ(one.neighbours.deadline(), kNever);
}

TEST_F(NeighboursTest, NeighbourThatHasMovedIsFoundByRequestsToTheGroup) {
  learn_two();
  pass(kReachableTime);
  EXPECT_EQ(known(kIp2), two.link_address);
  pass(1s);
  EXPECT_THAT(one.texts(), ElementsAre("who has 10.0.0.2, for 10.0.0.1 -> fe80::2:c903:0:2",
                                       "who has 10.0.0.2, for 10.0.0.1 -> group"));
  Interface moved = two;
  moved.link_address = {.gid = port_gid(77), .qpn = {0x300}};
  one.receive(arp_answer(moved, self), moved.link_address, now);
  EXPECT_EQ(known(kIp2), moved.link_address);
  EXPECT_EQ(state_of_two(), State::kReachable);
  EXPECT_EQ(one.neighbours.counters().moved, 1u);
}

TEST_F(NeighboursTest, SilentNeighbourIsForgotten) {
  learn_two();
  pass(kReachableTime);
  EXPECT_EQ(known(kIp2), two.link_address);
  pass(kAnswerTimeout - 1ms);
  EXPECT_EQ(known(kIp2), two.link_address);
  pass(1ms);
  EXPECT_EQ(one.frames().size(), 3u);
  EXPECT_EQ(one.neighbours.size(), 0u);
  EXPECT_EQ(one.neighbours.counters().lost, 1u);
}

TEST_F(NeighboursTest, EntryOlderThanAgeMaxIsNotUsed) {
  learn_two();
  pass(kAgeMax);
  EXPECT_EQ(known(kIp2), two.link_address);
  pass(1ns);
  one.neighbours.on_timer(now);
  ask(kIp2, 5);
  EXPECT_EQ(state_of_two(), State::kIncomplete);
  (void)one.frames();
  EXPECT_FALSE(one.has_ended(5));
  one.receive(arp_answer(two, self), two.link_address, now);
  (void)one.frames();
  EXPECT_EQ(one.result(5), two.link_address);
}

// ---- Limits

TEST_F(NeighboursTest, NewEntryReplacesTheLeastRecentlyUsedEntry) {
  Station small(self, {.entries_max = 3});
  small.neighbours.set_joined(true, now);
  for (std::uint32_t i = 2; i <= 4; ++i) {
    const Interface peer = interface_of(i);
    ASSERT_TRUE(small.neighbours.resolve(peer.addresses[0].ip, i, now).has_value());
    small.receive(arp_answer(peer, self), peer.link_address, now);
  }
  (void)small.neighbours.resolve(kIp2, 0, now);  // now 10.0.0.3 is the least recently used
  ASSERT_TRUE(small.neighbours.resolve(ip_of("10.0.0.5"), 5, now).has_value());
  std::vector<Gid> remaining_ips;
  for (const Row& row : small.neighbours.rows(now)) remaining_ips.push_back(row.ip);
  EXPECT_THAT(remaining_ips, ElementsAre(kIp2, ip_of("10.0.0.4"), ip_of("10.0.0.5")));
  EXPECT_EQ(small.neighbours.counters().evicted, 1u);
}

TEST_F(NeighboursTest, EntriesWithWaitersAreNotReplaced) {
  Station small(self, {.entries_max = 2});
  small.neighbours.set_joined(true, now);
  ASSERT_TRUE(small.neighbours.resolve(kIp2, 1, now).has_value());
  ASSERT_TRUE(small.neighbours.resolve(kIp3, 2, now).has_value());
  const auto third = small.neighbours.resolve(ip_of("10.0.0.4"), 3, now);
  ASSERT_FALSE(third.has_value());
  EXPECT_EQ(third.error().code, Errc::kNoResources);
  EXPECT_EQ(small.neighbours.counters().entries_refused, 1u);
  EXPECT_TRUE(small.neighbours.resolve(kIp2, 4, now).has_value());
}

TEST_F(NeighboursTest, WaitersCountTowardsTheLimitUntilTheirResultsAreTaken) {
  Station small(self, {.waiters_max = 2});
  small.neighbours.set_joined(true, now);
  ASSERT_TRUE(small.neighbours.resolve(kIp2, 1, now).has_value());
  ASSERT_TRUE(small.neighbours.resolve(kIp2, 2, now).has_value());
  EXPECT_EQ(small.neighbours.resolve(kIp3, 3, now).error().code, Errc::kNoResources);
  small.receive(arp_answer(two, self), two.link_address, now);
  EXPECT_EQ(small.neighbours.resolve(kIp3, 3, now).error().code, Errc::kNoResources);
  EXPECT_EQ(small.neighbours.counters().waiters_refused, 2u);
  (void)small.frames();
  EXPECT_TRUE(small.neighbours.resolve(kIp3, 3, now).has_value());
  EXPECT_TRUE(small.neighbours.cancel(kIp3, 3));
  EXPECT_TRUE(small.neighbours.resolve(kIp3, 4, now).has_value());
  EXPECT_TRUE(small.neighbours.resolve(kIp3, 5, now).has_value());
}

TEST_F(NeighboursTest, FramesOverTheLimitAreLost) {
  Station small(self, {.frames_max = 2});
  small.neighbours.set_joined(true, now);  // sends two announcements
  ASSERT_TRUE(small.neighbours.resolve(kIp2, 1, now).has_value());
  EXPECT_EQ(small.neighbours.counters().frames_dropped, 1u);
  EXPECT_EQ(small.neighbours.counters().requests, 0u);
  EXPECT_EQ(small.frames().size(), 2u);
  now += kRequestInterval;
  small.neighbours.on_timer(now);
  EXPECT_EQ(small.frames().size(), 1u);
}

// ---- The broadcast group

TEST_F(NeighboursTest, RequestsWaitForTheBroadcastGroup) {
  Station other(self);
  ASSERT_TRUE(other.neighbours.resolve(kIp2, 1, now).has_value());
  EXPECT_THAT(other.texts(), IsEmpty());
  EXPECT_EQ(other.neighbours.deadline(), now + kGroupTimeout);
  now += kGroupTimeout - 1s;
  other.neighbours.set_joined(true, now);
  EXPECT_THAT(other.texts(), ElementsAre("who has 10.0.0.1, for 10.0.0.1 -> group",
                                         "fd00::1 is here, for ff02::1 -> group",
                                         "who has 10.0.0.2, for 10.0.0.1 -> group"));
  now += kAnswerTimeout - 1ms;
  other.neighbours.on_timer(now);
  (void)other.frames();
  EXPECT_FALSE(other.has_ended(1)) << "the time for an answer begins at the join";
  now += 1ms;
  other.neighbours.on_timer(now);
  (void)other.frames();
  EXPECT_EQ(other.result(1).error().code, Errc::kAddressNotFound);
}

TEST_F(NeighboursTest, MissingGroupHasItsOwnError) {
  Station other(self);
  ASSERT_TRUE(other.neighbours.resolve(kIp2, 1, now).has_value());
  other.neighbours.on_timer(now + kGroupTimeout - 1ns);
  (void)other.frames();
  EXPECT_FALSE(other.has_ended(1));
  other.neighbours.on_timer(now + kGroupTimeout);
  EXPECT_THAT(other.texts(), IsEmpty());
  ASSERT_TRUE(other.has_ended(1));
  EXPECT_EQ(other.result(1).error().code, Errc::kTimedOut);
  EXPECT_STREQ(other.result(1).error().context,
               "the port is not in the broadcast group of its partition");
  EXPECT_EQ(other.neighbours.counters().failed_without_group, 1u);
  EXPECT_EQ(other.neighbours.size(), 0u);
}

TEST_F(NeighboursTest, WaitersDoNotWaitForEverIfTheInterfaceKeepsLeavingTheGroup) {
  const auto wait_with = [&](std::uint64_t cookie, auto&& disturb) {
    ask(kIp2, cookie);
    const Time call_time = now;
    for (int i = 0; i < 100 && !one.has_ended(cookie); ++i) {
      pass(1s);
      disturb(i);
      (void)one.frames();
    }
    EXPECT_TRUE(one.has_ended(cookie));
    EXPECT_LE(now - call_time, kGroupTimeout + kAnswerTimeout);
  };
  wait_with(1, [&](int i) { one.neighbours.set_joined(i % 2 != 0, now); });
  wait_with(2, [&](int) {
    one.neighbours.set_joined(false, now);
    one.neighbours.set_joined(true, now);
  });
}

TEST_F(NeighboursTest, StaleEntryIsUsedWithoutARequestOutsideTheGroup) {
  learn_two();
  pass(kReachableTime);
  EXPECT_EQ(known(kIp2), two.link_address);  // sends a request
  (void)one.frames();
  one.neighbours.set_joined(false, now);
  EXPECT_EQ(state_of_two(), State::kStale);
  EXPECT_EQ(known(kIp2), two.link_address);
  pass(10s);
  EXPECT_THAT(one.texts(), IsEmpty());
  one.receive(arp_answer(two, self), two.link_address, now);
  EXPECT_EQ(ignored(Ignored::kNotJoined), 1u);
}

TEST_F(NeighboursTest, AnnouncesItsAddressesOnlyOnce) {
  one.neighbours.set_joined(false, now);
  one.neighbours.set_joined(true, now);
  EXPECT_THAT(one.texts(), IsEmpty()) << "a second join announces nothing";
  Interface changed = self;
  changed.link_address.qpn = {0x500};
  one.neighbours.set_interface(changed, now);
  EXPECT_FALSE(one.neighbours.is_joined());
  one.neighbours.set_joined(true, now);
  EXPECT_EQ(one.frames().size(), 2u);
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

TEST_F(NeighboursTest, ForgetsTheEntriesOfAGid) {
  learn_two();
  ask(kIp3, 1);
  const Interface three = interface_of(3);
  one.receive(arp_answer(three, self), three.link_address, now);
  ask(kIpv6, 2);
  EXPECT_EQ(one.neighbours.forget(two.link_address.gid), 1u);
  EXPECT_EQ(one.neighbours.forget(two.link_address.gid), 0u);
  EXPECT_EQ(known(kIp3), three.link_address);
  EXPECT_EQ(one.neighbours.size(), 2u);
  EXPECT_EQ(one.neighbours.counters().forgotten, 1u);
}

TEST_F(NeighboursTest, ForgettingAllKeepsWaiters) {
  learn_two();
  ask(kIp3, 1);
  one.neighbours.forget_all();
  EXPECT_EQ(one.neighbours.size(), 1u);
  (void)one.frames();
  EXPECT_FALSE(one.has_ended(1));
  const Interface three = interface_of(3);
  one.receive(arp_answer(three, self), three.link_address, now);
  (void)one.frames();
  EXPECT_EQ(one.result(1), three.link_address);
}

TEST_F(NeighboursTest, NewLinkAddressForgetsEntriesAndAsksAgain) {
  learn_two();
  ask(kIp3, 1);
  (void)one.frames();
  Interface changed = self;
  changed.link_address.gid = port_gid(200);
  one.neighbours.set_interface(changed, now);
  EXPECT_EQ(one.neighbours.size(), 1u);
  one.neighbours.set_joined(true, now);
  EXPECT_THAT(one.texts(), testing::Contains("who has 10.0.0.3, for 10.0.0.1 -> group"));
}

TEST_F(NeighboursTest, WaitersEndWhenTheirAddressIsNoLongerOnTheLink) {
  learn_two();
  ask(kIp3, 1);
  ask(ip_of("fd00::3"), 2);
  ask(ip_of("10.0.0.9"), 3);
  Interface changed = self;
  changed.addresses = {{.ip = ip_of("10.0.0.9"), .prefix_bits = 29}};
  one.neighbours.set_interface(changed, now);
  (void)one.frames();
  EXPECT_EQ(one.result(1).error().code, Errc::kAddressNotFound);
  EXPECT_EQ(one.result(2).error().code, Errc::kAddressNotFound);
  EXPECT_EQ(one.result(3), self.link_address) << "the address is the interface's own now";
  EXPECT_EQ(one.neighbours.size(), 0u);
  EXPECT_TRUE(one.neighbours.is_joined());
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
  learn_two();
  pass(12s);
  ask(kIp3, 1);
  ask(kIp3, 2);
  pass(1500ms);
  const auto rows = one.neighbours.rows(now);
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
