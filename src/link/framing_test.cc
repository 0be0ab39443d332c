#include "link/framing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "base/random.h"
#include "link/burst.h"
#include "link/capture.h"
#include "wire/drop.h"
#include "wire/ip.h"

namespace verbena::link {
namespace {

const Address kFlow4{.source = wire::ipv4_gid(0x0a000001),
                     .destination = wire::ipv4_gid(0x0a000002),
                     .source_port = 0xc123};

std::vector<std::byte> sealed_datagram(const Address& address, std::size_t transport_bytes,
                                       std::uint16_t id) {
  std::vector<std::byte> datagram(transport_bytes + Burst::kIcrcBytes);
  for (std::size_t i = 0; i < transport_bytes; ++i) datagram[i] = static_cast<std::byte>(i * 7);
  seal(address, datagram, id);
  return datagram;
}

TEST(Framing, SealedDatagramsWithAnyIdentificationAreAccepted) {
  for (const unsigned id : {0u, 1u, 63u, 0xffffu}) {
    const auto datagram = sealed_datagram(kFlow4, 64, static_cast<std::uint16_t>(id));
    const auto arrival = open(kFlow4, datagram);
    ASSERT_TRUE(arrival);
    EXPECT_EQ(arrival->transport.size(), 64u);
  }
}

TEST(Framing, TheIdentificationThatTheSenderUsedIsFound) {
  for (const unsigned id : {0u, 1u, 63u, 0xffffu}) {
    const auto datagram = sealed_datagram(kFlow4, 64, static_cast<std::uint16_t>(id));
    EXPECT_EQ(identification_of(kFlow4, datagram), id);
  }
}

TEST(Framing, DamagedAndShortDatagramsHaveIdentification0) {
  auto damaged = sealed_datagram(kFlow4, 64, 5);
  damaged[30] ^= std::byte{1};
  damaged[31] ^= std::byte{2};
  damaged[32] ^= std::byte{3};
  EXPECT_EQ(identification_of(kFlow4, damaged), 0);
  EXPECT_EQ(identification_of(kFlow4, std::vector<std::byte>(8)), 0);
}

TEST(Framing, EachWrongBitThatTheIcrcProtectsIsDetectedOverIpv6) {
  Address address;
  address.source.bytes[15] = address.destination.bytes[15] = std::byte{1};
  auto datagram = sealed_datagram(address, 20, 0);
  for (std::size_t bit = 0; bit < datagram.size() * 8; ++bit) {
    if (bit / 8 == 4) continue;  // the ICRC does not cover byte 4 of the BTH
    datagram[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    EXPECT_EQ(open(address, datagram).error().detail, std::to_underlying(wire::Drop::kIcrc)) << bit;
    datagram[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
  }
}

TEST(Framing, TheIcrcCoversAddressesAndPort) {
  const auto datagram = sealed_datagram(kFlow4, 64, 0);
  Address other = kFlow4;
  other.source_port = 0xc124;
  EXPECT_FALSE(open(other, datagram));
  other = kFlow4;
  other.source = wire::ipv4_gid(0x0a000003);
  EXPECT_FALSE(open(other, datagram));
}

TEST(Framing, ShortDatagramsAreMalformed) {
  const auto datagram = sealed_datagram(kFlow4, 12, 0);
  for (std::size_t n = 0; n < datagram.size(); ++n) {
    EXPECT_FALSE(open(kFlow4, std::span(datagram).first(n)).has_value()) << n;
  }
}

TEST(Burst, PacketsAreInTheOrderInWhichTheyWereAdded) {
  Burst burst;
  while (!burst.full()) {
    const auto space = burst.prepare();
    space[0] = static_cast<std::byte>(burst.size());
    burst.commit(kFlow4, 12 + 4 * burst.size());
  }
  ASSERT_EQ(burst.size(), Burst::kPacketsMax);
  for (std::size_t i = 0; i < burst.size(); ++i) {
    const auto& packet = burst.packets()[i];
    EXPECT_EQ(burst.transport(packet)[0], static_cast<std::byte>(i));
    EXPECT_EQ(burst.datagram(packet).size(), 16 + 4 * i);
  }
  burst.clear();
  EXPECT_TRUE(burst.empty());
}

class CaptureRingTest : public testing::Test {
 protected:
  struct alignas(64) Memory {
    std::array<std::uint64_t, CaptureRing::kBytes / 8> words{};
  };
  std::unique_ptr<Memory> memory = std::make_unique<Memory>();
  std::span<std::byte> bytes = std::as_writable_bytes(std::span(memory->words));
  CaptureRing ring{bytes};
};

TEST_F(CaptureRingTest, RecordsThatWrapAroundTheEndOfTheRingAreRead) {
  Random random(3);
  for (int round = 0; round < 5000; ++round) {
    const auto datagram = sealed_datagram(kFlow4, 12 + 4 * random.below(1000), 0);
    ring.write(Time(Duration(round)), Direction::kOut, kFlow4, 0, datagram);
    const auto record = ring.read();
    ASSERT_TRUE(record && *record);
    EXPECT_EQ((*record)->time, Time(Duration(round)));
    ASSERT_EQ((*record)->frame.size(), 14 + 20 + 8 + datagram.size());
    EXPECT_TRUE(std::ranges::equal(std::span((*record)->frame).last(datagram.size()), datagram));
    const auto frame = wire::parse_frame((*record)->frame);
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->headers.source, kFlow4.source);
  }
  EXPECT_FALSE(ring.read()->has_value());
}

TEST_F(CaptureRingTest, AFullRingCountsDroppedRecords) {
  const auto datagram = sealed_datagram(kFlow4, 4096, 0);
  std::uint64_t write_calls = 0;
  while (ring.dropped() == 0) {
    ring.write(Time{}, Direction::kIn, kFlow4, 0, datagram);
    ++write_calls;
  }
  EXPECT_TRUE(ring.is_filling_up());
  std::uint64_t records_read = 0;
  for (auto record = ring.read(); record && *record; record = ring.read()) ++records_read;
  EXPECT_EQ(records_read + ring.dropped(), write_calls);
}

// The agent maps memory that an untrusted program can write.  read() may return any result, but
// must not access memory outside of the ring (AddressSanitizer checks that).
TEST_F(CaptureRingTest, ReadingCorruptMemoryDoesNotCrash) {
  Random random(4);
  for (int round = 0; round < 20000; ++round) {
    for (int i = 0; i < 4; ++i) memory->words[random.below(40)] = random.next() >> random.below(64);
    for (int reads = 0; reads < 3; ++reads) (void)ring.read().has_value();
  }
}

}  // namespace
}  // namespace verbena::link
