#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/port_id.h"
#include "base/strong.h"
#include "ipoib/types.h"
#include "wire/ipoib.h"
#include "wire/mgid.h"

namespace verbena::ipoib {

// Holds one IP address of an interface.  Hosts whose addresses have the same prefix are on the same
// link.
struct OwnAddress {
  Gid ip{};
  std::uint8_t prefix_bits{};  // IPv4: 0 to 32; IPv6: 0 to 128

  friend bool operator==(const OwnAddress&, const OwnAddress&) = default;
};

// Describes an IPoIB interface of this host.  Each partition of a port has an interface.
struct Interface {
  PortId port{};
  Pkey pkey{};
  std::uint8_t scope = wire::kMgidScopeLinkLocal;  // scope of the partition's broadcast group
  LinkAddress link_address{};
  std::vector<OwnAddress> addresses{};

  bool owns(const Gid& ip) const {
    return std::ranges::find(addresses, ip, &OwnAddress::ip) != addresses.end();
  }
  // Returns the interface's address that is on the same link as `ip`.  If there are several such
  // addresses, returns the address with the longest prefix.
  std::optional<Gid> source_for(const Gid& ip) const;

  Gid broadcast_group() const { return wire::broadcast_mgid(pkey, scope); }
  // Returns the MGID of an IP multicast group on this interface.
  Gid mgid(const Gid& group) const {
    return wire::multicast_mgid(group, wire::MgidUser::kIpoib, pkey, scope);
  }
  // Returns the groups whose packets the interface has to receive; the broadcast group comes first.
  std::vector<Gid> groups() const;
  wire::IpoibAddress wire_address() const {
    return {.qpn = link_address.qpn, .gid = link_address.gid};
  }

  friend bool operator==(const Interface&, const Interface&) = default;
};

// Returns true if a host can have this IP address.
bool is_host_address(const Gid& ip);

// Makes a frame that requests the link address of a host.  The frame goes to `neighbour`, or to a
// group if `neighbour` is null.  REQUIRES: source_for(ip) has a value.
SendFrame make_request(const Interface& interface, const Gid& ip, const LinkAddress* neighbour);

// Makes a frame that announces one IP address of the interface to all neighbours.
SendFrame make_announcement(const Interface& interface, const Gid& own_ip);

}  // namespace verbena::ipoib
