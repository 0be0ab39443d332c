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
// seed, its number, the captured frames and the Target.  So a test can generate a packet again from
// its number, if the Target has the same contents (QP numbers, keys, ids, PSNs).
//
// A run is kPacketsPerRun packets with successive numbers, which are all of one kind:
//
//  * grid: one combination of opcode, QP and length after another, until all have been sent
//  * traffic: messages with expected PSNs and at most one faulty packet, or answers with expected
//    and other PSNs
//  * capture: frames of other implementations, most of which are shortened or lengthened, have
//    changed bits or other addresses, or are joined from two frames
//  * mad: CM messages with ids that exist and with ids that do not, and MADs of all classes
//  * framing: unusual IP and UDP headers: fragments, options, checksums, addresses
class Barrage {
 public:
  enum class Kind : std::uint8_t { kGrid, kTraffic, kCapture, kMad, kFraming, kCount };
  static constexpr std::uint64_t kPacketsPerRun = 16;
  static constexpr std::size_t kBodyBytesMax = 4096 + 64;  // after the BTH; exceeds any payload
  static constexpr std::size_t kFrameBytesMax = 9216;
  // 02:00:00:00:78:01 and :02.
  static constexpr wire::MacAddress kVictimMac{std::byte{2},    {},          {}, {},
                                               std::byte{0x78}, std::byte{1}};
  static constexpr wire::MacAddress kPeerMac{std::byte{2},    {},          {}, {},
                                             std::byte{0x78}, std::byte{2}};

  struct Packet {
    std::span<const std::byte> frame{};
    Kind kind{};
    bool is_intact = true;  // IP and UDP are valid: the target's kernel must give it to a socket
  };

  // Returns the number of bytes after the BTH that most packets of one pass of the grid have.
  static std::uint64_t grid_length(std::uint64_t pass);

  // `captured` has Ethernet frames to mutate.  The target may learn facts between two calls of
  // packet_at().  REQUIRES: the target outlives this object.
  Barrage(std::uint64_t seed, const Target& target, std::vector<std::vector<std::byte>> captured);

  // Makes the frame with this number.  The result is valid until the next call.
  Packet packet_at(std::uint64_t number);

 private:
  using Bytes = std::vector<std::byte>;
  struct Exchange;

  void make_grid_packet(std::uint64_t number);
  void make_traffic_packet(std::uint64_t number);
  void make_message(const Exchange& exchange, std::uint32_t index);
  void make_answer(const Target::Qp& qp);
  void make_capture_packet();
  void make_mad_packet();
  void write_cm_mad();
  void make_framing_packet();
  void break_ipv4(std::size_t ip);
  void break_udp(std::size_t udp);

  // Helpers that make parts of a packet.
  std::uint64_t below(std::uint64_t bound) { return random_.below(bound); }  // a random number
  bool one_in(std::uint32_t n) { return below(n) == 0; }  // is true with probability 1/n
  void add_random(std::size_t bytes);
  void write_body(const wire::TransportPacket& packet, std::size_t payload_bytes);
  void flip_bits();
  std::uint32_t choose_id(bool wants_target_id);
  Target::Region choose_region();
  Psn choose_psn_near(Psn psn);
  wire::TransportPacket headers_for(const Target::Qp& qp, wire::Opcode opcode);
  void set_peer_addresses(bool is_ipv6);
  void redirect_from_spared();
  void avoid_spared_port();
  void write_frame(bool has_right_icrc);

  std::uint64_t seed_;
  const Target& target_;
  std::vector<Bytes> captured_;  // each from BTH to ICRC
  Bytes noise_;                  // random bytes, from which payloads are copied
  Random random_{0};

  wire::FrameHeaders headers_{};
  Bytes body_{};  // from BTH to pad
  Bytes frame_{};
  bool is_intact_ = true;
};

const char* to_string(Barrage::Kind kind);

}  // namespace verbena::wire_bench
