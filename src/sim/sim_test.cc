#include <gtest/gtest.h>

#include <string>

#include "sim/diagram.h"
#include "sim/faults.h"
#include "sim/seeds.h"
#include "sim/world.h"

namespace verbena::sim {
namespace {

using namespace std::chrono_literals;

TEST(World, RunsActionsInOrderOfTimeThenOfInsertion) {
  World world;
  std::string order;
  world.after(2us, [&] { order += 'c'; });
  world.after(1us, [&] { order += 'a'; });
  world.after(1us, [&] {
    order += 'b';
    world.at(Time{}, [&] { order += 'B'; });  // the time is in the past, so the action runs now
  });
  world.run_until(Time(1ms));
  EXPECT_EQ(order, "abBc");
  EXPECT_EQ(world.now(), Time(1ms));
  EXPECT_TRUE(world.is_idle());
}

TEST(FaultyWire, EqualSeedsGiveEqualFates) {
  const Faults faults{.delay_min = 1us, .delay_max = 9us, .loss = {1, 3}, .duplicate = {1, 4}};
  FaultyWire a(Random(5), faults);
  FaultyWire b(Random(5), faults);
  int lost = 0;
  int duplicated = 0;
  for (int i = 0; i < 3000; ++i) {
    const PacketOutcome fate = a.next();
    EXPECT_EQ(fate.arrivals, b.next().arrivals);
    if (fate.arrivals.empty()) ++lost;
    if (fate.arrivals.size() == 2) ++duplicated;
    for (const Duration delay : fate.arrivals) EXPECT_TRUE(delay >= 1us && delay <= 9us);
  }
  EXPECT_NEAR(lost, 1000, 150);
  EXPECT_NEAR(duplicated, 500, 100);
}

TEST(FaultyWire, DroppedPacketsAreLost) {
  FaultyWire wire(Random(0), {});
  wire.drop(1);
  EXPECT_EQ(wire.next().arrivals.size(), 1u);
  EXPECT_TRUE(wire.next().arrivals.empty());
  EXPECT_EQ(wire.next().arrivals.size(), 1u);
}

TEST(Diagram, ShowsTimeAndDirection) {
  Diagram diagram;
  diagram.arrow(Time(20ms), "a", "REQ", "b", "lost");
  diagram.note(Time(21ms), "b gives up");
  EXPECT_EQ(diagram.text(), R"(
   20000 us  a -- REQ --> b   (lost)
   21000 us  b gives up)");
}

}  // namespace
}  // namespace verbena::sim
