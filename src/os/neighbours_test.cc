#include "os/neighbours.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if_arp.h>
#include <poll.h>

#include <cstring>

#include "gtest/gtest.h"
#include "os/clock.h"
#include "os/test_process.h"

namespace verbena::os {
namespace {

constexpr Gid kSelf = wire::ipv4_gid(0x0a000001);  // 10.0.0.1
constexpr Gid kOther = wire::ipv4_gid(0x0a000009);
constexpr const char* kName = "eth0";

// An Ethernet interface with an address and nobody at the other end; null where there is no TUN.
Fd make_link() {
  Fd tap(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
  ifreq request{};
  std::strcpy(request.ifr_name, kName);
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  if (!tap || ::ioctl(tap.get(), TUNSETIFF, &request) != 0) return {};
  const Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  auto* in = reinterpret_cast<sockaddr_in*>(&request.ifr_addr);
  *in = {.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(0x0a000001)}, .sin_zero = {}};
  EXPECT_EQ(::ioctl(socket.get(), SIOCSIFADDR, &request), 0);
  in->sin_addr.s_addr = htonl(0xffffff00);
  EXPECT_EQ(::ioctl(socket.get(), SIOCSIFNETMASK, &request), 0);
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  EXPECT_EQ(::ioctl(socket.get(), SIOCSIFFLAGS, &request), 0);
  return tap;
}

// As if it had answered.
void answer() {
  const Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  arpreq request{};
  auto* in = reinterpret_cast<sockaddr_in*>(&request.arp_pa);
  in->sin_family = AF_INET;
  in->sin_addr.s_addr = htonl(0x0a000009);
  request.arp_ha.sa_family = ARPHRD_ETHER;
  request.arp_ha.sa_data[5] = 9;
  request.arp_flags = ATF_COM;
  std::strcpy(request.arp_dev, kName);
  EXPECT_EQ(::ioctl(socket.get(), SIOCSARP, &request), 0);
}

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
