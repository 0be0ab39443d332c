#include "sa/path_cache.h"

#include <algorithm>

namespace verbena::sa {

using wire::PathRecord;

// ---- queries ----------------------------------------------------------------------------------

Result<void> PathCache::check(const PathQuery& query) const {
  if (query.numb_path == 0 || query.numb_path > kPathsPerQueryMax) {
    return fail(Errc::kInvalidArgument, "the number of paths must be 1 to 127");
  }
  if (query.destination == Gid{} && !query.destination_lid) {
    return fail(Errc::kInvalidArgument, "a path needs a destination");
  }
  if (port_.is_ready() && !port_.has_gid(query.source)) {
    return fail(Errc::kAddressNotFound, "the source of a path is not a GID of the port");
  }
  return {};
}

Result<PathCache::Lookup> PathCache::find(const PathQuery& query, std::uint64_t cookie,
                                          Duration give_up_after, Time now) {
  VB_TRY_VOID(check(query));
  auto found = entries_.find(query);
  if (found != entries_.end() && !found->second.is_pending()) {
    Entry& entry = found->second;
    if (is_fresh(entry, now)) {
      mark_as_used(found);
      ++(entry.negative_answer ? counters_.negative_hits : counters_.hits);
      if (entry.negative_answer) return std::unexpected(*entry.negative_answer);
      return Lookup(choose(query, entry.paths, entry));
    }
    ++counters_.expired;
    erase(found);
    found = entries_.end();
  }
  if (found == entries_.end()) {
    if (const auto known = find_in_general_entry(query, now)) {
      ++counters_.hits;
      return Lookup(*known);
    }
  }
  if (waiters_.size() + uncached_.size() >= config_.waiters_max) {
    ++counters_.limit_waiters;
    return fail(Errc::kNoResources, "too many queries wait for paths");
  }
  const Time until = now + give_up_after;
  if (found == entries_.end()) {
    found = VB_TRY(add(query));
    if (!ask(found, until, now)) {
      erase(found);
      return fail(Errc::kNoResources, "too many queries wait for the subnet manager");
    }
    ++counters_.misses;
  } else {
    ++counters_.shared;
    if (found->second.query_id) queries_.extend(*found->second.query_id, until);
  }
  return Lookup(add_waiter(found, cookie, until, now));
}

bool PathCache::is_fresh(const Entry& entry, Time now) const {
  const Duration answer_age = now - entry.asked_at;
  return entry.negative_answer ? answer_age < config_.negative_age
                               : !entry.paths.empty() && answer_age < age();
}

KnownPaths PathCache::choose(const PathQuery& query, std::span<const PathRecord> paths,
                             Entry& entry) {
  const std::size_t choice = entry.next_choice++ % paths.size();
  const std::size_t count = std::min<std::size_t>(query.numb_path, paths.size());
  return {.path = paths[choice],
          .all = paths.subspan(std::min(choice, paths.size() - count), count)};
}

// Answers a query from the entry that names only source and destination, if at least one of its
// paths has all values that the query names.  A query for several paths needs the paths of a table.
std::optional<KnownPaths> PathCache::find_in_general_entry(const PathQuery& query, Time now) {
  if (!is_answered_by_table(query)) return std::nullopt;
  const auto found = entries_.find({.destination = query.destination, .source = query.source});
  if (found == entries_.end() || found->second.is_pending() || found->second.negative_answer ||
      !is_fresh(found->second, now)) {
    return std::nullopt;
  }
  if (query.numb_path != 1 && !found->second.is_from_table) return std::nullopt;
  matching_paths_.clear();
  for (const PathRecord& path : found->second.paths) {
    if (satisfies(path, query)) matching_paths_.push_back(path);
  }
  if (matching_paths_.empty()) return std::nullopt;
  mark_as_used(found);
  return choose(query, matching_paths_, found->second);
}

void PathCache::mark_as_used(Entries::iterator found) {
  Entry& entry = found->second;
  if (entry.use_position) {
    by_use_.splice(by_use_.begin(), by_use_, *entry.use_position);
  } else {
    by_use_.push_front(&found->first);
  }
  entry.use_position = by_use_.begin();
}

Result<PathCache::Entries::iterator> PathCache::add(const PathQuery& query) {
  if (entries_.size() >= config_.entries_max) {
    if (by_use_.empty()) {
      ++counters_.limit_entries;
      return fail(Errc::kNoResources, "the path cache is full");
    }
    ++counters_.evicted;
    erase(entries_.find(*by_use_.back()));
  }
  return entries_.try_emplace(query).first;
}

// REQUIRES: the entry has no waiters.
PathCache::Entries::iterator PathCache::erase(Entries::iterator found) {
  if (found->second.use_position) by_use_.erase(*found->second.use_position);
  return entries_.erase(found);
}

bool PathCache::ask(Entries::iterator found, Time until, Time now) {
  Entry& entry = found->second;
  entry.may_be_stale = false;
  if ((table_ == Table::kDue || table_ == Table::kLoading) && is_answered_by_table(found->first)) {
    entry.waits_for_table = true;
    return true;
  }
  Query query = query_of(found->first);
  query.give_up_after = until - now;
  const auto query_id = queries_.ask(query, QueryOwner::kPaths, 0, now);
  if (!query_id) return false;
  entry.query_id = *query_id;
  by_query_id_.emplace(*query_id, &found->first);
  return true;
}

// ---- waiters ------------------------------------------------------------------------------------

PathTicket PathCache::add_waiter(Entries::iterator found, std::uint64_t cookie, Time until,
                                 Time now) {
  const PathTicket ticket{++last_ticket_};
  waiters_.emplace(
      ticket, Waiter{.query = &found->first, .cookie = cookie, .asked_at = now, .until = until});
  waiters_due_.emplace(until, ticket);
  found->second.waiters.push_back(ticket);
  return ticket;
}

// Removes a waiter.  If the entry has no other waiter, cancels its query and erases the entry.
void PathCache::remove_waiter(PathTicket ticket, Time now) {
  const Waiter waiter = waiters_.at(ticket);
  waiters_.erase(ticket);
  waiters_due_.erase({waiter.until, ticket});
  const auto found = entries_.find(*waiter.query);
  Entry& entry = found->second;
  std::erase(entry.waiters, ticket);
  if (!entry.waiters.empty()) return;
  if (entry.query_id) {
    by_query_id_.erase(*entry.query_id);
    queries_.cancel(*entry.query_id, now);
  }
  erase(found);
}

bool PathCache::cancel(PathTicket ticket, Time now) {
  if (const auto uncached = uncached_.extract(ticket)) {
    queries_.cancel(uncached.mapped().query_id, now);
    return true;
  }
  if (!waiters_.contains(ticket)) {
    const auto dropped =
        std::erase_if(events_, [&](const PathEvent& event) { return event.ticket == ticket; });
    return dropped != 0;
  }
  remove_waiter(ticket, now);
  return true;
}

void PathCache::answer_waiters(Entry& entry, const std::vector<PathRecord>& paths,
                               std::optional<Error> error, std::uint32_t tries, Time now) {
  for (const PathTicket ticket : std::exchange(entry.waiters, {})) {
    const auto waiter = waiters_.extract(ticket);
    waiters_due_.erase({waiter.mapped().until, ticket});
    PathEvent event{.ticket = ticket,
                    .cookie = waiter.mapped().cookie,
                    .paths = paths,
                    .error = error,
                    .waited = now - waiter.mapped().asked_at,
                    .tries = tries};
    if (!paths.empty()) {
      const auto choice = static_cast<std::ptrdiff_t>(entry.next_choice++ % paths.size());
      std::ranges::rotate(event.paths, event.paths.begin() + choice);
      const std::size_t count = waiter.mapped().query->numb_path;
      if (event.paths.size() > count) event.paths.resize(count);
    }
    events_.push_back(std::move(event));
  }
}

std::optional<PathEvent> PathCache::next_event() {
  if (events_.empty()) return std::nullopt;
  PathEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

// ---- answers and time ---------------------------------------------------------------------------

void PathCache::receive(const QueryResult& result, Time now) {
  if (table_query_ == result.id) return receive_table(result, now);
  if (result.cookie != 0) return receive_uncached(result, now);
  const auto pending = by_query_id_.find(result.id);
  if (pending == by_query_id_.end()) return;
  const auto found = entries_.find(*pending->second);
  by_query_id_.erase(pending);
  found->second.query_id.reset();
  receive_path(found, result, now);
}

void PathCache::receive_path(Entries::iterator found, const QueryResult& result, Time now) {
  Entry& entry = found->second;
  const bool may_be_stale = std::exchange(entry.may_be_stale, false);
  if (may_be_stale && result.outcome != QueryResult::Outcome::kTimedOut) {
    ++counters_.stale;
    Time until = now;
    for (const PathTicket ticket : entry.waiters) {
      until = std::max(until, waiters_.at(ticket).until);
    }
    if (until > now && entry.stale_retries < kStaleRetriesMax) {
      ++entry.stale_retries;
      if (ask(found, until, now)) return;
    }
  }
  auto paths = paths_in(found->first, result);
  entry.asked_at = result.first_sent;
  if (paths) {
    answer_waiters(entry, *paths, std::nullopt, result.tries, now);
    entry.paths = *std::move(paths);
  } else {
    answer_waiters(entry, {}, paths.error(), result.tries, now);
    if (paths.error().code == Errc::kUnreachable) entry.negative_answer = paths.error();
  }
  if (may_be_stale || (entry.paths.empty() && !entry.negative_answer)) {
    erase(found);
    return;
  }
  entry.stale_retries = 0;
  mark_as_used(found);
}

Result<std::vector<PathRecord>> PathCache::paths_in(const PathQuery& query,
                                                    const QueryResult& result) {
  if (result.outcome != QueryResult::Outcome::kAnswered) return std::unexpected(result.error());
  auto paths = result.records<PathRecord>(kTableRecordsMax);
  if (!paths) {
    ++counters_.malformed;
    return paths;
  }
  if (paths->empty()) {
    return fail(Errc::kUnreachable, "the subnet manager has no such record");
  }
  std::erase_if(*paths, [&](const PathRecord& path) {
    return path.source_gid != query.source || path.destination_lid == Lid{} ||
           (query.destination != Gid{} && path.destination_gid != query.destination);
  });
  if (paths->empty()) {
    ++counters_.malformed;
    return fail(Errc::kMalformed, "the subnet manager's answer does not match the query");
  }
  if (paths->size() > query.numb_path) paths->resize(query.numb_path);
  return paths;
}

void PathCache::on_timer(Time now) {
  while (!waiters_due_.empty() && waiters_due_.begin()->first <= now) {
    const PathTicket ticket = waiters_due_.begin()->second;
    const Waiter& waiter = waiters_.at(ticket);
    const Entry& entry = entries_.at(*waiter.query);
    const std::uint32_t tries = entry.query_id ? queries_.tries(*entry.query_id) : 0;
    const QueryResult result{.outcome = QueryResult::Outcome::kTimedOut, .tries = tries};
    events_.push_back({.ticket = ticket,
                       .cookie = waiter.cookie,
                       .error = result.error(),
                       .waited = now - waiter.asked_at,
                       .tries = tries});
    remove_waiter(ticket, now);
  }
  if (table_ == Table::kDue && table_due_ <= now) load_table(now);
}

Time PathCache::deadline() const {
  Time next = table_ == Table::kDue ? table_due_ : kNever;
  if (!waiters_due_.empty()) next = std::min(next, waiters_due_.begin()->first);
  return next;
}

void PathCache::visit(const std::function<void(const View&)>& f, Time now) const {
  for (const auto& [query, entry] : entries_) {
    f({.query = query,
       .paths = entry.paths,
       .negative_answer = entry.negative_answer,
       .age = entry.is_pending() ? Duration{} : now - entry.asked_at,
       .is_pending = entry.is_pending(),
       .waiters = entry.waiters.size()});
  }
}

}  // namespace verbena::sa
