// Handles the Manager's inputs from the wire and the clock.  Each message goes to its endpoint.  If
// there is none, the Manager itself answers or ignores the message.

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "cm/manager.h"
#include "cm/reject_info.h"
#include "cm/tables.h"
#include "wire/bth.h"

namespace verbena::cm {

using wire::cm::Apr;
using wire::cm::AprStatus;
using wire::cm::AttributeId;
using wire::cm::Drep;
using wire::cm::Dreq;
using wire::cm::Lap;
using wire::cm::Message;
using wire::cm::Mra;
using wire::cm::Rej;
using wire::cm::RejReason;
using wire::cm::RejSubject;
using wire::cm::Rep;
using wire::cm::Req;
using wire::cm::Rtu;
using wire::cm::SidrRep;
using wire::cm::SidrReq;
using wire::cm::TransportService;

namespace {

// Returns the reason why this host rejects the REQ, whatever its service; empty if the REQ is good.
std::optional<RejReason> reason_to_reject(const mad::Delivered& mad, const Req& req,
                                          bool is_our_partition) {
  if (req.transport_service != TransportService::kRc) return RejReason::kInvalidTransportType;
  if (req.path_mtu < 1 || req.path_mtu > 5) return RejReason::kInvalidPathMtu;
  if (req.primary_path.remote_gid != mad.from.local()) return RejReason::kPrimaryGidRejected;
  // Rejects the REQ if its QP has another address than its CM, or is in another partition.  The
  // specification has no reason code for these cases.
  if (req.primary_path.local_gid != mad.from.remote() || !is_our_partition) {
    return RejReason::kUnsupportedRequest;
  }
  return std::nullopt;
}

// Takes the GIDs of the two ends from the path in the message if the packet had no GRH.
mad::Delivered with_gids(mad::Delivered mad, const wire::cm::Path& path) {
  link::Address& from = mad.from.path;
  if (from.carries_gids()) return mad;
  from.source = path.remote_gid;
  from.destination = path.local_gid;
  return mad;
}

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};

}  // namespace

void Manager::set_pkeys(PortId port, std::vector<Pkey> pkeys) { pkeys_[port] = std::move(pkeys); }

bool Manager::is_our_partition(PortId port, Pkey theirs) const {
  const auto table = pkeys_.find(port);
  return table != pkeys_.end() && std::ranges::any_of(table->second, [&](Pkey ours) {
           return wire::pkeys_match(ours, theirs);
         });
}

void Manager::receive(const mad::Delivered& mad, Time now) {
  if (mad.mgmt_class != wire::MgmtClass::kCommunication) return ignore(Ignored::kMalformed);
  const auto message = wire::cm::decode_message(mad.header.attribute_id, mad.data());
  if (!message) return ignore(Ignored::kMalformed);
  ++counters_.of(wire::cm::attribute_id(*message)).received;
  if (!mad.class_version_known) return receive_wrong_version(mad, *message);

  const auto for_endpoint = [&](const auto& m, auto&& handle) {
    Endpoint* endpoint = find_and_note_answer(m.remote_comm_id, m.local_comm_id, now);
    if (endpoint == nullptr) return;
    handle(*endpoint);
    update_or_remove(*endpoint, now);
  };
  std::visit(Overloaded{
                 [&](const Req& m) { receive_req(mad, m, now); },
                 [&](const Rep& m) { receive_rep(mad, m, now); },
                 [&](const Rej& m) { receive_rej(m, now); },
                 [&](const Dreq& m) { receive_dreq(mad, m, now); },
                 [&](const Mra& m) { for_endpoint(m, [&](Endpoint& e) { e.on_mra(m, now); }); },
                 [&](const Rtu& m) { for_endpoint(m, [&](Endpoint& e) { e.on_rtu(m, now); }); },
                 [&](const Drep& m) { for_endpoint(m, [&](Endpoint& e) { e.on_drep(now); }); },
                 [&](const SidrReq& m) {
                   const auto listener = is_our_partition(mad.from.path.port, m.pkey)
                                             ? listeners_.find(m.service_id, m.private_data)
                                             : std::nullopt;
                   if (!listener && listeners_.expects(m.service_id, now)) {
                     return ignore(Ignored::kNotListeningYet);
                   }
                   sidr_.receive(mad, m, listener, now);
                 },
                 [&](const SidrRep& m) { sidr_.receive(mad, m, now); },
                 [&](const Lap& m) { receive_lap(mad, m, now); },
                 [&](const Apr& m) {
                   for_endpoint(m, [&](Endpoint& e) { e.on_apr(m, mad.header.transaction_id); });
                 },
             },
             *message);
}

