#include "subnet/netlist.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "subnet/generate.h"

namespace verbena::subnet {
namespace {

constexpr std::string_view kThreeHosts = R"(# three hosts
Switch	8 "Switch1"
[1]	"Hca1"[1]
[2]	"Hca2"[1]	w=12
[3]	"Hca3"[1]

Hca	1 "Hca1"
[1]	"Switch1"[1]

Hca	2 "Hca2"

Hca	1 "Hca3"
[1]	"Switch1"[3]
)";

// Contains the output of ibnetdiscover under ibsim.
constexpr std::string_view kDiscovered = R"(#
# Topology file: generated on Thu Nov 26 06:25:44 2026
#
# Initiated from node 0000000000100000 port 0000000000100001

vendid=0x2c9
devid=0xc738
sysimgguid=0x200000
switchguid=0x200000(200000)
Switch	8 "S-0000000000200000"		# "Switch1" base port 0 lid 0 lmc 0
[1]	"H-0000000000100000"[1](100001) 		# "Hca1 4xQDR" lid 0 4xSDR
[2]	"H-0000000000100002"[1](100003) 		# "Hca2" lid 0 4xEDR

vendid=0x0
devid=0x0
sysimgguid=0x100002
caguid=0x100002
Ca	2 "H-0000000000100002"		# "Hca2"
[1](100003) 	"S-0000000000200000"[2]		# lid 0 lmc 0 "Switch1" lid 0 4xEDR

caguid=0x100000
Ca	1 "H-0000000000100000"		# "Hca1 4xQDR"
[1](100001) 	"S-0000000000200000"[1]		# lid 0 lmc 0 "Switch1" lid 0 4xSDR
)";

std::string error_of(std::string_view text) {
  const auto parsed = parse_netlist(text);
  if (parsed) return "none";
  return std::to_string(parsed.error().line) + ':' + std::to_string(parsed.error().column) + ": " +
         parsed.error().reason;
}

TEST(Netlist, ParserReadsTheFormatOfIbsim) {
  const auto parsed = parse_netlist(kThreeHosts);
  ASSERT_TRUE(parsed.has_value()) << error_of(kThreeHosts);
  ASSERT_EQ(parsed->nodes.size(), 4u);
  EXPECT_EQ(parsed->nodes[0].type, NodeType::kSwitch);
  EXPECT_EQ(parsed->nodes[0].ports, 8);
  EXPECT_EQ(parsed->nodes[2].name, "Hca2");
  EXPECT_EQ(parsed->nodes[2].node_guid, Guid{0x100002});
  ASSERT_EQ(parsed->links.size(), 3u);
  EXPECT_EQ(parsed->links[1].a, (PortRef{0, 2}));
  EXPECT_EQ(parsed->links[1].b, (PortRef{2, 1}));
  EXPECT_EQ(parsed->links[1].width, LinkWidth::k12x);
  EXPECT_EQ(parsed->links[0].width, LinkWidth::k4x);
  EXPECT_EQ(parsed->links[0].speed, LinkSpeed::kSdr);
  EXPECT_EQ(parsed->links[0].mtu, Mtu::k2048);
}

TEST(Netlist, ParserReadsTheOutputOfIbnetdiscover) {
  const auto parsed = parse_netlist(kDiscovered);
  ASSERT_TRUE(parsed.has_value()) << error_of(kDiscovered);
  ASSERT_EQ(parsed->nodes.size(), 3u);
  EXPECT_EQ(parsed->nodes[0].name, "Switch1");
  EXPECT_EQ(parsed->nodes[0].node_guid, Guid{0x200000});
  EXPECT_EQ(parsed->nodes[0].vendor_id, 0x2c9u);
  EXPECT_EQ(parsed->nodes[0].device_id, 0xc738u);
  EXPECT_EQ(parsed->nodes[1].name, "Hca2");
  EXPECT_EQ(parsed->nodes[1].port_guid(1), Guid{0x100003});
  EXPECT_EQ(parsed->nodes[2].name, "Hca1-4xQDR");
  EXPECT_EQ(parsed->nodes[2].description, "Hca1 4xQDR");
  ASSERT_EQ(parsed->links.size(), 2u);
  EXPECT_EQ(parsed->links[0].speed, LinkSpeed::kSdr);
  EXPECT_EQ(parsed->links[1].speed, LinkSpeed::kEdr);
}

