#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ipoib/neighbours.h"
#include "wire/address_text.h"
#include "wire/ip.h"
#include "wire/ipoib.h"

// Provides interfaces and frames of a link for tests.
namespace verbena::ipoib {

inline Gid ip_of(const std::string& text) { return *wire::parse_address(text); }

inline constexpr Pkey kTestPkey{0x8001};

// Returns the GID of the port with this number.
inline Gid port_gid(std::uint32_t number) {
  Gid gid = ip_of("fe80::2:c903:0:0");
  for (std::size_t i = 0; i < 4; ++i) {
    gid.bytes[12 + i] = static_cast<std::byte>(number >> 8 * (3 - i));
  }
  return gid;
}

// Returns the interface with this number (1 to 254).  Interface N has the addresses 10.0.0.N and
// fd00::N.
inline Interface interface_of(std::uint32_t number) {
  return {.pkey = kTestPkey,
          .link_address = {.gid = port_gid(number), .qpn = {0x100 + number}},
          .addresses = {{.ip = wire::ipv4_gid(0x0a000000 + number), .prefix_bits = 24},
                        {.ip = ip_of("fd00::" + std::to_string(number)), .prefix_bits = 64}}};
}

// Returns the address of a packet that comes from this interface, with a GRH.
inline link::Address from_interface(const LinkAddress& sender, const Gid& to) {
  return {.link_layer = LinkLayer::kInfiniband,
          .source = sender.gid,
          .destination = to,
          .source_lid = {7},
          .destination_lid = {0xc001},
          .has_grh = true};
}

// Describes a frame as text, for example "who has 10.0.0.2, for 10.0.0.1 -> group".
inline std::string frame_text(const SendFrame& frame) {
  using wire::address_text;
  std::string text;
  const auto message = wire::parse_ipoib_frame(frame.frame);
  if (!message) return "malformed";
  if (const auto* arp = std::get_if<wire::IpoibArp>(&*message)) {
    const std::string sender = address_text(wire::ipv4_gid(arp->sender_ip));
    const std::string target = address_text(wire::ipv4_gid(arp->target_ip));
    text = arp->operation == wire::ArpOperation::kRequest ? "who has " + target + ", for " + sender
                                                          : sender + " is here, for " + target;
  } else if (const auto* solicitation = std::get_if<wire::NeighbourSolicitation>(&*message)) {
    text = "who has " + address_text(solicitation->target) + ", for " +
           address_text(solicitation->source);
  } else {
    const auto& advertisement = std::get<wire::NeighbourAdvertisement>(*message);
    text = address_text(advertisement.target) + " is here, for " +
           address_text(advertisement.destination);
  }
  return text + " -> " + (frame.is_multicast() ? "group" : address_text(frame.to.gid));
}

// Runs the Neighbours of one interface, and collects its outputs.
class Station {
 public:
  explicit Station(const Interface& interface, const Config& config = {})
      : neighbours(interface, config) {}

  // Takes all outputs.  Returns the frames, and stores the results of calls in `results`.
  std::vector<SendFrame> frames() {
    std::vector<SendFrame> all;
    while (auto output = neighbours.poll()) {
      if (auto* frame = std::get_if<SendFrame>(&*output)) {
        all.push_back(std::move(*frame));
      } else {
        const auto& event = std::get<Resolved>(*output);
        results[event.cookie].push_back(event.neighbour);
      }
    }
    return all;
  }
  std::vector<std::string> texts() {
    std::vector<std::string> all;
    for (const SendFrame& frame : frames()) all.push_back(frame_text(frame));
    return all;
  }
  // Returns the result of a call of resolve(), or an error if the call has not exactly one result.
  Result<LinkAddress> result(std::uint64_t cookie) {
    if (results[cookie].size() != 1) return fail(Errc::kBadState, "not one result");
    return results[cookie].front();
  }
  bool has_ended(std::uint64_t cookie) const { return results.contains(cookie); }
  // Receives a message in a packet of this sender.
  void receive(const wire::ResolutionFrame& message, const LinkAddress& sender, Time now) {
    neighbours.receive(from_interface(sender, neighbours.interface().link_address.gid), sender.qpn,
                       wire::write_ipoib_frame(message), now);
  }

  Neighbours neighbours;
  std::map<std::uint64_t, std::vector<Result<LinkAddress>>> results;
};

// Returns the ARP reply of one interface to another.
inline wire::IpoibArp arp_answer(const Interface& from, const Interface& to) {
  return {.operation = wire::ArpOperation::kReply,
          .sender = from.wire_address(),
          .sender_ip = wire::ipv4_address(from.addresses[0].ip),
          .target = to.wire_address(),
          .target_ip = wire::ipv4_address(to.addresses[0].ip)};
}
inline wire::IpoibArp arp_request(const Interface& from, const Gid& target) {
  return {.operation = wire::ArpOperation::kRequest,
          .sender = from.wire_address(),
          .sender_ip = wire::ipv4_address(from.addresses[0].ip),
          .target_ip = wire::ipv4_address(target)};
}

}  // namespace verbena::ipoib
