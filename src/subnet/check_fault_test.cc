#include "subnet/check_fault.h"

#include <gtest/gtest.h>

#include "subnet/generate.h"

namespace verbena::subnet {
namespace {

TEST(CheckFault, FaultsThatTheSubnetCannotHaveAreRefused) {
  const Topology hosts = *make_hosts(2);
  const std::string& sw = hosts.nodes[0].name;
  const std::string& hca = hosts.nodes[1].name;
  ASSERT_TRUE(hosts.nodes[0].is_switch());
  EXPECT_EQ(problem_with(hosts, {.kind = faults::Kind::kNodePaused, .a = sw}), std::nullopt);
  EXPECT_EQ(problem_with(hosts, {.kind = faults::Kind::kNodePaused, .a = "x"}),
            "there is no node 'x'");
  EXPECT_EQ(problem_with(hosts, {.kind = faults::Kind::kLinkSlow, .a = sw, .b = hca}),
            std::nullopt);
  EXPECT_EQ(problem_with(hosts, {.kind = faults::Kind::kLinkSlow, .a = sw, .b = "x"}),
            "there is no node 'x'");
  EXPECT_EQ(problem_with(hosts, {.kind = faults::Kind::kPkeyAdded, .a = hca}), std::nullopt);
  EXPECT_EQ(problem_with(hosts, {.kind = faults::Kind::kPkeyAdded, .a = sw}),
            sw + " is a switch, and P_Keys can be changed only at HCAs");
  const auto mtu = [&](std::uint32_t bytes) {
    return problem_with(hosts,
                        {.kind = faults::Kind::kLinkMtu, .a = sw, .b = hca, .mtu_bytes = bytes});
  };
  EXPECT_EQ(mtu(0), std::nullopt);
  EXPECT_EQ(mtu(1024), std::nullopt);
  EXPECT_EQ(mtu(1500), "the MTU of a subnet's link must be 256, 512, 1024, 2048 or 4096");
}

}  // namespace
}  // namespace verbena::subnet
