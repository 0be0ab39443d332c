#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "link/peer_memory.h"
#include "os/shared_memory.h"

// Lets two processes of one user copy to and from each other's memory (process_vm_readv(2)).
//
// The system call identifies the other process only by its pid.  At the time of the call, the pid
// may belong to another process, or the process may run another program after an exec.  So each
// process has a mark: a page at a random address that no ordinary mapping has.  The first element
// of each call is the mark.  The kernel copies the elements in order, so it stops at once if the
// page does not exist.  The page does not exist after an exec, or in a forked child.
namespace verbena::os {

// Describes the mark of a process to other processes.
struct MemoryMarkPlace {
  std::uint64_t address = 0;  // 0: no mark
  std::uint64_t value = 0;    // the first 8 bytes of the page
};

class MemoryMark {
 public:
  MemoryMark() = default;  // has no page
  MemoryMark(MemoryMark&& other) noexcept : place_(std::exchange(other.place_, {})) {}
  MemoryMark& operator=(MemoryMark&& other) noexcept {
    std::swap(place_, other.place_);
    return *this;
  }
  ~MemoryMark();

  // Maps the page of this process.  kSystem: the kernel or a tool like valgrind does not allow such
  // addresses.
  static Result<MemoryMark> create(Random& random);

  const MemoryMarkPlace& place() const { return place_; }
  // Gives up the page without unmapping it.  A forked child calls this, because it does not have
  // the page.
  void abandon() { place_ = {}; }

 private:
  MemoryMarkPlace place_{};
};

// Accesses the memory of another process of this user.
class ProcessMemory final : public link::PeerMemory {
 public:
  // `table` is the access table that the process publishes.  kMalformed: the table has the wrong
  // size.  kPermission: this process may not access the other process, or the other process does
  // not have the mark.
  static Result<std::unique_ptr<ProcessMemory>> open(pid_t pid, const MemoryMarkPlace& mark,
                                                     Mapping table);

  bool write(std::uint64_t address, std::span<const std::span<std::byte>> from) override;
  bool read(std::uint64_t address, std::span<const std::span<std::byte>> to) override;
  bool exists() override { return read(0, {}); }
  // Gives up the table's memory without unmapping it.  A forked child calls this.
  void abandon() { memory_.abandon(); }

 private:
  ProcessMemory(pid_t pid, const MemoryMarkPlace& mark, Mapping memory,
                const link::AccessTable& table)
      : PeerMemory(table), memory_(std::move(memory)), pid_(pid), mark_(mark) {}

  Mapping memory_;  // the memory of the access table
  const pid_t pid_;
  const MemoryMarkPlace mark_;
};

}  // namespace verbena::os
