#pragma once

#include <algorithm>
#include <cstdint>

namespace verbena::hca {

// Distinguishes a stream of short WRITEs from single short WRITEs.  A stream should go as packets.
// The initiator should carry out single WRITEs by itself (direct_access.h).
//
// As a direct access, a short WRITE costs a system call.  As a packet it costs a third of that, if
// the target is receiving packets already.  But a program that waits for the effect of its WRITE
// should not wait until the target runs.  Such a program posts a few requests, and then finds its
// completion queue empty.  The posts between two such polls are a row.  A long row begins a stream,
// and several short rows end the stream.
class ShortWrites {
 public:
  // A row longer than this begins a stream.
  static constexpr std::uint32_t kRowMax = 8;
  // This number of short rows ends a stream.
  static constexpr std::uint32_t kRows = 4;

  // Returns true if the next short WRITE belongs to a stream.  `looked` tells that since the last
  // short WRITE the program has found its completion queue empty, or has emptied it.
  bool is_stream(bool looked) const { return with_next(looked).short_rows_ < kRows; }
  // Notes a short WRITE that is started.
  void started(bool looked) { *this = with_next(looked); }

 private:
  ShortWrites with_next(bool looked) const {
    ShortWrites next = *this;
    if (looked) {
      next.row_ = 0;
      next.short_rows_ = std::min(short_rows_ + 1, kRows);
    }
    if (++next.row_ > kRowMax) next.short_rows_ = 0;
    return next;
  }

  std::uint32_t row_ = 0;             // short WRITEs since the program has looked
  std::uint32_t short_rows_ = kRows;  // short rows since the last long row, at most kRows
};

}  // namespace verbena::hca
