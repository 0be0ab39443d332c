#pragma once

#include <asio/io_context.hpp>
#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "agent/watch.h"
#include "base/error.h"
#include "ipc/counters.h"
#include "os/fd.h"

// Files in which programs under `verbena run --sysfs` read the port's counters, as they would read
// them in /sys/class/infiniband of a machine with an adapter.
namespace verbena::agent {

// Sums by name.
using CounterSums = std::map<std::string, std::uint64_t, std::less<>>;

// The counters of a port under the names that Linux has for them: "counters/..." as InfiniBand
// adapters have them (vol1 16.1.3.5; data in words of 4 bytes), "hw_counters/..." as soft-RoCE has
// them.  `programs` are the sums over all programs, `agent` what the agent itself counts.
std::vector<ipc::NamedCount> port_counters(const CounterSums& programs, const CounterSums& agent,
                                           std::uint64_t times_down);

// The directories in which those files are, each in memory that one `run --sysfs` has mounted.  A
// directory is written to until the process that it was made for has ended.  One thread.
class PortFiles {
 public:
  static constexpr std::size_t kDirectoriesMax = 256;
  // How often refresh() is to be called while programs run.
  static constexpr Duration kRefreshEvery = std::chrono::milliseconds(100);
  // How old a value may be: programs show their counters to the agent as often.
  static constexpr Duration kLifespan = 2 * kRefreshEvery;

  explicit PortFiles(asio::io_context& loop) : loop_(loop) {}

  // `port` is an open directory in memory (tmpfs), `process` a pidfd.  The files are there with
  // these values when it returns.  kInvalidArgument, kNoResources, kSystem.
  Result<void> add(const os::Fd& port, os::Fd process, const std::vector<ipc::NamedCount>& values);
  // Writes what has changed.  A file that can no longer be written to keeps its value.
  void refresh(const std::vector<ipc::NamedCount>& values);

  bool empty() const { return directories_.empty(); }
  std::size_t size() const { return directories_.size(); }

 private:
  struct Directory {
    os::Fd process{};
    Watch death{};
    os::Fd counters{}, hw_counters{};
    std::map<std::string, std::uint64_t, std::less<>> written{};
  };

  asio::io_context& loop_;
  std::list<Directory> directories_{};
};

}  // namespace verbena::agent
