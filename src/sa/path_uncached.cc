#include "sa/path_cache.h"

// Asks the SA for each connection, as Linux does (mode kUncached).
namespace verbena::sa {

// The cookie of a query that bypasses the cache is its ticket.  Queries of the cache have cookie 0.
Result<PathCache::Lookup> PathCache::find_for_connection(const PathQuery& query,
                                                         std::uint64_t cookie,
                                                         Duration give_up_after, Time now) {
  if (config_.mode != Mode::kUncached) return find(query, cookie, give_up_after, now);
  VB_TRY_VOID(check(query));
  if (waiters_.size() + uncached_.size() >= config_.waiters_max) {
    ++counters_.limit_waiters;
    return fail(Errc::kNoResources, "too many queries wait for paths");
  }
  Query request = query_of(query);
  request.give_up_after = give_up_after;
  const PathTicket ticket{++last_ticket_};
  const QueryId query_id = VB_TRY(queries_.ask(request, QueryOwner::kPaths, ticket.value, now));
  ++counters_.uncached;
  uncached_.emplace(
      ticket, Uncached{.query = query, .query_id = query_id, .cookie = cookie, .asked_at = now});
  return Lookup(ticket);
}

void PathCache::receive_uncached(const QueryResult& result, Time now) {
  const auto uncached = uncached_.extract(PathTicket{result.cookie});
  if (!uncached) return;
  PathEvent event{.ticket = uncached.key(),
                  .cookie = uncached.mapped().cookie,
                  .waited = now - uncached.mapped().asked_at,
                  .tries = result.tries};
  if (auto paths = paths_in(uncached.mapped().query, result)) {
    event.paths = *std::move(paths);
  } else {
    event.error = paths.error();
  }
  events_.push_back(std::move(event));
}

}  // namespace verbena::sa
