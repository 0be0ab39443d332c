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
#include "stream/memory.h"

namespace verbena::sockets {

// Owns the descriptor of the memory through which the two ends of a connection exchange bytes
// (stream/memory.h).  The service creates the memory, reads its counters, and gives the pages of
// idle rings back to the system.  The service maps only the first page, which has no bytes of the
// connection.
class PairMemory {
 public:
  // Creates memory with two rings of `ring_bytes`, which is a power of two (ring_sizes.h).
  static Result<PairMemory> create(std::size_t ring_bytes, Time now);

  const os::Fd& fd() const { return memory_.fd; }
  std::size_t bytes() const { return stream::memory_bytes(ring_bytes_); }
  // Returns how many bytes of the memory are resident now.
  std::size_t resident_bytes() const { return os::resident_bytes(memory_.fd); }
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

  PairMemory(os::SharedMemory memory, std::size_t ring_bytes, Time now)
      : memory_(std::move(memory)), ring_bytes_(ring_bytes), sent_by_{SentBy(now), SentBy(now)} {}
  stream::Direction& direction(std::uint32_t side) const {
    return reinterpret_cast<stream::Control*>(memory_.mapping.bytes().data())->directions[side];
  }

  os::SharedMemory memory_;
  std::size_t ring_bytes_;
  std::array<SentBy, 2> sent_by_;
  // The IdleRing::position() of each ring at the last call of release_idle_rings().
  std::array<std::uint64_t, 2> last_positions_{};
};

}  // namespace verbena::sockets
