#include "cli/run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "base/printable.h"
#include "cli/agent_connection.h"
#include "cli/executable.h"
#include "cli/fabric.h"
#include "cli/preload.h"
#include "cli/sockets.h"
#include "cli/supervise.h"
#include "cli/sysfs.h"
#include "ipc/tool_messages.h"
#include "os/fd.h"
#include "policy/rules.h"

namespace verbena::cli {
namespace {

int report_failure(int exit_code, const std::string& text) {
  std::fprintf(stderr, "verbena run: %s\n", printable(text).c_str());
  return exit_code;
}

// Returns the directory of the libraries.  Checks first that the directory has all libraries that
// programs need and that its path is allowed in LD_LIBRARY_PATH.
Answer<std::string> complete_library_directory() {
  Answer<std::string> directory = library_directory();
  if (!directory) return directory;
  for (const char* library : {"libverbena.so.0", "libibverbs.so.1", "librdmacm.so.1"}) {
    if (::access(fmt::format("{}/{}", *directory, library).c_str(), R_OK) != 0) {
      return std::unexpected(fmt::format("{} has no {}: the installation (or build) is incomplete",
                                         *directory, library));
    }
  }
  if (directory->find_first_of(":;") != std::string::npos) {
    return std::unexpected(fmt::format(
        "LD_LIBRARY_PATH cannot hold {}: move Verbena to a path without ':' and ';'", *directory));
  }
  return directory;
}

Answer<os::Fd> create_capture_file(const std::string& path) {
  // Truncate only a regular file, so that a wrong path does no harm.
  os::Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) {
    return std::unexpected(
        fmt::format("cannot write the capture to '{}': {}", path, std::strerror(errno)));
  }
  if (!S_ISREG(status.st_mode)) {
    return std::unexpected(
        fmt::format("cannot write the capture to '{}': it is not a regular file", path));
  }
  if (::ftruncate(file.get(), 0) != 0) {
    return std::unexpected(
        fmt::format("cannot write the capture to '{}': {}", path, std::strerror(errno)));
  }
  return file;
}

struct StartedCapture {
  AgentConnection agent;
  std::uint64_t number = 0;
};

Answer<StartedCapture> start_capture(const std::string& path, const std::string& directory) {
  auto file = create_capture_file(path);
  if (!file) return std::unexpected(file.error());
  auto agent = AgentConnection::find_or_start(directory);
  if (!agent) return std::unexpected(agent.error());
  const std::array fds{file->get()};
  const auto started = agent->ask<ipc::CaptureStarted>(
      ipc::Capture{.pid = static_cast<std::uint32_t>(::getpid())}, fds);
  if (!started) return std::unexpected(started.error());
  return StartedCapture{std::move(*agent), started->capture};
}

int exec_program(const std::string& path, const std::vector<std::string>& command) {
  std::vector<char*> argv;
  for (const std::string& argument : command) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ::execv(path.c_str(), argv.data());
  if (errno == ENOEXEC) {  // a script without "#!": run it by the shell, as execvp(3) does
    std::string shell = "/bin/sh";
    std::string script = path;
    argv[0] = script.data();
    argv.insert(argv.begin(), shell.data());
    ::execv(shell.c_str(), argv.data());
  }
  const int error = errno;
  return report_failure(error == ENOENT ? kExitNotFound : kExitNotExecutable,
                        fmt::format("cannot run '{}': {}", command[0], std::strerror(error)));
}

// Runs the program in a child, so that this process can wait until all recorded packets are in the
// file, and then end as the program did.  Returns only if it cannot make a child, or if the program
// succeeded and the capture is incomplete.
int run_captured(StartedCapture capture, const RunOptions& options, const std::string& path) {
  const int status = supervise([&] { return exec_program(path, options.command); });
  if (status < 0) {
    return report_failure(kExitOwnFailure,
                          fmt::format("cannot make a process: {}", std::strerror(errno)));
  }
  const auto flushed = capture.agent.ask<ipc::Done>(ipc::FlushCapture{});
  if (!flushed) {
    report_failure(kExitOwnFailure, fmt::format("'{}' does not contain all packets: {}",
                                                options.pcap, flushed.error()));
    if (status == 0) return kExitOwnFailure;
  }
  end_as(status);
}

// Returns the directory of the library that connects programs of the C++ API with an adapter,
// instead of Verbena's own engine.
Answer<std::string> adapter_directory() {
  Answer<std::string> directory = complete_library_directory();
  if (!directory) return directory;
  *directory += "/adapter";
  if (::access((*directory + "/libverbena.so.0").c_str(), R_OK) != 0) {
    return std::unexpected(fmt::format(
        "{} has no libverbena.so.0: the installation (or build) is incomplete", *directory));
  }
  return directory;
}

void set_library_path(const std::string& directory) {
  const std::string libraries = prepend_path(directory, ::secure_getenv("LD_LIBRARY_PATH"));
  ::setenv("LD_LIBRARY_PATH", libraries.c_str(), 1);
}

// Reads the rules in a file, which may be a pipe.  Stops after kTextMax + 1 bytes, because a longer
// text is an error.
Answer<std::string> read_rules(const std::string& path) {
  const os::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  std::string text(policy::Rules::kTextMax + 1, '\0');
  std::size_t bytes_read = 0;
  ssize_t bytes = file ? 1 : -1;
  while (bytes > 0 && bytes_read < text.size()) {
    bytes = ::read(file.get(), text.data() + bytes_read, text.size() - bytes_read);
    if (bytes > 0) bytes_read += static_cast<std::size_t>(bytes);
  }
  if (bytes < 0) {
    return std::unexpected(fmt::format("cannot read '{}': {}", path, std::strerror(errno)));
  }
  text.resize(bytes_read);
  return text;
}

// Checks the rules, and passes them in the environment to the library that applies them.
Answer<void> provide_socket_rules(const RunOptions& options) {
  std::string source = options.socket_rules;
  if (const char* file = ::secure_getenv("LIBSDP_CONFIG_FILE"); source.empty() && file != nullptr) {
    source = file;
  }
  std::string text;
  if (!source.empty()) {
    auto contents = read_rules(source);
    if (!contents) return std::unexpected(contents.error());
    text = *std::move(contents);
  } else {
    source = "VERBENA_SOCKET_RULES";
    if (const char* value = ::secure_getenv(source.c_str())) text = value;
  }
  if (const auto rules = policy::Rules::parse(text); !rules) {
    return std::unexpected(
        fmt::format("{}:{}: {}", source, rules.error().line, rules.error().text));
  }
  ::setenv("VERBENA_SOCKET_RULES", text.c_str(), 1);
  ::setenv("VERBENA_SOCKETS", options.sockets.c_str(), 1);
  return {};
}

// Starts the socket service, and lets the program load the library that uses it.
Answer<void> provide_sockets(const RunOptions& options) {
  if (const auto rules = provide_socket_rules(options); !rules) return rules;
  const Answer<std::string> directory = library_directory();
  if (!directory) return std::unexpected(directory.error());
  const auto started = start_socket_service(*directory);
  if (!started) return std::unexpected(started.error());
  return preload(*directory, "libverbena-sockets.so.0");
}

}  // namespace

