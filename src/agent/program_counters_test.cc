#include "agent/program_counters.h"

#include <gtest/gtest.h>

namespace verbena::agent {
namespace {

constexpr Time kBegin{std::chrono::seconds(100)};

TEST(ProgramCounters, ImpossibleNumbersAreNotAddedToThePort) {
  ProgramCounters honest(kBegin);
  honest.update({{"bytes_out", 4096}}, kBegin);
  ProgramCounters liar(kBegin);
  liar.update({{"bytes_out", 79'991'436'625'481'677}}, kBegin);
  CounterSums sums;
  honest.add_to(sums);
  liar.add_to(sums);
  EXPECT_EQ(sums["bytes_out"], 4096u);
  EXPECT_EQ(honest.implausible(), 0u);
  EXPECT_EQ(liar.implausible(), 1u);
}

TEST(ProgramCounters, NamesThatAProgramInventsAreIgnored) {
  ProgramCounters program(kBegin);
  program.update({{"bytes_out", 1}, {"invented", 2}, {"qp1_bytes_out", 3}}, kBegin);
  CounterSums sums;
  program.add_to(sums);
  EXPECT_EQ(sums.size(), 1u);
}

}  // namespace
}  // namespace verbena::agent
