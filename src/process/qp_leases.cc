#include "process/qp_leases.h"

namespace verbena::process {

Started<hca::QpHandle> QpLeases::create_qp(const hca::QpInit& init, Time now, bool qp_table,
                                           Completion<hca::QpHandle> done) {
  if (const auto qpn = numbers_.take(now, in_use())) return engine_.create_qp(init, *qpn);
  if (!requests_.is_open()) return Result<hca::QpHandle>(fail(Errc::kDeviceFatal, kAgentGone));
  const std::uint64_t number = next_wanted_++;
  wanted_.emplace(number, Wanted{init, std::move(done)});
  if (!leasing_) lease(qp_table);
  return Pending([this, number] { wanted_.erase(number); });
}

void QpLeases::lease(bool qp_table) {
  leasing_ = true;
  lease_ = requests_.ask<ipc::Leased>(
      ipc::Lease{.direct = direct_},
      Completion<ipc::Leased>(
          [this, qp_table](const Result<ipc::Leased>& leased) { on_leased(leased, qp_table); }),
      qp_table);
}

// Keeps the range even if all requests for QPs were dropped: the next QP will use it.
void QpLeases::on_leased(const Result<ipc::Leased>& leased, bool qp_table) {
  leasing_ = false;
  if (leased) numbers_.add_range(leased->range, random_);
  // A request from inside a completion waits for the next lease.
  const std::uint64_t end = next_wanted_;
  while (!wanted_.empty() && wanted_.begin()->first < end) {
    // No quarantine is over at Time{}, so after a new lease a QP gets a fresh number, or waits for
    // another lease.  If the lease was refused, a quarantined number must do.
    const auto qpn = leased ? numbers_.take(Time{}, in_use()) : numbers_.take_quarantined(in_use());
    if (leased && !qpn) return leasing_ ? void() : lease(qp_table);
    Wanted wanted = std::move(wanted_.extract(wanted_.begin()).mapped());
    if (qpn) {
      wanted.done(engine_.create_qp(wanted.init, *qpn));
    } else {
      ++refused_;
      wanted.done(std::unexpected(leased.error()));
    }
  }
}

}  // namespace verbena::process
