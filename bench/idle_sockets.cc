// Makes TCP connections between two processes, moves bytes over each both ways, and leaves them
// idle, to measure their memory.
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

using verbena::bench::need;
using verbena::bench::number;
using verbena::bench::wait_for_a_line;

constexpr const char* kUsage =
    "usage: idle_sockets COUNT BYTES\n"
    "Makes COUNT connections, moves a few bytes over each for a while, and then BYTES each way.\n"
    "Prints their number and the pids of the two processes.  Moves BYTES again when it reads a\n"
    "line.\n";

// First, kFew bytes are moved kRounds times over each connection.  In this time Verbena connects
// the two ends by a ring.
constexpr int kRounds = 12;
constexpr std::size_t kFew = 100;

void raise_descriptors() {
  rlimit limit{};
  need(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
  limit.rlim_cur = limit.rlim_max;
  need(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
}

const std::vector<char>& text() {
  static const std::vector<char> kText(65536, 'x');
  return kText;
}

void send_all(int fd, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = send(fd, text().data(), std::min(bytes, text().size()), MSG_NOSIGNAL);
    need(n > 0, "send");
    bytes -= static_cast<std::size_t>(n);
  }
}

void receive_all(int fd, std::size_t bytes) {
  static std::vector<char> buffer(text().size());
  while (bytes > 0) {
    const ssize_t n = recv(fd, buffer.data(), std::min(bytes, buffer.size()), 0);
    if (n == 0) errno = ECONNRESET;
    need(n > 0, "recv");
    errno = EBADMSG;
    need(std::equal(buffer.begin(), buffer.begin() + n, text().begin()), "the bytes");
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

void warm(const std::vector<int>& connections, bool is_client) {
  for (int i = 0; i < kRounds; ++i) {
    move(connections, is_client, kFew);
    if (is_client) usleep(5000);
  }
}

sockaddr_in loopback() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// Serves until the client closes the pipe `orders`.  Each byte in the pipe asks for one more round.
[[noreturn]] void serve(int listener, int orders, int count, std::size_t bytes) {
  std::vector<int> connections;
  for (int i = 0; i < count; ++i) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    need(fd >= 0, "accept");
    connections.push_back(fd);
  }
  warm(connections, false);
  for (char order = 0; read(orders, &order, 1) == 1;) {
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
  const int count = number(argv[1], "COUNT");
  const auto bytes = static_cast<std::size_t>(number(argv[2], "BYTES"));
  raise_descriptors();
  sockaddr_in address = loopback();
  socklen_t address_bytes = sizeof(address);
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  need(listener >= 0, "socket");
  need(bind(listener, reinterpret_cast<sockaddr*>(&address), address_bytes) == 0, "bind");
  need(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &address_bytes) == 0, "name");
  need(listen(listener, 1024) == 0, "listen");
  std::array<int, 2> orders{};
  need(pipe2(orders.data(), O_CLOEXEC) == 0, "pipe");
  const pid_t server = fork();
  need(server >= 0, "fork");
  if (server == 0) {
    close(orders[1]);
    serve(listener, orders[0], count, bytes);
  }
  std::vector<int> connections;
  for (int i = 0; i < count; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    need(fd >= 0, "socket");
    need(connect(fd, reinterpret_cast<const sockaddr*>(&address), address_bytes) == 0, "connect");
    connections.push_back(fd);
  }
  warm(connections, true);
  for (;;) {
    need(write(orders[1], "x", 1) == 1, "an order");
    move(connections, true, bytes);
    std::printf("holding %d client %d server %d\n", count, getpid(), server);
    std::fflush(stdout);
    wait_for_a_line();
  }
}
