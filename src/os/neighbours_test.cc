#include "os/neighbours.h"

#include <poll.h>

#include "gtest/gtest.h"
#include "os/clock.h"
#include "os/test_link.h"
#include "os/test_process.h"

namespace verbena::os {
namespace {

TEST(Neighbours, AreUnknownThenResolvingThenReachable) {
  in_network_namespace([] {
    const Fd link = make_link();
    if (!link) return;
    const Neighbour other{.address = kOther, .interface = ::if_nametoindex(kName)};
    EXPECT_EQ(*neighbour_state(other), NeighbourState::kUnknown);
    ASSERT_TRUE(resolve_neighbour(kOther, kSelf, other.interface).has_value());
    EXPECT_EQ(*neighbour_state(other), NeighbourState::kResolving);

    NeighbourMonitor monitor = *NeighbourMonitor::create();
    monitor.drain();
    EXPECT_EQ(*wait_for(monitor.fd(), POLLIN, Time{}), 0);
    answer();
    EXPECT_EQ(*wait_for(monitor.fd(), POLLIN, now() + std::chrono::seconds(5)), POLLIN);
    monitor.drain();
    EXPECT_EQ(*neighbour_state(other), NeighbourState::kReachable);
  });
}

TEST(Neighbours, AreUnreachableIfTheyNeverAnswer) {
  in_network_namespace([] {
    const Fd link = make_link();
    if (!link) return;
    const Neighbour other{.address = kOther, .interface = ::if_nametoindex(kName)};
    NeighbourMonitor monitor = *NeighbourMonitor::create();
    ASSERT_TRUE(resolve_neighbour(kOther, kSelf, other.interface).has_value());
    // The kernel sends three requests, one second apart.
    const Time deadline = now() + std::chrono::seconds(20);
    while (*neighbour_state(other) == NeighbourState::kResolving && now() < deadline) {
      ASSERT_EQ(*wait_for(monitor.fd(), POLLIN, deadline), POLLIN);
      monitor.drain();
    }
    EXPECT_EQ(*neighbour_state(other), NeighbourState::kUnreachable);
  });
}

TEST(Neighbours, CannotBeResolvedFromAnAddressOfAnotherHost) {
  in_network_namespace([] {
    const auto resolved = resolve_neighbour(kIpv4Loopback, wire::ipv4_gid(0x01020304), 0);
    ASSERT_FALSE(resolved.has_value());
    EXPECT_EQ(resolved.error().detail, EADDRNOTAVAIL);
  });
}

}  // namespace
}  // namespace verbena::os
