#include "wire/icrc.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "wire/crc_fold.h"
#include "wire/drop.h"
#include "wire/hex.h"

namespace verbena::wire {
namespace {

std::vector<std::byte> random_bytes(Random& random, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.next());
  return bytes;
}

std::uint32_t crc_bit_by_bit(std::span<const std::byte> bytes) {
  std::uint32_t reg = 0xffffffff;
  for (std::byte b : bytes) {
    reg ^= std::to_integer<std::uint32_t>(b);
    for (int i = 0; i < 8; ++i) reg = reg & 1 ? reg >> 1 ^ 0xedb88320 : reg >> 1;
  }
  return ~reg;
}

TEST(Crc32, MatchesTheStandardCheckValue) {
  constexpr std::string_view kDigits = "123456789";
  EXPECT_EQ(crc32(0, std::as_bytes(std::span(kDigits))), 0xcbf43926);
  EXPECT_EQ(crc32(0, {}), 0u);
}

TEST(Crc32, IsCorrectForEveryLengthAndSplit) {
  Random random(1);
  const auto bytes = random_bytes(random, 200);
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    const auto part = std::span(bytes).first(size);
    const std::uint32_t expected = crc_bit_by_bit(part);
    ASSERT_EQ(crc32(0, part), expected) << size;
    const std::size_t cut = random.below(size + 1);
    ASSERT_EQ(crc32(crc32(0, part.first(cut)), part.subspan(cut)), expected) << size << ' ' << cut;
  }
}

// fold() processes 64 bytes in one step if there are at least 128 bytes, else 16 bytes.  Tables
// process the remaining bytes.
TEST(Crc32, IsCorrectForLongDataAtEveryAlignment) {
  Random random(2);
  const auto bytes = random_bytes(random, 4400);
  for (std::size_t begin = 0; begin < 16; ++begin) {
    for (const std::size_t size :
         {31u, 32u, 33u, 63u, 64u, 79u, 127u, 128u, 143u, 191u, 192u, 1036u, 4096u, 4140u}) {
      const auto part = std::span(bytes).subspan(begin, size);
      ASSERT_EQ(crc32(0, part), crc_bit_by_bit(part)) << begin << ' ' << size;
    }
  }
}

// Tests fold() if the processor supports carry-less multiplication.
TEST(CrcFold, FoldingDoesNotChangeTheCrc) {
  if (!can_fold()) return;
  Random random(3);
  for (std::size_t size = kFoldBytesMin; size <= 512; size += kFoldStep) {
    const auto bytes = random_bytes(random, size);
    const auto rest = fold(0xffffffff, bytes);
    // crc32() complements its argument, so 0xffffffff means register 0.
    ASSERT_EQ(crc32(0xffffffff, rest), crc_bit_by_bit(bytes)) << size;
  }
}

// captures_test.cc checks the ICRCs of Linux.  The following tests check how an ICRC is computed.
constexpr IcrcInputs kFlow{.source = ipv4_gid(0x0a4d0002),
                           .destination = ipv4_gid(0x0a4d0003),
                           .source_port = 0xf742,
                           .identification = 0x1234};
constexpr auto kAck = hex<"1100ffff 00000011 002e7e4e 1f000001">();

// Compares the ICRC with a CRC over the masked bytes, which are written by hand.
TEST(Icrc, MasksFieldsThatRoutersMayChange) {
  const auto pseudo =
      hex<"ffffffffffffffff"
          "45ff0030 1234 4000 ff11 ffff 0a4d0002 0a4d0003"
          "f742 12b7 001c ffff"
          "1100ffff ff000011 002e7e4e 1f000001">();
  EXPECT_EQ(icrc(kFlow, kAck), crc_bit_by_bit(pseudo));

  auto marked = kAck;
  marked[4] = std::byte{0xc0};  // a router has set FECN and BECN
  EXPECT_EQ(icrc(kFlow, marked), icrc(kFlow, kAck));
}

// icrc() copies short packets behind their headers and feeds them in one step.  It feeds longer
// packets in two steps.
TEST(Icrc, IsCorrectForPacketsOfEveryShortLength) {
  Random random(4);
  for (std::size_t size = kAck.size(); size <= 600; ++size) {
    auto packet = random_bytes(random, size);
    packet[4] = std::byte{0xff};
    const auto length = [](std::size_t bytes) {
      return std::vector{static_cast<std::byte>(bytes >> 8), static_cast<std::byte>(bytes)};
    };
    std::vector<std::byte> pseudo;
    const auto add = [&](const auto& bytes) {
      pseudo.insert(pseudo.end(), std::begin(bytes), std::end(bytes));
    };
    add(hex<"ffffffffffffffff 45ff">());
    add(length(20 + 8 + size + kIcrcBytes));
    add(hex<"1234 4000 ff11 ffff 0a4d0002 0a4d0003 f742 12b7">());
    add(length(8 + size + kIcrcBytes));
    add(hex<"ffff">());
    add(packet);
    ASSERT_EQ(icrc(kFlow, packet), crc_bit_by_bit(pseudo)) << size;
  }
}

