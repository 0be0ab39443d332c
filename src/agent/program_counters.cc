#include "agent/program_counters.h"

#include <algorithm>
#include <array>

namespace verbena::agent {
namespace {

// These are all names that port_counters() looks up among the counters of programs.
constexpr std::array<std::string_view, 24> kNames{"packets_in",
                                                  "packets_out",
                                                  "bytes_in",
                                                  "bytes_out",
                                                  "udp_in_wrong_icrc",
                                                  "udp_in_too_short",
                                                  "udp_in_lost_in_kernel",
                                                  "udp_out_too_big",
                                                  "udp_out_no_route",
                                                  "udp_out_no_source",
                                                  "udp_out_not_allowed",
                                                  "udp_out_other",
                                                  "duplicates",
                                                  "out_of_order",
                                                  "rnr_naks_in",
                                                  "rnr_naks_out",
                                                  "sequence_naks_in",
                                                  "retries_exceeded",
                                                  "rnr_retries_exceeded",
                                                  "timeouts",
                                                  "probes",
                                                  "read_gaps",
                                                  "sends",
                                                  "receives"};

}  // namespace

bool is_in_port_counters(std::string_view name) {
  return std::ranges::find(kNames, name) != kNames.end();
}

void ProgramCounters::update(const std::vector<ipc::NamedCount>& reported, Time now) {
  for (const ipc::NamedCount& counter : reported) {
    if (!is_in_port_counters(counter.name)) continue;
    counts_.try_emplace(counter.name, start_).first->second.update(counter.value, now);
  }
}

void ProgramCounters::add_to(CounterSums& sums) const {
  for (const auto& [name, count] : counts_) sums[name] += count.value();
}

std::uint64_t ProgramCounters::implausible() const {
  std::uint64_t sum = 0;
  for (const auto& [name, count] : counts_) sum += count.implausible();
  return sum;
}

}  // namespace verbena::agent
