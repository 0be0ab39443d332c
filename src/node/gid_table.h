#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/port_id.h"
#include "base/strong.h"
#include "ipc/messages.h"
#include "rdmacm/types.h"

namespace verbena::node {

// Describes one address of the host, as the kernel or the fabric reports it.
struct HostAddress {
  PortId port{};
  Gid gid{};
  std::uint32_t interface = 0;  // the index of the network interface
  std::string interface_name{};
  std::uint32_t mtu_bytes = 1500;
  bool loopback = false;
  bool up = true;
  bool link_local = false;
  bool default_route = false;  // the default route uses this interface
  // The length of the address's prefix: IPv4 0 to 32, IPv6 0 to 128.  Only InfiniBand ports use it,
  // to find out which hosts are on the same link.
  std::uint8_t prefix_bits = 0;
};

// Returns the code of the largest RDMA MTU (1 = 256 bytes to 5 = 4096 bytes) whose packets fit into
// the interface's MTU with all headers.  Returns 1 if no RDMA MTU fits.
std::uint8_t rdma_mtu(std::uint32_t interface_mtu_bytes);

// Holds the GIDs of an Ethernet port, which are the host's addresses (annex A17.4.5).
//
// An address that disappears leaves an unused entry, and gets the same index when it comes back.
// New addresses get new entries.  When the table is full, new addresses replace unused entries,
// because a host that often creates interfaces leaves many of them.  Only then, an address that
// comes back may get another index.
class GidTable {
 public:
  explicit GidTable(PortId port = {}, std::size_t entries_max = ipc::Port::kGidsMax)
      : port_(port), entries_max_(entries_max) {}

  // Sets the addresses of the host.  The table uses only the addresses of its port.
  void update(const std::vector<HostAddress>& addresses);

  std::size_t entries_max() const { return entries_max_; }
  std::vector<ipc::GidEntry> entries() const;
  // Appends an interface for each address.  Its connections use this P_Key.
  void append_interfaces(std::vector<rdmacm::Interface>& all, Pkey pkey) const;
  // Returns the index of an address; nothing if the table does not have it.  If several interfaces
  // have the address, prefers `interface`.  A link-local address must be on `interface`.
  std::optional<std::uint32_t> index_of(const Gid& gid, std::uint32_t interface) const;
  // Returns the code of the smallest RDMA MTU of the interfaces that are up.  Ignores loopback, and
  // returns 5 (4096 bytes) if no other interface is up.
  std::uint8_t active_mtu() const;
  // Returns true if the port has an address, even on an interface that is down.
  bool has_address() const;
  // Returns true if an interface that is up has an address.  Loopback counts only until another
  // interface has been up.  Therefore the port of a host that never had a network is up, but the
  // port goes down when a host loses its network.
  bool is_up() const;
  // Returns how many addresses of the last update are not in the table, because it is full.
  std::size_t dropped() const { return dropped_; }

 private:
  struct Slot {
    HostAddress address;
    bool present = true;
  };
  PortId port_;
  std::size_t entries_max_;
  std::vector<Slot> slots_;
  std::size_t dropped_ = 0;
  bool has_seen_network_ = false;  // an interface other than loopback has been up
};

}  // namespace verbena::node
