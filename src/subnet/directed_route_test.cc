#include "subnet/directed_route.h"

#include <gtest/gtest.h>

#include "wire/infiniband.h"

namespace verbena::subnet {
namespace {

using Kind = RouteStep::Kind;

// Returns an SMP whose path has two hops: port 1 of the source, then port 5 of a switch.
wire::Smp two_hop_smp() {
  wire::Smp smp{.header = {.mgmt_class = wire::MgmtClass::kSubnetManagementDirected},
                .dr_source = wire::kPermissiveLid,
                .dr_destination = wire::kPermissiveLid};
  smp.set_hop_count(2);
  smp.initial_path[1] = std::byte{1};
  smp.initial_path[2] = std::byte{5};
  return smp;
}

constexpr RoutePoint kSource{.ports = 1, .in_port = 1, .begins_here = true};
constexpr RoutePoint kSwitch{.is_switch = true, .ports = 8, .in_port = 3};
constexpr RoutePoint kTarget{.ports = 2, .in_port = 2};

TEST(DirectedRoute, SmpFollowsThePathAndReturnsByTheSamePorts) {
  wire::Smp smp = two_hop_smp();
  RouteStep step = directed_route_step(smp, kSource);
  EXPECT_EQ(step.kind, Kind::kForward);
  EXPECT_EQ(step.port, 1);
  step = directed_route_step(smp, kSwitch);
  EXPECT_EQ(step.kind, Kind::kForward);
  EXPECT_EQ(step.port, 5);
  EXPECT_EQ(directed_route_step(smp, kTarget).kind, Kind::kLocal);
  EXPECT_EQ(smp.hop_pointer(), 3);

  smp.header.status = wire::kSmpReturning;
  RoutePoint target = kTarget;
  target.begins_here = true;
  step = directed_route_step(smp, target);
  EXPECT_EQ(step.kind, Kind::kForward);
  EXPECT_EQ(step.port, 2);
  RoutePoint on_the_way_back = kSwitch;
  on_the_way_back.in_port = 5;
  step = directed_route_step(smp, on_the_way_back);
  EXPECT_EQ(step.kind, Kind::kForward);
  EXPECT_EQ(step.port, 3);
  EXPECT_EQ(directed_route_step(smp, {.ports = 1, .in_port = 1}).kind, Kind::kLocal);
  EXPECT_EQ(smp.hop_pointer(), 0);
}

TEST(DirectedRoute, DirectedPartMayEndBeforeTheDestinationAndContinueByLid) {
  wire::Smp smp = two_hop_smp();
  smp.set_hop_count(1);
  smp.dr_destination = Lid{7};
  EXPECT_EQ(directed_route_step(smp, kSource).kind, Kind::kForward);
  const RouteStep step = directed_route_step(smp, kSwitch);
  EXPECT_EQ(step.kind, Kind::kToLid);
  EXPECT_EQ(step.lid, Lid{7});
}

TEST(DirectedRoute, SmpsWithWrongPointersOrPortsAreDiscarded) {
  const auto kind = [](unsigned pointer, unsigned count, std::uint16_t status,
                       const RoutePoint& point) {
    wire::Smp smp = two_hop_smp();
    smp.header.status = status;
    smp.set_hop_pointer(static_cast<std::uint8_t>(pointer));
    smp.set_hop_count(static_cast<std::uint8_t>(count));
    return directed_route_step(smp, point).kind;
  };
  EXPECT_EQ(kind(0, 2, 0, kSwitch), Kind::kDiscard) << "only the sender may begin a route";
  EXPECT_EQ(kind(1, 2, 0, kTarget), Kind::kDiscard) << "an HCA does not forward";
  EXPECT_EQ(kind(4, 2, 0, kSwitch), Kind::kDiscard);
  EXPECT_EQ(kind(255, 2, 0, kSwitch), Kind::kDiscard);
  EXPECT_EQ(kind(0, 64, 0, kSource), Kind::kDiscard) << "a path has at most 63 hops";
  EXPECT_EQ(kind(63, 255, 0, kSwitch), Kind::kDiscard);
  EXPECT_EQ(kind(2, 3, 0, kSwitch), Kind::kDiscard) << "port 0 is not an egress port";
  EXPECT_EQ(kind(3, 2, wire::kSmpReturning, kSwitch), Kind::kDiscard);
  EXPECT_EQ(kind(2, 2, wire::kSmpReturning, kTarget), Kind::kDiscard);
  EXPECT_EQ(kind(2, 2, wire::kSmpReturning, kSwitch), Kind::kDiscard) << "the return path is empty";
}

}  // namespace
}  // namespace verbena::subnet
