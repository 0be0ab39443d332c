#include "os/fork_mark.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <new>

#include "os/fd.h"

namespace verbena::os {
namespace {

constexpr std::size_t kBytes = 4096;  // the kernel rounds this up to a page

}  // namespace

Result<ForkMark> ForkMark::create() {
  void* page = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return system_error(errno, "cannot map a page");
  ForkMark mark(new (page) std::atomic<int>(1));
  if (::madvise(page, kBytes, MADV_WIPEONFORK) != 0) {
    return system_error(errno, "cannot mark a page (MADV_WIPEONFORK)");
  }
  return mark;
}

ForkMark::~ForkMark() {
  if (mark_ != nullptr) ::munmap(static_cast<void*>(mark_), kBytes);
}

}  // namespace verbena::os
