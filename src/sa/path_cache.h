#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "base/counter_names.h"
#include "base/error.h"
#include "base/random.h"
#include "base/strong.h"
#include "base/time.h"
#include "sa/path_counters.h"
#include "sa/path_query.h"
#include "sa/queries.h"
#include "sa/types.h"
#include "wire/sa.h"

namespace verbena::sa {

// Identifies one call of find() or find_for_connection() that waits for the answer of the SA.
using PathTicket = Strong<struct PathTicketTag, std::uint64_t>;

// Holds the paths that answer a query at once, at most as many as the query asks for.  The span is
// valid until the next call.
struct KnownPaths {
  wire::PathRecord path{};  // the path to use, one of `all`; the next call returns the next path
  std::span<const wire::PathRecord> all{};
};

// Answers a call of find() or find_for_connection() that returned a ticket.
struct PathEvent {
  PathTicket ticket{};
  std::uint64_t cookie = 0;
  // The first is the path to use.  There are at most as many as the query asks for.
  std::vector<wire::PathRecord> paths{};
  std::optional<Error> error{};  // the reason if there are no paths
  Duration waited{};
  std::uint32_t tries = 0;
};

// Stores the SA's answers to path queries, so that the SA is asked once for each path and not for
// each connection (vol1 15.2.5.16).
//
//   find() --> KnownPaths, at once
//          --> PathTicket: a PathEvent follows; equal queries are sent once
//          --> error, at once: the SA answered within negative_age that there is no path
//
// A path is forgotten when it is known to be wrong, when it is older than age(), or when the cache
// is full and the path is the least recently used.  After a change during a query, its answer may
// be stale, so the query is sent again, at most kStaleRetriesMax times.  After that the waiters get
// the answer, but it is not stored.  Therefore a long series of changes does not block the waiters.
//
// Mode kTable loads all paths from the first GID of the port by one query.  Until the table is
// loaded, queries that a table can answer wait for it.
//
// Mode kUncached exists for comparison with Linux, whose RDMA CM asks the SA for each connection.
// Queries of find_for_connection() then share no query, and their answers are not stored.
//
// Invariants:
//  * Each ticket gets one PathEvent, unless it is cancelled.
//  * find() never returns a path for which the SA was asked longer ago than age().
class PathCache {
 public:
  enum class Mode : std::uint8_t { kGet, kTable, kUncached };
  struct Config {
    Mode mode = Mode::kGet;
    std::size_t entries_max = 16384;
    std::size_t waiters_max = 65536;
    Duration age = std::chrono::seconds(60);  // limits the age while the SA does not report changes
    // Limits the age while the SA reports changes, because a report may get lost.
    Duration age_with_notices = std::chrono::minutes(10);
    Duration negative_age = std::chrono::seconds(5);
    // A table is loaded after a random time up to this, so that not all hosts ask at once.
    Duration table_delay_max = std::chrono::milliseconds(500);
    std::uint8_t table_paths = 8;  // the number of paths to request for each destination
    friend bool operator==(const Config&, const Config&) = default;
  };
  static constexpr std::uint8_t kStaleRetriesMax = 2;
  // Paths are forgotten instead of refreshed if at least this many queries wait.
  static constexpr std::size_t kRefreshWaitingMax = 256;
  static constexpr std::size_t kTableRecordsMax = std::size_t{1} << 20;
  // A table is not used if more GIDs than this change while it is loading.
  static constexpr std::size_t kChangedGidsMax = 1024;

  PathCache(const Config& config, Queries& queries, Random random)
      : config_(config),
        queries_(queries),
        random_(random),
        table_(config.mode == Mode::kTable ? Table::kDue : Table::kNone) {}

  using Lookup = std::variant<KnownPaths, PathTicket>;
  // Returns known paths, or a ticket for a PathEvent.  Fails with kInvalidArgument: the query is
  // invalid; kAddressNotFound: the source is not a GID of the port; kUnreachable: the SA
  // answered within negative_age that there is no such path; kNoResources: entries_max, waiters_max
  // or Queries::kWaitingMax is reached.
  Result<Lookup> find(const PathQuery& query, std::uint64_t cookie, Duration give_up_after,
                      Time now);
  // Finds a path for a connection, with the errors of find().  Mode kUncached asks the SA each
  // time.  In other modes the function works as find().
  Result<Lookup> find_for_connection(const PathQuery& query, std::uint64_t cookie,
                                     Duration give_up_after, Time now);
  // Forgets a waiter, and cancels its query if no other waiter shares it.  Returns false if
  // next_event() has returned the answer already.
  bool cancel(PathTicket ticket, Time now);
  std::optional<PathEvent> next_event();

  // Forgets all paths.
  void flush(Time now);

  // Reports changes of the port.  REQUIRES: Queries::set_port() was called before.
  void set_port(const PortState& state, const PortChange& change, Time now);
  void reregister(Time now);
  // These report that a GID has appeared in the subnet, or has disappeared.
  void gid_in_service(const Gid& gid, Time now);
  void gid_out_of_service(const Gid& gid, Time now);
  // Reports that the SA has changed paths, but not which.
  void paths_changed(Time now) { drop_all(&PathCounters::repathed, true, now); }
  // Sets whether the SA reports changes.
  void set_notices(bool has_notices) { has_notices_ = has_notices; }
  Duration age() const { return has_notices_ ? config_.age_with_notices : config_.age; }

