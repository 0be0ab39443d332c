#pragma once

#include <asio/io_context.hpp>
#include <cstddef>
#include <vector>

#include "agent/log.h"
#include "agent/watch.h"
#include "base/time.h"
#include "hosts/faults.h"
#include "plan/plan.h"

namespace verbena::hosts {

// Triggers the faults that the user's files schedule, and logs the result of each.  The times count
// from the creation of this object.  Faults of the same time are triggered in the order of
// `scheduled`.  Only one thread may use an object of this class.
class FaultSchedule {
 public:
  // REQUIRES: the faults outlive this object.
  FaultSchedule(asio::io_context& loop, Faults& faults, std::vector<plan::ScheduledFault> scheduled,
                const agent::Log& log);

  // Returns the number of faults that have not been triggered yet.
  std::size_t remaining() const { return scheduled_.size() - next_index_; }

 private:
  void on_timer();

  Faults& faults_;
  std::vector<plan::ScheduledFault> scheduled_{};  // sorted by time
  std::size_t next_index_ = 0;                     // the index of the next fault in scheduled_
  agent::Log log_;
  Time began_;
  agent::Timer timer_;
};

}  // namespace verbena::hosts
