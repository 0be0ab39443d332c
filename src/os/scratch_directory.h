#pragma once

#include <sys/types.h>

#include <string>

#include "base/error.h"
#include "os/fd.h"

namespace verbena::os {

// Owns a directory for the files of this process and of its children.  The directory is removed
// when all these processes have ended, even if they were killed.
//
//   this process ---.
//   children --------+-- write end of a pipe --> keeper: removes the directory at end of file
//
// The keeper is a child that does nothing else and blocks all signals that it can block.  Children
// that use the directory have a copy of held_fd(), so that the keeper also waits until they end.
// If the keeper itself is killed, the directory remains.
//
// REQUIRES: the process has one thread when it calls create().
class ScratchDirectory {
 public:
  // Creates the directory `parent`/`prefix`XXXXXX with rights only for this user.  Fails with
  // kSystem.
  static Result<ScratchDirectory> create(const std::string& parent, const std::string& prefix);
  ScratchDirectory(ScratchDirectory&& other) noexcept;
  ScratchDirectory& operator=(ScratchDirectory&&) = delete;
  // Waits until the directory is removed.  REQUIRES: the children with a copy of held_fd() have
  // ended.
  ~ScratchDirectory();

  const std::string& path() const { return path_; }
  // Returns the write end of the pipe.  It is close-on-exec.  A child clears that flag before exec
  // if its new program uses the directory.
  int held_fd() const { return pipe_write_end_.get(); }

 private:
  ScratchDirectory(std::string path, Fd write_end, pid_t keeper)
      : path_(std::move(path)), pipe_write_end_(std::move(write_end)), keeper_(keeper) {}

  std::string path_;
  Fd pipe_write_end_;
  pid_t keeper_;  // 0: moved from
};

}  // namespace verbena::os
