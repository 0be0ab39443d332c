#include "agent/routes.h"

#include <cerrno>
#include <utility>

#include "os/interfaces.h"
#include "wire/ip.h"

namespace verbena::agent {

Routes::Routes(asio::io_context& loop, AnswerCallback on_answer)
    : on_answer_(std::move(on_answer)) {
  if (auto changes = os::InterfaceMonitor::create()) changes_ = std::move(*changes);
  auto monitor = os::NeighbourMonitor::create();
  if (!monitor) return;
  monitor_ = std::move(*monitor);
  monitor_watch_ = Watch(loop, monitor_->fd(), [this] {
    monitor_->drain();
    forget_next_hops();
    answer_waiting();
  });
}

// Clears cache_ if routes may have changed.  Returns false if there is no monitor, so that no route
// may be cached.  The kernel notifies the monitor before a change takes effect.
bool Routes::refresh_cache() {
  if (changes_ && changes_->drain()) cache_.clear();
  return changes_.has_value();
}

Routes::Answer Routes::ask(const node::Node::RouteWanted& request) {
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
  const bool to_group = wire::is_multicast(request.destination);
  if (route.loopback || to_group || !monitor_ || waiting_.size() >= kWaitingMax) return route;

  const Waiting waiting{.token = request.token,
                        .next_hop = {.address = found->gateway.value_or(request.destination),
                                     .interface = found->interface},
                        .route = route};
  const auto state = os::neighbour_state(waiting.next_hop);
  if (state &&
      (*state == os::NeighbourState::kUnknown || *state == os::NeighbourState::kUnreachable)) {
    // If the neighbour cannot be resolved now, packets to it will show whether it is there.
    if (!os::resolve_neighbour(request.destination, route.source, route.interface)) return route;
  }
  auto immediate = answer(waiting);
  if (!immediate) waiting_.push_back(waiting);
  if (immediate && *immediate && may_cache)
    cache_route(query, {.route = route, .by_next_hop = true});
  return immediate;
}

void Routes::cache_route(const Query& query, const CachedRoute& route) {
  if (cache_.size() >= kCachedRoutesMax) cache_.clear();
  cache_.emplace(query, route);
}

void Routes::forget_next_hops() {
  std::erase_if(cache_, [](const auto& entry) { return entry.second.by_next_hop; });
}

Routes::Answer Routes::answer(const Waiting& waiting) {
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
  // Take waiting_ first, because on_answer_() may cause the next query.
  for (const Waiting& waiting : std::exchange(waiting_, {})) {
    if (const auto now = answer(waiting)) {
      on_answer_(waiting.token, *now);
    } else {
      waiting_.push_back(waiting);
    }
  }
}

}  // namespace verbena::agent
