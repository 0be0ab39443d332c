#include "hca/multicast.h"

#include <algorithm>

#include "hca/qp.h"
#include "wire/ip.h"

namespace verbena::hca {

Result<void> MulticastGroups::attach(const Gid& group, Qp& qp) {
  if (qp.core().init.type != QpType::kUd) {
    return fail(Errc::kInvalidArgument,
                "only a UD queue pair can be attached to a multicast group");
  }
  if (!wire::is_multicast(group)) {
    return fail(Errc::kInvalidArgument, "not the GID of a multicast group");
  }
  const auto found = groups_.find(group);
  if (found == groups_.end() && groups_.size() >= limits_.groups) {
    return fail(Errc::kNoResources, "the limit of multicast groups (max_mcast_grp) is reached");
  }
  auto& members = groups_[group];
  if (std::ranges::find(members, &qp) != members.end()) return {};
  if (members.size() >= limits_.group_members) {
    return fail(Errc::kNoResources,
                "the limit of QPs in a multicast group (max_mcast_qp_attach) is reached");
  }
  members.push_back(&qp);
  ++qp.groups;
  return {};
}

Result<void> MulticastGroups::detach(const Gid& group, Qp& qp) {
  const auto found = groups_.find(group);
  if (found == groups_.end() || std::erase(found->second, &qp) == 0) {
    return fail(Errc::kInvalidArgument, "the QP is not attached to this multicast group");
  }
  --qp.groups;
  if (found->second.empty()) groups_.erase(found);
  return {};
}

std::span<Qp* const> MulticastGroups::members(const Gid& group) const {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return {};
  return found->second;
}

}  // namespace verbena::hca
