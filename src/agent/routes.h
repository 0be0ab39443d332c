#pragma once

#include <asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "agent/watch.h"
#include "node/node.h"
#include "os/interfaces.h"
#include "os/neighbours.h"

namespace verbena::agent {

// Answers the node's route queries.  Returns a unicast route over Ethernet only when the next hop
// is known to be reachable, as rdma_resolve_addr() does on an adapter, or when the kernel cannot
// tell.  The kernel tries for 3 s to resolve the next hop.  If the next hop does not respond, the
// answer is an error.
//
// ask() caches the routes to this host, and the routes whose next hop it has checked.
// All cached routes are dropped when links, addresses, routes or rules change.  Routes to other
// hosts are also dropped when the state of any neighbour changes.
//
// Only the loop's thread uses it.
class Routes {
 public:
  // Limits the queries that may wait for a next hop.  At this limit, queries get their routes at
  // once, and the next hops are not checked.
  static constexpr std::size_t kWaitingMax = 4096;
  static constexpr std::size_t kCachedRoutesMax = 256;

  using Answer = std::optional<Result<node::HostRoute>>;
  using AnswerCallback =
      std::function<void(std::uint64_t token, const Result<node::HostRoute>& route)>;

  // If the kernel refuses to report changes of neighbours, all queries get their routes at once,
  // and no next hop is checked.
  Routes(asio::io_context& loop, AnswerCallback on_answer);

  // Answers a query.  Returns nothing if the answer comes later, through `on_answer`.
  Answer ask(const node::Node::RouteRequest& request);

 private:
  struct WaitingQuery {
    std::uint64_t token = 0;
    os::Neighbour next_hop{};
    node::HostRoute route{};
  };
  struct CachedRoute {
    node::HostRoute route{};
    bool depends_on_neighbour = false;  // valid only until the state of a neighbour changes
  };
  using Query = std::tuple<Gid, std::optional<Gid>, std::uint32_t>;

  static Answer answer(const WaitingQuery& waiting);
  bool refresh_cache();
  void cache_route(const Query& query, const CachedRoute& route);
  void drop_neighbour_dependent_routes();
  void answer_waiting();

  AnswerCallback on_answer_;
  std::optional<os::NeighbourMonitor> neighbour_monitor_{};
  Watch neighbour_watch_{};
  std::vector<WaitingQuery> waiting_{};
  std::optional<os::InterfaceMonitor> interface_monitor_{};
  std::map<Query, CachedRoute> cache_{};
};

}  // namespace verbena::agent
