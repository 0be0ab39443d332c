#include "rdmacm/rules.h"

#include <gtest/gtest.h>

namespace verbena::rdmacm {
namespace {

TEST(Rules, PortSpacesAllowOnlyTheirQpTypes) {
  EXPECT_TRUE(check_port_space(kPortSpaceTcp, kQpTypeRc));
  EXPECT_TRUE(check_port_space(kPortSpaceUdp, kQpTypeUd));
  EXPECT_TRUE(check_port_space(kPortSpaceIpoib, kQpTypeUd));
  EXPECT_FALSE(check_port_space(kPortSpaceIpoib, kQpTypeRc));
  EXPECT_TRUE(check_port_space(kPortSpaceIb, kQpTypeRc));
  EXPECT_TRUE(check_port_space(kPortSpaceIb, kQpTypeUd));
  EXPECT_FALSE(check_port_space(kPortSpaceTcp, kQpTypeUd));
  EXPECT_FALSE(check_port_space(kPortSpaceUdp, kQpTypeRc));
  EXPECT_FALSE(check_port_space(0x0107, kQpTypeRc));
}

TEST(Rules, OnlyIpoibHasNoDefaultQkey) {
  EXPECT_EQ(default_qkey(kPortSpaceUdp).value, kDatagramQkey);
  EXPECT_EQ(default_qkey(kPortSpaceIb).value, kDatagramQkey);
  EXPECT_EQ(default_qkey(kPortSpaceIpoib).value, 0u);
}

TEST(Rules, OnlyIdsWithoutAPortSpaceUseTheReasonsOfTheSpecification) {
  for (std::uint16_t reason = 0; reason < 64; ++reason) {
    const bool for_all_ids = reason == 28 || reason == 35;
    EXPECT_EQ(check_reason(kPortSpaceTcp, reason).has_value(), for_all_ids) << reason;
    EXPECT_EQ(check_reason(kPortSpaceNone, reason).has_value(),
              for_all_ids || (reason >= 1 && reason <= 33))
        << reason;
  }
}

TEST(Rules, HeaderReducesTheSpaceForPrivateData) {
  const SocketAddress ip{}, gid{.by_gid = true};
  EXPECT_EQ(connect_private_bytes(kQpTypeRc, ip), 56u);
  EXPECT_EQ(connect_private_bytes(kQpTypeRc, gid), 92u);
  EXPECT_EQ(connect_private_bytes(kQpTypeUd, ip), 180u);
  EXPECT_EQ(connect_private_bytes(kQpTypeUd, gid), 216u);
  EXPECT_TRUE(check_private_data(56, 56));
  EXPECT_FALSE(check_private_data(57, 56));
}

TEST(Rules, AcceptedResourcesAreAtMostThePeersOffer) {
  QpTransition qp{};
  qp.responder_resources = 4;
  qp.initiator_depth = 4;
  accept_resources(qp, {.responder_resources = 0xff, .initiator_depth = 2});
  EXPECT_EQ(qp.responder_resources, 4);
  EXPECT_EQ(qp.initiator_depth, 2);
}

}  // namespace
}  // namespace verbena::rdmacm
