#include "wire/vcrc.h"

#include <array>

namespace verbena::wire {
namespace {

constexpr std::uint16_t kVariantPolynomial = 0xd008;  // 0x100b with its bits in reverse order

constexpr std::array<std::uint16_t, 256> kVariantTable = [] {
  std::array<std::uint16_t, 256> table{};
  for (std::size_t i = 0; i < table.size(); ++i) {
    auto value = static_cast<std::uint16_t>(i);
    for (int bit = 0; bit < 8; ++bit) {
      const bool low_bit = (value & 1) != 0;
      value = static_cast<std::uint16_t>((value >> 1) ^ (low_bit ? kVariantPolynomial : 0));
    }
    table[i] = value;
  }
  return table;
}();

}  // namespace

std::uint16_t vcrc(std::span<const std::byte> lrh_to_icrc) {
  std::uint16_t state = 0xffff;
  for (const std::byte byte : lrh_to_icrc) {
    const auto index = static_cast<std::uint8_t>(state ^ std::to_integer<std::uint16_t>(byte));
    state = static_cast<std::uint16_t>((state >> 8) ^ kVariantTable[index]);
  }
  return static_cast<std::uint16_t>(~state);
}

void store_vcrc(std::span<std::byte> out, std::uint16_t vcrc) {
  out[0] = static_cast<std::byte>(vcrc);
  out[1] = static_cast<std::byte>(vcrc >> 8);
}

}  // namespace verbena::wire
