// Implements the calls of programs that bind ids to addresses and ports, resolve routes, set paths
// and listen.

#include <algorithm>
#include <cerrno>
#include <memory>

#include "rdmacm/manager.h"
#include "wire/ip.h"
#include "wire/loopback.h"

namespace verbena::rdmacm {

namespace {

constexpr std::uint32_t kBacklogDefault = 128;
constexpr std::uint32_t kBacklogMax = 1024;

// Normalizes an address: IPv4-mapped IPv6 becomes IPv4, and only link-local addresses keep a scope.
Result<SocketAddress> normalize(SocketAddress address) {
  if (address.family != 4 && address.family != 6) {
    return fail(Errc::kInvalidArgument, "unknown address family");
  }
  if (wire::is_ipv4(address.ip)) {
    address.family = 4;
  } else if (address.family == 4) {
    return fail(Errc::kInvalidArgument, "not an IPv4 address");
  }
  if (!wire::is_link_local(address.ip)) address.scope = 0;
  return address;
}

// Returns the reservation of this id in Ports, or the reservation that it would have with this
// address.
Ports::Reservation reservation_of(const Id& id, const SocketAddress& address, bool listening) {
  return {.address = address,
          .reuse = id.reuse_addr,
          .af_only = id.af_only && !address.by_gid,
          .listening = listening};
}

SocketAddress wildcard(std::uint8_t family, bool by_gid = false) {
  return {.ip = family == 4 ? wire::ipv4_gid(0) : Gid{}, .family = family, .by_gid = by_gid};
}

// Returns the port space in which the id reserves the port of this address.  This is the port space
// of the id, or of the address's service id (AF_IB).  An id of RDMA_PS_IB may also use service ids
// of RDMA_PS_UDP if it is for datagrams, and of RDMA_PS_TCP otherwise.
Result<std::uint16_t> space_of(const Id& id, const SocketAddress& address) {
  if (id.port_space == kPortSpaceNone || !address.by_gid) return id.port_space;
  const std::uint64_t space = address.service.value >> 16;
  const std::uint16_t alternative = id.is_datagram() ? kPortSpaceUdp : kPortSpaceTcp;
  if (space == 0 || space == id.port_space) return id.port_space;
  if (id.port_space == kPortSpaceIb && space == alternative) return alternative;
  return fail(Errc::kNotSupported, "a service id of another port space");
}

}  // namespace

void Manager::on_interfaces(std::vector<Interface> interfaces, Time) {
  interfaces_ = std::move(interfaces);
}

// Finds the interface of an address.  This host has all addresses of 127/8, and not only the one
// that the interface lists.
Result<const Interface*> Manager::local_interface(const SocketAddress& address) const {
  for (const Interface& interface : interfaces_) {
    if (!interface.up) continue;
    const bool is_local =
        (address.by_gid ? interface.gid : interface.address) == address.ip ||
        (wire::is_loopback_ipv4(interface.address) && wire::is_loopback_ipv4(address.ip));
    if (is_local && (address.scope == 0 || address.scope == interface.index)) return &interface;
  }
  return fail(Errc::kAddressNotFound, "not an address of this host");
}

Result<void> Manager::bind(Owner owner, IdHandle handle, const SocketAddress& address, Time now) {
  Id* id = VB_TRY(find(owner, handle));
  if (id->state != IdState::kIdle) return fail(Errc::kBadState, "bound already");
  const SocketAddress at = VB_TRY(normalize(address));
  VB_TRY_VOID(bind_id(handle, *id, at));
  if (id->has_reserved_port) {
    cm_.expect(service_id(id->port_space, id->source.port), now, now + kListenGrace);
  }
  return {};
}

Result<void> Manager::bind_id(IdHandle handle, Id& id, SocketAddress address) {
  if (id.port_space == kPortSpaceNone && !address.by_gid) {
    return fail(Errc::kInvalidArgument, "ids without a port space bind to GIDs and service ids");
  }
  const std::uint16_t space = VB_TRY(space_of(id, address));
  const Interface* interface = nullptr;
  if (!names_no_device(address)) interface = VB_TRY(local_interface(address));
  if (space != kPortSpaceNone) {
    const Ports::Reservation reservation = reservation_of(id, address, false);
    if (address.port != 0) {
      VB_TRY_VOID(ports_.bind(space, handle, reservation));
    } else {
      address.port = VB_TRY(ports_.bind_ephemeral(space, handle, reservation, random_));
    }
    if (address.by_gid) address.service = service_id(space, address.port);
    id.has_reserved_port = true;
  }
  id.port_space = space;
  id.source = address;
  id.state = IdState::kBound;
  if (interface != nullptr) {
    id.bound_to_device = true;
    id.is_loopback = interface->is_loopback;
    id.path.address.link_layer = interface->link_layer;
    // On Ethernet the source is the bound address, because that may be any address of 127/8, and
    // the interface lists only one of them.
    id.path.address.source = id.path.address.is_infiniband() ? interface->gid : address.ip;
    id.path.address.interface = interface->index;
    id.path.address.port = interface->port;
    id.path.pkey = interface->pkey;
    id.path.sgid_index = interface->sgid_index;
    id.path.mtu = interface->mtu;
  }
  return {};
}

std::optional<Row> Manager::find_conflict(Owner owner, IdHandle handle,
                                          const SocketAddress* address) const {
  const auto id = find(owner, handle);
  if (!id) return std::nullopt;
  const Result<SocketAddress> wanted =
      address == nullptr ? Result<SocketAddress>((*id)->source) : normalize(*address);
  if (!wanted) return std::nullopt;
  const auto space = space_of(**id, *wanted);
  if (!space) return std::nullopt;
  const auto other =
      ports_.find_conflict(*space, handle, reservation_of(**id, *wanted, address == nullptr));
  const Id* const other_id = other ? ids_.find(*other) : nullptr;
  return other_id == nullptr ? std::nullopt : std::optional(row(*other, *other_id));
}

Result<void> Manager::resolve_addr(Owner owner, IdHandle handle, const SocketAddress* source,
                                   const SocketAddress& destination, Duration timeout, Time now) {
  Id& id = *VB_TRY(find(owner, handle));
  if (id.state != IdState::kIdle && id.state != IdState::kBound) {
    return fail(Errc::kBadState, "resolved already");
  }
  SocketAddress to = VB_TRY(normalize(destination));
  if (is_wildcard(to)) to.ip = loopback(to.family);
  if (timeout < Duration(0)) return fail(Errc::kInvalidArgument, "the timeout is negative");
  if (id.state == IdState::kIdle) {
    SocketAddress from = wildcard(to.family, to.by_gid);
    if (source != nullptr && source->family != 0) {
      from = VB_TRY(normalize(*source));
      if (from.by_gid && is_wildcard(from))
        from.family = to.family;  // a wildcard GID fits either family
    }
    if (from.family != to.family || from.by_gid != to.by_gid) {
      return fail(Errc::kInvalidArgument, "source and destination are of different families");
    }
    VB_TRY_VOID(bind_id(handle, id, from));
  } else if (id.source.by_gid != to.by_gid ||
             (id.source.family != to.family && !is_wildcard(id.source))) {
    return fail(Errc::kInvalidArgument, "source and destination are of different families");
  }
  id.destination = to;
  id.state = IdState::kResolving;
  id.query_token = next_token_++;
  const Time deadline = now + std::min<Duration>(timeout, std::chrono::hours(1));
  queries_.emplace(id.query_token, Query{handle, deadline});
  query_deadlines_.emplace(deadline, handle);
  RouteQuery query{.token = id.query_token, .owner = id.owner, .destination = to};
  if (!is_wildcard(id.source)) query.source = id.source;
  outputs_.push_back(query);
  return {};
}

void Manager::on_route(std::uint64_t token, const Result<Route>& route, Time) {
  const auto at = queries_.find(token);
  if (at == queries_.end()) return;
  const IdHandle handle = at->second.id;
  finish_resolve(handle, *ids_.find(handle), route);
}

void Manager::finish_resolve(IdHandle handle, Id& id, const Result<Route>& route) {
  cancel_query(id);
  if (!route) {
    id.state = IdState::kBound;  // the program may try again
    return emit(event(handle, id, EventKind::kAddrError, -to_errno(route.error())));
  }
  id.state = IdState::kResolved;
  if (is_wildcard(id.source)) {
    id.source.ip = id.source.by_gid ? route->address.source : route->source;
    id.source.family = id.destination.family;
    id.source.scope = wire::is_link_local(id.source.ip) ? route->address.interface : 0;
  }
  id.bound_to_device = true;
  id.is_loopback = route->is_loopback;
  id.path = path_of(id, *route);
  // The flow label determines the UDP source port of RoCE.  On InfiniBand the path record has the
  // label.
  if (!id.path.address.is_infiniband()) {
    id.path.address.flow_label = 1 + static_cast<std::uint32_t>(random_.below(0xfffff));
  }
  if (route->alternate) {
    id.options.alternate = std::make_unique<PathInfo>(id.path);
    id.options.alternate->address = *route->alternate;
  }
  emit(event(handle, id, EventKind::kAddrResolved));
}

void Manager::cancel_query(Id& id) {
  if (id.query_token == 0) return;
  const auto at = queries_.find(id.query_token);
  query_deadlines_.erase({at->second.deadline, at->second.id});
  queries_.erase(at);
  id.query_token = 0;
}

// Derives the path from the route.  On InfiniBand the route has the values of a path record of the
// SA.  RoCE has no SA, so the path is computed.
PathInfo Manager::path_of(const Id& id, const Route& route) const {
  link::Address address = route.address;
  std::uint8_t packet_life_time = route.packet_life_time;
  if (!address.is_infiniband()) {
    address.source = id.source.ip;
    address.destination = id.destination.ip;
    packet_life_time =
        route.is_loopback ? config_.loopback_packet_life : config_.network_packet_life;
  }
  return {.address = address,
          .sgid_index = route.sgid_index,
          .pkey = route.pkey,
          .mtu = std::clamp<std::uint8_t>(route.mtu, 1, 5),
          .packet_life_time = packet_life_time};
}

Result<void> Manager::set_path(Owner owner, IdHandle handle, const PathInfo& path) {
  Id& id = *VB_TRY(find(owner, handle));
  if (id.state != IdState::kResolved) return fail(Errc::kBadState, "no address resolved");
  const link::Address& current_address = id.path.address;
  const link::Address& new_address = path.address;
  if (!current_address.is_infiniband()) {
    return fail(Errc::kNotSupported, "on RoCE the host's route determines the path");
  }
  if (!new_address.is_infiniband() || new_address.source != current_address.source ||
      new_address.port != current_address.port) {
    return fail(Errc::kInvalidArgument, "the path does not begin at the id's port");
  }
  constexpr std::uint8_t kMtuCodeMax = 5;
  constexpr std::uint8_t kTimeoutCodeMax = 31;
  if (path.mtu < 1 || path.mtu > kMtuCodeMax || path.packet_life_time > kTimeoutCodeMax ||
      new_address.destination_lid == Lid{}) {
    return fail(Errc::kInvalidArgument, "the path has an invalid MTU, packet life time or LID");
  }
  id.path = path;
  id.options.alternate = nullptr;
  return {};
}

Result<void> Manager::listen(Owner owner, IdHandle handle, std::uint32_t backlog) {
  Id& id = *VB_TRY(find(owner, handle));
  if (id.port_space == kPortSpaceNone) return listen_for(owner, handle, {}, backlog);
  if (id.state == IdState::kIdle) VB_TRY_VOID(bind_id(handle, id, wildcard(4)));
  if (id.state != IdState::kBound) return fail(Errc::kBadState, "not bound");
  auto listening = make_listening(backlog);  // this allocates, so it comes before all changes
  if (VB_TRY(ports_.listen(id.port_space, id.source.port, handle))) {
    const ServiceId service = service_id(id.port_space, id.source.port);
    if (const auto result = cm_.listen({.id = service}, kByPort); !result) {
      ports_.unlisten(id.port_space, id.source.port, handle);
      return result;
    }
  }
  start_listening(id, std::move(listening));
  return {};
}

std::unique_ptr<Id::Listening> Manager::make_listening(std::uint32_t backlog) {
  const std::uint32_t limit = backlog == 0 ? kBacklogDefault : std::min(backlog, kBacklogMax);
  return std::make_unique<Id::Listening>(limit);
}

void Manager::start_listening(Id& id, std::unique_ptr<Id::Listening> listening) {
  id.listening = std::move(listening);
  id.state = IdState::kListening;
}

}  // namespace verbena::rdmacm
