#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/strong.h"
#include "node/node.h"
#include "os/interfaces.h"

// The host as the node wants to hear of it.
namespace verbena::agent {

// With `bound`, that address alone.
std::vector<node::HostAddress> host_addresses(const std::vector<os::Interface>& interfaces,
                                              const std::optional<Gid>& bound);

// The same after every start: the MAC of the first interface that has one as an EUI-64, or where
// there is only loopback, a number made from the machine's id.
Guid node_guid(const std::vector<os::Interface>& interfaces, const std::string& machine_id);
// The machine's id, or that of the boot; empty if there is neither.
std::string machine_id();

struct BindAddress {
  Gid address{};
  std::uint32_t interface = 0;  // for a link-local one: "fe80::1%eth0"
};
std::optional<BindAddress> parse_bind_address(const std::string& text);

}  // namespace verbena::agent
