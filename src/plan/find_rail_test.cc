#include "plan/find_rail.h"

#include <gtest/gtest.h>

namespace verbena::plan {
namespace {

Fabric fabric_with_three_rails() {
  return parse(R"(
    [[hosts]]
    name = "a"
    rails = [ { network = "red", addresses = ["10.0.0.1"] },
              { network = "green", addresses = ["10.0.9.1"] },
              { network = "green", addresses = ["10.0.9.2"] } ]
  )")
      .value();
}

TEST(FindRail, FindsTheLinkBetweenAHostAndANetwork) {
  const Fabric fabric = fabric_with_three_rails();
  EXPECT_EQ(find_rail(fabric, "a", "red"), (RailId{0, 0}));
  EXPECT_EQ(find_rail(fabric, "a:verbena1", "green"), (RailId{0, 1}));
  EXPECT_EQ(find_rail(fabric, "x", "red").error(), "there is no host 'x'");
  EXPECT_EQ(find_rail(fabric, "a:verbena1", "red").error(),
            "there is no link between 'a:verbena1' and the network 'red'; there are: a:verbena0 "
            "- red, a:verbena1 - green, a:verbena2 - green");
  EXPECT_TRUE(find_rail(fabric, "a", "green").error().starts_with("there are several links"));
}

TEST(FindRail, TheEndsOfALinkMayBeGivenInAnyOrder) {
  const Fabric fabric = fabric_with_three_rails();
  EXPECT_EQ(find_link(fabric, "red", "a"), find_link(fabric, "a", "red"));
  EXPECT_EQ(find_link(fabric, "a", "blue").error(), find_rail(fabric, "a", "blue").error());
}

TEST(FindRail, FaultsThatTheFabricCannotHaveAreRefused) {
  using faults::Kind;
  const Fabric fabric = fabric_with_three_rails();
  EXPECT_EQ(problem_with(fabric, {.kind = Kind::kLinkDown, .a = "a", .b = "red"}), std::nullopt);
  EXPECT_EQ(problem_with(fabric, {.kind = Kind::kNodeOff, .a = "a"}), std::nullopt);
  EXPECT_EQ(problem_with(fabric, {.kind = Kind::kNodeOff, .a = "b"}), "there is no host 'b'");
  const auto mtu = [&](std::uint32_t bytes) {
    return problem_with(fabric, {.kind = Kind::kLinkMtu, .a = "a", .b = "red", .mtu_bytes = bytes});
  };
  EXPECT_EQ(mtu(kMtuMin), std::nullopt);
  EXPECT_EQ(mtu(kMtuMin - 1), "the MTU of a rail must be 576 to 65535");
  EXPECT_EQ(mtu(kMtuMax + 1), "the MTU of a rail must be 576 to 65535");
}

}  // namespace
}  // namespace verbena::plan