void Manager::on_timer(Time now) {
  sidr_.on_timer(now);
  while (Endpoint* endpoint = tables_->due(now)) {
    const auto& ticket = endpoint->bookkeeping.ticket;
    if (endpoint->is_quiescing()) {
      on_quiesced(*endpoint, now);
    } else {
      if (ticket && !ticket->has_permit) {
        endpoint->renew_timeout(ticket->queue->second.last_answer);
      }
      endpoint->on_timer(now);
    }
    update_or_remove(*endpoint, now);
  }
}

// Finds the endpoint by our id, and records that the peer has answered.  The peer's id must match
// as well, unless this side is active and has not got it from a REP yet.
Endpoint* Manager::find_and_note_answer(CommId ours, CommId theirs, Time now) {
  Endpoint* endpoint = tables_->by_local_id(ours);
  if (endpoint == nullptr) {
    ignore(Ignored::kUnknownId);
    return nullptr;
  }
  if (endpoint->remote_id() != CommId{} && endpoint->remote_id() != theirs) {
    ignore(Ignored::kWrongRemoteId);
    return nullptr;
  }
  note_answer(*endpoint, now);
  return endpoint;
}

void Manager::receive_req(const mad::Delivered& received, const Req& req, Time now) {
  const mad::Delivered mad = with_gids(received, req.primary_path);
  if (repeat_rej(mad, AttributeId::kReq, {req.local_comm_id, req.local_ca_guid}, now)) return;
  if (Endpoint* endpoint = tables_->by_request(req.local_comm_id, req.local_ca_guid)) {
    endpoint->on_duplicate_req(now);
    return update_or_remove(*endpoint, now);
  }
  if (const auto old_ids = connections_of_qp(req.local_qpn, req.local_ca_guid, mad.from.remote());
      !old_ids.empty()) {
    refuse(mad, req.local_comm_id, RejSubject::kReq, RejReason::kStaleConnection);
    return check_stale(old_ids, now);
  }
  const auto refuse_req = [&](RejReason reason) {
    refuse(mad, req.local_comm_id, RejSubject::kReq, reason);
  };
  if (const auto reason =
          reason_to_reject(mad, req, is_our_partition(mad.from.path.port, req.pkey)))
    return refuse_req(*reason);
  if (match_peer_to_peer(mad, req, now)) return;
  const auto listener = listeners_.find(req.service_id, req.private_data);
  if (!listener && listeners_.expects(req.service_id, now))
    return ignore(Ignored::kNotListeningYet);
  if (!listener) return refuse_req(RejReason::kInvalidServiceId);

  const auto handle =
      add_endpoint(std::make_unique<Endpoint>(services_, mad, req, new_id(), *listener), now);
  if (!handle) return ignore(Ignored::kLimitReached);
  slots_.find(*handle)->report_req(mad, req);
}

