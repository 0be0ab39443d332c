#include "cli/ps.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/text.h"
#include "ipc/tool_messages.h"
#include "wire/ip.h"

namespace verbena::cli {
namespace {

Listing listing() {
  const ipc::QpTableRow qp{.qpn = 0x123011,
                           .destination_qpn = 0x456017,
                           .type = 2,
                           .state = 3,
                           .send_psn = 0xabc,
                           .acked_psn = 0xabb,
                           .expected_psn = 1,
                           .source = wire::ipv4_gid(0x0a000001),
                           .destination = wire::ipv4_gid(0x0a000002),
                           .packets_in = 5,
                           .packets_out = 7,
                           .retransmissions = 2};
  const ipc::ConnectionInfo id{
      .pid = 42, .state = "LISTEN", .source = {.ip = wire::ipv4_gid(0), .port = 7174, .family = 4}};
  return {
      .processes = {{.process = {.pid = 42, .name = "rping", .has_table = true, .ranges = {0x123}},
                     .qps = {qp},
                     .qps_not_shown = 3,
                     .counters = {{"timeouts", 0}, {"retransmissions", 4}}},
                    {.process = {.pid = 43, .name = "idle"}}},
      .connections = {id},
      .agent = {.pid = 9, .counters = {{"other", 8}, {"data_packets", 0}}}};
}

TEST(Ps, ProgramNamesCannotControlTheTerminal) {
  Listing all = listing();
  all.processes[1].process.name = "a\n\033[2J\"\xc2\x9b";
  EXPECT_NE(as_text(all).find("43   a\\x0a\\x1b[2J\\\"\\xc2\\x9b"), std::string::npos)
      << as_text(all);
  all.processes[1].counters = {{"timeouts", 1}};
  EXPECT_NE(counters_as_text(all).find("a\\x0a\\x1b[2J"), std::string::npos);
  for (const std::string& json : {as_json(all), counters_as_json(all)}) {
    EXPECT_EQ(json.find_first_of("\033\xc2\x9b"), std::string::npos) << json;
    EXPECT_EQ(nlohmann::json::parse(json)["processes"][1]["program"], "a\n\033[2J\"\xc2\x9b");
  }
}

TEST(Ps, PrintsATableWithTheAgentBelow) {
  EXPECT_EQ(as_text(listing()),
            "PID  PROGRAM  QPN         TYPE  STATE   LOCAL     PEER      PEER-QPN  SEND-PSN  "
            "ACKED-PSN  RECV-PSN  OUT  IN  RETRIES\n"
            "42   rping    0x123011    RC    RTS     10.0.0.1  10.0.0.2  0x456017  000abc    "
            "000abb     000001    7    5   2\n"
            "42   rping    and 3 more\n"
            "43   idle     -\n"
            "42   rping    -           id    LISTEN  *:7174    -         -         -         -     "
            "     -         -    -   0\n"
            "agent: pid 9; it handled 0 data packets\n");
}

TEST(Ps, QpsOnInfinibandShowLids) {
  Listing all = listing();
  ipc::QpTableRow& qp = all.processes[0].qps[0];
  qp.link_layer = LinkLayer::kInfiniband;
  qp.source_lid = {16};
  qp.destination_lid = {0xbfff};
  EXPECT_NE(as_text(all).find("LID 16  LID 49151"), std::string::npos) << as_text(all);
  const auto json = nlohmann::json::parse(as_json(all));
  EXPECT_EQ(json["processes"][0]["qps"][0]["local"], "LID 16");
  EXPECT_EQ(json["processes"][0]["qps"][0]["peer"], "LID 49151");
}

TEST(Ps, JsonHasTheSameValues) {
  const auto json = nlohmann::json::parse(as_json(listing()));
  EXPECT_EQ(json["agent"]["data_packets"], 0);
  EXPECT_EQ(json["processes"][0]["qps"][0]["peer"], "10.0.0.2");
  EXPECT_EQ(json["processes"][0]["qps"][0]["qpn"], 0x123011);
  EXPECT_EQ(json["processes"][0]["qps_not_shown"], 3);
  EXPECT_EQ(json["processes"][1]["qps"].size(), 0u);
  EXPECT_EQ(json["ids"][0]["local"], "*:7174");
}

TEST(Ps, PrintsCountersThatAreNotZero) {
  EXPECT_EQ(counters_as_text(listing()),
            "PID  PROGRAM   COUNTER          VALUE  SAID-BY\n"
            "42   rping     retransmissions  4      program\n"
            "9    verbenad  other            8      agent\n");
}

TEST(Ps, NamesOfCountersCannotControlTheTerminal) {
  Listing all = listing();
  all.processes[0].counters = {{"\x1b[2Jverbenad", 1}};
  EXPECT_EQ(counters_as_text(all).find('\x1b'), std::string::npos);
}

TEST(Ps, JsonHasAllCounters) {
  const auto json = nlohmann::json::parse(counters_as_json(listing()));
  EXPECT_EQ(json["processes"][0]["counters"]["retransmissions"], 4);
  EXPECT_EQ(json["processes"][0]["counters"]["timeouts"], 0);
  EXPECT_EQ(json["processes"][1]["counters"].size(), 0u);
  EXPECT_EQ(json["agent"]["counters"]["other"], 8);
}

TEST(Ps, NameThatIsNotUtf8DoesNotBreakJson) {
  Listing all = listing();
  all.processes[0].process.name = "\xff";
  EXPECT_TRUE(nlohmann::json::accept(as_json(all)));
}

TEST(Text, FormatsValuesForUsers) {
  Gid v6{};
  v6.bytes[0] = std::byte{0xfe};
  v6.bytes[1] = std::byte{0x80};
  v6.bytes[15] = std::byte{1};
  EXPECT_EQ(address_text(v6), "fe80::1");
  EXPECT_EQ(address_text(rdmacm::SocketAddress{.ip = v6, .port = 5, .scope = 1, .family = 6}),
            "[fe80::1%lo]:5");
  EXPECT_EQ(address_text(rdmacm::SocketAddress{.port = 5, .family = 6}), "[::]:5");
  EXPECT_EQ(address_text(rdmacm::SocketAddress{}), "-");
  rdmacm::SocketAddress by_gid{
      .ip = v6, .port = 5, .family = 6, .by_gid = true, .service = {0x01060005}};
  EXPECT_EQ(address_text(by_gid), "[fe80::1]:5");
  by_gid.service = {0x1000000000000005};
  EXPECT_EQ(address_text(by_gid), "fe80::1 service 0x1000000000000005");
  by_gid.ip = {};
  EXPECT_EQ(address_text(by_gid), "* service 0x1000000000000005");
  EXPECT_EQ(address_text(rdmacm::SocketAddress{.ip = v6, .family = 6, .by_gid = true}), "fe80::1");
  EXPECT_EQ(duration_text(59), "59 s");
  EXPECT_EQ(duration_text(3601), "1 h 0 min");
  EXPECT_EQ(qp_type_text(77), "77");
  EXPECT_EQ(qp_state_text(6), "ERR");
}

}  // namespace
}  // namespace verbena::cli
