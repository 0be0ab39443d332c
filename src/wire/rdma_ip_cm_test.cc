#include "wire/rdma_ip_cm.h"

#include <gtest/gtest.h>

#include "wire/hex.h"

namespace verbena::wire {
namespace {

static_assert(rdma_cm_service_id(kServiceProtocolTcp, 7174) == ServiceId{0x01061c06});
static_assert(rdma_cm_service({0x01111c06}) == RdmaCmService{kServiceProtocolUdp, 7174});
static_assert(rdma_cm_service({0x013fffff}) == RdmaCmService{kServiceProtocolIb, 0xffff});
static_assert(!rdma_cm_service({0x00010000}));          // SDP
static_assert(!rdma_cm_service({0x0200000001061c06}));  // a locally assigned id
static_assert(!rdma_cm_service({0x02061c06}));

// This header is from rxe-rping.pcap.
constexpr auto kIpv4Header =
    hex<"0040cd45 00000000 00000000 00000000 0a4d0003 00000000 00000000 00000000 0a4d0002">();

TEST(RdmaIpCmHeader, ContainsIpv4AddressesWithoutThePrefixOfGids) {
  const RdmaIpCmAddresses expected{ipv4_gid(0x0a4d0003), ipv4_gid(0x0a4d0002)};
  const RdmaIpCmHeader header = rdma_ip_cm_header(expected.source, expected.destination, 0xcd45);
  EXPECT_EQ(encode(header), kIpv4Header);
  EXPECT_EQ(addresses(header), expected);
}

TEST(RdmaIpCmHeader, ContainsIpv6AddressesUnchanged) {
  const RdmaIpCmAddresses expected{{hex<"fd770000 00000000 00000000 00000003">()},
                                   {hex<"fd770000 00000000 00000000 00000002">()}};
  const RdmaIpCmHeader header = rdma_ip_cm_header(expected.source, expected.destination, 1);
  EXPECT_EQ(header.ip_version, 6);
  EXPECT_EQ(addresses(header), expected);
}

TEST(RdmaIpCmHeader, RejectsOtherVersions) {
  auto header = decode_exact<RdmaIpCmHeader>(kIpv4Header);
  header.minor_version = 7;
  EXPECT_TRUE(addresses(header).has_value());
  header.ip_version = 5;
  EXPECT_FALSE(addresses(header).has_value());
  header.ip_version = 4;
  header.major_version = 1;
  EXPECT_FALSE(addresses(header).has_value());
}

}  // namespace
}  // namespace verbena::wire
