#pragma once

#include <compare>
#include <cstdint>
#include <optional>

#include "base/strong.h"
#include "sa/queries.h"
#include "wire/sa.h"

namespace verbena::sa {

// Asks the SA for paths.  An empty field accepts any value.  The cache compares all fields, because
// each of them may change the SA's choice.
struct PathQuery {
  // Limits a value of the path: above, below or equal to `value`, or the best (vol1 15.2.5.16).
  struct Limit {
    wire::Selector selector{};
    std::uint8_t value = 0;
    friend auto operator<=>(const Limit&, const Limit&) = default;
  };

  // The destination comes first, because the cache visits all queries with one destination.
  Gid destination{};  // 0: destination_lid names the destination
  Gid source{};
  std::optional<Lid> destination_lid{};
  std::optional<Lid> source_lid{};
  std::optional<Pkey> pkey{};
  std::optional<ServiceId> service_id{};
  std::optional<std::uint16_t> qos_class{};
  std::optional<std::uint8_t> service_level{};
  std::optional<std::uint8_t> traffic_class{};
  std::optional<std::uint32_t> flow_label{};
  std::optional<bool> raw_traffic{};
  std::optional<std::uint8_t> hop_limit{};
  std::optional<Limit> mtu{};
  std::optional<Limit> rate{};
  std::optional<Limit> packet_life{};
  bool reversible = true;
  std::uint8_t numb_path = 1;  // at most 127; more than one needs a GetTable

  friend auto operator<=>(const PathQuery&, const PathQuery&) = default;
};

inline constexpr std::uint8_t kPathsPerQueryMax = 127;

// Returns the query as a record and component mask for the SA.
Query query_of(const PathQuery& query);

// Returns true if the path has all values that the query names.  A P_Key may differ in its
// membership bit.  Ignores service ID and QoS class, which a path record does not show.
bool satisfies(const wire::PathRecord& path, const PathQuery& query);

// Returns true if a table of all paths can answer the query.  A table cannot answer a query for a
// service or a QoS class, because the SA then chooses by rules that the table does not show.  It
// cannot answer a query without the destination's GID, either.
inline bool is_answered_by_table(const PathQuery& query) {
  return !query.service_id && !query.qos_class && query.destination != Gid{};
}

}  // namespace verbena::sa
