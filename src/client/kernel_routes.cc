#include "client/kernel_routes.h"

#include <algorithm>
#include <cerrno>

#include "os/interfaces.h"
#include "rdmacm/ports.h"
#include "wire/ip.h"
#include "wire/loopback.h"

namespace verbena::client {
namespace {

// Returns true if a packet to this destination may need a route that only the kernel knows.
bool needs_kernel_route(const ipc::Port* port, const Gid& destination) {
  if (port == nullptr || port->link_layer != LinkLayer::kEthernet) return false;
  if (!port->reach.uses_kernel_routes || wire::is_loopback(destination)) return false;
  return std::ranges::find(port->gids, destination, &ipc::GidEntry::gid) == port->gids.end();
}

bool is_of_other_family(const Gid& a, const Gid& b) { return wire::is_ipv4(a) != wire::is_ipv4(b); }

}  // namespace

Result<void> KernelRoute::check() const {
  const auto route = os::route_to(destination, source, interface);
  if (route || route.error().code != Errc::kAddressNotFound) return {};
  switch (route.error().detail) {
    case ENETUNREACH:
    case EHOSTUNREACH:
    case EACCES: return std::unexpected(route.error());
    default: return {};
  }
}

std::optional<KernelRoute> route_to_resolve(const process::Process& process,
                                            process::ConnectionHandle id,
                                            const rdmacm::SocketAddress& source,
                                            const rdmacm::SocketAddress& destination) {
  const auto found = process.connection(id);
  if (!found || (*found)->stage > process::Connection::Stage::kBound) return std::nullopt;
  const process::Connection& connection = **found;
  const Gid& to = destination.ip;
  if (destination.by_gid || rdmacm::is_wildcard(destination) || wire::is_link_local(to) ||
      !needs_kernel_route(process.find_port(connection.path.address.port), to)) {
    return std::nullopt;
  }
  const rdmacm::SocketAddress& from =
      connection.stage == process::Connection::Stage::kBound ? connection.source : source;
  if (from.family == 0) return KernelRoute{.destination = to};
  if (from.by_gid || is_of_other_family(from.ip, to)) return std::nullopt;
  if (rdmacm::is_wildcard(from)) return KernelRoute{.destination = to};
  return KernelRoute{.destination = to, .source = from.ip};
}

std::optional<KernelRoute> route_of_path(const process::Process& process,
                                         const link::Address& path) {
  if (!needs_kernel_route(process.find_port(path.port), path.destination) ||
      is_of_other_family(path.source, path.destination)) {
    return std::nullopt;
  }
  return KernelRoute{
      .destination = path.destination, .source = path.source, .interface = path.interface};
}

// Linux sends a request for the neighbour by the interface of the source, even without a route, and
// gives up after a second.  So the error is the same, but without the wait.
Error unreachable_path(const KernelRoute& route, const Error& error) {
  if (!wire::is_multicast(route.destination)) {
    return {Errc::kAddressNotFound, ETIMEDOUT,
            "no route from the GID at sgid_index to the destination"};
  }
  return {error.code, error.detail,
          "no multicast route from the GID at sgid_index: another GID index is needed (see "
          "ibv_devinfo -v)"};
}

}  // namespace verbena::client
