#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "link/address.h"

// Carries packets from a program to the capture file.  The program writes each packet that it sends
// or receives to a ring in shared memory.  The agent empties the rings of all programs, sorts the
// packets by time, and writes the file.  A full ring drops and counts packets; the program never
// waits.
namespace verbena::link {

enum class Direction : std::uint8_t { kIn = 1, kOut = 2 };  // the numbers of pcapng's epb_flags

struct CaptureRecord {
  Time time{};
  Direction direction{};
  std::vector<std::byte> frame{};  // Ethernet to ICRC, or LRH to VCRC
  LinkLayer link_layer = LinkLayer::kEthernet;
};

// Connects one writer (the engine's driver) and one reader (the agent) by a ring in memory that
// both map.  Neither side trusts the other: each side copies a number, then checks the copy, and
// only then uses it.
class CaptureRing {
 public:
  static constexpr std::size_t kBytes = std::size_t{4} << 20;  // at least 950 packets of MTU 4096
  static constexpr std::size_t kFrameBytesMax = 4096 + 256;

  // REQUIRES: `memory` is kBytes long, zeroed when new, aligned to 64 bytes, and outlives the ring.
  explicit CaptureRing(std::span<std::byte> memory);

  // Writes a packet as a frame (write_frame()).  `datagram` contains the bytes from BTH to ICRC.
  // If the ring has no space, or the frame is longer than kFrameBytesMax, counts the packet as
  // dropped.
  void write(Time time, Direction direction, const Address& address, std::uint16_t identification,
             std::span<const std::byte> datagram);

  // Removes and returns the oldest record.  Returns none if the ring is empty.  kMalformed: the
  // ring's memory is corrupt; nothing was removed, so do not read from the ring again.
  Result<std::optional<CaptureRecord>> read();
  // Returns the number of packets that write() has dropped.
  std::uint64_t dropped() const;
  // Returns true if the ring is more than half full and should be emptied.
  bool is_filling_up() const;

 private:
  struct Control;
  void copy_in(std::uint64_t position, std::span<const std::byte> bytes);
  void copy_out(std::uint64_t position, std::span<std::byte> bytes) const;

  Control* control_;
  std::span<std::byte> data_;
};

// Returns the size of the frame that write_frame() writes for a datagram of this size.
std::size_t frame_bytes(const Address& address, std::size_t datagram_bytes);

// Writes a frame around a datagram (the bytes from BTH to ICRC), and returns the size of the frame.
// On Ethernet the frame ends with the ICRC.  A socket does not return the Ethernet header, so the
// MAC addresses are derived from the IP addresses (locally administered).  On InfiniBand the frame
// begins with the LRH and ends with the VCRC.  This function computes the ICRC of such a frame, and
// ignores the ICRC of the datagram.
std::size_t write_frame(std::span<std::byte> out, const Address& address,
                        std::uint16_t identification, std::span<const std::byte> datagram);

}  // namespace verbena::link
