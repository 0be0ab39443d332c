#include "os/neighbours.h"

#include <poll.h>

#include "gtest/gtest.h"
#include "os/clock.h"
#include "os/test_link.h"
#include "os/test_process.h"

namespace verbena::os {
namespace {

TEST(Neighbours, AreUnaskedThenAskedThenHere) {
  in_network_namespace([] {
    const Fd link = make_link();
    if (!link) return;
    const Neighbour other{.address = kOther, .interface = ::if_nametoindex(kName)};
    EXPECT_EQ(*presence(other), Presence::kUnasked);
    ASSERT_TRUE(ask_neighbour(kOther, kSelf, other.interface).has_value());
    EXPECT_EQ(*presence(other), Presence::kAsked);

    NeighbourMonitor monitor = *NeighbourMonitor::create();
    monitor.drain();
    EXPECT_EQ(*wait_for(monitor.fd(), POLLIN, Time{}), 0);
    answer();
    EXPECT_EQ(*wait_for(monitor.fd(), POLLIN, now() + std::chrono::seconds(5)), POLLIN);
    monitor.drain();
    EXPECT_EQ(*presence(other), Presence::kHere);
  });
}

TEST(Neighbours, ThatNeverAnswerAreNobody) {
  in_network_namespace([] {
    const Fd link = make_link();
    if (!link) return;
    const Neighbour other{.address = kOther, .interface = ::if_nametoindex(kName)};
    NeighbourMonitor monitor = *NeighbourMonitor::create();
    ASSERT_TRUE(ask_neighbour(kOther, kSelf, other.interface).has_value());
    // The kernel asks three times, a second apart.
    const Time deadline = now() + std::chrono::seconds(20);
    while (*presence(other) == Presence::kAsked && now() < deadline) {
      ASSERT_EQ(*wait_for(monitor.fd(), POLLIN, deadline), POLLIN);
      monitor.drain();
    }
    EXPECT_EQ(*presence(other), Presence::kNobody);
  });
}

TEST(Neighbours, CannotBeAskedFromAStrangersAddress) {
  in_network_namespace([] {
    const auto asked = ask_neighbour(kIpv4Loopback, wire::ipv4_gid(0x01020304), 0);
    ASSERT_FALSE(asked.has_value());
    EXPECT_EQ(asked.error().detail, EADDRNOTAVAIL);
  });
}

}  // namespace
}  // namespace verbena::os
