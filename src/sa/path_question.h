#pragma once

#include <compare>
#include <cstdint>
#include <optional>

#include "base/strong.h"
#include "sa/queries.h"
#include "wire/sa.h"

namespace verbena::sa {

// Asks for paths.  An empty field accepts any value.  The cache compares all fields, because the SA
// may choose a path by each of them.
struct PathQuestion {
  // Limits a value of the path, as its selector says.
  struct Limit {
    wire::Selector selector{};
    std::uint8_t value = 0;
    friend auto operator<=>(const Limit&, const Limit&) = default;
  };

  // The destination comes first, since most questions differ in it.
  Gid destination{};  // 0: destination_lid names it
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

  friend auto operator<=>(const PathQuestion&, const PathQuestion&) = default;
};

inline constexpr std::uint8_t kPathsPerQuestionMax = 127;

// Returns the question as a record and component mask for the SA.
Query query_of(const PathQuestion& question);

// Returns true if the path has all values that the question names.
bool satisfies(const wire::PathRecord& path, const PathQuestion& question);

// Returns true if a table of all paths can answer the question.  The SA chooses a path for a
// service or a QoS class by rules that its answer does not show.
inline bool is_answered_by_table(const PathQuestion& question) {
  return !question.service_id && !question.qos_class && question.destination != Gid{};
}

}  // namespace verbena::sa
