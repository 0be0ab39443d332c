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
#include "link/flow.h"

// Packets on their way from a program to the capture file.  The program writes each packet that it
// sends or receives into a ring of shared memory and goes on; the agent empties the rings of all
// programs, puts the packets in order of time, and writes the file.  A ring that is full counts
// what it drops; it never makes the program wait.
namespace verbena::link {

enum class Direction : std::uint8_t { kIn = 1, kOut = 2 };  // as pcapng's epb_flags

struct CaptureRecord {
  Time time{};
  Direction direction{};
  std::vector<std::byte> frame{};  // Ethernet to ICRC
};

// One writer (the engine's driver), one reader (the agent), in memory that both map.  Neither
// trusts what the other can write: every number is copied, then checked, then used.
class CaptureRing {
 public:
  static constexpr std::size_t kBytes = std::size_t{4} << 20;  // 950 packets of MTU 4096
  static constexpr std::size_t kFrameBytesMax = 4096 + 256;

  // `memory` is kBytes long, zeroed when new, aligned to 8 bytes, and outlives the ring.
  explicit CaptureRing(std::span<std::byte> memory);

  // `datagram` is the UDP payload, BTH to ICRC.
  void write(Time time, Direction direction, const Flow& flow, std::uint16_t identification,
             std::span<const std::byte> datagram);

  // The oldest record, or none.  A ring with nonsense in it is kMalformed, for good.
  Result<std::optional<CaptureRecord>> read();
  // How many records did not fit, so far.
  std::uint64_t dropped() const;
  // More than half full: time to empty it.
  bool filling() const;

 private:
  struct Control;
  void copy_in(std::uint64_t at, std::span<const std::byte> bytes);
  void copy_out(std::uint64_t at, std::span<std::byte> bytes) const;

  Control* control_;
  std::span<std::byte> data_;
};

// The Ethernet frame around a RoCEv2 datagram.  There is no Ethernet below a socket, so the MAC
// addresses are made from the IP addresses, locally administered.
std::size_t write_frame(std::span<std::byte> out, const Flow& flow, std::uint16_t identification,
                        std::span<const std::byte> datagram);

}  // namespace verbena::link
