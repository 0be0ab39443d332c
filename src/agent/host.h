#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/strong.h"
#include "node/node.h"
#include "os/interfaces.h"

// Gets facts about the host in the form that the node needs.
namespace verbena::agent {

// Returns the addresses of the interfaces.  If `bound` is given, returns only that address.
std::vector<node::HostAddress> host_addresses(const std::vector<os::Interface>& interfaces,
                                              const std::optional<Gid>& bound);

// Returns a GUID that is the same after every start: the EUI-64 of the first interface, other than
// loopback, that has a MAC.  If there is no such interface, returns a hash of the machine's id.
Guid node_guid(const std::vector<os::Interface>& interfaces, const std::string& machine_id);
// Returns the machine's id.  If there is none, returns the id of this boot.  If both are missing,
// returns an empty text.
std::string machine_id();

struct BindAddress {
  Gid address{};
  std::uint32_t interface = 0;  // for a link-local address, such as "fe80::1%eth0"
};
// Returns nothing if the text is not an IP address, if it names an interface that does not exist,
// or if it names an interface for an IPv4 address.
std::optional<BindAddress> parse_bind_address(const std::string& text);

}  // namespace verbena::agent
