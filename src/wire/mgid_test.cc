#include "wire/mgid.h"

#include <gtest/gtest.h>

#include "wire/address_text.h"
#include "wire/hex.h"

namespace verbena::wire {
namespace {

Gid parsed_ip(const char* text) { return *parse_address(text); }

constexpr Pkey kPartition{0x8001};

TEST(Mgid, BroadcastGroupHasThePkeyOfFullMembers) {
  const Gid full{hex<"ff12 401b 8001 0000 0000 0000 ffff ffff">()};
  EXPECT_EQ(broadcast_mgid({0x8001}), full);
  EXPECT_EQ(broadcast_mgid({0x0001}), full);
  EXPECT_EQ(broadcast_mgid({0xffff}), Gid{hex<"ff12 401b ffff 0000 0000 0000 ffff ffff">()});
  EXPECT_EQ(broadcast_mgid({0xffff}, 5), Gid{hex<"ff15 401b ffff 0000 0000 0000 ffff ffff">()});
}

TEST(Mgid, MgidOfAnIpv4GroupContainsItsLast28Bits) {
  const Gid group = parsed_ip("239.77.1.5");
  EXPECT_EQ(multicast_mgid(group, MgidUser::kIpoib, kPartition),
            Gid{hex<"ff12 401b 8001 0000 0000 0000 0f4d 0105">()});
  EXPECT_EQ(multicast_mgid(group, MgidUser::kRdmaCm, kPartition),
            Gid{hex<"ff12 4001 8001 0000 0000 0000 0f4d 0105">()});
  EXPECT_EQ(multicast_mgid(parsed_ip("224.0.0.1"), MgidUser::kIpoib, {0x7fff}, 0xe),
            Gid{hex<"ff1e 401b ffff 0000 0000 0000 0000 0001">()});
}

TEST(Mgid, MgidOfAnIpv6GroupContainsItsLast80Bits) {
  const Gid group = parsed_ip("ff3e:1234:5678:9abc:def0:1:2:3");
  EXPECT_EQ(multicast_mgid(group, MgidUser::kIpoib, kPartition),
            Gid{hex<"ff12 601b 8001 9abc def0 0001 0002 0003">()});
  EXPECT_EQ(multicast_mgid(group, MgidUser::kRdmaCm, kPartition),
            Gid{hex<"ff12 6001 8001 9abc def0 0001 0002 0003">()});
}

TEST(Mgid, WildcardAddressGivesMgidZero) {
  EXPECT_EQ(multicast_mgid(Gid{}, MgidUser::kRdmaCm, kPartition), Gid{});
  EXPECT_EQ(multicast_mgid(ipv4_gid(0), MgidUser::kIpoib, kPartition), Gid{});
}

TEST(Mgid, RdmaCmUsesTheGroupsOfIpoibForItsPortSpace) {
  for (const char* const group : {"239.77.1.5", "ff3e:1234:5678:9abc:def0:1:2:3"}) {
    EXPECT_EQ(multicast_mgid(parsed_ip(group), MgidUser::kRdmaCmIpoib, kPartition),
              multicast_mgid(parsed_ip(group), MgidUser::kIpoib, kPartition));
  }
}

TEST(Mgid, MgidThatTheSaHasAssignedIsReturnedUnchanged) {
  const Gid assigned{hex<"ff1e a01b 8001 0000 0000 0000 0000 0007">()};
  EXPECT_TRUE(is_sa_assigned(assigned));
  EXPECT_EQ(multicast_mgid(assigned, MgidUser::kRdmaCm, kPartition), assigned);
  EXPECT_EQ(multicast_mgid(assigned, MgidUser::kRdmaCmIpoib, kPartition), assigned);
  EXPECT_EQ(multicast_mgid(assigned, MgidUser::kIpoib, kPartition),
            Gid{hex<"ff12 601b 8001 0000 0000 0000 0000 0007">()});
  EXPECT_FALSE(is_sa_assigned(Gid{hex<"ff0e a01b 8001 0000 0000 0000 0000 0007">()}));
  EXPECT_FALSE(is_sa_assigned(Gid{hex<"ff1e 401b 8001 0000 0000 0000 0000 0007">()}));
}

TEST(Mgid, LimitedBroadcastAddressGivesTheBroadcastGroupOfIpoib) {
  EXPECT_EQ(multicast_mgid(parsed_ip("255.255.255.255"), MgidUser::kIpoib, kPartition),
            broadcast_mgid(kPartition));
  EXPECT_EQ(multicast_mgid(parsed_ip("255.255.255.255"), MgidUser::kRdmaCm, kPartition),
            Gid{hex<"ff12 4001 8001 0000 0000 0000 0fff ffff">()});
  EXPECT_EQ(multicast_mgid(parsed_ip("255.255.255.255"), MgidUser::kRdmaCmIpoib, kPartition),
            Gid{hex<"ff12 401b 8001 0000 0000 0000 0fff ffff">()});
}

}  // namespace
}  // namespace verbena::wire
