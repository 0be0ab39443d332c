#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstring>

#include "base/strong.h"
#include "gtest/gtest.h"
#include "os/fd.h"
#include "wire/ip.h"

// Makes an Ethernet link in the test's own network namespace, for tests of this layer and of the
// agent.
namespace verbena::os {

inline constexpr Gid kSelf = wire::ipv4_gid(0x0a000001);   // 10.0.0.1
inline constexpr Gid kOther = wire::ipv4_gid(0x0a000009);  // 10.0.0.9
inline constexpr const char* kName = "eth0";

// Sets the interface's address, with a prefix of 24 bits.
inline void set_address(std::uint32_t address) {
  const Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, kName);
  auto* in = reinterpret_cast<sockaddr_in*>(&request.ifr_addr);
  *in = {.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(address)}, .sin_zero = {}};
  EXPECT_EQ(::ioctl(socket.get(), SIOCSIFADDR, &request), 0);
  in->sin_addr.s_addr = htonl(0xffffff00);
  EXPECT_EQ(::ioctl(socket.get(), SIOCSIFNETMASK, &request), 0);
}

// Makes an Ethernet interface with an address, and with no host at the other end.  Returns an empty
// Fd if the host has no TUN.
inline Fd make_link() {
  Fd tap(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
  ifreq request{};
  std::strcpy(request.ifr_name, kName);
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  if (!tap || ::ioctl(tap.get(), TUNSETIFF, &request) != 0) return {};
  set_address(0x0a000001);
  const Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  EXPECT_EQ(::ioctl(socket.get(), SIOCSIFFLAGS, &request), 0);
  return tap;
}

// Adds kOther to the ARP table (SIOCSARP), or removes it (SIOCDARP).
inline void change_arp_table(unsigned long request_number) {
  const Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  arpreq request{};
  auto* in = reinterpret_cast<sockaddr_in*>(&request.arp_pa);
  in->sin_family = AF_INET;
  in->sin_addr.s_addr = htonl(0x0a000009);
  request.arp_ha.sa_family = ARPHRD_ETHER;
  request.arp_ha.sa_data[5] = 9;
  request.arp_flags = ATF_COM;
  std::strcpy(request.arp_dev, kName);
  EXPECT_EQ(::ioctl(socket.get(), request_number, &request), 0);
}

// Adds kOther to the ARP table, as if that host had answered an ARP request.
inline void answer() { change_arp_table(SIOCSARP); }
// Removes kOther from the ARP table, as if its entry had expired.
inline void forget() { change_arp_table(SIOCDARP); }

}  // namespace verbena::os
