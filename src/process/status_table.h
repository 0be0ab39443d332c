#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/time.h"
#include "hca/engine.h"
#include "ipc/qp_table.h"
#include "process/lane_manager.h"

namespace verbena::process {

// Writes the QPs and counters of the program to the table that `verbena ps` reads.
class StatusTable {
 public:
  // Holds the counters of the parts of a Process.
  struct Counts {
    // The next four members count refusals because of a limit.
    std::uint64_t ids_refused = 0;
    std::uint64_t qpns_refused = 0;
    std::uint64_t messages_refused = 0;
    std::uint64_t joins_refused = 0;
    std::uint64_t lanes = 0;  // the number of open lanes
    LaneManager::Counters lane{};
  };

  // Sets the memory of the table.  REQUIRES: the memory outlives this object.
  void set_memory(std::span<std::byte> memory);
  bool has_memory() const { return table_.has_value(); }

  void mark_outdated() { outdated_ = true; }
  // Returns the time at which the table has to be updated; kNever if nothing has changed, or if
  // there is no memory for the table.
  Time deadline() const;
  // Marks the table as outdated.  Returns true if the caller has to update it now.  Returns false
  // if there is no memory, or if the last update was less than kUpdateInterval ago: only people
  // read the table, so the next update may wait.
  bool mark_outdated_and_check_due(Time now) {
    outdated_ = true;  // so that deadline() asks for an update even if nothing else happens
    return table_ && now >= updated_ + kUpdateInterval;
  }
  // Updates the table at once.  REQUIRES: has_memory().
  void update(const hca::Engine& engine, const Counts& counts, Time now);
  Time updated() const { return updated_; }

 private:
  static constexpr Duration kUpdateInterval = std::chrono::milliseconds(100);

  void write_counters(const hca::Engine& engine, const Counts& counts);

  std::optional<ipc::QpTable> table_{};
  std::vector<hca::QpRow> rows_{};
  // Holds the indexes of the counters in the table, in the order of for_each_counter().
  std::vector<std::uint32_t> counters_{};
  std::size_t rows_written_ = 0;
  Time updated_{};
  bool outdated_ = false;  // true: a row or counter may have changed since updated_
};

}  // namespace verbena::process
