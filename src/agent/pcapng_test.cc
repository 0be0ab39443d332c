#include "agent/pcapng.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

namespace verbena::agent::pcapng {
namespace {

// Formats bytes as lines of words in hexadecimal.
std::string hex(const Bytes& bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    text += fmt::format("{:02x}", std::to_integer<unsigned>(bytes[i]));
    if (i % 4 == 3) text += i % 16 == 15 ? "\n" : " ";
  }
  return text;
}

TEST(Pcapng, BeginsWithASectionOfVersion1) {
  Bytes out;
  section_header(out, "ab", "c");
  EXPECT_EQ(hex(out),
            "0a0d0d0a 30000000 4d3c2b1a 01000000\n"  // type, length 48, magic, 1.0
            "ffffffff ffffffff 04000200 61620000\n"  // no section length; application
            "01000100 63000000 00000000 30000000\n");
}

TEST(Pcapng, DescribesAnEthernetInterfaceInNanoseconds) {
  Bytes out;
  interface_description(out, "v0");
  EXPECT_EQ(hex(out),
            "01000000 28000000 01000000 00000000\n"  // link type 1, any length
            "02000200 76300000 09000100 09000000\n"  // name, 10^-9 s
            "00000000 28000000 ");
}

TEST(Pcapng, WritesAPacketWithTimeDirectionAndPadding) {
  Bytes out;
  const std::array frame{std::byte{0xaa}, std::byte{0xbb}, std::byte{0xcc}};
  enhanced_packet(out, 0x0102030405060708, link::Direction::kOut, frame);
  EXPECT_EQ(hex(out),
            "06000000 30000000 00000000 04030201\n"  // the upper half of the time first
            "08070605 03000000 03000000 aabbcc00\n"
            "02000400 02000000 00000000 30000000\n");
}

TEST(Pcapng, DescribesAnInfinibandInterfaceAsErf) {
  Bytes out;
  interface_description(out, "ib", LinkLayer::kInfiniband);
  EXPECT_EQ(hex(out).substr(18, 8), "c5000000");  // link type 197
}

TEST(Pcapng, WrapsAnInfinibandPacketIntoAnErfRecord) {
  const std::array packet{std::byte{0xaa}, std::byte{0xbb}, std::byte{0xcc}};
  // The time of 1.5 s is 1 second and 2^31 parts of 2^32.  The record has 19 bytes, and its packet
  // 3.
  EXPECT_EQ(hex(erf_infiniband(1'500'000'000, packet)),
            "00000080 01000000 15040013 00000003\n"
            "aabbcc");
}

TEST(Pcapng, EndsWithTheNumberOfDroppedPackets) {
  Bytes out;
  interface_statistics(out, {.start_ns = 1, .end_ns = 2, .received = 7, .dropped = 3});
  EXPECT_EQ(hex(out),
            "05000000 4c000000 00000000 00000000\n"
            "02000000 02000800 00000000 01000000\n"
            "03000800 00000000 02000000 04000800\n"
            "07000000 00000000 05000800 03000000\n"
            "00000000 00000000 4c000000 ");
}

}  // namespace
}  // namespace verbena::agent::pcapng
