#include "os/udp_link.h"

#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/if_packet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <set>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "link/framing.h"
#include "os/address.h"
#include "os/clock.h"
#include "os/multicast.h"
#include "os/netlink.h"
#include "os/roce_port.h"
#include "os/test_link.h"
#include "os/test_process.h"
#include "os/udp_options.h"
#include "wire/headers.h"
#include "wire/icrc.h"

namespace verbena::os {
namespace {

constexpr Gid kIpv4Loopback2 = wire::ipv4_gid(0x7f000002);

void add_packet(link::Burst& burst, const link::Address& address, Qpn destination,
                std::uint32_t psn, std::size_t payload_bytes) {
  const std::vector<std::byte> payload(payload_bytes, static_cast<std::byte>(psn));
  const auto out = burst.prepare();
  const std::size_t headers = wire::write_headers(
      out,
      {.bth = {.opcode = wire::Opcode::kRcSendOnly, .destination_qpn = destination, .psn = {psn}},
       .payload = payload});
  std::ranges::copy(payload, out.begin() + static_cast<std::ptrdiff_t>(headers));
  burst.commit(address, headers + payload.size());
}

link::Address flow_to(const Gid& address, std::uint16_t source_port = 0xc123) {
  return {.source = address, .destination = address, .source_port = source_port};
}

// Opens a RoCE port, and has a receiver for it and a burst.  Each test uses it in a network
// namespace of its own.
struct UdpFixture {
  std::string problem;
  std::unique_ptr<RocePort> port = *RocePort::open({}, problem);
  std::unique_ptr<UdpReceiver> receiver;
  link::Burst burst;

  explicit UdpFixture(bool coalesce_packets = false)
      : receiver(*UdpReceiver::create(port->ipv4(), port->ipv6(),
                                      {.coalesce_packets = coalesce_packets})) {}

