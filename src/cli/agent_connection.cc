#include "cli/agent_connection.h"

#include <fmt/format.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "client/find_agent.h"
#include "ipc/tool_messages.h"
#include "os/agent_name.h"
#include "os/clock.h"
#include "os/daemon.h"
#include "os/process.h"

namespace verbena::cli {
namespace {

constexpr Duration kAgentTimeout = std::chrono::seconds(10);
constexpr Duration kStopTimeout = std::chrono::seconds(10);

}  // namespace

Answer<std::string> library_directory() {
  std::array<char, PATH_MAX> self{};
  const ssize_t bytes = ::readlink("/proc/self/exe", self.data(), self.size() - 1);
  if (bytes <= 0) return std::unexpected("/proc/self/exe cannot be read: is /proc mounted?");
  const std::string path(self.data(), static_cast<std::size_t>(bytes));
  const std::string libraries = path.substr(0, path.rfind('/')) + "/../lib/verbena";
  std::array<char, PATH_MAX> real{};
  if (::realpath(libraries.c_str(), real.data()) == nullptr) {
    return std::unexpected(
        fmt::format("Verbena's libraries are not at {}: {}; is the installation "
                    "complete?",
                    libraries, std::strerror(errno)));
  }
  return std::string(real.data());
}

Answer<std::string> start_agent(bool all_users) {
  const auto directory = library_directory();
  if (!directory) return std::unexpected(directory.error());
  if (!all_users) {
    const auto agent = AgentConnection::find_or_start(*directory);
    if (!agent) return std::unexpected(agent.error());
    return fmt::format("the agent (pid {}) runs", agent->pid());
  }
  if (::geteuid() != 0) return std::unexpected(std::string("only root can serve all users"));
  if (auto root_agent =
          os::UnixChannel::connect(os::agent_socket_name(), os::now() + kAgentTimeout)) {
    return std::unexpected(fmt::format(
        "an agent for root alone is running ({}): end its programs, then 'verbena agent stop'",
        os::describe_name_owner(*root_agent)));
  }
  const std::string path = *directory + "/verbenad";
  std::string problem;
  const auto daemon =
      os::start_daemon({.path = path,
                        .args = {path, "--all-users", "--ready-fd", std::to_string(os::kReadyFd)},
                        .deadline = os::now() + kAgentTimeout},
                       problem);
  if (!daemon) {
    return std::unexpected(fmt::format("the agent {} did not start: {}", path, problem));
  }
  const auto agent = AgentConnection::find();
  if (!agent) return std::unexpected(agent.error());
  if (!*agent) return std::unexpected(std::string("the agent has started, and ended at once"));
  return fmt::format("the agent (pid {}) serves all users, until 'verbena agent stop'",
                     (*agent)->pid());
}

Answer<std::string> stop_agent() {
  if (const auto host = os::fabric_host_from_environment()) {
    return std::unexpected(
        fmt::format("the agent of host '{}' ends with its fabric: verbena fabric "
                    "down {}",
                    host->host, host->fabric));
  }
  // An agent of another build would refuse Hello, so ask the kernel which process listens.
  const std::string name = os::agent_socket_name();
  auto all_users = client::find_all_users_agent(os::now() + kAgentTimeout);
  if (all_users && ::geteuid() != 0) {
    return std::unexpected(std::string("the agent serves all users: only root can stop it"));
  }
  auto channel = all_users ? Result<os::UnixChannel>(*std::move(all_users))
                           : os::UnixChannel::connect(name, os::now() + kAgentTimeout);
  if (!channel) return "no agent is running";
  const auto peer = channel->peer();
  if (!peer || peer->uid != ::geteuid()) {
    return std::unexpected(fmt::format("the name '{}' is held by another user's process", name));
  }
  const auto pidfd = os::open_pidfd(peer->pid);
  channel->close();
  if (!pidfd) return fmt::format("the agent (pid {}) has just ended", peer->pid);

  std::uint32_t programs = 0;
  bool stop_accepted = false;
  if (auto agent = AgentConnection::find(); agent && *agent && (*agent)->pid() == peer->pid) {
    if (const auto status = (*agent)->ask<ipc::StatusReply>(ipc::Status{})) {
      programs = status->programs;
    }
    stop_accepted = (*agent)->ask<ipc::Done>(ipc::Stop{}).has_value();
  }
  // An agent of another build refuses the request, and an agent that hangs does not answer.  So a
  // signal stops such an agent.
  if (!stop_accepted && !os::has_ended(pidfd->get())) {
    (void)::syscall(SYS_pidfd_send_signal, pidfd->get(), SIGTERM, nullptr, 0);
  }
  const auto ended = os::wait_for(pidfd->get(), POLLIN, os::now() + kStopTimeout);
  if (!ended || *ended == 0)
    return std::unexpected(fmt::format("the agent (pid {}) does not answer; if it hangs: kill {}",
                                       peer->pid, peer->pid));
  std::string text = fmt::format("stopped the agent (pid {})", peer->pid);
  if (programs == 1) text += "; 1 program has lost its device";
  if (programs > 1) text += fmt::format("; {} programs have lost their device", programs);
  return text;
}

}  // namespace verbena::cli
