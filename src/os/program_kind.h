#pragma once

#include <cstdint>
#include <string_view>

namespace verbena::os {

// Tells what kind of program exec() of a file would start.
enum class ProgramKind : std::uint8_t {
  kNone,      // not executable for this process: exec() will fail
  kPreloads,  // the dynamic linker will preload the library
  kForeign,   // any other program
};

// Tells whether exec() of the file `path` would start a program that preloads a library.  This is
// so if LD_PRELOAD in `environment` has a path that contains `library`, and the file is a dynamic
// program of this machine, or a script for one, without set-user-ID, set-group-ID or capabilities.
// Allocates nothing, so that children of fork() may call it.
ProgramKind program_kind(const char* path, char* const* environment, std::string_view library);

// Works as program_kind() for a file that execvpe() looks for in PATH.
ProgramKind search_program_kind(const char* file, char* const* environment,
                                std::string_view library);

}  // namespace verbena::os
