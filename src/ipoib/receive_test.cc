#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "ipoib/link_test.h"

// Tests the messages that other hosts may send to an interface.

namespace verbena::ipoib {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::IsEmpty;

struct IpoibReceiveTest : ::testing::Test {
  IpoibReceiveTest() {
    station.neighbours.set_joined(true, now);
    (void)station.frames();
  }
  void resolve_host2() {
    ASSERT_TRUE(station.neighbours.resolve(host2.addresses[0].ip, 1, now).has_value());
    (void)station.frames();
  }
  void learn_host2() {
    resolve_host2();
    station.receive(arp_answer(host2, self), host2.link_address, now);
    (void)station.frames();
  }
  Row row() { return station.neighbours.rows(now).at(0); }
  std::uint64_t ignored(Ignored reason) const { return station.neighbours.counters().of(reason); }
  wire::NeighbourSolicitation solicitation() const {
    return {.source = host2.addresses[1].ip,
            .destination = wire::solicited_node_group(self.addresses[1].ip),
            .target = self.addresses[1].ip,
            .source_link_address = host2.wire_address()};
  }
  wire::NeighbourAdvertisement advertisement() const {
    return {.source = host2.addresses[1].ip,
            .destination = self.addresses[1].ip,
            .target = host2.addresses[1].ip,
            .solicited = true,
            .override_cache = true,
            .target_link_address = host2.wire_address()};
  }

  const Interface self = interface_of(1);
  const Interface host2 = interface_of(2);
  const Interface host3 = interface_of(3);
  Time now{1h};
  Station station{self};
};

// ---- Requests of other hosts

TEST_F(IpoibReceiveTest, ArpAnswerGoesToTheSenderOfThePacket) {
  station.receive(arp_request(host2, self.addresses[0].ip), host2.link_address, now);
  const auto frames = station.frames();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frame_text(frames[0]), "10.0.0.1 is here, for 10.0.0.2 -> fe80::2:c903:0:2");
  EXPECT_EQ(frames[0].to, host2.link_address);
  EXPECT_EQ(wire::parse_ipoib_frame(frames[0].frame),
            wire::ResolutionFrame(arp_answer(self, host2)));
  ASSERT_TRUE(frames[0].reply_path.has_value());
  const link::Address& back = *frames[0].reply_path;
  EXPECT_EQ(back.source, self.link_address.gid);
  EXPECT_EQ(back.destination, host2.link_address.gid);
  EXPECT_EQ(back.destination_lid, Lid{7});
  EXPECT_EQ(back.source_lid, Lid{});
  EXPECT_TRUE(back.is_infiniband());
  EXPECT_EQ(station.neighbours.size(), 0u) << "a request creates no entry";
}

TEST_F(IpoibReceiveTest, NeighbourSolicitationGetsAnAnswer) {
  station.receive(solicitation(), host2.link_address, now);
  const auto frames = station.frames();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].to, host2.link_address);
  const wire::NeighbourAdvertisement expected{.source = self.addresses[1].ip,
                                              .destination = host2.addresses[1].ip,
                                              .target = self.addresses[1].ip,
                                              .solicited = true,
                                              .override_cache = true,
                                              .target_link_address = self.wire_address()};
  EXPECT_EQ(wire::parse_ipoib_frame(frames[0].frame), wire::ResolutionFrame(expected));
  EXPECT_EQ(station.neighbours.counters().answers, 1u);
}

TEST_F(IpoibReceiveTest, InterfaceDefendsItsAddressesAgainstDuplicates) {
  wire::IpoibArp probe = arp_request(host2, self.addresses[0].ip);
  probe.sender_ip = 0;
  station.receive(probe, host2.link_address, now);
  EXPECT_THAT(station.texts(), ElementsAre("10.0.0.1 is here, for 0.0.0.0 -> fe80::2:c903:0:2"));
  wire::NeighbourSolicitation ipv6_probe = solicitation();
  ipv6_probe.source = {};
  ipv6_probe.source_link_address = {};
  station.receive(ipv6_probe, host2.link_address, now);
  const auto frames = station.frames();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frame_text(frames[0]), "fd00::1 is here, for ff02::1 -> group");
  EXPECT_EQ(frames[0].to.gid, ip_of("ff12:601b:8001::1"));
  EXPECT_FALSE(frames[0].reply_path.has_value());
}

