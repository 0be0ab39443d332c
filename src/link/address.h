#pragma once

#include <cstdint>
#include <utility>

#include "base/link_layer.h"
#include "base/port_id.h"
#include "base/strong.h"

namespace verbena::link {

// Holds the addresses of one packet, and the header fields that a network uses to route it.
//
// On Ethernet the GIDs are IP addresses (annex A17), and every packet carries them.
//
// On InfiniBand the LIDs determine the route through the subnet.  The low LMC bits of a LID are the
// path bits (vol1 4.1.3).  The GIDs are those of the two ends.  A packet carries the GIDs only if
// it has a GRH.  If a packet arrives without a GRH, the GIDs of its Address are zero.
struct Address {
  LinkLayer link_layer = LinkLayer::kEthernet;
  Gid source{};
  Gid destination{};
  std::uint32_t interface = 0;    // Ethernet: the interface index of a link-local address, else 0
  std::uint16_t source_port = 0;  // Ethernet: 0xC000 to 0xFFFF (wire/source_port.h)
  std::uint32_t flow_label = 0;   // 20 bits, for the GRH; on Ethernet, determines the source port
  std::uint8_t traffic_class = 0;
  std::uint8_t hop_limit = 64;
  // Only InfiniBand uses the next four fields.
  Lid source_lid{};
  Lid destination_lid{};
  std::uint8_t service_level = 0;  // 4 bits
  bool has_grh = false;
  PortId port{};  // the port of this host; not a field of the packet

  bool is_infiniband() const { return link_layer == LinkLayer::kInfiniband; }
  // Returns true if packets carry the GIDs.
  bool carries_gids() const { return !is_infiniband() || has_grh; }

  // Returns the address of a packet in the other direction.
  Address reversed() const {
    Address back = *this;
    std::swap(back.source, back.destination);
    std::swap(back.source_lid, back.destination_lid);
    return back;
  }

  friend constexpr bool operator==(const Address&, const Address&) = default;
};

// Returns true if a packet that arrived as `arrival` comes from the peer of `path` (vol1 9.6.1.5).
// On Ethernet this compares the source GID.  On InfiniBand it compares the source LID and the
// presence of a GRH, and with a GRH also the source GID.  The packet has to arrive at the path's
// port.
inline bool is_from_peer(const Address& arrival, const Address& path) {
  if (arrival.port != path.port) return false;
  if (!path.is_infiniband()) return arrival.source == path.destination;
  if (arrival.source_lid != path.destination_lid || arrival.has_grh != path.has_grh) return false;
  return !path.has_grh || arrival.source == path.destination;
}

// Returns true if a packet comes from the peer of `path`, and is addressed to our end of the path.
inline bool is_on_path(const Address& arrival, const Address& path) {
  if (!is_from_peer(arrival, path)) return false;
  if (path.is_infiniband() && arrival.destination_lid != path.source_lid) return false;
  return !path.carries_gids() || arrival.destination == path.source;
}

}  // namespace verbena::link
