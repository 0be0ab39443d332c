// How a program finds its agent, or starts one, the first time and whenever the last one has died.

#include <dlfcn.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <utility>

#include "client/build.h"
#include "client/client.h"
#include "os/agent_name.h"
#include "os/clock.h"
#include "os/process.h"

namespace verbena::client {
namespace {

constexpr Duration kAgentPatience = std::chrono::seconds(10);

struct FreeMemory {
  void operator()(char* memory) const { std::free(memory); }
};

// verbenad lies beside the file that this library is, wherever links to it may lie.  A privileged
// program (AT_SECURE) starts no other: its environment belongs to whoever runs it.
std::string agent_path() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&agent_path), &info) != 0 && info.dli_fname != nullptr) {
    // A relative name would be looked up in whatever directory the program is in now.
    const bool trusted = info.dli_fname[0] == '/' || ::getauxval(AT_SECURE) == 0;
    const std::unique_ptr<char, FreeMemory> library(trusted ? ::realpath(info.dli_fname, nullptr)
                                                            : nullptr);
    if (library) {
      std::string path = library.get();
      path.replace(path.rfind('/') + 1, std::string::npos, "verbenad");
      if (access(path.c_str(), X_OK) == 0) return path;
    }
  }
  if (const char* named = ::secure_getenv("VERBENA_AGENT")) return named;
  return {};
}

std::uint64_t capture_of_environment() {
  const char* text = ::secure_getenv("VERBENA_CAPTURE");
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

Result<hca::Personality> personality_of_environment(std::string& problem) {
  const char* text = ::secure_getenv("VERBENA_PERSONALITY");
  const std::string name = text == nullptr ? "" : text;
  if (name.empty() || name == "connectx") return hca::kConnectX;
  if (name == "rxe") return hca::kRxe;
  problem = "VERBENA_PERSONALITY is '" + name + "'; there are: connectx rxe";
  return fail(Errc::kInvalidArgument, "no such personality");
}

Result<os::UnixChannel> find_agent(std::string& problem, os::Daemon& daemon) {
  const std::string name = os::agent_socket_name();
  const Time deadline = os::now() + kAgentPatience;
  auto agent = os::UnixChannel::connect(name, deadline);
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
      problem = "the agent (" + path + ") did not start: " + problem;
      return std::unexpected(started.error());
    }
    daemon = *std::move(started);
    agent = os::UnixChannel::connect(name, deadline);
  }
  if (!agent) {
    problem = std::string("cannot connect to the agent: ") + agent.error().context;
    return std::unexpected(agent.error());
  }
  if (const auto trusted = agent->check_peer_uid(geteuid()); !trusted) {
    problem = "the name of this user's agent ('" + name + "') is held by " +
              os::name_holder(*agent) + ": end that, or see 'verbena doctor'";
    return std::unexpected(trusted.error());
  }
  return agent;
}

}  // namespace

Result<std::unique_ptr<Client>> Client::connect(std::string& problem) {
  const hca::Personality personality = VB_TRY(personality_of_environment(problem));
  auto wake = VB_TRY(os::WakeFd::create());
  auto busy = VB_TRY(os::Poller::create());
  auto quiet = VB_TRY(os::Poller::create());
  auto fork_mark = VB_TRY(os::ForkMark::create());
  std::unique_ptr<Client> client(new Client({.personality = personality,
                                             .build = build_id(),
                                             .pid = static_cast<std::uint32_t>(getpid()),
                                             .capture = capture_of_environment()},
                                            std::move(wake), std::move(busy), std::move(quiet),
                                            std::move(fork_mark)));
  VB_TRY_VOID(client->begin());
  VB_TRY_VOID(client->join(problem));
  return client;
}

Result<void> Client::join(std::string& problem) {
  if (joined_.load()) return {};
  const NoCancellation whole_call;
  const std::lock_guard one_at_a_time(joining_);
  // An agent may be on its way out when we come: then the next one is ours to start.
  constexpr int kAttempts = 5;
  for (int attempt = 0;; ++attempt) {
    if (joined_.load()) return {};
    bool again = false;
    auto joined = try_join(problem, again);
    if (joined || !again || attempt == kAttempts) return joined;
  }
}

Result<void> Client::try_join(std::string& problem, bool& again) {
  os::Daemon daemon;
  auto agent = VB_TRY(find_agent(problem, daemon));
  Answer<ipc::Welcome> answer;
  Driving lock(drive_);
  if (leaving_ || agent_) agent_gone(os::now());  // of an attempt that memory ran out in
  agent_ = std::move(agent);
  if (const auto watched = watch_agent(std::move(daemon)); !watched) {
    agent_gone(os::now());
    problem = std::string("cannot wait for the agent: ") + watched.error().context;
    return watched;
  }
  Started<ipc::Welcome> started =
      process_.hello([&answer](Result<ipc::Welcome> welcome) { answer.give(std::move(welcome)); });
  ++calls_waiting_;
  listen_again();
  try_flush();
  let_go(lock);
  {
    std::unique_lock waiting(answer.mutex);
    answer.come.wait_for(waiting, kAgentPatience, [&] { return answer.result.has_value(); });
  }
  lock.lock();
  --calls_waiting_;
  started.emplace<Pending>();  // what it refers to belongs to the drive lock
  auto joined = judge(answer.result, problem, again);
  if (joined) {
    joined_.store(true);
  } else if (agent_) {
    agent_gone(os::now());
  }
  let_go(lock);
  return joined;
}

Result<void> Client::judge(const std::optional<Result<ipc::Welcome>>& welcome, std::string& problem,
                           bool& again) {
  if (!welcome) {
    problem = "the agent does not answer (is it stopped? see 'verbena agent status')";
    return fail(Errc::kUnreachable, "no agent");
  }
  if (!*welcome && welcome->error().code == Errc::kSystem) {
    problem = process_.last_text();
    return std::unexpected(welcome->error());
  }
  if (!*welcome && welcome->error().code != Errc::kDeviceFatal) {
    problem = "the agent speaks another language than this library";
    return std::unexpected(welcome->error());
  }
  if (*welcome && !(*welcome)->refusal.empty()) {
    problem = (*welcome)->refusal;
    again = (*welcome)->again;
    return fail(Errc::kPermission, "the agent refused");
  }
  // Also: welcomed, and dead since.
  if (!*welcome || !process_.connected()) {
    problem = "the agent went away during the first exchange";
    again = true;
    return fail(Errc::kUnreachable, "no agent");
  }
  return {};
}

Result<void> Client::watch_agent(os::Daemon daemon) {
  if (daemon.keeper_pidfd) {
    keepers_.push_back(std::move(daemon));
    VB_TRY_VOID(busy_.add(keepers_.back().keeper_pidfd.get(), kKeeperToken));
  }
  for (os::Poller* poller : {&busy_, &quiet_}) {
    VB_TRY_VOID(poller->add(agent_.fd(), kAgentToken));
  }
  return {};
}

// An agent that we started has ended, and so has its keeper: no zombie of ours stays in the
// program.
void Client::reap_keepers() {
  Driving lock(drive_);
  std::erase_if(keepers_, [this](os::Daemon& daemon) {
    if (!os::has_ended(daemon.keeper_pidfd.get())) return false;
    (void)busy_.remove(daemon.keeper_pidfd.get()).has_value();
    (void)os::reap_keeper(daemon);
    return true;
  });
  let_go(lock);
}

}  // namespace verbena::client
