#include "cm/tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/random.h"
#include "sim/seeds.h"
#include "wire/ip.h"

// Compares the tables with a model: a vector that is searched linearly.
//
// The endpoints are real, but have no Manager.  They connect at random, and are accepted, rejected,
// reset and removed at random.  There are so few ids, QPNs, hosts and services that many endpoints
// share them.  After each step every possible look-up is compared.
namespace verbena::cm {
namespace {

using namespace std::chrono_literals;
using wire::cm::MraSubject;
using wire::cm::RejReason;

constexpr std::size_t kEntriesMax = 14;
// Ids, GUIDs and QPNs begin with 1.  An endpoint uses 0 for a number that it does not know yet.
// The test looks up 0 as well.
constexpr std::uint32_t kIds = 20;
constexpr std::uint32_t kPeerIds = 4;
constexpr std::uint32_t kGuids = 2;
constexpr std::uint32_t kPeerQpns = 4;
constexpr std::uint32_t kQpns = 4;
// Services and hosts begin with 0.
constexpr std::uint32_t kServices = 2;
constexpr std::uint32_t kHosts = 2;

struct Peer {
  CommId id{};
  Guid guid{};
  Qpn qpn{};
};

// Tells whether Tables::by_request() finds an endpoint.  Several endpoints may have the same REQ.
// by_request() finds the one that was the first to be added or updated with the REQ.  After that
// endpoint is removed, by_request() finds none of them until another one is updated.  The class
// Tables does not promise this choice, but the model has to make the same one.
enum class Lookup : std::uint8_t {
  kNoRequest,  // the endpoint knows no REQ yet
  kHidden,     // by_request() finds another endpoint with this REQ, or none
  kFound,
};

// Holds what the tables know of an endpoint, derived from the inputs of the endpoint.  The model
// asks the endpoint itself only for its state, its deadline and its id.
struct Entry {
  std::unique_ptr<Endpoint> endpoint;
  CommId id{};
  Qpn qpn{};
  std::optional<PeerToPeerKey> key{};  // set if the endpoint connects peer to peer
  // `peer` is set once a REQ or REP of the peer has arrived, or if the connection is inherited.
  std::optional<Peer> peer{};
  bool passive = false;
  Lookup lookup_by_request = Lookup::kNoRequest;

  bool waits_for_rep() const {
    return endpoint->state() == State::kReqSent || endpoint->state() == State::kMraReqReceived;
  }
  // Returns true if the endpoint waits for the REQ of its peer.
  bool waits_for_req(const PeerToPeerKey& wanted) const {
    return key == wanted && !passive && waits_for_rep();
  }
  bool knows_request() const { return peer && (passive || key); }
};

// Counts rare cases, to see that the test covers them.
struct CaseCounts {
  int hidden_requests = 0;    // an endpoint became kHidden: another one has the same REQ
  int revealed_requests = 0;  // an endpoint changed from kHidden to kFound
  int shared_qpns = 0;
  int stayed_active = 0;  // peer to peer, and this side stayed active
  int turned_passive = 0;
  int stale = 0;
  int due_together = 0;
};

using Found = std::vector<const Endpoint*>;

class TablesRun {
 public:
  TablesRun(std::uint64_t seed, CaseCounts& counts) : counts_(counts), random_(seed) {}

  void step() {
    if (entries_.empty() || (entries_.size() < kEntriesMax && random_.chance({1, 4})))
      return add_entry();
    Entry& entry = entries_[random_.below(entries_.size())];
    if (random_.chance({1, 30})) return remove(entry);
    if (random_.chance({1, 15})) return advance_time();
    apply_random_input(entry);
    update_or_remove(entry);
  }

  void compare() {
    ASSERT_EQ(tables_.size(), entries_.size());
    Found visited;
    tables_.visit([&](const Endpoint& endpoint) { visited.push_back(&endpoint); });
    ASSERT_EQ(visited, find_all([](const Entry&) { return true; }));
    for (std::uint32_t id = 0; id <= kIds + 1; ++id) {
      ASSERT_EQ(tables_.by_local_id({id}),
                find_only([&](const Entry& e) { return e.id.value == id; }))
          << "id " << id;
    }
    for (std::uint32_t guid = 0; guid <= kGuids; ++guid) {
      for (std::uint32_t id = 0; id <= kPeerIds; ++id) {
        ASSERT_EQ(tables_.by_request({id}, {guid}), by_request({id}, {guid}))
            << "REQ " << id << " of " << guid;
      }
      for (std::uint32_t qpn = 0; qpn <= kPeerQpns; ++qpn) compare_remote({qpn}, {guid});
    }
    for (std::uint32_t qpn = 0; qpn <= kQpns; ++qpn) compare_local({qpn});
    for (std::uint32_t service = 0; service < kServices; ++service) {
      for (std::uint32_t host_pair = 0; host_pair < kHosts * kHosts; ++host_pair) {
        compare_peer_to_peer({service}, address(host_pair));
      }
    }
    compare_deadlines();
  }