  struct Received {
    link::Address address;
    std::uint32_t psn;
    std::size_t payload_bytes;
  };
  // Receives, opens and parses all packets that have arrived.
  std::vector<Received> receive_all() {
    std::vector<Received> all;
    for (auto batch = receiver->receive(); !batch.empty(); batch = receiver->receive()) {
      for (const auto& datagram : batch) {
        const auto arrival = link::open(datagram.address, datagram.payload, datagram.index);
        EXPECT_TRUE(arrival.has_value());
        if (!arrival.has_value()) continue;
        const auto packet = wire::parse_transport(arrival->transport);
        EXPECT_TRUE(packet.has_value());
        if (!packet.has_value()) continue;
        for (const std::byte b : packet->payload) {
          EXPECT_EQ(b, static_cast<std::byte>(packet->bth.psn.value));
        }
        all.push_back({datagram.address, packet->bth.psn.value, packet->payload.size()});
      }
    }
    return all;
  }
};

struct Recorder : PacketObserver {
  std::vector<std::pair<link::Address, std::uint16_t>> packets;
  void sent(const link::Address& address, std::span<const std::byte> datagram,
            std::uint16_t identification) override {
    EXPECT_TRUE(link::open(address, datagram).has_value());
    packets.emplace_back(address, identification);
  }
};

TEST(UdpLink, CarriesASealedPacketWithAddressesTrafficClassAndHopLimit) {
  in_network_namespace([] {
    UdpFixture fixture;
    UdpSender sender;
    for (const Gid& to : {kIpv4Loopback, kIpv6Loopback}) {
      link::Address address = flow_to(to);
      address.traffic_class = 0x6a;
      address.hop_limit = 17;
      add_packet(fixture.burst, address, Qpn{0x123}, 5, 100);
      sender.send(fixture.burst);
      EXPECT_TRUE(fixture.burst.empty());
      const auto received = fixture.receive_all();
      ASSERT_EQ(received.size(), 1u);
      EXPECT_EQ(received[0].address, address);
      EXPECT_EQ(received[0].psn, 5u);
      EXPECT_EQ(received[0].payload_bytes, 100u);
    }
    EXPECT_EQ(sender.counters().packets, 2u);
  });
}

// Returns how many UDP packets to the address have left through the link.
std::size_t packets_on(const Fd& tap, const Gid& destination) {
  constexpr std::size_t kIpOffset = 14, kProtocolOffset = kIpOffset + 9,
                        kDestinationOffset = kIpOffset + 16;
  std::size_t packets = 0;
  std::array<std::byte, 2048> frame;
  while (const auto bytes = read_some(tap.get(), frame)) {
    if (*bytes < kDestinationOffset + 4 || frame[kProtocolOffset] != std::byte{IPPROTO_UDP})
      continue;
    packets += std::ranges::equal(std::span(frame).subspan(kDestinationOffset, 4),
                                  std::span(destination.bytes).last(4));
  }
  return packets;
}

TEST(UdpLink, MulticastLimitedToThisHostDoesNotLeaveIt) {
  in_network_namespace([] {
    const Fd tap = make_link();
    if (!tap) return;  // this host has no TUN
    const std::uint32_t interface = ::if_nametoindex(kName);
    constexpr Gid kGroup = wire::ipv4_gid(0xef010203);
    UdpFixture fixture;
    ASSERT_TRUE(join_group(fixture.port->ipv4(), kGroup, interface).has_value());
    for (const bool this_host_only : {false, true}) {
      UdpSender sender;
      if (this_host_only)
        sender.set_destination(wire::kRoceUdpPort, [](const Gid&) { return false; });
      for (const auto traffic_class : {std::uint8_t{0}, std::uint8_t{0x6a}}) {
        add_packet(fixture.burst,
                   {.source = kSelf,
                    .destination = kGroup,
                    .interface = interface,
                    .source_port = 0xc123,
                    .traffic_class = traffic_class},
                   Qpn{0xffffff}, 5, 4);
        sender.send(fixture.burst);
        EXPECT_EQ(fixture.receive_all().size(), 1u);
        EXPECT_EQ(packets_on(tap, kGroup), this_host_only ? 0u : 1u);
      }
    }
  });
}

TEST(UdpLink, SenderLimitedToThisHostCountsPacketsToOtherHosts) {
  in_network_namespace([] {
    UdpFixture fixture;
    UdpSender sender(
        {.is_of_this_host = [](const Gid& address) { return address == kIpv4Loopback; }});
    for (const Gid& to : {kIpv4Loopback, kIpv4Loopback2, kIpv4Loopback}) {
      add_packet(fixture.burst, {.source = kIpv4Loopback, .destination = to, .source_port = 0xc123},
                 Qpn{1}, 5, 4);
    }
    sender.send(fixture.burst);
    EXPECT_EQ(fixture.receive_all().size(), 2u);
    EXPECT_EQ(sender.counters().packets, 2u);
    EXPECT_EQ(sender.counters().no_route, 1u);
  });
}

TEST(UdpLink, SendsFromTheFlowsSourceAddress) {
  in_network_namespace([] {
    UdpFixture fixture;
    UdpSender sender;
    const link::Address address{
        .source = kIpv4Loopback2, .destination = kIpv4Loopback, .source_port = 0xffff};
    add_packet(fixture.burst, address, Qpn{1}, 5, 4);
    sender.send(fixture.burst);
    const auto received = fixture.receive_all();
    ASSERT_EQ(received.size(), 1u);
    EXPECT_EQ(received[0].address, address);
  });
}

TEST(UdpLink, UsesTheNextFreeSourcePortIfThePortIsTaken) {
  in_network_namespace([] {
    UdpFixture fixture;
    const Fd other = *open_udp_socket(false);
    const SocketAddress taken_address = socket_address(kIpv4Loopback, 0xffff, 0);
    ASSERT_EQ(::bind(other.get(), &taken_address.any, size_of(taken_address)), 0);
    Recorder recorder;
    UdpSender sender({.observer = &recorder});
    add_packet(fixture.burst, flow_to(kIpv4Loopback, 0xffff), Qpn{1}, 1, 4);
    sender.send(fixture.burst);
    add_packet(fixture.burst, flow_to(kIpv4Loopback, 0xffff), Qpn{1}, 2, 4);
    sender.send(fixture.burst);
    const auto received = fixture.receive_all();
    ASSERT_EQ(received.size(), 2u);
    EXPECT_EQ(received[0].address.source_port, 0xc000);  // the source port wraps within its range
    EXPECT_EQ(received[1].address.source_port, 0xc000);
    ASSERT_EQ(recorder.packets.size(), 2u);
    EXPECT_EQ(recorder.packets[0].first, received[0].address);
  });
}

TEST(UdpLink, ManyFlowsShareAFewSockets) {
  in_network_namespace([] {
    UdpFixture fixture;
    UdpSender sender;
    std::set<std::uint16_t> ports;
    for (std::uint16_t i = 0; i < 100; ++i) {
      add_packet(fixture.burst, flow_to(kIpv4Loopback, static_cast<std::uint16_t>(0xd000 + 7 * i)),
                 Qpn{1}, i, 4);
      sender.send(fixture.burst);
      for (const auto& packet : fixture.receive_all()) {
        ports.insert(packet.address.source_port);
        if (i >= UdpSender::kSocketsMax) continue;
        EXPECT_EQ(packet.address.source_port, 0xd000 + 7 * i);
      }
    }
    EXPECT_EQ(ports.size(), UdpSender::kSocketsMax);
  });
}

TEST(UdpLink, BatchArrivesCompleteInOrderWithAscendingIdentifications) {
  in_network_namespace([] {
    for (const bool coalesce_at_receiver : {false, true}) {
      UdpFixture fixture(coalesce_at_receiver);
      Recorder recorder;
      UdpSender sender({.observer = &recorder});
      for (const Gid& address : {kIpv4Loopback, kIpv6Loopback}) {
        for (std::uint32_t psn = 0; psn < 40; ++psn) {
          add_packet(fixture.burst, flow_to(address), Qpn{0x77}, psn, psn == 39 ? 8 : 1024);
        }
        sender.send(fixture.burst);
        const auto received = fixture.receive_all();
        ASSERT_EQ(received.size(), 40u);
        for (std::uint32_t psn = 0; psn < 40; ++psn) EXPECT_EQ(received[psn].psn, psn);
      }
      EXPECT_EQ(sender.counters().batches, 2u);
      ASSERT_EQ(recorder.packets.size(), 80u);
      EXPECT_EQ(recorder.packets[38].second, 38);  // in the batch
      EXPECT_EQ(recorder.packets[39].second, 39);  // shorter, so it ends the batch
    }
  });
}

TEST(UdpLink, BatchArrivesAsSinglePacketsAfterStopCoalescing) {
  in_network_namespace([] {
    UdpFixture fixture(true);
    UdpSender sender;
    const auto count_first_receive = [&] {
      for (std::uint32_t psn = 0; psn < 40; ++psn) {
        add_packet(fixture.burst, flow_to(kIpv4Loopback), Qpn{0x77}, psn, 1024);
      }
      sender.send(fixture.burst);
      const std::size_t first = fixture.receiver->receive().size();
      EXPECT_EQ(first + fixture.receive_all().size(), 40u);
      return first;
    };
    EXPECT_EQ(count_first_receive(), 40u);
    fixture.receiver->stop_coalescing();
    EXPECT_EQ(count_first_receive(), UdpReceiver::kMessagesMax);
  });
}

// Records the frames that pass the loopback interface, with their headers.
class Tap {
 public:
  Tap() {
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(ETH_P_ALL);
    address.sll_ifindex = static_cast<int>(::if_nametoindex("lo"));
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  // Visits each recorded frame to the RoCE port once.
  template <class Visit>
  void for_each(Visit&& visit) {
    std::vector<std::byte> buffer(65536);
    sockaddr_ll from{};
    socklen_t from_bytes = sizeof(from);
    ssize_t n = 0;
    while ((n = ::recvfrom(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT,
                           reinterpret_cast<sockaddr*>(&from), &from_bytes)) > 0) {
      const auto frame = wire::parse_frame(std::span(buffer).first(static_cast<std::size_t>(n)));
      if (from.sll_pkttype == PACKET_OUTGOING || !frame.has_value() ||
          frame->headers.destination_port != wire::kRoceUdpPort) {
        continue;
      }
      visit(*frame);
    }
  }

 private:
  Fd socket_{::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0)};
};

// Makes the kernel split batches before they pass the interface, as it does for a network adapter
// without UDP segmentation.
void allow_one_segment_on_loopback() {
  NetlinkRequest<ifinfomsg> request(RTM_NEWLINK, NLM_F_ACK);
  request.fixed().ifi_index = static_cast<int>(::if_nametoindex("lo"));
  request.add_u32(IFLA_GSO_MAX_SEGS, 1);
  Netlink netlink = *Netlink::open();
  EXPECT_EQ(netlink.call(request.header()).error().detail, 0);  // an acknowledgement is "error" 0
}

TEST(UdpLink, IcrcMatchesTheHeadersThatTheKernelWrote) {
  in_network_namespace([] {
    UdpFixture fixture;
    allow_one_segment_on_loopback();
    Tap tap;
    UdpSender sender;
    for (const Gid& address : {kIpv4Loopback, kIpv6Loopback}) {
      for (std::uint32_t psn = 0; psn < 5; ++psn) {
        add_packet(fixture.burst, flow_to(address), Qpn{1}, psn, psn == 4 ? 8 : 256);
      }
      sender.send(fixture.burst);
      EXPECT_EQ(fixture.receive_all().size(), 5u);
    }
    EXPECT_EQ(sender.counters().batches, 2u);
    std::vector<std::uint16_t> identifications;
    tap.for_each([&](const wire::Frame& frame) {
      const auto split = *wire::split_icrc(frame.udp_payload);
      EXPECT_EQ(wire::icrc(wire::icrc_inputs(frame.headers), split.bth_to_pad), split.icrc);
      identifications.push_back(frame.headers.identification);
    });
    EXPECT_EQ(identifications, (std::vector<std::uint16_t>{0, 1, 2, 3, 4, 0, 0, 0, 0, 0}));
  });
}

TEST(UdpLink, PacketsForDifferentQpsAreNotBatched) {
  in_network_namespace([] {
    UdpFixture fixture;
    Random random(3);
    const auto lease = *fixture.port->lease(random);
    const auto lease_receiver = *UdpReceiver::create(lease.ipv4.get(), lease.ipv6.get());
    UdpSender sender;
    const Qpn leased_qpn{std::uint32_t{lease.range} << 12};
    for (std::uint32_t psn = 0; psn < 30; ++psn) {
      add_packet(fixture.burst, flow_to(kIpv4Loopback), psn < 10 || psn >= 20 ? Qpn{1} : leased_qpn,
                 psn, 64);
    }
    sender.send(fixture.burst);
    EXPECT_EQ(fixture.receive_all().size(), 20u);
    EXPECT_EQ(lease_receiver->receive().size(), 10u);
    EXPECT_EQ(sender.counters().batches, 3u);
  });
}

TEST(UdpLink, ReceiveAlternatesBetweenIpVersions) {
  in_network_namespace([] {
    UdpFixture fixture;
    UdpSender sender({.coalesce_packets = false});
    for (const Gid& address : {kIpv4Loopback, kIpv6Loopback}) {
      for (std::uint32_t psn = 0; psn < 50; ++psn) {
        add_packet(fixture.burst, flow_to(address), Qpn{1}, psn, 4);
      }
      sender.send(fixture.burst);
    }
    EXPECT_EQ(sender.counters().batches, 0u);
    const auto first = fixture.receiver->receive();
    ASSERT_EQ(first.size(), UdpReceiver::kMessagesMax);
    EXPECT_EQ(first.front().address.destination, kIpv4Loopback);
    const auto second = fixture.receiver->receive();
    ASSERT_EQ(second.size(), UdpReceiver::kMessagesMax);
    EXPECT_EQ(second.front().address.destination, kIpv6Loopback);
    EXPECT_EQ(fixture.receive_all().size(), 100 - 2 * UdpReceiver::kMessagesMax);
    EXPECT_EQ(fixture.receiver->counters().datagrams, 100u);
  });
}

TEST(UdpLink, PollsASilentIpVersionLessOften) {
  in_network_namespace([] {
    UdpFixture fixture;
    UdpSender sender;
    const auto send_to = [&](const Gid& address) {
      add_packet(fixture.burst, flow_to(address), Qpn{1}, 1, 4);
      sender.send(fixture.burst);
    };
    const auto polls_until_received = [&](UdpReceiver::Poll poll) {
      std::uint64_t polls = 1;
      while (fixture.receiver->receive(poll).empty() && polls < 1000) ++polls;
      return polls;
    };
    using enum UdpReceiver::Poll;
    for (std::uint64_t i = 0; i <= UdpReceiver::kEmptyPollsMax; ++i) {
      ASSERT_TRUE(fixture.receiver->receive(kLikely).empty());
    }
    send_to(kIpv4Loopback);
    // Both IP versions were silent equally long, so kLikely polls them alternately.
    EXPECT_LE(polls_until_received(kLikely), 2u);
    send_to(kIpv6Loopback);
    const std::uint64_t polls = polls_until_received(kLikely);
    EXPECT_GT(polls, 1u);
    EXPECT_LE(polls, UdpReceiver::kPollAllEvery);
    send_to(kIpv6Loopback);
    EXPECT_EQ(polls_until_received(kLikely), 1u);
    for (std::uint64_t i = 0; i <= UdpReceiver::kEmptyPollsMax; ++i) {
      ASSERT_TRUE(fixture.receiver->receive(kLikely).empty());
    }
    send_to(kIpv4Loopback);
    EXPECT_EQ(polls_until_received(kAll), 1u);  // kAll polls both
  });
}

TEST(UdpLink, CountsPacketsThatTheKernelRefusesByReason) {
  in_network_namespace([] {
    UdpFixture fixture;
    UdpSender sender;
    const auto send_one = [&](const link::Address& address) {
      add_packet(fixture.burst, address, Qpn{1}, 1, 4);
      sender.send(fixture.burst);
    };
    send_one({.source = kIpv4Loopback,
              .destination = wire::ipv4_gid(0x01020304),
              .source_port = 0xc000});
    EXPECT_EQ(sender.counters().no_route, 1u);
    // The source is not ours.  For IPv4, Linux returns ENETUNREACH or EINVAL, depending on version.
    send_one({.source = wire::ipv4_gid(0x01020304),
              .destination = kIpv4Loopback,
              .source_port = 0xc000});
    EXPECT_EQ(sender.counters().no_route + sender.counters().no_source, 2u);
    const std::uint64_t no_source = sender.counters().no_source;
    send_one({.source = {{std::byte{0x20}}}, .destination = kIpv6Loopback, .source_port = 0xc000});
    send_one({.source = kIpv6Loopback, .destination = kIpv4Loopback, .source_port = 0xc000});
    EXPECT_EQ(sender.counters().no_source, no_source + 2);
    EXPECT_EQ(sender.counters().packets, 0u);
    send_one(flow_to(kIpv4Loopback));  // the failures do not affect the next packet
    EXPECT_EQ(sender.counters().packets, 1u);
    EXPECT_EQ(fixture.receive_all().size(), 1u);
  });
}

TEST(UdpLink, CountsPacketsLongerThanTheMtuAndDoesNotFragmentThem) {
  in_network_namespace([] {
    UdpFixture fixture;
    const Fd socket = *open_udp_socket(false);
    ifreq request{};
    std::strcpy(request.ifr_name, "lo");
    request.ifr_mtu = 1500;
    ASSERT_EQ(::ioctl(socket.get(), SIOCSIFMTU, &request), 0);
    UdpSender sender;
    for (const Gid& address : {kIpv4Loopback, kIpv6Loopback}) {
      for (std::uint32_t psn = 0; psn < 3; ++psn) {
        add_packet(fixture.burst, flow_to(address), Qpn{1}, psn, 2048);
      }
      add_packet(fixture.burst, flow_to(address), Qpn{1}, 3, 1024);
      sender.send(fixture.burst);
      const auto received = fixture.receive_all();
      ASSERT_EQ(received.size(), 1u);
      EXPECT_EQ(received[0].psn, 3u);
    }
    EXPECT_EQ(sender.counters().too_big, 6u);
    EXPECT_EQ(sender.last_errno(), EMSGSIZE);
  });
}

TEST(UdpLink, BatchesOfPacketsThatFitASmallMtuArrive) {
  in_network_namespace([] {
    UdpFixture fixture;
    const Fd socket = *open_udp_socket(false);
    ifreq request{};
    std::strcpy(request.ifr_name, "lo");
    request.ifr_mtu = 1500;
    ASSERT_EQ(::ioctl(socket.get(), SIOCSIFMTU, &request), 0);
    UdpSender sender;
    for (const Gid& address : {kIpv4Loopback, kIpv6Loopback}) {
      for (std::uint32_t psn = 0; psn < 60; ++psn) {
        add_packet(fixture.burst, flow_to(address), Qpn{1}, psn, 1024);
      }
      sender.send(fixture.burst);
      EXPECT_EQ(fixture.receive_all().size(), 60u);
    }
  });
}

TEST(UdpLink, SendingWithoutAListenerIsNotAnError) {
  in_network_namespace([] {
    link::Burst burst;
    UdpSender sender;
    for (int i = 0; i < 3; ++i) {  // each packet causes an ICMP error
      add_packet(burst, flow_to(kIpv4Loopback), Qpn{1}, 1, 4);
      sender.send(burst);
    }
    EXPECT_EQ(sender.counters().packets, 3u);
    EXPECT_EQ(sender.counters().other, 0u);
  });
}

TEST(UdpLink, DropsDatagramsThatAreTooLongForRoce) {
  in_network_namespace([] {
    UdpFixture fixture;
    const Fd socket = *open_udp_socket(false);
    const std::vector<std::byte> huge(9000);
    const SocketAddress address = socket_address(kIpv4Loopback, wire::kRoceUdpPort, 0);
    ASSERT_EQ(::sendto(socket.get(), huge.data(), huge.size(), 0, &address.any, size_of(address)),
              9000);
    ASSERT_EQ(::sendto(socket.get(), huge.data(), 0, 0, &address.any, size_of(address)), 0);
    const auto batch = fixture.receiver->receive();
    ASSERT_EQ(batch.size(), 1u);  // only the empty datagram arrived
    EXPECT_TRUE(batch[0].payload.empty());
    EXPECT_EQ(fixture.receiver->counters().too_long, 1u);
    EXPECT_TRUE(fixture.receiver->dropped());
    EXPECT_TRUE(fixture.receiver->receive().empty());
    EXPECT_FALSE(fixture.receiver->dropped());
  });
}

TEST(UdpLink, AcceptsIpv6WithoutUdpChecksum) {
  in_network_namespace([] {
    UdpFixture fixture;
    const Fd socket = *open_udp_socket(true);
    constexpr int kNoCheck6Tx = 101;
    ASSERT_TRUE(set_option(socket.get(), IPPROTO_UDP, kNoCheck6Tx, 1));
    const SocketAddress address = socket_address(kIpv6Loopback, wire::kRoceUdpPort, 0);
    ASSERT_EQ(::sendto(socket.get(), "0123456789abcdef", 16, 0, &address.any, size_of(address)),
              16);
    EXPECT_EQ(fixture.receiver->receive().size(), 1u);
  });
}

TEST(UdpLink, ManyThreadsSendThroughOneSender) {
  in_network_namespace([] {
    UdpFixture fixture;
    UdpSender sender;
    constexpr int kThreads = 4;
    constexpr int kBursts = 20;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        link::Burst burst;
        for (int i = 0; i < kBursts; ++i) {
          add_packet(burst,
                     flow_to(kIpv4Loopback, static_cast<std::uint16_t>(0xc000 + (t + i) % 24)),
                     Qpn{1}, static_cast<std::uint32_t>(i), 8);
          sender.send(burst);
        }
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(fixture.receive_all().size(), kThreads * kBursts);
  });
}

}  // namespace
}  // namespace verbena::os
