#include "hosts/subnet_groups.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace verbena::hosts {
namespace {

Gid group_of(unsigned number) {
  Gid gid;
  gid.bytes[0] = std::byte{0xff};
  gid.bytes[14] = static_cast<std::byte>(number >> 8);
  gid.bytes[15] = static_cast<std::byte>(number);
  return gid;
}

std::vector<std::uint16_t> members(const SubnetGroups& groups, HostIndex hca, std::uint8_t port,
                                   unsigned group) {
  std::vector<std::uint16_t> all;
  groups.visit(hca, port, group_of(group), [&](std::uint16_t range) { all.push_back(range); });
  return all;
}

TEST(SubnetGroups, EachPortOfAnHcaHasItsOwnMembers) {
  SubnetGroups groups;
  constexpr std::array<std::uint32_t, 2> kBothPorts{1, 2};
  EXPECT_TRUE(groups.set(5, 100, group_of(1), std::span(kBothPorts).first(1)));
  EXPECT_TRUE(groups.set(5, 101, group_of(1), kBothPorts));
  EXPECT_TRUE(groups.set(5, 100, group_of(2), kBothPorts));
  EXPECT_TRUE(groups.set(6, 102, group_of(1), kBothPorts));
  EXPECT_EQ(members(groups, 5, 1, 1), (std::vector<std::uint16_t>{100, 101}));
  EXPECT_EQ(members(groups, 5, 2, 1), (std::vector<std::uint16_t>{101}));
  EXPECT_EQ(members(groups, 6, 1, 1), (std::vector<std::uint16_t>{102}));
  EXPECT_TRUE(groups.set(5, 101, group_of(1), {}));
  EXPECT_EQ(members(groups, 5, 1, 1), (std::vector<std::uint16_t>{100}));
}

TEST(SubnetGroups, ARangeIsInAGroupAtThePortsOfItsMemberships) {
  SubnetGroups groups;
  constexpr std::array<std::uint32_t, 1> kSecondPort{2};
  EXPECT_TRUE(groups.set(5, 100, group_of(9), kSecondPort));
  EXPECT_TRUE(groups.set(6, 101, group_of(9), kSecondPort));
  EXPECT_TRUE(groups.is_in_a_group(5, 2, 100));
  EXPECT_FALSE(groups.is_in_a_group(5, 1, 100));
  EXPECT_FALSE(groups.is_in_a_group(5, 2, 101));
  EXPECT_FALSE(groups.is_in_a_group(4, 2, 100));
  EXPECT_TRUE(groups.set(5, 100, group_of(9), {}));
  EXPECT_FALSE(groups.is_in_a_group(5, 2, 100));
}

TEST(SubnetGroups, NumberOfMembersIsLimited) {
  SubnetGroups groups;
  constexpr std::array<std::uint32_t, 1> kFirstPort{1};
  for (unsigned i = 0; i < SubnetGroups::kMembersMax; ++i) {
    ASSERT_TRUE(groups.set(0, 1, group_of(i), kFirstPort));
  }
  EXPECT_FALSE(groups.set(0, 2, group_of(0), kFirstPort));
  EXPECT_TRUE(groups.set(0, 1, group_of(0), {}));
  EXPECT_TRUE(groups.set(0, 2, group_of(0), kFirstPort));
}

}  // namespace
}  // namespace verbena::hosts
