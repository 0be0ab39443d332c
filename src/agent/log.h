#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "os/fd.h"

namespace verbena::agent {

// The agent's log: one line for each thing worth knowing, with the wall clock, or nowhere.
// Control characters in it are escaped.
class Log {
 public:
  Log() = default;
  // Appends to the file; kSystem.
  static Result<Log> open(const std::string& path);

  void line(std::string_view text);

 private:
  os::Fd file_{};
};

}  // namespace verbena::agent
