#pragma once

#include <cstdint>

#include "cm/types.h"
#include "mad/mad.h"
#include "wire/cm.h"
#include "wire/ip.h"

// Converts between paths in messages and the paths that we use.
namespace verbena::cm {

inline constexpr std::uint16_t kRoceLid =
    0xffff;  // Ethernet has no LIDs; Linux sends this value, too

inline wire::cm::Path path_of(const AlternatePath& path) {
  return {.local_lid = kRoceLid,
          .remote_lid = kRoceLid,
          .local_gid = path.address.local,
          .remote_gid = path.address.remote,
          .flow_label = path.flow_label,
          .traffic_class = path.address.traffic_class,
          .hop_limit = path.address.hop_limit,
          .local_ack_timeout = path.local_ack_timeout};
}

// Returns the address at which the peer's end of a path is reached from here.  A link-local address
// is on the interface of the current address, `now`.
inline mad::Address address_of(const wire::cm::Path& path, const mad::Address& now) {
  constexpr std::uint8_t kAnyHops = 64;
  return {.local = path.remote_gid,
          .remote = path.local_gid,
          .interface = wire::is_link_local(path.local_gid) ? now.interface : 0,
          .traffic_class = path.traffic_class,
          .hop_limit = path.hop_limit == 0 ? kAnyHops : path.hop_limit};
}

}  // namespace verbena::cm
