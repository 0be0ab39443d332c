#include "os/limits.h"

#include <sys/resource.h>

#include "os/system_call.h"

namespace verbena::os {
namespace {

void raise_limit(int resource) {
  // Removes the limit if the kernel permits it.  Otherwise, raises the limit to the hard limit.
  // The kernel never removes the limit of open files, and removes other hard limits only with
  // CAP_SYS_RESOURCE.
  const rlimit unlimited{RLIM_INFINITY, RLIM_INFINITY};
  if (system_call(SYS_prlimit64, 0, resource, &unlimited, nullptr) == 0) return;
  rlimit limit{};
  if (system_call(SYS_prlimit64, 0, resource, nullptr, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  system_call(SYS_prlimit64, 0, resource, &limit, nullptr);
}

}  // namespace

void set_daemon_limits() {
  raise_limit(RLIMIT_CPU);
  raise_limit(RLIMIT_FSIZE);
  raise_limit(RLIMIT_DATA);
  raise_limit(RLIMIT_AS);
  raise_limit(RLIMIT_MEMLOCK);
  raise_limit(RLIMIT_NOFILE);
  rlimit core{};
  if (system_call(SYS_prlimit64, 0, RLIMIT_CORE, nullptr, &core) != 0) return;
  core.rlim_cur = 0;
  system_call(SYS_prlimit64, 0, RLIMIT_CORE, &core, nullptr);
}

}  // namespace verbena::os
