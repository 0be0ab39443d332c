// Implements alternate paths of an established connection: LAP, APR, migration (vol1 12.8, 17.2.8).

#include <algorithm>
#include <utility>

#include "cm/endpoint.h"
#include "cm/paths.h"

namespace verbena::cm {

using wire::cm::Apr;
using wire::cm::AprStatus;
using wire::cm::AttributeId;
using wire::cm::Lap;
using wire::cm::MraSubject;
using wire::cm::Path;
using Step = Endpoint::Alternate::Step;

namespace {

Lap lap_of(const AlternatePath& path) {
  const Path alternate = path_of(path);
  return {.remote_cm_response_timeout = Endpoint::kRemoteCmResponseTimeout,
          .alternate_local_lid = alternate.local_lid,
          .alternate_remote_lid = alternate.remote_lid,
          .alternate_local_gid = alternate.local_gid,
          .alternate_remote_gid = alternate.remote_gid,
          .alternate_flow_label = alternate.flow_label,
          .alternate_traffic_class = alternate.traffic_class,
          .alternate_hop_limit = alternate.hop_limit,
          .alternate_sl = alternate.sl,
          .alternate_subnet_local = alternate.subnet_local,
          .alternate_local_ack_timeout = alternate.local_ack_timeout};
}

}  // namespace

Endpoint::Alternate& Endpoint::alternate() {
  if (!alternate_) alternate_ = std::make_unique<Alternate>();
  return *alternate_;
}

// ---- Active side

Result<void> Endpoint::load_alternate_path(const AlternatePath& path, std::uint64_t tid,
                                           std::span<const std::byte> private_data,
                                           Duration give_up_after, Time now) {
  if (state_ != State::kEstablished) return fail(Errc::kBadState, "not connected");
  if (!active_) {
    return fail(Errc::kNotSupported, "only the active side of a connection may send LAP");
  }
  auto& alternate = this->alternate();
  if (alternate.step != Step::kIdle) {
    return fail(Errc::kBusy, "the peer has not answered the last LAP");
  }
  Lap lap = lap_of(path);
  lap.local_comm_id = local_id_;
  lap.remote_comm_id = remote_id_;
  lap.remote_qpn = remote_qpn_;
  std::ranges::copy(private_data, lap.private_data.begin());
  alternate.tid = tid;
  alternate.sent = store(lap, tid);
  alternate.proposed = path.address;
  alternate.step = Step::kLapSent;
  send(alternate.sent);
  retry_.start(now, round_trip(), give_up_after, repeats_max_, services_.random);
  return {};
}

bool Endpoint::waits_for_apr() const {
  return state_ == State::kEstablished && alternate_ &&
         (alternate_->step == Step::kLapSent || alternate_->step == Step::kMraReceived);
}

void Endpoint::on_apr(const Apr& apr, std::uint64_t tid) {
  // An APR with another transaction id answers a LAP that was given up.
  if (!waits_for_apr() || alternate_->tid != tid) {
    return active_ ? count_duplicate(AttributeId::kApr) : ignore(Ignored::kWrongState);
  }
  retry_.stop();
  alternate_->step = Step::kIdle;
  if (apr.status == AprStatus::kAccepted) alternate_->accepted = alternate_->proposed;
  report(AprReceived{.endpoint = handle_, .cookie = cookie_, .apr = apr});
}

void Endpoint::give_up_alternate_path(Time now) {
  alternate_->step = Step::kIdle;
  report(LapUnanswered{
      .endpoint = handle_, .cookie = cookie_, .tries = retry_.tries(), .spent = retry_.spent(now)});
}

// ---- Passive side

Apr Endpoint::apr_of(const PathAnswer& answer) const {
  Apr apr{.local_comm_id = local_id_, .remote_comm_id = remote_id_, .status = answer.status};
  apr.additional_info_length_bytes = static_cast<std::uint8_t>(answer.additional_info.size());
  std::ranges::copy(answer.additional_info, apr.additional_info.begin());
  std::ranges::copy(answer.private_data, apr.private_data.begin());
  return apr;
}

void Endpoint::on_lap(const Lap& lap, std::uint64_t tid) {
  const bool is_connected = state_ == State::kEstablished || state_ == State::kRepSent ||
                            state_ == State::kMraRepReceived;
  // Only the passive side receives LAPs (vol1 12.8), and only while the peer may be connected.
  if (active_ || !is_connected) return ignore(Ignored::kWrongState);
  if (lap.remote_qpn != local_qpn_) {
    return send(store(apr_of({.status = AprStatus::kInvalidQpn}), tid));
  }
  if (state_ == State::kRepSent && is_queued()) return ignore(Ignored::kWrongState);
  // A LAP shows that the peer is connected: its RTU got lost.
  if (state_ != State::kEstablished) report_established(Established::Cause::kLap, nullptr);

  auto& alternate = this->alternate();
  auto& step = alternate.step;
  // Linux uses one transaction id for all LAPs of a connection, so the contents are compared as
  // well.
  const bool is_duplicate = alternate.tid == tid && alternate.lap == lap;
  const bool is_undecided = step == Step::kLapReceived || step == Step::kMraSent;
  if (is_undecided && !is_duplicate) return ignore(Ignored::kWrongState);  // one LAP at a time
  if (!is_duplicate) {
    step = Step::kLapReceived;
    alternate.tid = tid;
    alternate.lap = lap;
    alternate.proposed = address_of(lap.alternate_path(), address_);
    return report(LapReceived{.endpoint = handle_, .cookie = cookie_, .lap = lap});
  }
  count_duplicate(AttributeId::kLap);
  if (step == Step::kLapReceived) {  // our consumer has not answered, so we ask the peer for time
    step = Step::kMraSent;
    alternate.sent = store(mra_of(MraSubject::kLap), tid);
    return send(alternate.sent);
  }
  send(alternate.sent, Outbox::Kind::kRepeat);
}

Result<void> Endpoint::answer_alternate_path(const PathAnswer& answer) {
  const bool waits_for_answer =
      state_ == State::kEstablished && alternate_ &&
      (alternate_->step == Step::kLapReceived || alternate_->step == Step::kMraSent);
  if (!waits_for_answer) return fail(Errc::kBadState, "no LAP waits for an APR");
  if (answer.status == AprStatus::kAccepted) alternate_->accepted = alternate_->proposed;
  alternate_->sent = store(apr_of(answer), alternate_->tid);
  alternate_->step = Step::kIdle;
  send(alternate_->sent);
  return {};
}

// ---- Both sides

void Endpoint::path_migrated() {
  if (!alternate_ || !alternate_->accepted) return;
  alternate_->former = std::exchange(address_, *alternate_->accepted);
  alternate_->accepted.reset();
}

bool Endpoint::has_peer_at(const Gid& address) const {
  if (address_.remote() == address) return true;
  if (!alternate_) return false;
  const auto& former = alternate_->former;
  return alternate_->proposed.remote() == address || (former && former->remote() == address);
}

}  // namespace verbena::cm
