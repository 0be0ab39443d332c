#include "node/gid_table.h"

#include <algorithm>
#include <tuple>

namespace verbena::node {
namespace {

// This number of bytes of the interface's MTU is reserved for the IP and UDP headers, the largest
// transport headers and the ICRC.  Linux soft-RoCE reserves the same number.
constexpr std::uint32_t kHeaderBytesMax = 80;
constexpr std::uint8_t kMtu4096 = 5;

// Returns the key by which new addresses are sorted.  The interface with the default route is
// first, then come other interfaces by index, and loopback is last.  The order within an interface
// is link-local, IPv4, IPv6.
auto sort_key(const HostAddress& a) {
  const bool ipv4 = a.gid.bytes[10] == std::byte{0xff} && a.gid.bytes[0] == std::byte{0};
  const int kind = a.link_local ? 0 : ipv4 ? 1 : 2;
  return std::tuple(a.loopback, !a.default_route, a.interface, kind);
}

bool is_same_address(const HostAddress& a, const HostAddress& b) {
  return a.gid == b.gid && a.interface == b.interface;
}

}  // namespace

std::uint8_t rdma_mtu(std::uint32_t interface_mtu_bytes) {
  std::uint8_t mtu = kMtu4096;
  while (mtu > 1 && (128u << mtu) + kHeaderBytesMax > interface_mtu_bytes) --mtu;
  return mtu;
}

void GidTable::update(const std::vector<HostAddress>& addresses) {
  for (Slot& slot : slots_) slot.present = false;
  std::vector<HostAddress> new_addresses;
  for (const HostAddress& address : addresses) {
    if (address.port != port_) continue;
    const auto existing = std::ranges::find_if(
        slots_, [&](const Slot& slot) { return is_same_address(slot.address, address); });
    if (existing == slots_.end()) {
      new_addresses.push_back(address);
    } else {
      *existing = {address, true};
    }
    has_seen_network_ = has_seen_network_ || (address.up && !address.loopback);
  }
  std::ranges::stable_sort(new_addresses, {}, sort_key);
  dropped_ = 0;
  for (const HostAddress& address : new_addresses) {
    if (slots_.size() < entries_max_) {
      slots_.push_back({address});
      continue;
    }
    const auto unused = std::ranges::find(slots_, false, &Slot::present);
    if (unused == slots_.end()) {
      ++dropped_;
    } else {
      *unused = {address, true};
    }
  }
}

std::vector<ipc::GidEntry> GidTable::entries() const {
  std::vector<ipc::GidEntry> all;
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    const auto& [address, present] = slots_[i];
    if (!present) continue;
    all.push_back({.gid = address.gid,
                   .interface = address.interface,
                   .index = i,
                   .mtu_bytes = address.mtu_bytes,
                   .loopback = address.loopback});
  }
  return all;
}

void GidTable::append_interfaces(std::vector<rdmacm::Interface>& all, Pkey pkey) const {
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    const auto& [address, present] = slots_[i];
    if (!present) continue;
    rdmacm::Interface entry{.port = port_,
                            .address = address.gid,
                            .gid = address.gid,
                            .index = address.interface,
                            .mtu = rdma_mtu(address.mtu_bytes),
                            .is_loopback = address.loopback,
                            .sgid_index = i,
                            .pkey = pkey.value,
                            .up = address.up};
    address.interface_name.copy(entry.name.data(), entry.name.size() - 1);
    all.push_back(entry);
  }
}

std::optional<std::uint32_t> GidTable::index_of(const Gid& gid, std::uint32_t interface) const {
  std::optional<std::uint32_t> found;
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    const auto& [address, present] = slots_[i];
    if (!present || address.gid != gid) continue;
    if (address.interface == interface) return i;
    if (!found && !address.link_local) found = i;
  }
  return found;
}

std::uint8_t GidTable::active_mtu() const {
  std::uint8_t smallest = kMtu4096;
  for (const auto& [address, present] : slots_) {
    if (!present || address.loopback || !address.up) continue;
    smallest = std::min(smallest, rdma_mtu(address.mtu_bytes));
  }
  return smallest;
}

bool GidTable::is_up() const {
  return std::ranges::any_of(slots_, [&](const Slot& slot) {
    return slot.present && slot.address.up && !(slot.address.loopback && has_seen_network_);
  });
}

bool GidTable::has_address() const {
  return std::ranges::any_of(slots_, [](const Slot& slot) { return slot.present; });
}

}  // namespace verbena::node
