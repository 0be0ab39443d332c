#pragma once

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <cstdint>
#include <expected>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/connection.h"
#include "agent/log.h"
#include "agent/watch.h"
#include "hosts/breakables.h"
#include "hosts/fault_schedule.h"
#include "hosts/faults.h"
#include "hosts/host_nodes.h"
#include "hosts/managers.h"
#include "hosts/subnet_nodes.h"
#include "ipc/fabric.h"
#include "os/unix_channel.h"

namespace verbena::hosts {

// Implements the process of a fabric, verbena-fabric: its hosts, the subnet managers that it runs,
// and the commands of `verbena fabric`.
//
// It runs until a signal or `verbena fabric down` stops it.  Only the loop's thread uses it.
class Service final : public agent::Connection::Owner {
 public:
  static constexpr std::size_t kToolsMax = 64;
  static constexpr Duration kToolTimeout = std::chrono::seconds(10);
  static constexpr Duration kAcceptPause = std::chrono::milliseconds(100);  // after a failed accept

  struct Options {
    std::string build{};
    std::string name{};
    std::string file{};
    std::vector<plan::ScheduledFault> faults{};
    bool trace = false;
    // The options below are for an InfiniBand fabric.
    std::vector<std::string> managers{};  // names of the nodes on which OpenSM runs
    std::string opensm{};                 // path of the program
    std::string scratch{};                // OpenSM's directory is created in this directory
    sa::Client::Config sa{};
  };

  // Starts the agents of all hosts, which listen on the hosts' socket names.  The error is a line
  // for the user.
  static std::expected<std::unique_ptr<Service>, std::string> create(asio::io_context& loop,
                                                                     os::UnixListener listener,
                                                                     plan::Fabric fabric,
                                                                     Options options,
                                                                     const agent::Log& log);
  // Does the same for an InfiniBand fabric.
  static std::expected<std::unique_ptr<Service>, std::string> create(asio::io_context& loop,
                                                                     os::UnixListener listener,
                                                                     subnet::Topology topology,
                                                                     Options options,
                                                                     const agent::Log& log);
  ~Service() override;

  Forwarder& forwarder() { return nodes_->forwarder(); }

 private:
  // Represents a connection from a command such as `verbena fabric show`.
  struct Tool {
    Tool(asio::io_context& loop, os::UnixChannel channel, std::uint64_t id, Service& service)
        : connection(loop, std::move(channel), id, service, service.limit_counters_) {}
    agent::Connection connection;
    bool handshake_done = false;
    Time close_at{};  // the time at which the connection is closed
  };

  Service(asio::io_context& loop, os::UnixListener listener, Options options,
          const agent::Log& log);

  Nodes::Options node_options() const {
    return {.fabric = options_.name,
            .build = options_.build,
            .trace = options_.trace,
            .sa = options_.sa};
  }
  void on_listener();
  void received(agent::Connection& from, const ipc::Envelope& envelope,
                std::span<const std::byte> message, std::vector<os::Fd> fds) override;
  void received_all(agent::Connection&, std::size_t) override {}
  void ended(agent::Connection& connection, const std::string& why) override;
  void handle_hello(Tool& tool, const ipc::Envelope& envelope);
  void show_fabric(Tool& tool, const ipc::Envelope& envelope);
  void show_interfaces(Tool& tool, const ipc::Envelope& envelope);
  void await_subnet(Tool& tool, const ipc::Envelope& envelope);
  void show_log(Tool& tool, const ipc::Envelope& envelope);
  void set_fault(Tool& tool, const ipc::Envelope& envelope);
  // Starts the schedule of faults, if there are any.  If this process runs subnet managers, the
  // schedule starts when the subnet is up, or has failed to come up.
  void begin_faults();
  void close_slow_tools();
  void stop(const char* why);

  asio::io_context& loop_;
  Options options_;
  agent::Log log_;
  Time started_;
  os::UnixListener listener_;
  std::unique_ptr<Nodes> nodes_{};
  std::unique_ptr<Managers> managers_{};  // null: this process runs no managers
  std::unique_ptr<Breakable> breakable_{};
  std::unique_ptr<Faults> faults_{};
  std::unique_ptr<FaultSchedule> schedule_{};  // null until begin_faults() has started it
  std::map<std::uint64_t, std::unique_ptr<Tool>> tools_{};
  std::uint64_t next_tool_id_ = 1;
  agent::Connection::LimitCounters limit_counters_{};
  asio::signal_set signals_;
  agent::Timer accept_timer_;
  agent::Timer tool_timer_;
  agent::Watch listener_watch_{};
};

}  // namespace verbena::hosts
