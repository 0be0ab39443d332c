// Makes TCP connections between two processes, moves bytes over each of them in both directions,
// and leaves them idle, to measure their memory.
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "check.h"

namespace {

using verbena::bench::check;
using verbena::bench::parse_number;
using verbena::bench::wait_for_line;

constexpr const char* kUsage =
    "usage: idle_sockets COUNT BYTES\n"
    "Makes COUNT connections, moves a few bytes over each for a while, and then BYTES each way.\n"
    "Prints their number and the pids of the two processes.  Moves BYTES again when it reads a\n"
    "line.\n";

// First, this program moves kFewBytes over each connection, kRounds times.  During this time
// Verbena sets up a ring between the two ends.
constexpr int kRounds = 12;
constexpr std::size_t kFewBytes = 100;

void raise_descriptor_limit() {
  rlimit limit{};
  check(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
  limit.rlim_cur = limit.rlim_max;
  check(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
}

const std::vector<char>& pattern() {
  static const std::vector<char> kText(65536, 'x');
  return kText;
}

void send_all(int fd, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = send(fd, pattern().data(), std::min(bytes, pattern().size()), MSG_NOSIGNAL);
    check(n > 0, "send");
    bytes -= static_cast<std::size_t>(n);
  }
}

void receive_all(int fd, std::size_t bytes) {
  static std::vector<char> buffer(pattern().size());
  while (bytes > 0) {
    const ssize_t n = recv(fd, buffer.data(), std::min(bytes, buffer.size()), 0);
    if (n == 0) errno = ECONNRESET;
    check(n > 0, "recv");
    errno = EBADMSG;
    check(std::equal(buffer.begin(), buffer.begin() + n, pattern().begin()),
          "the received bytes are wrong");
    bytes -= static_cast<std::size_t>(n);
  }
}

// Moves `bytes` bytes there and back over each connection.
void move(const std::vector<int>& connections, bool is_client, std::size_t bytes) {
  for (const int fd : connections) {
    if (is_client) send_all(fd, bytes);
    receive_all(fd, bytes);
    if (!is_client) send_all(fd, bytes);
  }
}

void exchange_few_bytes(const std::vector<int>& connections, bool is_client) {
  for (int i = 0; i < kRounds; ++i) {
    move(connections, is_client, kFewBytes);
    if (is_client) usleep(5000);
  }
}

sockaddr_in loopback() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// Serves the connections until the client closes the pipe `rounds_pipe`.  Each byte in the pipe
// requests one round.
[[noreturn]] void serve(int listener, int rounds_pipe, int count, std::size_t bytes) {
  std::vector<int> connections;
  for (int i = 0; i < count; ++i) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    check(fd >= 0, "accept");
    connections.push_back(fd);
  }
  exchange_few_bytes(connections, false);
  for (char byte = 0; read(rounds_pipe, &byte, 1) == 1;) {
    move(connections, false, bytes);
  }
  std::exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  const int count = parse_number(argv[1], "COUNT");
  const auto bytes = static_cast<std::size_t>(parse_number(argv[2], "BYTES"));
  raise_descriptor_limit();
  sockaddr_in address = loopback();
  socklen_t address_bytes = sizeof(address);
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  check(listener >= 0, "socket");
  check(bind(listener, reinterpret_cast<sockaddr*>(&address), address_bytes) == 0, "bind");
  check(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &address_bytes) == 0,
        "getsockname");
  check(listen(listener, 1024) == 0, "listen");
  std::array<int, 2> rounds_pipe{};
  check(pipe2(rounds_pipe.data(), O_CLOEXEC) == 0, "pipe");
  const pid_t server = fork();
  check(server >= 0, "fork");
  if (server == 0) {
    close(rounds_pipe[1]);
    serve(listener, rounds_pipe[0], count, bytes);
  }
  std::vector<int> connections;
  for (int i = 0; i < count; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    check(fd >= 0, "socket");
    check(connect(fd, reinterpret_cast<const sockaddr*>(&address), address_bytes) == 0, "connect");
    connections.push_back(fd);
  }
  exchange_few_bytes(connections, true);
  for (;;) {
    check(write(rounds_pipe[1], "x", 1) == 1, "write");
    move(connections, true, bytes);
    std::printf("holding %d client %d server %d\n", count, getpid(), server);
    std::fflush(stdout);
    wait_for_line();
  }
}
