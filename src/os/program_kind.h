#pragma once

#include <cstdint>
#include <string_view>

namespace verbena::os {

// Tells what kind of program exec() of a file would start.
enum class ProgramKind : std::uint8_t {
  kNone,            // this process cannot execute the file: exec() will fail
  kWithLibrary,     // the dynamic linker will preload the library
  kWithoutLibrary,  // any other program
};

// Returns kWithLibrary if exec() of the file `path` would start a program that preloads a library.
// This has two conditions.  LD_PRELOAD in `environment` has a path that contains `library`.  The
// file is a dynamically linked program of this machine, or a script for such a program, without
// set-user-ID, set-group-ID or capabilities.  Allocates nothing, so that children of fork() may
// call it.
ProgramKind program_kind(const char* path, char* const* environment, std::string_view library);

// Works as program_kind() for a file that execvpe() looks for in PATH.  Like execvpe(), it takes a
// file of an unknown format for a script of the shell.  posix_spawnp() fails for such a file.
ProgramKind search_program_kind(const char* file, char* const* environment,
                                std::string_view library);

}  // namespace verbena::os
