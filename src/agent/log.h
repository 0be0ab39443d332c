#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "os/fd.h"

namespace verbena::agent {

// Writes the agent's log: one line per event, with the wall clock's time.  Control characters are
// escaped.  A default-constructed log writes nothing.
class Log {
 public:
  // Limits the bytes of a line that is stored in memory.
  static constexpr std::size_t kStoredLineBytesMax = 1000;

  Log() = default;
  // Opens a log that appends to the file.  Fails with kSystem if the file cannot be opened.
  static Result<Log> open(const std::string& path);

  // From now on, also stores the last `count` lines in memory: the lines of this log, and of all
  // logs that named() later makes from this log.
  void store_lines(std::size_t count);
  struct StoredLines {
    std::uint64_t next = 0;  // the number of the line after `lines`
    bool more = false;
    std::vector<std::string> lines{};
  };
  // Returns up to `limit` stored lines, beginning with number `first`.  Lines count from 0.
  StoredLines stored_lines(std::uint64_t first, std::size_t limit) const;

  // Returns a log that writes to the same file in the name of a part of this process, such as a
  // virtual host.
  Log named(const std::string& part) const;

  // Writes a line with this text.
  void line(std::string_view text);

 private:
  struct Memory;
  std::shared_ptr<os::Fd> file_{};
  std::shared_ptr<Memory> memory_{};
  std::string part_{};  // the prefix of each line's text
};

}  // namespace verbena::agent
