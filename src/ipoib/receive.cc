// Handles the frames of other interfaces: requests, answers and announcements.

#include <utility>

#include "ipoib/neighbours.h"
#include "wire/drop.h"
#include "wire/ip.h"

namespace verbena::ipoib {
namespace {

LinkAddress link_address_of(const wire::IpoibAddress& address) {
  return {.gid = address.gid, .qpn = address.qpn};
}

}  // namespace

void Neighbours::receive(const link::Address& from, Qpn source_qpn,
                         std::span<const std::byte> frame, Time now) {
  const auto message = wire::parse_ipoib_frame(frame);
  if (!message) {
    const bool is_other_protocol =
        wire::drop_reason(message.error()) == wire::Drop::kNotAddressResolution;
    ++counters_.of(is_other_protocol ? Ignored::kOtherProtocol : Ignored::kMalformed);
    return;
  }
  const Packet packet{.from = from, .source_qpn = source_qpn};
  const std::optional<Ignored> ignored =
      !is_joined_ ? Ignored::kNotJoined
                  : std::visit([&](const auto& one) { return handle(packet, one, now); }, *message);
  if (ignored) ++counters_.of(*ignored);
}

std::optional<Ignored> Neighbours::handle(const Packet& packet, const wire::IpoibArp& arp,
                                          Time now) {
  const LinkAddress sender = link_address_of(arp.sender);
  if (const auto reason = check_sender(packet, sender)) return reason;
  const Gid target = wire::ipv4_gid(arp.target_ip);
  const bool is_reply = arp.operation == wire::ArpOperation::kReply;
  std::optional<Ignored> ignored = Ignored::kNotForUs;
  if (arp.sender_ip != 0) {  // if 0, the sender tests whether an address is free (RFC 5227)
    ignored = learn({.ip = wire::ipv4_gid(arp.sender_ip),
                     .link_address = sender,
                     .is_answer = is_reply && interface_.owns(target) &&
                                  link_address_of(arp.target) == interface_.link_address},
                    now);
    if (ignored == Ignored::kBadIp || ignored == Ignored::kAddressConflict) return ignored;
  }
  if (is_reply) return ignored;
  if (!interface_.owns(target)) return ignored == std::nullopt ? ignored : Ignored::kNotForUs;
  answer(packet, sender,
         wire::IpoibArp{.operation = wire::ArpOperation::kReply,
                        .sender = interface_.wire_address(),
                        .sender_ip = arp.target_ip,
                        .target = arp.sender,
                        .target_ip = arp.sender_ip});
  return std::nullopt;
}

std::optional<Ignored> Neighbours::handle(const Packet& packet,
                                          const wire::NeighbourSolicitation& message, Time now) {
  // A solicitation without a source tests whether an address is free (RFC 4862).
  const bool is_address_probe = message.source == Gid{};
  LinkAddress sender{.gid = packet.from.source, .qpn = packet.source_qpn};
  if (message.source_link_address) {
    sender = link_address_of(*message.source_link_address);
  } else if (!packet.from.carries_gids()) {
    return Ignored::kNoLinkAddress;
  }
  if (const auto reason = check_sender(packet, sender)) return reason;
  std::optional<Ignored> ignored = Ignored::kNotForUs;
  if (!is_address_probe) {
    ignored = learn({.ip = message.source, .link_address = sender}, now);
    if (ignored == Ignored::kBadIp || ignored == Ignored::kAddressConflict) return ignored;
  }
  if (!interface_.owns(message.target))
    return ignored == std::nullopt ? ignored : Ignored::kNotForUs;
  const LinkAddress group{.gid = interface_.mgid(wire::kAllNodes), .qpn = wire::kMulticastQpn};
  answer(packet, is_address_probe ? group : sender,
         wire::NeighbourAdvertisement{
             .source = message.target,
             .destination = is_address_probe ? wire::kAllNodes : message.source,
             .target = message.target,
             .solicited = !is_address_probe,
             .override_cache = true,
             .target_link_address = interface_.wire_address()});
  return std::nullopt;
}

std::optional<Ignored> Neighbours::handle(const Packet& packet,
                                          const wire::NeighbourAdvertisement& message, Time now) {
  LinkAddress sender{.gid = packet.from.source, .qpn = packet.source_qpn};
  if (message.target_link_address) {
    sender = link_address_of(*message.target_link_address);
  } else if (!packet.from.carries_gids()) {
    return Ignored::kNoLinkAddress;
  }
  if (const auto reason = check_sender(packet, sender)) return reason;
  return learn({.ip = message.target,
                .link_address = sender,
                .is_answer = message.solicited && interface_.owns(message.destination),
                .may_override = message.override_cache},
               now);
}

// Refuses link addresses that no other interface can have, or that differ from the address of the
// packet's sender.  Otherwise a frame could redirect the packets for one host to another host.
std::optional<Ignored> Neighbours::check_sender(const Packet& packet,
                                                const LinkAddress& claimed) const {
  if (claimed == interface_.link_address) return Ignored::kOwnFrame;
  const bool is_unicast = claimed.gid != Gid{} && claimed.gid.bytes[0] != std::byte{0xff};
  const bool is_queue_pair = claimed.qpn.value > 1 && claimed.qpn.value < wire::kMulticastQpn.value;
  if (!is_unicast || !is_queue_pair || claimed.gid == interface_.link_address.gid) {
    return Ignored::kBadLinkAddress;
  }
  const bool is_other_port = packet.from.carries_gids() && packet.from.source != claimed.gid;
  if (is_other_port || packet.source_qpn != claimed.qpn) return Ignored::kForged;
  return std::nullopt;
}

// Updates a neighbour's entry from its message (RFC 4861 section 7.2.5).  The rules of ARP are the
// same, except that each message may replace an address (RFC 826).
std::optional<Ignored> Neighbours::learn(const Claims& claims, Time now) {
  if (interface_.owns(claims.ip)) return Ignored::kAddressConflict;
  if (!interface_.source_for(claims.ip)) return Ignored::kBadIp;
  Entry* const entry = table_.find(claims.ip);
  if (entry == nullptr) return Ignored::kUnknownNeighbour;

  const bool confirms = claims.is_answer && entry->tries != 0;
  if (!entry->is_incomplete() && entry->address() != claims.link_address) {
    if (const auto ignored = replace_address(*entry, claims, now)) return ignored;
  } else if (entry->is_incomplete()) {
    table_.set_address(*entry, claims.link_address);
    entry->changed_at = entry->reachable_until = now;
  } else if (!confirms) {
    return Ignored::kUnchanged;
  }
  entry->confirmed_at = now;
  if (confirms) entry->reachable_until = now + kReachableTime;
  entry->tries = 0;
  entry->next_request = kNever;
  finish(*entry, entry->waiters.size(), claims.link_address);
  schedule(*entry);
  return std::nullopt;
}

std::optional<Ignored> Neighbours::replace_address(Entry& entry, const Claims& claims, Time now) {
  if (!claims.may_override) {
    entry.reachable_until = std::min(entry.reachable_until, now);
    return Ignored::kNoOverride;
  }
  if (now - entry.changed_at < kLockTime) return Ignored::kWithinLockTime;
  table_.set_address(entry, claims.link_address);
  entry.changed_at = entry.reachable_until = now;
  ++counters_.moved;
  return std::nullopt;
}

void Neighbours::answer(const Packet& packet, const LinkAddress& receiver,
                        const wire::ResolutionFrame& message) {
  SendFrame output{.to = receiver, .frame = wire::write_ipoib_frame(message)};
  if (!output.is_multicast()) {
    output.reply_path = packet.from.reversed();
    output.reply_path->source = interface_.link_address.gid;
    output.reply_path->destination = receiver.gid;
    output.reply_path->source_lid = {};
    output.reply_path->has_grh = true;
  }
  send(std::move(output), counters_.answers);
}

}  // namespace verbena::ipoib
