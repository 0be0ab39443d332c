#pragma once

#include <cstdint>
#include <optional>

#include "base/strong.h"
#include "base/time.h"
#include "sa/path_question.h"
#include "wire/sa.h"

namespace verbena::sa {

// Asks for the membership of a multicast group.  A field that is empty does not matter to the user;
// the SA fills it in.  A group that does not exist is created if P_Key, Q_Key, SL, flow label and
// traffic class are there (vol1 15.2.5.17.3).
struct JoinRequest {
  using Limit = PathQuestion::Limit;

  Gid mgid{};  // 0: the SA chooses one
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

// Returns the request to the SA.  `known_mlid` is the LID that the group has had, if any.  The
// request carries it as a wish, without its bit in the component mask.  A manager that has given
// the LID to another group, or that ignores such wishes, answers with a LID of its choice.  OpenSM
// grants the wish if the LID is free.
Query join_query(const JoinRequest& request, const Gid& mgid, Lid known_mlid, const Gid& port_gid,
                 std::uint8_t join_state);
Query leave_query(const Gid& mgid, const Gid& port_gid, std::uint8_t join_state);

// Returns true if the group has all values that the request names.
bool satisfies(const wire::McMemberRecord& group, const JoinRequest& request);

// Returns the number of fields that the request names.
unsigned fields_in(const JoinRequest& request);

// Returns true if a member of the group has to change what it sends or receives.
bool differ_for_members(const wire::McMemberRecord& a, const wire::McMemberRecord& b);

}  // namespace verbena::sa
