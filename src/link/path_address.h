#pragma once

#include <cstdint>

#include "link/address.h"
#include "wire/sa.h"

namespace verbena::link {

// Returns the address of packets that take the path of a path record (vol1 15.2.5.16) from this
// port.  If the hop limit is 1, the path remains in its subnet, and needs no GRH (vol1 13.5.4.3).
inline Address address_of(const wire::PathRecord& path, PortId port) {
  constexpr std::uint8_t kHopsInSubnet = 1;
  return {.link_layer = LinkLayer::kInfiniband,
          .source = path.source_gid,
          .destination = path.destination_gid,
          .flow_label = path.flow_label,
          .traffic_class = path.traffic_class,
          .hop_limit = path.hop_limit,
          .source_lid = path.source_lid,
          .destination_lid = path.destination_lid,
          .service_level = path.service_level,
          .has_grh = path.hop_limit > kHopsInSubnet,
          .port = port};
}

}  // namespace verbena::link
