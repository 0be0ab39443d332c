#include "fabric/network.h"

#include <algorithm>
#include <utility>

#include "fabric/packet_name.h"
#include "link/framing.h"
#include "wire/bth.h"
#include "wire/ip.h"
#include "wire/loopback.h"

namespace verbena::fabric {
namespace {

constexpr std::uint32_t kMtuBytes = 1500;
constexpr std::uint32_t kLoopbackMtuBytes = 65536;
constexpr std::uint32_t kFirstIpv4 = 0x0a000000;

}  // namespace

Network::Network(const Config& settings)
    : config(settings), random_(settings.seed), wire_(random_.fork(), settings.wire) {}

Gid Network::address(std::uint32_t number, bool ipv6) {
  if (!ipv6) return wire::ipv4_gid(kFirstIpv4 + number);
  Gid gid;
  gid.bytes[0] = std::byte{0xfd};
  gid.bytes[15] = static_cast<std::byte>(number);
  return gid;
}

Host& Network::add_host(const std::string& name, bool ipv6) {
  const auto number = static_cast<std::uint32_t>(hosts_.size() + 1);
  const Host::Config host{.name = name,
                          .addresses = {{.gid = address(number, ipv6),
                                         .interface = 2,
                                         .interface_name = "eth0",
                                         .mtu_bytes = kMtuBytes,
                                         .default_route = true},
                                        {.gid = wire::kLoopbackIpv4,
                                         .interface = 1,
                                         .interface_name = "lo",
                                         .mtu_bytes = kLoopbackMtuBytes,
                                         .loopback = true}}};
  return add_host(host);
}

Host& Network::add_host(const Host::Config& host) {
  hosts_.push_back(std::make_unique<Host>(*this, host, random_.fork()));
  return *hosts_.back();
}

void Network::stop_faults() {
  const auto without_faults = [](sim::Faults faults) {
    return sim::Faults{.delay_min = faults.delay_min, .delay_max = faults.delay_min};
  };
  wire_.set_faults(without_faults(config.wire));
  for (auto& host : hosts_) host->loopback().set_faults(without_faults(config.loopback));
  packets_to_lose_.clear();
}

void Network::report_violation(const std::string& reporter, const std::string& what) {
  diagram.note(now(), reporter + ": " + what);
  violations_.push_back(reporter + ": " + what);
}

Host* Network::host_with(const Gid& gid) {
  const auto found =
      std::ranges::find_if(hosts_, [&](const auto& host) { return host->has_address(gid); });
  return found == hosts_.end() ? nullptr : found->get();
}

bool Network::should_lose(const std::string& name) {
  const auto found = packets_to_lose_.find(name);
  if (found == packets_to_lose_.end() || found->second == 0) return false;
  --found->second;
  return true;
}

void Network::send(Host& from, const std::string& sender, link::Burst& burst) {
  for (const link::Burst::Packet& packet : burst.packets()) {
    send(from, sender, packet.address, burst.datagram(packet));
  }
  burst.clear();
}

void Network::send(Host& from, const std::string& sender, const link::Address& address,
                   std::span<std::byte> datagram) {
  ++packet_count;
  // The port of a packet must be the port that has its source address.
  if (from.port_of(address.source) != address.port) {
    report_violation(sender, "a packet has the source address of another port");
  }
  link::seal(address, datagram, 0);
  const auto transport = datagram.first(datagram.size() - link::Burst::kIcrcBytes);
  const PacketInFlight packet{.sender = sender,
                              .name = packet_name(transport),
                              .lost = should_lose(packet_name(transport)),
                              .address = address,
                              .datagram = datagram};
  if (wire::is_multicast(address.destination)) {
    for (const auto& host : hosts_) {
      if (host->is_member(address.destination)) deliver(packet, from, host.get());
    }
    return;
  }
  // Every host has the loopback address, so the addresses of the sender are searched first.
  deliver(packet, from,
          from.has_address(address.destination) ? &from : host_with(address.destination));
}

void Network::deliver(const PacketInFlight& packet, Host& from, Host* to) {
  const auto bth = wire::decode_exact<wire::Bth>(packet.datagram.first<12>());
  sim::PacketOutcome fate = (to == &from ? from.loopback() : wire_).next();
  if (packet.lost || to == nullptr) fate.arrivals.clear();
  const char* remark = fate.arrivals.empty()       ? "lost"
                       : fate.corrupt              ? "corrupt"
                       : fate.arrivals.size() == 2 ? "twice"
                                                   : "";
  diagram.arrow(now(), packet.sender, packet.name,
                to == nullptr ? "nowhere" : to->receiver_name(bth.destination_qpn), remark);

  std::vector<std::byte> bytes(packet.datagram.begin(), packet.datagram.end());
  if (fate.corrupt) {
    const std::uint64_t bit = fate.bit % (bytes.size() * 8);
    bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
  }
  for (const Duration delay : fate.arrivals) {
    link::Address address = packet.address;
    address.port = to->port_of(address.destination).value_or(PortId{});
    world.after(delay, [to, address, bytes] { to->receive(address, bytes); });
  }
}

}  // namespace verbena::fabric
