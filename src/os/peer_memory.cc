#include "os/peer_memory.h"

#include <sys/mman.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "os/fd.h"

namespace verbena::os {
namespace {

// The kernel rounds the length of a mapping up to its page size, which is at most 64 KiB, and takes
// only addresses that are multiples of that size.
constexpr std::size_t kMarkBytes = 4096;
constexpr std::uint64_t kAlignment = 64 << 10;
// Marks lie between these addresses.  Programs, libraries, stacks and heaps of 64-bit processes lie
// below or above.  ThreadSanitizer needs another range, because it uses the ordinary range for its
// own memory and ends programs that map anything there.
#ifdef __SANITIZE_THREAD__
constexpr std::uint64_t kMarksBegin = 0x7e90'0000'0000, kMarksEnd = 0x7ee0'0000'0000;
#else
constexpr std::uint64_t kMarksBegin = std::uint64_t{1} << 44, kMarksEnd = std::uint64_t{1} << 46;
#endif
constexpr int kAttemptsMax = 8;

void* pointer(std::uint64_t address) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the address belongs to another process
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

// Collects the elements of one system call.  The first element is the mark.
template <std::size_t kMax>
class Elements {
 public:
  void add(void* address, std::size_t bytes) { all_[count_++] = {address, bytes}; }
  const iovec* data() const { return all_.data(); }
  std::size_t size() const { return count_; }

 private:
  std::array<iovec, kMax> all_{};
  std::size_t count_ = 0;
};

using LocalElements = Elements<link::PeerMemory::kPartsMax + 1>;
using RemoteElements = Elements<3>;

std::size_t add_all(LocalElements& elements, std::span<const std::span<std::byte>> parts) {
  std::size_t bytes = 0;
  for (const std::span<std::byte> part : parts) {
    elements.add(part.data(), part.size());
    bytes += part.size();
  }
  return bytes;
}

bool copied_all(ssize_t result, std::size_t bytes) {
  return result >= 0 && static_cast<std::size_t>(result) == bytes;
}

}  // namespace

MemoryMark::~MemoryMark() {
  if (place_.address != 0) ::munmap(pointer(place_.address), kMarkBytes);
}

Result<MemoryMark> MemoryMark::create(Random& random) {
  for (int i = 0; i < kAttemptsMax; ++i) {
    const std::uint64_t offset = random.next() % (kMarksEnd - kMarksBegin);
    const std::uint64_t address = kMarksBegin + offset / kAlignment * kAlignment;
    // Kernels before Linux 4.17 take the address as a hint, so the result must be compared.
    void* const page = ::mmap(pointer(address), kMarkBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (page == MAP_FAILED) continue;
    MemoryMark mark;
    mark.place_ = {reinterpret_cast<std::uintptr_t>(page), random.next()};
    if (page != pointer(address)) continue;  // the destructor of `mark` unmaps the page
    if (::madvise(page, kMarkBytes, MADV_DONTFORK) != 0) {
      return system_error(errno, "cannot exclude memory from forked children");
    }
    std::memcpy(page, &mark.place_.value, sizeof mark.place_.value);
    return mark;
  }
  return system_error(ENOMEM, "cannot map a page at a random address");
}

Result<std::unique_ptr<ProcessMemory>> ProcessMemory::open(pid_t pid, const MemoryMarkPlace& mark,
                                                           Mapping table) {
  const auto attached = VB_TRY(link::AccessTable::attach(table.bytes()));
  std::unique_ptr<ProcessMemory> memory(new ProcessMemory(pid, mark, std::move(table), attached));
  if (pid <= 0 || mark.address == 0 || !memory->exists()) {
    return fail(Errc::kPermission, "the memory of the other process is not accessible");
  }
  return memory;
}

// Writes the last 8 bytes as a separate element, or only the last byte if there are fewer than 8
// bytes or their end is not aligned.
// The kernel copies the elements in order, so a program that polls the end of the message sees it
// change after all other bytes.
bool ProcessMemory::write(std::uint64_t address, std::span<const std::span<std::byte>> from) {
  std::uint64_t value = mark_.value;
  LocalElements local;
  local.add(&value, sizeof value);
  const std::size_t bytes = add_all(local, from);
  const std::uint64_t end = address + bytes;
  const std::size_t tail = bytes < 8 || end % 8 != 0 ? 1 : 8;
  RemoteElements remote;
  remote.add(pointer(mark_.address), sizeof value);
  if (bytes > tail) remote.add(pointer(address), bytes - tail);
  remote.add(pointer(end - tail), tail);
  return copied_all(
      ::process_vm_writev(pid_, local.data(), local.size(), remote.data(), remote.size(), 0),
      sizeof value + bytes);
}

bool ProcessMemory::read(std::uint64_t address, std::span<const std::span<std::byte>> to) {
  std::uint64_t value = 0;
  LocalElements local;
  local.add(&value, sizeof value);
  const std::size_t bytes = add_all(local, to);
  RemoteElements remote;
  remote.add(pointer(mark_.address), sizeof value);
  if (bytes != 0) remote.add(pointer(address), bytes);
  const ssize_t result =
      ::process_vm_readv(pid_, local.data(), local.size(), remote.data(), remote.size(), 0);
  return copied_all(result, sizeof value + bytes) && value == mark_.value;
}

}  // namespace verbena::os
