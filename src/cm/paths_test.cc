#include "cm/paths.h"

#include <gtest/gtest.h>

namespace verbena::cm {
namespace {

AlternatePath path(LinkLayer link_layer, bool has_grh) {
  return {.address = {.path = {.link_layer = link_layer,
                               .source = wire::ipv4_gid(0x0a000001),
                               .destination = wire::ipv4_gid(0x0a000002),
                               .flow_label = 0x12345,
                               .traffic_class = 5,
                               .hop_limit = 9,
                               .source_lid = {10},
                               .destination_lid = {20},
                               .service_level = 3,
                               .has_grh = has_grh}},
          .local_ack_timeout = 17};
}

// The peer learns its own end of an InfiniBand path from the message.
TEST(Paths, MessagesCarryTheLidsAndServiceLevelOfInfinibandPaths) {
  for (const bool has_grh : {false, true}) {
    const AlternatePath ours = path(LinkLayer::kInfiniband, has_grh);
    const wire::cm::Path sent = path_of(ours);
    EXPECT_EQ(sent.local_lid, Lid{10});
    EXPECT_EQ(sent.remote_lid, Lid{20});
    EXPECT_EQ(sent.sl, 3);
    EXPECT_EQ(sent.subnet_local, !has_grh);
    const mad::Address current{.path = {.link_layer = LinkLayer::kInfiniband}};
    EXPECT_EQ(address_of(sent, current).path, ours.address.path.reversed());
  }
}

TEST(Paths, MessagesOverEthernetHaveThePlaceholderForLids) {
  const wire::cm::Path sent = path_of(path(LinkLayer::kEthernet, false));
  EXPECT_EQ(sent.local_lid, kRoceLid);
  EXPECT_EQ(sent.remote_lid, kRoceLid);
  EXPECT_FALSE(sent.subnet_local);
  const link::Address theirs = address_of(sent, {}).path;
  EXPECT_EQ(theirs.source, wire::ipv4_gid(0x0a000002));
  EXPECT_EQ(theirs.source_lid, Lid{});
}

}  // namespace
}  // namespace verbena::cm