TEST_F(IpoibReceiveTest, RequestsForOtherHostsGetNoAnswer) {
  station.receive(arp_request(host2, host3.addresses[0].ip), host2.link_address, now);
  wire::NeighbourSolicitation for_host3 = solicitation();
  for_host3.target = host3.addresses[1].ip;
  station.receive(for_host3, host2.link_address, now);
  EXPECT_THAT(station.texts(), IsEmpty());
  EXPECT_EQ(ignored(Ignored::kNotForUs), 2u);
}

// ---- Messages that change entries

TEST_F(IpoibReceiveTest, AnnouncementsCreateNoEntries) {
  station.receive(arp_request(host2, host2.addresses[0].ip), host2.link_address, now);
  station.receive(arp_answer(host2, self), host2.link_address, now);
  station.receive(advertisement(), host2.link_address, now);
  EXPECT_EQ(station.neighbours.size(), 0u);
  EXPECT_EQ(ignored(Ignored::kUnknownNeighbour), 2u);
  EXPECT_EQ(ignored(Ignored::kNotForUs), 1u);
}

TEST_F(IpoibReceiveTest, RequestFromTheNeighbourAlsoResolvesItsAddress) {
  resolve_host2();
  station.receive(arp_request(host2, host3.addresses[0].ip), host2.link_address, now);
  (void)station.frames();
  EXPECT_EQ(station.result(1), host2.link_address);
  EXPECT_EQ(row().state, State::kStale) << "a request does not confirm the entry";
}

TEST_F(IpoibReceiveTest, AnnouncementMovesAnEntry) {
  learn_host2();
  now += kLockTime;
  Interface moved = host2;
  moved.link_address = {.gid = port_gid(50), .qpn = {0x400}};
  station.receive(arp_request(moved, moved.addresses[0].ip), moved.link_address, now);
  EXPECT_EQ(row().neighbour, moved.link_address);
  EXPECT_EQ(row().state, State::kStale);
  EXPECT_EQ(station.neighbours.forget(host2.link_address.gid), 0u);
  EXPECT_EQ(station.neighbours.forget(moved.link_address.gid), 1u);
}

TEST_F(IpoibReceiveTest, SecondOfTwoDifferentAnswersIsIgnored) {
  learn_host2();
  Interface impostor = host3;
  impostor.addresses = host2.addresses;
  station.receive(arp_answer(impostor, self), impostor.link_address, now + kLockTime - 1ns);
  EXPECT_EQ(row().neighbour, host2.link_address);
  EXPECT_EQ(ignored(Ignored::kWithinLockTime), 1u);
}

TEST_F(IpoibReceiveTest, UnsolicitedAnswersDoNotConfirmAnEntry) {
  learn_host2();
  now += kReachableTime;
  station.receive(arp_answer(host2, self), host2.link_address, now);
  station.receive(arp_request(host2, host2.addresses[0].ip), host2.link_address, now);
  EXPECT_EQ(row().state, State::kStale);
  EXPECT_EQ(row().age, kReachableTime);
  EXPECT_EQ(ignored(Ignored::kUnchanged), 1u);
}

