#include "os/unix_peer.h"

#include <fcntl.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "os/directory.h"
#include "os/fd.h"
#include "os/netlink.h"
#include "os/system_call.h"

namespace verbena::os {
namespace {

// Calls visit(name) for each entry of the directory that begins with a digit, until visit() returns
// false.
template <class Visit>
void for_each_number(const std::string& path, Visit visit) {
  const Directory directory(::opendir(path.c_str()));
  while (const dirent* entry = directory ? ::readdir(directory.get()) : nullptr) {
    if (std::isdigit(static_cast<unsigned char>(entry->d_name[0])) == 0) continue;
    if (!visit(std::string(entry->d_name))) return;
  }
}

bool has_descriptor(const std::string& process, const std::string& socket) {
  const std::string descriptors = process + "/fd";
  bool is_found = false;
  for_each_number(descriptors, [&](const std::string& name) {
    std::array<char, 64> target;
    const ssize_t bytes =
        ::readlink((descriptors + '/' + name).c_str(), target.data(), target.size());
    is_found =
        bytes > 0 && std::string_view(target.data(), static_cast<std::size_t>(bytes)) == socket;
    return !is_found;
  });
  return is_found;
}

bool maps_file(const std::string& process, std::string_view path) {
  const Fd maps(static_cast<int>(
      system_call(SYS_openat, AT_FDCWD, (process + "/maps").c_str(), O_RDONLY | O_CLOEXEC)));
  if (!maps) return false;
  std::string text;
  std::array<char, 4096> chunk;
  for (;;) {
    const long bytes = repeat_call(SYS_read, maps.get(), chunk.data(), chunk.size());
    if (bytes <= 0) return false;
    text.append(chunk.data(), static_cast<std::size_t>(bytes));
    if (text.find(path) != std::string::npos) return true;
    // The path may begin in this chunk and end in the next one.
    if (text.size() > path.size()) text.erase(0, text.size() - path.size());
  }
}

}  // namespace

std::uint64_t unix_peer_inode(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return 0;
  auto netlink = Netlink::open(0, NETLINK_SOCK_DIAG);
  if (!netlink) return 0;
  NetlinkRequest<unix_diag_req> request(SOCK_DIAG_BY_FAMILY, 0);
  unix_diag_req& query = request.fixed();
  query.sdiag_family = AF_UNIX;
  query.udiag_states = ~0U;
  query.udiag_ino = static_cast<std::uint32_t>(status.st_ino);
  query.udiag_show = UDIAG_SHOW_PEER;
  constexpr std::uint32_t kAnyCookie = ~0U;
  query.udiag_cookie[0] = query.udiag_cookie[1] = kAnyCookie;
  const auto answer = netlink->call(request.header());
  if (!answer || answer->empty()) return 0;
  return value_of<std::uint32_t>(answer->front().attribute<unix_diag_msg>(UNIX_DIAG_PEER));
}

bool all_owners_have_library(std::uint64_t inode, std::string_view library) {
  if (inode == 0) return false;
  const std::string socket = "socket:[" + std::to_string(inode) + ']';
  std::optional<bool> all_have_it;
  for_each_number("/proc", [&](const std::string& name) {
    const std::string process = "/proc/" + name;
    if (has_descriptor(process, socket)) all_have_it = maps_file(process, library);
    return all_have_it.value_or(true);
  });
  return all_have_it.value_or(false);
}

}  // namespace verbena::os
