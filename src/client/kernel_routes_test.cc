#include "client/kernel_routes.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "process/fixture_test.h"
#include "wire/loopback.h"

namespace verbena::client {
namespace {

constexpr std::uint32_t kLoopbackInterface = 1;
constexpr Gid kGroup{{std::byte{0xff}, std::byte{0x0e}, {}, std::byte{1}}};

class KernelRoutes : public process::ProcessTest {
 protected:
  void set_kernel_routes(bool uses_kernel_routes) {
    ipc::Port changed = port();
    changed.gids.push_back({.gid = wire::kLoopbackIpv6, .interface = kLoopbackInterface});
    changed.reach.uses_kernel_routes = uses_kernel_routes;
    report_port(changed);
  }
  std::optional<KernelRoute> route_to(const Gid& destination) {
    return route_to_resolve(process_, create_id(), {}, {.ip = destination, .family = 4});
  }
  static link::Address path(const Gid& from, const Gid& to) {
    return {.source = from, .destination = to, .interface = kLoopbackInterface};
  }
};

TEST_F(KernelRoutes, OnlyDestinationsOutsideTheHostNeedARoute) {
  set_kernel_routes(true);
  EXPECT_EQ(route_to(process::kRemoteGid).value().destination, process::kRemoteGid);
  EXPECT_FALSE(route_to(process::kLocalGid));
  EXPECT_FALSE(route_to(wire::ipv4_gid(0x7f090909)));
  EXPECT_FALSE(route_to(wire::ipv4_gid(0)));
  EXPECT_FALSE(route_of_path(process_, path(wire::kLoopbackIpv6, wire::kLoopbackIpv6)));
  EXPECT_TRUE(route_of_path(process_, path(process::kLocalGid, process::kRemoteGid)));
}

TEST_F(KernelRoutes, TheAgentOfAVirtualHostDecidesAboutItsRoutes) {
  set_kernel_routes(false);
  EXPECT_FALSE(route_to(process::kRemoteGid));
  EXPECT_FALSE(route_of_path(process_, path(process::kLocalGid, process::kRemoteGid)));
}

TEST_F(KernelRoutes, AResolvedIdGetsItsOwnErrorFirst) {
  set_kernel_routes(true);
  const process::ConnectionHandle id = create_resolved_id();
  EXPECT_FALSE(route_to_resolve(process_, id, {}, {.ip = process::kRemoteGid, .family = 4}));
}

// The kernel has no multicast route on the loopback interface, so it drops what ::1 sends to
// groups.
TEST_F(KernelRoutes, AGroupCannotBeReachedFromTheLoopbackAddressOfIpv6) {
  set_kernel_routes(true);
  const auto route = route_of_path(process_, path(wire::kLoopbackIpv6, kGroup));
  ASSERT_TRUE(route);
  const auto checked = route->check();
  ASSERT_FALSE(checked);
  EXPECT_EQ(to_errno(checked.error()), ENETUNREACH);
  EXPECT_EQ(to_errno(unreachable_path(*route, checked.error())), ENETUNREACH);
}

TEST_F(KernelRoutes, APathWithoutARouteHasTheErrorOfASilentNeighbour) {
  const KernelRoute route{.destination = process::kRemoteGid};
  const Error error{Errc::kAddressNotFound, ENETUNREACH};
  EXPECT_EQ(to_errno(unreachable_path(route, error)), ETIMEDOUT);
}

}  // namespace
}  // namespace verbena::client
