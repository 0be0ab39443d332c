#include "process/qp_leases.h"

namespace verbena::process {

Started<hca::QpHandle> QpLeases::create_qp(const hca::QpInit& init, Time now, bool qp_table,
                                           Completion<hca::QpHandle> done) {
  if (const auto qpn = numbers_.choose(now, in_use())) return engine_.create_qp(init, *qpn);
  if (!requests_.is_open()) return Result<hca::QpHandle>(fail(Errc::kDeviceFatal, kAgentGone));
  const std::uint64_t number = next_number_++;
  waiting_.emplace(number, WaitingQp{init, std::move(done)});
  if (!lease_pending_) lease(qp_table);
  return Pending([this, number] { waiting_.erase(number); });
}

void QpLeases::lease(bool qp_table) {
  lease_pending_ = true;
  lease_ = requests_.ask<ipc::Leased>(
      ipc::Lease{.direct = direct_},
      Completion<ipc::Leased>(
          [this, qp_table](const Result<ipc::Leased>& leased) { on_leased(leased, qp_table); }),
      qp_table);
}

// Keeps the range even if all requests for QPs were cancelled: the next QP will use it.
void QpLeases::on_leased(const Result<ipc::Leased>& leased, bool qp_table) {
  lease_pending_ = false;
  if (leased) numbers_.add_range(leased->range, random_);
  // A request from inside a completion waits for the next lease.
  const std::uint64_t end = next_number_;
  while (!waiting_.empty() && waiting_.begin()->first < end) {
    // No quarantine is over at Time{}, so after a new lease a QP gets a new number, or waits for
    // another lease.  If the lease was refused, the QP gets a quarantined number.
    const auto qpn =
        leased ? numbers_.choose(Time{}, in_use()) : numbers_.choose_quarantined(in_use());
    if (leased && !qpn) return lease_pending_ ? void() : lease(qp_table);
    WaitingQp waiting = std::move(waiting_.extract(waiting_.begin()).mapped());
    if (qpn) {
      waiting.done(engine_.create_qp(waiting.init, *qpn));
    } else {
      ++refused_;
      waiting.done(std::unexpected(leased.error()));
    }
  }
}

}  // namespace verbena::process
