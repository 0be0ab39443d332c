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

// Answers the node's questions for routes.  A route over an Ethernet is answered when its next hop
// is known to be there, as rdma_resolve_addr() on an adapter does it; a next hop that does not
// answer is an error within the 3 s in which the kernel asks.
//
// Good answers are remembered until links, addresses, routes or rules change; those that lead to
// other hosts also not beyond the next word of a neighbour that has come or gone.
//
// One thread: the loop's.
class Routes {
 public:
  // Questions at a time that wait for a next hop; beyond, routes are answered at once.
  static constexpr std::size_t kWaitingMax = 4096;
  static constexpr std::size_t kKnownMax = 256;

  using Answer = std::optional<Result<node::HostRoute>>;
  using Later = std::function<void(std::uint64_t token, const Result<node::HostRoute>& route)>;

  // Without a monitor (a kernel that refuses one) all is answered at once.
  Routes(asio::io_context& loop, Later later);

  // Nothing: the answer comes later.
  Answer ask(const node::Node::RouteWanted& wanted);

 private:
  struct Waiting {
    std::uint64_t token = 0;
    os::Neighbour next_hop{};
    node::HostRoute route{};
  };
  struct Known {
    node::HostRoute route{};
    bool by_next_hop = false;
  };
  using Question = std::tuple<Gid, std::optional<Gid>, std::uint32_t>;

  static Answer answer(const Waiting& waiting);
  bool knows_of_changes();
  void remember(const Question& question, const Known& known);
  void forget_next_hops();
  void look_again();

  Later later_;
  std::optional<os::NeighbourMonitor> monitor_{};
  Watch monitoring_{};
  std::vector<Waiting> waiting_{};
  std::optional<os::InterfaceMonitor> changes_{};
  std::map<Question, Known> known_{};
};

}  // namespace verbena::agent
