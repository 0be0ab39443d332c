#include "hosts/nodes.h"

#include <fmt/format.h>

#include <utility>

#include "os/agent_name.h"
#include "os/unix_channel.h"

namespace verbena::hosts {

std::expected<std::unique_ptr<agent::Agent>, std::string> start_agent(
    asio::io_context& loop, const std::string& host, std::unique_ptr<agent::Network> network,
    const Nodes::Options& options, const agent::Log& log) {
  const auto name =
      os::agent_socket_name(os::agent_socket_name(), {.fabric = options.fabric, .host = host});
  if (!name) return std::unexpected(fmt::format("host '{}': {}", host, name.error().context));
  auto listener = os::UnixListener::listen(*name);
  if (!listener) {
    return std::unexpected(fmt::format("cannot listen on the name '{}' of host '{}': {}", *name,
                                       host, listener.error().context));
  }
  return std::make_unique<agent::Agent>(loop, std::move(*listener), std::move(network),
                                        agent::Agent::Options{.build = options.build,
                                                              .idle = std::nullopt,
                                                              .belongs_to_fabric = true,
                                                              .trace = options.trace},
                                        log.named(host));
}

}  // namespace verbena::hosts
