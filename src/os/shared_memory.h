#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/error.h"
#include "os/fd.h"

// Creates and maps memory that two processes share.  It is a memfd whose size is sealed before the
// other process gets it, so that neither process can make the other's loads raise SIGBUS.  The
// other process may change the contents at any moment: copy a value before you check and use it.
namespace verbena::os {

// Owns mapped pages.  A forked child does not inherit them (MADV_DONTFORK) and faults if it touches
// them, so the child calls abandon().
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
  // Gives up the pages without unmapping them.  A forked child calls this, because it does not have
  // the pages.
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

// Tells who may write to shared memory.  Before Linux 5.1, everybody may write in both cases.
enum class Writers : bool { kEverybody, kCreator };

// Creates and maps zeroed memory, sealed (SHRINK, GROW, SEAL).  `name` appears in /proc/PID/maps.
// Fails with kSystem; the errno is EFBIG if the size is above RLIMIT_FSIZE.
Result<SharedMemory> create_shared_memory(const char* name, std::size_t bytes,
                                          Writers writers = Writers::kEverybody);

// Creates memory as create_shared_memory() does, but maps only the first `mapped_bytes` here, a
// multiple of the page size.
Result<SharedMemory> create_partly_mapped_memory(const char* name, std::size_t bytes,
                                                 std::size_t mapped_bytes);

// Returns how many bytes of a memfd occupy memory, or 0 if this is unknown.
std::size_t resident_bytes(const Fd& memory);

// Returns the pages in a part of a memfd to the system.  From then on, the part reads as zeroes in
// all processes that map it.  `offset` and `bytes` are multiples of the page size.
Result<void> release_pages(const Fd& memory, std::size_t offset, std::size_t bytes);

// Maps zeroed memory that only this process has.  Use it if create_shared_memory() fails.
Result<Mapping> map_private(std::size_t bytes);

// Maps all of a memfd that another process has sent.  kMalformed: the descriptor is not a memfd,
// its size is not sealed, or its size is not between bytes_min and bytes_max.
Result<Mapping> map_shared(int fd, std::size_t bytes_min, std::size_t bytes_max, bool writable);

// Maps the first `bytes` of a memfd that this process has made.
Result<Mapping> map_part(int fd, std::size_t bytes, bool writable);

}  // namespace verbena::os
