#include "os/interfaces.h"

#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "gtest/gtest.h"
#include "os/clock.h"
#include "os/test_process.h"
#include "wire/ip.h"

namespace verbena::os {
namespace {

void add_address(std::uint32_t address) {
  const Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo:1");
  auto* in = reinterpret_cast<sockaddr_in*>(&request.ifr_addr);
  in->sin_family = AF_INET;
  in->sin_addr.s_addr = htonl(address);
  ASSERT_EQ(::ioctl(socket.get(), SIOCSIFADDR, &request), 0);
}

TEST(Interfaces, ShowLoopbackInAFreshNamespace) {
  in_network_namespace([] {
    const auto found = *interfaces();
    ASSERT_EQ(found.size(), 2u);
    const std::uint32_t index = ::if_nametoindex("lo");
    EXPECT_EQ(found[0], (Interface{.address = kIpv4Loopback,
                                   .index = index,
                                   .name = "lo",
                                   .mtu_bytes = 65536,
                                   .loopback = true,
                                   .up = true,
                                   .prefix_bits = 8}));
    EXPECT_EQ(found[1].address, kIpv6Loopback);
    EXPECT_EQ(found[1].prefix_bits, 128);
  });
}

TEST(Interfaces, CanBeReadOnThisMachine) {
  const auto found = interfaces();
  ASSERT_TRUE(found.has_value());
  EXPECT_TRUE(std::ranges::any_of(*found, &Interface::loopback));
  EXPECT_TRUE(std::ranges::is_sorted(*found, {}, &Interface::index));
  for (const Interface& i : *found) {
    EXPECT_EQ(i.link_local, i.address.bytes[0] == std::byte{0xfe});
    EXPECT_EQ(i.index, ::if_nametoindex(i.name.c_str()));
  }
}

TEST(Interfaces, MonitorReportsChanges) {
  in_network_namespace([] {
    InterfaceMonitor monitor = *InterfaceMonitor::create();
    monitor.drain();
    EXPECT_EQ(*wait_for(monitor.fd(), POLLIN, Time{}), 0);
    EXPECT_FALSE(monitor.drain());
    add_address(0x0a000001);
    EXPECT_EQ(*wait_for(monitor.fd(), POLLIN, now() + std::chrono::seconds(5)), POLLIN);
    EXPECT_TRUE(monitor.drain());
    EXPECT_FALSE(monitor.drain());
    EXPECT_EQ(interfaces()->size(), 3u);
  });
}

TEST(Route, ToAnAddressOfThisHostIsLoopback) {
  in_network_namespace([] {
    add_address(0x0a000001);
    const std::uint32_t loopback = ::if_nametoindex("lo");
    EXPECT_EQ(*route_to(wire::ipv4_gid(0x0a000001), std::nullopt, 0),
              (RouteAnswer{.source = wire::ipv4_gid(0x0a000001),
                           .interface = loopback,
                           .mtu = 65536,
                           .loopback = true,
                           .gateway = std::nullopt}));
    EXPECT_EQ(route_to(kIpv4Loopback, wire::ipv4_gid(0x0a000001), 0)->source,
              wire::ipv4_gid(0x0a000001));
    const auto ipv6 = *route_to(kIpv6Loopback, std::nullopt, 0);
    EXPECT_TRUE(ipv6.loopback);
    EXPECT_EQ(ipv6.source, kIpv6Loopback);
    EXPECT_EQ(ipv6.interface, loopback);
  });
}

TEST(Route, ToAnUnreachableAddressIsAnError) {
  in_network_namespace([] {
    const auto nowhere = route_to(wire::ipv4_gid(0x01020304), std::nullopt, 0);
    ASSERT_FALSE(nowhere.has_value());
    EXPECT_EQ(nowhere.error(), (Error{Errc::kAddressNotFound, ENETUNREACH}));
    EXPECT_EQ(route_to({{std::byte{0x20}}}, std::nullopt, 0).error().code, Errc::kAddressNotFound);
    EXPECT_EQ(route_to(kIpv4Loopback, wire::ipv4_gid(0x01020304), 0).error().code,
              Errc::kAddressNotFound);
    EXPECT_EQ(route_to(kIpv4Loopback, kIpv6Loopback, 0).error().code, Errc::kInvalidArgument);
  });
}

}  // namespace
}  // namespace verbena::os
