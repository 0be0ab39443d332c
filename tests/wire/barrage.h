#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "target.h"
#include "wire/headers.h"
#include "wire/ip.h"

namespace verbena::wire_bench {

// Generates packets that a host must survive: Ethernet frames, made from a seed and a number.  The
// same seed, number and target give the same frame, so a number is enough to make a packet again.
// The Target only supplies names (QP numbers, keys, ids); no other choice depends on it.
//
// Numbers come in runs of kRun packets of one kind:
//
//  * grid: every opcode x every QP of the target x every length, in turn
//  * talk: messages and answers like those of a peer, inside the QP's window, with one fault
//  * capture: frames of other implementations, cut, flipped, spliced and with other addresses
//  * mad: CM messages with ids that exist and ids that do not; MADs of all classes
//  * framing: changes of IP and UDP: fragments, options, checksums, addresses
class Barrage {
 public:
  enum class Kind : std::uint8_t { kGrid, kTalk, kCapture, kMad, kFraming, kCount };
  static constexpr std::uint64_t kRun = 16;
  static constexpr std::size_t kBodyBytesMax = 4096 + 64;  // after the BTH: more than any payload
  static constexpr std::size_t kFrameBytesMax = 9216;
  // 02:00:00:00:78:01 and :02.
  static constexpr wire::MacAddress kVictimMac{std::byte{2},    {},          {}, {},
                                               std::byte{0x78}, std::byte{1}};
  static constexpr wire::MacAddress kPeerMac{std::byte{2},    {},          {}, {},
                                             std::byte{0x78}, std::byte{2}};

  struct Shot {
    std::span<const std::byte> frame{};
    Kind kind{};
    bool intact = true;  // IP and UDP are right, so the target's kernel must pass it to a socket
  };

  // `captured`: Ethernet frames to mutate.  REQUIRES: the target outlives this object; it may learn
  // meanwhile.
  Barrage(std::uint64_t seed, const Target& target, std::vector<std::vector<std::byte>> captured);

  // Valid until the next call.
  Shot shot(std::uint64_t number);

 private:
  using Bytes = std::vector<std::byte>;
  struct Talk;

  void grid(std::uint64_t number);
  void talk(std::uint64_t number);
  void say(const Talk& talk, std::uint32_t index);
  void answer(const Target::Qp& qp);
  void capture();
  void mad();
  void cm_mad();
  void framing();
  void break_ipv4(std::size_t ip);
  void break_udp(std::size_t udp);

  // Helpers for the packet that is being made.
  std::uint64_t below(std::uint64_t bound) { return random_.below(bound); }
  bool one_in(std::uint32_t n) { return below(n) == 0; }
  void add_random(std::size_t bytes);
  void put(const wire::TransportPacket& packet, std::size_t payload_bytes);
  void flip_bits();
  std::uint32_t some_id(bool theirs);
  Target::Region some_region();
  Psn near(Psn psn);
  wire::TransportPacket headers_for(const Target::Qp& qp, wire::Opcode opcode);
  void from_peer(bool ipv6);
  void spare();
  void spare_listener();
  void frame_it(bool right_icrc);

  std::uint64_t seed_;
  const Target& target_;
  std::vector<Bytes> captured_;  // BTH to ICRC
  Bytes noise_;                  // random bytes to cut payloads from
  Random random_{0};

  wire::FrameHeaders headers_{};
  Bytes body_{};  // BTH to pad
  Bytes frame_{};
  bool intact_ = true;
};

const char* to_string(Barrage::Kind kind);

}  // namespace verbena::wire_bench
