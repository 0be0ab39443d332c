#include "link/infiniband.h"

#include <algorithm>

#include "wire/icrc.h"
#include "wire/infiniband.h"

namespace verbena::link {

std::vector<std::byte> seal_infiniband(const Address& address,
                                       std::span<const std::byte> transport) {
  VB_CHECK(address.is_infiniband());
  wire::RouteHeaders headers{.lrh = {.service_level = address.service_level,
                                     .destination = address.destination_lid,
                                     .source = address.source_lid}};
  if (address.has_grh) {
    headers.lrh.next_header = wire::LinkNextHeader::kGrh;
    headers.grh = {.traffic_class = address.traffic_class,
                   .flow_label = address.flow_label,
                   .hop_limit = address.hop_limit,
                   .source = address.source,
                   .destination = address.destination};
  }
  std::vector<std::byte> packet(wire::route_header_bytes(address.has_grh) + transport.size() +
                                wire::kIcrcBytes);
  const auto all = std::span(packet);
  const std::size_t header_bytes = wire::write_route_headers(all, headers, transport.size());
  std::ranges::copy(transport, all.subspan(header_bytes).begin());
  wire::store_icrc(all.last(wire::kIcrcBytes),
                   wire::infiniband_icrc(all.first(all.size() - wire::kIcrcBytes)));
  return packet;
}

Result<Arrival> open_infiniband(std::span<const std::byte> packet) {
  const wire::RoutedPacket routed = VB_TRY(wire::parse_routed_packet(packet));
  const auto& [lrh, grh] = routed.headers;
  Address address{.link_layer = LinkLayer::kInfiniband,
                  .source_lid = lrh.source,
                  .destination_lid = lrh.destination,
                  .service_level = lrh.service_level,
                  .has_grh = routed.headers.has_grh()};
  if (address.has_grh) {
    address.source = grh.source;
    address.destination = grh.destination;
    address.flow_label = grh.flow_label;
    address.traffic_class = grh.traffic_class;
    address.hop_limit = grh.hop_limit;
  }
  return Arrival{address, routed.bth_to_pad};
}

}  // namespace verbena::link
