#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Can Verbena's libraries be loaded into that program?  Asked before it is started, because what
// cannot work should say so, and not run without Verbena or fail somewhere inside.
namespace verbena::cli {

// What to say, and the exit code to say it with.
struct Problem {
  int exit_code = 0;
  std::string text{};
  friend bool operator==(const Problem&, const Problem&) = default;
};

// Exit codes of `run`, as env(1) has them.
inline constexpr int kExitOwnFailure = 125;
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;

struct Found {
  std::string path{};
  std::optional<Problem> problem{};  // then there is no path
};

// Where execvp(3) would find a program; `search_path` is $PATH.
Found find_program(const std::string& program, std::string_view search_path);

// What the first bytes of a file say about how it will run.
struct Executable {
  enum class Kind : std::uint8_t { kElf, kScript, kOther } kind = Kind::kOther;
  // Of an ELF file:
  bool is_64_bit = false;
  std::uint16_t machine = 0;  // EM_...
  std::string loader{};       // PT_INTERP; empty: statically linked
  // Of a script: the interpreter, and the one argument that may follow it.
  std::vector<std::string> interpreter{};
};

// Nothing if the file cannot be read or its headers are broken: then exec has the last word.
std::optional<Executable> read_executable(const std::string& path);

// The shared libraries that an ELF file names itself (DT_NEEDED); none of a file that is no ELF
// file of 64 bits or is broken.
std::vector<std::string> needed_libraries(const std::string& path);

// Why the libraries cannot be loaded, or nothing.  A script's interpreter is looked at in its
// place.
std::optional<Problem> why_not_loadable(const std::string& path, std::string_view search_path);

}  // namespace verbena::cli
