#include "os/private_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>
#include <string_view>

#include "os/fd.h"

namespace verbena::os {
namespace {

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

std::unexpected<Error> failed(const char* what) {
  return fail(Errc::kSystem, what, static_cast<std::uint16_t>(errno));
}

bool write_file(const char* path, const std::string& text) {
  const Fd file(::open(path, O_WRONLY | O_CLOEXEC));
  return file && ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// Maps the user and group ids to the same numbers, so that the program's identity does not change.
bool map_ids_to_themselves(uid_t uid, gid_t gid) {
  const auto identity_map = [](unsigned id) {
    return std::to_string(id) + " " + std::to_string(id) + " 1";
  };
  return write_file("/proc/self/setgroups", "deny") &&
         write_file("/proc/self/uid_map", identity_map(uid)) &&
         write_file("/proc/self/gid_map", identity_map(gid));
}

Result<void> bind_mount(const std::string& from, const std::string& to) {
  if (::mount(from.c_str(), to.c_str(), nullptr, MS_BIND | MS_REC, nullptr) != 0) {
    return failed("cannot bind-mount a file or directory of the host");
  }
  return {};
}

Result<void> make_file(const std::string& path) {
  const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file) return failed("cannot make a file in memory");
  return {};
}

// Makes the entry `name` of `host_directory` visible in the new `directory`.
Result<void> add_host_entry(const Fd& host_directory, const char* name,
                            const std::string& directory) {
  const std::string from = "/proc/self/fd/" + std::to_string(host_directory.get()) + "/" + name;
  const std::string to = directory + "/" + name;
  struct stat status {};
  if (::fstatat(host_directory.get(), name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
    return {};  // the entry was just removed
  }
  if (S_ISLNK(status.st_mode)) {
    char target[PATH_MAX];
    const ssize_t bytes = ::readlinkat(host_directory.get(), name, target, sizeof target - 1);
    if (bytes < 0) return {};
    target[bytes] = '\0';
    if (::symlink(target, to.c_str()) != 0) return failed("cannot make a link in memory");
    return {};
  }
  if (!S_ISDIR(status.st_mode)) {
    VB_TRY_VOID(make_file(to));
  } else if (::mkdir(to.c_str(), 0755) != 0) {
    return failed("cannot make a directory in memory");
  }
  return bind_mount(from, to);
}

}  // namespace

Result<void> enter_private_mounts() {
  const uid_t uid = ::getuid();
  const gid_t gid = ::getgid();
  if (::unshare(CLONE_NEWNS) != 0) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
      return fail(Errc::kNotSupported, "the kernel refuses a mount namespace",
                  static_cast<std::uint16_t>(errno));
    }
    if (!map_ids_to_themselves(uid, gid))
      return failed("cannot keep user and group in a namespace");
  }
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0) {
    return failed("cannot make mounts private");
  }
  return {};
}

Result<void> mount_private_directory(const std::string& directory) {
  const Fd host_directory(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!host_directory) return failed("cannot read a directory of the host");
  Fd list_fd = VB_TRY(host_directory.duplicate());
  const std::unique_ptr<DIR, CloseDirectory> entries(::fdopendir(list_fd.get()));
  if (entries == nullptr) return failed("cannot read a directory of the host");
  (void)list_fd.release();
  if (::mount("verbena", directory.c_str(), "tmpfs", MS_NOSUID, "mode=755,size=4m") != 0) {
    return failed("cannot mount a directory in memory");
  }
  while (const dirent* entry = ::readdir(entries.get())) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    VB_TRY_VOID(add_host_entry(host_directory, entry->d_name, directory));
  }
  return {};
}

Result<void> add_private_alias(const std::string& file, const std::string& target) {
  VB_TRY_VOID(make_file(file));
  return bind_mount(target, file);
}

}  // namespace verbena::os
