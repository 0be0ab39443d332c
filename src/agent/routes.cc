#include "agent/routes.h"

#include <cerrno>
#include <utility>

#include "os/interfaces.h"
#include "wire/ip.h"

namespace verbena::agent {

Routes::Routes(asio::io_context& loop, AnswerCallback on_answer)
    : on_answer_(std::move(on_answer)) {
  if (auto monitor = os::InterfaceMonitor::create()) interface_monitor_ = std::move(*monitor);
  auto neighbour_monitor = os::NeighbourMonitor::create();
  if (!neighbour_monitor) return;
  neighbour_monitor_ = std::move(*neighbour_monitor);
  neighbour_watch_ = Watch(loop, neighbour_monitor_->fd(), [this] {
    neighbour_monitor_->drain();
    drop_neighbour_dependent_routes();
    answer_waiting();
  });
}

// Clears cache_ if routes may have changed.  Returns false if interface_monitor_ is missing, so
// that no route may be cached.  The kernel notifies the monitor before the call that changes a
// route returns.
bool Routes::refresh_cache() {
  if (interface_monitor_ && interface_monitor_->drain()) cache_.clear();
  return interface_monitor_.has_value();
}

Routes::Answer Routes::ask(const node::Node::RouteRequest& request) {
  const Query query{request.destination, request.source, request.scope};
  const bool may_cache = refresh_cache();
  if (const auto cached = cache_.find(query); cached != cache_.end()) {
    return cached->second.route;
  }
  const auto found = os::route_to(request.destination, request.source, request.scope);
  if (!found) return std::unexpected(found.error());
  const node::HostRoute route{.source = found->source,
                              .interface = found->interface,
                              .mtu_bytes = found->mtu,
                              .loopback = found->loopback};
  if (route.loopback && may_cache) cache_route(query, {.route = route});
  // A multicast group has no next hop that could answer.
  const bool is_group = wire::is_multicast(request.destination);
  if (route.loopback || is_group || !neighbour_monitor_ || waiting_.size() >= kWaitingMax)
    return route;

  const WaitingQuery waiting{.token = request.token,
                             .next_hop = {.address = found->gateway.value_or(request.destination),
                                          .interface = found->interface},
                             .route = route};
  const auto state = os::neighbour_state(waiting.next_hop);
  if (state &&
      (*state == os::NeighbourState::kUnknown || *state == os::NeighbourState::kUnreachable)) {
    // If this request fails, return the route anyway.  Packets to the neighbour will show whether
    // it exists.
    if (!os::resolve_neighbour(request.destination, route.source, route.interface)) return route;
  }
  auto immediate = answer(waiting);
  if (!immediate) waiting_.push_back(waiting);
  if (immediate && *immediate && may_cache)
    cache_route(query, {.route = route, .depends_on_neighbour = true});
  return immediate;
}

void Routes::cache_route(const Query& query, const CachedRoute& route) {
  if (cache_.size() >= kCachedRoutesMax) cache_.clear();
  cache_.emplace(query, route);
}

void Routes::drop_neighbour_dependent_routes() {
  std::erase_if(cache_, [](const auto& entry) { return entry.second.depends_on_neighbour; });
}

Routes::Answer Routes::answer(const WaitingQuery& waiting) {
  switch (os::neighbour_state(waiting.next_hop).value_or(os::NeighbourState::kReachable)) {
    case os::NeighbourState::kResolving: return std::nullopt;
    case os::NeighbourState::kUnreachable:
      return fail(Errc::kAddressNotFound, "no host answers for this address on the link",
                  EHOSTUNREACH);
    case os::NeighbourState::kReachable:
    case os::NeighbourState::kUnknown: return waiting.route;
  }
  std::unreachable();
}

void Routes::answer_waiting() {
  // Empty waiting_ before the loop, because on_answer_() may add queries to it.
  for (const WaitingQuery& waiting : std::exchange(waiting_, {})) {
    if (const auto result = answer(waiting)) {
      on_answer_(waiting.token, *result);
    } else {
      waiting_.push_back(waiting);
    }
  }
}

}  // namespace verbena::agent
