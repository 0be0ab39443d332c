#include "link/lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "link/lanes.h"
#include "wire/ip.h"

namespace verbena::link {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Owns the memory of a lane.
class LaneMemory {
 public:
  LaneMemory() : pages_(std::make_unique<Page[]>(Lane::kBytes / sizeof(Page))) {}
  std::span<std::byte> bytes() {
    return std::as_writable_bytes(std::span(pages_.get(), Lane::kBytes / sizeof(Page)));
  }

 private:
  struct alignas(4096) Page {
    std::array<std::byte, 4096> bytes{};
  };
  std::unique_ptr<Page[]> pages_;
};

Address address(std::uint8_t from, std::uint8_t to, std::uint16_t source_port = 0xc000) {
  return {.source = wire::ipv4_gid(0x0a000000U + from),
          .destination = wire::ipv4_gid(0x0a000000U + to),
          .interface = 2,
          .source_port = source_port,
          .traffic_class = 5,
          .hop_limit = 3};
}

class LaneTest : public testing::Test {
 protected:
  // Sends a packet that consists of a header and of `payload`.
  bool send(Lane& lane, const std::string& payload, const Address& to = address(1, 2)) {
    if (!lane.prepare(to)) return false;
    const std::string packet = std::string(Lane::kPacketBytesMin, 'h') + payload;
    std::memcpy(lane.room().data(), packet.data(), packet.size());
    lane.commit(packet.size());
    return true;
  }
  // Returns the payloads of the packets that arrive.
  std::vector<std::string> receive(Lane& lane, std::size_t max = 100'000) {
    std::vector<std::string> payloads;
    lane.receive(max, [&](const Arrival& arrival) {
      const auto payload = arrival.transport.subspan(Lane::kPacketBytesMin);
      payloads.emplace_back(reinterpret_cast<const char*>(payload.data()), payload.size());
      addresses_.push_back(arrival.address);
    });
    return payloads;
  }

