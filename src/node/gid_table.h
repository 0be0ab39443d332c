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

// Describes one address of the host, as the kernel reports it.
struct HostAddress {
  PortId port{};
  Gid gid{};
  std::uint32_t interface = 0;  // the kernel's index
  std::string interface_name{};
  std::uint32_t mtu_bytes = 1500;
  bool loopback = false;
  bool up = true;
  bool link_local = false;
  bool default_route = false;  // the default route uses this interface
  // InfiniBand: hosts with the same first bits of the address are on the same link.  IPv4: 0 to 32;
  // IPv6: 0 to 128.
  std::uint8_t prefix_bits = 0;
};

// Returns the largest RDMA MTU (1 = 256 ..  5 = 4096) whose packets, with all headers, fit the MTU
// of the interface; 1 if none does.
std::uint8_t rdma_mtu(std::uint32_t interface_mtu_bytes);

// Holds the GIDs of a port, which are the host's addresses (annex A17.4.5).
//
// Invariant: an entry keeps its index as long as the table lives.  An address that disappears
// leaves a hole and gets its old index when it comes back.  Only if the table is full does another
// address take the hole (an interface that is made again and again leaves many holes).
class GidTable {
 public:
  explicit GidTable(PortId port = {}, std::size_t entries_max = ipc::Port::kGidsMax)
      : port_(port), entries_max_(entries_max) {}

  // Selects the addresses of this port among those of the host.
  void update(const std::vector<HostAddress>& addresses);

  std::size_t entries_max() const { return entries_max_; }
  std::vector<ipc::GidEntry> entries() const;
  // Appends the addresses, whose connections use this P_Key.
  void append_interfaces(std::vector<rdmacm::Interface>& all, Pkey pkey) const;
  // Returns the index of an address of this host.  `interface` matters only for link-local
  // addresses.
  std::optional<std::uint32_t> index_of(const Gid& gid, std::uint32_t interface) const;
  // Returns the smallest RDMA MTU of the interfaces that are up, or 5 (4096 bytes) if there is only
  // loopback.
  std::uint8_t active_mtu() const;
  bool has_address() const;
  // Returns true if an interface that is up has an address.  Loopback counts only until another
  // interface has been up: a host that never had a network works, and a host that loses its network
  // sees the port go down.
  bool is_up() const;
  // Returns the number of addresses in the last update for which there was no room.
  std::size_t left_out() const { return left_out_; }

 private:
  struct Slot {
    HostAddress address;
    bool present = true;
  };
  PortId port_;
  std::size_t entries_max_;
  std::vector<Slot> slots_;
  std::size_t left_out_ = 0;
  bool had_network_ = false;  // an interface other than loopback has been up
};

}  // namespace verbena::node
