#include "sa/capabilities.h"

#include "wire/sa.h"

namespace verbena::sa {

std::optional<bool> Capabilities::has_send_only_full_members() const {
  if (!info_) return std::nullopt;
  return (info_->capability_mask2 & wire::sa_capability2::kSendOnlyFullMember) != 0;
}

void Capabilities::ask(Time now) {
  retry_at_ = kNever;
  if (query_ || !port_is_ready_) return;
  may_be_stale_ = false;
  const auto query_id = queries_.ask(
      Query::of(wire::Method::kGet, wire::SaAttribute::kClassPortInfo, 0, wire::ClassPortInfo{}),
      QueryOwner::kCapabilities, 0, now);
  if (!query_id) return retry_later(now);
  ++counters_.asked;
  query_ = *query_id;
}

void Capabilities::retry_later(Time now) {
  const auto jitter = random_.below(static_cast<std::uint64_t>(kRetryPause.count()));
  retry_at_ = now + kRetryPause + Duration(static_cast<std::int64_t>(jitter));
}

void Capabilities::set_port(const PortState& state, const PortChange& change, Time now) {
  port_is_ready_ = state.is_ready();
  if (!change.became_ready && !change.manager_changed) return;
  info_.reset();
  // A pending query is sent to the new manager again, so its answer is valid.
  may_be_stale_ = false;
  ask(now);
}

void Capabilities::reregister(Time now) {
  info_.reset();
  may_be_stale_ = query_.has_value();
  ask(now);
}

void Capabilities::receive(const QueryResult& result, Time now) {
  if (query_ != result.id) return;
  query_.reset();
  if (may_be_stale_) return ask(now);
  if (result.outcome != QueryResult::Outcome::kAnswered) {
    ++counters_.failed;
    return retry_later(now);
  }
  const auto records = result.records<wire::ClassPortInfo>(1);
  if (!records || records->empty()) {
    ++counters_.failed;
    return retry_later(now);
  }
  ++counters_.answered;
  info_ = records->front();
}

void Capabilities::on_timer(Time now) {
  if (retry_at_ <= now) ask(now);
}

}  // namespace verbena::sa
