#include "client/agent_connection.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "client/build.h"
#include "client/find_agent.h"
#include "os/agent_name.h"
#include "os/clock.h"
#include "os/daemon.h"
#include "os/process.h"

namespace verbena::client {
namespace {

constexpr Duration kConnectTimeout = std::chrono::seconds(10);

std::string error_text(const Error& error) {
  if (error.code == Errc::kSystem) {
    return fmt::format("{}: {}", error.context, std::strerror(error.detail));
  }
  return *error.context != '\0' ? error.context : to_string(error.code);
}

std::string no_answer_text(pid_t pid) {
  return fmt::format("the agent (pid {}) does not answer; if it hangs: kill {}", pid, pid);
}

}  // namespace

Answer<AgentConnection::Outcome> AgentConnection::send_hello(const AgentSocket& socket, Role role,
                                                             AgentConnection& connection,
                                                             std::string& text, Time deadline) {
  auto channel = os::UnixChannel::connect(socket.name, deadline);
  if (!channel && channel.error().code == Errc::kUnreachable) return Outcome::kNoAgent;
  if (!channel) return std::unexpected("cannot reach the agent: " + error_text(channel.error()));
  if (!channel->check_peer_uid(socket.owner)) {
    return std::unexpected(
        fmt::format("the name '{}' is held by {}", socket.name, os::describe_name_owner(*channel)));
  }
  if (const auto peer = channel->peer()) connection.pid_ = peer->pid;
  connection.channel_ = std::move(*channel);

  const ipc::Hello hello{.build = build_id(),
                         .pid = static_cast<std::uint32_t>(::getpid()),
                         .tool = role == Role::kTool};
  const auto pidfd = os::open_pidfd(::getpid());
  std::array<int, 1> fds{pidfd ? pidfd->get() : -1};
  const auto sent =
      connection.channel_.send(ipc::encode(connection.next_request_, hello),
                               std::span<const int>(fds).first(pidfd ? 1 : 0), deadline);
  if (!sent) return Outcome::kConnectionLost;
  ++connection.next_request_;

  std::vector<std::byte> buffer(ipc::kMessageBytesMax);
  std::vector<os::Fd> received_fds;
  const auto bytes = connection.channel_.receive(buffer, received_fds, deadline);
  if (!bytes && bytes.error().code == Errc::kTimedOut) {
    return std::unexpected(no_answer_text(connection.pid_));
  }
  if (!bytes || *bytes == 0) return Outcome::kConnectionLost;
  const auto envelope = ipc::open(std::span(buffer).first(*bytes));
  const auto welcome = envelope ? ipc::decode<ipc::Welcome>(*envelope)
                                : Result<ipc::Welcome>(std::unexpected(envelope.error()));
  if (welcome && welcome->refusal.empty()) {
    connection.welcome_ = *welcome;
    return Outcome::kConnected;
  }
  text = welcome ? welcome->refusal
                 : fmt::format("the agent (pid {}) is of another build", connection.pid_);
  // Waits until the agent closes the connection.  If the agent has no other clients, it then ends,
  // and the name of its socket becomes free.
  (void)connection.channel_.receive(buffer, received_fds, deadline);
  return Outcome::kRefused;
}

Answer<std::optional<AgentConnection>> AgentConnection::find(const AgentSocket& socket, Role role,
                                                             Time deadline) {
  int refusals = 0;
  for (;;) {
    AgentConnection connection;
    std::string text;
    const Answer<Outcome> outcome = send_hello(socket, role, connection, text, deadline);
    if (!outcome) return std::unexpected(outcome.error());
    switch (*outcome) {
      case Outcome::kConnected: return std::optional(std::move(connection));
      case Outcome::kNoAgent: return std::nullopt;
      case Outcome::kRefused:  // tries once more, because an idle agent ends after a refusal
        if (++refusals == 2) return std::unexpected(text);
        break;
      case Outcome::kConnectionLost:
        if (os::now() >= deadline) return std::unexpected(no_answer_text(connection.pid_));
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        break;
    }
  }
}

Answer<std::optional<AgentConnection>> AgentConnection::find_any(Role role, Time deadline) {
  if (find_all_users_agent(deadline)) {
    auto agent = find({os::all_users_agent_name(), 0}, role, deadline);
    if (!agent || *agent) return agent;
  }
  const auto name = os::own_agent_socket_name();
  if (!name) return std::unexpected(std::string(name.error().context));
  return find({*name, ::geteuid()}, role, deadline);
}

Answer<std::optional<AgentConnection>> AgentConnection::find(Role role) {
  return find_any(role, os::now() + kConnectTimeout);
}

Answer<std::optional<AgentConnection>> AgentConnection::find_fabric(const std::string& fabric) {
  return find({os::fabric_socket_name(fabric), ::geteuid()}, Role::kTool,
              os::now() + kConnectTimeout);
}

Answer<AgentConnection> AgentConnection::find_or_start(const std::string& library_directory) {
  const Time deadline = os::now() + kConnectTimeout;
  std::string path = library_directory + "/verbenad";
  if (const char* agent_path = ::secure_getenv("VERBENA_AGENT");
      ::access(path.c_str(), X_OK) != 0 && agent_path != nullptr) {
    path = agent_path;
  }
  for (;;) {
    auto found = find_any(Role::kTool, deadline);
    if (!found) return std::unexpected(found.error());
    if (*found) return std::move(**found);
    if (const auto host = os::fabric_host_from_environment()) {
      return std::unexpected(
          fmt::format("the fabric '{}' is not up, or has no host '{}'", host->fabric, host->host));
    }
    if (::access(path.c_str(), X_OK) != 0) {
      return std::unexpected(
          fmt::format("there is no agent, and {} cannot be run: {}", path, std::strerror(errno)));
    }
    std::string problem;
    const auto daemon =
        os::start_daemon({.path = path,
                          .args = {path, "--ready-fd", std::to_string(os::kReadyFd)},
                          .deadline = deadline},
                         problem);
    if (!daemon) {
      return std::unexpected(fmt::format("the agent {} did not start: {}", path,
                                         problem.empty() ? error_text(daemon.error()) : problem));
    }
    if (os::now() >= deadline)
      return std::unexpected(fmt::format("the agent {} starts, but ends at once", path));
  }
}

Answer<AgentConnection::Bytes> AgentConnection::exchange(Bytes message, std::span<const int> fds,
                                                         std::vector<os::Fd>* received_fds) {
  const Time deadline = os::now() + timeout_;
  const std::uint64_t request = next_request_++;
  const std::string ended_text = fmt::format("the agent (pid {}) has ended", pid_);
  if (const auto sent = channel_.send(message, fds, deadline); !sent) {
    return std::unexpected(sent.error().code == Errc::kTimedOut ? no_answer_text(pid_)
                                                                : ended_text);
  }
  std::vector<os::Fd> discarded_fds;
  std::vector<os::Fd>& descriptors = received_fds != nullptr ? *received_fds : discarded_fds;
  for (;;) {
    Bytes buffer(ipc::kMessageBytesMax);
    const auto bytes = channel_.receive(buffer, descriptors, deadline);
    if (!bytes && bytes.error().code == Errc::kTimedOut) {
      return std::unexpected(no_answer_text(pid_));
    }
    if (!bytes || *bytes == 0) return std::unexpected(ended_text);
    buffer.resize(*bytes);
    const auto envelope = ipc::open(buffer);
    if (envelope && envelope->request == request) return buffer;
  }
}

Answer<std::string> AgentConnection::wait_for_remark() {
  std::vector<os::Fd> discarded_fds;
  for (;;) {
    Bytes buffer(ipc::kMessageBytesMax);
    const auto bytes = channel_.receive(buffer, discarded_fds, kNever);
    if (!bytes || *bytes == 0) {
      return std::unexpected(fmt::format("the agent (pid {}) has ended", pid_));
    }
    const auto envelope = ipc::open(std::span(buffer).first(*bytes));
    if (!envelope || envelope->type != ipc::Type::kUserNotice) continue;
    if (auto remark = ipc::decode<ipc::UserNotice>(*envelope)) return std::move(remark->text);
  }
}

std::string AgentConnection::problem_in(const ipc::Envelope& done) {
  const auto reply = ipc::decode<ipc::Done>(done);
  if (!reply || !reply->failed) return "the agent gave no answer";
  const Error error{reply->code, reply->detail, reply->text.c_str()};
  return error_text(error);
}

}  // namespace verbena::client
