#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Checks, before a program is started, whether Verbena's libraries can be loaded into the program.
// If they cannot, the user gets a message.  Without this check, the program would run without
// Verbena, or fail with an obscure error.
namespace verbena::cli {

// Holds a message for the user, and the exit code that goes with it.
struct Problem {
  int exit_code = 0;
  std::string text{};
  friend bool operator==(const Problem&, const Problem&) = default;
};

// `run` has the same exit codes as env(1).
inline constexpr int kExitOwnFailure = 125;
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;

struct FoundProgram {
  std::string path{};                // empty if there is a problem
  std::optional<Problem> problem{};  // why the program cannot be run
};

// execvp(3) uses this search path if $PATH is not set.
inline constexpr const char* kDefaultPath = "/bin:/usr/bin";

// Finds a program as execvp(3) does; `search_path` is $PATH.
FoundProgram find_program(const std::string& program, std::string_view search_path);

// Holds the parts of an executable file that decide how the kernel will run it.
struct Executable {
  enum class Kind : std::uint8_t { kElf, kScript, kOther } kind = Kind::kOther;
  // ELF files use the next three members.
  bool is_64_bit = false;
  std::uint16_t machine = 0;  // EM_...
  std::string loader{};       // PT_INTERP; empty: statically linked
  // Scripts use this member: the interpreter and at most one argument.
  std::vector<std::string> interpreter{};
};

// Reads the headers of a file.  Returns nothing if the file cannot be read or its headers are
// broken; exec will then report the error.
std::optional<Executable> read_executable(const std::string& path);

// Returns the shared libraries that an ELF file itself names (DT_NEEDED); none if the file is
// broken or is not a 64-bit ELF file.
std::vector<std::string> needed_libraries(const std::string& path);

// Returns the reason why the libraries cannot be loaded into the program, or nothing.  For a
// script, checks its interpreter; if the interpreter is env, also checks the program that env will
// find in `search_path`.
std::optional<Problem> why_not_loadable(const std::string& path, std::string_view search_path);

}  // namespace verbena::cli
