#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "link/address.h"

namespace verbena::link {

// Collects packets to send: the engine fills a burst, and a link sends it.  The constructor
// allocates all memory; adding a packet allocates none.
//
// Each packet is a UDP payload: the bytes from BTH to pad, and space for the ICRC.  The link writes
// the ICRC, because only the link knows the IP identification.
//
// Invariant: packets of one flow are in the order in which they must arrive.
class Burst {
 public:
  static constexpr std::size_t kPacketsMax = 64;
  static constexpr std::size_t kPacketBytesMax = 4096 + 128;  // for payload, headers and pad
  static constexpr std::size_t kIcrcBytes = 4;

  struct Packet {
    Address address;
    std::uint32_t offset;  // in the burst's memory
    std::uint32_t bytes;   // BTH to pad, without ICRC
  };

  Burst() : memory_(std::make_unique_for_overwrite<std::byte[]>(kMemoryBytes)) {
    packets_.reserve(kPacketsMax);
  }

  bool full() const { return packets_.size() == kPacketsMax; }
  bool empty() const { return packets_.empty(); }
  std::size_t size() const { return packets_.size(); }
  // Returns the number of packets that can still be added.
  std::size_t free_packets() const { return kPacketsMax - packets_.size(); }

  // Returns memory for one more packet, kPacketBytesMax long.  REQUIRES: !full().
  std::span<std::byte> prepare() {
    VB_CHECK(!full());
    return {memory_.get() + used_bytes_, kPacketBytesMax};
  }
  // Adds the first `bytes` of the memory from prepare() as a packet.
  void commit(const Address& address, std::size_t bytes) {
    VB_CHECK(bytes <= kPacketBytesMax);
    packets_.push_back(
        {address, static_cast<std::uint32_t>(used_bytes_), static_cast<std::uint32_t>(bytes)});
    used_bytes_ += bytes + kIcrcBytes;
  }
  void clear() {
    packets_.clear();
    used_bytes_ = 0;
  }

  std::span<const Packet> packets() const { return packets_; }
  // Returns the packet from BTH to pad.
  std::span<const std::byte> transport(const Packet& p) const {
    return {memory_.get() + p.offset, p.bytes};
  }
  // Returns the packet from BTH to ICRC; the link writes the last four bytes.
  std::span<std::byte> datagram(const Packet& p) {
    return {memory_.get() + p.offset, p.bytes + kIcrcBytes};
  }

 private:
  static constexpr std::size_t kMemoryBytes = kPacketsMax * (kPacketBytesMax + kIcrcBytes);

  std::unique_ptr<std::byte[]> memory_;
  std::vector<Packet> packets_;
  std::size_t used_bytes_ = 0;
};

}  // namespace verbena::link
