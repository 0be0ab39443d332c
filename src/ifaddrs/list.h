#pragma once

#include <ifaddrs.h>
#include <net/if.h>

#include <optional>
#include <span>

#include "interfaces/interfaces.h"

// Makes the results of getifaddrs(3) and if_nameindex(3) for a program on a virtual host.  The
// results contain the loopback interfaces of this machine, and the interfaces of the virtual host.
namespace verbena::ifaddrs {

// Returns a list like that of getifaddrs(), in the same order: the link-layer addresses (AF_PACKET)
// of all interfaces, then all IPv4 addresses, then all IPv6 addresses.  The entries of loopback
// interfaces come from `machine`.  The list is one block of memory, as the C library's own lists
// are, so freeifaddrs() releases it.  An empty list is null.  Returns nothing if the allocation of
// memory fails.
std::optional<::ifaddrs*> make_list(const ::ifaddrs* machine,
                                    std::span<const interfaces::Interface> interfaces);

// Returns an array like that of if_nameindex().  Each name is a separate block of memory, so
// if_freenameindex() releases the array.  Returns null if the allocation of memory fails.
struct ::if_nameindex* make_names(const ::ifaddrs* machine,
                                  std::span<const interfaces::Interface> interfaces);

// Returns the index of the machine's loopback interface of this name, or 0.
unsigned loopback_index(const ::ifaddrs* machine, const char* name);
// Returns the name of the machine's loopback interface with this index, or null.
const char* loopback_name(const ::ifaddrs* machine, unsigned index);

}  // namespace verbena::ifaddrs