 private:
  // ---- Random steps

  std::uint32_t random_below(std::uint32_t count) {
    return static_cast<std::uint32_t>(random_.below(count));
  }
  // Returns a number from 1 to `count`.
  std::uint32_t random_up_to(std::uint32_t count) { return 1 + random_below(count); }
  Peer random_peer() {
    return {{random_up_to(kPeerIds)}, {random_up_to(kGuids)}, {random_up_to(kPeerQpns)}};
  }
  // Returns the address from one host to another or the same.  `host_pair` encodes both hosts.
  static mad::Address address(std::uint32_t host_pair) {
    return {.path = {.source = wire::ipv4_gid(0x0a000000 + host_pair % kHosts),
                     .destination = wire::ipv4_gid(0x0a000000 + host_pair / kHosts)}};
  }
  mad::Address random_address() { return address(random_below(kHosts * kHosts)); }
  static mad::Delivered delivered(const mad::Address& from) {
    static constexpr mad::Mad kMad{};
    return {.mgmt_class = wire::MgmtClass::kCommunication, .from = from, .header = {}, .mad = kMad};
  }
  wire::cm::Req req_of(const Peer& peer) {
    return {.local_comm_id = peer.id,
            .local_ca_guid = peer.guid,
            .local_qpn = peer.qpn,
            .max_cm_retries = 3,
            .primary_path = {.local_ack_timeout = static_cast<std::uint8_t>(12 + random_below(6))}};
  }

  void add_entry() {
    Entry entry;
    do {
      entry.id.value = random_up_to(kIds);
    } while (find_only([&](const Entry& other) { return other.id == entry.id; }) != nullptr);
    switch (random_below(8)) {
      case 0: {  // The CA GUID of an inherited connection's peer is not known.
        entry.peer = Peer{{random_up_to(kPeerIds)}, {}, {random_up_to(kPeerQpns)}};
        entry.qpn.value = random_up_to(kQpns);
        const InheritedConnection inherited{.address = random_address(),
                                            .local_id = entry.id,
                                            .remote_id = entry.peer->id,
                                            .local_qpn = entry.qpn,
                                            .remote_qpn = entry.peer->qpn,
                                            .packet_life = 14};
        entry.endpoint = std::make_unique<Endpoint>(services_, inherited, 0);
        break;
      }
      case 1:
      case 2:
        entry.peer = random_peer();
        entry.passive = true;
        entry.endpoint = std::make_unique<Endpoint>(services_, delivered(random_address()),
                                                    req_of(*entry.peer), entry.id, 0);
        break;
      default: {
        entry.qpn.value = random_up_to(kQpns);
        const ConnectRequest request{.address = random_address(),
                                     .service_id = {random_below(kServices)},
                                     .qpn = entry.qpn,
                                     .packet_life = static_cast<std::uint8_t>(12 + random_below(6)),
                                     .peer_to_peer = random_.chance({2, 3}),
                                     .give_up_after = 2s};
        if (request.peer_to_peer) {
          entry.key = {request.service_id, request.address.remote(), request.address.local()};
        }
        entry.endpoint = std::make_unique<Endpoint>(services_, request, entry.id, 0, 0);
        entry.endpoint->start(request, now_);
      }
    }
    tables_.add(*entry.endpoint);
    update_model(entries_.emplace_back(std::move(entry)));
  }

