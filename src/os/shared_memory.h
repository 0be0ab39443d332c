#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/error.h"
#include "os/fd.h"

// Memory that two processes map.  It is a memfd sealed against changes of size before it is passed
// on, so that nobody can make the other's loads end in SIGBUS.  What is in it is still the other's
// to change at any moment: copy, check, use.
namespace verbena::os {

// Mapped pages with an owner.  Not inherited by fork (MADV_DONTFORK): a child that touches them
// faults, so mark its objects foreign first.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();

  explicit operator bool() const { return address_ != nullptr; }
  std::span<std::byte> bytes() const { return {address_, bytes_}; }
  // Lets go without unmapping: in a forked child, where the pages are not there.
  void abandon() { address_ = nullptr; }

 private:
  friend Result<Mapping> map_private(std::size_t bytes);
  friend Result<Mapping> map_shared(int fd, std::size_t bytes_min, std::size_t bytes_max,
                                    bool writable);
  Mapping(std::byte* address, std::size_t bytes) : address_(address), bytes_(bytes) {}

  std::byte* address_ = nullptr;
  std::size_t bytes_ = 0;
};

struct SharedMemory {
  Fd fd;
  Mapping mapping;
};

// Zeroed memory, mapped and sealed (SHRINK, GROW, SEAL).  `name` shows in /proc/PID/maps.  kSystem,
// with EFBIG where the process may have no file of that size (RLIMIT_FSIZE).
Result<SharedMemory> create_shared_memory(const char* name, std::size_t bytes);

// Zeroed memory of this process alone, in the place of shared memory that cannot be had.
Result<Mapping> map_private(std::size_t bytes);

// Maps the whole of a descriptor that somebody sent.  kMalformed: no memfd, not sealed against
// shrinking and growing, or not of bytes_min to bytes_max.
Result<Mapping> map_shared(int fd, std::size_t bytes_min, std::size_t bytes_max, bool writable);

}  // namespace verbena::os
