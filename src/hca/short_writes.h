#pragma once

#include <algorithm>
#include <cstdint>

namespace verbena::hca {

// Distinguishes a stream of short WRITEs from single short WRITEs.  A stream should be sent as
// packets.  The initiator should carry out single WRITEs by direct access (direct_access.h).
//
// As a direct access, a short WRITE costs a system call.  As a packet it costs a third of that, if
// the target is receiving packets already.  But a program that waits for the effect of its WRITE
// should not wait until the target runs.  Such a program posts a few requests, and then finds its
// completion queue empty.  The posts between two such polls are a series.  A long series begins a
// stream, and several short series end the stream.
class ShortWrites {
 public:
  // A series longer than this begins a stream.
  static constexpr std::uint32_t kSeriesMax = 8;
  // A stream ends after this number of short series.
  static constexpr std::uint32_t kShortSeriesToEndStream = 4;

  // Returns true if the next short WRITE belongs to a stream.  `cq_was_emptied` is true if a poll
  // has left the completion queue empty since the last short WRITE.
  bool is_stream(bool cq_was_emptied) const {
    return with_next(cq_was_emptied).short_series_ < kShortSeriesToEndStream;
  }
  // Notes that a short WRITE has started.
  void add(bool cq_was_emptied) { *this = with_next(cq_was_emptied); }

 private:
  ShortWrites with_next(bool cq_was_emptied) const {
    ShortWrites next = *this;
    if (cq_was_emptied) {
      next.series_length_ = 0;
      next.short_series_ = std::min(short_series_ + 1, kShortSeriesToEndStream);
    }
    if (++next.series_length_ > kSeriesMax) next.short_series_ = 0;
    return next;
  }

  std::uint32_t series_length_ = 0;  // short WRITEs since the queue was emptied
  // Counts the short series since the last long series, up to kShortSeriesToEndStream.
  std::uint32_t short_series_ = kShortSeriesToEndStream;
};

}  // namespace verbena::hca
