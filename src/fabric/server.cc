#include <algorithm>
#include <utility>

#include "fabric/greeting.h"
#include "fabric/programs.h"

namespace verbena::fabric {
namespace {

constexpr int kBacklog = 8;

}  // namespace

Server::Server(Seat& seat, const Config& config) : seat_(seat), config_(config), verbs_(seat) {}

void Server::start() {
  verbs_.open();
  const auto bound = [this](Result<ipc::Bound> result) {
    if (!result) return seat_.refused("bind", result.error());
    seat_.expect("listen", seat_.process().listen(listener_, kBacklog, [this](auto listening) {
      if (!listening) return seat_.refused("listen", listening.error());
      state_ = State::kListening;
    }));
  };
  const auto id =
      seat_.process().create_id(rdmacm::kPortSpaceTcp, std::to_underlying(hca::QpType::kRc), 0);
  if (!id) return seat_.refused("create_id", id.error());
  listener_ = *id;
  state_ = State::kBinding;
  seat_.expect("bind", seat_.process().bind(listener_, config_.address, bound));
}

std::vector<Server::PeerState> Server::peers() const {
  std::vector<PeerState> all;
  for (const auto& [id, peer] : peers_) all.push_back(peer.state);
  return all;
}

void Server::on_notice(const process::Notice& notice) {
  if (const auto* cm = std::get_if<process::CmNotice>(&notice)) {
    if (cm->event.kind == rdmacm::EventKind::kConnectRequest) {
      on_request(*cm);
    } else if (cm->id == listener_) {
      if (cm->event.kind == rdmacm::EventKind::kDeviceRemoval) config_.clients = 0;
    } else {
      on_peer(cm->id, cm->event);
    }
  } else if (std::holds_alternative<process::CqNotice>(notice) && verbs_.is_open()) {
    verbs_.poll([this](const hca::WorkCompletion& done) { on_completion(done); });
  }
  settle();
}

void Server::on_request(const process::CmNotice& notice) {
  const process::ConnectionHandle id = notice.new_id;
  seat_.note(notice.event);
  Peer& peer = peers_[id];
  const std::uint32_t number = next_line_++;
  const Wishes wishes = read_wishes(notice.event.param);
  peer.sends_left = wishes.sends;
  peer.hang_up = wishes.hang_up != 0;
  peer.line = std::make_unique<Line>(seat_, verbs_.pd, number);
  peer_of_line_[number] = id;
  auto made = [this, id](Result<hca::QpHandle> qp) {
    peers_.at(id).making_qp = false;
    if (qp) return accept(id, *qp);
    seat_.refused("create_qp", qp.error());
  };
  auto started =
      seat_.process().create_qp(peer.line->qp_init(verbs_.pd, verbs_.cq), seat_.now(), made);
  if (auto* now = std::get_if<Result<hca::QpHandle>>(&started)) {
    made(*now);
  } else {
    seat_.expect("create_qp", std::move(started));
  }
}

void Server::accept(process::ConnectionHandle id, hca::QpHandle qp) {
  Peer& peer = peers_.at(id);
  peer.line->attach(qp);
  if (peer.story.over()) return settle();  // the client did not wait
  seat_.sure("set_qp", seat_.process().set_qp(id, qp, seat_.now()));
  peer.line->post_receives();
  rdmacm::ConnParam param{
      .responder_resources = 0xff, .initiator_depth = 0xff, .rnr_retry_count = 7};
  write_memory(param, peer.line->open_memory());
  peer.state = PeerState::kAccepting;
  seat_.expect("accept", seat_.process().accept(id, param, seat_.now(), seat_.answer("accept")));
}

void Server::on_peer(process::ConnectionHandle id, const rdmacm::Event& event) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return seat_.complain("an event of an id that is gone");
  Peer& peer = found->second;
  peer.story.count(event);
  seat_.note(event);
  if (peer.story.established > 1) seat_.complain("ESTABLISHED twice");
  if (peer.story.disconnected > 1) seat_.complain("DISCONNECTED twice");
  switch (event.kind) {
    case rdmacm::EventKind::kEstablished:
      if (peer.state == PeerState::kAccepting) peer.state = PeerState::kConnected;
      return;
    case rdmacm::EventKind::kDisconnected: return hang_up(id, peer);
    default: return;
  }
}

void Server::on_completion(const hca::WorkCompletion& completion) {
  const auto owner = peer_of_line_.find(Line::line_of(completion.wr_id));
  if (owner == peer_of_line_.end()) return seat_.complain("a completion of nothing");
  Peer& peer = peers_.at(owner->second);
  const auto done = peer.line->take(completion);
  if (!done) return;
  if (!done->good) {
    const bool allowed = completion.status == hca::WcStatus::kFlushed ||
                         completion.status == hca::WcStatus::kRetryExceeded;
    if (!allowed) seat_.complain(std::string("completion: ") + hca::to_string(completion.status));
    return hang_up(owner->second, peer);
  }
  if (done->receive) return echo(peer, *done);
  --peer.echoes;
  const bool last = peer.hang_up && peer.sends_left == 0 && peer.echoes == 0;
  if (last) hang_up(owner->second, peer);
}

void Server::echo(Peer& peer, const Line::Done& done) {
  if (peer.sends_left == 0) return seat_.complain("more messages than were sent");
  --peer.sends_left;
  const auto in = peer.line->slot(Line::Area::kIn, done.index).first(done.bytes);
  std::ranges::copy(in, peer.line->slot(Line::Area::kOut, peer.next_out).begin());
  peer.line->post_receive(done.index);
  peer.line->post_send(peer.next_out++, done.bytes);
  ++peer.echoes;
}

// ---- the end ------------------------------------------------------------------------------------

void Server::hang_up(process::ConnectionHandle id, Peer& peer) {
  if (peer.state == PeerState::kDisconnecting) return;
  if (peer.story.over() && peer.story.disconnected == 0) return;  // it never was a connection
  peer.state = PeerState::kDisconnecting;
  seat_.expect("disconnect",
               seat_.process().disconnect(id, seat_.now(), seat_.answer("disconnect")));
}

// Connections that are over, and whose requests have all come back, go.
void Server::settle() {
  for (auto at = peers_.begin(); at != peers_.end();) {
    auto& [id, peer] = *at;
    if (!peer.story.over() || peer.making_qp || !peer.line->drained()) {
      ++at;
      continue;
    }
    peer.line->close();
    std::erase_if(peer_of_line_, [id = id](const auto& one) { return one.second == id; });
    seat_.sure("destroy_id", seat_.process().destroy_id(id));
    stories_.push_back(peer.story);
    at = peers_.erase(at);
  }
  if (peers_.empty() && stories_.size() >= config_.clients && state_ != State::kDone) finish();
}

void Server::finish() {
  if (listener_) seat_.sure("destroy_id", seat_.process().destroy_id(listener_));
  verbs_.close();
  state_ = State::kDone;
}

}  // namespace verbena::fabric
