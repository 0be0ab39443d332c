#pragma once

#include <cstdint>
#include <string_view>

namespace verbena::os {

// Says what kind of program exec() of a file would start.
enum class ProgramKind : std::uint8_t {
  kNone,      // nothing that this process may execute: exec() will fail
  kPreloads,  // the dynamic linker will load the library that was asked for
  kForeign,   // any other program
};

// Tells whether a program will have a preloaded library.  It will if LD_PRELOAD in `environment`
// has a path that contains `library`, and the file is a dynamic program of this machine, or a
// script for one, without set-user-ID, set-group-ID or capabilities.  Allocates nothing, so that
// children of fork() may call it.
ProgramKind program_kind(const char* path, char* const* environment, std::string_view library);

// Does the same for a file that execvpe() looks for in PATH.
ProgramKind search_program_kind(const char* file, char* const* environment,
                                std::string_view library);

}  // namespace verbena::os