  void apply_random_input(Entry& entry) {
    Endpoint& endpoint = *entry.endpoint;
    const State state = endpoint.state();
    switch (random_below(20)) {
      case 0:
        if (endpoint.send_target() && endpoint.is_queued()) endpoint.send_request(now_);
        return;
      case 1:
        if (state == State::kReqSent) endpoint.send_at(now_);
        return;
      case 2:
      case 3:
      case 4: return receive_rep(entry);
      case 5:
      case 6: return receive_winning_req(entry);
      case 7:
        return endpoint.on_mra(
            {.message_mraed = entry.passive ? MraSubject::kRep : MraSubject::kReq,
             .service_timeout = 16},
            now_);
      case 8:
        if (entry.waits_for_rep()) ++counts_.stale;
        return endpoint.on_rej({.reason = RejReason::kStaleConnection}, now_);
      case 9: return endpoint.on_rej({.reason = RejReason::kConsumer}, now_);
      case 10:
        if (entry.lookup_by_request == Lookup::kFound) endpoint.on_duplicate_req(now_);
        return;
      case 11:
      case 12: {
        const Qpn qpn{random_up_to(kQpns)};
        if (!endpoint.accept({.qpn = qpn, .give_up_after = 2s}, now_)) return;
        entry.qpn = qpn;
        return endpoint.send_request(now_);
      }
      case 13: return (void)endpoint.establish({});
      case 14: return endpoint.on_rtu({}, now_);
      case 15: return (void)endpoint.disconnect({}, now_);
      case 16: return endpoint.on_dreq({}, now_);
      case 17: return endpoint.on_drep(now_);
      case 18: return endpoint.check_stale(now_);
      default: return endpoint.abandon(now_);
    }
  }
  // Gives the endpoint a REP.
  void receive_rep(Entry& entry) {
    if (!entry.waits_for_rep()) return;
    const Peer peer = random_peer();
    entry.endpoint->on_rep(
        delivered(random_address()),
        {.local_comm_id = peer.id, .local_qpn = peer.qpn, .local_ca_guid = peer.guid}, now_);
    entry.peer = peer;
    if (entry.key) ++counts_.stayed_active;
  }
  // Gives a peer-to-peer endpoint a REQ that makes it the passive side.
  void receive_winning_req(Entry& entry) {
    if (!entry.key || !entry.waits_for_rep()) return;
    const Peer peer = random_peer();
    entry.endpoint->become_passive(delivered(random_address()), req_of(peer));
    entry.peer = peer;
    entry.passive = true;
    ++counts_.turned_passive;
  }

  // Removes the endpoint; sometimes adds it again, and checks that it is not found in between.
  void remove(Entry& entry) {
    tables_.remove(*entry.endpoint);
    Entry removed = erase(entry);
    if (random_.chance({1, 2})) return;
    compare();
    tables_.add(*removed.endpoint);
    update_model(entries_.emplace_back(std::move(removed)));
  }

  void advance_time() {
    now_ += Duration(static_cast<std::int64_t>(random_.below(500'000'000)));
    while (Endpoint* endpoint = tables_.due(now_)) {
      ASSERT_EQ(endpoint, due(now_));
      const auto at = std::ranges::find_if(
          entries_, [&](const Entry& entry) { return entry.endpoint.get() == endpoint; });
      endpoint->on_timer(now_);
      update_or_remove(*at);
    }
  }

  void update_or_remove(Entry& entry) {
    while (outbox_.poll()) {
    }
    if (entry.endpoint->state() == State::kClosed) {
      tables_.remove(*entry.endpoint);
      (void)erase(entry);
      return;
    }
    tables_.update(*entry.endpoint);
    update_model(entry);
  }

  // ---- The model

  void update_model(Entry& entry) {
    if (entry.knows_request() && entry.lookup_by_request != Lookup::kFound) {
      const bool is_free = by_request(entry.peer->id, entry.peer->guid) == nullptr;
      update_lookup(entry.lookup_by_request, is_free);
    }
  }
  void update_lookup(Lookup& lookup, bool is_free) {
    if (!is_free && lookup == Lookup::kNoRequest) ++counts_.hidden_requests;
    if (is_free && lookup == Lookup::kHidden) ++counts_.revealed_requests;
    lookup = is_free ? Lookup::kFound : Lookup::kHidden;
  }

  Entry erase(Entry& entry) {
    const auto at = entries_.begin() + (&entry - entries_.data());
    Entry removed = std::move(*at);
    entries_.erase(at);
    removed.lookup_by_request = Lookup::kNoRequest;
    return removed;
  }

  // Returns the endpoints that match, in order of their ids.
  Found find_all(const std::function<bool(const Entry&)>& f) const {
    Found found;
    for (const Entry& entry : entries_) {
      if (f(entry)) found.push_back(entry.endpoint.get());
    }
    std::ranges::sort(found, {}, &Endpoint::local_id);
    return found;
  }
  const Endpoint* find_only(const std::function<bool(const Entry&)>& f) const {
    const Found found = find_all(f);
    EXPECT_LE(found.size(), 1u);
    return found.empty() ? nullptr : found.front();
  }
  const Endpoint* by_request(CommId id, Guid guid) const {
    return find_only([&](const Entry& entry) {
      return entry.lookup_by_request == Lookup::kFound && entry.peer->id == id &&
             entry.peer->guid == guid;
    });
  }
  // Returns the endpoint with the earliest deadline, if that deadline has come.  If several
  // endpoints have this deadline, returns the one with the lowest id.
  const Endpoint* due(Time now) const {
    const Found found = find_all(
        [&](const Entry& entry) { return entry.endpoint->deadline() <= now && now != kNever; });
    const auto first = std::ranges::min_element(found, {}, &Endpoint::deadline);
    return first == found.end() ? nullptr : *first;
  }

