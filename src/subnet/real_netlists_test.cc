#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "subnet/find_link.h"
#include "subnet/netlist.h"

// Reads what ibnetdiscover prints about real clusters.
namespace verbena::subnet {
namespace {

Topology parse(const std::string& text) {
  auto parsed = parse_netlist(text);
  if (parsed) return std::move(*parsed);
  ADD_FAILURE() << parsed.error().line << ':' << parsed.error().column << ": "
                << parsed.error().reason;
  return {};
}

std::vector<std::string> names_in(const Topology& topology) {
  std::vector<std::string> names;
  for (const Node& node : topology.nodes) names.push_back(node.name);
  return names;
}

// Makes the netlist of HCAs with the descriptions.  Their GUIDs are 1, 2, ...
std::string hcas(const std::vector<std::string>& descriptions) {
  std::string text;
  for (std::size_t i = 0; i < descriptions.size(); ++i) {
    const std::string digit(1, static_cast<char>('1' + i));
    text += "caguid=0x" + digit + "\nCa\t1 \"H-000000000000000" + digit + "\"\t\t# \"" +
            descriptions[i] + "\"\n";
  }
  return text;
}

std::vector<std::string> names_of(const std::vector<std::string>& descriptions) {
  return names_in(parse(hcas(descriptions)));
}

using Names = std::vector<std::string>;

constexpr const char* kCluster = R"(#
# Topology file: generated on Mon Mar  2 10:11:12 2020
#
# Reported max hops discovered: 2
# Total MADs used: 31
# Initiated from node 0c42a10300aa0100 port 0c42a10300aa0100

vendid=0x2c9
devid=0xd2f0
sysimgguid=0xc42a10300ee0000
switchguid=0xc42a10300ee0000(c42a10300ee0000)
Switch	41 "S-0c42a10300ee0000"		# "MF0;rack-7:MQM8700/U1" enhanced port 0 lid 9 lmc 0
[1]	"H-0c42a10300aa0100"[1](c42a10300aa0100) 		# "cn01 mlx5_0" lid 1 4xHDR
[2]	"H-0c42a10300aa0200"[1](c42a10300aa0200) 		# "cn02 mlx5_0" lid 2 2xHDR
[20]	"R-0c42a10300bb0000"[3](c42a10300bb0003) 		# "gateway" lid 7 4xFDR10

vendid=0x2c9
devid=0x101b
sysimgguid=0xc42a10300aa0100
caguid=0xc42a10300aa0100
Ca	1 "H-0c42a10300aa0100"		# "cn01 mlx5_0"
[1](c42a10300aa0100) 	"S-0c42a10300ee0000"[1]		# lid 1 lmc 0 "MF0;rack-7:MQM8700/U1" lid 9 4xHDR

caguid=0xc42a10300aa0200
Ca	1 "H-0c42a10300aa0200"		# "cn02 mlx5_0"
[1](c42a10300aa0200) 	"S-0c42a10300ee0000"[2]		# lid 2 lmc 0 "MF0;rack-7:MQM8700/U1" lid 9 2xHDR

rtguid=0xc42a10300bb0000
Rt	4 "R-0c42a10300bb0000"		# "gateway"
[3](c42a10300bb0003) 	"S-0c42a10300ee0000"[20]		# lid 7 lmc 0 "MF0;rack-7:MQM8700/U1" lid 9 4xFDR10
)";

TEST(RealNetlists, ADumpOfAClusterIsRead) {
  const Topology topology = parse(kCluster);
  EXPECT_EQ(names_in(topology),
            (Names{"MF0;rack-7:MQM8700/U1", "cn01-mlx5_0", "cn02-mlx5_0", "gateway"}));
  ASSERT_EQ(topology.nodes.size(), 4u);
  EXPECT_EQ(topology.nodes[1].description, "cn01 mlx5_0");
  EXPECT_EQ(topology.nodes[3].type, NodeType::kRouter);
  EXPECT_EQ(topology.nodes[3].node_guid, Guid{0xc42a10300bb0000});
  EXPECT_EQ(topology.nodes[3].port_guid(3), Guid{0xc42a10300bb0003});
  ASSERT_EQ(topology.links.size(), 3u);
  EXPECT_EQ(topology.links[1].width, LinkWidth::k2x);
  EXPECT_EQ(topology.links[2].speed, LinkSpeed::kFdr10);
}

TEST(RealNetlists, AWrittenDumpIsReadAsTheSame) {
  for (const std::string& text :
       {std::string(kCluster), hcas({"a b", "a.b", "a-b", "", "x", "x", "\"q\""}),
        std::string("Hca 1 \"a b\" # \"c\"\nHca 1 \"d e\"\nHca 1 \"-rf\"\nSwitch 1 \"x\ty\"\n")}) {
    const std::string written = write_netlist(parse(text));
    EXPECT_EQ(write_netlist(parse(written)), written);
  }
}

TEST(RealNetlists, LinesOfStderrAndHeadingsAreNoPartOfTheTopology) {
  const std::string heading =
      R"(src/query_smp.c:228; umad (DR path slid 0; dlid 0; 0,1,8 Attr 0x11:0) bad status 110; Connection timed out
ibwarn: [4711] _do_madrpc: recv failed: Connection timed out
ibnetdiscover: iberror: [pid 4711] mad_rpc: _do_madrpc failed; dport (DR path slid 0; dlid 0; 0,1,8)
./libibnetdisc/src/ibnetdisc.c:631; Failed to query a node
)";
  std::string grouped(kCluster);
  const auto insert_before = [&](const std::string& line, const std::string& text) {
    grouped.insert(grouped.find(line), text);
  };
  insert_before("\nvendid=0x2c9\ndevid=0xd2f0",
                "\nChassis 1 (guid 0xc42a10300ee0000)\nHostname: director\n\n# Spine Nodes\n"
                "# Line Nodes\n\nChassis 2\n\nNon-Chassis Nodes\n");
  insert_before("\nswitchguid", "\t\t# Chassis 1 (director) slot 2");
  insert_before("\nSwitch", "\t# ISR9288 Spine 2 Chip 1");
  insert_before("\t\"H-0c42a10300aa0100\"[1]", "[ext 17]");
  insert_before("\t\t# lid 1 lmc 0", "[ext 17] ");
  EXPECT_EQ(write_netlist(parse(heading + grouped)), write_netlist(parse(kCluster)));
}

