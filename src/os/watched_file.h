#pragma once

#include <optional>
#include <vector>

#include "base/error.h"
#include "os/fd.h"

namespace verbena::os {

// Represents a file in memory that reports when another process opens or closes it.  A process that
// has a copy of file() opens it as /proc/self/fd/N, so no file remains in a file system.
//
// Linux merges two successive open events into one if no event is read between them.  So use a
// WatchedFile only if one process at a time opens it.
class WatchedFile {
 public:
  // Creates an empty file.  `name` appears in /proc/PID/maps.  Fails with kSystem.
  static Result<WatchedFile> create(const char* name);

  int file() const { return file_.get(); }
  // Returns a descriptor that is readable while next_events() would return events.
  int events_fd() const { return events_.get(); }
  // Removes and returns the events in order: true if the file was opened, false if it was closed.
  std::vector<bool> next_events();

 private:
  WatchedFile(Fd file, Fd events) : file_(std::move(file)), events_(std::move(events)) {}

  Fd file_;
  Fd events_;
};

}  // namespace verbena::os