// Returns the connections that this QP of the peer still has here.  A QP has only one connection,
// so a new connection shows that the old ones are stale (vol1 12.9.8.3.1), unless somebody else has
// sent the message (Endpoint::check_stale()).  Connections that are ending are left out: they may
// be over for the peer already, because its timewait may be shorter than ours.  So are those with a
// peer at another address, because CA GUIDs and QPNs are easy to guess.  (Without a GRH, the
// address of a REQ is only the one that it names itself.)
std::vector<CommId> Manager::connections_of_qp(Qpn qpn, Guid guid, const Gid& from) const {
  std::vector<CommId> found;
  if (qpn == Qpn{}) return found;  // the peer has no QP
  tables_->each_with_remote_qpn(qpn, guid, [&](const Endpoint& endpoint) {
    const bool is_ending =
        endpoint.state() == State::kDreqSent || endpoint.state() == State::kTimewait;
    if (!is_ending && endpoint.has_peer_at(from)) found.push_back(endpoint.local_id());
  });
  return found;
}

void Manager::check_stale(const std::vector<CommId>& ids, Time now) {
  for (const CommId id : ids) {
    Endpoint* const endpoint = tables_->by_local_id(id);
    if (endpoint == nullptr) continue;
    endpoint->check_stale(now);
    update_or_remove(*endpoint, now);
  }
}

bool Manager::match_peer_to_peer(const mad::Delivered& mad, const Req& req, Time now) {
  const auto matches = [&](const Endpoint& ours) {
    const bool is_own_req =
        ours.local_id() == req.local_comm_id && req.local_ca_guid == config_.ca_guid;
    // An endpoint that got an MRA is talking to a listener, not to a peer that connects to us, so
    // it must not become passive.
    return !is_own_req && (ours.state() == State::kReqSent || ours.wins_against(req));
  };
  Endpoint* ours = tables_->find_peer(req.service_id, mad.from, matches);
  if (ours == nullptr) return false;
  if (ours->wins_against(req)) {
    ours->on_losing_req();
  } else {
    ours->become_passive(mad, req);
    ours->report_req(mad, req);
  }
  update_or_remove(*ours, now);
  return true;
}

void Manager::receive_rep(const mad::Delivered& mad, const Rep& rep, Time now) {
  if (repeat_rej(mad, AttributeId::kRep, {rep.local_comm_id, rep.local_ca_guid}, now)) return;
  Endpoint* endpoint = find_and_note_answer(rep.remote_comm_id, rep.local_comm_id, now);
  if (endpoint == nullptr) {
    // The peer waits for an RTU, which no endpoint here can send.
    return refuse(mad, rep.local_comm_id, RejSubject::kRep, RejReason::kInvalidCommId,
                  rep.remote_comm_id);
  }
  if (endpoint->waits_for_rep()) {
    const mad::Address& from = mad.from.path.carries_gids() ? mad.from : endpoint->address();
    auto old_ids = connections_of_qp(rep.local_qpn, rep.local_ca_guid, from.remote());
    if (rep.local_ca_guid == config_.ca_guid)
      std::erase(old_ids, rep.local_comm_id);  // on loopback the other end is on this host
    if (!old_ids.empty()) {
      refuse(mad, rep.local_comm_id, RejSubject::kRep, RejReason::kStaleConnection,
             rep.remote_comm_id);
      endpoint->on_rej({.local_comm_id = rep.local_comm_id,
                        .remote_comm_id = rep.remote_comm_id,
                        .reason = RejReason::kStaleConnection},
                       now);
      update_or_remove(*endpoint, now);
      return check_stale(old_ids, now);
    }
  }
  endpoint->on_rep(mad, rep, now);
  update_or_remove(*endpoint, now);
}

void Manager::receive_rej(const Rej& rej, Time now) {
  counters_.count_reject_received(rej.reason);
  Endpoint* endpoint = nullptr;
  if (rej.remote_comm_id != CommId{}) {
    endpoint = find_and_note_answer(rej.remote_comm_id, rej.local_comm_id, now);
  } else if (const auto guid = timeout_ca_guid(rej)) {
    // The peer gave up before it learned our id, so our endpoint cannot be connected.
    endpoint = tables_->by_request(rej.local_comm_id, *guid);
    if (endpoint == nullptr || endpoint->state() > State::kMraRepReceived) {
      return ignore(Ignored::kUnknownId);
    }
  } else {
    ignore(Ignored::kUnknownId);
  }
  if (endpoint == nullptr) return;
  endpoint->on_rej(rej, now);
  update_or_remove(*endpoint, now);
}

