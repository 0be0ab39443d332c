#include "sa/join_request.h"

#include <bit>

#include "sa/components.h"

namespace verbena::sa {

using wire::McMemberRecord;
using MemberMask = McMemberRecord::Mask;

namespace {

std::uint64_t fill_record(McMemberRecord& record, const JoinRequest& request) {
  std::uint64_t mask = 0;
  set_component(record.qkey, request.qkey, MemberMask::kQkey, mask);
  set_component(record.pkey, request.pkey, MemberMask::kPkey, mask);
  set_limit(record.mtu_selector, record.mtu, request.mtu, MemberMask::kMtu, mask);
  set_limit(record.rate_selector, record.rate, request.rate, MemberMask::kRate, mask);
  set_limit(record.packet_life_selector, record.packet_life, request.packet_life,
            MemberMask::kPacketLife, mask);
  set_component(record.traffic_class, request.traffic_class, MemberMask::kTrafficClass, mask);
  set_component(record.service_level, request.service_level, MemberMask::kServiceLevel, mask);
  set_component(record.flow_label, request.flow_label, MemberMask::kFlowLabel, mask);
  set_component(record.hop_limit, request.hop_limit, MemberMask::kHopLimit, mask);
  set_component(record.scope, request.scope, MemberMask::kScope, mask);
  return mask;
}

// Returns true if the limit accepts the value of the group.  The selector "best" accepts any value,
// because the SA has chosen it.
bool is_acceptable(std::uint8_t value, const std::optional<JoinRequest::Limit>& limit) {
  return (limit && limit->selector == wire::Selector::kBest) || is_within(value, limit);
}

}  // namespace

Query join_query(const JoinRequest& request, const Gid& mgid, Lid known_mlid, const Gid& port_gid,
                 std::uint8_t join_state) {
  McMemberRecord record{
      .mgid = mgid, .port_gid = port_gid, .mlid = known_mlid, .join_state = join_state};
  std::uint64_t mask = fill_record(record, request) | MemberMask::kPortGid | MemberMask::kJoinState;
  if (mgid != Gid{}) mask |= MemberMask::kMgid;
  return Query::of(wire::Method::kSet, wire::SaAttribute::kMcMemberRecord, mask, record);
}

Query leave_query(const Gid& mgid, const Gid& port_gid, std::uint8_t join_state) {
  return Query::of(wire::Method::kDelete, wire::SaAttribute::kMcMemberRecord,
                   MemberMask::kMgid | MemberMask::kPortGid | MemberMask::kJoinState,
                   McMemberRecord{.mgid = mgid, .port_gid = port_gid, .join_state = join_state});
}

bool satisfies(const McMemberRecord& group, const JoinRequest& request) {
  // Ignores the membership bit, because limited and full members are in the same partition.
  const bool same_partition =
      !request.pkey || (request.pkey->value & 0x7fff) == (group.pkey.value & 0x7fff);
  return same_partition && matches(group.qkey, request.qkey) &&
         is_acceptable(group.mtu, request.mtu) && is_acceptable(group.rate, request.rate) &&
         is_acceptable(group.packet_life, request.packet_life) &&
         matches(group.traffic_class, request.traffic_class) &&
         matches(group.service_level, request.service_level) &&
         matches(group.flow_label, request.flow_label) &&
         matches(group.hop_limit, request.hop_limit) && matches(group.scope, request.scope);
}

unsigned count_fields(const JoinRequest& request) {
  McMemberRecord record{};
  return static_cast<unsigned>(std::popcount(fill_record(record, request)));
}

bool differ_for_members(const McMemberRecord& a, const McMemberRecord& b) {
  return a.mlid != b.mlid || a.qkey != b.qkey || a.mtu != b.mtu || a.rate != b.rate ||
         a.service_level != b.service_level || a.pkey != b.pkey ||
         a.traffic_class != b.traffic_class || a.flow_label != b.flow_label ||
         a.hop_limit != b.hop_limit || a.mgid != b.mgid;
}

}  // namespace verbena::sa
