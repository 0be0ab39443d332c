#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "base/reported_count.h"
#include "base/time.h"
#include "broker/messages.h"
#include "os/shared_memory.h"
#include "stream/idle_ring.h"
#include "stream/memory.h"

namespace verbena::sockets {

// Owns the memory through which the two ends of a connection exchange bytes, and the memory that
// belongs to each end alone (stream/memory.h).  The service creates both, reads the counters, and
// gives the pages of idle rings back to the system.  The service does not map the rings, which have
// the bytes of the connection.
class PairMemory {
 public:
  // Creates memory with two rings of `ring_bytes`, which is a power of two (ring_sizes.h).
  static Result<PairMemory> create(std::size_t ring_bytes, Time now);

  const os::Fd& fd() const { return streams_.fd; }
  // Returns the descriptor of the EndState of this side (0 or 1).  Only the processes that have
  // this end may get it.
  const os::Fd& end_fd(std::uint32_t side) const { return ends_[side].fd; }
  // Returns the size of all memory of the connection.
  std::size_t bytes() const { return stream::memory_bytes(ring_bytes_) + 2 * stream::kEndBytes; }
  // Returns how many bytes of the memory are resident now.
  std::size_t resident_bytes() const;
  std::size_t ring_bytes() const { return ring_bytes_; }
  // Returns the traffic that the end of this side (0 or 1) has sent.  The programs write these
  // numbers, so they may be wrong, but they are not impossible (ReportedCount).
  broker::Traffic traffic(std::uint32_t side, Time now);
  stream::Counters counters(std::uint32_t side) const {
    return stream::counters_of(direction(side));
  }

  struct ReleaseResult {
    std::uint32_t active_rings = 0;  // rings that bytes have entered since the last call
    std::size_t released_bytes = 0;  // bytes of the pages that this call has given back
  };
  // Gives the pages of each idle ring back to the system.  A ring is idle if it is empty and no
  // bytes have entered it since the last call.  Call this from time to time.
  ReleaseResult release_idle_rings();

 private:
  struct SentBy {
    explicit SentBy(Time start)
        : by_ring(start, stream::kOffsetBits), by_tcp(start), wakes(start), overflows(start) {}
    ReportedCount by_ring, by_tcp, wakes, overflows;
  };

  PairMemory(os::SharedMemory streams, std::array<os::SharedMemory, 2> ends, std::size_t ring_bytes,
             Time now)
      : streams_(std::move(streams)),
        ends_(std::move(ends)),
        ring_bytes_(ring_bytes),
        sent_by_{SentBy(now), SentBy(now)} {}
  stream::Direction& direction(std::uint32_t side) const {
    return reinterpret_cast<stream::Control*>(streams_.mapping.bytes().data())->directions[side];
  }
  stream::IdleRing idle_ring(std::uint32_t side) const {
    const auto* end = reinterpret_cast<stream::EndState*>(ends_[side].mapping.bytes().data());
    return {direction(side), *end};
  }
  std::size_t ring_resident_bytes() const { return os::resident_bytes(streams_.fd); }

  os::SharedMemory streams_;
  std::array<os::SharedMemory, 2> ends_;  // of side 0 and of side 1
  std::size_t ring_bytes_;
  std::array<SentBy, 2> sent_by_;
  // The IdleRing::position() of each ring at the last call of release_idle_rings().
  std::array<std::uint64_t, 2> last_positions_{};
};

}  // namespace verbena::sockets
