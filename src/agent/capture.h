#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/pcapng.h"
#include "base/error.h"
#include "base/time.h"
#include "link/capture.h"
#include "os/fd.h"
#include "os/shared_memory.h"

namespace verbena::agent {

// Records of several sources, put in order of time.  Equal times stay in the order of add().
class CaptureMerge {
 public:
  void add(link::CaptureRecord record);
  // Takes out those of before or at `until`, oldest first.
  std::vector<link::CaptureRecord> take(Time until);

  std::size_t waiting_bytes() const { return waiting_bytes_; }

 private:
  std::multimap<Time, link::CaptureRecord> waiting_{};
  std::size_t waiting_bytes_ = 0;
};

// The file of one capture.  A write that fails ends the writing, not the capture: the programs go
// on.
class CaptureFile {
 public:
  // `wall_clock_offset_ns` turns a Time into nanoseconds since 1970.
  CaptureFile(os::Fd file, std::uint64_t wall_clock_offset_ns, Time start);

  void write(const link::CaptureRecord& record);
  // What was written so far is in the file after this.
  void flush();
  // Writes the statistics; nothing may follow.
  void finish(Time end, std::uint64_t dropped);

  std::uint64_t packets() const { return packets_; }
  const std::optional<Error>& failure() const { return failure_; }

 private:
  static constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

  std::uint64_t wall_clock(Time time) const;

  os::Fd file_;
  std::uint64_t wall_clock_offset_ns_;
  Time start_;
  pcapng::Bytes buffer_{};
  std::uint64_t packets_ = 0;
  std::optional<Error> failure_{};
};

// One capture: the rings of the programs that belong to it, the agent's own packets, and the file.
//
//   ring of program 1 --.
//   ring of program 2 ---+--> merge, in order of time --> file
//   QP1 of the agent  --'
//
// A program takes the time of a packet a little before it writes the record, so a record counts as
// in order only kSettle after its time; tick() writes what is older.
class Capture {
 public:
  static constexpr Duration kSettle = std::chrono::milliseconds(20);
  static constexpr std::size_t kRingsMax = 256;
  // Records of one ring taken at once: more than a ring can hold.
  static constexpr std::size_t kRecordsPerTurn = 65536;
  // Waiting for their turn; past that they are written as they are.
  static constexpr std::size_t kWaitingBytesMax = std::size_t{64} << 20;

  using Program = std::uint64_t;

  Capture(os::Fd file, std::uint64_t wall_clock_offset_ns, Time now);

  // A new ring for a program.  The descriptor to pass on is the capture's and stays open until
  // leave().  kNoResources past kRingsMax; kSystem.
  Result<int> join(Program program);
  // Takes what is in the ring and closes it.
  void leave(Program program, Time now);
  bool has(Program program) const { return rings_.contains(program); }
  std::size_t programs() const { return rings_.size(); }

  // A packet of the agent's.
  void add(link::CaptureRecord record, Time now);
  // Empties the rings and writes what has settled.  True: a ring was filling, come again soon.
  bool tick(Time now);
  // Writes everything that the one program that is left has recorded so far; of several, what has
  // settled.
  void flush(Time now);
  // Writes everything that was recorded so far, whoever goes on.
  void flush_all(Time now);
  // Writes everything, and completes the file.
  void finish(Time now);

  std::uint64_t packets() const { return file_.packets(); }
  std::uint64_t dropped() const;
  const std::optional<Error>& failure() const { return file_.failure(); }

 private:
  struct Ring {
    os::SharedMemory memory;
    link::CaptureRing ring;
    bool broken = false;
  };

  bool take(Ring& ring, Time now);
  void write(Time until);

  Time start_;
  CaptureMerge merge_{};
  CaptureFile file_;
  std::map<Program, Ring> rings_{};
  std::uint64_t dropped_by_gone_ = 0;
};

}  // namespace verbena::agent
