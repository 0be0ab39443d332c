#include "cli/sa.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "wire/ip.h"

namespace verbena::cli {
namespace {

using namespace std::chrono_literals;

Gid subnet_gid(unsigned last_byte) {
  Gid gid{};
  gid.bytes[0] = std::byte{0xfe};
  gid.bytes[1] = std::byte{0x80};
  gid.bytes[15] = static_cast<std::byte>(last_byte);
  return gid;
}

SaListing sa_listing(ipc::SaTopic topic) {
  SaListing listing{.agent_pid = 9, .devices = {"verbena0", "verbena1"}, .topic = topic};
  listing.rows.paths = {{.state = "known",
                         .destination = subnet_gid(2),
                         .source = subnet_gid(1),
                         .destination_lid = {12},
                         .source_lid = {11},
                         .pkey = {0xffff},
                         .service_level = 0,
                         .mtu = 4,
                         .rate = 2,
                         .packet_life = 18,
                         .age = 75s},
                        {.port = {1, 2},
                         .state = "asked",
                         .destination = subnet_gid(3),
                         .source = subnet_gid(1),
                         .waiters = 2},
                        {.state = "absent",
                         .destination = subnet_gid(4),
                         .source = subnet_gid(1),
                         .pkey = {0xffff},
                         .age = 3s,
                         .error = "the subnet manager has no such record"}};
  listing.rows.groups = {{.mgid = subnet_gid(0xff),
                          .join_state = 1,
                          .wanted = 9,
                          .members = 2,
                          .mlid = {0xc000},
                          .qkey = {0xb1b},
                          .pkey = {0xffff},
                          .mtu = 4,
                          .rate = 3},
                         {.wanted = 4, .members = 1, .busy = true}};
  listing.rows.addresses = {{.ip = wire::ipv4_gid(0x0a000002),
                             .state = "reachable",
                             .gid = subnet_gid(2),
                             .qpn = {2},
                             .age = 12s},
                            {.ip = wire::ipv4_gid(0x0a000003),
                             .state = "incomplete",
                             .age = 1s,
                             .waiters = 3,
                             .tries = 2}};
  listing.rows.counters = {{"sa_queries", 4}, {"sa_busy", 0}, {"limit_routes", 1}};
  return listing;
}

nlohmann::json json_of(ipc::SaTopic topic) {
  return nlohmann::json::parse(as_json(sa_listing(topic)));
}

TEST(Sa, PathsArePrintedAsATable) {
  EXPECT_EQ(
      as_text(sa_listing(ipc::SaTopic::kPaths)),
      "PORT        STATE   DESTINATION  DLID  SLID  P_KEY   SL  MTU   RATE  LIFE     AGE     "
      "    WAITERS  ERROR\n"
      "verbena0/1  known   fe80::2      12    11    0xffff  0   2048  2.5   1.074 s  1 min 15 "
      "s  0\n"
      "verbena1/2  asked   fe80::3      -     -     -       -   -     -     -        -       "
      "    2\n"
      "verbena0/1  absent  fe80::4      -     -     0xffff  -   -     -     -        3 s     "
      "    0        the subnet manager has no such record\n");
}

TEST(Sa, JsonOfPathsHasTheSameValues) {
  const auto json = json_of(ipc::SaTopic::kPaths);
  EXPECT_EQ(json["agent"]["pid"], 9);
  ASSERT_EQ(json["paths"].size(), 3u);
  const auto& known = json["paths"][0];
  EXPECT_EQ(known["port"], "verbena0/1");
  EXPECT_EQ(known["state"], "known");
  EXPECT_EQ(known["destination"], "fe80::2");
  EXPECT_EQ(known["source"], "fe80::1");
  EXPECT_EQ(known["destination_lid"], 12);
  EXPECT_EQ(known["source_lid"], 11);
  EXPECT_EQ(known["pkey"], 0xffff);
  EXPECT_EQ(known["mtu"], 2048);
  EXPECT_EQ(known["rate_gbps"], 2.5);
  EXPECT_EQ(known["packet_life_time_ns"], 1073741824);
  EXPECT_EQ(known["age_seconds"], 75);
  const auto& asked = json["paths"][1];
  EXPECT_EQ(asked["port"], "verbena1/2");
  EXPECT_EQ(asked["waiters"], 2);
  EXPECT_TRUE(asked["age_seconds"].is_null());
  EXPECT_TRUE(asked["packet_life_time_ns"].is_null());
  EXPECT_EQ(json["paths"][2]["error"], "the subnet manager has no such record");
  EXPECT_EQ(json["paths"][2]["age_seconds"], 3);
}

TEST(Sa, GroupsShowJoinStatesInWords) {
  EXPECT_EQ(
      as_text(sa_listing(ipc::SaTopic::kGroups)),
      "PORT        MGID      MLID    Q_KEY       P_KEY   JOINED  WANTED                MEMBERS"
      "  MTU   RATE  SL  BUSY\n"
      "verbena0/1  fe80::ff  0xc000  0x00000b1b  0xffff  full    full, send-only full  2      "
      "  2048  10    0   no\n"
      "verbena0/1  -         -       -           -       -       send-only non         1      "
      "  -     -     -   yes\n");
  const auto json = json_of(ipc::SaTopic::kGroups);
  ASSERT_EQ(json["groups"].size(), 2u);
  EXPECT_EQ(json["groups"][0]["mgid"], "fe80::ff");
  EXPECT_EQ(json["groups"][0]["mlid"], 0xc000);
  EXPECT_EQ(json["groups"][0]["qkey"], 0xb1b);
  EXPECT_EQ(json["groups"][0]["joined"], "full");
  EXPECT_EQ(json["groups"][0]["wanted"], "full, send-only full");
  EXPECT_EQ(json["groups"][0]["rate_gbps"], 10);
  EXPECT_EQ(json["groups"][1]["joined"], "-");
  EXPECT_EQ(json["groups"][1]["busy"], true);
}

TEST(Sa, AddressesArePrintedAsATable) {
  EXPECT_EQ(as_text(sa_listing(ipc::SaTopic::kAddresses)),
            "PORT        ADDRESS   STATE       GID      QPN       AGE   WAITERS  UNANSWERED\n"
            "verbena0/1  10.0.0.2  reachable   fe80::2  0x000002  12 s  0        0\n"
            "verbena0/1  10.0.0.3  incomplete  -        -         1 s   3        2\n");
  const auto json = json_of(ipc::SaTopic::kAddresses);
  ASSERT_EQ(json["addresses"].size(), 2u);
  EXPECT_EQ(json["addresses"][0]["address"], "10.0.0.2");
  EXPECT_EQ(json["addresses"][0]["gid"], "fe80::2");
  EXPECT_EQ(json["addresses"][0]["qpn"], 2);
  EXPECT_EQ(json["addresses"][0]["age_seconds"], 12);
  EXPECT_EQ(json["addresses"][1]["state"], "incomplete");
  EXPECT_EQ(json["addresses"][1]["gid"], "-");
  EXPECT_EQ(json["addresses"][1]["unanswered_requests"], 2);
}

TEST(Sa, TableOfCountersLeavesOutZeros) {
  EXPECT_EQ(as_text(sa_listing(ipc::SaTopic::kCounters)),
            "COUNTER       VALUE\n"
            "sa_queries    4\n"
            "limit_routes  1\n");
  const auto json = json_of(ipc::SaTopic::kCounters);
  EXPECT_EQ(json["counters"]["sa_queries"], 4);
  EXPECT_EQ(json["counters"]["sa_busy"], 0);
}

TEST(Sa, FlushSaysHowManyPathsAndAddressesWereRemoved) {
  EXPECT_EQ(as_text(ipc::SaFlushed{.paths = 1, .addresses = 2}),
            "removed 1 path and 2 addresses from the cache\n");
  EXPECT_EQ(as_text(ipc::SaFlushed{.paths = 0, .addresses = 1}),
            "removed 0 paths and 1 address from the cache\n");
  const auto json = nlohmann::json::parse(as_json(9, ipc::SaFlushed{.paths = 1, .addresses = 2}));
  EXPECT_EQ(json["agent"]["pid"], 9);
  EXPECT_EQ(json["flushed"]["paths"], 1);
  EXPECT_EQ(json["flushed"]["addresses"], 2);
}

// The agent is another process and may send any values, so the tool must survive them.
TEST(Sa, UnknownValuesAreShownAsUnknown) {
  SaListing listing = sa_listing(ipc::SaTopic::kPaths);
  listing.rows.paths = {{.port = {7, 1}, .state = "a\033", .mtu = 200, .rate = 200}};
  EXPECT_NE(as_text(listing).find("?/1   a\\x1b"), std::string::npos) << as_text(listing);
  EXPECT_EQ(as_json(listing).find('\033'), std::string::npos);
  EXPECT_EQ(mtu_text(0), "-");
  EXPECT_EQ(mtu_text(1), "256");
  EXPECT_EQ(mtu_text(5), "4096");
  EXPECT_EQ(mtu_text(6), "-");
  EXPECT_EQ(static_rate_text(0), "-");
  EXPECT_EQ(static_rate_text(2), "2.5");
  EXPECT_EQ(static_rate_text(16), "100");
  EXPECT_EQ(static_rate_text(24), "1200");
  EXPECT_EQ(static_rate_text(25), "-");
}

TEST(Sa, PacketLifeTimesAndJoinStatesAreFormattedForReaders) {
  EXPECT_EQ(life_time_text(0), "4.1 us");
  EXPECT_EQ(life_time_text(14), "67.1 ms");
  EXPECT_EQ(life_time_text(18), "1.074 s");
  EXPECT_EQ(life_time_text(31), "8796 s");
  EXPECT_EQ(join_state_text(2), "non");
  EXPECT_EQ(join_state_text(4 | 8), "send-only non, send-only full");
  EXPECT_EQ(join_state_text(0xf0), "-");
}

}  // namespace
}  // namespace verbena::cli
