#pragma once

#include <cstdint>
#include <optional>

#include "base/strong.h"
#include "base/time.h"
#include "sa/path_query.h"
#include "wire/sa.h"

namespace verbena::sa {

// Describes a request to join a multicast group.  An empty field accepts any value of the group.
// The SA creates a group that does not exist, if the request names P_Key, Q_Key, SL, flow label and
// traffic class (vol1 15.2.5.17.3).
struct JoinRequest {
  using Limit = PathQuery::Limit;

  Gid mgid{};  // 0: the SA chooses an MGID
  std::uint8_t join_state{wire::join_state::kFullMember};
  std::optional<Qkey> qkey{};
  std::optional<Pkey> pkey{};
  std::optional<Limit> mtu{};
  std::optional<Limit> rate{};
  std::optional<Limit> packet_life{};
  std::optional<std::uint8_t> traffic_class{};
  std::optional<std::uint8_t> service_level{};
  std::optional<std::uint32_t> flow_label{};
  std::optional<std::uint8_t> hop_limit{};
  std::optional<std::uint8_t> scope{};
  Duration give_up_after = std::chrono::seconds(30);

  friend bool operator==(const JoinRequest&, const JoinRequest&) = default;
};

// Returns the request to the SA.  `known_mlid` is the MLID that the group had before, or 0.  The
// request carries the MLID only as a hint, without its bit in the component mask.  OpenSM uses the
// hint if the MLID is free.  Other managers may ignore the hint, and choose another MLID.
Query join_query(const JoinRequest& request, const Gid& mgid, Lid known_mlid, const Gid& port_gid,
                 std::uint8_t join_state);
Query leave_query(const Gid& mgid, const Gid& port_gid, std::uint8_t join_state);

// Returns true if the group has all values that the request names.  A P_Key may differ in its
// membership bit.
bool satisfies(const wire::McMemberRecord& group, const JoinRequest& request);

// Returns the number of bits in the component mask that the fields of the request set.
unsigned count_fields(const JoinRequest& request);

// Returns true if the two records of a group differ in a field that its members must know.
bool differ_for_members(const wire::McMemberRecord& a, const wire::McMemberRecord& b);

}  // namespace verbena::sa