// Parses a switch with one link to an HCA, whose line at the switch ends with the text.
Link link_of(const std::string& text, const std::string& beginning = "") {
  const std::string netlist =
      beginning + "Switch 2 \"s\"\n[1] \"h\"[1] " + text + "\nHca 1 \"h\"\n[1] \"s\"[1]\n";
  const auto parsed = parse_netlist(netlist);
  EXPECT_TRUE(parsed.has_value()) << error_of(netlist);
  return parsed ? parsed->links.at(0) : Link{};
}

TEST(Netlist, EachWidthAndSpeedOfIbnetdiscoverIsReadAndWritten) {
  const std::vector<std::pair<std::string, LinkWidth>> widths{{"1", LinkWidth::k1x},
                                                              {"2", LinkWidth::k2x},
                                                              {"4", LinkWidth::k4x},
                                                              {"8", LinkWidth::k8x},
                                                              {"12", LinkWidth::k12x}};
  const std::vector<std::pair<std::string, LinkSpeed>> speeds{
      {"SDR", LinkSpeed::kSdr},     {"DDR", LinkSpeed::kDdr}, {"QDR", LinkSpeed::kQdr},
      {"FDR10", LinkSpeed::kFdr10}, {"FDR", LinkSpeed::kFdr}, {"EDR", LinkSpeed::kEdr},
      {"HDR", LinkSpeed::kHdr},     {"NDR", LinkSpeed::kNdr}, {"XDR", LinkSpeed::kXdr}};
  for (const auto& [lanes, width] : widths) {
    for (const auto& [name, speed] : speeds) {
      const std::string text = lanes + "x" + name;
      const Link link = link_of("# \"h\" lid 3 " + text);
      EXPECT_EQ(link.width, width) << text;
      EXPECT_EQ(link.speed, speed) << text;
      Topology topology = *make_hosts(1);
      topology.links.at(0).width = width;
      topology.links.at(0).speed = speed;
      EXPECT_NE(write_netlist(topology).find(" " + text + " "), std::string::npos) << text;
    }
  }
}

TEST(Netlist, AWidthOrSpeedThatIbnetdiscoverDidNotKnowIsTheDefault) {
  EXPECT_EQ(link_of("# \"h\" lid 3 1x???").width, LinkWidth::k1x);
  EXPECT_EQ(link_of("# \"h\" lid 3 1x????").speed, LinkSpeed::kSdr);
  EXPECT_EQ(link_of("# \"h\" lid 3 ??HDR").width, LinkWidth::k4x);
  EXPECT_EQ(link_of("# \"h\" lid 3 ??HDR").speed, LinkSpeed::kHdr);
  EXPECT_EQ(link_of("# \"h\" lid 3 ?????").speed, LinkSpeed::kSdr);
}

TEST(Netlist, OptionsOfIbsimSetWidthAndSpeed) {
  EXPECT_EQ(link_of("s=3").speed, LinkSpeed::kDdr);
  EXPECT_EQ(link_of("w=1 s=7 e=3").speed, LinkSpeed::kEdr);
  EXPECT_EQ(link_of("e=15 w=2").width, LinkWidth::k2x);
  const std::string defaults = "width=9\nspeed=4\nextspeed=1\n";
  EXPECT_EQ(link_of("", defaults).width, LinkWidth::k12x);
  EXPECT_EQ(link_of("", defaults).speed, LinkSpeed::kFdr);
  EXPECT_EQ(link_of("w=1 # 4xHDR", defaults).speed, LinkSpeed::kHdr);
}

// Only the second end has the width.
TEST(Netlist, TheSecondEndOfALinkAddsWhatTheFirstDoesNotSay) {
  const auto parsed = parse_netlist(
      "extspeed=1\nSwitch 2 \"s\"\n[1] \"h\"\nHca 1 \"h\"\n[1] \"s\"[1] # 12xEDR mtu 4096\n");
  ASSERT_TRUE(parsed.has_value());
  ASSERT_EQ(parsed->links.size(), 1u);
  EXPECT_EQ(parsed->links[0].b.port, 1) << "the default port of ibsim";
  EXPECT_EQ(parsed->links[0].width, LinkWidth::k12x);
  EXPECT_EQ(parsed->links[0].speed, LinkSpeed::kEdr);
  EXPECT_EQ(parsed->links[0].mtu, Mtu::k4096);
}