  void receive(const QueryResult& result, Time now);
  void on_timer(Time now);
  Time deadline() const;

  // Describes an entry for display.
  struct View {
    const PathQuery& query;
    std::span<const wire::PathRecord> paths;
    std::optional<Error> negative_answer;
    Duration age;  // the time since the SA was asked; 0 if a query is pending
    bool is_pending;
    std::size_t waiters;
  };
  void visit(const std::function<void(const View&)>& f, Time now) const;
  std::size_t size() const { return entries_.size(); }
  const PathCounters& counters() const { return counters_; }

 private:
  struct Entry {
    std::vector<wire::PathRecord> paths{};
    std::optional<Error> negative_answer{};
    Time asked_at{};  // when the SA was asked; its answer cannot be older
    std::size_t next_choice = 0;
    bool is_from_table = false;  // the entry has all paths of the table, not only one
    std::optional<QueryId> query_id{};
    bool waits_for_table = false;
    bool may_be_stale = false;  // something has changed since the query began
    std::uint8_t stale_retries = 0;
    std::vector<PathTicket> waiters{};
    // Points into by_use_.  It is empty while the entry must not be evicted.
    std::optional<std::list<const PathQuery*>::iterator> use_position{};

    bool is_pending() const { return query_id.has_value() || waits_for_table; }
  };
  using Entries = std::map<PathQuery, Entry>;
  struct Waiter {
    const PathQuery* query = nullptr;  // points to the key in entries_
    std::uint64_t cookie = 0;
    Time asked_at{};
    Time until{};
  };
  // Holds a query of find_for_connection() in mode kUncached.
  struct Uncached {
    PathQuery query{};
    QueryId query_id{};
    std::uint64_t cookie = 0;
    Time asked_at{};
  };
  enum class Table : std::uint8_t { kNone, kDue, kLoading, kLoaded };

  Result<void> check(const PathQuery& query) const;
  bool is_fresh(const Entry& entry, Time now) const;
  void mark_as_used(Entries::iterator found);
  // Chooses the next of the paths, which are those of the entry that match the query.
  static KnownPaths choose(const PathQuery& query, std::span<const wire::PathRecord> paths,
                           Entry& entry);
  std::optional<KnownPaths> find_in_general_entry(const PathQuery& query, Time now);
  Result<Entries::iterator> add(const PathQuery& query);
  Entries::iterator erase(Entries::iterator found);
  PathTicket add_waiter(Entries::iterator found, std::uint64_t cookie, Time until, Time now);
  void remove_waiter(PathTicket ticket, Time now);

  // Asks the SA, or makes the entry wait for the table.  Returns false if too many queries wait.
  bool ask(Entries::iterator found, Time until, Time now);
  Entries::iterator refresh(Entries::iterator found, Time now);
  void receive_uncached(const QueryResult& result, Time now);
  void receive_path(Entries::iterator found, const QueryResult& result, Time now);
  Result<std::vector<wire::PathRecord>> paths_in(const PathQuery& query, const QueryResult& result);
  void answer_waiters(Entry& entry, const std::vector<wire::PathRecord>& paths,
                      std::optional<Error> error, std::uint32_t tries, Time now);

  // These erase entries that are not pending, and count them in `cause`.  The answers to pending
  // queries may be marked as stale.
  void drop_all(std::uint64_t PathCounters::*cause, bool answers_may_be_stale, Time now);
  void drop_if(std::uint64_t PathCounters::*cause, auto&& is_wrong);
  void visit_paths_to(const Gid& gid, auto&& f);
  void record_change_during_load(const Gid& gid);

  Duration table_delay();
  void schedule_table(Time due, Time now);
  void load_table(Time now);
  void receive_table(const QueryResult& result, Time now);
  void store_table(const std::vector<wire::PathRecord>& paths, Time asked_at, Time now);
  void end_table(Table state, Time now);

  Config config_;
  Queries& queries_;
  Random random_;
  PortState port_{};
  bool has_notices_ = false;
  Entries entries_{};
  std::list<const PathQuery*> by_use_{};  // the most recently used first
  std::map<QueryId, const PathQuery*> by_query_id_{};
  std::map<PathTicket, Waiter> waiters_{};
  std::set<std::pair<Time, PathTicket>> waiters_due_{};  // when waiters time out
  std::map<PathTicket, Uncached> uncached_{};
  std::uint64_t last_ticket_ = 0;
  std::deque<PathEvent> events_{};
  std::vector<wire::PathRecord> matching_paths_{};  // the result of find_in_general_entry()

  Table table_;
  Time table_due_ = kNever;
  std::optional<QueryId> table_query_{};
  bool table_may_be_stale_ = false;
  std::set<Gid> changed_gids_{};  // GIDs that changed while the table was loading

  PathCounters counters_{};
};

}  // namespace verbena::sa
