#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/operation.h"
#include "base/random.h"
#include "base/time.h"
#include "hca/engine.h"
#include "ipc/messages.h"
#include "process/agent_requests.h"
#include "process/qp_numbers.h"

namespace verbena::process {

// Creates QPs with numbers of the ranges that the program has leased, and leases a range if no
// number is free.
class QpLeases {
 public:
  // REQUIRES: `engine` and `requests` outlive this object.
  QpLeases(hca::Engine& engine, AgentRequests& requests, Random random)
      : engine_(engine), requests_(requests), random_(random) {}

  // If `send_qp_table` is set, a request for a range carries the descriptor of the QP table.
  Started<hca::QpHandle> create_qp(const hca::QpInit& init, Time now, bool send_qp_table,
                                   Completion<hca::QpHandle> done);
  // Sets the data for direct access to this program's memory.  Later lease requests send the data
  // to the agent.
  void set_direct_access(const ipc::DirectAccess& direct) { direct_ = direct; }
  QpNumbers& numbers() { return numbers_; }
  const QpNumbers& numbers() const { return numbers_; }
  // Returns how many requests for QPs failed because no number was free and the agent refused to
  // lease a range.
  std::uint64_t refused() const { return refused_; }

 private:
  // Holds a request for a QP that waits for a lease.  One lease serves all waiting requests.
  struct WaitingQp {
    hca::QpInit init{};
    Completion<hca::QpHandle> done{};
  };

  // Returns a predicate that is true if a QP has the number, even a QP of a dead agent.
  auto in_use() const {
    return [this](Qpn qpn) { return engine_.find_qp(qpn).has_value(); };
  }
  Result<hca::QpHandle> create_with_free(const hca::QpInit& init, Qpn qpn);
  Result<hca::QpHandle> create_with_quarantined(const hca::QpInit& init, Error refusal);
  void lease(bool send_qp_table);
  void on_leased(const Result<ipc::Leased>& leased, bool send_qp_table);

  hca::Engine& engine_;
  AgentRequests& requests_;
  Random random_;
  ipc::DirectAccess direct_{};
  QpNumbers numbers_{};
  std::map<std::uint64_t, WaitingQp> waiting_{};  // by ticket: in the order of the requests
  std::uint64_t next_ticket_ = 1;
  bool lease_pending_ = false;
  Pending lease_{};
  std::uint64_t refused_ = 0;
};

}  // namespace verbena::process
