#pragma once

#include <asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "agent/program_counters.h"
#include "agent/watch.h"
#include "base/error.h"
#include "ipc/counters.h"
#include "os/fd.h"
#include "os/unix_channel.h"

// Writes the files in which programs under `verbena run --sysfs` read the port's counters.  On a
// machine with an adapter, they would read them in /sys/class/infiniband.
namespace verbena::agent {

// Returns the port's counters under Linux's names: "counters/..." as for InfiniBand adapters (vol1
// 16.1.3.5; data in words of 4 bytes) and "hw_counters/..." as for soft-RoCE.  `programs` are the
// sums over all programs; `agent` are the agent's own counters.
std::vector<ipc::NamedCount> port_counters(const CounterSums& programs, const CounterSums& agent,
                                           std::uint64_t times_down);

// Owns the directories with the files of these counters.  Each directory belongs to one process and
// is in a tmpfs that `verbena run --sysfs` has mounted for it.  The files are updated until the
// process has ended.
// Only one thread may use it.
class PortFiles {
 public:
  static constexpr std::size_t kDirectoriesMax = 256;
  // Call refresh() at this interval while programs run.
  static constexpr Duration kRefreshInterval = std::chrono::milliseconds(100);
  // Limits the age of a value.  Programs update their tables for the agent at the same interval as
  // the agent updates the files.
  static constexpr Duration kLifespan = 2 * kRefreshInterval;

  // Calls `on_removal` after a directory was removed because its process has ended.
  PortFiles(asio::io_context& loop, std::move_only_function<void()> on_removal)
      : loop_(loop), on_removal_(std::move(on_removal)) {}

  // Adds a directory and writes the files with these values.  All files are written with the rights
  // of `user`.  `port` is an open directory in memory (tmpfs); `process` is a pidfd.
  // kInvalidArgument: the directory or the process is not usable.  kNoResources: there are
  // kDirectoriesMax directories.  kPermission, kSystem: the files cannot be written.
  Result<void> add(const os::Fd& port, os::Fd process, const os::Peer& user,
                   const std::vector<ipc::NamedCount>& values);
  // Writes the values that have changed.  Ignores errors: a file that has become unwritable keeps
  // its value.
  void refresh(const std::vector<ipc::NamedCount>& values);

  bool empty() const { return directories_.empty(); }
  std::size_t size() const { return directories_.size(); }

 private:
  struct Directory {
    os::Fd process{};
    os::Peer user{};
    Watch death{};
    os::Fd counters{}, hw_counters{};
    std::map<std::string, std::uint64_t, std::less<>> last_values{};
  };

  void remove(std::list<Directory>::iterator directory);

  asio::io_context& loop_;
  std::move_only_function<void()> on_removal_;
  std::list<Directory> directories_{};
};

}  // namespace verbena::agent