  LaneMemory memory_;
  Lane first_ = *Lane::attach(memory_.bytes(), Lane::Side::kFirst);
  Lane second_ = *Lane::attach(memory_.bytes(), Lane::Side::kSecond);
  std::vector<Address> addresses_;
};

TEST_F(LaneTest, CarriesPacketsAndTheirAddressesBothWays) {
  ASSERT_TRUE(send(first_, "one", address(1, 2)));
  ASSERT_TRUE(send(first_, "two", address(1, 2)));
  ASSERT_TRUE(send(first_, "three", address(7, 2, 0xc001)));
  ASSERT_TRUE(send(second_, "back", address(2, 1)));
  EXPECT_THAT(receive(second_), ElementsAre("one", "two", "three"));
  EXPECT_THAT(receive(first_), ElementsAre("back"));
  EXPECT_THAT(addresses_,
              ElementsAre(address(1, 2), address(1, 2), address(7, 2, 0xc001), address(2, 1)));
}

TEST_F(LaneTest, ManyAddressesInTurnArriveWithTheirPackets) {
  for (int round = 0; round < 3; ++round) {
    for (std::uint8_t i = 0; i < 100; ++i) {
      ASSERT_TRUE(send(first_, "x", address(1, i, static_cast<std::uint16_t>(0xc000 + 7 * i))));
    }
    addresses_.clear();
    EXPECT_EQ(receive(second_).size(), 100U);
    for (std::uint8_t i = 0; i < 100; ++i) {
      EXPECT_EQ(addresses_[i], address(1, i, static_cast<std::uint16_t>(0xc000 + 7 * i)));
    }
    second_.finish();
  }
}

TEST_F(LaneTest, FullRingRefusesPacketsUntilTheReceiverHasTakenSome) {
  const std::string packet(4096, 'p');
  std::size_t sent = 0;
  while (send(first_, packet)) ++sent;
  EXPECT_GT(sent, 40U);
  EXPECT_FALSE(first_.ended());
  EXPECT_FALSE(send(first_, packet));
  EXPECT_EQ(receive(second_, 1 + 20).size(), 20U) << "an address and 20 packets";
  second_.finish();
  EXPECT_TRUE(send(first_, packet));
  EXPECT_EQ(receive(second_).size(), sent - 20 + 1);
}

TEST_F(LaneTest, ParkedReceiverIsWokenOnceByTheNextPacket) {
  EXPECT_TRUE(second_.park());
  ASSERT_TRUE(send(first_, "a"));
  ASSERT_TRUE(send(first_, "b"));
  EXPECT_TRUE(first_.flush());
  ASSERT_TRUE(send(first_, "c"));
  EXPECT_FALSE(first_.flush()) << "it has been woken already";
  EXPECT_FALSE(second_.park()) << "packets wait";
  EXPECT_THAT(receive(second_), ElementsAre("a", "b", "c"));
  ASSERT_TRUE(send(first_, "d"));
  EXPECT_FALSE(first_.flush()) << "the receiver is not parked";
}

TEST_F(LaneTest, SenderThatFoundNoRoomIsWokenWhenThereIsSome) {
  const std::string packet(4000, 'p');
  while (send(first_, packet)) {
  }
  EXPECT_TRUE(first_.park());
  EXPECT_GT(receive(second_).size(), 1U);
  EXPECT_TRUE(second_.finish());
  EXPECT_TRUE(send(first_, packet));
  EXPECT_TRUE(first_.park());
  receive(second_);
  EXPECT_FALSE(second_.finish()) << "nobody waits for room";
}

TEST_F(LaneTest, MemoryOfTheWrongSizeIsRefused) {
  EXPECT_EQ(Lane::attach(memory_.bytes().first(Lane::kBytes / 2), Lane::Side::kFirst).error().code,
            Errc::kInvalidArgument);
}

// The peer may write anything.  The lane ends or carries nonsense; it never reads outside.
TEST_F(LaneTest, NonsenseInTheMemoryEndsTheLane) {
  Random random(7);
  int ended = 0;
  for (int round = 0; round < 2000; ++round) {
    std::memset(memory_.bytes().data(), 0, 2 * Lane::kControlBytes);
    Lane lane = *Lane::attach(memory_.bytes(), Lane::Side::kFirst);
    Lane peer = *Lane::attach(memory_.bytes(), Lane::Side::kSecond);
    for (int i = 0; i < 4; ++i) send(peer, "packet");
    const std::size_t words = (Lane::kControlBytes + Lane::kRingBytes + 1024) / 8;
    for (int i = 0; i < 8; ++i) {
      const std::size_t ring = Lane::kControlBytes + Lane::kRingBytes;
      const std::size_t at = i % 2 == 0 ? random.next() % 16 * 8 : ring + random.next() % 128 * 8;
      ASSERT_LT(at / 8, words);
      const std::uint64_t value = i % 3 == 0 ? random.next() : random.next() % 4096;
      std::memcpy(memory_.bytes().subspan(at).data(), &value, sizeof value);
    }
    receive(lane);
    lane.finish();
    send(lane, "answer");
    lane.park();
    ended += lane.ended() ? 1 : 0;
  }
  EXPECT_GT(ended, 200);
}

TEST_F(LaneTest, APacketWithoutAWholeHeaderEndsTheLane) {
  ASSERT_TRUE(first_.prepare(address(1, 2)));
  first_.commit(Lane::kPacketBytesMin - 1);
  EXPECT_THAT(receive(second_), IsEmpty());
  EXPECT_TRUE(second_.ended());
}

// A hostile peer could otherwise hold the receiver with addresses alone.
TEST_F(LaneTest, AddressesCountAsRecordsThatOneCallReceives) {
  for (std::uint16_t port = 0; port < 8; ++port) {
    send(first_, "packet", address(1, 2, static_cast<std::uint16_t>(0xc000 + port)));
  }
  EXPECT_EQ(receive(second_, 4).size(), 2U);
  EXPECT_EQ(receive(second_, 1).size(), 0U);
  EXPECT_FALSE(second_.park()) << "records wait";
  EXPECT_EQ(receive(second_, 100).size(), 6U);
}

TEST(LaneThreads, TwoThreadsExchangeManyPackets) {
  LaneMemory memory;
  constexpr std::uint32_t kPackets = 20'000;
  const auto run = [&](Lane::Side side) {
    Lane lane = *Lane::attach(memory.bytes(), side);
    std::uint32_t sent = 0;
    std::uint32_t received = 0;
    bool in_order = true;
    while (sent < kPackets || received < kPackets) {
      if (sent < kPackets && lane.prepare(address(1, 2))) {
        std::memcpy(lane.room().data(), &sent, sizeof sent);
        lane.commit(Lane::kPacketBytesMin + sent % 512);
        ++sent;
      }
      lane.flush();
      lane.receive(16, [&](const Arrival& arrival) {
        std::uint32_t number = 0;
        std::memcpy(&number, arrival.headers.data(), sizeof number);
        in_order = in_order && number == received &&
                   arrival.transport.size() == Lane::kPacketBytesMin + number % 512;
        ++received;
      });
      lane.finish();
      if (sent == kPackets) std::this_thread::yield();
    }
    EXPECT_TRUE(in_order);
    EXPECT_FALSE(lane.ended());
  };
  std::thread other([&] { run(Lane::Side::kSecond); });
  run(Lane::Side::kFirst);
  other.join();
}

// ---- Lanes --------------------------------------------------------------------------------------

Qpn qpn_of(std::uint16_t range) { return Qpn{range * Lanes::kRangeQpns + 17}; }

class LanesTest : public testing::Test {
 protected:
  LanesTest() { lanes_.set_addresses({wire::ipv4_gid(0x0a000001), wire::ipv4_gid(0x0a000002)}); }

