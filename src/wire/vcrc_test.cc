#include "wire/vcrc.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "wire/hex.h"
#include "wire/test_example.h"

namespace verbena::wire {
namespace {

// Computes the VCRC by a polynomial division bit by bit, in the order of the wire, as the
// specification describes it.
std::uint16_t remainder_of(std::span<const std::byte> bytes) {
  std::uint16_t state = 0xffff;
  for (const std::byte byte : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const bool in = (std::to_integer<unsigned>(byte) >> bit & 1) != 0;
      const bool out = (state & 0x8000) != 0;
      state = static_cast<std::uint16_t>(state << 1 ^ (in != out ? 0x100b : 0));
    }
  }
  return static_cast<std::uint16_t>(~state);
}

std::uint16_t reversed(std::uint16_t value) {
  std::uint16_t out = 0;
  for (int bit = 0; bit < 16; ++bit) out |= (value >> bit & 1) << (15 - bit);
  return out;
}

// The bytes on the wire are 45 fa.  An independent program computes the same VCRC.
TEST(Vcrc, MatchesTheExampleOfTheSpecification) {
  std::array<std::byte, kVcrcBytes> stored{};
  store_vcrc(stored, vcrc(kExamplePacket));
  EXPECT_EQ(stored, hex<"45fa">());
}

TEST(Vcrc, HasTheExpectedValueForTheDigitsOneToNine) {
  EXPECT_EQ(vcrc(std::as_bytes(std::span(std::string_view("123456789")))), 0x0a3d);
}

TEST(Vcrc, IsTheRemainderOfADivisionOfPolynomials) {
  Random random(7);
  for (std::size_t length = 0; length < 300; ++length) {
    std::vector<std::byte> bytes(length);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
    EXPECT_EQ(vcrc(bytes), reversed(remainder_of(bytes))) << length;
  }
}

// A receiver can divide a packet and its VCRC together.  Every valid packet has the same remainder.
TEST(Vcrc, ValidPacketsHaveTheSameRemainder) {
  std::vector<std::byte> packet(kExamplePacket.begin(), kExamplePacket.end());
  const auto with_vcrc = [](std::vector<std::byte> bytes) {
    bytes.resize(bytes.size() + kVcrcBytes);
    store_vcrc(std::span(bytes).last(kVcrcBytes),
               vcrc(std::span(bytes).first(bytes.size() - kVcrcBytes)));
    return bytes;
  };
  const std::uint16_t remainder = vcrc(with_vcrc(packet));
  EXPECT_EQ(vcrc(with_vcrc({packet.begin(), packet.begin() + 20})), remainder);
  std::vector<std::byte> damaged = with_vcrc(packet);
  for (std::size_t bit = 0; bit < damaged.size() * 8; ++bit) {
    damaged[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    EXPECT_NE(vcrc(damaged), remainder) << bit;
    damaged[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
  }
}

}  // namespace
}  // namespace verbena::wire
