#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "os/fd.h"

namespace verbena::agent {

// Writes the agent's log: one line per event, with the wall clock's time.  Control characters are
// escaped.  A default-constructed log writes nothing.
class Log {
 public:
  Log() = default;
  // Opens a log that appends to the file; kSystem.
  static Result<Log> open(const std::string& path);

  void line(std::string_view text);

 private:
  os::Fd file_{};
};

}  // namespace verbena::agent
