#pragma once

#include <cstdint>

#include "cm/types.h"
#include "mad/mad.h"
#include "wire/cm.h"
#include "wire/ip.h"

// Converts between the paths in CM messages and the addresses that this stack uses.
namespace verbena::cm {

// RoCE messages have this value in their LID fields, because Ethernet has no LIDs.  Linux also
// sends it.
inline constexpr Lid kRoceLid{0xffff};

inline wire::cm::Path path_of(const AlternatePath& path) {
  const link::Address& address = path.address.path;
  return {.local_lid = address.is_infiniband() ? address.source_lid : kRoceLid,
          .remote_lid = address.is_infiniband() ? address.destination_lid : kRoceLid,
          .local_gid = address.source,
          .remote_gid = address.destination,
          .flow_label = address.flow_label,
          .traffic_class = address.traffic_class,
          .hop_limit = address.hop_limit,
          .sl = address.is_infiniband() ? address.service_level : std::uint8_t{0},
          .subnet_local = !address.carries_gids(),
          .local_ack_timeout = path.local_ack_timeout};
}

// Returns the address at which the peer's end of a path is reached from here.  The link layer, the
// port, and the interface of a link-local address are those of `current`, the address in use.
inline mad::Address address_of(const wire::cm::Path& path, const mad::Address& current) {
  constexpr std::uint8_t kHopLimitDefault = 64;
  link::Address address{.link_layer = current.path.link_layer,
                        .source = path.remote_gid,
                        .destination = path.local_gid,
                        .flow_label = path.flow_label,
                        .traffic_class = path.traffic_class,
                        .hop_limit = path.hop_limit == 0 ? kHopLimitDefault : path.hop_limit,
                        .port = current.path.port};
  if (address.is_infiniband()) {
    address.source_lid = path.remote_lid;
    address.destination_lid = path.local_lid;
    address.service_level = path.sl;
    address.has_grh = !path.subnet_local;
  } else if (wire::is_link_local(path.local_gid)) {
    address.interface = current.path.interface;
  }
  return {.path = address};
}

}  // namespace verbena::cm
