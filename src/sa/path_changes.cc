#include <algorithm>

#include "sa/path_cache.h"

// Forgets paths that a change of the port or of the subnet has made wrong.
namespace verbena::sa {

using wire::PathRecord;

namespace {

// Returns a query that sorts before all valid queries for paths to the destination.
PathQuery first_query_to(const Gid& destination) {
  return {.destination = destination, .reversible = false, .numb_path = 0};
}

}  // namespace

void PathCache::set_port(const PortState& state, const PortChange& change, Time now) {
  const Gid old_source = port_.gids.empty() ? Gid{} : port_.gids.front();
  port_ = state;
  // Pending queries are sent to the manager again after these changes, so their answers are valid.
  if (change.stopped) {
    drop_all(&PathCounters::port_down, false, now);
  } else if (change.lid_changed) {
    drop_all(&PathCounters::lid_changed, false, now);
  } else if (change.manager_changed) {
    drop_all(&PathCounters::manager_changed, false, now);
  }
  if (change.pkeys_changed) {
    drop_if(&PathCounters::pkeys_changed, [&](const PathQuery&, const Entry& entry) {
      return entry.negative_answer || entry.query_id ||
             std::ranges::any_of(entry.paths,
                                 [&](const auto& path) { return !port_.pkey_index(path.pkey); });
    });
  }
  if (change.gids_changed) {
    drop_if(&PathCounters::gids_changed,
            [&](const PathQuery& query, const Entry&) { return !port_.has_gid(query.source); });
  }
  if (config_.mode != Mode::kTable) return;
  if (!port_.is_ready()) return schedule_table(kNever, now);
  const bool is_new_source = port_.gids.front() != old_source;
  // The table that is on its way may have paths of a partition that the port has left.
  const bool table_has_wrong_pkeys = change.pkeys_changed && table_ == Table::kLoading;
  if (change.became_ready || change.lid_changed || change.manager_changed || is_new_source ||
      table_has_wrong_pkeys) {
    schedule_table(now + table_delay(), now);
  }
}

void PathCache::reregister(Time now) {
  drop_all(&PathCounters::reregistered, true, now);
  if (config_.mode == Mode::kTable && port_.is_ready()) schedule_table(now + table_delay(), now);
}

void PathCache::flush(Time now) {
  drop_all(&PathCounters::flushed, true, now);
  if (config_.mode == Mode::kTable && port_.is_ready()) schedule_table(now + table_delay(), now);
}

void PathCache::drop_all(std::uint64_t PathCounters::*cause, bool answers_may_be_stale, Time) {
  if (answers_may_be_stale && table_ == Table::kLoading) table_may_be_stale_ = true;
  for (auto found = entries_.begin(); found != entries_.end();) {
    if (found->second.is_pending()) {
      if (answers_may_be_stale && found->second.query_id) found->second.may_be_stale = true;
      ++found;
    } else {
      ++(counters_.*cause);
      found = erase(found);
    }
  }
}

void PathCache::drop_if(std::uint64_t PathCounters::*cause, auto&& is_wrong) {
  for (auto found = entries_.begin(); found != entries_.end();) {
    Entry& entry = found->second;
    if (entry.waits_for_table || !is_wrong(found->first, entry)) {
      ++found;
    } else if (entry.query_id) {
      entry.may_be_stale = true;
      ++found;
    } else {
      ++(counters_.*cause);
      found = erase(found);
    }
  }
}

// Calls f for each entry whose paths may lead to the GID.  f returns the next entry.
void PathCache::visit_paths_to(const Gid& gid, auto&& f) {
  // Entries that name their destination only by a LID may lead to any GID.
  for (auto found = entries_.begin();
       found != entries_.end() && found->first.destination == Gid{};) {
    found = f(found);
  }
  if (gid == Gid{}) return;
  for (auto found = entries_.lower_bound(first_query_to(gid));
       found != entries_.end() && found->first.destination == gid;) {
    found = f(found);
  }
}

void PathCache::record_change_during_load(const Gid& gid) {
  if (table_ != Table::kLoading) return;
  if (changed_gids_.size() < kChangedGidsMax) {
    changed_gids_.insert(gid);
  } else {
    table_may_be_stale_ = true;
  }
}

void PathCache::gid_out_of_service(const Gid& gid, Time) {
  record_change_during_load(gid);
  visit_paths_to(gid, [&](Entries::iterator found) {
    Entry& entry = found->second;
    if (entry.query_id) entry.may_be_stale = true;
    const bool leads_to_gid = std::ranges::any_of(
        entry.paths, [&](const PathRecord& path) { return path.destination_gid == gid; });
    if (entry.is_pending() || !leads_to_gid) return ++found;
    ++counters_.gid_out;
    return erase(found);
  });
}

void PathCache::gid_in_service(const Gid& gid, Time now) {
  record_change_during_load(gid);
  visit_paths_to(gid, [&](Entries::iterator found) {
    Entry& entry = found->second;
    if (entry.query_id) entry.may_be_stale = true;
    if (entry.is_pending()) return ++found;
    const bool leads_to_gid = std::ranges::any_of(
        entry.paths, [&](const PathRecord& path) { return path.destination_gid == gid; });
    if (!entry.negative_answer && !leads_to_gid) return ++found;
    ++counters_.gid_in;
    if (entry.negative_answer || queries_.waiting() >= kRefreshWaitingMax) return erase(found);
    return refresh(found, now);
  });
}

// Forgets paths that may be wrong, and asks the SA for them again.  Returns the next entry.
PathCache::Entries::iterator PathCache::refresh(Entries::iterator found, Time now) {
  Entry& entry = found->second;
  entry.paths.clear();
  entry.is_from_table = false;
  if (entry.use_position) by_use_.erase(*entry.use_position);
  entry.use_position.reset();
  if (!ask(found, now + Query::kGiveUpAfterDefault, now)) return erase(found);
  ++counters_.refreshed;
  return ++found;
}

}  // namespace verbena::sa
