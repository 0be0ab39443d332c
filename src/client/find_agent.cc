#include "client/find_agent.h"

#include <dlfcn.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <utility>

#include "os/agent_name.h"
#include "os/clock.h"
#include "os/socket_owner.h"

namespace verbena::client {
namespace {

struct FreeMemory {
  void operator()(char* memory) const { std::free(memory); }
};

// Returns the path of verbenad in the directory of this library's file, after following symbolic
// links.  If there is no verbenad, returns the path in $VERBENA_AGENT.  A privileged program
// (AT_SECURE) ignores that variable, because its environment belongs to the user who runs it.
std::string agent_path() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&agent_path), &info) != 0 && info.dli_fname != nullptr) {
    // A privileged program ignores a relative name, because the name depends on the program's
    // current directory.
    const bool trusted = info.dli_fname[0] == '/' || ::getauxval(AT_SECURE) == 0;
    const std::unique_ptr<char, FreeMemory> library(trusted ? ::realpath(info.dli_fname, nullptr)
                                                            : nullptr);
    if (library) {
      std::string path = library.get();
      path.replace(path.rfind('/') + 1, std::string::npos, "verbenad");
      if (access(path.c_str(), X_OK) == 0) return path;
    }
  }
  if (const char* path = ::secure_getenv("VERBENA_AGENT")) return path;
  return {};
}

}  // namespace

std::optional<os::UnixChannel> find_all_users_agent(Time deadline) {
  if (!os::may_use_all_users_agent()) return std::nullopt;
  auto agent = os::UnixChannel::connect(os::all_users_agent_name(), deadline);
  // Checks that root owns the agent, because any user can take the name of the socket.
  if (!agent || !agent->check_peer_uid(0)) return std::nullopt;
  return *std::move(agent);
}

Result<os::UnixChannel> find_agent(std::string& problem, os::Daemon& daemon) {
  if (auto found = find_all_users_agent(os::now() + kAgentTimeout)) return *std::move(found);
  const auto own_name = os::own_agent_socket_name();
  if (!own_name) {
    problem = std::string("VERBENA_FABRIC and VERBENA_NODE: ") + own_name.error().context;
    return std::unexpected(own_name.error());
  }
  const std::string& name = *own_name;
  const auto host = os::fabric_host_from_environment();
  const Time deadline = os::now() + kAgentTimeout;
  auto agent = os::UnixChannel::connect(name, deadline);
  if (!agent && agent.error().code == Errc::kUnreachable && host) {
    problem = "the fabric '" + host->fabric + "' is not up, or has no host '" + host->host +
              "': see 'verbena fabric ls' and 'verbena fabric show'";
    return std::unexpected(agent.error());
  }
  if (!agent && agent.error().code == Errc::kUnreachable) {
    const std::string path = agent_path();
    if (path.empty()) {
      problem =
          "no agent is running, and verbenad is not beside libverbena.so.0 "
          "(set VERBENA_AGENT to its path)";
      return fail(Errc::kUnreachable, "no agent");
    }
    auto started =
        os::start_daemon({.path = path,
                          .args = {"verbenad", "--ready-fd", std::to_string(os::kReadyFd)},
                          .deadline = deadline},
                         problem);
    if (!started) {
      if (problem.empty()) problem = started.error().context;
      problem = "the agent (" + path + ") did not start: " + problem;
      return std::unexpected(started.error());
    }
    daemon = *std::move(started);
    agent = os::UnixChannel::connect(name, deadline);
  }
  if (!agent && agent.error().code == Errc::kPermission) {
    const auto owner = os::find_name_owner(name);
    problem = "the name of this user's agent ('" + name + "') is held by " +
              (owner ? os::describe_stranger(*owner) : "another user") +
              ": end that process, or see 'verbena doctor'";
    return std::unexpected(agent.error());
  }
  if (!agent) {
    problem = std::string("cannot connect to the agent: ") + agent.error().context;
    return std::unexpected(agent.error());
  }
  if (const auto trusted = agent->check_peer_uid(geteuid()); !trusted) {
    problem = "the name of this user's agent ('" + name + "') is held by " +
              os::describe_name_owner(*agent) + ": end that process, or see 'verbena doctor'";
    return std::unexpected(trusted.error());
  }
  return agent;
}

}  // namespace verbena::client
