#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <vector>

#include "cli/fabric.h"
#include "cli/run.h"
#include "cli/sa.h"
#include "cli/sockets.h"
#include "cli/sockets_trace.h"

namespace verbena::cli {

struct Command {
  enum class Kind : std::uint8_t {
    kRun,
    kPs,
    kSa,
    kDoctor,
    kAgentStatus,
    kAgentStart,
    kAgentStop,
    kSockets,
    kSocketsTrace,
    kFabric
  } kind{};
  RunOptions run{};
  SaOptions sa{};
  SocketsOptions sockets{};
  TraceOptions trace{};
  FabricOptions fabric{};
  bool json = false;
  bool all_users = false;
  bool counters = false;
};

// Holds a text to print instead of running a command: a help text or the version (exit code 0), or
// one line with the mistake in the command line.
struct Message {
  int exit_code = 0;
  std::string text{};
};

inline constexpr int kExitUsage = 2;
inline constexpr int kExitOutputLost = 1;  // for output that could not be written completely

// Parses the command line.  `arguments` does not include the program's own name.  The error is the
// text that the user asked for (help, version), or a message about a mistake.
std::expected<Command, Message> parse(const std::vector<std::string>& arguments);

}  // namespace verbena::cli
