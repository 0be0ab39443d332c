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

// Answers the node's route queries.  For a route over an Ethernet, the answer comes when the next
// hop is known to be reachable, as for rdma_resolve_addr() on an adapter.  If the next hop does not
// answer within the 3 s in which the kernel asks, the answer is an error.
//
// Successful answers are cached until links, addresses, routes or rules change.  Routes to other
// hosts are cached only until the state of any neighbour changes.
//
// Only the loop's thread uses it.
class Routes {
 public:
  // Limits the queries that may wait for a next hop.  At this limit, queries are answered at once.
  static constexpr std::size_t kWaitingMax = 4096;
  static constexpr std::size_t kCachedRoutesMax = 256;

  using Answer = std::optional<Result<node::HostRoute>>;
  using AnswerCallback =
      std::function<void(std::uint64_t token, const Result<node::HostRoute>& route)>;

  // If the kernel refuses a monitor of neighbours, all queries are answered at once.
  Routes(asio::io_context& loop, AnswerCallback on_answer);

  // Answers a query.  Returns nothing if the answer comes later, through `on_answer`.
  Answer ask(const node::Node::RouteWanted& request);

 private:
  struct Waiting {
    std::uint64_t token = 0;
    os::Neighbour next_hop{};
    node::HostRoute route{};
  };
  struct CachedRoute {
    node::HostRoute route{};
    bool by_next_hop = false;  // the route is valid until the state of a neighbour changes
  };
  using Query = std::tuple<Gid, std::optional<Gid>, std::uint32_t>;

  static Answer answer(const Waiting& waiting);
  bool refresh_cache();
  void cache_route(const Query& query, const CachedRoute& route);
  void forget_next_hops();
  void answer_waiting();

  AnswerCallback on_answer_;
  std::optional<os::NeighbourMonitor> monitor_{};
  Watch monitor_watch_{};
  std::vector<Waiting> waiting_{};
  std::optional<os::InterfaceMonitor> changes_{};
  std::map<Query, CachedRoute> cache_{};
};

}  // namespace verbena::agent