TEST(Netlist, WrittenTextIsReadAsTheSameTopology) {
  const Topology tree = *make_fat_tree(16);
  const auto parsed = parse_netlist(write_netlist(tree));
  ASSERT_TRUE(parsed.has_value()) << error_of(write_netlist(tree));
  EXPECT_EQ(write_netlist(*parsed), write_netlist(tree));
  ASSERT_EQ(parsed->links.size(), tree.links.size());
  EXPECT_EQ(parsed->links[0].speed, LinkSpeed::kEdr);
  EXPECT_EQ(parsed->links[0].mtu, Mtu::k4096);
  EXPECT_EQ(parsed->nodes[3].node_guid, tree.nodes[3].node_guid);
}

TEST(Netlist, ErrorsNameTheLineTheColumnAndTheReason) {
  EXPECT_EQ(error_of(""), "1:1: there are no nodes");
  EXPECT_EQ(error_of("Router 3 \"a\""), "1:1: this line is neither a node, a port nor a GUID");
  EXPECT_EQ(error_of("Switch: 3 \"a\""), "1:7: the number of ports must follow");
  EXPECT_EQ(error_of("caguid: 3"), "1:1: this line is neither a node, a port nor a GUID");
  EXPECT_EQ(error_of("??? 1 \"?-0000000000000001\""),
            "1:1: this line is neither a node, a port nor a GUID");
  EXPECT_EQ(error_of("Rt 255 \"a\""), "1:4: a router has 1 to 254 ports");
  EXPECT_EQ(error_of("@1 \"a\""), "1:1: aliases of ibsim ('@') are not supported");
  EXPECT_EQ(error_of("module=\"a\""), "1:1: 'module' of ibsim is not supported");
  EXPECT_EQ(error_of("include \"other\""), "1:1: 'include' of ibsim is not supported");
  EXPECT_EQ(error_of("Switch x \"a\""), "1:8: the number of ports must follow");
  EXPECT_EQ(error_of("Hca 3 \"a\""), "1:5: an HCA has 1 to 2 ports");
  EXPECT_EQ(error_of("Hca 99999999999999999999 \"a\""), "1:5: the number of ports must follow");
  EXPECT_EQ(error_of("Hca 1 a"), "1:7: the node's id in quotes must follow");
  EXPECT_EQ(error_of("Hca 1 \"a\" b"), "1:11: only a comment may follow the node's id");
  EXPECT_EQ(error_of("Hca 1 \"a\"\n\nHca 1 \"a\""), "3:7: there are two nodes \"a\"");
  EXPECT_EQ(error_of("[1] \"a\"[1]"), "1:1: this port belongs to no node");
  EXPECT_EQ(error_of("Hca 1 \"a\"\n [2] \"b\"[1]"), "2:2: \"a\" has only 1 ports");
  EXPECT_EQ(error_of("Hca 1 \"a\"\n[0] \"b\"[1]"), "2:2: a port has a number from 1 to 254");
  EXPECT_EQ(error_of("Hca 1 \"a\"\n[1 \"b\"[1]"), "2:4: ']' must follow");
  EXPECT_EQ(error_of("Hca 1 \"a\"\n[1] b[1]"),
            "2:5: the id of the other node in quotes must follow");
  EXPECT_EQ(error_of("Hca 1 \"a\"\n[1] \"b\"[1]"), "2:5: there is no node \"b\"");
  EXPECT_EQ(error_of("Hca 1 \"a\"\n[1] \"b\"[1] w=3"), "2:12: a link has 1, 2, 4, 8 or 12 lanes");
  EXPECT_EQ(error_of("Hca 1 \"a\"\n[1] \"a\"[1]"), "2:5: a port cannot be connected to itself");
  EXPECT_EQ(error_of("Hca 2 \"a\"\n[1] \"b\"[1]\nHca 2 \"b\"\n[2] \"a\"[1]"),
            "4:5: one of the two ports is already connected to another port");
  EXPECT_EQ(error_of("caguid=zzz\nHca 2 \"a\""), "1:8: a hexadecimal number must follow");
  EXPECT_EQ(error_of("caguid=1\nCa 1 \"a\"\ncaguid=1\nCa 1 \"b\""),
            "4:6: \"b\" has a GUID that is 0 or that occurs twice");
  EXPECT_EQ(error_of("Hca 1 \"a\"\n[1][ex 2] \"b\"[1]"),
            "2:7: \"ext\", a number and ']' must follow");
  EXPECT_EQ(error_of("Hca 1 \"a\"\n[1] \"b\"[1] s=8"), "2:12: a speed is a mask up to 7");
  EXPECT_EQ(error_of("extspeed=16"), "1:10: an extended speed is a mask up to 15");
  EXPECT_EQ(error_of("width=32"), "1:7: a width is a mask up to 31");
}

