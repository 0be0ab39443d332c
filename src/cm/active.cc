// The side that asks: REQ, REP, RTU (vol1 12.9.5).

#include <algorithm>

#include "cm/endpoint.h"

namespace verbena::cm {

using wire::cm::AttributeId;
using wire::cm::Rep;
using wire::cm::Req;
using wire::cm::Rtu;

namespace {

constexpr std::uint16_t kRoceLid = 0xffff;  // there are no LIDs on Ethernet; Linux says so, too

Req req_of(const ConnectRequest& request, CommId id, Guid ca_guid) {
  return {
      .local_comm_id = id,
      .service_id = request.service_id,
      .local_ca_guid = ca_guid,
      .local_qpn = request.qpn,
      .responder_resources = request.responder_resources,
      .initiator_depth = request.initiator_depth,
      .remote_cm_response_timeout = Endpoint::kRemoteCmResponseTimeout,
      .end_to_end_flow_control = request.end_to_end_flow_control,
      .starting_psn = request.starting_psn,
      .local_cm_response_timeout = Endpoint::kLocalCmResponseTimeout,
      .retry_count = request.retry_count,
      .pkey = request.pkey,
      .path_mtu = request.path_mtu,
      .rnr_retry_count = request.rnr_retry_count,
      .max_cm_retries = request.max_cm_retries,
      .srq = request.srq,
      .primary_path = {.local_lid = kRoceLid,
                       .remote_lid = kRoceLid,
                       .local_gid = request.address.local,
                       .remote_gid = request.address.remote,
                       .flow_label = request.flow_label,
                       .traffic_class = request.address.traffic_class,
                       .hop_limit = request.address.hop_limit,
                       .local_ack_timeout = request.local_ack_timeout},
      .private_data = request.private_data,
  };
}

}  // namespace

Endpoint::Endpoint(Services& services, const ConnectRequest& request, CommId id, std::uint64_t tid,
                   std::uint64_t cookie)
    : services_(services),
      cookie_(cookie),
      active_(true),
      state_(State::kReqSent),
      address_(request.address),
      tid_(tid),
      local_id_(id),
      local_qpn_(request.qpn),
      repeats_max_(request.max_cm_retries),
      packet_life_(request.packet_life),
      round_trip_(request.round_trip) {
  request_ = keep(req_of(request, id, services.config.ca_guid));
}

void Endpoint::start(const ConnectRequest& request, Time now) {
  VB_CHECK(state_ == State::kReqSent);
  send(request_);
  // Until patience ends, more often than vol1 12.7.27 can say in its four bits: with 15 repeats, on
  // a line that loses half of all packets in bursts, one connection of 500 was not made.
  constexpr std::uint32_t kNoLimit = ~0u;
  retry_.start(now, round_trip_, request.patience, kNoLimit, services_.random);
}

void Endpoint::on_rep(const Rep& rep) {
  if (!active_) return ignore(Ignored::kWrongState);
  switch (state_) {
    case State::kReqSent:
    case State::kMraReqReceived:
      retry_.stop();
      state_ = State::kRepReceived;
      remote_id_ = rep.local_comm_id;
      remote_guid_ = rep.local_ca_guid;
      remote_qpn_ = rep.local_qpn;
      set_timewait(packet_life_, rep.target_ack_delay);
      return report(RepReceived{.endpoint = handle_, .cookie = cookie_, .rep = rep});
    case State::kRepReceived:  // our consumer still has to say
      return duplicate(AttributeId::kRep);
    case State::kEstablished:
    case State::kDreqSent:  // our RTU got lost (12.9.7.1)
      duplicate(AttributeId::kRep);
      return send(answer_, Outbox::Kind::kRepeat);
    case State::kTimewait:  // it knows nothing of the end: our REJ got lost, or all our DREQs
      duplicate(AttributeId::kRep);
      if (answer_.id == AttributeId::kRej) return send(answer_, Outbox::Kind::kRepeat);
      return send_rej(wire::cm::RejSubject::kRep, {.reason = wire::cm::RejReason::kInvalidCommId});
    case State::kReqReceived:
    case State::kMraReqSent:
    case State::kRepSent:
    case State::kMraRepReceived:
    case State::kClosed: return ignore(Ignored::kWrongState);
  }
}

Result<void> Endpoint::establish(std::span<const std::byte> private_data) {
  if (state_ != State::kRepReceived) return fail(Errc::kBadState, "no REP waits for an RTU");
  Rtu rtu{.local_comm_id = local_id_, .remote_comm_id = remote_id_};
  std::ranges::copy(private_data, rtu.private_data.begin());
  answer_ = keep(rtu);
  send(answer_);
  was_established_ = true;
  state_ = State::kEstablished;
  return {};
}

}  // namespace verbena::cm
