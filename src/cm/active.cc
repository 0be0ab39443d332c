// Implements the active side: REQ, REP, RTU (vol1 12.9.5).

#include <algorithm>
#include <utility>

#include "cm/endpoint.h"
#include "cm/paths.h"

namespace verbena::cm {

using wire::cm::AttributeId;
using wire::cm::FailoverAccepted;
using wire::cm::MraSubject;
using wire::cm::Path;
using wire::cm::Rep;
using wire::cm::Req;
using wire::cm::Rtu;

namespace {

Req req_of(const ConnectRequest& request, CommId id, Guid ca_guid) {
  return {
      .local_comm_id = id,
      .vendor_id = request.ece.vendor_id,
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
      .primary_path = path_of({request.address, request.local_ack_timeout}),
      .alternate_path = request.alternate_path ? path_of(*request.alternate_path) : Path{},
      .private_data = request.private_data,
  };
}

}  // namespace

Endpoint::Endpoint(Services& services, const ConnectRequest& request, CommId id, std::uint64_t tid,
                   std::uint64_t cookie)
    : services_(services),
      cookie_(cookie),
      active_(true),
      peer_to_peer_(request.peer_to_peer),
      state_(State::kReqSent),
      service_id_(request.service_id),
      address_(request.address),
      tid_(tid),
      local_id_(id),
      local_qpn_(request.qpn),
      repeats_max_(Retry::repeats_of(request.max_cm_retries)),
      packet_life_(request.packet_life),
      round_trip_(request.round_trip) {
  request_ = store(req_of(request, id, services.config.ca_guid), tid_, request.ece.options);
  if (request.alternate_path) alternate().proposed = request.alternate_path->address;
}

void Endpoint::start(const ConnectRequest& request, Time now) {
  queue_request(now, request.give_up_after, Retry::kNoLimit);
}

std::optional<PeerToPeerKey> Endpoint::peer_to_peer_key() const {
  const bool waits = state_ == State::kReqSent || state_ == State::kMraReqReceived;
  if (!peer_to_peer_ || !active_ || !waits) return std::nullopt;
  return PeerToPeerKey{service_id_, address_.remote(), address_.local()};
}

// The side with the larger CA GUID is active.  If the GUIDs are equal, the side with the larger QPN
// is active (vol1 12.10.4).
bool Endpoint::wins_against(const Req& req) const {
  return std::pair(services_.config.ca_guid, local_qpn_) >
         std::pair(req.local_ca_guid, req.local_qpn);
}

// Handles a REQ of the peer that loses against ours: this side still waits for the peer's answer.
// If the peer has rejected our REQ because it came too early, the peer is ready now, so this
// function repeats our REQ at once.
void Endpoint::on_losing_req() {
  ignore(Ignored::kPeerIsPassive);
  if (state_ != State::kReqSent || !peer_not_ready_) return;
  peer_not_ready_ = false;
  send(request_, Outbox::Kind::kRepeat);
}

void Endpoint::on_rep(const mad::Delivered& mad, const Rep& rep, Time now) {
  if (!active_) return ignore(Ignored::kWrongState);
  switch (state_) {
    case State::kReqSent:
    case State::kMraReqReceived:
      if (state_ == State::kReqSent && !is_queued()) note_answer(now);
      finish_request();
      state_ = State::kRepReceived;
      remote_id_ = rep.local_comm_id;
      remote_guid_ = rep.local_ca_guid;
      remote_qpn_ = rep.local_qpn;
      ack_delay_ = rep.target_ack_delay;
      if (alternate_ && rep.failover_accepted == FailoverAccepted::kAccepted) {
        alternate_->accepted = alternate_->proposed;
      }
      return report(RepReceived{.endpoint = handle_,
                                .cookie = cookie_,
                                .rep = rep,
                                .ece = {rep.vendor_id(), mad.header.attribute_modifier}});
    case State::kRepReceived: {  // our consumer has not answered, so we ask the peer for time
      count_duplicate(AttributeId::kRep);
      const bool is_repeat = answer_.id() == AttributeId::kMra;
      answer_ = store(mra_of(MraSubject::kRep));
      return send(answer_, is_repeat ? Outbox::Kind::kRepeat : Outbox::Kind::kFirst);
    }
    case State::kEstablished:
    case State::kDreqSent:  // our RTU got lost (vol1 12.9.7.1)
      count_duplicate(AttributeId::kRep);
      // A connection that a former manager established has no RTU to repeat.  The peer learns from
      // our DREQ that the connection is over.
      if (answer_.id() != AttributeId::kRtu) return;
      return send(answer_, Outbox::Kind::kRepeat);
    case State::kTimewait:  // our REJ or all our DREQs got lost
      count_duplicate(AttributeId::kRep);
      if (answer_.id() == AttributeId::kRej) return send(answer_, Outbox::Kind::kRepeat);
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
  answer_ = store(rtu);
  send(answer_);
  request_ = {};
  was_established_ = true;
  state_ = State::kEstablished;
  return {};
}

}  // namespace verbena::cm
