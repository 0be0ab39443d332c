#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/strong.h"
#include "ipc/messages.h"
#include "rdmacm/types.h"

namespace verbena::node {

// One address of the host, as the kernel has it.
struct HostAddress {
  Gid gid{};
  std::uint32_t interface = 0;  // the kernel's index
  std::string interface_name{};
  std::uint32_t mtu_bytes = 1500;
  bool loopback = false;
  bool up = true;
  bool link_local = false;
  bool default_route = false;  // of the interface that the default route uses
};

// The largest RDMA MTU (1 = 256 .. 5 = 4096) whose packets, headers and all, fit an interface; 1 if
// none does.
std::uint8_t rdma_mtu(std::uint32_t interface_mtu_bytes);

// The GIDs of the port, which are the host's addresses (annex A17.4.5).
//
// Invariant: an entry keeps its index as long as the table lives.  An address that goes away leaves
// a hole, and gets its old index when it comes back; unless the table is full, and another address
// had to have it (interfaces that come anew each time leave many holes).
class GidTable {
 public:
  static constexpr std::size_t kEntriesMax = ipc::Device::kGidsMax;

  void update(const std::vector<HostAddress>& addresses);

  std::vector<ipc::GidEntry> entries() const;
  std::vector<rdmacm::Interface> interfaces() const;
  // Of an address of this host; its interface counts only for link-local ones.
  std::optional<std::uint32_t> index_of(const Gid& gid, std::uint32_t interface) const;
  // The smallest RDMA MTU of the interfaces that are up; 4096's if there is only loopback.
  std::uint8_t active_mtu() const;
  bool has_address() const;
  // An interface that is up has an address.  Loopback is enough until another has been up: a host
  // that never had a network works, and one that has lost its network is told so.
  bool is_up() const;
  // Addresses of the last update that found no place.
  std::size_t left_out() const { return left_out_; }

 private:
  struct Slot {
    HostAddress address;
    bool present = true;
  };
  std::vector<Slot> slots_;
  std::size_t left_out_ = 0;
  bool had_network_ = false;  // an interface other than loopback has been up
};

}  // namespace verbena::node
