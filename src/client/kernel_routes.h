#pragma once

#include <cstdint>
#include <optional>

#include "base/error.h"
#include "base/strong.h"
#include "link/address.h"
#include "process/process.h"

// Asks the kernel for routes, so that a call fails at once if its destination has none.  Without
// these checks, the packets would be lost silently, or an event would report the failure later.
namespace verbena::client {

// A route from `source`, or from the kernel's choice of a source, to `destination`.
struct KernelRoute {
  Gid destination{};
  std::optional<Gid> source{};
  std::uint32_t interface = 0;  // for link-local addresses and IPv6 multicast groups, else 0

  // Returns the error if the kernel has no such route.  Succeeds if the kernel does not answer, or
  // if it refuses the question for another reason.
  Result<void> check() const;
};

// Returns the route whose existence decides whether resolving this destination fails.  Returns
// nothing if the agent must decide: it is the agent of a virtual host, it uses only one address, or
// the call has another mistake.  Needs no route for a destination on this host.
std::optional<KernelRoute> route_to_resolve(const process::Process& process,
                                            process::ConnectionHandle id,
                                            const rdmacm::SocketAddress& source,
                                            const rdmacm::SocketAddress& destination);
// Returns the route that packets of this path need.  Returns nothing in the cases that
// route_to_resolve() describes.
std::optional<KernelRoute> route_of_path(const process::Process& process,
                                         const link::Address& path);

// Returns the error of a path whose route does not exist.
Error unreachable_path(const KernelRoute& route, const Error& error);

}  // namespace verbena::client
