#include "agent/log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <deque>

#include "base/printable.h"

namespace verbena::agent {

struct Log::Memory {
  std::size_t limit = 0;
  std::uint64_t first = 0;  // the number of lines.front()
  std::deque<std::string> lines{};
};

Result<Log> Log::open(const std::string& path) {
  Log log;
  log.file_ = std::make_shared<os::Fd>(VB_TRY(os::take_fd(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0600), "log")));
  return log;
}

Log Log::named(const std::string& part) const {
  Log log = *this;
  log.part_ = part + ": ";
  return log;
}

void Log::store_lines(std::size_t count) {
  memory_ = std::make_shared<Memory>();
  memory_->limit = count;
}

Log::StoredLines Log::stored_lines(std::uint64_t first, std::size_t limit) const {
  if (!memory_) return {.next = first};
  const std::uint64_t end = memory_->first + memory_->lines.size();
  first = std::clamp(first, memory_->first, end);
  StoredLines stored{.next = std::min(end, first + limit)};
  stored.more = stored.next < end;
  for (; first < stored.next; ++first)
    stored.lines.push_back(memory_->lines[first - memory_->first]);
  return stored;
}

void Log::line(std::string_view text) {
  if (!file_ && !memory_) return;
  const std::time_t seconds = std::time(nullptr);
  std::tm local{};
  localtime_r(&seconds, &local);
  std::string entry =
      fmt::format("{:%Y-%m-%d %H:%M:%S} {}[{}] {}{}\n", local, program_invocation_short_name,
                  ::getpid(), part_, printable(text));
  // Ignore errors: the agent must work even if it cannot write its log.
  if (file_) (void)os::write_some(file_->get(), std::as_bytes(std::span(entry)));
  if (!memory_) return;
  entry.resize(std::min(entry.size() - 1, kStoredLineBytesMax));  // without the end of the line
  memory_->lines.push_back(std::move(entry));
  if (memory_->lines.size() <= memory_->limit) return;
  memory_->lines.pop_front();
  ++memory_->first;
}

}  // namespace verbena::agent
