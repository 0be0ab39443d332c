#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/error.h"
#include "os/fd.h"

// Creates and maps memory that two processes share.  It is a memfd whose size is sealed before it
// is passed on, so that neither process can make the other's loads raise SIGBUS.  The other process
// may change the contents at any moment: copy a value before you check and use it.
namespace verbena::os {

// Owns mapped pages.  A forked child does not inherit them (MADV_DONTFORK) and faults if it touches
// them; it calls abandon() instead.
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
  // Forgets the pages without unmapping them: for a forked child, which does not have them.
  void abandon() { address_ = nullptr; }

 private:
  friend Result<Mapping> map_private(std::size_t bytes);
  friend Result<Mapping> map_part(int fd, std::size_t bytes, bool writable);
  Mapping(std::byte* address, std::size_t bytes) : address_(address), bytes_(bytes) {}

  std::byte* address_ = nullptr;
  std::size_t bytes_ = 0;
};

struct SharedMemory {
  Fd fd;
  Mapping mapping;
};

// Tells who may write to shared memory.  Before Linux 5.1 everybody may write, whatever this says.
enum class Writers : bool { kEverybody, kCreator };

// Creates and maps zeroed memory, sealed (SHRINK, GROW, SEAL).  `name` shows in /proc/PID/maps.
// kSystem: with EFBIG if the process may not have a file of that size (RLIMIT_FSIZE).
Result<SharedMemory> create_shared_memory(const char* name, std::size_t bytes,
                                          Writers writers = Writers::kEverybody);

// Creates memory as create_shared_memory() does, but maps only the first `mapped_bytes` here, a
// multiple of the page size.
Result<SharedMemory> create_partly_mapped_memory(const char* name, std::size_t bytes,
                                                 std::size_t mapped_bytes);

// Returns how many bytes of a memfd occupy memory; 0 if the kernel does not tell.
std::size_t resident_bytes(const Fd& memory);

// Gives the pages in a part of a memfd back to the system.  The part reads as zeroes from then on,
// in all processes that map it.  `offset` and `bytes` are multiples of the page size.
Result<void> give_pages_back(const Fd& memory, std::size_t offset, std::size_t bytes);

// Maps zeroed memory of this process alone, for use when create_shared_memory() fails.
Result<Mapping> map_private(std::size_t bytes);

// Maps all of a descriptor that somebody sent.  kMalformed: the descriptor is not a memfd, its size
// is not sealed, or its size is not between bytes_min and bytes_max.
Result<Mapping> map_shared(int fd, std::size_t bytes_min, std::size_t bytes_max, bool writable);

// Maps the first `bytes` of a descriptor that this process has made.
Result<Mapping> map_part(int fd, std::size_t bytes, bool writable);

}  // namespace verbena::os
