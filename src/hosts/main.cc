#include <sys/auxv.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <asio/io_context.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <expected>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/claim.h"
#include "hosts/service.h"
#include "os/adaptive_spin.h"
#include "os/agent_name.h"
#include "os/clock.h"
#include "os/daemon.h"
#include "os/limits.h"
#include "os/thread.h"
#include "plan/plan.h"
#include "subnet/netlist.h"
#include "verbena_build.h"

// verbena-fabric is started by `verbena fabric up` and ends with `verbena fabric down`.
namespace verbena::hosts {
namespace {

constexpr Duration kClaimTimeout = std::chrono::seconds(5);
constexpr std::size_t kStoredLogLines = 1000;  // `verbena fabric log` prints them

struct Arguments {
  int ready_fd = -1;
  std::string name{};
  std::string file{};
  std::string faults{};
  std::string log{};
  bool trace = false;
  std::vector<std::string> managers{};
  std::string opensm{};
  std::string scratch = "/tmp";
  std::string sa = "get";
};

// Returns the mode for a value of the option --sa, which CLI11 has already checked.
sa::PathCache::Mode path_mode(const std::string& word) {
  if (word == "table") return sa::PathCache::Mode::kTable;
  return word == "uncached" ? sa::PathCache::Mode::kUncached : sa::PathCache::Mode::kGet;
}

// Reports why the fabric cannot start, and returns the exit code.
int failed(const Arguments& arguments, const std::string& text) {
  std::fprintf(stderr, "verbena-fabric: %s\n", text.c_str());
  if (arguments.ready_fd >= 0) os::report_failure(arguments.ready_fd, text);
  return 1;
}

// Polls for a moment, instead of sleeping, until there is a packet to forward.  Returns true if a
// packet was forwarded.
bool spin_for_packet(Forwarder& forwarder, os::AdaptiveSpin& spin) {
  const Time began = os::now();
  for (Time now = began; now - began < spin.spin_time();) {
    os::yield_processor();
    if (forwarder.forward(os::now())) {
      spin.record_successful_spin();
      return true;
    }
    const Time before_yield = std::exchange(now, os::now());
    if (!spin.yielded(now - before_yield)) break;
  }
  spin.record_failed_spin();
  return false;
}

// Runs the loop.  While there are packets to forward, it polls the descriptors only after
// kForwardsPerPoll calls of forward().
void run_until_stopped(asio::io_context& loop, Forwarder& forwarder) {
  constexpr int kForwardsPerPoll = 16;
  os::AdaptiveSpin spin(std::chrono::microseconds(50));
  int forwards = 0;
  while (!loop.stopped()) {
    const bool forwarded = forwarder.forward(os::now());
    if (forwarded && ++forwards < kForwardsPerPoll) continue;
    forwards = 0;
    if (loop.poll() > 0 || forwarded) continue;
    if (spin.should_spin() && spin_for_packet(forwarder, spin)) continue;
    const Time began = os::now();
    if (forwarder.park()) loop.run_one();
    forwarder.unpark();
    spin.record_sleep(os::now() - began);
  }
}

std::optional<std::string> read_file(const std::string& path) {
  std::ifstream file(path);
  file.peek();  // fails for a directory, which can be opened
  if (!file.is_open() || file.bad()) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Returns the beginning of a message about a mistake in a file: "FILE:LINE:COLUMN: ".
std::string position_text(const std::string& file, const auto& problem) {
  return file + ":" + std::to_string(problem.line) + ":" + std::to_string(problem.column) + ": ";
}

int run(const Arguments& arguments) {
  const auto text = read_file(arguments.file);
  if (!text) return failed(arguments, "cannot read " + arguments.file);
  if (text->empty()) return failed(arguments, arguments.file + " is empty");
  const bool is_netlist = subnet::looks_like_netlist(*text);
  auto fabric = is_netlist ? plan::Fabric{} : plan::parse(*text);
  if (!fabric)
    return failed(arguments, position_text(arguments.file, fabric.error()) + fabric.error().text);
  auto topology = is_netlist ? subnet::parse_netlist(*text) : subnet::Topology{};
  if (!topology)
    return failed(arguments,
                  position_text(arguments.file, topology.error()) + topology.error().reason);
  std::expected<std::vector<plan::ScheduledFault>, plan::Problem> faults;
  if (!arguments.faults.empty()) {
    const auto faults_text = read_file(arguments.faults);
    if (!faults_text) return failed(arguments, "cannot read " + arguments.faults);
    faults = plan::parse_faults(*faults_text);
  }
  if (!faults)
    return failed(arguments, position_text(arguments.faults, faults.error()) + faults.error().text);
  faults->insert(faults->begin(), fabric->faults.begin(), fabric->faults.end());
  agent::Log log;
  if (!arguments.log.empty()) {
    auto opened = agent::Log::open(arguments.log);
    if (!opened) return failed(arguments, "--log " + arguments.log + ": cannot be written");
    log = std::move(*opened);
  }
  log.store_lines(kStoredLogLines);
  auto listener = agent::claim_name(os::fabric_socket_name(arguments.name), ::geteuid(),
                                    os::now() + kClaimTimeout);
  if (!listener) return failed(arguments, listener.error());
  if (!*listener) return failed(arguments, "a fabric of this name is up already");
  asio::io_context loop(1);
  Service::Options options{.build = verbena_build_id(),
                           .name = arguments.name,
                           .file = arguments.file,
                           .faults = std::move(*faults),
                           .trace = arguments.trace && !arguments.log.empty(),
                           .managers = arguments.managers,
                           .opensm = arguments.opensm,
                           .scratch = arguments.scratch,
                           .sa = {.paths = {.mode = path_mode(arguments.sa)}}};
  const auto service = is_netlist ? Service::create(loop, std::move(**listener),
                                                    std::move(*topology), std::move(options), log)
                                  : Service::create(loop, std::move(**listener), std::move(*fabric),
                                                    std::move(options), log);
  if (!service) return failed(arguments, service.error());
  if (arguments.ready_fd >= 0) os::report_ready(arguments.ready_fd);
  run_until_stopped(loop, (*service)->forwarder());
  return 0;
}

}  // namespace
}  // namespace verbena::hosts

// An exception at start-up ends the process and is reported.
int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape)
  verbena::hosts::Arguments arguments;
  CLI::App app(
      "Verbena's fabric of virtual hosts: an agent for each host of a file, and the switch between "
      "them. It is started by 'verbena fabric up' and ends with 'verbena fabric down'.");
  app.set_version_flag("--version", "verbena-fabric " VB_BUILD_ID);
  app.add_option("--ready-fd", arguments.ready_fd,
                 "Descriptor on which to report that the fabric is up");
  app.add_option("--name", arguments.name, "Name of the fabric")->required();
  app.add_option("--file", arguments.file, "File that describes the fabric")->required();
  app.add_option("--faults", arguments.faults, "File of faults and of the times when they happen");
  app.add_option("--manager", arguments.managers, "HCA on which a subnet manager runs")
      ->expected(0, static_cast<int>(verbena::hosts::Managers::kManagersMax));
  app.add_option("--opensm", arguments.opensm, "Executable of OpenSM");
  app.add_option("--scratch", arguments.scratch,
                 "Directory in which to create a directory for OpenSM's files");
  const auto allow_variable = [](CLI::Option* option, const char* name) {
    // CLI11 would also read the variable in a privileged process, because it calls plain getenv().
    if (::getauxval(AT_SECURE) == 0) option->envname(name);
  };
  allow_variable(app.add_option("--log", arguments.log, "File to append a log to"),
                 "VERBENA_FABRIC_LOG");
  allow_variable(app.add_option("--sa", arguments.sa,
                                "How nodes of a subnet learn paths: one query for each destination "
                                "(get), one for all destinations (table), or one for each "
                                "connection (uncached)")
                     ->check(CLI::IsMember({"get", "table", "uncached"})),
                 "VERBENA_SA");
  allow_variable(
      app.add_flag("--trace", arguments.trace, "Log each change of a connection's state"),
      "VERBENA_TRACE");
  CLI11_PARSE(app, argc, argv);

  std::signal(SIGPIPE, SIG_IGN);
  // Writing a capture beyond the file size limit then fails, but does not end the process.
  std::signal(SIGXFSZ, SIG_IGN);
  verbena::os::set_daemon_limits();
  try {
    return verbena::hosts::run(arguments);
  } catch (const std::exception& e) {  // only start-up throws; later errors are Results
    return verbena::hosts::failed(arguments, e.what());
  }
}
