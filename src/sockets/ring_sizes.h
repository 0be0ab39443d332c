#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace verbena::sockets {

// Chooses the size of each connection's rings, by the number of connections that have rings now.
//
// A large ring has space for the bytes that a sender writes while its receiver waits for CPU time
// (stream/sender.h).  But the kernel needs a page table for each 2 MiB of addresses that a program
// has used, and an idle connection uses at least one page.  So if there are many connections, their
// rings are small: then 7 connections share a page table.
class RingSizes {
 public:
  struct SizeClass {
    std::size_t ring_bytes;       // size of the ring of each direction
    std::size_t connections_max;  // connections that may have this size at the same time
  };
  static constexpr std::size_t kLargeRingBytes = std::size_t{8} << 20;
  static constexpr std::size_t kLargeMax = 16;
  static constexpr std::size_t kMediumRingBytes = std::size_t{1} << 20;
  static constexpr std::size_t kMediumMax = 512;
  static constexpr std::size_t kSmallRingBytes = std::size_t{128} << 10;

  // Returns the largest size, up to `limit`, that the next connection may have.  Returns 0 if there
  // is no such size.
  std::size_t choose(std::size_t limit = kLargeRingBytes) const {
    for (std::size_t i = 0; i < kClasses.size(); ++i) {
      if (kClasses[i].ring_bytes <= limit && count_[i] < kClasses[i].connections_max) {
        return kClasses[i].ring_bytes;
      }
    }
    return 0;
  }
  // Call add() when the rings of a connection were made, and remove() when they were released.
  void add(std::size_t ring_bytes) { ++count_[index_of(ring_bytes)]; }
  void remove(std::size_t ring_bytes) { --count_[index_of(ring_bytes)]; }

 private:
  static constexpr std::array<SizeClass, 3> kClasses = {
      {{kLargeRingBytes, kLargeMax}, {kMediumRingBytes, kMediumMax}, {kSmallRingBytes, SIZE_MAX}}};
  static std::size_t index_of(std::size_t ring_bytes) {
    const auto* const entry = std::ranges::find(kClasses, ring_bytes, &SizeClass::ring_bytes);
    return static_cast<std::size_t>(entry - kClasses.begin());
  }

  std::array<std::size_t, kClasses.size()> count_{};
};

}  // namespace verbena::sockets
