#include "subnet/traps.h"

#include <gtest/gtest.h>

namespace verbena::subnet {
namespace {

wire::Notice notice(std::uint16_t detail) {
  wire::Notice result{.trap_number = wire::TrapNumber::kBadPkey};
  result.details[0] = static_cast<std::byte>(detail);
  return result;
}

TEST(Traps, ATrapIsDueUntilItIsRepressed) {
  Traps traps;
  const Time now{};
  EXPECT_EQ(traps.next_deadline(), kNever);
  traps.add(notice(1), 0, now);
  Traps::Trap* trap = traps.due(now);
  ASSERT_NE(trap, nullptr);
  trap->next_send = now + std::chrono::seconds(1);
  EXPECT_EQ(traps.due(now), nullptr);
  EXPECT_EQ(traps.next_deadline(), now + std::chrono::seconds(1));
  traps.repress(trap->transaction_id + 1);
  EXPECT_NE(traps.due(now + std::chrono::seconds(1)), nullptr);
  traps.repress(trap->transaction_id);
  EXPECT_EQ(traps.next_deadline(), kNever);
}

TEST(Traps, APendingTrapIsNotAddedAgain) {
  Traps traps;
  traps.add(notice(1), 0, {});
  traps.due({})->next_send = kNever;
  traps.add(notice(1), 0, {});
  EXPECT_EQ(traps.due({}), nullptr);
  traps.add(notice(2), 0, {});
  EXPECT_NE(traps.due({}), nullptr);
}

TEST(Traps, TheNumberOfPendingTrapsIsLimited) {
  Traps traps;
  for (std::uint16_t i = 0; i < kTrapsMax + 5; ++i) traps.add(notice(i), 0, {});
  std::size_t sent = 0;
  while (Traps::Trap* trap = traps.due({})) {
    trap->next_send = kNever;
    ++sent;
  }
  EXPECT_EQ(sent, kTrapsMax);
}

}  // namespace
}  // namespace verbena::subnet
