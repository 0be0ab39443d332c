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

// Generates packets that a host must survive, as Ethernet frames.  A frame depends only on the
// seed, its number and the target.  So a test can make a packet again by its number.  The Target
// only supplies values (QP numbers, keys, ids, PSNs); no other choice depends on it.
//
// Each kRun packets with successive numbers are a run of one kind:
//
//  * grid: every opcode for every QP of the target with every length, in turn
//  * talk: messages and answers like those of the peer, with expected PSNs, and with one fault
//  * capture: frames of other implementations: shortened, with changed bits, joined from two
//    frames, and with other addresses
//  * mad: CM messages with ids that exist and ids that do not, and MADs of all classes
//  * framing: unusual IP and UDP headers: fragments, options, checksums, addresses
class Barrage {
 public:
  enum class Kind : std::uint8_t { kGrid, kTalk, kCapture, kMad, kFraming, kCount };
  static constexpr std::uint64_t kRun = 16;
  static constexpr std::size_t kBodyBytesMax = 4096 + 64;  // after the BTH; exceeds any payload
  static constexpr std::size_t kFrameBytesMax = 9216;
  // 02:00:00:00:78:01 and :02.
  static constexpr wire::MacAddress kVictimMac{std::byte{2},    {},          {}, {},
                                               std::byte{0x78}, std::byte{1}};
  static constexpr wire::MacAddress kPeerMac{std::byte{2},    {},          {}, {},
                                             std::byte{0x78}, std::byte{2}};

  struct Shot {
    std::span<const std::byte> frame{};
    Kind kind{};
    bool intact = true;  // IP and UDP are right, so the target's kernel must give it to a socket
  };

  // `captured`: Ethernet frames to mutate.  REQUIRES: the target outlives this object.  The target
  // may learn between two calls of shot().
  Barrage(std::uint64_t seed, const Target& target, std::vector<std::vector<std::byte>> captured);

  // Makes the frame with this number.  The result is valid until the next call.
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

  // Helpers that make parts of a packet.
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
  std::vector<Bytes> captured_;  // each from BTH to ICRC
  Bytes noise_;                  // random bytes; each payload is a part of them
  Random random_{0};

  wire::FrameHeaders headers_{};
  Bytes body_{};  // from BTH to pad
  Bytes frame_{};
  bool intact_ = true;
};

const char* to_string(Barrage::Kind kind);

}  // namespace verbena::wire_bench
