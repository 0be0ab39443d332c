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

// What tells a peer's questions apart: its address, its request id, the transaction and the
// service. (On RoCE there is no LID to tell hosts apart by.)
struct SidrQuestion {
  Gid remote{};
  std::uint32_t interface {};
  CommId request_id{};
  std::uint64_t transaction_id{};
  ServiceId service_id{};
  friend auto operator<=>(const SidrQuestion&, const SidrQuestion&) = default;
};

// One question, ours or a peer's.
class Resolution {
 public:
  std::uint64_t cookie = 0;
  mad::Address address{};
  const bool asks;
  // One that asks:
  CommId id{};
  mad::Mad request{};
  Retry retry{};
  Time deadline = kNever;  // as Sidr has it in its set
  // One that is asked:
  SidrQuestion question{};
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
// There is nothing to establish and nothing to end: a resolution is over when it is answered, and
// its handle is stale then.  A lost answer is repeated when the question is, for kRemembered.  A
// question that its consumer has not answered yet gets nothing: SIDR has no MRA.
class Sidr {
 public:
  // Peers repeat after 4 s or so; SIDR_REQ does not say.
  static constexpr Duration kRemembered = std::chrono::seconds(20);

  Sidr(const Config& config, Random& random, Counters& counters, Outbox& outbox,
       RoundTrips& round_trips, mad::TransactionIds& transaction_ids, CommIds& comm_ids)
      : random_(random),
        counters_(counters),
        outbox_(outbox),
        round_trips_(round_trips),
        transaction_ids_(transaction_ids),
        comm_ids_(comm_ids),
        slots_(config.resolutions_max) {}

  // ---- Consumer.  kBadHandle: over, or never was.
  // kNoResources: resolutions_max.
  Result<ResolutionHandle> resolve(const ResolveRequest& request, std::uint64_t cookie, Time now);
  Result<void> set_cookie(ResolutionHandle handle, std::uint64_t cookie);
  // kBadState: this one asks.
  Result<void> answer(ResolutionHandle handle, const ResolveAnswer& answer, Time now);
  // The question was never heard: its repeat is a new one.  kBadState: this one asks.
  Result<void> drop(ResolutionHandle handle);
  // One that asks stops; one that is asked says kRejected.
  Result<void> destroy(ResolutionHandle handle, Time now);

  // ---- Wire and time
  // `listener`: the cookie of whoever listens for this service id.
  void receive(const mad::Delivered& mad, const wire::cm::SidrReq& req,
               std::optional<std::uint64_t> listener, Time now);
  void receive(const mad::Delivered& mad, const wire::cm::SidrRep& rep, Time now);
  // A class version that is not ours.
  void refuse_version(const mad::Delivered& mad, const wire::cm::SidrReq& req);
  void on_timer(Time now);
  Time deadline() const { return deadlines_.empty() ? kNever : deadlines_.begin()->first; }

  // ---- Questions
  std::size_t size() const { return slots_.size(); }
  struct Row {
    bool asks = false;
    std::uint32_t tries = 0;
  };
  std::optional<Row> row(ResolutionHandle handle) const;

 private:
  void arm(ResolutionHandle handle, Resolution& resolution);
  void end(ResolutionHandle handle, Resolution& resolution);
  void reply(const mad::Address& to, std::uint64_t transaction_id, const wire::cm::SidrRep& rep);
  Result<Resolution*> find(ResolutionHandle handle) const;
  Result<Resolution*> find_asked(ResolutionHandle handle) const;

  Random& random_;
  Counters& counters_;
  Outbox& outbox_;
  RoundTrips& round_trips_;
  mad::TransactionIds& transaction_ids_;
  CommIds& comm_ids_;
  Slots<Resolution> slots_;
  std::map<CommId, ResolutionHandle> asking_;
  std::map<SidrQuestion, ResolutionHandle> asked_;
  std::set<std::pair<Time, ResolutionHandle>> deadlines_;
  AnswerCache<SidrQuestion> answers_;
};

}  // namespace verbena::cm
