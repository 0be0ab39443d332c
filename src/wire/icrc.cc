#include "wire/icrc.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "wire/bth.h"
#include "wire/crc_fold.h"
#include "wire/drop.h"

// A CRC register is a polynomial over GF(2) modulo P, with x^0 in its top bit.  A zero byte
// multiplies it by x^8.
namespace verbena::wire {
namespace {

constexpr std::uint32_t kPolynomial = 0xedb88320;  // P without x^32, in the same bit order
constexpr std::uint32_t kOne = 0x80000000;         // x^0

constexpr std::uint32_t times_x(std::uint32_t a) { return a >> 1 ^ (a & 1 ? kPolynomial : 0); }
constexpr std::uint32_t divided_by_x(std::uint32_t a) {
  return a & kOne ? (a ^ kPolynomial) << 1 | 1 : a << 1;
}

constexpr std::uint32_t times(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (int i = 0; i < 32; ++i) {
    product ^= b & -(a >> 31);
    a <<= 1;
    b = b >> 1 ^ (kPolynomial & -(b & 1));
  }
  return product;
}

// kSlices[k][b] is the register after the byte b and k zero bytes, if the register was 0 before.
// The tables need 16 KiB.
constexpr std::size_t kSlice = 16;
using Slices = std::array<std::array<std::uint32_t, 256>, kSlice>;
constexpr Slices kSlices = [] {
  Slices table{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t a = b;
    for (int i = 0; i < 8; ++i) a = times_x(a);
    table[0][b] = a;
  }
  for (std::size_t k = 1; k < kSlice; ++k) {
    for (std::size_t b = 0; b < 256; ++b) {
      const std::uint32_t a = table[k - 1][b];
      table[k][b] = a >> 8 ^ table[0][a & 0xff];
    }
  }
  return table;
}();

template <std::size_t Bytes>
constexpr std::uint64_t load_little(const std::byte* in) {
  std::array<std::byte, 8> buffer{};
  std::copy_n(in, Bytes, buffer.begin());
  const auto word = std::bit_cast<std::uint64_t>(buffer);
  return std::endian::native == std::endian::little ? word : std::byteswap(word);
}

// Returns the effect of eight bytes that are followed by `BytesAfter` other bytes in the same step.
template <std::size_t BytesAfter>
constexpr std::uint32_t slice(std::uint64_t bytes) {
  return kSlices[BytesAfter + 7][bytes & 0xff] ^ kSlices[BytesAfter + 6][bytes >> 8 & 0xff] ^
         kSlices[BytesAfter + 5][bytes >> 16 & 0xff] ^ kSlices[BytesAfter + 4][bytes >> 24 & 0xff] ^
         kSlices[BytesAfter + 3][bytes >> 32 & 0xff] ^ kSlices[BytesAfter + 2][bytes >> 40 & 0xff] ^
         kSlices[BytesAfter + 1][bytes >> 48 & 0xff] ^ kSlices[BytesAfter][bytes >> 56];
}

// Returns the register after `bytes`, without the complements at the start and end of a CRC.
constexpr std::uint32_t feed(std::uint32_t reg, std::span<const std::byte> bytes) {
  const std::byte* in = bytes.data();
  std::size_t remaining = bytes.size();
  for (; remaining >= 16; in += 16, remaining -= 16) {
    reg = slice<8>(load_little<8>(in) ^ reg) ^ slice<0>(load_little<8>(in + 8));
  }
  if (remaining >= 8) {
    reg = slice<0>(load_little<8>(in) ^ reg);
    in += 8;
    remaining -= 8;
  }
  if (remaining >= 4) {
    reg ^= static_cast<std::uint32_t>(load_little<4>(in));
    reg = kSlices[3][reg & 0xff] ^ kSlices[2][reg >> 8 & 0xff] ^ kSlices[1][reg >> 16 & 0xff] ^
          kSlices[0][reg >> 24];
    in += 4;
    remaining -= 4;
  }
  for (; remaining > 0; ++in, --remaining) {
    reg = reg >> 8 ^ kSlices[0][(reg ^ std::to_integer<std::uint32_t>(*in)) & 0xff];
  }
  return reg;
}

// Feeds the bytes in the fastest way that this processor supports.
std::uint32_t feed_fast(std::uint32_t reg, std::span<const std::byte> bytes) {
  if (bytes.size() >= kFoldBytesMin && can_fold()) {
    const std::size_t folded_bytes = bytes.size() - bytes.size() % kFoldStep;
    reg = feed(0, fold(reg, bytes.first(folded_bytes)));
    bytes = bytes.subspan(folded_bytes);
  }
  return feed(reg, bytes);
}

// kRegisterAfterOnes is the register after eight bytes 0xff, which replace the local route header.
constexpr std::uint32_t kRegisterAfterOnes = [] {
  std::array<std::byte, 8> ones;
  ones.fill(std::byte{0xff});
  return feed(0xffffffff, ones);
}();
static_assert(kRegisterAfterOnes == 0xdebb20e3);

void store_big(std::byte* out, std::uint64_t word) {
  if constexpr (std::endian::native == std::endian::little) word = std::byteswap(word);
  std::memcpy(out, &word, sizeof word);
}

// Writes the masked headers in only four stores, because the function runs for every packet.  The
// 28 bytes are not a multiple of eight, so the last two stores overlap in the UDP ports.
void write_masked_headers(std::span<std::byte, kSize<Ipv4Header> + kSize<UdpHeader>> out,
                          const IcrcInputs& inputs, std::size_t udp_bytes) {
  const std::uint64_t length = udp_bytes, id = inputs.identification;
  const std::uint64_t source = ipv4_address(inputs.source);
  const std::uint64_t destination = ipv4_address(inputs.destination);
  const std::uint64_t ports = std::uint64_t{inputs.source_port} << 16 | inputs.destination_port;
  store_big(&out[0], 0x45ff'0000'0000'4000 | (kSize<Ipv4Header> + length) << 32 | id << 16);
  store_big(&out[8], 0xff11'ffff'0000'0000 | source);
  store_big(&out[20], ports << 32 | (length << 16 | 0xffff));
  store_big(&out[16], destination << 32 | ports);
}

void write_masked_headers(std::span<std::byte, kSize<Ipv6Header> + kSize<UdpHeader>> out,
                          const IcrcInputs& inputs, std::size_t udp_bytes) {
  const auto length = static_cast<std::uint16_t>(udp_bytes);
  const Ipv6Header ip{.traffic_class = 0xff,
                      .flow_label = 0xfffff,
                      .payload_length = length,
                      .hop_limit = 0xff,
                      .source = inputs.source,
                      .destination = inputs.destination};
  const UdpHeader udp{.source_port = inputs.source_port,
                      .destination_port = inputs.destination_port,
                      .length = length,
                      .checksum = 0xffff};
  encode_to(out, ip);
  encode_to(out.subspan(kSize<Ipv6Header>), udp);
}

// compute_icrc() copies a short packet behind its headers, because feeding one long buffer is
// faster than feeding two buffers.  Of a longer packet, it copies only the BTH.
constexpr std::size_t kCopiedBytesMax = 256;

template <Message Ip>
std::uint32_t compute_icrc(const IcrcInputs& inputs, std::span<const std::byte> bth_to_pad) {
  constexpr std::size_t kBthAt = kSize<Ip> + kSize<UdpHeader>;
  std::array<std::byte, kBthAt + kCopiedBytesMax> buffer;
  const std::span out = buffer;
  write_masked_headers(out.template first<kBthAt>(), inputs,
                       kSize<UdpHeader> + bth_to_pad.size() + kIcrcBytes);
  const std::size_t copied_bytes =
      bth_to_pad.size() <= kCopiedBytesMax ? bth_to_pad.size() : kSize<Bth>;
  std::memcpy(buffer.data() + kBthAt, bth_to_pad.data(), copied_bytes);
  buffer[kBthAt + 4] = std::byte{0xff};  // FECN, BECN, reserved
  const std::uint32_t reg = feed_fast(kRegisterAfterOnes, out.first(kBthAt + copied_bytes));
  return ~(copied_bytes == bth_to_pad.size() ? reg
                                             : feed_fast(reg, bth_to_pad.subspan(copied_bytes)));
}

// kInversePowers[i] is x^(-32 i).  A multiplication by this value reverses the effect of i words of
// four zero bytes.  The table is large enough for every path MTU, so that a check needs one
// multiplication.
constexpr std::size_t kInversePowersMax = (4096 + 128) / 4;
constexpr auto kInversePowers = [] {
  std::array<std::uint32_t, kInversePowersMax + 1> table{};
  table[0] = kOne;
  for (std::size_t i = 1; i < table.size(); ++i) {
    std::uint32_t a = table[i - 1];
    for (int bit = 0; bit < 32; ++bit) a = divided_by_x(a);
    table[i] = a;
  }
  return table;
}();

// Returns the register before `zero_bytes` zero bytes, if `reg` is the register after them.
std::uint32_t undo_zeros(std::uint32_t reg, std::size_t zero_bytes) {
  for (; zero_bytes % 4 != 0; --zero_bytes) {
    for (int i = 0; i < 8; ++i) reg = divided_by_x(reg);
  }
  std::size_t words = zero_bytes / 4;
  for (; words > kInversePowersMax; words -= kInversePowersMax)
    reg = times(reg, kInversePowers[kInversePowersMax]);
  return times(reg, kInversePowers[words]);
}

}  // namespace

std::uint32_t crc32(std::uint32_t crc, std::span<const std::byte> bytes) {
  return ~feed_fast(~crc, bytes);
}

std::uint32_t icrc(const IcrcInputs& inputs, std::span<const std::byte> bth_to_pad) {
  VB_CHECK(bth_to_pad.size() >= kSize<Bth>);
  return is_ipv4(inputs.destination) ? compute_icrc<Ipv4Header>(inputs, bth_to_pad)
                                     : compute_icrc<Ipv6Header>(inputs, bth_to_pad);
}

std::optional<std::uint16_t> find_identification(const IcrcInputs& inputs,
                                                 std::span<const std::byte> bth_to_pad,
                                                 std::uint32_t received_icrc) {
  const std::uint32_t difference = icrc(inputs, bth_to_pad) ^ received_icrc;
  if (!is_ipv4(inputs.destination)) {
    return difference == 0 ? std::optional<std::uint16_t>(0) : std::nullopt;
  }
  if (difference == 0) return inputs.identification;

  // If only the identification differs, the registers of the two CRCs are equal before the
  // identification.  A CRC adds each byte to the lowest bits of the register.  So, if the steps for
  // all bytes from the identification on are undone, the difference of the registers is the
  // difference of the two identifications.  The first byte of the identification is in the lowest
  // bits, and the upper 16 bits are zero.
  constexpr std::size_t kHeaderBytesFromIdentification = kSize<Ipv4Header> - 4 + kSize<UdpHeader>;
  const std::uint32_t changed_bits =
      undo_zeros(difference, kHeaderBytesFromIdentification + bth_to_pad.size());
  if (changed_bits >> 16 != 0) return std::nullopt;
  return static_cast<std::uint16_t>(inputs.identification ^
                                    std::byteswap(static_cast<std::uint16_t>(changed_bits)));
}

Result<IcrcSplit> split_icrc(std::span<const std::byte> udp_payload) {
  if (udp_payload.size() < kSize<Bth> + kIcrcBytes) return drop(Drop::kTooShort);
  const auto stored = udp_payload.last<kIcrcBytes>();
  std::uint32_t icrc = 0;
  for (std::size_t i = 0; i < kIcrcBytes; ++i) {
    icrc |= std::to_integer<std::uint32_t>(stored[i]) << 8 * i;
  }
  return IcrcSplit{.bth_to_pad = udp_payload.first(udp_payload.size() - kIcrcBytes), .icrc = icrc};
}

void store_icrc(std::span<std::byte> out, std::uint32_t icrc) {
  VB_CHECK(out.size() >= kIcrcBytes);
  for (std::size_t i = 0; i < kIcrcBytes; ++i) out[i] = static_cast<std::byte>(icrc >> 8 * i);
}

}  // namespace verbena::wire
