#pragma once

#include <asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "agent/socketless_ranges.h"
#include "agent/watch.h"
#include "base/error.h"
#include "base/random.h"
#include "base/time.h"
#include "ipc/counters.h"
#include "link/framing.h"
#include "link/lane.h"
#include "node/node.h"
#include "os/event_fd.h"
#include "os/fd.h"
#include "os/shared_memory.h"

namespace verbena::agent {

// Identifies a program by its host in the fabric (0 without a fabric) and by the number that the
// host's agent has assigned to the program.
using HostIndex = std::uint32_t;
using ProgramId = std::pair<HostIndex, node::ClientId>;

// Returns the range that contains this QP number.
constexpr std::uint16_t range_of(Qpn qpn) { return static_cast<std::uint16_t>(qpn.value >> 12); }

// Copies the packet.  Copies its headers from `arrival.headers`, which were checked, because the
// program may have changed the headers in the lane since the check.  REQUIRES: `out` is as long as
// the packet or longer.
void copy_packet(const link::Arrival& arrival, std::span<std::byte> out);

// Owns the uplinks of programs that have no sockets for their packets, and the ranges of QP numbers
// that these programs have leased.  An uplink is a lane between a program and this process.
//
// A full lane blocks its senders for kFullLaneTimeout at most, which is longer than a program
// usually waits for a processor.  After that, packets to the full lane are dropped until it has
// space again, so that a stopped program does not block other programs.
//
// Only the loop's thread uses it.
class Uplinks {
 public:
  static constexpr std::size_t kUplinksMax = 1024;  // each uses half a megabyte of memory
  static constexpr std::size_t kLeasesMax = 2048;   // ranges of QP numbers, of all hosts
  static constexpr std::size_t kRecordsPerRead = 64;
  static constexpr Duration kFullLaneTimeout = std::chrono::milliseconds(100);

  // Receives the packets that programs send.
  class Reader {
   public:
    // Handles one packet.  Returns false if the packet must wait in its lane.  If `may_wait` is
    // false, drops the packet instead of letting it wait.
    virtual bool pass(const ProgramId& from, const link::Arrival& arrival, Time now,
                      bool may_wait) = 0;

   protected:
    ~Reader() = default;
  };
  class Uplink;

  using WakeCallback = std::move_only_function<void()>;

  // Calls `on_wake` after park() when a program has sent something, and once when a lane has been
  // full for kFullLaneTimeout.  The owner then calls read().  kSystem: this process can open no
  // more descriptors.  REQUIRES: the reader outlives this object.
  static Result<std::unique_ptr<Uplinks>> create(asio::io_context& loop, Reader& reader,
                                                 WakeCallback on_wake);

  // Leases a range of QP numbers that no program of the fabric has.
  Result<std::uint16_t> lease(HostIndex host, Random& random, std::span<const std::uint16_t> avoid);
  void release(std::uint16_t range);
  std::size_t leases(HostIndex host) const;
  // Lets packets for the range reach the program.  If the program has no uplink, makes one and
  // returns its descriptors (Network::attach()), which are valid until
  // release_passed_descriptors().  kNoResources: there are kUplinksMax uplinks.  kSystem: there is
  // no memory or descriptor.
  Result<std::vector<int>> attach(const ProgramId& program, std::uint16_t range,
                                  std::optional<int> wake);
  void release_passed_descriptors();
  // Removes the uplink of a program, after passing the remaining packets of the program to the
  // reader.
  void detach(const ProgramId& program);

  // Returns null if there is no uplink.
  Uplink* find(const ProgramId& program);
  // Returns the program of the host that has leased the range, if the program has an uplink.
  std::optional<ProgramId> program_of(HostIndex host, std::uint16_t range) const;
  // Copies a packet to a program.  Returns false if the program's lane is full and the packet must
  // wait.  Drops and counts the packet instead if `may_wait` is false, if the lane has been full
  // for kFullLaneTimeout, or if the lane has ended.
  bool deliver(Uplink& receiver, const link::Address& address, const link::Arrival& arrival,
               Time now, bool may_wait);

  // Passes some packets of each uplink to the reader.  Returns true if it passed a packet.
  bool read(Time now);
  // Wakes the programs that got packets, and sets the timer for full lanes.  read() calls it, too.
  void flush();
  // Makes programs wake this process when they send the next packet, or when their lane has space
  // for a blocked packet.  Returns false if that has already happened, so that this process must
  // not sleep.
  bool park();
  // Makes programs send packets without waking this process.
  void unpark();

  void add_counters(std::vector<ipc::NamedCount>& out) const;

 private:
  struct Counters {
    std::uint64_t forwarded = 0;
    std::uint64_t receiver_full = 0;
    std::uint64_t broken = 0;
    std::uint64_t limit = 0;  // uplinks that were refused because of kUplinksMax
    std::uint64_t sleeps = 0;
  };

  Uplinks(asio::io_context& loop, Reader& reader, os::WakeFd wake, WakeCallback on_wake);

  asio::io_context& loop_;
  Reader& reader_;
  os::WakeFd wake_;
  WakeCallback on_wake_;
  Watch watch_{};
  Timer full_lane_timer_;
  Time last_read_{};
  SocketlessRanges ranges_{kLeasesMax};
  std::map<std::uint16_t, HostIndex> host_of_range_{};
  std::map<ProgramId, Uplink> uplinks_;
  std::map<std::uint16_t, ProgramId> program_of_range_{};
  std::vector<ProgramId> broken_{};
  std::vector<os::Fd> fds_to_pass_{};
  Counters counters_{};
};

// Represents this process's end of one program's uplink.
class Uplinks::Uplink {
 public:
  using Wake = std::variant<os::WakeFd, os::WakeSocket>;

  Uplink(os::Mapping memory, link::Lane lane, Wake program)
      : memory_(std::move(memory)), lane_(lane), wake_(std::move(program)) {}

 private:
  friend class Uplinks;
  void wake() {
    std::visit([](auto& wake) { wake.wake(); }, wake_);
  }

  os::Mapping memory_;
  link::Lane lane_;
  Wake wake_;  // wakes the program; a WakeSocket also wakes this process
  Watch socket_watch_{};
  Time full_since_ = kNever;
  bool is_blocked_ = false;  // the next packet from the program waits until another lane has space
};

}  // namespace verbena::agent
