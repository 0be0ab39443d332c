#pragma once

#include <asio/io_context.hpp>
#include <cstddef>
#include <expected>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/log.h"
#include "agent/watch.h"
#include "hosts/manager_process.h"
#include "ipc/fabric.h"
#include "os/scratch_directory.h"
#include "subnet/active_links.h"
#include "subnet/subnet.h"

namespace verbena::hosts {

// Runs the subnet managers of an InfiniBand fabric, one for each node that the user has named, and
// reports when the subnet is up.  The managers' files are in a directory that is removed when this
// process ends.
//
// Only the loop's thread uses it, and this process has no other thread.
class Managers {
 public:
  static constexpr std::size_t kManagersMax = 2;  // a master and a standby
  static constexpr std::size_t kWaitersMax = 64;
  // Limits the number of ports that a message names.
  static constexpr std::size_t kPortsNamedMax = 4;

  struct Options {
    std::string program{};             // the path of opensm
    std::vector<std::string> nodes{};  // 1 to kManagersMax
    std::string fabric{};
    std::string scratch{};  // OpenSM's directory is created in this directory
  };

  // Returns true if addresses are resolved from the port of an HCA.
  using ResolvesAddresses = std::function<bool(subnet::PortRef)>;

  // Starts the managers.  The error is a line for the user.  REQUIRES: the subnet outlives this
  // object.
  static std::expected<std::unique_ptr<Managers>, std::string> create(asio::io_context& loop,
                                                                      const subnet::Subnet& subnet,
                                                                      ResolvesAddresses resolves,
                                                                      Options options,
                                                                      const agent::Log& log);

  // Call this when ports of the subnet may have changed, or addresses may be resolved from more of
  // them.
  void ports_changed();
  // Calls `done` with an empty text when the subnet is up: all links are active, and addresses are
  // resolved from each active port of an HCA.  Calls it with a line for the user at
  // the deadline, when no manager runs any more, or at once if kWaitersMax callers wait already.
  using Done = std::move_only_function<void(std::string problem)>;
  void await_subnet(Time deadline, Done done);
  std::vector<ipc::ManagerStatus> status() const;

 private:
  struct Waiter {
    Time deadline{};
    Done done;
  };

  Managers(asio::io_context& loop, const subnet::Subnet& subnet, ResolvesAddresses resolves,
           Options options, os::ScratchDirectory directory, std::vector<subnet::PortRef> ports,
           agent::Log log);

  std::string start(asio::io_context& loop);
  void on_end(std::size_t manager);
  void on_timer();
  void answer_all(const std::string& problem);
  bool all_ended() const;
  bool is_up();
  // Returns true if addresses are resolved from the port, or the port is not active.
  bool resolves_or_is_down(subnet::PortRef port) const;
  std::string end_texts() const;
  std::string state_of(std::size_t manager) const;
  std::string why_not_up(const std::string& beginning) const;

  const subnet::Subnet& subnet_;
  Options options_;
  agent::Log log_;
  std::vector<subnet::PortRef> ports_;
  subnet::ActiveLinks links_;
  ResolvesAddresses resolves_;
  std::vector<subnet::PortRef> hca_ports_;
  std::size_t first_unresolved_ = 0;  // the index in hca_ports_ where is_up() begins
  bool was_up_ = false;
  os::ScratchDirectory directory_;  // outlives the processes that use it
  std::vector<std::unique_ptr<ManagerProcess>> processes_{};
  std::vector<Waiter> waiters_{};
  agent::Timer timer_;
};

}  // namespace verbena::hosts
