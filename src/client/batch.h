#pragma once

#include <cstddef>

namespace verbena::client {

// The driving thread looks for posts of other threads after this many packets, about every ten
// microseconds.  A batch may have two thousand packets.
inline constexpr std::size_t kPacketsPerCheck = 16;

// Takes the packets of a batch.  In between it sends the posts of other threads, which could not
// get the drive lock meanwhile.
template <class Packets, class Take, class HasWork, class Send>
void take_batch(const Packets& packets, Take take, HasWork has_work, Send send) {
  std::size_t count = 0;
  for (const auto& packet : packets) {
    take(packet);
    if (++count % kPacketsPerCheck == 0 && has_work()) send();
  }
}

}  // namespace verbena::client
