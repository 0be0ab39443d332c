#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/handle.h"
#include "base/random.h"
#include "base/strong.h"
#include "base/time.h"
#include "cm/answer_cache.h"
#include "cm/comm_ids.h"
#include "cm/counters.h"
#include "cm/outbox.h"
#include "cm/retry.h"
#include "cm/round_trips.h"
#include "cm/types.h"
#include "mad/dispatcher.h"
#include "mad/mad.h"
#include "wire/cm.h"

namespace verbena::cm {

// Identifies a peer's SIDR_REQ: by the addresses of the peer, the request id, the transaction id
// and the service.  (Only InfiniBand has LIDs, and only packets with a GRH have GIDs.)
struct SidrRequestKey {
  Gid remote{};
  Lid remote_lid{};  // a request without a GRH has no GID
  std::uint32_t interface {};
  CommId request_id{};
  std::uint64_t transaction_id{};
  ServiceId service_id{};
  friend auto operator<=>(const SidrRequestKey&, const SidrRequestKey&) = default;
};

// Holds one SIDR exchange: on the active side our SIDR_REQ, on the passive side a peer's SIDR_REQ.
class Resolution {
 public:
  std::uint64_t cookie = 0;
  mad::Address address{};
  const bool active;
  // Active side:
  CommId id{};
  mad::Mad request{};
  Retry retry{};
  Time deadline = kNever;  // equals the entry in Sidr::deadlines_
  // Passive side:
  SidrRequestKey key{};
};

// Resolves service ids to datagram queue pairs: SIDR_REQ and SIDR_REP (vol1 12.11).
//
//   consumer                        Sidr                              peer
//   resolve() ------------------> [Resolution] --- SIDR_REQ --------->
//      SidrRepReceived <---------              <-- SIDR_REP ----------
//
//      SidrReqReceived <--------- [Resolution] <-- SIDR_REQ ----------
//   answer() ------------------->              --- SIDR_REP --------->
//
// There is nothing to establish and nothing to disconnect: the answer ends a resolution, and its
// handle is stale from then on.  The answer is stored for kAnswerLifetime: if it gets lost, the
// peer repeats its request and gets the same answer again.  A repeated request that the consumer
// has not answered yet gets no reply, because SIDR has no MRA.
class Sidr {
 public:
  // Stored answers expire after this time.  A SIDR_REQ does not name the interval after which it is
  // repeated.  Linux waits about 4 s.
  static constexpr Duration kAnswerLifetime = std::chrono::seconds(20);

  Sidr(const Config& config, Random& random, Counters& counters, Outbox& outbox,
       RoundTrips& round_trips, mad::TransactionIds& transaction_ids, CommIds& comm_ids)
      : random_(random),
        counters_(counters),
        outbox_(outbox),
        round_trips_(round_trips),
        transaction_ids_(transaction_ids),
        comm_ids_(comm_ids),
        slots_(config.resolutions_max) {}

  // ---- Consumer.  kBadHandle: the resolution is over or never existed.

  // kNoResources: resolutions_max resolutions exist.
  Result<ResolutionHandle> resolve(const ResolveRequest& request, std::uint64_t cookie, Time now);
  Result<void> set_cookie(ResolutionHandle handle, std::uint64_t cookie);
  // kBadState: the handle belongs to the active side.
  Result<void> answer(ResolutionHandle handle, const ResolveAnswer& answer, Time now);
  // Forgets the request as if it had been lost: its repeat counts as a new request.  kBadState: the
  // handle belongs to the active side.
  Result<void> drop(ResolutionHandle handle);
  // Ends the resolution.  The active side stops its repeats; the passive side answers with
  // kRejected.
  Result<void> destroy(ResolutionHandle handle, Time now);

  // ---- Wire and time
  // `listener` is the cookie of the listener for this service id, if there is one.
  void receive(const mad::Delivered& mad, const wire::cm::SidrReq& req,
               std::optional<std::uint64_t> listener, Time now);
  void receive(const mad::Delivered& mad, const wire::cm::SidrRep& rep, Time now);
  // Answers a request of another class version.
  void refuse_version(const mad::Delivered& mad, const wire::cm::SidrReq& req);
  void on_timer(Time now);
  Time deadline() const { return deadlines_.empty() ? kNever : deadlines_.begin()->first; }

  // ---- Queries
  std::size_t size() const { return slots_.size(); }
  struct Row {
    bool active = false;
    std::uint32_t tries = 0;
  };
  std::optional<Row> row(ResolutionHandle handle) const;

 private:
  void arm(ResolutionHandle handle, Resolution& resolution);
  void end(ResolutionHandle handle, Resolution& resolution);
  void reply(const mad::Address& to, std::uint64_t transaction_id, const wire::cm::SidrRep& rep);
  Result<Resolution*> find(ResolutionHandle handle) const;
  Result<Resolution*> find_passive(ResolutionHandle handle) const;

  Random& random_;
  Counters& counters_;
  Outbox& outbox_;
  RoundTrips& round_trips_;
  mad::TransactionIds& transaction_ids_;
  CommIds& comm_ids_;
  Slots<Resolution> slots_;
  std::map<CommId, ResolutionHandle> active_;
  std::map<SidrRequestKey, ResolutionHandle> passive_;
  std::set<std::pair<Time, ResolutionHandle>> deadlines_;
  AnswerCache<SidrRequestKey> answers_;
};

}  // namespace verbena::cm
