// Another path for a connection that is there: LAP, APR, migration (vol1 12.8, 17.2.8).

#include <algorithm>

#include "cm/endpoint.h"
#include "cm/paths.h"

namespace verbena::cm {

using wire::cm::Apr;
using wire::cm::AprStatus;
using wire::cm::AttributeId;
using wire::cm::Lap;
using wire::cm::Mra;
using wire::cm::MraSubject;
using Step = Endpoint::Alternate::Step;

namespace {

Lap lap_of(const AlternatePath& path) {
  return {.remote_cm_response_timeout = Endpoint::kRemoteCmResponseTimeout,
          .alternate_local_lid = kRoceLid,
          .alternate_remote_lid = kRoceLid,
          .alternate_local_gid = path.address.local,
          .alternate_remote_gid = path.address.remote,
          .alternate_flow_label = path.flow_label,
          .alternate_traffic_class = path.address.traffic_class,
          .alternate_hop_limit = path.address.hop_limit,
          .alternate_local_ack_timeout = path.local_ack_timeout};
}

}  // namespace

Endpoint::Alternate& Endpoint::alternate() {
  if (!alternate_) alternate_ = std::make_unique<Alternate>();
  return *alternate_;
}

// ---- The side that asks

Result<void> Endpoint::load_alternate_path(const AlternatePath& path, std::uint64_t tid,
                                           std::span<const std::byte> private_data,
                                           Duration patience, Time now) {
  if (state_ != State::kEstablished) return fail(Errc::kBadState, "not connected");
  if (!active_) {
    return fail(Errc::kNotSupported, "only the side that asked for the connection may send LAP");
  }
  auto& [step, last_tid, said, asked, agreed] = alternate();
  if (step != Step::kIdle) return fail(Errc::kBusy, "the peer has not answered the last LAP");
  Lap lap = lap_of(path);
  lap.local_comm_id = local_id_;
  lap.remote_comm_id = remote_id_;
  lap.remote_qpn = remote_qpn_;
  std::ranges::copy(private_data, lap.private_data.begin());
  last_tid = tid;
  said = keep(lap, tid);
  asked = path.address;
  step = Step::kLapSent;
  send(said);
  retry_.start(now, round_trip_, patience, repeats_max_, services_.random);
  return {};
}

bool Endpoint::waits_for_apr() const {
  return state_ == State::kEstablished && alternate_ &&
         (alternate_->step == Step::kLapSent || alternate_->step == Step::kMraReceived);
}

void Endpoint::on_apr(const Apr& apr, std::uint64_t tid) {
  // One with another transaction id belongs to a LAP that was given up.
  if (!waits_for_apr() || alternate_->tid != tid) {
    return active_ ? duplicate(AttributeId::kApr) : ignore(Ignored::kWrongState);
  }
  retry_.stop();
  alternate_->step = Step::kIdle;
  if (apr.status == AprStatus::kAccepted) alternate_->agreed = alternate_->asked;
  report(AprReceived{.endpoint = handle_, .cookie = cookie_, .apr = apr});
}

void Endpoint::give_up_alternate_path(Time now) {
  alternate_->step = Step::kIdle;
  report(LapUnanswered{
      .endpoint = handle_, .cookie = cookie_, .tries = retry_.tries(), .spent = retry_.spent(now)});
}

// ---- The side that is asked

void Endpoint::send_apr(const PathAnswer& answer, std::uint64_t tid) {
  Apr apr{.local_comm_id = local_id_, .remote_comm_id = remote_id_, .status = answer.status};
  apr.additional_info_length_bytes = static_cast<std::uint8_t>(answer.additional_info.size());
  std::ranges::copy(answer.additional_info, apr.additional_info.begin());
  std::ranges::copy(answer.private_data, apr.private_data.begin());
  auto& alternate = this->alternate();
  alternate.tid = tid;
  alternate.said = keep(apr, tid);
  alternate.step = Step::kIdle;
  send(alternate.said);
}

void Endpoint::on_lap(const Lap& lap, std::uint64_t tid) {
  switch (state_) {
    case State::kRepSent:
    case State::kMraRepReceived:  // whoever asks for another path is connected: its RTU got lost
      report_established(Established::Cause::kLap, nullptr);
      break;
    case State::kEstablished: break;
    case State::kReqSent:
    case State::kMraReqReceived:
    case State::kRepReceived:
    case State::kReqReceived:
    case State::kMraReqSent:
    case State::kDreqSent:  // it hears soon that it is over
    case State::kTimewait:
    case State::kClosed: return ignore(Ignored::kWrongState);
  }
  if (active_) return ignore(Ignored::kWrongState);  // the peer must not ask (vol1 12.8)
  if (lap.remote_qpn != local_qpn_) return send_apr({.status = AprStatus::kInvalidQpn}, tid);

  auto& [step, last_tid, said, asked, agreed] = alternate();
  const bool known = last_tid == tid && said.id != AttributeId{};
  const bool undecided = step == Step::kLapReceived || step == Step::kMraSent;
  if (undecided && last_tid != tid) return ignore(Ignored::kWrongState);  // one after the other
  if (!undecided && !known) {
    step = Step::kLapReceived;
    last_tid = tid;
    said = {};
    asked = address_of(lap.alternate_path());
    return report(LapReceived{.endpoint = handle_, .cookie = cookie_, .lap = lap});
  }
  duplicate(AttributeId::kLap);
  if (step == Step::kLapReceived) {  // the consumer is slow: the peer may be, too
    step = Step::kMraSent;
    said = keep(Mra{.local_comm_id = local_id_,
                    .remote_comm_id = remote_id_,
                    .message_mraed = MraSubject::kLap,
                    .service_timeout = kMraServiceTimeout},
                tid);
    return send(said);
  }
  send(said, Outbox::Kind::kRepeat);
}

Result<void> Endpoint::answer_alternate_path(const PathAnswer& answer) {
  const bool asked = state_ == State::kEstablished && alternate_ &&
                     (alternate_->step == Step::kLapReceived || alternate_->step == Step::kMraSent);
  if (!asked) return fail(Errc::kBadState, "no LAP waits for an APR");
  if (answer.status == AprStatus::kAccepted) alternate_->agreed = alternate_->asked;
  send_apr(answer, alternate_->tid);
  return {};
}

// ---- Both

void Endpoint::path_migrated() {
  if (!alternate_ || !alternate_->agreed) return;
  address_ = *alternate_->agreed;
  alternate_->agreed.reset();
}

}  // namespace verbena::cm
