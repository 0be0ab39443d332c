#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/counter_names.h"
#include "base/error.h"
#include "base/random.h"
#include "base/strong.h"
#include "base/time.h"
#include "mad/management_port.h"
#include "sa/types.h"
#include "wire/sa.h"

namespace verbena::sa {

// Identifies a query.  No number is used twice.
using QueryId = Strong<struct QueryIdTag, std::uint64_t>;

// Identifies the part of the client that began a query and gets its result.
enum class QueryOwner : std::uint8_t {
  kPaths,
  kMemberships,
  kSubscriptions,
  kServices,
  kCapabilities
};

struct Query {
  static constexpr Duration kGiveUpAfterDefault = std::chrono::seconds(30);

  wire::Method method{wire::Method::kGet};
  wire::SaAttribute attribute{};
  std::uint64_t component_mask = 0;
  std::array<std::byte, wire::kSaDataBytes> record{};
  Duration give_up_after = kGiveUpAfterDefault;
  std::uint32_t tries_max = ~0u;  // a try that is answered with BUSY does not count

  template <wire::Message Record>
  static Query of(wire::Method method, wire::SaAttribute attribute, std::uint64_t mask,
                  const Record& record) {
    Query query{.method = method, .attribute = attribute, .component_mask = mask};
    wire::encode_to(query.record, record);
    return query;
  }
};

// Describes how a query ended.
struct QueryResult {
  enum class Outcome : std::uint8_t { kAnswered, kRefused, kTimedOut };

  QueryId id{};
  QueryOwner owner{};
  std::uint64_t cookie = 0;
  Outcome outcome{};
  std::uint16_t mad_status = 0;  // kRefused: the status in the answer
  Duration waited{};
  Time first_sent{};  // when the query was first sent to this manager
  std::uint32_t tries = 0;
  std::uint16_t attribute_offset = 0;
  std::vector<std::byte> data{};  // kAnswered: the records
  bool is_table = false;          // `data` has all records of a table

  wire::SaStatus sa_status() const { return wire::sa_status_of(mad_status); }
  // Returns the records of an answer.  Fails with kMalformed if the data does not hold such
  // records, or kNoResources if there are more than `records_max`.
  template <wire::Message Record>
  Result<std::vector<Record>> records(std::size_t records_max) const {
    std::vector<Record> all;
    if (!is_table) {
      all.push_back(VB_TRY(wire::decode<Record>(data)));
      return all;
    }
    const auto table = VB_TRY(wire::SaTable::of<Record>(data, attribute_offset));
    if (table.size() > records_max)
      return fail(Errc::kNoResources, "too many records in a table of the SA");
    all.reserve(table.size());
    for (std::size_t i = 0; i < table.size(); ++i) all.push_back(table.template at<Record>(i));
    return all;
  }
  // Returns the error of a query that was not answered.  The detail is the status of the SA, or the
  // number of tries.
  Error error() const;
};

// Sends queries to the SA, and repeats each until its answer or its deadline comes (vol1 15.4).
//
//   ask() --> [waiting] -- window is not full --> [sent] -- answer or error --> next_result()
//                                                       |  ^
//                                                  BUSY v  | later
//                                                      [paused]
//
// All repeats have the transaction ID of the first try, so the SA can see that they are the same
// query.  Intervals between repeats have jitter.  The first interval is four round trips.  Only a
// query that is answered at its first try measures the round trip.  A timeout can have two causes:
//  * The query or its answer was lost.  This is assumed if the SA has answered another query in
//    time since the last try of this query.  The query is repeated after the interval of a new
//    query.
//  * The SA may be overloaded.  The interval doubles, and later queries begin with an interval of
//    twice the time that this query has waited.
// Intervals grow until the repeats of all queries of the port are kRepeatGap apart.  When few
// queries are left, they are repeated often enough to reach a lossy SA.
//
// The window limits the queries that are sent and not answered.  It is halved if round trips or
// intervals get longer than kRoundTripMax, and grows with each measured round trip that is shorter.
// Therefore a slow SA that thousands of hosts ask at once gets few repeats.
//
// If the manager or a LID of the port changes, all pending queries are sent again.  They get new
// transaction IDs, because the old manager may still answer.  Without a manager, queries wait.
//
// A node whose manager has died refuses MADs for the SA ("unserved").  The query continues, because
// the next manager will answer it.  But an SA refuses requests that it does not know in the same
// way.  Therefore the query ends if it is refused again after an SA has answered another query.
//
// Invariants:
//  * Each query ends exactly once: by next_result(), or by cancel().
//  * At most kOutstandingMax queries are sent or paused.
class Queries {
 public:
  static constexpr std::size_t kOutstandingMax = 16;
  static constexpr std::size_t kWindowMin = 2;
  static constexpr std::size_t kWaitingMax = 65536;
  static constexpr std::uint8_t kRedirectsMax = 4;  // redirections of one query
  static constexpr Duration kFirstIntervalMin = std::chrono::milliseconds(250);
  // The first interval until the SA has answered a query.
  static constexpr Duration kFirstInterval = std::chrono::seconds(1);
  static constexpr Duration kFirstIntervalMax = std::chrono::seconds(8);
  static constexpr Duration kIntervalMax = std::chrono::seconds(16);
  static constexpr Duration kRepeatGap = std::chrono::milliseconds(500);
  // The longest interval if few queries are pending.
  static constexpr Duration kFewQueriesIntervalMax = std::chrono::seconds(1);
  static constexpr Duration kRoundTripMax = std::chrono::seconds(4);