  // ---- Comparisons

  // Removes what follows the first endpoint whose id is `wanted` or greater, because the look-up
  // stops at this endpoint.
  static void cut(Found& found, CommId wanted) {
    const auto last = std::ranges::find_if(
        found, [&](const Endpoint* endpoint) { return endpoint->local_id() >= wanted; });
    if (last != found.end()) found.erase(last + 1, found.end());
  }

  void compare_local(Qpn qpn) {
    const CommId wanted{random_below(2 * kIds)};  // the look-up stops at this id or the next one
    Found visited;
    const bool any = tables_.any_with_local_qpn(qpn, [&](Endpoint& endpoint) {
      visited.push_back(&endpoint);
      return endpoint.local_id() >= wanted;
    });
    Found expected = find_all([&](const Entry& entry) { return entry.qpn == qpn; });
    cut(expected, wanted);
    ASSERT_EQ(visited, expected) << "our QP " << qpn.value;
    ASSERT_EQ(any, !expected.empty() && expected.back()->local_id() >= wanted);
  }

  void compare_remote(Qpn qpn, Guid guid) {
    Found visited;
    tables_.each_with_remote_qpn(qpn, guid,
                                 [&](Endpoint& endpoint) { visited.push_back(&endpoint); });
    const Found expected = find_all([&](const Entry& entry) {
      return entry.peer && entry.peer->qpn == qpn && entry.peer->guid == guid;
    });
    ASSERT_EQ(visited, expected) << "QP " << qpn.value << " of " << guid.value;
    if (visited.size() > 1) ++counts_.shared_qpns;
  }

  void compare_peer_to_peer(ServiceId service, const mad::Address& from) {
    const CommId wanted{random_below(2 * kIds)};  // the look-up stops at this id or the next one
    Found visited;
    const Endpoint* found = tables_.find_peer(service, from, [&](Endpoint& endpoint) {
      visited.push_back(&endpoint);
      return endpoint.local_id() >= wanted;
    });
    Found expected = find_all([&](const Entry& entry) {
      return entry.waits_for_req({service, from.remote(), from.local()});
    });
    cut(expected, wanted);
    ASSERT_EQ(visited, expected) << "service " << service.value;
    const bool any = !expected.empty() && expected.back()->local_id() >= wanted;
    ASSERT_EQ(found, any ? expected.back() : nullptr);
  }

  void compare_deadlines() {
    Time first = kNever;
    for (const Entry& entry : entries_) first = std::min(first, entry.endpoint->deadline());
    ASSERT_EQ(tables_.deadline(), first);
    ASSERT_EQ(tables_.due(now_), due(now_));
    if (first == kNever) return;
    ASSERT_EQ(tables_.due(first - 1ns), nullptr);
    ASSERT_EQ(tables_.due(first), due(first));
    if (find_all([&](const Entry& entry) { return entry.endpoint->deadline() == first; }).size() >
        1) {
      ++counts_.due_together;
    }
  }

  CaseCounts& counts_;
  Random random_;
  Config config_{.ca_guid = {1}};  // a peer with the GUID 1 is on this host
  Counters counters_;
  Outbox outbox_{counters_};
  RejCache rej_cache_;
  RoundTrips round_trips_;
  Services services_{config_, random_, counters_, outbox_, rej_cache_, round_trips_};
  Time now_{1s};
  std::vector<Entry> entries_;
  Tables tables_;
};

TEST(TablesModel, EveryLookUpAgreesWithALinearSearch) {
  CaseCounts counts;
  const auto seeds = sim::seeds(50);
  for (const std::uint64_t seed : seeds) {
    SCOPED_TRACE(testing::Message() << "replay with VB_SEED=" << seed);
    TablesRun run(seed, counts);
    for (int step = 0; step < 300; ++step) {
      SCOPED_TRACE(testing::Message() << "step " << step);
      run.step();
      run.compare();
      if (testing::Test::HasFailure()) return;
    }
  }
  if (seeds.size() < 10) return;
  EXPECT_GT(counts.shared_qpns, 0);
  EXPECT_GT(counts.hidden_requests, 0);
  EXPECT_GT(counts.revealed_requests, 0);
  EXPECT_GT(counts.stayed_active, 0);
  EXPECT_GT(counts.turned_passive, 0);
  EXPECT_GT(counts.stale, 0);
  EXPECT_GT(counts.due_together, 0);
}

}  // namespace
}  // namespace verbena::cm
