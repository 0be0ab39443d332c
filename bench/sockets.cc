// Runs the exchanges of Verbena's benchmarks over the kernel's sockets, between processes of this
// machine.  scripts/bench compares Verbena with these sockets.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string_view>
#include <vector>

#include "check.h"
#include "crowd.h"

namespace {

using verbena::bench::check;
using verbena::bench::measure;
using verbena::bench::Measurement;
using verbena::bench::parse_number;
using verbena::bench::parse_place;
using verbena::bench::Place;
using verbena::bench::print_medians;
using verbena::bench::Server;
using Clock = std::chrono::steady_clock;

constexpr const char* kUsage =
    "usage: sockets pingpong tcp|udp block|poll BYTES ROUNDS\n"
    "       sockets connect COUNT WINDOW [PROCESSES [NETWORK ADDRESS]]\n"
    "       sockets latency block|poll COUNT\n"
    "\n"
    "pingpong  Sends BYTES back and forth ROUNDS times, like ibv_rc_pingpong.  Prints "
    "microseconds\n"
    "          for each round.\n"
    "connect   PROCESSES clients (default 1) together make COUNT TCP connections, which both\n"
    "          sides close.  Each client makes WINDOW of them at once.  Prints connections\n"
    "          per second, and the wake-ups of threads for each connection.  The server runs in\n"
    "          this network namespace, or at ADDRESS in NETWORK (/proc/PID/ns/net).\n"
    "latency   Makes COUNT connections one after the other; both ends wait or poll.  Prints "
    "medians\n"
    "          in microseconds, of connect() and of the whole connection.  Then prints the "
    "wake-ups\n"
    "          for each connection.\n";

sockaddr_in loopback() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int make_socket(int type) {
  const int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
  check(fd >= 0, "socket");
  return fd;
}

// Creates a socket that is bound to a free port, and stores the port in `address`.
int bound_socket(int type, sockaddr_in& address) {
  const int fd = make_socket(type);
  socklen_t bytes = sizeof(address);
  check(bind(fd, reinterpret_cast<sockaddr*>(&address), bytes) == 0, "bind");
  check(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0, "getsockname");
  return fd;
}

void connect_to(int fd, const sockaddr_in& address) {
  check(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0, "connect");
}

void set_no_delay(int fd) {
  const int on = 1;
  check(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0, "TCP_NODELAY");
}

// Runs `child` in a new process and `parent` in this one.
void run_in_two_processes(const std::function<void()>& child, const std::function<void()>& parent) {
  const pid_t pid = fork();
  check(pid >= 0, "fork");
  if (pid == 0) {
    child();
    _exit(0);
  }
  parent();
  int status = 0;
  check(waitpid(pid, &status, 0) == pid, "waitpid");
  if (status != 0) std::exit(1);
}

// Represents one end of a ping-pong.  The other end is in another process.
struct PingPongEnd {
  int fd;
  bool polls;  // true: recv() never sleeps, and is called in a loop
  std::vector<char> buffer;

  void send_all() {
    for (std::size_t sent = 0; sent < buffer.size();) {
      const ssize_t n = send(fd, buffer.data() + sent, buffer.size() - sent, MSG_NOSIGNAL);
      check(n > 0, "send");
      sent += static_cast<std::size_t>(n);
    }
  }
  void receive_all() {
    for (std::size_t received = 0; received < buffer.size();) {
      const ssize_t n =
          recv(fd, buffer.data() + received, buffer.size() - received, polls ? MSG_DONTWAIT : 0);
      if (n < 0 && errno == EAGAIN) continue;
      if (n == 0) errno = ECONNRESET;
      check(n > 0, "recv");
      received += static_cast<std::size_t>(n);
    }
  }
};

void ping(PingPongEnd end, int rounds) {
  end.send_all();  // a round before the measurement, so that the other end is running
  end.receive_all();
  const auto start = Clock::now();
  for (int i = 0; i < rounds; ++i) {
    end.send_all();
    end.receive_all();
  }
  const std::chrono::duration<double, std::micro> duration = Clock::now() - start;
  std::printf("%.3f\n", duration.count() / rounds);
}

void pong(PingPongEnd end, int rounds) {
  for (int i = 0; i < rounds + 1; ++i) {
    end.receive_all();
    end.send_all();
  }
}

void pingpong_tcp(bool polls, const std::vector<char>& buffer, int rounds) {
  sockaddr_in address = loopback();
  const int listener = bound_socket(SOCK_STREAM, address);
  check(listen(listener, 1) == 0, "listen");
  run_in_two_processes(
      [&] {
        const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        check(fd >= 0, "accept");
        set_no_delay(fd);
        pong({fd, polls, buffer}, rounds);
      },
      [&] {
        const int fd = make_socket(SOCK_STREAM);
        connect_to(fd, address);
        set_no_delay(fd);
        ping({fd, polls, buffer}, rounds);
      });
}

void pingpong_udp(bool polls, const std::vector<char>& buffer, int rounds) {
  sockaddr_in ping_address = loopback(), pong_address = loopback();
  const int ping_socket = bound_socket(SOCK_DGRAM, ping_address);
  const int pong_socket = bound_socket(SOCK_DGRAM, pong_address);
  connect_to(ping_socket, pong_address);
  connect_to(pong_socket, ping_address);
  run_in_two_processes(
      [&] {
        pong({pong_socket, polls, buffer}, rounds);
      },
      [&] {
        ping({ping_socket, polls, buffer}, rounds);
      });
}

// Accepts and closes connections until the process is killed.  Calls report_port(PORT) when it
// listens.
template <class ReportPort>
[[noreturn]] void accept_and_close(bool polls, sockaddr_in address, ReportPort report_port) {
  const int listener = bound_socket(SOCK_STREAM | (polls ? SOCK_NONBLOCK : 0), address);
  check(listen(listener, 1024) == 0, "listen");
  report_port(ntohs(address.sin_port));
  for (;;) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0 && errno == EAGAIN) continue;
    check(fd >= 0, "accept");
    close(fd);
  }
}

