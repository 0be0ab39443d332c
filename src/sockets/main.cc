#include <sys/auxv.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <asio/io_context.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>

#include "agent/claim.h"
#include "os/agent_name.h"
#include "os/clock.h"
#include "os/daemon.h"
#include "os/limits.h"
#include "sockets/service.h"
#include "verbena_build.h"

// verbena-sockets starts when the first program under `verbena run --sockets` needs it, and ends
// when no program needs it.
namespace verbena::sockets {
namespace {

constexpr Duration kClaimTimeout = std::chrono::seconds(5);

struct Arguments {
  int ready_fd = -1;
  double idle_seconds = 10;
  double ring_idle_seconds = 5;
  std::string log{};
};

// Reports an error to the starter and to standard error.  Returns the exit status.
int report_error(const Arguments& arguments, const std::string& text) {
  std::fprintf(stderr, "verbena-sockets: %s\n", text.c_str());
  if (arguments.ready_fd >= 0) os::report_failure(arguments.ready_fd, text);
  return 1;
}

int run(const Arguments& arguments) {
  Service::Options options{.build = verbena_build_id()};
  options.idle =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(arguments.idle_seconds));
  options.ring_idle = std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(arguments.ring_idle_seconds));
  agent::Log log;
  if (!arguments.log.empty()) {
    auto file_log = agent::Log::open(arguments.log);
    if (!file_log) return report_error(arguments, "--log " + arguments.log + ": cannot be written");
    log = std::move(*file_log);
  }
  auto listener =
      agent::claim_name(os::socket_service_name(), ::geteuid(), os::now() + kClaimTimeout);
  if (!listener) return report_error(arguments, listener.error());
  if (*listener) {
    asio::io_context loop(1);
    const Service service(loop, std::move(**listener), std::move(options), std::move(log));
    if (arguments.ready_fd >= 0) os::report_ready(arguments.ready_fd);
    loop.run();
    return 0;
  }
  // Another service listens already.
  if (arguments.ready_fd >= 0) os::report_ready(arguments.ready_fd);
  return 0;
}

}  // namespace
}  // namespace verbena::sockets

// main() reports an exception that ends the start-up.
int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape)
  verbena::sockets::Arguments arguments;
  CLI::App app(
      "Verbena's socket service: lets programs under 'verbena run --sockets' use shared memory for "
      "their TCP connections. The first such program starts the service. It ends when no program "
      "needs it.");
  app.set_version_flag("--version", "verbena-sockets " VB_BUILD_ID);
  app.add_option("--ready-fd", arguments.ready_fd,
                 "Descriptor on which the service reports that it listens");
  // Lets an environment variable set the option, unless the process has more rights than its caller
  // (a set-user-ID program).  CLI11 itself does not use secure_getenv().
  const auto allow_variable = [](CLI::Option* option, const char* name) {
    if (::getauxval(AT_SECURE) == 0) option->envname(name);
  };
  allow_variable(app.add_option("--idle", arguments.idle_seconds,
                                "Seconds without a program until the service ends")
                     ->check(CLI::Range(0.0, 1e6))
                     ->capture_default_str(),
                 "VERBENA_IDLE");
  allow_variable(app.add_option("--ring-idle", arguments.ring_idle_seconds,
                                "Seconds without traffic until the memory of a ring is released")
                     ->check(CLI::Range(0.001, 1e6))
                     ->capture_default_str(),
                 "VERBENA_SOCKETS_RING_IDLE");
  allow_variable(app.add_option("--log", arguments.log, "File to append a log to"),
                 "VERBENA_SOCKETS_LOG");
  CLI11_PARSE(app, argc, argv);

  std::signal(SIGPIPE, SIG_IGN);
  verbena::os::set_daemon_limits();
  try {
    return verbena::sockets::run(arguments);
  } catch (const std::exception& e) {  // only start-up throws; later errors are Results
    return verbena::sockets::report_error(arguments, e.what());
  }
}
