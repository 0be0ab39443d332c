#include "preload/sandbox.h"

#include <linux/seccomp.h>
#include <stdarg.h>
#include <sys/prctl.h>

#include "preload/export.h"
#include "preload/leaving.h"
#include "preload/next.h"
#include "preload/service_link.h"
#include "preload/socket_table.h"

namespace verbena::preload::sandbox {
namespace {

void stop_using_rings() {
  SocketTable::for_each(0, kDescriptorsMax - 1, [](int fd, Socket& socket) {
    (void)leaving::use_only_tcp(fd, socket, stream::Reason::kOther);
  });
  service_link::disable();
}

}  // namespace

void before_seccomp(unsigned long operation, bool has_filter) {
  const bool installs = operation == SECCOMP_SET_MODE_FILTER && has_filter;
  if (installs || operation == SECCOMP_SET_MODE_STRICT) stop_using_rings();
}

void before_prctl(unsigned long mode, bool has_filter) {
  const bool installs = mode == SECCOMP_MODE_FILTER && has_filter;
  if (installs || mode == SECCOMP_MODE_STRICT) stop_using_rings();
}

}  // namespace verbena::preload::sandbox

VB_EXPORT int prctl(int option, ...) noexcept {
  va_list arguments;
  va_start(arguments, option);
  unsigned long a[4];
  for (unsigned long& argument : a) argument = va_arg(arguments, unsigned long);
  va_end(arguments);
  if (option == PR_SET_SECCOMP) verbena::preload::sandbox::before_prctl(a[0], a[1] != 0);
  return verbena::preload::next().prctl(option, a[0], a[1], a[2], a[3]);
}
