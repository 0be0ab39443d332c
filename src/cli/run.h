#pragma once

#include <string>
#include <vector>

namespace verbena::cli {

struct RunOptions {
  std::string pcap{};                  // empty: no capture
  bool verbose = false;                // what fails is told on stderr
  std::string personality{};           // whose habits the adapter has; empty: the usual
  std::string adapter{};               // of this host, for the C++ API; empty: Verbena's own
  bool sysfs = false;                  // with files of the device in /sys and /dev
  std::vector<std::string> command{};  // the program and its arguments
};

// Becomes the program, so that pid, signals and exit code are its own.  With a capture it stays as
// the program's parent, passes signals on, and ends as the program does, or with an exit code of
// its own if the capture is incomplete.  Returns only if the program cannot be run: an exit code,
// after a line on stderr.
int run(const RunOptions& options);

// "directory" in front of what LD_LIBRARY_PATH is now (null: not set).
std::string prepend_path(const std::string& directory, const char* now);

}  // namespace verbena::cli