TEST_F(IpoibReceiveTest, OnlyAnswersToThisInterfaceConfirmAnEntry) {
  learn_host2();
  now += kReachableTime;
  EXPECT_TRUE(station.neighbours.resolve(host2.addresses[0].ip, 2, now).has_value());
  EXPECT_EQ(row().state, State::kProbe);
  station.receive(arp_answer(host2, host3), host2.link_address, now);
  wire::IpoibArp to_our_ip = arp_answer(host2, self);
  to_our_ip.target = host3.wire_address();
  station.receive(to_our_ip, host2.link_address, now);
  wire::IpoibArp to_our_port = arp_answer(host2, self);
  to_our_port.target_ip = wire::ipv4_address(host3.addresses[0].ip);
  station.receive(to_our_port, host2.link_address, now);
  EXPECT_EQ(row().state, State::kProbe);
  EXPECT_EQ(ignored(Ignored::kUnchanged), 3u);
  station.receive(arp_answer(host2, self), host2.link_address, now);
  EXPECT_EQ(row().state, State::kReachable);
}

TEST_F(IpoibReceiveTest, UnsolicitedAdvertisementResolvesTheAddressButDoesNotConfirmIt) {
  ASSERT_TRUE(station.neighbours.resolve(host2.addresses[1].ip, 1, now).has_value());
  wire::NeighbourAdvertisement unsolicited = advertisement();
  unsolicited.solicited = false;
  station.receive(unsolicited, host2.link_address, now);
  (void)station.frames();
  EXPECT_EQ(station.result(1), host2.link_address);
  EXPECT_EQ(row().state, State::kStale);
}

// RFC 4861 section 7.2.5 describes this case.
TEST_F(IpoibReceiveTest, AdvertisementWithoutOverrideOnlyMakesTheEntryStale) {
  ASSERT_TRUE(station.neighbours.resolve(host2.addresses[1].ip, 1, now).has_value());
  station.receive(advertisement(), host2.link_address, now);
  EXPECT_EQ(row().state, State::kReachable);
  now += kLockTime;
  wire::NeighbourAdvertisement other = advertisement();
  other.solicited = other.override_cache = false;
  other.target_link_address = host3.wire_address();
  station.receive(other, host3.link_address, now);
  EXPECT_EQ(row().neighbour, host2.link_address);
  EXPECT_EQ(row().state, State::kStale);
  EXPECT_EQ(ignored(Ignored::kNoOverride), 1u);
  other.override_cache = true;
  station.receive(other, host3.link_address, now);
  EXPECT_EQ(row().neighbour, host3.link_address);
}

TEST_F(IpoibReceiveTest, AdvertisementWithoutAddressIsAboutThePacketsSender) {
  ASSERT_TRUE(station.neighbours.resolve(host2.addresses[1].ip, 1, now).has_value());
  (void)station.frames();
  wire::NeighbourAdvertisement bare = advertisement();
  bare.target_link_address = {};
  link::Address from = from_interface(host2.link_address, self.link_address.gid);
  from.has_grh = false;
  station.neighbours.receive(from, host2.link_address.qpn, wire::write_ipoib_frame(bare), now);
  EXPECT_EQ(ignored(Ignored::kNoLinkAddress), 1u);
  station.receive(bare, host2.link_address, now);
  (void)station.frames();
  EXPECT_EQ(station.result(1), host2.link_address);
}

// A packet within the subnet may have no GRH.  Then only the QPN of the sender can be compared.
TEST_F(IpoibReceiveTest, AnswerWithoutGrhIsAccepted) {
  resolve_host2();
  link::Address from = from_interface(host2.link_address, self.link_address.gid);
  from.has_grh = false;
  from.source = {};
  const auto frame = wire::write_ipoib_frame(arp_answer(host2, self));
  station.neighbours.receive(from, {0x777}, frame, now);
  EXPECT_EQ(ignored(Ignored::kForged), 1u);
  station.neighbours.receive(from, host2.link_address.qpn, frame, now);
  (void)station.frames();
  EXPECT_EQ(station.result(1), host2.link_address);
}

// ---- Invalid messages

