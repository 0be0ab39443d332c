#include "link/access_grant.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "wire/bth.h"
#include "wire/ip.h"

namespace verbena::link {
namespace {

constexpr std::uint32_t kWrite = 2, kRead = 4;
constexpr std::uint64_t kTop = ~std::uint64_t{0};

// Owns a table with one region and one queue pair, and a request that the table grants.
class AccessGrantTest : public ::testing::Test {
 protected:
  AccessGrantTest() {
    publish(qp);
    publish(region);
  }
  ~AccessGrantTest() override = default;

  void publish(const auto& row) { ASSERT_TRUE(table_.publish(row)); }
  std::optional<AccessGrant> result() const { return grant(table_, request); }
  // Returns true if the request is refused after one of its members has changed to `value`.
  template <class Value>
  bool refuses(Value AccessRequest::*member, Value value) const {
    AccessRequest changed = request;
    changed.*member = value;
    return !grant(table_, changed);
  }

  struct Memory {
    alignas(64) std::array<std::byte, AccessTable::kBytes> bytes{};
  };
  std::unique_ptr<Memory> memory_ = std::make_unique<Memory>();
  AccessTable table_ = *AccessTable::attach(memory_->bytes);
  QpRow qp{.qpn = 0x22,
           .peer_qpn = 0x11,
           .peer = wire::ipv4_gid(0x0a000001),
           .generation = 5,
           .domain = 9,
           .access_flags = kWrite | kRead,
           .pkey = 0xffff,
           .mtu = 3,
           .expected_psn = 0xfffff0};
  RegionRow region{.key = 0x12345678,
                   .access_flags = kWrite | kRead,
                   .address = 0x7f0000001000,
                   .length = 4096,
                   .iova = 0x1000,
                   .domain = 9};
  AccessRequest request{.target = Qpn{0x22},
                        .initiator = Qpn{0x11},
                        .initiator_address = wire::ipv4_gid(0x0a000001),
                        .pkey = Pkey{0x7fff},
                        .mtu = 3,
                        .first_psn = Psn{0xfffff0},
                        .psns = 4,
                        .access_flags = kWrite,
                        .r_key = 0x12345678,
                        .remote_address = 0x1000,
                        .length = 4096};
};

TEST_F(AccessGrantTest, GrantHasTheAddressInTheTargetProcess) {
  ASSERT_TRUE(result());
  EXPECT_EQ(result()->address, region.address);
  EXPECT_EQ(result()->generation, qp.generation);
  request.remote_address += 100;
  request.length = 1;
  EXPECT_EQ(result()->address, region.address + 100);
}

TEST_F(AccessGrantTest, RequestWithAnyWrongFieldOfTheConnectionIsRefused) {
  EXPECT_TRUE(refuses(&AccessRequest::target, Qpn{0x23}));
  EXPECT_TRUE(refuses(&AccessRequest::initiator, Qpn{0x12}));
  EXPECT_TRUE(refuses(&AccessRequest::initiator_address, wire::ipv4_gid(0x0a000002)));
  EXPECT_TRUE(refuses(&AccessRequest::mtu, std::uint8_t{4}));
  EXPECT_TRUE(refuses(&AccessRequest::pkey, Pkey{0x8001}));
  EXPECT_TRUE(refuses(&AccessRequest::access_flags, std::uint32_t{8}));
  EXPECT_TRUE(refuses(&AccessRequest::access_flags, std::uint32_t{0}));
}

TEST_F(AccessGrantTest, RequestBetweenTwoLimitedMembersOfAPartitionIsRefused) {
  qp.pkey = 0x7fff;
  publish(qp);
  EXPECT_FALSE(result());
  request.pkey = Pkey{0xffff};
  EXPECT_TRUE(result());
}

TEST_F(AccessGrantTest, FirstAccessOfAConnectionNeedsTheExpectedPsn) {
  EXPECT_TRUE(refuses(&AccessRequest::first_psn, Psn{0xfffff1}));
  EXPECT_TRUE(refuses(&AccessRequest::first_psn, Psn{0xffffef}));
}

TEST_F(AccessGrantTest, LaterAccessesMayBeAheadOfTheExpectedPsnByLessThanHalfOfAllPsns) {
  request.generation = 5;
  request.first_psn = Psn{0xfffff0} + 100;
  EXPECT_TRUE(result());
  EXPECT_TRUE(refuses(&AccessRequest::generation, std::uint64_t{4}));
  EXPECT_TRUE(refuses(&AccessRequest::first_psn, Psn{0xffffef}))
      << "the target already expects a later PSN";
  EXPECT_TRUE(refuses(&AccessRequest::first_psn, Psn{0xfffff0} + (0x7fffff - 3)));
  EXPECT_FALSE(refuses(&AccessRequest::first_psn, Psn{0xfffff0} + (0x7fffff - 4)));
  EXPECT_TRUE(refuses(&AccessRequest::psns, std::uint32_t{0x800000}));
  EXPECT_TRUE(refuses(&AccessRequest::psns, std::uint32_t{0}));
}

TEST_F(AccessGrantTest, RegionMustHaveTheRightsAndTheDomainOfTheQueuePair) {
  region.access_flags = kRead;
  publish(region);
  EXPECT_FALSE(result());
  request.access_flags = kRead;
  EXPECT_TRUE(result());
  region.domain = 8;
  publish(region);
  EXPECT_FALSE(result());
}

TEST_F(AccessGrantTest, RangesOutsideOfTheRegionAreRefused) {
  EXPECT_TRUE(refuses(&AccessRequest::length, std::uint32_t{4097}));
  EXPECT_TRUE(refuses(&AccessRequest::length, std::uint32_t{0}));
  EXPECT_TRUE(refuses(&AccessRequest::remote_address, std::uint64_t{0xfff}));
  EXPECT_TRUE(refuses(&AccessRequest::remote_address, std::uint64_t{0x1001}));
  EXPECT_TRUE(refuses(&AccessRequest::remote_address, kTop));
  EXPECT_TRUE(refuses(&AccessRequest::r_key, std::uint32_t{0x12345679}));
  EXPECT_TRUE(refuses(&AccessRequest::r_key, std::uint32_t{0}));
}

TEST_F(AccessGrantTest, RemovedRowsGrantNothing) {
  table_.remove_region(region.key);
  EXPECT_FALSE(result());
  publish(region);
  EXPECT_TRUE(result());
  table_.remove_qp(qp.qpn);
  EXPECT_FALSE(result());
}

}  // namespace
}  // namespace verbena::link
