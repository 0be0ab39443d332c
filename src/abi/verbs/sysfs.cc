#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "abi/abi.h"
#include "verbena/c_api.h"

// Reads sysfs files by name.  The kernel has no directory for a device of Verbena, so this file
// makes up the contents of a few files, such as board_id, which ibv_devinfo prints.  Programs skip
// the other files, because they cannot be read.

using namespace verbena::abi;

extern "C" {
const char* ibv_get_sysfs_path(void);
int ibv_read_sysfs_file(const char* dir, const char* file, char* buf, size_t size);
int ibv_read_ibdev_sysfs_file(char* buf, size_t size, void* sysfs_dev, const char* format, ...);
}

namespace {

// Returns the length of the text in `buf` without the newline, or -1 with errno.
int read_file(const char* path, char* buf, size_t size) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  const ssize_t bytes = read(fd, buf, size);
  const int error = errno;
  close(fd);
  if (bytes < 0) return failed(error);
  auto length = static_cast<size_t>(bytes);
  if (length > 0 && buf[length - 1] == '\n') --length;
  if (length < size) buf[length] = '\0';
  return static_cast<int>(length);
}

// Copies a text, cut to the size of the buffer.  Returns the length of the text, at most `size`.
int copy_contents(const char* text, char* buf, size_t size) {
  const int length = std::snprintf(buf, size, "%s", text);
  return length < static_cast<int>(size) ? length : static_cast<int>(size);
}

// Reads a file in the directory of a device of Verbena.  Returns the length of the text, or -1 with
// errno if the device has no such file.  Returns 0 if `dir` is another directory.
int read_device_file(std::string_view dir, std::string_view file, char* buf, size_t size) {
  constexpr std::string_view kClass = "/sys/class/infiniband/";
  if (!dir.starts_with(kClass)) return 0;
  vb_device_attr attr{};
  for (std::uint32_t device = 0;; ++device) {
    if (vb_device_query(device, &attr) != 0) return 0;
    if (dir.substr(kClass.size()) == attr.name) break;
  }
  if (file == "board_id" || file == "hca_type") return copy_contents(attr.name, buf, size);
  if (file == "fw_ver") return copy_contents(attr.fw_ver, buf, size);
  if (file == "node_type") return copy_contents("1: CA", buf, size);
  return failed(ENOENT);
}

}  // namespace

VB_EXPORT const char* ibv_get_sysfs_path() {
  const char* path = ::secure_getenv("SYSFS_PATH");
  return path != nullptr ? path : "/sys";
}

VB_EXPORT int ibv_read_sysfs_file(const char* dir, const char* file, char* buf, size_t size) {
  if (const int length = read_device_file(dir, file, buf, size)) return length;
  char path[512];
  const int length = std::snprintf(path, sizeof path, "%s/%s", dir, file);
  if (length >= static_cast<int>(sizeof path)) return failed(ENAMETOOLONG);
  return read_file(path, buf, size);
}

// Provider libraries call this function for their devices, which have a sysfs directory.  A device
// of Verbena has none.
VB_EXPORT int ibv_read_ibdev_sysfs_file(char*, size_t, void*, const char*, ...) {
  return failed(EOPNOTSUPP);
}
