#pragma once

#include <absl/container/btree_map.h>
#include <absl/container/btree_set.h>

#include <cstddef>
#include <optional>
#include <tuple>
#include <utility>

#include "base/strong.h"
#include "base/time.h"
#include "cm/endpoint.h"

namespace verbena::cm {

// Finds endpoints by the ids and QP numbers in messages, by our QP numbers, and by their deadlines.
//
// Invariants: an endpoint is in local_ids_ from add() to remove().  Its state decides which other
// tables it is in, so update() must be called after each input to the endpoint.
//
// The tables are B-trees: tens of thousands of endpoints may be in timewait, and each level of a
// binary tree is a cache miss.
class Tables {
 public:
  void add(Endpoint& endpoint);
  void update(Endpoint& endpoint);
  void remove(Endpoint& endpoint);

  // Returns null if there is none.
  Endpoint* by_local_id(CommId id) const;
  // Finds an endpoint by the REQ of its peer: a passive endpoint, or a peer-to-peer endpoint that
  // stayed active.
  Endpoint* by_request(CommId remote_id, Guid remote_guid) const;
  // Visits the peer-to-peer endpoints that connect to this address with this service and wait for
  // the peer's REQ.  Returns the first for which f(Endpoint&) is true, or null.
  Endpoint* find_peer(ServiceId service_id, const mad::Address& address, auto&& f) const {
    const PeerToPeerKey key{service_id, address.remote(), address.local()};
    for (auto at = peer_to_peer_.lower_bound({key, CommId{0}});
         at != peer_to_peer_.end() && at->first == key; ++at) {
      Endpoint* endpoint = local_ids_.find(at->second)->second;
      if (f(*endpoint)) return endpoint;
    }
    return nullptr;
  }
  // Calls f(Endpoint&) for each endpoint whose peer has this QP, timewait included.
  void each_with_remote_qpn(Qpn qpn, Guid guid, auto&& f) const {
    for (auto at = remote_qpns_.lower_bound({qpn, guid, CommId{0}});
         at != remote_qpns_.end() && std::get<Qpn>(*at) == qpn && std::get<Guid>(*at) == guid;
         ++at) {
      f(*local_ids_.find(std::get<CommId>(*at))->second);
    }
  }

  // Calls f(Endpoint&) for the endpoints with this QP until f returns true.  Returns true if f did.
  bool any_with_local_qpn(Qpn qpn, auto&& f) const {
    for (auto at = local_qpns_.lower_bound({qpn, CommId{0}});
         at != local_qpns_.end() && at->first == qpn; ++at) {
      if (f(*local_ids_.find(at->second)->second)) return true;
    }
    return false;
  }

  Time deadline() const { return deadlines_.empty() ? kNever : deadlines_.begin()->first; }
  // Returns an endpoint whose deadline has come, or null.
  Endpoint* due(Time now) const;

  std::size_t size() const { return local_ids_.size(); }
  void visit(auto&& f) const {
    for (const auto& [id, endpoint] : local_ids_) f(*endpoint);
  }

 private:
  absl::btree_map<CommId, Endpoint*> local_ids_;
  absl::btree_map<std::pair<CommId, Guid>, Endpoint*> requests_;
  absl::btree_set<std::tuple<Qpn, Guid, CommId>> remote_qpns_;
  absl::btree_set<std::pair<Qpn, CommId>> local_qpns_;
  absl::btree_set<std::pair<PeerToPeerKey, CommId>> peer_to_peer_;
  absl::btree_set<std::pair<Time, CommId>> deadlines_;
};

}  // namespace verbena::cm
