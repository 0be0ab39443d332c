#include "os/roce_port.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <map>
#include <set>

#include "gtest/gtest.h"
#include "os/address.h"
#include "os/multicast.h"
#include "os/test_process.h"
#include "os/udp_options.h"

namespace verbena::os {
namespace {

// Sends a BTH and an ICRC, of which only the destination QPN matters here.
void send_to_qpn(const Gid& to, std::uint32_t qpn) {
  const Fd socket = *open_udp_socket(!wire::is_ipv4(to));
  std::array<std::uint8_t, 16> packet{4,
                                      0,
                                      0xff,
                                      0xff,
                                      0,
                                      static_cast<std::uint8_t>(qpn >> 16),
                                      static_cast<std::uint8_t>(qpn >> 8),
                                      static_cast<std::uint8_t>(qpn)};
  const SocketAddress address = socket_address(to, wire::kRoceUdpPort, 0);
  EXPECT_EQ(::sendto(socket.get(), packet.data(), packet.size(), 0, &address.any, size_of(address)),
            16)
      << std::strerror(errno);
}

int packets_in(int fd) {
  int packets = 0;
  std::array<std::byte, 64> packet;
  while (::recv(fd, packet.data(), packet.size(), MSG_DONTWAIT) >= 0) ++packets;
  return packets;
}

struct OpenResult {
  std::string problem;
  std::unique_ptr<RocePort> port;
};

OpenResult open_port(const RocePort::Options& options = {}) {
  OpenResult result;
  auto port = RocePort::open(options, result.problem);
  EXPECT_TRUE(port.has_value()) << result.problem;
  if (port.has_value()) result.port = std::move(*port);
  return result;
}

TEST(RocePort, SteersEachRangeToItsSocketsAndTheRestToTheAgent) {
  in_network_namespace([] {
    auto [problem, port] = open_port();
    Random random(7);
    std::array<RocePort::Lease, 3> leases;
    for (auto& lease : leases) lease = *port->lease(random);

    for (const Gid& to : {kIpv4Loopback, kIpv6Loopback}) {
      const bool ipv6 = to == kIpv6Loopback;
      for (int i = 0; i < 3; ++i) {
        for (int n = 0; n <= i; ++n) send_to_qpn(to, leases[i].range << 12 | 0x123u * n);
      }
      send_to_qpn(to, 1);
      send_to_qpn(to, 0xffffff);
      for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(packets_in(ipv6 ? leases[i].ipv6.get() : leases[i].ipv4.get()), i + 1) << i;
      }
      EXPECT_EQ(packets_in(ipv6 ? port->ipv6() : port->ipv4()), 2);
    }
  });
}

TEST(RocePort, ReleasedRangeGoesToTheAgentAndItsSocketsToTheNextLease) {
  in_network_namespace([] {
    auto [problem, port] = open_port();
    Random random(8);
    auto first = *port->lease(random);
    auto second = *port->lease(random);
    send_to_qpn(kIpv4Loopback, first.range << 12);
    first.ipv4.reset();  // the owner dies
    send_to_qpn(kIpv4Loopback, first.range << 12);
    ASSERT_TRUE(port->release(first.range).has_value());
    EXPECT_EQ(port->drained(), 2u);  // no process received these packets of the former owner
    EXPECT_EQ(port->release(first.range).error().code, Errc::kBadHandle);
    send_to_qpn(kIpv4Loopback, first.range << 12);
    EXPECT_EQ(packets_in(port->ipv4()), 1);

    auto third = *port->lease(random);
    EXPECT_NE(third.range, first.range);
    EXPECT_EQ(packets_in(third.ipv4.get()), 0);  // the new owner gets no packet of the former one
    send_to_qpn(kIpv4Loopback, first.range << 12);
    send_to_qpn(kIpv4Loopback, second.range << 12);
    send_to_qpn(kIpv4Loopback, third.range << 12);
    EXPECT_EQ(packets_in(port->ipv4()), 1);
    EXPECT_EQ(packets_in(second.ipv4.get()), 1);
    EXPECT_EQ(packets_in(third.ipv4.get()), 1);
  });
}

TEST(RocePort, OwnerThatDiesDoesNotAffectOthers) {
  in_network_namespace([] {
    auto [problem, port] = open_port();
    Random random(9);
    std::array<RocePort::Lease, 4> leases;
    for (auto& lease : leases) lease = *port->lease(random);
    leases[1] = RocePort::Lease{.range = leases[1].range, .ipv4 = {}, .ipv6 = {}};
    for (int i : {0, 2, 3}) {
      send_to_qpn(kIpv4Loopback, leases[i].range << 12);
      EXPECT_EQ(packets_in(leases[i].ipv4.get()), 1) << i;
    }
  });
}

TEST(RocePort, NeverLeasesARangeToAvoid) {
  in_network_namespace([] {
    std::string problem;
    auto port = *RocePort::open({}, problem);
    std::vector<std::uint16_t> avoid;
    for (std::uint16_t i = 1; i <= RocePort::kAvoidMax; ++i) avoid.push_back(i);
    Random random(1);
    for (int i = 0; i < 20; ++i) {
      EXPECT_GT(port->lease(random, avoid)->range, RocePort::kAvoidMax);
    }
  });
}

TEST(RocePort, LeasesAtMost512Ranges) {
  in_network_namespace([] {
    rlimit limit{.rlim_cur = 4096, .rlim_max = 4096};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    auto [problem, port] = open_port();
    Random random(10);
    std::map<std::uint16_t, RocePort::Lease> leases;
    for (std::size_t i = 0; i < RocePort::kLeasesMax; ++i) {
      auto lease = port->lease(random);
      ASSERT_TRUE(lease.has_value()) << i << " " << lease.error().context;
      EXPECT_NE(lease->range, 0);
      EXPECT_LT(lease->range, 0xfff);
      lease->ipv6.reset();
      leases[lease->range] = std::move(*lease);
    }
    EXPECT_EQ(leases.size(), RocePort::kLeasesMax);
    EXPECT_EQ(port->lease(random).error().code, Errc::kNoResources);
    for (const auto& [range, lease] : leases) {
      send_to_qpn(kIpv4Loopback, std::uint32_t{range} << 12 | 0xfff);
      EXPECT_EQ(packets_in(lease.ipv4.get()), 1);
    }
    ASSERT_TRUE(port->release(leases.begin()->first).has_value());
    EXPECT_TRUE(port->lease(random).has_value());
  });
}

TEST(RocePort, FailedLeaseDoesNotMixUpTheSockets) {
  in_network_namespace([] {
    auto [problem, port] = open_port();
    Random random(11);
    auto first = *port->lease(random);
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    // Leaves a descriptor for the IPv4 socket of the next lease, but none for the IPv6 one.
    const rlimit low_limit{.rlim_cur = static_cast<rlim_t>(first.ipv6.get() + 2),
                           .rlim_max = limit.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &low_limit);
    EXPECT_EQ(port->lease(random).error().code, Errc::kSystem);
    ::setrlimit(RLIMIT_NOFILE, &limit);
    auto second = *port->lease(random);
    for (const Gid& to : {kIpv4Loopback, kIpv6Loopback}) {
      send_to_qpn(to, second.range << 12);
      send_to_qpn(to, first.range << 12);
    }
    EXPECT_EQ(packets_in(first.ipv4.get()), 1);
    EXPECT_EQ(packets_in(second.ipv4.get()), 1);
    EXPECT_EQ(packets_in(first.ipv6.get()), 1);
    EXPECT_EQ(packets_in(second.ipv6.get()), 1);
  });
}

TEST(RocePort, NamesTheProcessThatHoldsThePort) {
  in_network_namespace([] {
    const std::string me = "pid " + std::to_string(::getpid()) + " (os_test)";
    EXPECT_EQ(udp_port_holder(wire::kRoceUdpPort).text, "no process");
    auto [none, port] = open_port();
    std::string problem;
    EXPECT_EQ(RocePort::open({}, problem).error().code, Errc::kAddressInUse);
    EXPECT_EQ(problem, "UDP port 4791 is held by " + me);
    port.reset();
    // The port is in use even if the socket that has it is bound to one address with SO_REUSEPORT.
    Fd other = *open_udp_socket(true);
    const SocketAddress address = socket_address(kIpv6Loopback, wire::kRoceUdpPort, 0);
    ASSERT_TRUE(set_option(other.get(), SOL_SOCKET, SO_REUSEPORT, 1));
    ASSERT_EQ(::bind(other.get(), &address.any, size_of(address)), 0);
    // From now on only the child has the socket.
    const pid_t child = ::fork();
    ASSERT_NE(child, -1);
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // if this test is killed, the child must not live on
      for (;;) ::pause();
    }
    other.reset();
    EXPECT_EQ(RocePort::open({}, problem).error().code, Errc::kAddressInUse);
    EXPECT_EQ(problem, "UDP port 4791 is held by pid " + std::to_string(child) + " (os_test)");
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  });
}

