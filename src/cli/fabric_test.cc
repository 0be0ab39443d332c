#include "cli/fabric.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "wire/ip.h"

namespace verbena::cli {
namespace {

ipc::FabricReply two_hosts() {
  const ipc::RailStatus red{.device = "verbena0",
                            .network = "red",
                            .mtu_bytes = 9000,
                            .addresses = {wire::ipv4_gid(0x0a1f0001)},
                            .pkeys = {{0xffff}}};
  const ipc::RailStatus blue{.device = "verbena1",
                             .network = "blue",
                             .vlan = 5,
                             .mtu_bytes = 1500,
                             .addresses = {wire::ipv4_gid(0x0a1f0101)},
                             .pkeys = {{0xffff}}};
  return {.pid = 12,
          .name = "lab",
          .file = "/lab.toml",
          .uptime = std::chrono::seconds(61),
          .hosts = {{.name = "a", .programs = 2, .rails = {red, blue}},
                    {.name = "b", .programs = 0, .rails = {red}}},
          .counters = {{"forwarded", 7}, {"dropped_no_route", 0}}};
}

TEST(Fabric, TextHasALineForEachRailAndTheCountersThatAreNotZero) {
  EXPECT_EQ(fabric_as_text(two_hosts()),
            "HOST  PROGRAMS  DEVICE    NETWORK  VLAN  MTU   ADDRESSES\n"
            "a     2         verbena0  red      -     9000  10.31.0.1\n"
            "                verbena1  blue     5     1500  10.31.1.1\n"
            "b     0         verbena0  red      -     9000  10.31.0.1\n"
            "fabric 'lab': pid 12, up 1 min 1 s, from /lab.toml\n"
            "  forwarded 7\n");
}

ipc::FabricReply two_hcas_of_a_cluster() {
  ipc::FabricReply fabric = two_hosts();
  fabric.hosts[0].rails.pop_back();
  fabric.hosts[0].description = "a";
  fabric.hosts[0].guid = Guid{0xa};
  fabric.hosts[1].description = "b mlx5_0\x1b";
  fabric.hosts[1].guid = Guid{0xb};
  return fabric;
}

TEST(Fabric, DescriptionsAreShownIfTheyAreNotTheNames) {
  const ipc::FabricReply fabric = two_hcas_of_a_cluster();
  const std::string text = fabric_as_text(fabric);
  EXPECT_TRUE(
      text.starts_with("HOST  DESCRIPTION   PROGRAMS  DEVICE    NETWORK  VLAN  MTU   ADDRESSES\n"
                       "a     a             2         verbena0  red      -     9000  10.31.0.1\n"
                       "b     b mlx5_0\\x1b  0         verbena0  red      -     9000  10.31.0.1\n"))
      << text;
  const auto json = nlohmann::json::parse(fabric_as_json(fabric)).at("fabric").at("hosts").at(1);
  EXPECT_EQ(json.at("name"), "b");
  EXPECT_EQ(json.at("description"), "b mlx5_0\x1b");
  EXPECT_EQ(json.at("guid"), "0x000000000000000b");
}

TEST(Fabric, AHostIsFoundByItsNameItsDescriptionAndItsGuid) {
  auto hosts = two_hcas_of_a_cluster().hosts;
  hosts.push_back({.name = "H-000000000000000c", .description = "twin", .guid = Guid{0xc}});
  hosts.push_back({.name = "H-000000000000000d", .description = "twin", .guid = Guid{0xd}});
  const auto found = [&](const std::string& text) {
    const auto host = find_host(hosts, text);
    return host ? host->name : host.error();
  };
  EXPECT_EQ(found("b"), "b");
  EXPECT_EQ(found("b mlx5_0\x1b"), "b");
  EXPECT_EQ(found("0xb"), "b");
  EXPECT_EQ(found("H-000000000000000b"), "b");
  EXPECT_EQ(found("H-000000000000000d"), "H-000000000000000d");
  EXPECT_EQ(
      found("twin"),
      "has several hosts with the description 'twin': H-000000000000000c, H-000000000000000d");
  EXPECT_EQ(found("z"), "has no host 'z'; it has: a, b, H-000000000000000c, H-000000000000000d");
  EXPECT_EQ(found(""), "has no host ''; it has: a, b, H-000000000000000c, H-000000000000000d");
}

TEST(Fabric, SubnetManagersAreShownWithTheirState) {
  const ipc::FabricReply fabric{.managers = {{.node = "Hca1",
                                              .pid = 7,
                                              .state = "master",
                                              .directory = "/tmp/verbena-fabric-x/Hca1"}}};
  EXPECT_NE(fabric_as_text(fabric).find("\nsubnet manager on Hca1: master, OpenSM, pid 7\n"),
            std::string::npos)
      << fabric_as_text(fabric);
  const auto json = nlohmann::json::parse(fabric_as_json(fabric)).at("fabric").at("managers").at(0);
  EXPECT_EQ(json.at("node"), "Hca1");
  EXPECT_EQ(json.at("state"), "master");
  EXPECT_EQ(json.at("pid"), 7);
}

TEST(Fabric, TextShowsFaults) {
  const ipc::FabricReply fabric{.faults = {{.what = "link a:verbena0 - red", .state = "is down"}},
                                .faults_left_out = 3};
  EXPECT_NE(fabric_as_text(fabric).find("\nfault: link a:verbena0 - red is down\nfault: 3 more\n"),
            std::string::npos)
      << fabric_as_text(fabric);
  const auto json = nlohmann::json::parse(fabric_as_json(fabric)).at("fabric");
  EXPECT_EQ(json.at("faults").at(0).at("what"), "link a:verbena0 - red");
  EXPECT_EQ(json.at("faults").at(0).at("state"), "is down");
  EXPECT_EQ(json.at("faults_left_out"), 3);
}

TEST(Fabric, JsonHasHostsRailsAndAllCounters) {
  const auto json = nlohmann::json::parse(fabric_as_json(two_hosts())).at("fabric");
  EXPECT_EQ(json.at("name"), "lab");
  EXPECT_EQ(json.at("uptime_seconds"), 61);
  EXPECT_EQ(json.at("hosts").at(0).at("programs"), 2);
  const auto& rail = json.at("hosts").at(0).at("rails").at(1);
  EXPECT_EQ(rail.at("vlan"), 5);
  EXPECT_EQ(rail.at("addresses").at(0), "10.31.1.1");
  EXPECT_EQ(rail.at("pkeys").at(0), 0xffff);
  EXPECT_EQ(json.at("counters").at("dropped_no_route"), 0);
}

}  // namespace
}  // namespace verbena::cli