void Manager::receive_lap(const mad::Delivered& mad, const Lap& lap, Time now) {
  Endpoint* endpoint = find_and_note_answer(lap.remote_comm_id, lap.local_comm_id, now);
  if (endpoint == nullptr) {
    const Apr apr{.local_comm_id = lap.remote_comm_id,
                  .remote_comm_id = lap.local_comm_id,
                  .status = AprStatus::kInvalidCommId};
    return outbox_.send(mad.from, AttributeId::kApr, answer(mad, apr));
  }
  endpoint->on_lap(lap, mad.header.transaction_id);
  update_or_remove(*endpoint, now);
}

void Manager::receive_dreq(const mad::Delivered& mad, const Dreq& dreq, Time now) {
  Endpoint* endpoint = tables_->by_local_id(dreq.remote_comm_id);
  if (endpoint == nullptr) {
    // The connection ended long ago, or belonged to a former manager.  The DREP lets the peer end
    // it (vol1 12.9.8.1).
    ignore(Ignored::kUnknownId);
    const Drep drep{.local_comm_id = dreq.remote_comm_id, .remote_comm_id = dreq.local_comm_id};
    return outbox_.send(mad.from, AttributeId::kDrep, answer(mad, drep));
  }
  if (endpoint->remote_id() != dreq.local_comm_id) return ignore(Ignored::kWrongRemoteId);
  if (endpoint->local_qpn() != dreq.remote_qpn) return ignore(Ignored::kWrongQpn);
  endpoint->on_dreq(dreq, now);
  update_or_remove(*endpoint, now);
}

// Rejects a REQ, REP or SIDR_REQ of another class version.  All versions so far have the ids at the
// same place.  Other messages get no answer.
void Manager::receive_wrong_version(const mad::Delivered& mad, const Message& message) {
  std::visit(Overloaded{
                 [&](const Req& m) {
                   refuse(mad, m.local_comm_id, RejSubject::kReq,
                          RejReason::kUnsupportedClassVersion);
                 },
                 [&](const Rep& m) {
                   refuse(mad, m.local_comm_id, RejSubject::kRep,
                          RejReason::kUnsupportedClassVersion, m.remote_comm_id);
                 },
                 [&](const SidrReq& m) { sidr_.refuse_version(mad, m); },
                 [&](const auto&) { ignore(Ignored::kOtherVersion); },
             },
             message);
}

bool Manager::repeat_rej(const mad::Delivered& mad, AttributeId request, RejCache::Key key,
                         Time now) {
  const mad::Mad* rej = rej_cache_.find(key, now);
  if (rej == nullptr) return false;
  ++counters_.of(request).duplicate;
  outbox_.send(mad.from, AttributeId::kRej, *rej, Outbox::Kind::kRepeat);
  return true;
}

void Manager::refuse(const mad::Delivered& mad, CommId theirs, RejSubject subject, RejReason reason,
                     CommId ours) {
  counters_.count_reject_sent(reason);
  Rej rej{.local_comm_id = ours,
          .remote_comm_id = theirs,
          .message_rejected = subject,
          .reason = reason};
  if (reason == RejReason::kPrimaryGidRejected) {
    set_reject_info(rej, wire::encode(GidInfo{mad.from.local()}));
  }
  outbox_.send(mad.from, AttributeId::kRej, answer(mad, rej));
}

mad::Mad Manager::answer(const mad::Delivered& mad, const Message& message) const {
  return wire::cm::encode_mad(
      wire::cm::mad_header(wire::cm::attribute_id(message), mad.header.transaction_id), message);
}

}  // namespace verbena::cm
