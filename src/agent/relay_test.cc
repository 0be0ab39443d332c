#include "agent/relay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ipc/counters.h"
#include "os/clock.h"
#include "os/shared_memory.h"
#include "os/test_process.h"
#include "wire/headers.h"
#include "wire/ip.h"

namespace verbena::agent {
namespace {

constexpr Gid kRelayHost = wire::ipv4_gid(0x7f000001);

// Acts as a program of another user that has a range of QP numbers.
class Guest {
 public:
  Guest(os::RocePort& port, Relay& relay, node::ClientId client, Random& random) : client_(client) {
    auto lease = *port.lease(random);
    range_ = lease.range;
    const std::vector<int> fds = *relay.attach(client, std::move(lease));
    EXPECT_EQ(fds.size(), 2u);
    memory_ = *os::map_shared(fds[0], link::Lane::kBytes, link::Lane::kBytes, true);
    wake_.emplace(*os::WakeSocket::adopt(*os::duplicate_fd(fds[1])));
    lane_.emplace(*link::Lane::attach(memory_.bytes(), link::Lane::Side::kFirst));
    relay.release_passed_descriptors();
  }

  std::uint16_t range() const { return range_; }
  node::ClientId client() const { return client_; }
  void send(const link::Address& address, std::uint16_t to_range, std::size_t payload_bytes) {
    ASSERT_TRUE(lane_->prepare(address));
    const std::vector<std::byte> payload(payload_bytes, std::byte{7});
    const std::size_t headers = wire::write_headers(
        lane_->packet_space(),
        {.bth = {.opcode = wire::Opcode::kRcSendOnly,
                 .destination_qpn = {static_cast<std::uint32_t>(to_range) << 12}},
         .payload = payload});
    std::ranges::copy(payload,
                      lane_->packet_space().begin() + static_cast<std::ptrdiff_t>(headers));
    lane_->commit(headers + payload_bytes);
    if (lane_->flush()) wake_->wake();
  }
  std::size_t receive() {
    wake_->clear();
    return lane_->receive(100, [](const link::Arrival&) {});
  }

 private:
  node::ClientId client_;
  std::uint16_t range_ = 0;
  os::Mapping memory_{};
  std::optional<os::WakeSocket> wake_{};
  std::optional<link::Lane> lane_{};
};

link::Address to_relay_host() {
  return {.source = kRelayHost, .destination = kRelayHost, .source_port = 0xc001};
}

constexpr auto kTimeout = std::chrono::seconds(20);

struct RelayFixture {
  std::string problem;
  asio::io_context loop{1};
  Random random{1};
  std::unique_ptr<os::RocePort> port = *os::RocePort::open({}, problem);
  std::unique_ptr<Relay> relay = *Relay::create(loop);

  // Runs the loop until the guest receives packets, for 20 seconds at most.  Returns their number.
  std::size_t run_until_received(Guest& guest) {
    for (const Time deadline = os::now() + kTimeout; os::now() < deadline;) {
      loop.poll();
      loop.restart();
      if (const std::size_t packets = guest.receive(); packets != 0) return packets;
    }
    return 0;
  }
  std::uint64_t counter(const std::string& name) const {
    std::vector<ipc::NamedCount> all;
    relay->add_counters(all);
    for (const auto& entry : all) {
      if (entry.name == name) return entry.value;
    }
    ADD_FAILURE() << "no counter " << name;
    return 0;
  }
};

TEST(Relay, CarriesPacketsOfProgramsOfOtherUsersByUdp) {
  os::in_network_namespace([] {
    RelayFixture fixture;
    Guest first(*fixture.port, *fixture.relay, 1, fixture.random);
    Guest second(*fixture.port, *fixture.relay, 2, fixture.random);
    first.send(to_relay_host(), second.range(), 100);
    EXPECT_EQ(fixture.run_until_received(second), 1u);
    second.send(to_relay_host(), first.range(), 4096);
    EXPECT_EQ(fixture.run_until_received(first), 1u);
    EXPECT_EQ(fixture.counter("relayed_to_udp"), 2u);
    EXPECT_EQ(fixture.counter("forwarded"), 2u);
  });
}

TEST(Relay, DropsInfinibandPacketsOfPrograms) {
  os::in_network_namespace([] {
    RelayFixture fixture;
    Guest first(*fixture.port, *fixture.relay, 1, fixture.random);
    link::Address address = to_relay_host();
    address.link_layer = LinkLayer::kInfiniband;
    first.send(address, first.range(), 4);
    first.send(to_relay_host(), first.range(), 4);
    EXPECT_EQ(fixture.run_until_received(first), 1u);
    EXPECT_EQ(fixture.counter("dropped_relay_malformed"), 1u);
  });
}

TEST(Relay, CountsPacketsForADisconnectedProgram) {
  os::in_network_namespace([] {
    RelayFixture fixture;
    Guest first(*fixture.port, *fixture.relay, 1, fixture.random);
    Guest ended(*fixture.port, *fixture.relay, 2, fixture.random);
    fixture.relay->detach(ended.client());
    first.send(to_relay_host(), ended.range(), 4);
    first.send(to_relay_host(), first.range(), 4);
    EXPECT_EQ(fixture.run_until_received(first), 1u);
    const Time deadline = os::now() + kTimeout;
    while (fixture.counter("dropped_relay_no_program") == 0 && os::now() < deadline) {
      fixture.loop.poll();
      fixture.loop.restart();
    }
    EXPECT_EQ(fixture.counter("dropped_relay_no_program"), 1u);
    fixture.relay->release(ended.range());
  });
}

}  // namespace
}  // namespace verbena::agent
