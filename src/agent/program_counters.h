#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/reported_count.h"
#include "base/time.h"
#include "ipc/counters.h"

// Adds up the counters of programs for the counters of the port.
namespace verbena::agent {

// Holds counters that are added up over several sources, by name.
using CounterSums = std::map<std::string, std::uint64_t, std::less<>>;

// Returns true if the port's counters are made from programs' counters of this name.
bool is_in_port_counters(std::string_view name);

// Follows the counters in the table of one program.  The program writes the names and the numbers,
// so other names are ignored, and numbers are limited by ReportedCount.
class ProgramCounters {
 public:
  // The program connected at `start`.
  explicit ProgramCounters(Time start) : start_(start) {}

  void update(const std::vector<ipc::NamedCount>& reported, Time now);
  void add_to(CounterSums& sums) const;
  // Returns how many increases were not added, because no program can cause them.
  std::uint64_t implausible() const;

 private:
  Time start_;
  std::map<std::string, ReportedCount, std::less<>> counts_{};
};

}  // namespace verbena::agent
