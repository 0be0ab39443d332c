#include "os/limits.h"

#include <dirent.h>
#include <sys/resource.h>

#include <algorithm>
#include <memory>

#include "os/host_checks.h"
#include "os/system_call.h"

namespace verbena::os {
namespace {

void raise_limit(int resource) {
  // Removes the limit if the kernel permits it.  Otherwise, raises the limit to the hard limit.
  // The kernel removes a hard limit only with CAP_SYS_RESOURCE.
  const rlimit unlimited{RLIM_INFINITY, RLIM_INFINITY};
  if (system_call(SYS_prlimit64, 0, resource, &unlimited, nullptr) == 0) return;
  rlimit limit{};
  if (system_call(SYS_prlimit64, 0, resource, nullptr, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  system_call(SYS_prlimit64, 0, resource, &limit, nullptr);
}

// Raises the limit of open files, which the kernel never removes.
void raise_open_files() {
  // This is the default of fs.nr_open, above which the kernel refuses each limit.
  constexpr rlim_t kMost = 1 << 20;
  rlimit limit{};
  if (system_call(SYS_prlimit64, 0, RLIMIT_NOFILE, nullptr, &limit) != 0) return;
  const rlimit most{kMost, kMost};
  if (limit.rlim_max < kMost && system_call(SYS_prlimit64, 0, RLIMIT_NOFILE, &most, nullptr) == 0) {
    return;
  }
  limit.rlim_cur = limit.rlim_max;
  system_call(SYS_prlimit64, 0, RLIMIT_NOFILE, &limit, nullptr);
}

std::uint64_t soft_limit(__rlimit_resource resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnlimited;
  return limit.rlim_cur;
}

struct DirectoryOfFilesCloser {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

}  // namespace

void set_daemon_limits() {
  raise_limit(RLIMIT_CPU);
  raise_limit(RLIMIT_FSIZE);
  raise_limit(RLIMIT_DATA);
  raise_limit(RLIMIT_AS);
  raise_limit(RLIMIT_MEMLOCK);
  raise_open_files();
  rlimit core{};
  if (system_call(SYS_prlimit64, 0, RLIMIT_CORE, nullptr, &core) != 0) return;
  core.rlim_cur = 0;
  system_call(SYS_prlimit64, 0, RLIMIT_CORE, &core, nullptr);
}

AgentLimits agent_limits() {
  return {.open_files = soft_limit(RLIMIT_NOFILE),
          .cpu_seconds = soft_limit(RLIMIT_CPU),
          .memory_bytes = std::min(soft_limit(RLIMIT_AS), soft_limit(RLIMIT_DATA))};
}

std::string find_low_limit(const AgentLimits& limits) {
  constexpr std::uint64_t kFilesMin = kAgentFiles + 2 * kAgentFilesPerProgram;
  constexpr std::uint64_t kCpuSecondsMin = 60;
  constexpr std::uint64_t kMemoryMin = std::uint64_t{64} << 20;
  const auto text = [](const char* what, std::uint64_t value, std::uint64_t least,
                       const char* option) {
    return std::string(what) + " is " + std::to_string(value) +
           ", as in the program that started the agent, and the agent needs " +
           std::to_string(least) + ": raise the hard limit (" + option +
           "), or run 'verbena agent start' where the limit is higher";
  };
  if (limits.open_files < kFilesMin) {
    return text("the limit of open files (RLIMIT_NOFILE)", limits.open_files, kFilesMin,
                "ulimit -n");
  }
  if (limits.cpu_seconds < kCpuSecondsMin) {
    return text("the limit of CPU seconds (RLIMIT_CPU)", limits.cpu_seconds, kCpuSecondsMin,
                "ulimit -t");
  }
  if (limits.memory_bytes < kMemoryMin) {
    return text("the limit of memory (RLIMIT_AS, RLIMIT_DATA) in bytes", limits.memory_bytes,
                kMemoryMin, "ulimit -v, ulimit -d");
  }
  return {};
}

std::uint64_t count_open_files(std::uint64_t if_unknown) {
  const std::unique_ptr<DIR, DirectoryOfFilesCloser> directory(::opendir("/proc/self/fd"));
  if (!directory) return if_unknown;
  std::uint64_t count = 0;
  while (const dirent* entry = ::readdir(directory.get())) {
    if (entry->d_name[0] != '.') ++count;
  }
  return count - std::min<std::uint64_t>(count, 1);  // without the directory itself
}

}  // namespace verbena::os