  Lane lane() { return *Lane::attach(memory_.bytes(), Lane::Side::kFirst); }

  LaneMemory memory_;
  Lanes lanes_;
};

TEST_F(LanesTest, UnknownRangeOfThisHostIsWantedOnce) {
  EXPECT_EQ(lanes_.find(address(1, 2), qpn_of(5)), nullptr);
  EXPECT_EQ(lanes_.find(address(1, 2), qpn_of(5)), nullptr);
  EXPECT_EQ(lanes_.poll_wanted(), 5);
  EXPECT_EQ(lanes_.poll_wanted(), std::nullopt);
  lanes_.forget_refusals();
  EXPECT_EQ(lanes_.find(address(1, 2), qpn_of(5)), nullptr);
  EXPECT_EQ(lanes_.poll_wanted(), 5);
}

TEST_F(LanesTest, OtherHostsAndGroupsHaveNoLane) {
  ASSERT_TRUE(lanes_.add(1, lane(), std::vector<std::uint16_t>{5}).has_value());
  EXPECT_NE(lanes_.find(address(1, 2), qpn_of(5)), nullptr);
  EXPECT_EQ(lanes_.find(address(1, 9), qpn_of(5)), nullptr);
  EXPECT_EQ(lanes_.find(address(1, 9), qpn_of(6)), nullptr);
  EXPECT_EQ(lanes_.poll_wanted(), std::nullopt);
}

TEST_F(LanesTest, ALaneServesAllRangesOfItsProcessUntilItIsRemoved) {
  ASSERT_TRUE(lanes_.add(1, lane(), std::vector<std::uint16_t>{5}).has_value());
  EXPECT_EQ(lanes_.add(1, lane(), {}).error().code, Errc::kInvalidArgument);
  lanes_.add_range(1, 8);
  lanes_.add_range(2, 9);
  Lane* const five = lanes_.find(address(1, 2), qpn_of(5));
  EXPECT_NE(five, nullptr);
  EXPECT_EQ(lanes_.find(address(1, 1), qpn_of(8)), five);
  EXPECT_EQ(lanes_.find(address(1, 1), qpn_of(9)), nullptr);
  lanes_.remove(1);
  EXPECT_TRUE(lanes_.empty());
  EXPECT_EQ(lanes_.find(address(1, 2), qpn_of(5)), nullptr);
  EXPECT_EQ(lanes_.find(address(1, 2), qpn_of(8)), nullptr);
}

TEST_F(LanesTest, TheNumberOfLanesIsLimited) {
  for (Lanes::Id id = 0; id < Lanes::kLanesMax; ++id) {
    ASSERT_TRUE(lanes_.add(id, lane(), std::vector{static_cast<std::uint16_t>(id)}).has_value());
  }
  EXPECT_EQ(lanes_.add(1000, lane(), {}).error().code, Errc::kNoResources);
  lanes_.remove(3);
  EXPECT_TRUE(lanes_.add(1000, lane(), {}).has_value());
}

}  // namespace
}  // namespace verbena::link
