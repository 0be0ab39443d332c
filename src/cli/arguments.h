#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <vector>

#include "cli/run.h"

namespace verbena::cli {

struct Command {
  enum class Kind : std::uint8_t { kRun, kPs, kDoctor, kAgentStatus, kAgentStop } kind{};
  RunOptions run{};
  bool json = false;
  bool counters = false;
};

// Nothing to do but to say this: a help text (exit code 0), or one line that tells what is wrong.
struct Say {
  int exit_code = 0;
  std::string text{};
};

inline constexpr int kExitUsage = 2;
inline constexpr int kExitOutputLost = 1;  // not all of the output could be written

// `arguments` without the program's own name.
std::expected<Command, Say> parse(const std::vector<std::string>& arguments);

}  // namespace verbena::cli