// Versions before 2007 print no GUID of a port, and no speed.
TEST(RealNetlists, DumpsOfOldVersionsAreRead) {
  const Topology topology = parse(R"(# Max of 2 hops discovered
vendid=0x8f1
devid=0x5a30
sysimgguid=0x8f10400aa0009
switchguid=0x8f10400aa0008
Switch  24 "S-0008f10400aa0008"         # "sLB-24 chip 1" port 0 lid 742
[24]    "H-0002c90200bb0010"[1]         # "atlas35" lid 1252

caguid=0x2c90200bb0010
Ca      2 "H-0002c90200bb0010"          # "atlas35"
[1]     "S-0008f10400aa0008"[24]                # lid 1252 lmc 0 "sLB-24 chip 1" lid 742
)");
  EXPECT_EQ(names_in(topology), (Names{"sLB-24 chip 1", "atlas35"}));
  EXPECT_EQ(topology.links.size(), 1u);
}

TEST(RealNetlists, FilesOfWindowsAreRead) {
  std::string text = "\xef\xbb\xbf";
  for (const char c : std::string(kCluster)) text += c == '\n' ? "\r\n" : std::string(1, c);
  EXPECT_EQ(write_netlist(parse(text)), write_netlist(parse(kCluster)));
}

TEST(RealNetlists, ANameHasOnlyCharactersThatCommandsTake) {
  EXPECT_EQ(names_of({"node-1 HCA-1"}), Names{"node-1-HCA-1"});
  EXPECT_EQ(names_of({"n1.lab.example mlx5_0"}), Names{"n1-lab-example-mlx5_0"});
  EXPECT_EQ(names_of({"-rf"}), Names{"rf"});
  EXPECT_EQ(names_of({"Gr\xc3\xb6\xc3\x9f"
                      "e (2)"}),
            Names{"Gr-e-2"});
  EXPECT_EQ(names_of({"\xe6\x97\xa5\xe6\x9c\xac"}), Names{"H-0000000000000001"});
  EXPECT_EQ(names_of({""}), Names{"H-0000000000000001"});
  EXPECT_EQ(names_of({"a \"quoted\" name"}), Names{"a-quoted-name"});
  EXPECT_EQ(parse(hcas({"a \"quoted\" name"})).nodes[0].description, "a \"quoted\" name");
  EXPECT_EQ(parse(hcas({"a\tb"})).nodes[0].description, "a b");
}

// A name has up to 32 bytes, and a NodeDescription has 64.
TEST(RealNetlists, ALongDescriptionIsKeptAndTheGuidIsTheName) {
  const std::string longest(64, 'x');
  EXPECT_EQ(names_of({std::string(32, 'x')}), Names{std::string(32, 'x')});
  EXPECT_EQ(names_of({std::string(33, 'x')}), Names{"H-0000000000000001"});
  EXPECT_EQ(parse(hcas({longest})).nodes[0].description, longest);
  EXPECT_EQ(parse(hcas({longest + "y"})).nodes[0].description, longest);
}

TEST(RealNetlists, NodesWithOneDescriptionAreNamedByTheirGuids) {
  const Names guids{"H-0000000000000001", "H-0000000000000002"};
  EXPECT_EQ(names_of({"MT4123 HCA", "MT4123 HCA"}), guids);
  EXPECT_EQ(names_of({"localhost", "localhost"}), guids);
  EXPECT_EQ(names_of({"node 1", "node.1"}), guids) << "both would be node-1";
  EXPECT_EQ(names_of({"node-1", "node.1"}), (Names{"node-1", "H-0000000000000002"}));
  EXPECT_EQ(names_of({"H-0000000000000002", "other"}), (Names{"H-0000000000000001", "other"}));
}

TEST(RealNetlists, AnIdThatIsNoNameBecomesTheDescription) {
  const Topology topology = parse("Hca 1 \"node 1\"\nHca 1 \"node 2\" # \"second\"\n");
  EXPECT_EQ(names_in(topology), (Names{"node-1", "second"}));
  EXPECT_EQ(topology.nodes[0].description, "node 1");
}

TEST(RealNetlists, ANodeIsFoundByItsNameItsDescriptionAndItsGuid) {
  const Topology topology = parse(kCluster + hcas({"twin", "twin"}));
  EXPECT_EQ(find_node(topology, "cn02-mlx5_0"), 2u);
  EXPECT_EQ(find_node(topology, "cn02 mlx5_0"), 2u);
  EXPECT_EQ(find_node(topology, "0xc42a10300aa0200"), 2u);
  EXPECT_EQ(find_node(topology, "H-0c42a10300aa0200"), 2u);
  EXPECT_EQ(find_node(topology, "twin").error(),
            "several nodes have the description 'twin': H-0000000000000001, H-0000000000000002");
  EXPECT_EQ(find_node(topology, "0x0").error(), "there is no node '0x0'");
  EXPECT_EQ(find_node(topology, "").error(), "there is no node ''");
  EXPECT_EQ(find_link(topology, "cn01 mlx5_0:1", "MF0;rack-7:MQM8700/U1"), 0u);
}

}  // namespace
}  // namespace verbena::subnet
