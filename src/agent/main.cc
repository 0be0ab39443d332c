#include <grp.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <asio/io_context.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "agent/agent.h"
#include "agent/claim.h"
#include "agent/kernel_network.h"
#include "os/adaptive_spin.h"
#include "os/agent_name.h"
#include "os/clock.h"
#include "os/daemon.h"
#include "os/limits.h"
#include "os/thread.h"
#include "verbena_build.h"

// Implements verbenad, the program of the agent.  Usually it starts when the first program needs
// it, and ends when no program needs it.  With --all-users, root starts it, and it runs until it is
// stopped.
namespace verbena::agent {
namespace {

constexpr Duration kClaimTimeout = std::chrono::seconds(5);

struct Arguments {
  int ready_fd = -1;
  std::string name = os::agent_socket_name();
  std::string bind{};
  double idle_seconds = 10;
  bool all_users = false;
  std::string log{};
  bool trace = false;
};

int report_failure(const Arguments& arguments, const std::string& text) {
  std::fprintf(stderr, "verbenad: %s\n", text.c_str());
  if (arguments.ready_fd >= 0) os::report_failure(arguments.ready_fd, text);
  return 1;
}

void prepare_process() {
  std::signal(SIGPIPE, SIG_IGN);
  // Without SIGXFSZ, writing a capture beyond the file size limit fails, but does not end the
  // process.
  std::signal(SIGXFSZ, SIG_IGN);
  os::set_daemon_limits();
}

// Polls the loop for a moment instead of sleeping.  Returns true if there was something to do.
bool spin_for_event(asio::io_context& loop, os::AdaptiveSpin& spin) {
  const Time began = os::now();
  for (Time now = began; now - began < spin.spin_time();) {
    os::yield_processor();
    if (loop.poll() > 0) {
      spin.record_successful_spin();
      return true;
    }
    const Time before = std::exchange(now, os::now());
    if (!spin.yielded(now - before)) break;
  }
  spin.record_failed_spin();
  return false;
}

// Runs the loop.  Setting up a connection takes several messages in quick succession, so the loop
// spins for the next message before it sleeps.
void run_until_stopped(asio::io_context& loop) {
  os::AdaptiveSpin spin(std::chrono::microseconds(200));
  while (!loop.stopped()) {
    if (loop.poll() > 0 || (spin.should_spin() && spin_for_event(loop, spin))) continue;
    const Time began = os::now();
    loop.run_one();
    spin.record_sleep(os::now() - began);
  }
}

int run(const Arguments& arguments) {
  Agent::Options options{.build = verbena_build_id()};
  std::optional<BindAddress> bind;
  options.all_users = arguments.all_users;
  options.idle =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(arguments.idle_seconds));
  if (options.all_users) {
    if (::geteuid() != 0) return report_failure(arguments, "only root can serve all users");
    options.idle.reset();
    // The agent writes the counter files of a program's port with the rights of the user
    // (PortFiles), so it must not keep the rights of root's groups.
    if (::setgroups(0, nullptr) != 0) return report_failure(arguments, "cannot drop root's groups");
  }
  if (!arguments.bind.empty()) {
    bind = parse_bind_address(arguments.bind);
    if (!bind) return report_failure(arguments, "--bind " + arguments.bind + ": not an IP address");
  }
  Log log;
  if (!arguments.log.empty()) {
    auto opened = Log::open(arguments.log);
    if (!opened) return report_failure(arguments, "--log " + arguments.log + ": cannot be written");
    log = std::move(*opened);
  }
  options.trace = arguments.trace && !arguments.log.empty();

  if (const std::string low = os::find_low_limit(os::agent_limits()); !low.empty()) {
    return report_failure(arguments, low);
  }
  const std::string name = options.all_users ? os::all_users_agent_name() : arguments.name;
  auto listener = claim_name(name, ::geteuid(), os::now() + kClaimTimeout);
  if (!listener) return report_failure(arguments, listener.error());
  if (!*listener) {  // another agent serves already
    if (arguments.ready_fd >= 0) os::report_ready(arguments.ready_fd);
    return 0;
  }
  asio::io_context loop(1);
  auto network = std::make_unique<KernelNetwork>(loop, bind);
  const KernelNetwork& kernel_network = *network;
  auto agent = std::make_unique<Agent>(loop, std::move(**listener), std::move(network),
                                       std::move(options), std::move(log));
  // Without port 4791 this agent could not reach other hosts, so it ends.  Then users' programs
  // start agents of their own.  Those may reach other hosts if they use another --bind address.
  if (arguments.all_users && !kernel_network.has_roce_port()) {
    const std::string why = kernel_network.state();
    agent.reset();  // frees the agent's name before the failure is reported
    return report_failure(arguments, why);
  }
  if (arguments.ready_fd >= 0) os::report_ready(arguments.ready_fd);
  run_until_stopped(loop);
  return 0;
}

}  // namespace
}  // namespace verbena::agent

// Reports an exception at start-up and ends the process.
int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape)
  verbena::agent::Arguments arguments;
  CLI::App app(
      "Verbena's agent serves the programs of one user on this host. The first program that "
      "needs the agent starts it, and it ends by itself.");
  app.set_version_flag("--version", "verbenad " VB_BUILD_ID);
  app.add_option("--ready-fd", arguments.ready_fd,
                 "Descriptor on which to report that the agent listens");
  app.add_option("--name", arguments.name, "Abstract socket name to listen on")
      ->capture_default_str();
  const auto allow_variable = [](CLI::Option* option, const char* name) {
    if (::getauxval(AT_SECURE) == 0) option->envname(name);  // CLI11 calls plain getenv()
  };
  allow_variable(
      app.add_option("--bind", arguments.bind, "Address to open port 4791 on (default: all)"),
      "VERBENA_BIND");
  app.add_flag("--all-users", arguments.all_users,
               "Serve the programs of all users until the agent is stopped; for root");
  allow_variable(app.add_option("--idle", arguments.idle_seconds,
                                "Seconds without a program after which the agent ends")
                     ->check(CLI::Range(0.0, 1e6))
                     ->capture_default_str(),
                 "VERBENA_IDLE");
  allow_variable(app.add_option("--log", arguments.log, "File to append a log to"), "VERBENA_LOG");
  allow_variable(
      app.add_flag("--trace", arguments.trace, "Log each change of a connection's state"),
      "VERBENA_TRACE");
  CLI11_PARSE(app, argc, argv);

  verbena::agent::prepare_process();
  try {
    return verbena::agent::run(arguments);
  } catch (const std::exception& e) {  // only start-up throws; later errors are Results
    return verbena::agent::report_failure(arguments, e.what());
  }
}
