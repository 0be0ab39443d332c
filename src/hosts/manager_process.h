#pragma once

#include <sys/types.h>

#include <asio/io_context.hpp>
#include <expected>
#include <functional>
#include <memory>
#include <string>

#include "agent/watch.h"
#include "base/strong.h"
#include "os/fd.h"

namespace verbena::hosts {

// Runs OpenSM on a node of a simulated subnet, as a child of this process.  The environment makes
// OpenSM a program of the node, as `verbena run --node` does.  The kernel kills OpenSM when this
// process ends for any reason.  Options::directory contains OpenSM's log, output and other files.
//
// Only the loop's thread uses it.  The process must have no other thread, because the kernel kills
// the child when the thread that started it ends.
class ManagerProcess {
 public:
  static constexpr const char* kLogName = "opensm.log";
  static constexpr const char* kOutputName = "opensm.out";
  // OpenSM empties its log when the log has reached this size.
  static constexpr unsigned kLogMegabytesMax = 64;

  struct Options {
    std::string program{};
    std::string fabric{};
    std::string node{};
    Guid port_guid{};
    std::string directory{};  // for OpenSM's files; must exist
    int held_fd = -1;         // os::ScratchDirectory::held_fd(), which the child inherits
  };

  // Starts OpenSM.  `on_opensm_end` is called when OpenSM has ended by itself.  The error is a line
  // for the user.
  static std::expected<std::unique_ptr<ManagerProcess>, std::string> start(
      asio::io_context& loop, Options options, std::move_only_function<void()> on_opensm_end);
  ManagerProcess(const ManagerProcess&) = delete;
  ManagerProcess& operator=(const ManagerProcess&) = delete;
  // Kills OpenSM if it still runs.  The owner of the directory removes OpenSM's files.
  ~ManagerProcess();

  const std::string& node() const { return options_.node; }
  const std::string& directory() const { return options_.directory; }
  pid_t pid() const { return pid_; }
  bool has_ended() const { return !end_text_.empty(); }
  // Returns how OpenSM ended: "exit code 1".  The text is empty while OpenSM runs.
  const std::string& end_text() const { return end_text_; }

 private:
  ManagerProcess(Options options, std::move_only_function<void()> on_opensm_end)
      : options_(std::move(options)), on_opensm_end_(std::move(on_opensm_end)) {}

  void on_end();

  Options options_;
  std::move_only_function<void()> on_opensm_end_;
  pid_t pid_ = 0;
  os::Fd pidfd_{};
  agent::Watch watch_{};
  std::string end_text_{};
};

}  // namespace verbena::hosts