std::string prepend_path(const std::string& directory, const char* current) {
  if (current == nullptr || *current == '\0') return directory;
  return fmt::format("{}:{}", directory, current);
}

int run(const RunOptions& options) {
  const char* search_path = ::secure_getenv("PATH");
  if (search_path == nullptr) search_path = kDefaultPath;
  const FoundProgram program = find_program(options.command[0], search_path);
  if (program.problem) return report_failure(program.problem->exit_code, program.problem->text);
  if (const auto problem = why_not_loadable(program.path, search_path)) {
    return report_failure(problem->exit_code, problem->text);
  }
  const auto directory =
      options.adapter.empty() ? complete_library_directory() : adapter_directory();
  if (!directory) return report_failure(kExitOwnFailure, directory.error());
  if (!options.node.empty()) {
    const auto host = enter_host(options.fabric, options.node);
    if (!host) return report_failure(kExitOwnFailure, host.error());
    if (const auto provided = provide_interfaces(options, host->name, *directory); !provided) {
      return report_failure(kExitOwnFailure, provided.error());
    }
  }
  if (!options.adapter.empty()) ::setenv("VERBENA_ADAPTER", options.adapter.c_str(), 1);

  std::optional<StartedCapture> capture;
  if (!options.pcap.empty()) {
    auto started = start_capture(options.pcap, *directory);
    if (!started) return report_failure(kExitOwnFailure, started.error());
    capture = *std::move(started);
    ::setenv("VERBENA_CAPTURE", std::to_string(capture->number).c_str(), 1);
  }
  if (options.sysfs) {
    auto agent = AgentConnection::find_or_start(*directory);
    if (!agent) return report_failure(kExitOwnFailure, agent.error());
    if (const auto problem = provide_sysfs(*agent))
      return report_failure(kExitOwnFailure, *problem);
    // Few programs read the counters, so run the program even without them.
    if (const auto problem = provide_port_counters(*agent)) {
      report_failure(0, fmt::format("--sysfs: the port has no counters: {}", *problem));
    }
  } else if (options.adapter.empty() && looks_in_sysfs(program.path) &&
             ::access("/sys/class/infiniband/verbena0", F_OK) != 0) {
    std::fprintf(stderr,
                 "verbena run: '%s' looks for devices in /sys/class/infiniband and finds Verbena's "
                 "only with: verbena run --sysfs\n",
                 options.command[0].c_str());
  }
  if (!options.personality.empty()) {
    ::setenv("VERBENA_PERSONALITY", options.personality.c_str(), 1);
  }
  if (!options.link.empty()) ::setenv("VERBENA_LINK", options.link.c_str(), 1);
  if (options.verbose) ::setenv("VERBENA_VERBOSE", "1", 1);
  if (options.sockets == "auto" || options.sockets == "only") {
    if (const auto provided = provide_sockets(options); !provided) {
      return report_failure(kExitOwnFailure, provided.error());
    }
  }
  set_library_path(*directory);
  if (capture) return run_captured(std::move(*capture), options, program.path);
  return exec_program(program.path, options.command);
}

}  // namespace verbena::cli
