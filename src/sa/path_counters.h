#pragma once

#include <array>
#include <cstdint>

#include "base/counter_names.h"

namespace verbena::sa {

// Counts what the path cache does.
struct PathCounters {
  std::uint64_t hits = 0;
  std::uint64_t misses = 0;
  std::uint64_t shared = 0;         // queries that shared a pending query
  std::uint64_t uncached = 0;       // queries in mode kUncached
  std::uint64_t negative_hits = 0;  // answered with a recent "no such path"
  std::uint64_t expired = 0;        // entries that find() found too old
  std::uint64_t evicted = 0;
  std::uint64_t refreshed = 0;
  std::uint64_t stale = 0;  // answers that may be stale, because of a change during the query
  std::uint64_t malformed = 0;
  std::uint64_t tables = 0;
  std::uint64_t table_paths = 0;
  std::uint64_t table_failures = 0;
  // These count entries that were forgotten, by cause:
  std::uint64_t port_down = 0;
  std::uint64_t lid_changed = 0;
  std::uint64_t manager_changed = 0;
  std::uint64_t pkeys_changed = 0;
  std::uint64_t gids_changed = 0;
  std::uint64_t reregistered = 0;
  std::uint64_t gid_out = 0;
  std::uint64_t gid_in = 0;
  std::uint64_t repathed = 0;
  std::uint64_t flushed = 0;
  // These count entries and queries that a limit refused:
  std::uint64_t limit_entries = 0;
  std::uint64_t limit_waiters = 0;
  std::uint64_t limit_table = 0;  // destinations of a table beyond entries_max

  friend bool operator==(const PathCounters&, const PathCounters&) = default;
};

inline constexpr auto kPathCounterNames = std::to_array<MemberName<PathCounters>>({
    {&PathCounters::hits, "sa_path_hits"},
    {&PathCounters::misses, "sa_path_misses"},
    {&PathCounters::shared, "sa_path_queries_shared"},
    {&PathCounters::uncached, "sa_path_queries_uncached"},
    {&PathCounters::negative_hits, "sa_path_negative_hits"},
    {&PathCounters::expired, "sa_paths_expired"},
    {&PathCounters::evicted, "sa_paths_evicted"},
    {&PathCounters::refreshed, "sa_paths_refreshed"},
    {&PathCounters::stale, "sa_path_answers_stale"},
    {&PathCounters::malformed, "sa_path_answers_malformed"},
    {&PathCounters::tables, "sa_path_tables"},
    {&PathCounters::table_paths, "sa_path_table_paths"},
    {&PathCounters::table_failures, "sa_path_table_failures"},
    {&PathCounters::port_down, "sa_paths_forgotten_port_down"},
    {&PathCounters::lid_changed, "sa_paths_forgotten_lid_change"},
    {&PathCounters::manager_changed, "sa_paths_forgotten_sm_change"},
    {&PathCounters::pkeys_changed, "sa_paths_forgotten_pkey_change"},
    {&PathCounters::gids_changed, "sa_paths_forgotten_gid_change"},
    {&PathCounters::reregistered, "sa_paths_forgotten_reregister"},
    {&PathCounters::gid_out, "sa_paths_forgotten_gid_out"},
    {&PathCounters::gid_in, "sa_paths_forgotten_gid_in"},
    {&PathCounters::repathed, "sa_paths_forgotten_repath"},
    {&PathCounters::flushed, "sa_paths_forgotten_flush"},
    {&PathCounters::limit_entries, "limit_sa_paths"},
    {&PathCounters::limit_waiters, "limit_sa_path_waiters"},
    {&PathCounters::limit_table, "limit_sa_path_table"},
});
static_assert(names_every_counter(kPathCounterNames));

}  // namespace verbena::sa
