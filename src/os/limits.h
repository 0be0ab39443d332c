#pragma once

#include <cstdint>
#include <string>

namespace verbena::os {

// Replaces the resource limits that a daemon inherited from the program that started it.  The
// limits of CPU time, file size, memory and open files are raised to the hard limits, or above them
// if this process has that right.  Core files are disabled.  Makes only system calls, so the child
// of a clone may call it.
void set_daemon_limits();

// These numbers of open files were measured.  The agent needs kAgentFiles, and in addition
// kAgentFilesPerProgram for each program.
inline constexpr std::uint64_t kAgentFiles = 32;
inline constexpr std::uint64_t kAgentFilesPerProgram = 7;

// Holds the limits that end an agent's service if they are low.  Without a limit, the number is
// kUnlimited of os/host_checks.h.
struct AgentLimits {
  std::uint64_t open_files = 0;
  std::uint64_t cpu_seconds = 0;
  std::uint64_t memory_bytes = 0;
};
// Returns the soft limits of this process.
AgentLimits agent_limits();

// Returns a text that names the first limit that is too low for an agent, and what to do; empty if
// there is none.  The minimum of open files suffices for two programs.
std::string find_low_limit(const AgentLimits& limits);

// Returns false if an agent with this limit, which has `open` files open, could not serve one more
// program.
constexpr bool has_files_for_program(std::uint64_t limit, std::uint64_t open) {
  constexpr std::uint64_t kReserve = 8;  // for new connections, and for answers to tools
  return open + kAgentFilesPerProgram + kReserve <= limit;
}

// Counts the open files of this process by /proc.  Returns `if_unknown` if that fails.
std::uint64_t count_open_files(std::uint64_t if_unknown);

}  // namespace verbena::os