TEST(Icrc, OverIpv6MasksTrafficClassFlowLabelAndHopLimit) {
  IcrcInputs flow{.source_port = 0xc001};
  flow.source.bytes[0] = flow.destination.bytes[0] = std::byte{0xfd};
  flow.source.bytes[15] = std::byte{1};
  flow.destination.bytes[15] = std::byte{2};
  const auto pseudo =
      hex<"ffffffffffffffff"
          "6fffffff 001c 11 ff fd000000000000000000000000000001 fd000000000000000000000000000002"
          "c001 12b7 001c ffff"
          "1100ffff ff000011 002e7e4e 1f000001">();
  EXPECT_EQ(icrc(flow, kAck), crc_bit_by_bit(pseudo));
  EXPECT_EQ(find_identification(flow, kAck, icrc(flow, kAck)), 0);
  EXPECT_EQ(find_identification(flow, kAck, icrc(flow, kAck) ^ 1), std::nullopt);
}

TEST(Icrc, FindsEveryIdentification) {
  for (unsigned id = 0; id < 0x10000; ++id) {
    IcrcInputs sent = kFlow;
    sent.identification = static_cast<std::uint16_t>(id);
    IcrcInputs guess = kFlow;
    guess.identification = 0;
    ASSERT_EQ(find_identification(guess, kAck, icrc(sent, kAck)), id);
  }
}

TEST(Icrc, FindsTheIdentificationForShortAndLongPackets) {
  Random random(2);
  for (std::size_t size : {12, 13, 14, 15, 16, 40, 1036, 4108, 4180, 8000, 9000, 65000, 65001}) {
    const auto packet = random_bytes(random, size);
    IcrcInputs sent = kFlow;
    sent.identification = static_cast<std::uint16_t>(random.next());
    IcrcInputs guess = kFlow;
    guess.identification = static_cast<std::uint16_t>(random.next());  // a wrong guess
    EXPECT_EQ(find_identification(guess, packet, icrc(sent, packet)), sent.identification) << size;
    EXPECT_EQ(find_identification(sent, packet, icrc(sent, packet)), sent.identification) << size;
  }
}

TEST(Icrc, NoIdentificationMatchesADamagedPacket) {
  Random random(3);
  const auto packet = random_bytes(random, 1036);
  IcrcInputs guess = kFlow;
  guess.identification = 0;
  const std::uint32_t sum = icrc(kFlow, packet);
  int accepted = 0;
  for (std::size_t bit = 0; bit < packet.size() * 8; ++bit) {
    auto damaged = packet;
    damaged[bit / 8] ^= std::byte{1} << bit % 8;
    if (bit / 8 == 4) continue;  // the ICRC does not cover this byte
    accepted += find_identification(guess, damaged, sum).has_value() ? 1 : 0;
  }
  EXPECT_EQ(accepted, 0);
  for (int i = 0; i < 32; ++i) {
    accepted += find_identification(guess, packet, sum ^ 1u << i).has_value() ? 1 : 0;
  }
  EXPECT_EQ(accepted, 0);
}

TEST(Icrc, IsStoredLeastSignificantByteFirst) {
  std::array<std::byte, 20> payload{};
  std::ranges::copy(kAck, payload.begin());
  store_icrc(std::span(payload).subspan(16), 0x7adba7cb);
  EXPECT_EQ(payload, (hex<"1100ffff 00000011 002e7e4e 1f000001 cba7db7a">()));
  const auto split = split_icrc(payload);
  ASSERT_TRUE(split.has_value());
  EXPECT_EQ(split->icrc, 0x7adba7cb);
  EXPECT_EQ(split->bth_to_pad.size(), 16u);
}

TEST(Icrc, RejectsPayloadsShorterThanBthAndIcrc) {
  for (std::size_t size = 0; size < 16; ++size) {
    const std::vector<std::byte> bytes(size);
    const auto split = split_icrc(bytes);
    ASSERT_FALSE(split.has_value());
    EXPECT_EQ(drop_reason(split.error()), Drop::kTooShort);
  }
}

}  // namespace
}  // namespace verbena::wire