  // REQUIRES: `mads` outlives this object, and joins the segments of RMPP messages for `agent`.
  Queries(mad::ManagementPort& mads, mad::AgentNumber agent, Random random)
      : mads_(mads), agent_(agent), random_(random), next_transaction_(random_.next32()) {}

  // Begins a query; next_result() returns its result.  Fails with kNoResources if kWaitingMax
  // queries wait.
  Result<QueryId> ask(const Query& query, QueryOwner owner, std::uint64_t cookie, Time now);
  // Ends a query without a result.  Returns false if next_result() has returned its result already.
  bool cancel(QueryId id, Time now);
  // Moves the deadline of a query to `until`, if that is later.
  void extend(QueryId id, Time until);
  // Returns how often the query was sent; 0 if it has ended.
  std::uint32_t tries(QueryId id) const;

  // Sets the state of the port, and with it the manager.
  void set_port(PortId port, const PortState& state, Time now);

  // Handles a response, or the report of a timeout.
  void receive(const mad::ManagementPort::Message& message, Time now);
  void on_timer(Time now);
  Time deadline() const;
  std::optional<QueryResult> next_result();
  // Returns true if a query was refused as unserved for the first time since the last call.  Then
  // the caller can send another query, whose answer shows whether there is an SA.
  bool was_refused_since_last_call() { return std::exchange(was_refused_, false); }

  std::size_t outstanding() const { return entries_.size() - waiting_.size(); }
  std::size_t waiting() const { return waiting_.size(); }
  std::size_t window() const { return window_; }

  struct Counters {
    std::uint64_t asked = 0;
    std::uint64_t sent = 0;  // including repeats
    std::uint64_t repeated = 0;
    std::uint64_t answered = 0;
    std::uint64_t refused = 0;
    std::uint64_t timed_out = 0;
    std::uint64_t cancelled = 0;
    std::uint64_t busy = 0;
    std::uint64_t unserved = 0;     // refusals that a node without an SA would send, too
    std::uint64_t unsupported = 0;  // queries that ended because the SA does not support them
    std::uint64_t redirected = 0;
    // Answers that are too short, or have the wrong attribute or method.
    std::uint64_t mismatched = 0;
    std::uint64_t sent_to_new_manager = 0;  // sent again after a change of the manager or a LID
    std::uint64_t limit_waiting = 0;
    friend bool operator==(const Counters&, const Counters&) = default;
  };
  const Counters& counters() const { return counters_; }

