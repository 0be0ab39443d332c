#include <algorithm>

#include "sa/path_cache.h"

// Loads all paths from the first GID of the port by one query, in mode kTable.
namespace verbena::sa {

using wire::PathRecord;

Duration PathCache::table_delay() {
  const auto bound = static_cast<std::uint64_t>(config_.table_delay_max.count());
  return Duration(static_cast<std::int64_t>(random_.below(bound + 1)));
}

// Schedules a load of the table.  Cancels a pending load, because its answer may be stale.
void PathCache::schedule_table(Time due, Time now) {
  if (table_query_) queries_.cancel(*table_query_, now);
  table_query_.reset();
  table_ = Table::kDue;
  table_due_ = due;
}

void PathCache::load_table(Time now) {
  const PathRecord record{
      .source_gid = port_.gids.front(), .reversible = true, .numb_path = config_.table_paths};
  using TableMask = PathRecord::Mask;
  const auto query_id = queries_.ask(
      Query::of(wire::Method::kGetTable, wire::SaAttribute::kPathRecord,
                TableMask::kSourceGid | TableMask::kReversible | TableMask::kNumbPath, record),
      QueryOwner::kPaths, 0, now);
  table_may_be_stale_ = false;
  changed_gids_.clear();
  if (!query_id) return end_table(Table::kNone, now);
  table_query_ = *query_id;
  table_ = Table::kLoading;
}

void PathCache::receive_table(const QueryResult& result, Time now) {
  table_query_.reset();
  if (table_may_be_stale_) {
    ++counters_.stale;
    return end_table(Table::kNone, now);
  }
  const auto paths = result.outcome == QueryResult::Outcome::kAnswered
                         ? result.records<PathRecord>(kTableRecordsMax)
                         : Result<std::vector<PathRecord>>(std::unexpected(result.error()));
  if (!paths) {
    ++counters_.table_failures;
    return end_table(Table::kNone, now);
  }
  ++counters_.tables;
  store_table(*paths, result.first_sent, now);
  end_table(Table::kLoaded, now);
}

void PathCache::store_table(const std::vector<PathRecord>& paths, Time asked_at, Time now) {
  const Gid& source = port_.gids.front();
  std::map<Gid, std::vector<PathRecord>> by_destination;
  for (const PathRecord& path : paths) {
    if (path.source_gid != source || path.destination_lid == Lid{} ||
        changed_gids_.contains(path.destination_gid)) {
      continue;
    }
    auto& records = by_destination[path.destination_gid];
    if (records.size() < kPathsPerQueryMax) records.push_back(path);
  }
  for (auto& [destination, records] : by_destination) {
    const PathQuery query{.destination = destination, .source = source};
    auto found = entries_.find(query);
    if (found == entries_.end()) {
      if (entries_.size() >= config_.entries_max) {
        ++counters_.limit_table;
        continue;
      }
      found = entries_.try_emplace(query).first;
    }
    Entry& entry = found->second;
    if (entry.query_id) continue;  // the answer to this query will fill the entry
    counters_.table_paths += records.size();
    entry.waits_for_table = false;
    entry.negative_answer.reset();
    entry.asked_at = asked_at;
    entry.paths = std::move(records);
    entry.is_from_table = true;
    answer_waiters(entry, entry.paths, std::nullopt, 1, now);
    mark_as_used(found);
  }
}

// Answers the queries that have waited for the table, or asks the SA for each of them.
void PathCache::end_table(Table state, Time now) {
  table_ = state;
  for (auto found = entries_.begin(); found != entries_.end();) {
    Entry& entry = found->second;
    if (!std::exchange(entry.waits_for_table, false)) {
      ++found;
      continue;
    }
    if (const auto known_paths = find_in_general_entry(found->first, now)) {
      answer_waiters(entry, {known_paths->all.begin(), known_paths->all.end()}, std::nullopt, 1,
                     now);
      found = erase(found);
      continue;
    }
    Time until = now;
    for (const PathTicket ticket : entry.waiters) {
      until = std::max(until, waiters_.at(ticket).until);
    }
    if (entry.waiters.empty()) until = now + Query::kGiveUpAfterDefault;
    if (ask(found, until, now)) {
      ++found;
      continue;
    }
    answer_waiters(entry, {},
                   Error{.code = Errc::kNoResources,
                         .context = "too many queries wait for the subnet manager"},
                   0, now);
    found = erase(found);
  }
}

}  // namespace verbena::sa
