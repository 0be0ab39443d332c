#include <algorithm>
#include <utility>

#include "fabric/greeting.h"
#include "fabric/programs.h"

namespace verbena::fabric {
namespace {

constexpr int kBacklog = 8;

}  // namespace

Server::Server(SimProcess& sim_process, const Config& config)
    : sim_process_(sim_process), config_(config), verbs_(sim_process) {}

void Server::start() {
  verbs_.open();
  const auto on_bound = [this](Result<ipc::Bound> result) {
    if (!result) return sim_process_.add_failed_call("bind", result.error());
    sim_process_.track("listen",
                       sim_process_.process().listen(listener_, kBacklog, [this](auto listening) {
                         if (!listening)
                           return sim_process_.add_failed_call("listen", listening.error());
                         state_ = State::kListening;
                       }));
  };
  const auto id = sim_process_.process().create_id(rdmacm::kPortSpaceTcp,
                                                   std::to_underlying(hca::QpType::kRc), 0);
  if (!id) return sim_process_.add_failed_call("create_id", id.error());
  listener_ = *id;
  state_ = State::kBinding;
  sim_process_.track("bind", sim_process_.process().bind(listener_, config_.address, on_bound));
}

std::vector<Server::PeerState> Server::peers() const {
  std::vector<PeerState> all;
  for (const auto& [id, peer] : peers_) all.push_back(peer.state);
  return all;
}

void Server::on_notice(const process::Notice& notice) {
  if (const auto* cm = std::get_if<process::CmNotice>(&notice)) {
    if (cm->event.kind == rdmacm::EventKind::kConnectRequest) {
      on_connect_request(*cm);
    } else if (cm->id == listener_) {
      if (cm->event.kind == rdmacm::EventKind::kDeviceRemoval) config_.clients = 0;
    } else {
      on_peer_event(cm->id, cm->event);
    }
  } else if (std::holds_alternative<process::CqNotice>(notice) && verbs_.is_open()) {
    verbs_.poll([this](const hca::WorkCompletion& completion) { on_completion(completion); });
  }
  destroy_finished_peers();
}

void Server::on_connect_request(const process::CmNotice& notice) {
  const process::ConnectionHandle id = notice.new_id;
  sim_process_.note(notice.event);
  Peer& peer = peers_[id];
  const std::uint32_t number = next_endpoint_++;
  const ClientPlan plan = decode_plan(notice.event.param);
  peer.remaining_sends = plan.sends;
  peer.server_disconnects = plan.server_disconnects != 0;
  peer.endpoint = std::make_unique<RcEndpoint>(sim_process_, verbs_.pd, number);
  peer_of_endpoint_[number] = id;
  auto on_created = [this, id](Result<hca::QpHandle> qp) {
    peers_.at(id).is_creating_qp = false;
    if (qp) return accept(id, *qp);
    sim_process_.add_failed_call("create_qp", qp.error());
  };
  const PortId port = notice.event.path.address.port;
  ports_.push_back(port);
  auto started = sim_process_.process().create_qp(
      peer.endpoint->qp_init(verbs_.pd, verbs_.cq, port.device), sim_process_.now(), on_created);
  if (auto* result = std::get_if<Result<hca::QpHandle>>(&started)) {
    on_created(*result);
  } else {
    sim_process_.track("create_qp", std::move(started));
  }
}

void Server::accept(process::ConnectionHandle id, hca::QpHandle qp) {
  Peer& peer = peers_.at(id);
  peer.endpoint->attach(qp);
  if (peer.outcome.has_ended())
    return destroy_finished_peers();  // the client gave up while the QP was created
  sim_process_.require("set_qp", sim_process_.process().set_qp(id, qp, sim_process_.now()));
  peer.endpoint->post_receives();
  rdmacm::ConnParam param{
      .responder_resources = 0xff, .initiator_depth = 0xff, .rnr_retry_count = 7};
  encode_memory(param, peer.endpoint->exposed_memory());
  peer.state = PeerState::kAccepting;
  sim_process_.track("accept",
                     sim_process_.process().accept(id, param, sim_process_.now(),
                                                   sim_process_.completion_for("accept")));
}

void Server::on_peer_event(process::ConnectionHandle id, const rdmacm::Event& event) {
  const auto found = peers_.find(id);
  if (found == peers_.end())
    return sim_process_.report_violation("an event of an id that was destroyed");
  Peer& peer = found->second;
  peer.outcome.count(event);
  sim_process_.note(event);
  if (peer.outcome.established > 1) sim_process_.report_violation("ESTABLISHED twice");
  if (peer.outcome.disconnected > 1) sim_process_.report_violation("DISCONNECTED twice");
  switch (event.kind) {
    case rdmacm::EventKind::kEstablished:
      if (peer.state == PeerState::kAccepting) peer.state = PeerState::kConnected;
      return;
    case rdmacm::EventKind::kDisconnected: return disconnect(id, peer);
    default: return;
  }
}

void Server::on_completion(const hca::WorkCompletion& completion) {
  const auto owner = peer_of_endpoint_.find(RcEndpoint::endpoint_of(completion.wr_id));
  if (owner == peer_of_endpoint_.end())
    return sim_process_.report_violation("a completion without a request");
  Peer& peer = peers_.at(owner->second);
  const auto request = peer.endpoint->find_completed(completion);
  if (!request) return;
  if (!request->succeeded) {
    const bool is_allowed = completion.status == hca::WcStatus::kFlushed ||
                            completion.status == hca::WcStatus::kRetryExceeded;
    if (!is_allowed)
      sim_process_.report_violation(std::string("completion: ") +
                                    hca::to_string(completion.status));
    return disconnect(owner->second, peer);
  }
  if (request->is_receive) return echo(peer, *request);
  --peer.pending_echoes;
  const bool is_last_echo =
      peer.server_disconnects && peer.remaining_sends == 0 && peer.pending_echoes == 0;
  if (is_last_echo) disconnect(owner->second, peer);
}

void Server::echo(Peer& peer, const RcEndpoint::CompletedRequest& request) {
  if (peer.remaining_sends == 0)
    return sim_process_.report_violation("more SENDs than the client has announced");
  --peer.remaining_sends;
  const auto in = peer.endpoint->slot(RcEndpoint::Area::kIn, request.index).first(request.bytes);
  std::ranges::copy(in, peer.endpoint->slot(RcEndpoint::Area::kOut, peer.next_out_slot).begin());
  peer.endpoint->post_receive(request.index);
  peer.endpoint->post_send(peer.next_out_slot++, request.bytes);
  ++peer.pending_echoes;
}

// ---- disconnecting ------------------------------------------------------------------------------

void Server::disconnect(process::ConnectionHandle id, Peer& peer) {
  if (peer.state == PeerState::kDisconnecting) return;
  // A connection that has ended without a DISCONNECTED event needs no disconnect.
  if (peer.outcome.has_ended() && peer.outcome.disconnected == 0) return;
  peer.state = PeerState::kDisconnecting;
  sim_process_.track("disconnect",
                     sim_process_.process().disconnect(id, sim_process_.now(),
                                                       sim_process_.completion_for("disconnect")));
}

// Destroys the connections that have ended, if all of their requests have completed.  Then ends the
// server if no other connection will follow.
void Server::destroy_finished_peers() {
  for (auto at = peers_.begin(); at != peers_.end();) {
    auto& [id, peer] = *at;
    if (!peer.outcome.has_ended() || peer.is_creating_qp || !peer.endpoint->is_drained()) {
      ++at;
      continue;
    }
    peer.endpoint->close();
    std::erase_if(peer_of_endpoint_, [id = id](const auto& entry) { return entry.second == id; });
    sim_process_.require("destroy_id", sim_process_.process().destroy_id(id));
    outcomes_.push_back(peer.outcome);
    at = peers_.erase(at);
  }
  if (peers_.empty() && outcomes_.size() >= config_.clients && state_ != State::kDone) finish();
}

void Server::finish() {
  if (listener_) sim_process_.require("destroy_id", sim_process_.process().destroy_id(listener_));
  verbs_.close();
  state_ = State::kDone;
}

}  // namespace verbena::fabric
