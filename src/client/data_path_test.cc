#include "client/data_path.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"
#include "os/clock.h"
#include "os/roce_port.h"
#include "os/test_process.h"
#include "wire/headers.h"

namespace verbena::client {
namespace {

void add_send_packet(link::Burst& burst, const Gid& address, Qpn destination) {
  const std::size_t bytes = wire::write_headers(
      burst.prepare(),
      {.bth = {.opcode = wire::Opcode::kRcSendOnly, .destination_qpn = destination}});
  burst.commit({.source = address, .destination = address, .source_port = 0xc123}, bytes);
}

// Waits until the socket of the lease is readable, and returns the number of valid packets.
std::size_t receive_packets(DataPath& data, Watches& watches) {
  watches.wait(Watches::For::kAll, os::now() + std::chrono::seconds(30));
  std::size_t packets = 0;
  data.receive(
      os::now(), os::UdpReceiver::Poll::kAll, [&](const link::Arrival&) { ++packets; },
      [] { return false; }, [] {});
  return packets;
}

// With VERBENA_BIND, the agent has a socket for one IP version only.
TEST(DataPath, ReceivesByTheOnlySocketOfALeaseOfEitherIpVersion) {
  for (const Gid& address : {os::kIpv4Loopback, os::kIpv6Loopback}) {
    os::in_network_namespace([&] {
      std::string problem;
      const auto port = *os::RocePort::open({.address = address}, problem);
      Random random(1);
      os::RocePort::Lease lease = *port->lease(random);
      std::vector<os::Fd> fds;
      for (os::Fd* fd : {&lease.ipv4, &lease.ipv6}) {
        if (*fd) fds.push_back(std::move(*fd));
      }
      ASSERT_EQ(fds.size(), 1u);
      Watches watches = std::move(*Watches::create());
      DataPath data(watches);
      ASSERT_TRUE(data.add(std::move(fds)).has_value());
      const Qpn qpn{static_cast<std::uint32_t>(lease.range) << 12 | 5};
      add_send_packet(data.burst(), address, qpn);
      data.send();
      EXPECT_EQ(receive_packets(data, watches), 1u);
    });
  }
}

}  // namespace
}  // namespace verbena::client
