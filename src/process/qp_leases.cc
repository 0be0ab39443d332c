#include "process/qp_leases.h"

#include <optional>
#include <utility>

namespace verbena::process {

Started<hca::QpHandle> QpLeases::create_qp(const hca::QpInit& init, Time now, bool send_qp_table,
                                           Completion<hca::QpHandle> done) {
  if (const auto qpn = numbers_.choose(now, in_use())) return create_with_free(init, *qpn);
  if (!requests_.is_open()) return Result<hca::QpHandle>(fail(Errc::kDeviceFatal, kNoAgentText));
  // Asks first: if memory runs out, then no entry of waiting_ remains that nobody can cancel.
  if (!lease_pending_) lease(send_qp_table);
  const std::uint64_t ticket = next_ticket_++;
  waiting_.emplace(ticket, WaitingQp{init, std::move(done)});
  return Pending([this, ticket] { waiting_.erase(ticket); });
}

// Releases the number if the engine refuses to create the QP.
Result<hca::QpHandle> QpLeases::create_with_free(const hca::QpInit& init, Qpn qpn) {
  auto qp = engine_.create_qp(init, qpn);
  if (!qp) numbers_.release(qpn, Time{});  // no peer knows the number, so the time does not matter
  return qp;
}

// Uses a number before its quarantine ends, because the program can get no other number.
Result<hca::QpHandle> QpLeases::create_with_quarantined(const hca::QpInit& init, Error refusal) {
  const auto number = numbers_.choose_quarantined(in_use());
  if (!number) {
    ++refused_;
    return std::unexpected(std::move(refusal));
  }
  auto qp = engine_.create_qp(init, number->qpn);
  if (!qp) numbers_.return_to_quarantine(*number);
  return qp;
}

void QpLeases::lease(bool send_qp_table) {
  lease_ = requests_.ask<ipc::Leased>(
      ipc::Lease{.direct = direct_},
      Completion<ipc::Leased>([this, send_qp_table](const Result<ipc::Leased>& leased) {
        on_leased(leased, send_qp_table);
      }),
      send_qp_table);
  lease_pending_ = true;
}

// Keeps the range even if all requests for QPs were cancelled: the next QP will use it.
void QpLeases::on_leased(const Result<ipc::Leased>& leased, bool send_qp_table) {
  lease_pending_ = false;
  if (leased) numbers_.add_range(leased->range, random_);
  // If a call of done() below requests another QP and finds no free number, that request waits for
  // the next lease.
  const std::uint64_t end = next_ticket_;
  while (!waiting_.empty() && waiting_.begin()->first < end) {
    std::optional<Qpn> free;
    if (leased) {
      // At Time{}, choose() finds no quarantined number, because every quarantine ends later.  So a
      // QP gets a number without a quarantine, or waits for another lease.
      free = numbers_.choose(Time{}, in_use());
      if (!free) {
        if (!lease_pending_) lease(send_qp_table);
        return;
      }
    }
    WaitingQp waiting = std::move(waiting_.extract(waiting_.begin()).mapped());
    waiting.done(free ? create_with_free(waiting.init, *free)
                      : create_with_quarantined(waiting.init, leased.error()));
  }
}

}  // namespace verbena::process