TEST(Netlist, AValueOfALinkThatIsNotKnownIsRefusedWithItsPlace) {
  const auto error_with = [](const std::string& comment) {
    return error_of("Switch 2 \"s\"\n[1] \"h\"[1] # \"4xGDR mtu 7\" lid 3 " + comment +
                    "\nHca 1 \"h\"");
  };
  EXPECT_EQ(error_with("4xGDR"),
            "2:34: 'GDR' is no known speed: use SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR or XDR");
  EXPECT_EQ(error_with("3xEDR"), "2:34: a link has 1, 2, 4, 8 or 12 lanes");
  EXPECT_EQ(error_with("4xEDR mtu 1500"), "2:44: an MTU is 256, 512, 1024, 2048 or 4096 bytes");
  EXPECT_EQ(error_with("4xEDR mtu unknown, 4xother, 3x, w=7"), "none");
}

TEST(Netlist, ATextThatIsTooLongIsRefused) {
  std::string text = "Hca 1 \"a\"\n";
  text.resize(kNetlistBytesMax, '\n');
  EXPECT_TRUE(parse_netlist(text).has_value());
  text += '\n';
  EXPECT_EQ(error_of(text), "1:1: the text is too long");
}

TEST(Netlist, AnyTextGivesATopologyOrAnError) {
  const std::string text(kDiscovered);
  for (std::size_t i = 0; i < text.size(); ++i) {
    (void)parse_netlist(text.substr(0, i));
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 0x15);
    if (const auto parsed = parse_netlist(changed)) {
      EXPECT_EQ(find_problem(*parsed), std::nullopt);
      EXPECT_TRUE(parse_netlist(write_netlist(*parsed)).has_value()) << write_netlist(*parsed);
    }
  }
}

TEST(Generate, AFatTreeHasALinkFromEachLeafToEachSpine) {
  const Topology tree = *make_fat_tree(16);
  EXPECT_EQ(find_problem(tree), std::nullopt);
  EXPECT_EQ(tree.nodes.size(), 4u + 4u + 16u);
  EXPECT_EQ(tree.links.size(), 16u + 4u * 4u);
  EXPECT_EQ(find_problem(*make_fat_tree(1)), std::nullopt);
  EXPECT_EQ(find_problem(*make_fat_tree(1000)), std::nullopt);
  EXPECT_EQ(find_problem(*make_fat_tree(kHostsOfFatTreeMax)), std::nullopt);
  EXPECT_FALSE(make_fat_tree(0).has_value());
  EXPECT_FALSE(make_fat_tree(kHostsOfFatTreeMax + 1).has_value());
}

TEST(Generate, HostsWithTwoPortsAreAtTwoSwitches) {
  const Topology topology = *make_hosts(3, 2);
  EXPECT_EQ(find_problem(topology), std::nullopt);
  EXPECT_EQ(topology.nodes.size(), 5u);
  EXPECT_EQ(topology.links.size(), 6u);
  EXPECT_FALSE(make_hosts(0).has_value());
  EXPECT_FALSE(make_hosts(3, 3).has_value());
}

TEST(NetlistTest, NetlistsAreDistinguishedFromOtherFiles) {
  EXPECT_TRUE(looks_like_netlist("Rt 1 \"R1\""));
  EXPECT_TRUE(looks_like_netlist("\xef\xbb\xbfSwitch 8 \"S1\"\n"));
  EXPECT_TRUE(looks_like_netlist("ibwarn: [7] mad_rpc: failed\n\nSwitch 8 \"S1\"\n"));
  EXPECT_TRUE(looks_like_netlist("# a comment\nvendid=0x1\nSwitch\t8 \"S1\"\n"));
  EXPECT_TRUE(looks_like_netlist("Ca 1 \"H1\""));
  EXPECT_TRUE(looks_like_netlist("  Hca \"H1\"")) << "a netlist with an error is still a netlist";
  EXPECT_FALSE(looks_like_netlist("name = \"lab\"\n[[hosts]]\nname = \"Switch 8\"\n"));
  EXPECT_FALSE(looks_like_netlist("Switch = 8\n"));
  EXPECT_FALSE(looks_like_netlist(""));
}

}  // namespace
}  // namespace verbena::subnet
