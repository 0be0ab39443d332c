#pragma once

#include <string>
#include <vector>

namespace verbena::cli {

struct RunOptions {
  std::string pcap{};                  // the capture file; empty: no capture
  bool verbose = false;                // report failures on stderr
  std::string personality{};           // the adapter to imitate; empty: the default
  std::string link{};                  // lane or udp; empty: the default
  std::string adapter{};               // an adapter of this host, for the C++ API; empty: none
  std::string sockets{};               // auto, only or off; empty: off
  std::string socket_rules{};          // file of rules for --sockets; empty: see the environment
  std::string node{};                  // a virtual host to run on; empty: this machine
  std::string fabric{};                // the fabric of that host; empty: the only one that is up
  std::string interfaces{};            // whose interfaces to show: node (or empty), or machine
  bool sysfs = false;                  // show the device's files in /sys and /dev
  std::vector<std::string> command{};  // the program and its arguments
};

// Replaces this process with the program (exec), so that pid, signals and exit code are the
// program's own.  With a capture, this process remains the program's parent and forwards signals to
// the program.  It then ends as the program does.  Returns only if the program cannot be run, or if
// the program succeeded and the capture is incomplete.  Then run() prints a line on stderr and
// returns an exit code.
int run(const RunOptions& options);

// Returns `current`, the current LD_LIBRARY_PATH (null: not set), with `directory` in front.
std::string prepend_path(const std::string& directory, const char* current);

}  // namespace verbena::cli