TEST_F(IpoibReceiveTest, AnswersWithImpossibleLinkAddressesAreDropped) {
  resolve_host2();
  const auto try_address = [&](const LinkAddress& address) {
    Interface impostor = host2;
    impostor.link_address = address;
    station.receive(arp_answer(impostor, self), address, now);
  };
  const Gid gid = host2.link_address.gid;
  for (const std::uint32_t qpn : {0u, 1u, 0xffffffu}) try_address({.gid = gid, .qpn = {qpn}});
  EXPECT_EQ(ignored(Ignored::kBadLinkAddress), 3u);
  try_address({.gid = Gid{}, .qpn = {2}});
  try_address({.gid = wire::broadcast_mgid(kTestPkey), .qpn = {2}});
  try_address({.gid = self.link_address.gid, .qpn = {2}});
  EXPECT_EQ(ignored(Ignored::kBadLinkAddress), 6u);
  (void)station.frames();
  EXPECT_FALSE(station.has_ended(1));
  try_address({.gid = gid, .qpn = {2}});
  (void)station.frames();
  EXPECT_EQ(station.result(1), (LinkAddress{.gid = gid, .qpn = {2}}));
}

TEST_F(IpoibReceiveTest, FrameWithAnotherSenderThanItsPacketIsDropped) {
  resolve_host2();
  station.receive(arp_answer(host2, self), host3.link_address, now);
  station.receive(arp_answer(host2, self), {.gid = host2.link_address.gid, .qpn = {0x999}}, now);
  station.receive(arp_answer(host2, self),
                  {.gid = host3.link_address.gid, .qpn = host2.link_address.qpn}, now);
  (void)station.frames();
  EXPECT_FALSE(station.has_ended(1));
  EXPECT_EQ(ignored(Ignored::kForged), 3u);
}

TEST_F(IpoibReceiveTest, OwnFramesFromGroupsAreIgnored) {
  resolve_host2();
  station.receive(arp_request(self, host2.addresses[0].ip), self.link_address, now);
  station.receive(arp_request(self, self.addresses[0].ip), self.link_address, now);
  EXPECT_THAT(station.texts(), IsEmpty());
  EXPECT_EQ(ignored(Ignored::kOwnFrame), 2u);
}

TEST_F(IpoibReceiveTest, FramesOfAnotherHostWithOurAddressAreCountedAndIgnored) {
  Interface impostor = host2;
  impostor.addresses = self.addresses;
  station.receive(arp_request(impostor, self.addresses[0].ip), host2.link_address, now);
  wire::NeighbourAdvertisement claim = advertisement();
  claim.target = self.addresses[1].ip;
  station.receive(claim, host2.link_address, now);
  EXPECT_EQ(ignored(Ignored::kAddressConflict), 2u);
  EXPECT_THAT(station.texts(), IsEmpty());
  EXPECT_EQ(station.neighbours.resolve(self.addresses[0].ip, 1, now), self.link_address);
}

TEST_F(IpoibReceiveTest, FramesOfSendersOnOtherLinksAreDropped) {
  for (const char* ip : {"10.0.0.255", "10.0.1.2", "224.0.0.1", "127.0.0.1", "255.255.255.255"}) {
    wire::IpoibArp request = arp_request(host2, self.addresses[0].ip);
    request.sender_ip = wire::ipv4_address(ip_of(ip));
    station.receive(request, host2.link_address, now);
  }
  wire::NeighbourSolicitation off_link = solicitation();
  off_link.source = ip_of("fd00:0:0:9::1");
  station.receive(off_link, host2.link_address, now);
  EXPECT_THAT(station.texts(), IsEmpty());
  EXPECT_EQ(ignored(Ignored::kBadIp), 6u);
}

TEST_F(IpoibReceiveTest, FramesOfOtherProtocolsAndMalformedFramesAreCounted) {
  const link::Address from = from_interface(host2.link_address, self.link_address.gid);
  station.neighbours.receive(from, host2.link_address.qpn, {}, now);
  EXPECT_EQ(ignored(Ignored::kMalformed), 1u);
  std::vector<std::byte> datagram(64);
  datagram[0] = std::byte{0x08};
  station.neighbours.receive(from, host2.link_address.qpn, datagram, now);
  EXPECT_EQ(ignored(Ignored::kOtherProtocol), 1u);
}

}  // namespace
}  // namespace verbena::ipoib
