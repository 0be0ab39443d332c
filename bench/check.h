#pragma once

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// Provides helpers for the benchmark programs.  Any error ends the program, and the message names
// the step that has failed.
namespace verbena::bench {

[[noreturn]] inline void exit_with_error(const char* what) {
  std::fprintf(stderr, "%s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

inline void check(bool succeeded, const char* what) {
  if (!succeeded) exit_with_error(what);
}

// Parses a number from 1 to 1,000,000,000.  Exits if `text` is no such number; `what` names the
// argument in the message.
inline int parse_number(const char* text, const char* what) {
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*text == '\0' || *end != '\0' || value < 1 || value > 1'000'000'000) {
    std::fprintf(stderr, "%s must be a number from 1 to 1000000000, not '%s'\n", what, text);
    std::exit(2);
  }
  return static_cast<int>(value);
}

// Waits for a line of input.  In the meantime another program measures this program.  Exits at the
// end of the input.
inline void wait_for_line() {
  for (int c = std::getchar(); c != '\n'; c = std::getchar()) {
    if (c == EOF) std::exit(0);
  }
}

}  // namespace verbena::bench
