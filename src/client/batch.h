#pragma once

#include <cstddef>

namespace verbena::client {

// The driving thread looks for posts of other threads after each group of this many packets.  That
// is about every ten microseconds; a whole batch may have two thousand packets.
inline constexpr std::size_t kPacketsPerCheck = 16;

// Calls take(packet) for each packet of a batch.  Every kPacketsPerCheck packets it calls send() if
// has_work() returns true.  So posts of other threads, which cannot get the drive lock, do not wait
// until the end of the batch.
template <class Packets, class Take, class HasWork, class Send>
void take_batch(const Packets& packets, Take take, HasWork has_work, Send send) {
  std::size_t count = 0;
  for (const auto& packet : packets) {
    take(packet);
    if (++count % kPacketsPerCheck == 0 && has_work()) send();
  }
}

}  // namespace verbena::client
