#include "cm/tables.h"

#include <memory>

namespace verbena::cm {

namespace {

template <class Map, class Key>
Endpoint* look_up(const Map& map, const Key& key) {
  const auto at = map.find(key);
  return at == map.end() ? nullptr : at->second;
}

// Returns true if this endpoint still uses its peer's QP.
bool uses_remote_qpn(const Endpoint& endpoint) {
  switch (endpoint.state()) {
    case State::kReqSent:
    case State::kMraReqReceived:
    case State::kClosed: return false;
    case State::kRepReceived:
    case State::kReqReceived:
    case State::kMraReqSent:
    case State::kRepSent:
    case State::kMraRepReceived:
    case State::kEstablished:
    case State::kDreqSent: return true;
    case State::kTimewait:
      return endpoint.remote_qpn() != Qpn{};  // 0 if our REQ was rejected as stale
  }
  return false;
}

}  // namespace

void Tables::add(Endpoint& endpoint) {
  VB_CHECK(local_ids_.emplace(endpoint.local_id(), &endpoint).second);
  update(endpoint);
}

void Tables::update(Endpoint& endpoint) {
  auto& bookkeeping = endpoint.bookkeeping;
  if (bookkeeping.deadline != endpoint.deadline()) {
    if (bookkeeping.deadline != kNever)
      deadlines_.erase({bookkeeping.deadline, endpoint.local_id()});
    bookkeeping.deadline = endpoint.deadline();
    if (bookkeeping.deadline != kNever)
      deadlines_.emplace(bookkeeping.deadline, endpoint.local_id());
  }
  if (bookkeeping.local_qpn != endpoint.local_qpn()) {
    if (bookkeeping.local_qpn) local_qpns_.erase({*bookkeeping.local_qpn, endpoint.local_id()});
    bookkeeping.local_qpn = endpoint.local_qpn();
    local_qpns_.emplace(*bookkeeping.local_qpn, endpoint.local_id());
  }
  if (!bookkeeping.in_remote_qpns && uses_remote_qpn(endpoint)) {
    remote_qpns_.emplace(endpoint.remote_qpn(), endpoint.remote_guid(), endpoint.local_id());
    bookkeeping.in_remote_qpns = true;
  }
  const auto key = endpoint.peer_to_peer_key();
  if (bookkeeping.peer_to_peer_key && key != *bookkeeping.peer_to_peer_key) {
    peer_to_peer_.erase({*bookkeeping.peer_to_peer_key, endpoint.local_id()});
    bookkeeping.peer_to_peer_key.reset();
  }
  if (key && !bookkeeping.peer_to_peer_key) {
    bookkeeping.peer_to_peer_key = std::make_unique<PeerToPeerKey>(*key);
    peer_to_peer_.emplace(*key, endpoint.local_id());
  }
  const bool peer_answered = endpoint.is_peer_to_peer() && endpoint.remote_id() != CommId{};
  if (!bookkeeping.in_requests && (!endpoint.is_active() || peer_answered)) {
    bookkeeping.in_requests =
        requests_.try_emplace({endpoint.remote_id(), endpoint.remote_guid()}, &endpoint).second;
  }
}

void Tables::remove(Endpoint& endpoint) {
  auto& bookkeeping = endpoint.bookkeeping;
  if (bookkeeping.deadline != kNever) deadlines_.erase({bookkeeping.deadline, endpoint.local_id()});
  if (bookkeeping.local_qpn) local_qpns_.erase({*bookkeeping.local_qpn, endpoint.local_id()});
  if (bookkeeping.in_remote_qpns) {
    remote_qpns_.erase({endpoint.remote_qpn(), endpoint.remote_guid(), endpoint.local_id()});
  }
  if (bookkeeping.in_requests) requests_.erase({endpoint.remote_id(), endpoint.remote_guid()});
  if (bookkeeping.peer_to_peer_key)
    peer_to_peer_.erase({*bookkeeping.peer_to_peer_key, endpoint.local_id()});
  local_ids_.erase(endpoint.local_id());
  bookkeeping = {.state_since = bookkeeping.state_since,
                 .state = bookkeeping.state,
                 .inherited = bookkeeping.inherited,
                 .orphan = bookkeeping.orphan};
}

Endpoint* Tables::by_local_id(CommId id) const { return look_up(local_ids_, id); }

Endpoint* Tables::by_request(CommId remote_id, Guid remote_guid) const {
  return look_up(requests_, std::pair(remote_id, remote_guid));
}

Endpoint* Tables::due(Time now) const {
  if (deadlines_.empty() || deadlines_.begin()->first > now) return nullptr;
  return by_local_id(deadlines_.begin()->second);
}

}  // namespace verbena::cm
