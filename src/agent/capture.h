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
#include "base/reported_count.h"
#include "base/time.h"
#include "link/capture.h"
#include "os/fd.h"
#include "os/shared_memory.h"

namespace verbena::agent {

// Sorts the records of several sources by time.  Records with equal times stay in the order of
// add().
class CaptureMerge {
 public:
  void add(link::CaptureRecord record);
  // Removes and returns the records up to and including `until`, oldest first.
  std::vector<link::CaptureRecord> take(Time until);

  std::size_t waiting_bytes() const { return waiting_bytes_; }

 private:
  std::multimap<Time, link::CaptureRecord> waiting_{};
  std::size_t waiting_bytes_ = 0;
};

// Writes the file of one capture.  After a failed write it discards all later records, but the
// capture continues, so that programs do not notice the failure.
class CaptureFile {
 public:
  // A Time plus `wall_clock_offset_ns` is the number of nanoseconds since 1970.
  CaptureFile(os::Fd file, std::uint64_t wall_clock_offset_ns, Time start);

  void write(const link::CaptureRecord& record);
  // Makes sure that all records written so far are in the file.
  void flush();
  // Writes the statistics and closes the file.  REQUIRES: no call of write() follows.
  void finish(Time end, std::uint64_t dropped);

  std::uint64_t packets() const { return packets_ + infiniband_packets_; }
  const std::optional<Error>& failure() const { return failure_; }

 private:
  // These are the interfaces of the file.  A file describes the InfiniBand interface only if it
  // contains InfiniBand packets.
  static constexpr std::uint32_t kEthernetInterface = 0, kInfinibandInterface = 1;
  static constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

  std::uint64_t wall_clock(Time time) const;

  os::Fd file_;
  std::uint64_t wall_clock_offset_ns_;
  Time start_;
  pcapng::Bytes buffer_{};
  std::uint64_t packets_ = 0;
  std::uint64_t infiniband_packets_ = 0;
  std::optional<Error> failure_{};
};

// Merges the sources of one capture into its file.  The sources are the rings of the programs that
// have joined, and the agent's own packets.
//
//   ring of program 1 --.
//   ring of program 2 ---+--> merge, in order of time --> file
//   QP1 of the agent  --'
//
// A program reads the clock a little before it writes a packet's record.  So a record may arrive
// after records that have later times.  tick() therefore writes only records that are older than
// kSettleTime.
class Capture {
 public:
  static constexpr Duration kSettleTime = std::chrono::milliseconds(20);
  static constexpr std::size_t kRingsMax = 256;
  // Limits the records that are taken from one ring at a time.  A ring cannot hold that many.
  static constexpr std::size_t kRecordsPerRead = 65536;
  // Limits the bytes of records that wait to be sorted.  Beyond this limit, all of them are written
  // at once, although records with earlier times may still arrive.
  static constexpr std::size_t kWaitingBytesMax = std::size_t{64} << 20;

  using Program = std::uint64_t;

  Capture(os::Fd file, std::uint64_t wall_clock_offset_ns, Time now);

  // Makes a ring for a program.  Returns the descriptor to pass on, which the capture owns and
  // keeps open until leave().  kNoResources: there are kRingsMax rings.  kSystem: there is no
  // memory or descriptor.
  Result<int> join(Program program, Time now);
  // Reads the remaining records in the program's ring and removes the ring.
  void leave(Program program, Time now);
  bool has(Program program) const { return rings_.contains(program); }
  std::size_t programs() const { return rings_.size(); }

  // Adds a packet of the agent.
  void add(link::CaptureRecord record, Time now);
  // Empties the rings and writes records older than kSettleTime.  Returns true if a ring was
  // filling up, so that the caller must call tick() again soon.
  bool tick(Time now);
  // Writes everything recorded so far if at most one program records.  If several programs record,
  // writes only records older than kSettleTime.
  void flush(Time now);
  // Writes everything recorded so far, even while several programs go on recording.
  void flush_all(Time now);
  // Writes everything and completes the file.
  void finish(Time now);

  std::uint64_t packets() const { return file_.packets(); }
  std::uint64_t dropped() const;
  const std::optional<Error>& failure() const { return file_.failure(); }

 private:
  struct Ring {
    os::SharedMemory memory;
    link::CaptureRing ring;
    ReportedCount dropped;
    bool broken = false;
  };

  bool read_ring(Ring& ring, Time now);
  void write(Time until);

  Time start_;
  CaptureMerge merge_{};
  CaptureFile file_;
  std::map<Program, Ring> rings_{};
  std::uint64_t dropped_by_ended_programs_ = 0;
};

}  // namespace verbena::agent