TEST(RocePort, BindsOnlyToTheAddressInItsOptions) {
  in_network_namespace([] {
    auto [problem, port] = open_port({.address = kIpv4Loopback});
    EXPECT_GE(port->ipv4(), 0);
    EXPECT_EQ(port->ipv6(), -1);
    Random random(12);
    const auto lease = *port->lease(random);
    EXPECT_FALSE(lease.ipv6);
    send_to_qpn(kIpv4Loopback, lease.range << 12);
    send_to_qpn(wire::ipv4_gid(0x7f000002), lease.range << 12);
    EXPECT_EQ(packets_in(lease.ipv4.get()), 1);
    EXPECT_EQ(RocePort::open({.address = wire::ipv4_gid(0x01020304)}, problem).error().code,
              Errc::kAddressNotFound);
  });
}

TEST(RocePort, OnlyMembersGetMulticastUntilTheirLeaseEnds) {
  in_network_namespace([] {
    auto [problem, port] = open_port();
    Random random(13);
    std::array<RocePort::Lease, 3> leases;
    for (auto& lease : leases) lease = *port->lease(random);
    const std::uint32_t loopback = ::if_nametoindex("lo");
    const Gid group = wire::ipv4_gid(0xef4d0105);
    const std::array loopback_only{loopback};
    for (int i : {0, 1, 0}) {  // joining twice is allowed
      ASSERT_TRUE(port->set_members(leases[i].range, group, loopback_only).has_value());
    }

    const auto send_to_group = [&] {
      const Fd socket = *open_udp_socket(false);
      ip_mreqn interface {};
      interface.imr_ifindex = static_cast<int>(loopback);
      ASSERT_EQ(
          ::setsockopt(socket.get(), IPPROTO_IP, IP_MULTICAST_IF, &interface, sizeof(interface)),
          0);
      const SocketAddress address = socket_address(group, wire::kRoceUdpPort, 0);
      EXPECT_EQ(::sendto(socket.get(), "0123456789abcdef", 16, 0, &address.any, size_of(address)),
                16)
          << std::strerror(errno);
    };
    send_to_group();
    EXPECT_EQ(packets_in(leases[0].ipv4.get()), 1);
    EXPECT_EQ(packets_in(leases[1].ipv4.get()), 1);
    EXPECT_EQ(packets_in(leases[2].ipv4.get()), 0);
    EXPECT_EQ(packets_in(port->ipv4()), 0);

    ASSERT_TRUE(port->release(leases[0].range).has_value());
    ASSERT_TRUE(port->set_members(leases[1].range, group, {}).has_value());
    ASSERT_TRUE(port->set_members(leases[1].range, group, {}).has_value());
    EXPECT_EQ(port->set_members(leases[0].range, group, loopback_only).error().code,
              Errc::kBadHandle);
    send_to_group();
    EXPECT_EQ(packets_in(leases[0].ipv4.get()), 0);
    EXPECT_EQ(packets_in(leases[1].ipv4.get()), 0);
  });
}

