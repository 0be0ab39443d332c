// Implements memory_is_mapped() and populate_pages() of os/process.h.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>

#include "os/process.h"
#include "os/system_call.h"

namespace verbena::os {
namespace {

// Tells whether a range of addresses is mapped with the required protection.
enum class Answer : std::uint8_t { kYes, kNo, kUnknown };

struct Range {
  std::uint64_t first;
  std::uint64_t end;  // the address after the last byte
  bool writable;      // true: it must be writable; false: it must be readable
};

// This is struct procmap_query of <linux/fs.h> (Linux 6.11), which older headers lack.
struct ProcmapQuery {
  std::uint64_t size = 0;
  std::uint64_t query_flags = 0;
  std::uint64_t query_addr = 0;
  std::uint64_t vma_start = 0;
  std::uint64_t vma_end = 0;
  std::uint64_t vma_flags = 0;
  std::uint64_t vma_page_size = 0;
  std::uint64_t vma_offset = 0;
  std::uint64_t inode = 0;
  std::uint32_t dev_major = 0;
  std::uint32_t dev_minor = 0;
  std::uint32_t vma_name_size = 0;
  std::uint32_t build_id_size = 0;
  std::uint64_t vma_name_addr = 0;
  std::uint64_t build_id_addr = 0;
};
constexpr unsigned long kProcmapQuery = _IOWR('f', 17, ProcmapQuery);
constexpr std::uint64_t kReadable = 1;
constexpr std::uint64_t kWritable = 2;

Answer query_mappings(int maps, const Range& range) {
  std::uint64_t at = range.first;
  while (at < range.end) {
    ProcmapQuery query{.size = sizeof(ProcmapQuery), .query_addr = at};
    if (::ioctl(maps, kProcmapQuery, &query) != 0) {
      return errno == ENOENT ? Answer::kNo : Answer::kUnknown;
    }
    if (range.writable ? (query.vma_flags & kWritable) == 0 : (query.vma_flags & kReadable) == 0) {
      return Answer::kNo;
    }
    at = query.vma_end;
  }
  return Answer::kYes;
}

// Checks the range against the mappings, which are sorted by address.
class MapsReader {
 public:
  explicit MapsReader(const Range& range) : range_(range), at_(range.first) {}

  // Parses a line such as "55d0c0a00000-55d0c0a21000 rw-p ...".  Returns kUnknown if the answer
  // depends on the next line.
  Answer read_line(std::string_view text) {
    std::uint64_t first = 0;
    std::uint64_t end = 0;
    const char* begin = text.data();
    const char* text_end = begin + text.size();
    const auto dash = std::from_chars(begin, text_end, first, 16);
    if (dash.ptr == text_end) return Answer::kUnknown;
    const auto blank = std::from_chars(dash.ptr + 1, text_end, end, 16);
    if (text_end - blank.ptr < 3 || end <= at_) return Answer::kUnknown;
    if (first > at_) return Answer::kNo;
    if (range_.writable ? blank.ptr[2] != 'w' : blank.ptr[1] != 'r') return Answer::kNo;
    at_ = end;
    return at_ >= range_.end ? Answer::kYes : Answer::kUnknown;
  }

 private:
  Range range_;
  std::uint64_t at_;
};

Answer read_maps(int maps, const Range& range) {
  MapsReader reader(range);
  std::array<char, 16384> text;
  std::size_t bytes_in_text = 0;
  bool is_rest_of_line = false;  // `text` begins with the rest of a line that is longer than it
  for (;;) {
    const auto n = read_some(maps, std::as_writable_bytes(std::span(text).subspan(bytes_in_text)));
    if (!n.has_value()) return Answer::kUnknown;
    if (*n == 0) return Answer::kNo;
    bytes_in_text += *n;
    std::string_view rest(text.data(), bytes_in_text);
    for (std::size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      if (!is_rest_of_line) {
        const Answer answer = reader.read_line(rest.substr(0, end));
        if (answer != Answer::kUnknown) return answer;
      }
      is_rest_of_line = false;
      rest.remove_prefix(end + 1);
    }
    if (rest.size() == text.size()) {  // the line is longer than the buffer
      if (!is_rest_of_line) {
        const Answer answer = reader.read_line(rest);
        if (answer != Answer::kUnknown) return answer;
      }
      is_rest_of_line = true;
      rest = {};
    }
    std::memmove(text.data(), rest.data(), rest.size());
    bytes_in_text = rest.size();
  }
}

// Opens the list of this process's mappings.  Prefers the calling thread's file, because that of
// the process is empty after the main thread has called pthread_exit().
Result<Fd> open_maps() {
  const auto open_file = [](const char* path) {
    return take_fd(static_cast<int>(repeat_call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC)),
                   "open");
  };
  auto maps = open_file("/proc/thread-self/maps");
  return maps.has_value() ? std::move(maps) : open_file("/proc/self/maps");
}

// Finds holes in the range, but does not check the protection.
Answer query_mincore(const Range& range) {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::array<unsigned char, 4096> pages;
  const std::uint64_t step = page * pages.size();
  for (std::uint64_t at = range.first & ~(page - 1); at < range.end; at += step) {
    const std::uint64_t bytes = std::min(step, range.end - at);
    if (system_call(SYS_mincore, at, bytes, pages.data()) != 0 && errno != EAGAIN) {
      return Answer::kNo;
    }
    if (range.end - at <= step) break;
  }
  return Answer::kYes;
}

}  // namespace

bool memory_is_mapped(const void* address, std::size_t length, bool writable) {
  const auto first = reinterpret_cast<std::uint64_t>(address);
  if (length == 0) return true;
  if (length > UINT64_MAX - first) return false;
  const Range range{.first = first, .end = first + length, .writable = writable};

  const auto maps = open_maps();
  Answer answer = Answer::kUnknown;
  if (maps.has_value()) answer = query_mappings(maps->get(), range);
  if (maps.has_value() && answer == Answer::kUnknown) answer = read_maps(maps->get(), range);
  if (answer == Answer::kUnknown) answer = query_mincore(range);
  return answer == Answer::kYes;
}

bool populate_pages(const void* address, std::size_t length, bool writable) {
  constexpr int kPopulateRead = 22, kPopulateWrite = 23;  // <asm-generic/mman-common.h>
  if (length == 0) return true;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  if (length > UINTPTR_MAX - first) return false;
  const std::uintptr_t begin = first / page * page;
  const long result = repeat_call(SYS_madvise, begin, first - begin + length,
                                  writable ? kPopulateWrite : kPopulateRead);
  if (result == 0) return true;
  // EINVAL means an older kernel, or device memory, whose pages cannot be populated.
  return errno == EINVAL && memory_is_mapped(address, length, writable);
}

}  // namespace verbena::os
