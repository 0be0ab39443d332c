#include "agent/port.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <asio/io_context.hpp>

#include "ipc/counters.h"
#include "os/clock.h"
#include "os/test_process.h"
#include "wire/bth.h"
#include "wire/ip.h"

namespace verbena::agent {
namespace {

const Gid kOwn = wire::ipv4_gid(0x7f000001);
const Gid kOtherOwn = wire::ipv4_gid(0x7f000002);
const Gid kForeign = wire::ipv4_gid(0x7f000003);  // not in set_own_addresses()

// Provides a port and a burst.  The port has the host's addresses kOwn and kOtherOwn.
class PortFixture {
 public:
  PortFixture() {
    std::string problem;
    port_ = Port::open(
                loop_, {}, captures_, [] {}, problem)
                .value();
    port_->set_own_addresses({kOwn, kOtherOwn}, true);
  }
  Port& port() { return *port_; }
  void add(const Gid& from, const Gid& to, std::uint8_t mark) {
    const wire::Bth bth{.opcode = wire::Opcode::kUdSendOnly, .destination_qpn = {1}};
    const auto place = burst_.prepare();
    std::ranges::fill(place.first(kBytes), std::byte{mark});
    wire::encode_to(place, bth);
    burst_.commit({.source = from, .destination = to, .interface = 1, .source_port = 0xc001},
                  kBytes);
  }
  // Sends the burst and returns the marks of the packets that the port did not send.
  std::string send_and_get_returned() {
    std::string marks;
    for (const link::Arrival& arrival : port_->send(burst_, os::now())) {
      EXPECT_EQ(arrival.transport.size(), kBytes);
      EXPECT_EQ(arrival.address.interface, 0u);
      marks += static_cast<char>(arrival.transport.back());
    }
    burst_.clear();
    return marks;
  }
  std::uint64_t counter(const std::string& name) const {
    std::vector<ipc::NamedCount> all;
    port_->add_counters(all);
    return std::ranges::find(all, name, &ipc::NamedCount::name)->value;
  }

 private:
  static constexpr std::size_t kBytes = 24;

  asio::io_context loop_{1};
  Captures captures_{loop_, Random(1), [](const std::string&) {}};
  std::unique_ptr<Port> port_{};
  link::Burst burst_{};
};

TEST(Port, ReturnsPacketsForThisHostInsteadOfSendingThem) {
  os::in_network_namespace([] {
    PortFixture fixture;
    fixture.add(kOwn, kOwn, 'a');
    fixture.add(kOwn, kOtherOwn, 'b');
    EXPECT_EQ(fixture.send_and_get_returned(), "ab");
    EXPECT_EQ(fixture.counter("own_packets"), 2u);
    EXPECT_EQ(fixture.counter("udp_out_packets"), 0u);
  });
}

TEST(Port, SendsTheOtherPacketsOfAMixedBurst) {
  os::in_network_namespace([] {
    PortFixture fixture;
    fixture.add(kOwn, kForeign, 'a');
    fixture.add(kOwn, kOwn, 'b');
    fixture.add(kOwn, kForeign, 'c');
    EXPECT_EQ(fixture.send_and_get_returned(), "b");
    EXPECT_EQ(fixture.counter("udp_out_packets"), 2u);
  });
}

TEST(Port, ReturnsOnlyPacketsThatTheKernelWouldDeliver) {
  os::in_network_namespace([] {
    PortFixture fixture;
    fixture.add(kForeign, kOwn, 'a');
    EXPECT_EQ(fixture.send_and_get_returned(), "") << "the source is not an address of this host";
    Gid link_local;
    link_local.bytes[0] = std::byte{0xfe};
    link_local.bytes[1] = std::byte{0x80};
    fixture.port().set_own_addresses({kOwn, link_local}, true);
    fixture.add(link_local, link_local, 'b');
    EXPECT_EQ(fixture.send_and_get_returned(), "")
        << "a link-local address may belong to another host";
    fixture.port().set_own_addresses({kOwn}, false);
    fixture.add(kOwn, kOwn, 'c');
    EXPECT_EQ(fixture.send_and_get_returned(), "") << "the loopback interface is down";
  });
}

}  // namespace
}  // namespace verbena::agent
