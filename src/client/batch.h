#pragma once

#include <cstddef>

namespace verbena::client {

// Whoever drives looks for posts of other threads each time it has taken so many packets, which is
// some ten microseconds.  A batch may have two thousand.
inline constexpr std::size_t kPacketsPerLook = 16;

// Takes the packets of a batch, and sends in between what other threads have posted meanwhile: they
// found the drive lock taken.
template <class Packets, class Take, class HasWork, class Send>
void take_batch(const Packets& packets, Take take, HasWork has_work, Send send) {
  std::size_t taken = 0;
  for (const auto& packet : packets) {
    take(packet);
    if (++taken % kPacketsPerLook == 0 && has_work()) send();
  }
}

}  // namespace verbena::client
