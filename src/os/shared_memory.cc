#include "os/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "os/system_call.h"

namespace verbena::os {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr int kFutureWriteSeal = 0x10;  // F_SEAL_FUTURE_WRITE, Linux 5.1
constexpr unsigned kNoExecSeal = 0x8;   // MFD_NOEXEC_SEAL, Linux 6.3; some hosts require it

Result<Fd> create_memfd(const char* name) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  int fd = ::memfd_create(name, kFlags | kNoExecSeal);
  if (fd < 0 && errno == EINVAL) fd = ::memfd_create(name, kFlags);
  return take_fd(fd, "cannot make a memfd");
}

Result<SharedMemory> create(const char* name, std::size_t bytes, std::size_t mapped_bytes,
                            Writers writers) {
  // Checks the limit first: beyond it, ftruncate() would fail and also raise SIGXFSZ.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur) {
    return system_error(EFBIG, "the file size limit (ulimit -f) is too small for shared memory");
  }
  Fd fd = VB_TRY(create_memfd(name));
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return system_error(errno, "cannot set the size of a memfd");
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, kSizeSeals) != 0) {
    return system_error(errno, "cannot seal a memfd");
  }
  Mapping mapping = VB_TRY(map_part(fd.get(), mapped_bytes, true));
  // Kernels before Linux 5.1 refuse this seal (see Writers).  The creator's own mapping remains
  // writable.
  if (writers == Writers::kCreator) (void)::fcntl(fd.get(), F_ADD_SEALS, kFutureWriteSeal);
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SEAL) != 0) {
    return system_error(errno, "cannot seal a memfd");
  }
  return SharedMemory{.fd = std::move(fd), .mapping = std::move(mapping)};
}

}  // namespace

Mapping::~Mapping() {
  if (address_ != nullptr) ::munmap(address_, bytes_);
}

Result<SharedMemory> create_shared_memory(const char* name, std::size_t bytes, Writers writers) {
  return create(name, bytes, bytes, writers);
}

Result<SharedMemory> create_partly_mapped_memory(const char* name, std::size_t bytes,
                                                 std::size_t mapped_bytes) {
  return create(name, bytes, mapped_bytes, Writers::kEverybody);
}

std::size_t resident_bytes(const Fd& memory) {
  constexpr std::size_t kBlockBytes = 512;  // st_blocks counts such blocks on every file system
  struct stat status {};
  if (::fstat(memory.get(), &status) != 0) return 0;
  return static_cast<std::size_t>(status.st_blocks) * kBlockBytes;
}

Result<void> release_pages(const Fd& memory, std::size_t offset, std::size_t bytes) {
  if (::fallocate(memory.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
    return system_error(errno, "cannot release pages of a memfd");
  }
  return {};
}

Result<Mapping> map_private(std::size_t bytes) {
  void* address =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return system_error(errno, "cannot map memory");
  Mapping mapping(static_cast<std::byte*>(address), bytes);
  if (::madvise(address, bytes, MADV_DONTFORK) != 0) {
    return system_error(errno, "cannot exclude memory from forked children");
  }
  return mapping;
}

Result<Mapping> map_shared(int fd, std::size_t bytes_min, std::size_t bytes_max, bool writable) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) return fail(Errc::kMalformed, "shared memory is not a memfd");
  if ((seals & kSizeSeals) != kSizeSeals) {
    return fail(Errc::kMalformed, "shared memory is not sealed against changes of size");
  }
  struct stat status {};
  if (::fstat(fd, &status) != 0) return system_error(errno, "fstat of shared memory");
  const auto bytes = static_cast<std::size_t>(status.st_size);
  if (bytes == 0 || bytes < bytes_min || bytes > bytes_max) {
    return fail(Errc::kMalformed, "shared memory has a wrong size");
  }
  return map_part(fd, bytes, writable);
}

Result<Mapping> map_part(int fd, std::size_t bytes, bool writable) {
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* address = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return system_error(errno, "cannot map shared memory");
  Mapping mapping(static_cast<std::byte*>(address), bytes);
  if (::madvise(address, bytes, MADV_DONTFORK) != 0) {
    return system_error(errno, "cannot exclude shared memory from forked children");
  }
  return mapping;
}

}  // namespace verbena::os
