#pragma once

#include <asio/io_context.hpp>
#include <cstddef>
#include <expected>
#include <memory>
#include <string>
#include <vector>

#include "agent/agent.h"
#include "agent/log.h"
#include "agent/network.h"
#include "hosts/forwarder.h"
#include "interfaces/interfaces.h"
#include "ipc/counters.h"
#include "ipc/fabric.h"

namespace verbena::hosts {

// Holds the hosts of a fabric: an agent for each of them, and the network between them.
//
// Only the loop's thread uses it.
class Nodes {
 public:
  struct Options {
    std::string fabric{};
    std::string build{};
    bool trace = false;
    sa::Client::Config sa{};  // for InfiniBand ports
  };

  Nodes() = default;
  Nodes(const Nodes&) = delete;
  Nodes& operator=(const Nodes&) = delete;
  virtual ~Nodes() = default;

  virtual Forwarder& forwarder() = 0;
  // Returns the number of hosts.
  virtual std::size_t size() const = 0;
  virtual const std::string& name(std::size_t host) const = 0;
  virtual ipc::HostStatus status(std::size_t host) const = 0;
  // Returns the network interfaces that programs on the host find, without loopback.
  virtual std::vector<interfaces::Interface> interfaces(std::size_t host) const = 0;
  virtual void add_counters(std::vector<ipc::NamedCount>& counters) const = 0;
  // Ends the agents, as agent::Agent::stop() does.
  virtual void stop(const char* why) = 0;
};

// Starts the agent of a host, which listens on the socket name of the host.  The error is a line
// for the user.
std::expected<std::unique_ptr<agent::Agent>, std::string> start_agent(
    asio::io_context& loop, const std::string& host, std::unique_ptr<agent::Network> network,
    const Nodes::Options& options, const agent::Log& log);

}  // namespace verbena::hosts
