#include "agent/host.h"

#include <net/if.h>

#include <algorithm>
#include <fstream>

#include "wire/address_text.h"
#include "wire/ip.h"

namespace verbena::agent {

std::vector<node::HostAddress> host_addresses(const std::vector<os::Interface>& interfaces,
                                              const std::optional<Gid>& bound) {
  std::vector<node::HostAddress> addresses;
  for (const os::Interface& i : interfaces) {
    if (bound && i.address != *bound) continue;
    addresses.push_back({.gid = i.address,
                         .interface = i.index,
                         .interface_name = i.name,
                         .mtu_bytes = i.mtu_bytes,
                         .loopback = i.loopback,
                         .up = i.up,
                         .link_local = i.link_local,
                         .default_route = i.default_route});
  }
  return addresses;
}

Guid node_guid(const std::vector<os::Interface>& interfaces, const std::string& machine_id) {
  constexpr std::array<std::byte, 6> kNone{};
  const auto found = std::ranges::find_if(
      interfaces, [&](const os::Interface& i) { return !i.loopback && i.mac != kNone; });
  std::uint64_t guid = 0;
  if (found != interfaces.end()) {
    const auto& mac = found->mac;
    const std::array eui64{mac[0] ^ std::byte{2}, mac[1], mac[2], std::byte{0xff},
                           std::byte{0xfe},       mac[3], mac[4], mac[5]};
    for (const std::byte b : eui64) guid = guid << 8 | std::to_integer<std::uint64_t>(b);
    return {guid};
  }
  guid = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : machine_id) guid = (guid ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  // Mark the GUID as a locally administered identifier.
  return {(guid & 0xfcffffffffffffff) | 0x0200000000000000};
}

std::string machine_id() {
  for (const char* path : {"/etc/machine-id", "/proc/sys/kernel/random/boot_id"}) {
    std::string id;
    if (std::ifstream file(path); std::getline(file, id) && !id.empty()) return id;
  }
  return {};
}

std::optional<BindAddress> parse_bind_address(const std::string& text) {
  const auto percent = text.find('%');
  const auto address = wire::parse_address(text.substr(0, percent));
  if (!address) return std::nullopt;
  BindAddress bind{.address = *address};
  if (percent != std::string::npos) {
    if (wire::is_ipv4(*address)) return std::nullopt;
    bind.interface = if_nametoindex(text.substr(percent + 1).c_str());
    if (bind.interface == 0) return std::nullopt;
  }
  return bind;
}

}  // namespace verbena::agent
