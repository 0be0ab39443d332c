#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "check.h"

// Provides helpers for benchmarks that make connections.  Each client runs in its own process, and
// the server may run in another network namespace.
namespace verbena::bench {

// Identifies the network namespace and the IP address of a server.
struct Place {
  const char* network = nullptr;  // "/proc/PID/ns/net"; null: the namespace of this process
  in_addr address{.s_addr = htonl(INADDR_LOOPBACK)};

  sockaddr_in address_with_port(std::uint16_t port) const {
    sockaddr_in full{};
    full.sin_family = AF_INET;
    full.sin_port = htons(port);
    full.sin_addr = address;
    return full;
  }
};

inline Place parse_place(const char* network, const char* address) {
  Place place{.network = network};
  errno = EINVAL;
  check(inet_pton(AF_INET, address, &place.address) == 1, address);
  return place;
}

// Runs a server in a process of its own.  The destructor ends that process.
class Server {
 public:
  // Runs `serve(address, report_port)` in the new process.  `serve` must call report_port(PORT)
  // when it listens, and must never return.
  template <class Serve>
  Server(const Place& place, Serve serve) : place_(place) {
    int pipe_ends[2];
    check(pipe(pipe_ends) == 0, "pipe");
    pid_ = fork();
    check(pid_ >= 0, "fork");
    if (pid_ == 0) {
      close(pipe_ends[0]);
      // The parent may exit without running the destructor.
      check(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0, "PR_SET_PDEATHSIG");
      if (place.network != nullptr) enter_namespace(place.network);
      serve(place.address_with_port(0), [&](std::uint16_t port) {
        check(write(pipe_ends[1], &port, sizeof(port)) == sizeof(port), "write");
        close(pipe_ends[1]);
      });
      _exit(1);
    }
    close(pipe_ends[1]);
    check(read(pipe_ends[0], &port_, sizeof(port_)) == sizeof(port_), "the server does not listen");
    close(pipe_ends[0]);
  }
  ~Server() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  pid_t pid() const { return pid_; }
  sockaddr_in address() const { return place_.address_with_port(port_); }

 private:
  static void enter_namespace(const char* network) {
    const int fd = open(network, O_RDONLY | O_CLOEXEC);
    check(fd >= 0, network);
    check(setns(fd, CLONE_NEWNET) == 0, "setns");
    close(fd);
  }

  Place place_;
  pid_t pid_ = 0;
  std::uint16_t port_ = 0;
};

// Returns how often the threads of the process have slept so far.  Threads that have ended are not
// counted.
inline std::uint64_t sleeps_of(pid_t process) {
  constexpr std::string_view kField = "voluntary_ctxt_switches:";
  std::uint64_t total = 0;
  std::error_code ignored;  // the process or a thread may end meanwhile
  const auto tasks = "/proc/" + std::to_string(process) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks, ignored)) {
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with(kField)) total += std::stoull(line.substr(kField.size()));
    }
  }
  return total;
}

// Returns the processes with this name, in all network namespaces.
inline std::vector<pid_t> processes_named(std::string_view name) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::string comm;
    if (!std::getline(std::ifstream(entry.path() / "comm"), comm) || comm != name) continue;
    found.push_back(std::stoi(entry.path().filename()));
  }
  return found;
}

using Durations = std::vector<std::chrono::steady_clock::duration>;

inline double median_us(Durations durations) {
  const auto middle = durations.begin() + static_cast<std::ptrdiff_t>(durations.size() / 2);
  std::ranges::nth_element(durations, middle);
  return std::chrono::duration<double, std::micro>(*middle).count();
}

// Prints the medians.  Flushes the output, because _exit(), which ends the process, does not.
inline void print_medians(const Durations& first, const Durations& second) {
  std::printf("%.1f %.1f ", median_us(first), median_us(second));
  std::fflush(stdout);
}

struct Measurement {
  double seconds = 0;
  std::uint64_t sleeps = 0;  // how often threads of all measured processes slept
};

// Measures how long `processes` processes take for `work(client)`.  Each process first calls
// `client = prepare()`.  The time starts when all processes are prepared.  Also counts how often
// threads of these processes, and of the processes that `other_processes()` returns, slept during
// that time.
template <class OtherProcesses, class Prepare, class Work>
Measurement measure(int processes, OtherProcesses other_processes, Prepare prepare, Work work) {
  int ready_pipe[2], start_pipe[2], sleeps_pipe[2];
  check(pipe(ready_pipe) == 0 && pipe(start_pipe) == 0 && pipe(sleeps_pipe) == 0, "pipe");
  std::vector<pid_t> clients;
  for (int i = 0; i < processes; ++i) {
    const pid_t pid = fork();
    check(pid >= 0, "fork");
    if (pid == 0) {
      close(start_pipe[1]);
      auto client = prepare();
      char byte = 0;
      check(write(ready_pipe[1], &byte, 1) == 1, "write");
      close(ready_pipe[1]);  // so that the parent's read() fails if another client has failed
      check(read(start_pipe[0], &byte, 1) == 0, "read");  // waits until the parent closes the pipe
      const std::uint64_t before = sleeps_of(getpid());
      work(client);
      const std::uint64_t sleeps = sleeps_of(getpid()) - before;
      check(write(sleeps_pipe[1], &sleeps, sizeof(sleeps)) == sizeof(sleeps), "write");
      _exit(0);
    }
    clients.push_back(pid);
  }
  close(ready_pipe[1]);
  close(sleeps_pipe[1]);
  for (int i = 0; i < processes; ++i) {
    char byte = 0;
    check(read(ready_pipe[0], &byte, 1) == 1, "a client is not prepared");
  }
  const std::vector<pid_t> others = other_processes();
  const auto sleeps_of_others = [&] {
    return std::transform_reduce(others.begin(), others.end(), std::uint64_t{0}, std::plus(),
                                 sleeps_of);
  };
  const std::uint64_t before = sleeps_of_others();
  const auto start = std::chrono::steady_clock::now();
  close(start_pipe[1]);
  bool all_succeeded = true;
  for (const pid_t pid : clients) {
    int status = 0;
    all_succeeded = waitpid(pid, &status, 0) == pid && status == 0 && all_succeeded;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (!all_succeeded) std::exit(1);
  Measurement result{.seconds = seconds.count(), .sleeps = sleeps_of_others() - before};
  for (int i = 0; i < processes; ++i) {
    std::uint64_t sleeps = 0;
    check(read(sleeps_pipe[0], &sleeps, sizeof(sleeps)) == sizeof(sleeps), "read");
    result.sleeps += sleeps;
  }
  return result;
}

}  // namespace verbena::bench
