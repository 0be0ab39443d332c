#include "subnet/packet.h"

#include <algorithm>
#include <array>

#include "link/infiniband.h"
#include "wire/headers.h"
#include "wire/icrc.h"

namespace verbena::subnet {
namespace {

constexpr std::size_t kLrhWordBytes = 4;
constexpr std::size_t kUdHeaderBytes = wire::header_bytes(wire::Opcode::kUdSendOnly);

}  // namespace

std::optional<PacketView> view_packet(std::span<const std::byte> packet) {
  if (packet.size() < wire::route_header_bytes(false)) return std::nullopt;
  PacketView view{.lrh = wire::decode_exact<wire::Lrh>(packet.first<wire::kSize<wire::Lrh>>())};
  const bool has_grh = view.lrh.next_header == wire::LinkNextHeader::kGrh;
  if (view.lrh.link_version != 0 ||
      (!has_grh && view.lrh.next_header != wire::LinkNextHeader::kBth) ||
      view.lrh.packet_words * kLrhWordBytes != packet.size()) {
    return std::nullopt;
  }
  view.bth_offset = wire::route_header_bytes(has_grh);
  if (packet.size() < view.bth_offset + wire::kSize<wire::Bth> + wire::kIcrcBytes)
    return std::nullopt;
  const auto bth = wire::decode_exact<wire::Bth>(
      packet.subspan(view.bth_offset).first<wire::kSize<wire::Bth>>());
  view.pkey = bth.pkey;
  view.destination_qpn = bth.destination_qpn;
  const std::size_t transport_bytes = packet.size() - view.bth_offset - wire::kIcrcBytes;
  view.payload_bytes = transport_bytes - std::min(transport_bytes, wire::header_bytes(bth.opcode));
  return view;
}

bool uses_management_lane(const Packet& packet) {
  return std::to_integer<std::uint8_t>(packet[0] >> 4) == kManagementLane;
}

void set_virtual_lane(Packet& packet, std::uint8_t lane) {
  packet[0] = (packet[0] & std::byte{0x0f}) | static_cast<std::byte>(lane << 4);
}

void set_lids(Packet& packet, Lid source, Lid destination) {
  const auto lrh_bytes = std::span(packet).first<wire::kSize<wire::Lrh>>();
  wire::Lrh lrh = wire::decode_exact<wire::Lrh>(lrh_bytes);
  lrh.source = source;
  lrh.destination = destination;
  wire::encode_to(lrh_bytes, lrh);
}

void refresh_icrc(Packet& packet) {
  const auto bytes = std::span(packet);
  wire::store_icrc(bytes.last(wire::kIcrcBytes),
                   wire::infiniband_icrc(bytes.first(bytes.size() - wire::kIcrcBytes)));
}

std::optional<OpenMad> open_mad(std::span<const std::byte> packet, const PacketView& view) {
  const auto transport = wire::parse_transport(
      packet.subspan(view.bth_offset, packet.size() - view.bth_offset - wire::kIcrcBytes));
  if (!transport || transport->bth.opcode != wire::Opcode::kUdSendOnly ||
      transport->payload.size() != wire::kMadBytes) {
    return std::nullopt;
  }
  OpenMad mad{.address = {.link_layer = LinkLayer::kInfiniband,
                          .source_lid = view.lrh.source,
                          .destination_lid = view.lrh.destination,
                          .service_level = view.lrh.service_level},
              .pkey = transport->bth.pkey,
              .qkey = transport->deth.qkey,
              .source_qpn = transport->deth.source_qpn,
              .destination_qpn = transport->bth.destination_qpn};
  std::ranges::copy(transport->payload, mad.mad.begin());
  if (view.lrh.next_header == wire::LinkNextHeader::kGrh) {
    const auto grh = wire::decode_exact<wire::Ipv6Header>(
        packet.subspan<wire::kSize<wire::Lrh>, wire::kSize<wire::Ipv6Header>>());
    mad.address.has_grh = true;
    mad.address.source = grh.source;
    mad.address.destination = grh.destination;
    mad.address.flow_label = grh.flow_label;
    mad.address.traffic_class = grh.traffic_class;
    mad.address.hop_limit = grh.hop_limit;
  }
  return mad;
}

Packet seal_mad(const OpenMad& mad) {
  std::array<std::byte, kUdHeaderBytes + wire::kMadBytes> transport;
  wire::write_headers(transport, {.bth = {.opcode = wire::Opcode::kUdSendOnly,
                                          .pkey = mad.pkey,
                                          .destination_qpn = mad.destination_qpn},
                                  .deth = {.qkey = mad.qkey, .source_qpn = mad.source_qpn}});
  std::ranges::copy(mad.mad, transport.begin() + kUdHeaderBytes);
  Packet packet = link::seal_infiniband(mad.address, transport);
  if (mad.destination_qpn == wire::kSmiQpn) set_virtual_lane(packet, kManagementLane);
  return packet;
}

void replace_smp(Packet& packet, const PacketView& view, const wire::Smp& smp) {
  wire::encode_to(std::span(packet).subspan(view.bth_offset + kUdHeaderBytes), smp);
}

}  // namespace verbena::subnet
