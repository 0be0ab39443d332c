// Implements udp_port_holder() of os/roce_port.h.  /proc/net/udp has the inode and user of each
// socket.  The links in /proc/PID/fd have the inodes of the sockets of a process, if this process
// may read them.
#include <arpa/inet.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/printable.h"
#include "os/directory.h"
#include "os/process.h"
#include "os/roce_port.h"
#include "wire/ip.h"

namespace verbena::os {
namespace {

struct Socket {
  unsigned uid = 0;
  unsigned long inode = 0;
  Gid address{};
};

struct FileCloser {
  void operator()(FILE* file) const { std::fclose(file); }
};

// Parses an address as the kernel prints it: 32-bit words in hexadecimal, each in host order.
Gid parse_proc_address(std::string_view hex) {
  Gid gid{};
  const std::size_t words = hex.size() / 8;
  for (std::size_t i = 0; i < words && i < 4; ++i) {
    std::uint32_t word = 0;
    std::from_chars(hex.data() + 8 * i, hex.data() + 8 * i + 8, word, 16);
    std::memcpy(gid.bytes.data() + 4 * i, &word, sizeof(word));
  }
  if (words != 1) return gid;
  std::uint32_t ipv4 = 0;
  std::memcpy(&ipv4, gid.bytes.data(), sizeof(ipv4));
  return wire::ipv4_gid(ntohl(ipv4));
}

std::optional<Socket> find_socket(const char* path, std::uint16_t port) {
  const std::unique_ptr<FILE, FileCloser> table(std::fopen(path, "re"));
  if (!table) return std::nullopt;
  char line[512];
  while (std::fgets(line, sizeof(line), table.get()) != nullptr) {
    // A line is: sl local:port remote:port state tx:rx timer:when retransmits uid timeout inode
    char address[33] = {};
    unsigned local_port = 0;
    Socket socket;
    if (std::sscanf(line, " %*[^:]: %32[0-9A-Fa-f]:%x %*s %*s %*s %*s %*s %u %*s %lu", address,
                    &local_port, &socket.uid, &socket.inode) == 4 &&
        local_port == port) {
      socket.address = parse_proc_address(address);
      return socket;
    }
  }
  return std::nullopt;
}

enum class Search : std::uint8_t { kFound, kNotFound, kNotPermitted };

Search search_process(const char* pid, const std::string& socket_name) {
  const std::string directory = std::string("/proc/") + pid + "/fd";
  const Directory fds(::opendir(directory.c_str()));
  if (!fds) return Search::kNotPermitted;
  bool may_read = true;
  while (const dirent* entry = ::readdir(fds.get())) {
    char target[64];
    const std::string link = directory + "/" + entry->d_name;
    const ssize_t n = ::readlink(link.c_str(), target, sizeof(target));
    if (n > 0 && std::string_view(target, static_cast<std::size_t>(n)) == socket_name) {
      return Search::kFound;
    }
    if (n < 0 && errno == EACCES) may_read = false;
  }
  return may_read ? Search::kNotFound : Search::kNotPermitted;
}

}  // namespace

PortHolder udp_port_holder(std::uint16_t port) {
  // Uses thread-self, because this thread's network namespace may differ from the main thread's.
  auto socket = find_socket("/proc/thread-self/net/udp", port);
  if (!socket) socket = find_socket("/proc/thread-self/net/udp6", port);
  if (!socket) return {.text = "no process"};

  PortHolder holder{.is_bound = true,
                    .is_of_this_user = socket->uid == ::geteuid(),
                    .address = socket->address,
                    .uid = socket->uid};
  const std::string name = "socket:[" + std::to_string(socket->inode) + "]";
  bool has_searched_all = true;
  const Directory processes(::opendir("/proc"));
  while (const dirent* entry = processes ? ::readdir(processes.get()) : nullptr) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
    switch (search_process(entry->d_name, name)) {
      case Search::kFound:
        holder.pid = static_cast<pid_t>(std::atol(entry->d_name));
        holder.program = process_name(holder.pid);
        holder.is_stopped = process_is_stopped(holder.pid);
        holder.text =
            std::string("pid ") + entry->d_name + " (" + printable_name(holder.program) + ")";
        if (holder.is_stopped) holder.text += ", which is stopped";
        return holder;
      case Search::kNotFound: break;
      case Search::kNotPermitted: has_searched_all = false; break;
    }
  }
  // The kernel's own sockets belong to uid 0 and to no process.
  if (socket->uid != 0) {
    holder.text = "a process of uid " + std::to_string(socket->uid);
  } else {
    holder.text = has_searched_all ? "the kernel (maybe rdma_rxe)"
                                   : "a process of uid 0, or the kernel (maybe rdma_rxe)";
  }
  return holder;
}

}  // namespace verbena::os