int begin_connect(const sockaddr_in& address) {
  const int fd = make_socket(SOCK_STREAM | SOCK_NONBLOCK);
  const int result = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  check(result == 0 || errno == EINPROGRESS, "connect");
  return fd;
}

void connect_many(const sockaddr_in& address, int count, int window) {
  std::vector<pollfd> pending;
  int started = 0, ended = 0;
  while (ended < count) {
    for (; started < count && std::ssize(pending) < window; ++started) {
      pending.push_back({.fd = begin_connect(address), .events = POLLIN, .revents = 0});
    }
    check(poll(pending.data(), pending.size(), -1) > 0, "poll");
    std::erase_if(pending, [&](const pollfd& connection) {
      if (connection.revents == 0) return false;
      char byte;
      check(recv(connection.fd, &byte, 1, 0) == 0, "a connection that was not simply closed");
      close(connection.fd);
      ++ended;
      return true;
    });
  }
}

void connect_and_close(int count, int window, int processes, const Place& place) {
  const Server server(place, [](const auto&... to) { accept_and_close(false, to...); });
  const int per_process = std::max(1, count / processes);
  const auto work = [&](int) { connect_many(server.address(), per_process, window); };
  const auto other_processes = [&] { return std::vector{server.pid()}; };
  const auto prepare = [] { return 0; };
  const Measurement result = measure(processes, other_processes, prepare, work);
  const double total = per_process * processes;
  std::printf("%.1f %.2f\n", total / result.seconds, static_cast<double>(result.sleeps) / total);
}

void latency(bool polls, int count) {
  const Server server({}, [&](const auto&... to) { accept_and_close(polls, to...); });
  const auto other_processes = [&] { return std::vector{server.pid()}; };
  const auto prepare = [] { return 0; };
  // The client runs in its own process, which prints the medians.
  const Measurement result = measure(1, other_processes, prepare, [&](int) {
    std::vector<Clock::duration> connect_durations, total_durations;
    for (int i = 0; i < count; ++i) {
      const Clock::time_point start = Clock::now();
      const int fd = make_socket(SOCK_STREAM);
      connect_to(fd, server.address());
      connect_durations.push_back(Clock::now() - start);
      char byte;
      ssize_t n = 0;
      do {
        n = recv(fd, &byte, 1, polls ? MSG_DONTWAIT : 0);
      } while (n < 0 && errno == EAGAIN);
      check(n == 0, "a connection that was not simply closed");
      close(fd);
      total_durations.push_back(Clock::now() - start);
    }
    print_medians(connect_durations, total_durations);
  });
  std::printf("%.2f\n", static_cast<double>(result.sleeps) / count);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string_view> words(argv + 1, argv + argc);
  if (words.size() == 5 && words[0] == "pingpong") {
    const bool polls = words[2] == "poll";
    const std::vector<char> buffer(static_cast<std::size_t>(parse_number(argv[4], "BYTES")), 'x');
    const int rounds = parse_number(argv[5], "ROUNDS");
    if (words[1] == "tcp") {
      pingpong_tcp(polls, buffer, rounds);
    } else {
      pingpong_udp(polls, buffer, rounds);
    }
  } else if (words.size() > 2 && words.size() < 7 && words.size() != 5 && words[0] == "connect") {
    const int processes = words.size() > 3 ? parse_number(argv[4], "PROCESSES") : 1;
    const Place place = words.size() == 6 ? parse_place(argv[5], argv[6]) : Place{};
    connect_and_close(parse_number(argv[2], "COUNT"), parse_number(argv[3], "WINDOW"), processes,
                      place);
  } else if (words.size() == 3 && words[0] == "latency" &&
             (words[1] == "block" || words[1] == "poll")) {
    latency(words[1] == "poll", parse_number(argv[3], "COUNT"));
  } else {
    std::fputs(kUsage, stderr);
    return 2;
  }
}
