#include "wire/ip.h"

#include "wire/drop.h"

namespace verbena::wire {
namespace {

constexpr std::uint16_t kUdpLengthMax = 0xffff - kSize<Ipv4Header>;

// Parses the IPv4 header and returns the payload, limited to the length in the header.
Result<std::span<const std::byte>> parse_ipv4(std::span<const std::byte> datagram, Frame& frame) {
  const auto ip = VB_TRY(decode<Ipv4Header>(datagram));
  if (ip.version != 4) return drop(Drop::kNotIp);
  if (ip.header_words != 5) return drop(ip.header_words < 5 ? Drop::kNotIp : Drop::kIpOptions);
  frame.ip_header = datagram.first<kSize<Ipv4Header>>();
  if (ipv4_checksum(frame.ip_header) != 0) return drop(Drop::kIpChecksum);
  if (ip.more_fragments || ip.fragment_offset != 0) return drop(Drop::kFragment);
  if (ip.total_length < kSize<Ipv4Header> || ip.total_length > datagram.size()) {
    return drop(Drop::kLength);
  }
  if (ip.protocol != kIpProtocolUdp) return drop(Drop::kNotUdp);

  frame.headers.source = ipv4_gid(ip.source);
  frame.headers.destination = ipv4_gid(ip.destination);
  frame.headers.identification = ip.identification;
  frame.headers.tos = ip.tos;
  frame.headers.ttl = ip.ttl;
  return datagram.subspan(kSize<Ipv4Header>, ip.total_length - kSize<Ipv4Header>);
}

// Returns the reason to drop a packet with a next header other than UDP.
constexpr Drop drop_of_next_header(std::uint8_t next_header) {
  switch (next_header) {
    case 44: return Drop::kFragment;
    case 0:   // hop-by-hop options
    case 43:  // routing
    case 60:  // destination options
      return Drop::kIpOptions;
    default: return Drop::kNotUdp;
  }
}

Result<std::span<const std::byte>> parse_ipv6(std::span<const std::byte> datagram, Frame& frame) {
  const auto ip = VB_TRY(decode<Ipv6Header>(datagram));
  if (ip.version != 6) return drop(Drop::kNotIp);
  if (ip.payload_length > datagram.size() - kSize<Ipv6Header>) return drop(Drop::kLength);
  if (ip.next_header != kIpProtocolUdp) return drop(drop_of_next_header(ip.next_header));

  frame.ip_header = datagram.first<kSize<Ipv6Header>>();
  frame.headers.source = ip.source;
  frame.headers.destination = ip.destination;
  frame.headers.flow_label = ip.flow_label;
  frame.headers.tos = ip.traffic_class;
  frame.headers.ttl = ip.hop_limit;
  return datagram.subspan(kSize<Ipv6Header>, ip.payload_length);
}

}  // namespace

std::uint16_t ipv4_checksum(std::span<const std::byte> header) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i + 1 < header.size(); i += 2) {
    sum += std::to_integer<std::uint32_t>(header[i]) << 8 |
           std::to_integer<std::uint32_t>(header[i + 1]);
  }
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

std::size_t write_frame_headers(std::span<std::byte> out, const FrameHeaders& headers,
                                std::size_t udp_payload_bytes) {
  const std::size_t bytes = frame_header_bytes(headers.destination);
  VB_CHECK(out.size() >= bytes);
  VB_CHECK(udp_payload_bytes <= kUdpLengthMax - kSize<UdpHeader>);
  const auto udp_length = static_cast<std::uint16_t>(kSize<UdpHeader> + udp_payload_bytes);
  const bool is_v4 = is_ipv4(headers.destination);

  encode_to(out, EthernetHeader{.destination = headers.destination_mac,
                                .source = headers.source_mac,
                                .ether_type = is_v4 ? kEtherTypeIpv4 : kEtherTypeIpv6});
  out = out.subspan<kSize<EthernetHeader>>();
  if (is_v4) {
    Ipv4Header ip{.tos = headers.tos,
                  .total_length = static_cast<std::uint16_t>(kSize<Ipv4Header> + udp_length),
                  .identification = headers.identification,
                  .ttl = headers.ttl,
                  .source = ipv4_address(headers.source),
                  .destination = ipv4_address(headers.destination)};
    ip.checksum = ipv4_checksum(encode(ip));
    encode_to(out, ip);
    out = out.subspan<kSize<Ipv4Header>>();
  } else {
    encode_to(out, Ipv6Header{.traffic_class = headers.tos,
                              .flow_label = headers.flow_label,
                              .payload_length = udp_length,
                              .hop_limit = headers.ttl,
                              .source = headers.source,
                              .destination = headers.destination});
    out = out.subspan<kSize<Ipv6Header>>();
  }
  encode_to(out, UdpHeader{.source_port = headers.source_port,
                           .destination_port = headers.destination_port,
                           .length = udp_length});
  return bytes;
}

Result<Frame> parse_frame(std::span<const std::byte> ethernet) {
  const auto link = VB_TRY(decode<EthernetHeader>(ethernet));
  Frame frame;
  frame.headers.source_mac = link.source;
  frame.headers.destination_mac = link.destination;

  std::span<const std::byte> datagram = ethernet.subspan<kSize<EthernetHeader>>();
  if (link.ether_type == kEtherTypeIpv4) {
    datagram = VB_TRY(parse_ipv4(datagram, frame));
  } else if (link.ether_type == kEtherTypeIpv6) {
    datagram = VB_TRY(parse_ipv6(datagram, frame));
  } else {
    return drop(Drop::kNotIp);
  }

  const auto udp = VB_TRY(decode<UdpHeader>(datagram));
  if (udp.length < kSize<UdpHeader> || udp.length > datagram.size()) return drop(Drop::kLength);
  frame.headers.source_port = udp.source_port;
  frame.headers.destination_port = udp.destination_port;
  frame.udp_checksum = udp.checksum;
  frame.udp_header = datagram.first<kSize<UdpHeader>>();
  frame.udp_payload = datagram.subspan(kSize<UdpHeader>, udp.length - kSize<UdpHeader>);
  return frame;
}

}  // namespace verbena::wire
