#include "link/address.h"

#include <gtest/gtest.h>

namespace verbena::link {
namespace {

Gid gid_of(std::uint8_t last_byte) {
  Gid gid;
  gid.bytes[0] = std::byte{0xfd};
  gid.bytes[15] = std::byte{last_byte};
  return gid;
}

const Address kEthernetPath{.source = gid_of(1), .destination = gid_of(2)};

Address infiniband_path(bool has_grh) {
  return {.link_layer = LinkLayer::kInfiniband,
          .source = gid_of(1),
          .destination = gid_of(2),
          .source_lid = {10},
          .destination_lid = {20},
          .has_grh = has_grh};
}

TEST(Address, EthernetPeersAreIdentifiedByTheirGids) {
  Address arrival = kEthernetPath.reversed();
  arrival.source_port = 0xc001;  // each side chooses its own source port
  EXPECT_TRUE(is_on_path(arrival, kEthernetPath));
  arrival.destination = gid_of(9);  // another address of this host
  EXPECT_TRUE(is_from_peer(arrival, kEthernetPath));
  EXPECT_FALSE(is_on_path(arrival, kEthernetPath));
  arrival.source = gid_of(9);
  EXPECT_FALSE(is_from_peer(arrival, kEthernetPath));
}

TEST(Address, InfinibandPeersAreIdentifiedByTheirLids) {
  for (const bool has_grh : {false, true}) {
    const Address path = infiniband_path(has_grh);
    const Address arrival = path.reversed();
    EXPECT_TRUE(is_on_path(arrival, path));
    Address other = arrival;
    other.source_lid = {21};
    EXPECT_FALSE(is_from_peer(other, path));
    other = arrival;
    other.destination_lid = {11};
    EXPECT_TRUE(is_from_peer(other, path));
    EXPECT_FALSE(is_on_path(other, path));
    other = arrival;
    other.has_grh = !has_grh;
    EXPECT_FALSE(is_from_peer(other, path));
  }
}

TEST(Address, InfinibandGidsAreComparedOnlyWithAGrh) {
  for (const bool has_grh : {false, true}) {
    const Address path = infiniband_path(has_grh);
    Address arrival = path.reversed();
    arrival.source = {};
    EXPECT_EQ(is_from_peer(arrival, path), !has_grh);
  }
}

}  // namespace
}  // namespace verbena::link