 private:
  enum class State : std::uint8_t { kWaiting, kSent, kPaused };
  struct Entry {
    Query query{};
    QueryOwner owner{};
    std::uint64_t cookie = 0;
    State state = State::kWaiting;
    std::uint32_t transaction = 0;
    std::uint32_t tries = 0;
    std::uint32_t busy_answers = 0;
    std::uint8_t redirects = 0;
    // The value of sa_answers_ when the query was last refused as unserved.
    std::optional<std::uint64_t> sa_answers_at_refusal{};
    std::optional<mad::Address> redirected_to{};
    Duration interval{};
    Time asked_at{};
    Time first_sent{};  // when the query was first sent to this manager
    Time last_sent{};
    bool may_measure = false;  // the answer measures the round trip
    Time until{};              // the query times out at this time
    Time resume_at = kNever;   // when a paused query is sent again
  };
  using Entries = std::map<QueryId, Entry>;

  void send_waiting_queries(Time now);
  void send(QueryId id, Entry& entry, Time now);
  void pause(QueryId id, Entry& entry, Time now);
  // Cancels the request that was sent, so that no response or timeout follows.
  void cancel_request(QueryId id, Entry& entry);
  void end(Entries::iterator found, QueryResult result, Time now);
  void expire(Entries::iterator found, Time now);
  void receive_answer(Entries::iterator found, const mad::ManagementPort::Message& message,
                      Time now);
  void receive_unserved(Entries::iterator found, std::uint16_t status, Time now);
  // Sends the query to the address in the answer.  Returns false if the address cannot be used.
  bool redirect(QueryId id, Entry& entry, std::span<const std::byte> data, Time now);
  void measure_round_trip(const Entry& entry, Time now);
  static Duration first_interval_of(Duration round_trip);
  // Returns true if another query was answered in time after the last try of this query, and the
  // interval of this query is at least four round trips.
  bool was_lost(const Entry& entry) const;
  void shrink_window(Time now);
  Duration longer_interval(Duration interval) const;
  Duration with_jitter(Duration interval);
  std::uint32_t new_transaction();

  mad::ManagementPort& mads_;
  mad::AgentNumber agent_;
  Random random_;
  std::uint32_t next_transaction_;
  PortState port_{};
  std::optional<mad::Address> manager_{};
  Duration first_interval_ = kFirstInterval;
  Duration round_trip_{};  // smoothed; 0: not known
  Time last_confirmed_{};  // when an answer last came within the usual round trip
  std::size_t window_ = kOutstandingMax;
  Time window_shrunk_at_{};
  std::uint64_t sa_answers_ = 0;  // number of answers that only an SA can send
  bool was_refused_ = false;  // a query was refused as unserved, see was_refused_since_last_call()
  std::uint64_t last_id_ = 0;
  Entries entries_{};
  std::set<QueryId> waiting_{};  // the oldest first
  std::unordered_map<std::uint32_t, QueryId> by_transaction_{};
  std::set<std::pair<Time, QueryId>> deadlines_{};  // when queries time out
  std::set<std::pair<Time, QueryId>> resumes_{};    // when paused queries are sent again
  std::deque<QueryResult> results_{};
  Counters counters_{};
};

inline constexpr auto kQueryCounterNames = std::to_array<MemberName<Queries::Counters>>({
    {&Queries::Counters::asked, "sa_queries"},
    {&Queries::Counters::sent, "sa_queries_sent"},
    {&Queries::Counters::repeated, "sa_queries_repeated"},
    {&Queries::Counters::answered, "sa_queries_answered"},
    {&Queries::Counters::refused, "sa_queries_refused"},
    {&Queries::Counters::timed_out, "sa_queries_timed_out"},
    {&Queries::Counters::cancelled, "sa_queries_cancelled"},
    {&Queries::Counters::busy, "sa_busy"},
    {&Queries::Counters::unserved, "sa_queries_unserved"},
    {&Queries::Counters::unsupported, "sa_queries_unsupported"},
    {&Queries::Counters::redirected, "sa_redirected"},
    {&Queries::Counters::mismatched, "sa_answers_mismatched"},
    {&Queries::Counters::sent_to_new_manager, "sa_queries_sent_to_new_manager"},
    {&Queries::Counters::limit_waiting, "limit_sa_queries"},
});
static_assert(names_every_counter(kQueryCounterNames));

}  // namespace verbena::sa
