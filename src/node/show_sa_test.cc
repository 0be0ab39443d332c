#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>

#include "ipc/counters.h"
#include "node/test_subnet_node.h"
#include "wire/mgid.h"

namespace verbena::node {
namespace {

using namespace std::chrono_literals;

class ShowSaTest : public SubnetNodeTest {
 protected:
  ipc::SaReply page(ipc::SaTopic topic, std::uint32_t skip = 0) {
    const auto reply = node_.show_sa({.topic = topic, .skip = skip}, now());
    EXPECT_TRUE(reply);
    return reply.value_or(ipc::SaReply{});
  }
  std::uint64_t counter(const char* name) {
    const auto all = page(ipc::SaTopic::kCounters).counters;
    const auto found = std::ranges::find(all, name, &ipc::NamedCount::name);
    EXPECT_NE(found, all.end()) << name;
    return found == all.end() ? 0 : found->value;
  }
};

TEST_F(ShowSaTest, PathsHaveTheAnswersOfTheManager) {
  resolve_gid(2);
  resolve_gid(3);
  resolve_gid(40);  // a GID that is not in the subnet
  world_.run_until(now() + 2s);
  const auto paths = page(ipc::SaTopic::kPaths).paths;
  ASSERT_EQ(paths.size(), 3u);
  EXPECT_EQ(paths[0], (ipc::SaPathRow{.state = "known",
                                      .destination = gid(2),
                                      .source = gid(1),
                                      .destination_lid = lid(2),
                                      .source_lid = lid(1),
                                      .pkey = {0xffff},
                                      .mtu = 4,
                                      .rate = 3,
                                      .age = 2s}));
  EXPECT_EQ(paths[1].destination, gid(3));
  EXPECT_EQ(paths[1].destination_lid, lid(3));
  EXPECT_EQ(paths[2], (ipc::SaPathRow{.state = "absent",
                                      .destination = gid(40),
                                      .source = gid(1),
                                      .pkey = {0xffff},
                                      .age = 2s,
                                      .error = "the subnet manager has no such record"}));
  EXPECT_FALSE(page(ipc::SaTopic::kPaths).more);
}

TEST_F(ShowSaTest, PendingQueriesAreShownInSeveralReplies) {
  manager_.die();
  const unsigned row_count = 2 * ipc::kSaRowsPerReply + 3;
  for (unsigned i = 0; i < row_count; ++i) resolve_gid(1000 + i);
  std::set<Gid> seen;
  for (const unsigned rows : {unsigned{ipc::kSaRowsPerReply}, unsigned{ipc::kSaRowsPerReply}, 3u}) {
    const auto reply = page(ipc::SaTopic::kPaths, static_cast<std::uint32_t>(seen.size()));
    ASSERT_EQ(reply.paths.size(), rows);
    EXPECT_EQ(reply.more, rows != 3);
    for (const ipc::SaPathRow& row : reply.paths) {
      EXPECT_EQ(row.state, "asked");
      EXPECT_EQ(row.waiters, 1u);
      EXPECT_TRUE(seen.insert(row.destination).second);
    }
  }
  EXPECT_EQ(seen.size(), row_count);
  EXPECT_TRUE(page(ipc::SaTopic::kPaths, row_count).paths.empty());
  EXPECT_FALSE(page(ipc::SaTopic::kPaths, row_count).more);
}

TEST_F(ShowSaTest, GroupsContainTheBroadcastGroup) {
  exchange();
  const auto groups = page(ipc::SaTopic::kGroups).groups;
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].mgid, wire::broadcast_mgid({0xffff}));
  EXPECT_EQ(groups[0].join_state, wire::join_state::kFullMember);
  EXPECT_EQ(groups[0].wanted, wire::join_state::kFullMember);
  EXPECT_EQ(groups[0].members, 1u);
  EXPECT_EQ(groups[0].qkey, Qkey{0xb1b});
  EXPECT_GE(groups[0].mlid, Lid{0xc000});
  EXPECT_FALSE(groups[0].busy);
}

TEST_F(ShowSaTest, AddressesThatAreBeingResolvedHaveWaiters) {
  exchange();
  const Gid neighbour = wire::ipv4_gid(0x0a000002);
  resolve({.ip = neighbour, .port = 7, .family = 4});
  resolve({.ip = neighbour, .port = 8, .family = 4});
  const auto addresses = page(ipc::SaTopic::kAddresses).addresses;
  ASSERT_EQ(addresses.size(), 1u);
  EXPECT_EQ(addresses[0],
            (ipc::SaAddressRow{.ip = neighbour, .state = "incomplete", .waiters = 2, .tries = 1}));
}

TEST_F(ShowSaTest, AfterAFlushRoutesAreQueriedAgainAndGroupsRemain) {
  resolve_gid(2);
  resolve_gid(40);
  const std::uint64_t queries_before = counter("sa_queries");
  resolve_gid(2);
  EXPECT_EQ(counter("sa_queries"), queries_before);
  EXPECT_EQ(node_.flush_sa(now()).value(), (ipc::SaFlushed{.paths = 2, .addresses = 0}));
  EXPECT_TRUE(page(ipc::SaTopic::kPaths).paths.empty());
  EXPECT_EQ(page(ipc::SaTopic::kGroups).groups.size(), 1u);
  resolve_gid(2);
  EXPECT_EQ(counter("sa_queries"), queries_before + 1);
  EXPECT_EQ(page(ipc::SaTopic::kPaths).paths.size(), 1u);
}

TEST_F(ShowSaTest, UnknownTopicIsRefused) {
  const auto reply = node_.show_sa({.topic = static_cast<ipc::SaTopic>(77)}, now());
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, Errc::kInvalidArgument);
}

TEST(ShowSa, HostWithoutInfinibandPortsGetsAnError) {
  Node node({.node_guid = {5}, .build = "test"}, Random(1));
  const auto reply = node.show_sa({}, Time{});
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, Errc::kNotSupported);
  EXPECT_STREQ(reply.error().context,
               "this host has no InfiniBand port, so it uses no subnet administration");
  EXPECT_EQ(node.flush_sa(Time{}).error().code, Errc::kNotSupported);
}

}  // namespace
}  // namespace verbena::node
