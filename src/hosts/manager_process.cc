#include "hosts/manager_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "os/process.h"

namespace verbena::hosts {
namespace {

std::vector<std::string> arguments(const ManagerProcess::Options& options) {
  // -d 2 makes OpenSM flush its log after each message, so that readers see the message at once.
  return {"opensm",
          "-g",
          fmt::format("{:#018x}", options.port_guid.value),
          "-f",
          options.directory + "/" + ManagerProcess::kLogName,
          "-L",
          std::to_string(ManagerProcess::kLogMegabytesMax),
          "-d",
          "2"};
}

// Returns this process's environment, but sets the variables that make a program belong to the node
// and that name the directory for OpenSM's files.
std::vector<std::string> environment(const ManagerProcess::Options& options) {
  std::error_code error;
  const auto libraries = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  const char* path = ::secure_getenv("LD_LIBRARY_PATH");
  const std::string old_path = path == nullptr || *path == '\0' ? "" : std::string(":") + path;
  std::vector<std::string> all{"LD_LIBRARY_PATH=" + libraries.string() + old_path,
                               "VERBENA_FABRIC=" + options.fabric, "VERBENA_NODE=" + options.node,
                               "OSM_TMP_DIR=" + options.directory,
                               "OSM_CACHE_DIR=" + options.directory};
  const std::size_t own_count = all.size();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view variable(*entry);
    const std::string_view name = variable.substr(0, variable.find('=') + 1);
    bool is_new = true;
    for (std::size_t i = 0; i < own_count; ++i) is_new = is_new && !all[i].starts_with(name);
    if (is_new) all.emplace_back(variable);
  }
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

// Runs OpenSM in the child process.
[[noreturn]] void execute_opensm(const char* program, char* const* argv, char* const* envp,
                                 pid_t parent, int output, int held_fd) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(0);  // the parent died before the prctl()
  for (const int signal : {SIGPIPE, SIGXFSZ}) ::signal(signal, SIG_DFL);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  ::fcntl(held_fd, F_SETFD, 0);  // while OpenSM has this descriptor, its directory is not removed
  ::execve(program, argv, envp);
  ::dprintf(STDERR_FILENO, "cannot run %s: %s\n", program, std::strerror(errno));
  ::_exit(127);
}

std::string exit_status_text(int status) {
  if (WIFEXITED(status)) return fmt::format("exit code {}", WEXITSTATUS(status));
  return fmt::format("signal {}", WTERMSIG(status));
}

}  // namespace

std::expected<std::unique_ptr<ManagerProcess>, std::string> ManagerProcess::start(
    asio::io_context& loop, Options options, std::move_only_function<void()> on_opensm_end) {
  std::unique_ptr<ManagerProcess> manager(
      new ManagerProcess(std::move(options), std::move(on_opensm_end)));
  const Options& start_options = manager->options_;
  const auto failed = [&](const char* what, int error) {
    return std::unexpected(
        fmt::format("OpenSM on '{}': {}: {}", start_options.node, what, std::strerror(error)));
  };
  const os::Fd output(::open((start_options.directory + "/" + kOutputName).c_str(),
                             O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!output) return failed("cannot create a file for its output", errno);
  auto argument_texts = arguments(start_options);
  auto environment_texts = environment(start_options);
  const auto argv = pointers(argument_texts);
  const auto envp = pointers(environment_texts);
  const pid_t parent = ::getpid();
  manager->pid_ = ::fork();
  if (manager->pid_ == 0) {
    execute_opensm(start_options.program.c_str(), argv.data(), envp.data(), parent, output.get(),
                   start_options.held_fd);
  }
  if (manager->pid_ < 0) return failed("cannot create a process", errno);
  auto pidfd = os::open_pidfd(manager->pid_);
  if (!pidfd) return failed("cannot watch its process", pidfd.error().detail);
  manager->pidfd_ = std::move(*pidfd);
  manager->watch_ =
      agent::Watch(loop, manager->pidfd_.get(), [raw = manager.get()] { raw->on_end(); });
  return manager;
}

ManagerProcess::~ManagerProcess() {
  if (pid_ <= 0 || has_ended()) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void ManagerProcess::on_end() {
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return;
  end_text_ = exit_status_text(status);
  watch_.read(false);  // the pidfd remains readable, so its watch must end
  on_opensm_end_();
}

}  // namespace verbena::hosts
