#include "preload/own_descriptors.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>

#include "os/system_call.h"
#include "preload/epolls.h"
#include "preload/service_link.h"

namespace verbena::preload::own_descriptors {

int move_away(int fd) {
  constexpr rlim_t kHighDescriptor = 1000;
  if (fd < 0) return fd;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const rlim_t from = std::min<rlim_t>(kHighDescriptor, limit.rlim_cur - limit.rlim_cur / 8);
  const long copy = os::system_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, from);
  if (copy < 0) return fd;
  os::system_call(SYS_close, fd);
  return static_cast<int>(copy);
}

bool contains(int fd) { return service_link::owns(fd) || epolls::owns(fd); }

}  // namespace verbena::preload::own_descriptors