TEST(RocePort, JoiningSucceedsIfOneInterfaceSucceeds) {
  in_network_namespace([] {
    auto [problem, port] = open_port();
    Random random(14);
    const std::uint16_t range = port->lease(random)->range;
    const Gid group = wire::ipv4_gid(0xef4d0105);
    const std::array<std::uint32_t, 2> one_valid{::if_nametoindex("lo"), 4711};
    EXPECT_TRUE(port->set_members(range, group, one_valid).has_value());
    const std::array<std::uint32_t, 1> invalid{4711};
    EXPECT_EQ(port->set_members(range, group, invalid).error().code, Errc::kSystem);
  });
}

TEST(RocePort, ErrorNamesTheKernelsLimitOfGroups) {
  in_network_namespace([] {
    auto [problem, port] = open_port();
    Random random(15);
    const std::uint16_t range = port->lease(random)->range;
    const std::array loopback_only{::if_nametoindex("lo")};
    Result<void> joined;
    std::uint32_t count = 0;
    for (; joined && count < 100'000; ++count) {
      joined = port->set_members(range, wire::ipv4_gid(0xef000001 + count), loopback_only);
    }
    ASSERT_FALSE(joined);
    EXPECT_EQ(joined.error().code, Errc::kNoResources);
    EXPECT_STREQ(joined.error().context,
                 "the host's limit of multicast groups per socket is reached");
    // After the port leaves one group, it can join another.
    ASSERT_TRUE(port->set_members(range, wire::ipv4_gid(0xef000001), {}).has_value());
    EXPECT_TRUE(
        port->set_members(range, wire::ipv4_gid(0xef000000 + count), loopback_only).has_value());
  });
}

}  // namespace
}  // namespace verbena::os
