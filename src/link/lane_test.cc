#include "link/lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
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

Address infiniband_address(std::uint16_t from, std::uint16_t to) {
  return {.link_layer = LinkLayer::kInfiniband,
          .source = wire::ipv4_gid(1),
          .destination = wire::ipv4_gid(2),
          .flow_label = 0xfffff,
          .traffic_class = 5,
          .hop_limit = 3,
          .source_lid = {from},
          .destination_lid = {to},
          .service_level = 15,
          .has_grh = true,
          .port = {.device = 1, .number = 2}};
}

// Owns the two ends of a lane.  Only the second end allows its peer to access memory.
class LaneTest : public testing::Test {
 protected:
  LaneTest() { second_.allow_access(true); }

  // Sends a packet with an arbitrary header and this payload.
  bool send(Lane& lane, const std::string& payload, const Address& packet_address = address(1, 2)) {
    if (!lane.prepare(packet_address)) return false;
    const std::string packet = std::string(Lane::kPacketBytesMin, 'h') + payload;
    std::memcpy(lane.packet_space().data(), packet.data(), packet.size());
    lane.commit(packet.size());
    return true;
  }
  // Returns the payloads of the packets that arrive, and appends their addresses to addresses_.
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

TEST_F(LaneTest, ExecutedRecordsAndPacketsArriveInOrder) {
  const ExecutedRecord write{
      .target_qpn = 5, .initiator_qpn = 6, .first_psn = 7, .psns = 8, .bytes = 9};
  ASSERT_TRUE(send(first_, "before"));
  ASSERT_TRUE(first_.prepare_executed());
  first_.commit(write);
  ASSERT_TRUE(send(first_, "after"));
  std::vector<std::string> order;
  const std::size_t packets = second_.receive(100, [&]<class Record>(const Record& record) {
    if constexpr (std::is_same_v<Record, ExecutedRecord>) {
      EXPECT_EQ(record, write);
      order.emplace_back("executed");
    } else {
      order.emplace_back("packet");
    }
  });
  EXPECT_EQ(packets, 2U);
  EXPECT_THAT(order, ElementsAre("packet", "executed", "packet"));
  EXPECT_FALSE(second_.ended());
}

TEST_F(LaneTest, ExecutedRecordsWakeASleepingPeerOnlyIfThereAreMany) {
  ASSERT_TRUE(second_.park());
  for (std::uint32_t i = 1; i < Lane::kExecutedMax; ++i) {
    ASSERT_TRUE(first_.prepare_executed());
    first_.commit(ExecutedRecord{.psns = 1});
    ASSERT_FALSE(first_.flush());
  }
  ASSERT_TRUE(first_.prepare_executed());
  first_.commit(ExecutedRecord{.psns = 1});
  EXPECT_TRUE(first_.flush());
}

TEST_F(LaneTest, PacketAfterAnExecutedRecordWakesASleepingPeer) {
  ASSERT_TRUE(second_.park());
  ASSERT_TRUE(first_.prepare_executed());
  first_.commit(ExecutedRecord{.psns = 1});
  EXPECT_FALSE(first_.flush());
  ASSERT_TRUE(send(first_, "packet"));
  EXPECT_TRUE(first_.flush());
}

TEST_F(LaneTest, ExecutedRecordWithZeroPacketsEndsTheLane) {
  ASSERT_TRUE(first_.prepare_executed());
  first_.commit(ExecutedRecord{.psns = 0});
  second_.receive(100, [](const Arrival&) {});
  EXPECT_TRUE(second_.ended());
}

TEST_F(LaneTest, ExecutedRecordsDoNotFitIntoAFullRing) {
  while (first_.prepare_executed()) first_.commit(ExecutedRecord{.psns = 1});
  EXPECT_FALSE(first_.ended());
  receive(second_);
  EXPECT_TRUE(first_.prepare_executed());
}

TEST_F(LaneTest, PeerSeesEachAnnouncedAccessUntilItEnds) {
  EXPECT_EQ(second_.peer_access_number(), 0U);
  first_.begin_access();
  const std::uint64_t first_access = second_.peer_access_number();
  EXPECT_NE(first_access, 0U);
  EXPECT_EQ(first_.peer_access_number(), 0U);
  first_.leave();
  EXPECT_EQ(second_.peer_access_number(), 0U);
  first_.begin_access();
  EXPECT_NE(second_.peer_access_number(), 0U);
  EXPECT_NE(second_.peer_access_number(), first_access);
}

// A peer that announces an access and never ends it would block each revocation of a right.
TEST_F(LaneTest, PeerThatWasNeverAllowedToAccessCannotAnnounceAccesses) {
  second_.begin_access();
  EXPECT_EQ(first_.peer_access_number(), 0U);
  ASSERT_TRUE(second_.prepare_executed());
  second_.commit(ExecutedRecord{.psns = 1});
  receive(first_);
  EXPECT_TRUE(first_.ended());
}

TEST_F(LaneTest, AnAccessInProgressIsReportedAfterAccessesAreForbidden) {
  first_.begin_access();
  second_.allow_access(false);
  EXPECT_NE(second_.peer_access_number(), 0U);
}

TEST_F(LaneTest, PacketsAndTheirAddressesArriveInBothDirections) {
  ASSERT_TRUE(send(first_, "one", address(1, 2)));
  ASSERT_TRUE(send(first_, "two", address(1, 2)));
  ASSERT_TRUE(send(first_, "three", address(7, 2, 0xc001)));
  ASSERT_TRUE(send(second_, "back", address(2, 1)));
  EXPECT_THAT(receive(second_), ElementsAre("one", "two", "three"));
  EXPECT_THAT(receive(first_), ElementsAre("back"));
  EXPECT_THAT(addresses_,
              ElementsAre(address(1, 2), address(1, 2), address(7, 2, 0xc001), address(2, 1)));
}

TEST_F(LaneTest, EachPacketArrivesWithItsAddressIfThereAreManyAddresses) {
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

TEST_F(LaneTest, PacketThatIsNotAcceptedRemainsInTheLane) {
  ASSERT_TRUE(send(first_, "one"));
  ASSERT_TRUE(send(first_, "two"));
  int seen = 0;
  const auto accept_first = [&](const Arrival&) { return ++seen == 1; };
  EXPECT_EQ(second_.receive(100, accept_first), 1U);
  EXPECT_EQ(seen, 2);
  EXPECT_THAT(receive(second_), ElementsAre("two"));
}

TEST_F(LaneTest, ParkForSpaceRequestsOneWakeUpAfterTheRingWasFull) {
  const std::string packet(4096, 'p');
  EXPECT_TRUE(first_.park_for_space());
  while (send(first_, packet)) {
  }
  EXPECT_TRUE(first_.park_for_space());
  receive(second_);
  EXPECT_TRUE(second_.finish());
  EXPECT_TRUE(send(first_, packet));
  EXPECT_TRUE(first_.park_for_space());
  receive(second_);
  EXPECT_FALSE(second_.finish());
}

TEST_F(LaneTest, FullRingRefusesPacketsUntilTheReceiverHasReadSome) {
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
  EXPECT_FALSE(first_.flush()) << "the receiver has been woken already";
  EXPECT_FALSE(second_.park()) << "packets wait";
  EXPECT_THAT(receive(second_), ElementsAre("a", "b", "c"));
  ASSERT_TRUE(send(first_, "d"));
  EXPECT_FALSE(first_.flush()) << "the receiver is not parked";
}

TEST_F(LaneTest, SenderThatFoundTheRingFullIsWokenWhenThereIsSpace) {
  const std::string packet(4000, 'p');
  while (send(first_, packet)) {
  }
  EXPECT_TRUE(first_.park());
  EXPECT_GT(receive(second_).size(), 1U);
  EXPECT_TRUE(second_.finish());
  EXPECT_TRUE(send(first_, packet));
  EXPECT_TRUE(first_.park());
  receive(second_);
  EXPECT_FALSE(second_.finish()) << "no sender waits for space";
}

TEST_F(LaneTest, MemoryOfTheWrongSizeIsRefused) {
  EXPECT_EQ(Lane::attach(memory_.bytes().first(Lane::kBytes / 2), Lane::Side::kFirst).error().code,
            Errc::kInvalidArgument);
}

// The peer may write anything.  The lane then ends or carries wrong packets, but it never accesses
// memory outside of the lane (AddressSanitizer checks that).
TEST_F(LaneTest, RandomWritesByThePeerEndTheLaneOrCorruptPackets) {
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

TEST_F(LaneTest, AllFieldsOfAnInfinibandAddressArrive) {
  ASSERT_TRUE(send(first_, "a", infiniband_address(1, 2)));
  ASSERT_TRUE(send(first_, "b", address(1, 2)));
  ASSERT_TRUE(send(first_, "c", infiniband_address(3, 0xbfff)));
  EXPECT_THAT(receive(second_), ElementsAre("a", "b", "c"));
  EXPECT_THAT(addresses_,
              ElementsAre(infiniband_address(1, 2), address(1, 2), infiniband_address(3, 0xbfff)));
}

// An Ethernet address contains an interface.  The sender's port has no meaning for the receiver.
TEST_F(LaneTest, EthernetAddressesArriveWithoutThePort) {
  Address from_other_port = address(1, 2);
  from_other_port.port = {.device = 3, .number = 2};
  ASSERT_TRUE(send(first_, "a", from_other_port));
  receive(second_);
  EXPECT_THAT(addresses_, ElementsAre(address(1, 2)));
}

// The engine uses the fields of an address as indexes into arrays.
TEST_F(LaneTest, InvalidInfinibandAddressEndsTheLane) {
  const auto changed_address = [](auto change) {
    Address address = infiniband_address(1, 2);
    change(address);
    return address;
  };
  const Address cases[] = {
      changed_address([](Address& a) { a.flow_label = 0x100000; }),
      changed_address([](Address& a) { a.service_level = 16; }),
      changed_address([](Address& a) { a.port.device = kDevicesMax; }),
      changed_address([](Address& a) { a.port.number = 0; }),
      changed_address([](Address& a) { a.port.number = kPortsPerDeviceMax + 1; }),
  };
  for (const Address& bad : cases) {
    LaneMemory memory;
    Lane sender = *Lane::attach(memory.bytes(), Lane::Side::kFirst);
    Lane receiver = *Lane::attach(memory.bytes(), Lane::Side::kSecond);
    ASSERT_TRUE(send(sender, "packet", bad));
    EXPECT_THAT(receive(receiver), IsEmpty());
    EXPECT_TRUE(receiver.ended());
  }
}

TEST_F(LaneTest, AddressRecordOfAnotherLinkLayerEndsTheLane) {
  ASSERT_TRUE(send(first_, "packet", infiniband_address(1, 2)));
  memory_.bytes()[Lane::kControlBytes + ring::kHeaderBytes] =
      static_cast<std::byte>(LinkLayer::kEthernet);
  EXPECT_THAT(receive(second_), IsEmpty());
  EXPECT_TRUE(second_.ended());
}

TEST_F(LaneTest, PacketShorterThanABthEndsTheLane) {
  ASSERT_TRUE(first_.prepare(address(1, 2)));
  first_.commit(Lane::kPacketBytesMin - 1);
  EXPECT_THAT(receive(second_), IsEmpty());
  EXPECT_TRUE(second_.ended());
}

// Without this rule, a hostile peer could keep receive() busy for ever by sending only addresses.
TEST_F(LaneTest, AddressesCountTowardsTheLimitOfReceive) {
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
        std::memcpy(lane.packet_space().data(), &sent, sizeof sent);
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

TEST_F(LanesTest, LaneToAnUnknownRangeOfThisHostIsRequestedOnce) {
  EXPECT_EQ(lanes_.find(address(1, 2), qpn_of(5)), nullptr);
  EXPECT_EQ(lanes_.find(address(1, 2), qpn_of(5)), nullptr);
  EXPECT_EQ(lanes_.poll_range_without_lane(), 5);
  EXPECT_EQ(lanes_.poll_range_without_lane(), std::nullopt);
  lanes_.forget_refusals();
  EXPECT_EQ(lanes_.find(address(1, 2), qpn_of(5)), nullptr);
  EXPECT_EQ(lanes_.poll_range_without_lane(), 5);
}

TEST_F(LanesTest, PacketsToOtherHostsUseNoLane) {
  ASSERT_TRUE(lanes_.add(1, lane(), std::vector<std::uint16_t>{5}).has_value());
  EXPECT_NE(lanes_.find(address(1, 2), qpn_of(5)), nullptr);
  EXPECT_EQ(lanes_.find(address(1, 9), qpn_of(5)), nullptr);
  EXPECT_EQ(lanes_.find(address(1, 9), qpn_of(6)), nullptr);
  EXPECT_EQ(lanes_.poll_range_without_lane(), std::nullopt);
}

TEST_F(LanesTest, ALaneServesAllRangesOfItsProcessUntilTheLaneIsRemoved) {
  ASSERT_TRUE(lanes_.add(1, lane(), std::vector<std::uint16_t>{5}).has_value());
  EXPECT_EQ(lanes_.add(1, lane(), {}).error().code, Errc::kInvalidArgument);
  lanes_.add_range(1, 8);
  lanes_.add_range(2, 9);
  Lane* const lane_of_range_5 = lanes_.find(address(1, 2), qpn_of(5));
  EXPECT_NE(lane_of_range_5, nullptr);
  EXPECT_EQ(lanes_.find(address(1, 1), qpn_of(8)), lane_of_range_5);
  EXPECT_EQ(lanes_.find(address(1, 1), qpn_of(9)), nullptr);
  lanes_.remove(1);
  EXPECT_TRUE(lanes_.empty());
  EXPECT_EQ(lanes_.find(address(1, 2), qpn_of(5)), nullptr);
  EXPECT_EQ(lanes_.find(address(1, 2), qpn_of(8)), nullptr);
}

TEST_F(LanesTest, PacketsToProcessesWithoutALaneUseTheUplink) {
  EXPECT_FALSE(lanes_.has_uplink());
  ASSERT_TRUE(lanes_.add(0, lane(), {}).has_value());
  lanes_.set_uplink(0);
  EXPECT_TRUE(lanes_.has_uplink());
  Lane* const uplink = lanes_.find(address(1, 9), qpn_of(5));
  EXPECT_NE(uplink, nullptr);
  EXPECT_EQ(lanes_.poll_range_without_lane(), std::nullopt);
  EXPECT_EQ(lanes_.find(address(1, 2), qpn_of(5)), uplink);
  EXPECT_EQ(lanes_.poll_range_without_lane(), 5)
      << "a program of this host needs a lane of its own";
  EXPECT_EQ(lanes_.find(address(1, 2), qpn_of(5)), uplink);
  LaneMemory other;
  ASSERT_TRUE(
      lanes_.add(1, *Lane::attach(other.bytes(), Lane::Side::kFirst), std::vector<std::uint16_t>{5})
          .has_value());
  EXPECT_NE(lanes_.find(address(1, 2), qpn_of(5)), uplink);
  EXPECT_EQ(lanes_.find(address(1, 9), qpn_of(5)), uplink);
  lanes_.remove(0);
  EXPECT_FALSE(lanes_.has_uplink());
  EXPECT_EQ(lanes_.find(address(1, 9), qpn_of(5)), nullptr);
}

// The process of the fabric applies the states and P_Keys of ports to all InfiniBand packets, also
// to those within a host.
TEST_F(LanesTest, InfinibandPacketsUseOnlyTheUplink) {
  const Address packet_address = infiniband_address(1, 2);
  EXPECT_EQ(lanes_.find(packet_address, qpn_of(5)), nullptr);
  ASSERT_TRUE(lanes_.add(1, lane(), std::vector<std::uint16_t>{5}).has_value());
  lanes_.set_addresses({packet_address.destination});
  EXPECT_EQ(lanes_.find(packet_address, qpn_of(5)), nullptr);
  LaneMemory other;
  ASSERT_TRUE(lanes_.add(0, *Lane::attach(other.bytes(), Lane::Side::kFirst), {}).has_value());
  lanes_.set_uplink(0);
  Lane* const uplink = lanes_.find(packet_address, qpn_of(5));
  ASSERT_NE(uplink, nullptr);
  EXPECT_EQ(lanes_.find(packet_address, qpn_of(6)), uplink);
  EXPECT_EQ(lanes_.poll_range_without_lane(), std::nullopt) << "no other lane is requested";
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
