#include "cli/fabric_up.h"

#include <gtest/gtest.h>

#include <string>

namespace verbena::cli {
namespace {

constexpr const char* kOpensm = "/usr/sbin/opensm";

// Makes a switch, an HCA without a cable, and two HCAs with a cable to the switch.
FabricFile subnet_file() {
  FabricFile file{.topology = subnet::Topology{}};
  file.topology->add_switch("s", 4);
  file.topology->add_hca("unplugged");
  for (const char* name : {"one", "two"}) {
    const std::uint32_t hca = file.topology->add_hca(name);
    file.topology->connect({hca, 1}, {0, static_cast<std::uint8_t>(hca)});
  }
  return file;
}

std::string refusal(const std::vector<std::string>& sm_options,
                    const std::optional<std::string>& opensm = kOpensm,
                    const FabricFile& file = subnet_file()) {
  const auto choice = choose_managers(file, sm_options, opensm);
  return choice ? "accepted" : choice.error();
}

TEST(FabricUp, OpensmRunsOnTheFirstHcaWithACable) {
  const auto choice = choose_managers(subnet_file(), {}, kOpensm);
  ASSERT_TRUE(choice.has_value());
  EXPECT_EQ(choice->nodes, std::vector<std::string>{"one"});
  EXPECT_EQ(choice->opensm, kOpensm);
  EXPECT_EQ(choice->warning, "");
}

TEST(FabricUp, TheUserChoosesUpToTwoManagersOrNone) {
  const std::vector<std::string> both{"two", "one"};
  EXPECT_EQ(choose_managers(subnet_file(), both, kOpensm)->nodes, both);
  EXPECT_TRUE(choose_managers(subnet_file(), {"none"}, kOpensm)->nodes.empty());
  EXPECT_EQ(choose_managers(subnet_file(), {"none"}, std::nullopt)->warning, "");
  EXPECT_EQ(refusal({"none", "one"}), "--sm none excludes another --sm");
  EXPECT_EQ(refusal({"one", "one"}), "--sm names the node one twice");
  EXPECT_EQ(refusal({"one", "two", "one"}),
            "--sm may be given at most twice, for a master and a standby");
}

TEST(FabricUp, AManagerMayBeNamedByTheDescriptionOfItsNode) {
  FabricFile file = subnet_file();
  file.topology->nodes[2].description = "one mlx5_0";
  EXPECT_EQ(choose_managers(file, {"one mlx5_0"}, kOpensm)->nodes, std::vector<std::string>{"one"});
  EXPECT_EQ(refusal({"one", "one mlx5_0"}, kOpensm, file), "--sm names the node one twice");
}

TEST(FabricUp, NodesThatCannotHaveAManagerAreRefused) {
  EXPECT_EQ(refusal({"three"}), "--sm three: there is no node 'three'");
  EXPECT_EQ(refusal({"s"}), "--sm s: it is a switch, but OpenSM runs on an HCA");
  EXPECT_EQ(refusal({"unplugged"}), "--sm unplugged: the HCA has no cable");
  EXPECT_EQ(refusal({"one"}, kOpensm, FabricFile{}),
            "--sm is for the InfiniBand subnet of a netlist");
}

TEST(FabricUp, WithoutOpensmTheFabricComesUpWithAWarning) {
  const auto choice = choose_managers(subnet_file(), {}, std::nullopt);
  ASSERT_TRUE(choice.has_value());
  EXPECT_TRUE(choice->nodes.empty());
  EXPECT_NE(choice->warning.find("apt-get install opensm"), std::string::npos);
  EXPECT_EQ(refusal({"one"}, std::nullopt), "OpenSM is not installed (apt-get install opensm)");
}

TEST(FabricUp, FabricOfATomlFileHasNoManager) {
  const auto choice = choose_managers(FabricFile{}, {}, std::nullopt);
  ASSERT_TRUE(choice.has_value());
  EXPECT_TRUE(choice->nodes.empty());
  EXPECT_EQ(choice->warning, "");
}

}  // namespace
}  // namespace verbena::cli
