#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace verbena::sockets {

// Chooses the size of each connection's rings by the number of connections that have rings now.
//
// A large ring holds what a sender writes while its receiver waits for a processor
// (stream/sender.h).  But each program's kernel keeps a page table for each 2 MiB of addresses that
// were used, and an idle connection uses at least one page.  So the rings of many connections are
// small: then 15 connections share a page table.
class RingSizes {
 public:
  struct Class {
    std::size_t ring_bytes;       // size of the ring of each direction
    std::size_t connections_max;  // connections that may have this size at the same time
  };
  static constexpr std::size_t kLargeRingBytes = std::size_t{8} << 20;
  static constexpr std::size_t kLargeMax = 16;
  static constexpr std::size_t kRingBytes = std::size_t{1} << 20;
  static constexpr std::size_t kRingMax = 512;
  static constexpr std::size_t kSmallRingBytes = std::size_t{128} << 10;

  // Returns the largest size that the next connection may have, at most `limit`; 0 if there is
  // none.
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
  static constexpr std::array<Class, 3> kClasses = {
      {{kLargeRingBytes, kLargeMax}, {kRingBytes, kRingMax}, {kSmallRingBytes, SIZE_MAX}}};
  static std::size_t index_of(std::size_t ring_bytes) {
    const auto* const entry = std::ranges::find(kClasses, ring_bytes, &Class::ring_bytes);
    return static_cast<std::size_t>(entry - kClasses.begin());
  }

  std::array<std::size_t, kClasses.size()> count_{};
};

}  // namespace verbena::sockets
