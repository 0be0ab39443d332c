#include "subnet/find_link.h"

#include <gtest/gtest.h>

namespace verbena::subnet {
namespace {

// Returns two switches with two links between them, an HCA at the first switch, and an HCA without
// links.
Topology two_switches() {
  Topology topology;
  const std::uint32_t switch1 = topology.add_switch("s1", 8);
  const std::uint32_t switch2 = topology.add_switch("rack:2", 8);
  const std::uint32_t a = topology.add_hca("a");
  topology.add_hca("alone");
  topology.connect({a, 1}, {switch1, 3});
  topology.connect({switch1, 4}, {switch2, 5});
  topology.connect({switch1, 6}, {switch2, 7});
  return topology;
}

std::string problem_with_link(std::string_view a, std::string_view b) {
  const auto link = find_link(two_switches(), a, b);
  return link ? "link " + std::to_string(*link) : link.error();
}

TEST(FindLink, ThePortMayBeOmittedIfOneLinkJoinsTheNodes) {
  EXPECT_EQ(find_link(two_switches(), "a", "s1"), 0U);
  EXPECT_EQ(find_link(two_switches(), "s1", "a"), 0U);
  EXPECT_EQ(find_link(two_switches(), "a:1", "s1:3"), 0U);
  EXPECT_EQ(find_link(two_switches(), "s1:3", "a"), 0U);
}

TEST(FindLink, OnePortDistinguishesParallelLinks) {
  EXPECT_EQ(problem_with_link("s1", "rack:2"),
            "several links join 's1' and 'rack:2', so name a port (NAME:PORT): s1:4 - rack:2:5, "
            "s1:6 - rack:2:7");
  EXPECT_EQ(find_link(two_switches(), "s1:6", "rack:2"), 2U);
  EXPECT_EQ(find_link(two_switches(), "rack:2:5", "s1"), 1U);
}

TEST(FindLink, ErrorsNameTheMissingNodeOrPort) {
  EXPECT_EQ(problem_with_link("b", "s1"), "there is no node 'b'");
  EXPECT_EQ(problem_with_link("a", "b:1"), "there is no node 'b'");
  EXPECT_EQ(problem_with_link("a:2", "s1"), "'a' has no port '2': its ports are 1 to 1");
  EXPECT_EQ(problem_with_link("a:x", "s1"), "'a' has no port 'x': its ports are 1 to 1");
  EXPECT_EQ(problem_with_link("a:1", "s1:4"),
            "no link joins 'a:1' and 's1:4'; 'a' has: a:1 - s1:3");
  EXPECT_EQ(problem_with_link("alone", "s1"),
            "no link joins 'alone' and 's1'; 'alone' has no links");
  EXPECT_EQ(find_node(two_switches(), "b").error(), "there is no node 'b'");
}

}  // namespace
}  // namespace verbena::subnet
