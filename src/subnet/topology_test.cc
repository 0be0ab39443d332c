#include "subnet/topology.h"

#include <gtest/gtest.h>

#include <string>

namespace verbena::subnet {
namespace {

Topology two_hosts() {
  Topology topology;
  const auto sw = topology.add_switch("Switch1", 8);
  const auto a = topology.add_hca("Hca1");
  const auto b = topology.add_hca("Hca2", 2);
  topology.connect({sw, 1}, {a, 1});
  topology.connect({sw, 2}, {b, 1});
  set_missing_guids(topology);
  return topology;
}

TEST(Topology, MissingGuidsGetTheNumbersOfIbsim) {
  const Topology topology = two_hosts();
  EXPECT_EQ(topology.nodes[0].node_guid, Guid{0x200000});
  EXPECT_EQ(topology.nodes[0].port_guid(0), Guid{0x200000});
  EXPECT_EQ(topology.nodes[1].node_guid, Guid{0x100000});
  EXPECT_EQ(topology.nodes[1].port_guid(1), Guid{0x100001});
  EXPECT_EQ(topology.nodes[2].node_guid, Guid{0x100002});
  EXPECT_EQ(topology.nodes[2].port_guid(2), Guid{0x100004});
  EXPECT_EQ(topology.nodes[2].system_guid, Guid{0x100002});
  EXPECT_EQ(find_problem(topology), std::nullopt);
}

TEST(Topology, MissingGuidsDoNotRepeatAGuidOfTheFile) {
  Topology topology;
  topology.add_hca("a");
  topology.add_hca("b");
  topology.nodes[1].node_guid = Guid{0x100000};
  topology.nodes[1].port_guids = {Guid{0x100001}};
  set_missing_guids(topology);
  EXPECT_EQ(find_problem(topology), std::nullopt);
  EXPECT_EQ(topology.nodes[1].node_guid, Guid{0x100000});
}

TEST(Topology, ProblemsNameTheNodeOrThePort) {
  const auto problem_after = [](auto&& change) {
    Topology topology = two_hosts();
    change(topology);
    return find_problem(topology).value_or("none");
  };
  EXPECT_EQ(find_problem(Topology{}), "there are no nodes");
  EXPECT_EQ(problem_after([](Topology& t) { t.nodes[1].name = "Switch1"; }),
            "two nodes have the name \"Switch1\"");
  EXPECT_EQ(problem_after([](Topology& t) { t.nodes[1].node_guid = Guid{0x200000}; }),
            "\"Hca1\" has a GUID that is 0 or that occurs twice");
  EXPECT_EQ(problem_after([](Topology& t) { t.nodes[2].port_guids[1] = t.nodes[2].port_guids[0]; }),
            "\"Hca2\" has a GUID that is 0 or that occurs twice");
  EXPECT_EQ(problem_after([](Topology& t) {
              for (Guid& guid : t.nodes[2].port_guids) guid = t.nodes[2].node_guid;
            }),
            "\"Hca2\" has a GUID that is 0 or that occurs twice");
  EXPECT_EQ(problem_after([](Topology& t) { t.nodes[2].port_guids[1] = t.nodes[2].node_guid; }),
            "none");
  EXPECT_EQ(problem_after([](Topology& t) { t.nodes[2].ports = 3; }),
            "\"Hca2\" is an HCA with more than 2 ports");
  EXPECT_EQ(problem_after([](Topology& t) {
              t.connect({0, 1}, {2, 2});
            }),
            "two links use port 1 of \"Switch1\"");
  EXPECT_EQ(problem_after([](Topology& t) {
              t.connect({0, 9}, {2, 2});
            }),
            "a link uses port 9 of \"Switch1\", which has only ports 1 to 8");
  EXPECT_EQ(problem_after([](Topology& t) {
              t.connect({0, 3}, {7, 1});
            }),
            "a link uses node 7, which does not exist");
}

TEST(Topology, ThePortsOfAllNodesAreLimited) {
  Topology topology;
  for (int i = 0; i < 259; ++i) topology.add_switch("S" + std::to_string(i), 254);
  set_missing_guids(topology);
  EXPECT_EQ(find_problem(topology), "there are more than 65536 ports");
  topology.nodes.pop_back();
  EXPECT_EQ(find_problem(topology), std::nullopt);
}

}  // namespace
}  // namespace verbena::subnet
