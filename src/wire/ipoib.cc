#include "wire/ipoib.h"

#include "wire/drop.h"

namespace verbena::wire {
namespace {

// Frames of neighbour discovery come from the same link.  A router would decrease this hop limit.
constexpr std::uint8_t kNeighbourHopLimit = 255;

template <Message M>
void append(std::vector<std::byte>& frame, const M& message) {
  const auto bytes = encode(message);
  frame.insert(frame.end(), bytes.begin(), bytes.end());
}

// Returns a frame of neighbour discovery.  Computes the checksum, which covers the IPv6 addresses,
// `header` and the option.
std::vector<std::byte> neighbour_frame(const Gid& source, const Gid& destination,
                                       NeighbourHeader header, NeighbourOption option,
                                       const std::optional<IpoibAddress>& link_address) {
  std::vector<std::byte> message;
  append(message, header);
  if (link_address) append(message, LinkAddressOption{.type = option, .address = *link_address});
  header.checksum = icmpv6_checksum(source, destination, message);
  encode_to(message, header);

  std::vector<std::byte> frame;
  append(frame, IpoibHeader{.ether_type = kEtherTypeIpv6});
  append(frame, Ipv6Header{.payload_length = static_cast<std::uint16_t>(message.size()),
                           .next_header = kIpProtocolIcmpv6,
                           .hop_limit = kNeighbourHopLimit,
                           .source = source,
                           .destination = destination});
  frame.insert(frame.end(), message.begin(), message.end());
  return frame;
}

std::vector<std::byte> frame_of(const IpoibArp& arp) {
  std::vector<std::byte> frame;
  append(frame, IpoibHeader{.ether_type = kEtherTypeArp});
  append(frame, arp);
  return frame;
}

std::vector<std::byte> frame_of(const NeighbourSolicitation& message) {
  return neighbour_frame(message.source, message.destination,
                         {.type = Icmpv6Type::kNeighbourSolicitation, .target = message.target},
                         NeighbourOption::kSourceLinkAddress, message.source_link_address);
}

std::vector<std::byte> frame_of(const NeighbourAdvertisement& message) {
  return neighbour_frame(message.source, message.destination,
                         {.type = Icmpv6Type::kNeighbourAdvertisement,
                          .router = message.router,
                          .solicited = message.solicited,
                          .override_cache = message.override_cache,
                          .target = message.target},
                         NeighbourOption::kTargetLinkAddress, message.target_link_address);
}

Result<ResolutionFrame> parse_arp(std::span<const std::byte> bytes) {
  const auto arp = VB_TRY(decode<IpoibArp>(bytes));
  const bool is_infiniband = arp.hardware_type == kArpHardwareInfiniband &&
                             arp.hardware_bytes == kSize<IpoibAddress> &&
                             arp.protocol_type == kEtherTypeIpv4 && arp.protocol_bytes == 4;
  const bool is_known_operation =
      arp.operation == ArpOperation::kRequest || arp.operation == ArpOperation::kReply;
  if (!is_infiniband || !is_known_operation) return drop(Drop::kArp);
  return arp;
}

// Returns the address in the first option of this type, or nullopt if there is no such option.
// Fails if an option is malformed.
Result<std::optional<IpoibAddress>> find_link_address(std::span<const std::byte> options,
                                                      NeighbourOption option_type) {
  std::optional<IpoibAddress> found;
  while (!options.empty()) {
    if (options.size() < 2) return drop(Drop::kNeighbourDiscovery);
    const std::size_t bytes = std::to_integer<std::size_t>(options[1]) * 8;
    if (bytes == 0 || bytes > options.size()) return drop(Drop::kNeighbourDiscovery);
    if (static_cast<NeighbourOption>(options[0]) == option_type) {
      if (bytes != kSize<LinkAddressOption>) return drop(Drop::kNeighbourDiscovery);
      const auto option = VB_TRY(decode<LinkAddressOption>(options));
      if (!found) found = option.address;
    }
    options = options.subspan(bytes);
  }
  return found;
}

// Checks and returns a solicitation (RFC 4861 section 7.1.1).
Result<ResolutionFrame> parse_solicitation(const Ipv6Header& ip, const NeighbourHeader& header,
                                           std::span<const std::byte> options) {
  NeighbourSolicitation message{
      .source = ip.source, .destination = ip.destination, .target = header.target};
  message.source_link_address =
      VB_TRY(find_link_address(options, NeighbourOption::kSourceLinkAddress));
  const bool is_duplicate_detection = ip.source == Gid{};
  if (is_duplicate_detection &&
      (message.source_link_address || !is_solicited_node_group(ip.destination))) {
    return drop(Drop::kNeighbourDiscovery);
  }
  return message;
}

// Checks and returns an advertisement (RFC 4861 section 7.1.2).
Result<ResolutionFrame> parse_advertisement(const Ipv6Header& ip, const NeighbourHeader& header,
                                            std::span<const std::byte> options) {
  NeighbourAdvertisement message{.source = ip.source,
                                 .destination = ip.destination,
                                 .target = header.target,
                                 .router = header.router,
                                 .solicited = header.solicited,
                                 .override_cache = header.override_cache};
  message.target_link_address =
      VB_TRY(find_link_address(options, NeighbourOption::kTargetLinkAddress));
  if (is_multicast(ip.destination) && header.solicited) return drop(Drop::kNeighbourDiscovery);
  return message;
}

Result<ResolutionFrame> parse_neighbour_discovery(std::span<const std::byte> bytes) {
  const auto ip = VB_TRY(decode<Ipv6Header>(bytes));
  if (ip.version != 6) return drop(Drop::kNotIp);
  bytes = bytes.subspan<kSize<Ipv6Header>>();
  if (ip.payload_length > bytes.size()) return drop(Drop::kLength);
  if (ip.next_header != kIpProtocolIcmpv6) return drop(Drop::kNotAddressResolution);
  const auto message = bytes.first(ip.payload_length);
  if (message.empty()) return drop(Drop::kTooShort);
  const auto type = static_cast<Icmpv6Type>(message[0]);
  if (type != Icmpv6Type::kNeighbourSolicitation && type != Icmpv6Type::kNeighbourAdvertisement) {
    return drop(Drop::kNotAddressResolution);
  }

  const auto header = VB_TRY(decode<NeighbourHeader>(message));
  if (icmpv6_checksum(ip.source, ip.destination, message) != 0) return drop(Drop::kIcmpChecksum);
  if (ip.hop_limit != kNeighbourHopLimit || header.code != 0 || is_multicast(ip.source) ||
      is_multicast(header.target)) {
    return drop(Drop::kNeighbourDiscovery);
  }
  // This stack represents IPv4 addresses as mapped IPv6 addresses.  Neighbour discovery must not
  // change the entries of IPv4 addresses, so it must not contain mapped addresses.
  if (is_ipv4(ip.source) || is_ipv4(header.target)) return drop(Drop::kNeighbourDiscovery);
  const auto options = message.subspan<kSize<NeighbourHeader>>();
  return type == Icmpv6Type::kNeighbourSolicitation ? parse_solicitation(ip, header, options)
                                                    : parse_advertisement(ip, header, options);
}

}  // namespace

std::uint16_t icmpv6_checksum(const Gid& source, const Gid& destination,
                              std::span<const std::byte> message) {
  std::uint64_t sum = message.size() + kIpProtocolIcmpv6;
  const auto add = [&sum](std::span<const std::byte> bytes) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      sum += std::to_integer<std::uint64_t>(bytes[i]) << (i % 2 == 0 ? 8 : 0);
    }
  };
  add(source.bytes);
  add(destination.bytes);
  add(message);
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

std::vector<std::byte> write_ipoib_frame(const ResolutionFrame& message) {
  return std::visit([](const auto& alternative) { return frame_of(alternative); }, message);
}

Result<ResolutionFrame> parse_ipoib_frame(std::span<const std::byte> frame) {
  const auto header = VB_TRY(decode<IpoibHeader>(frame));
  const auto rest = frame.subspan<kSize<IpoibHeader>>();
  switch (header.ether_type) {
    case kEtherTypeArp: return parse_arp(rest);
    case kEtherTypeIpv6: return parse_neighbour_discovery(rest);
    default: return drop(Drop::kNotAddressResolution);
  }
}

}  // namespace verbena::wire
