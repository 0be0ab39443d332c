#include "process/memberships.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace verbena::process {

Started<ipc::Done> Memberships::attach(hca::QpHandle qp, const Gid& group, std::uint32_t interface,
                                       Completion<ipc::Done> done) {
  const auto info = engine_.query_qp(qp);
  if (!info) return Result<ipc::Done>(std::unexpected(info.error()));
  if (auto attached = engine_.attach_multicast(qp, group); !attached) {
    return Result<ipc::Done>(std::unexpected(attached.error()));
  }
  const Qpn qpn = info->qpn;
  const Membership membership{static_cast<std::uint16_t>(qpn.value / ipc::kLeaseQpns), group,
                              interface};
  std::shared_ptr<Use>& entry = qps_[membership][qpn];
  if (!entry) entry = std::make_shared<Use>();
  const std::shared_ptr<Use> use = entry;
  const std::uint64_t number = requests_.next_number();
  Pending request = requests_.ask<ipc::Done>(
      ipc::JoinGroup{membership.range, group, interface},
      Completion<ipc::Done>([this, membership, qp, qpn, use,
                             done = std::move(done)](Result<ipc::Done> result) mutable {
        --use->pending_requests;
        use->is_joined |= result.has_value();
        if (!result) undo(membership, qp, qpn, use);
        done(std::move(result));
      }));
  ++use->pending_requests;  // not earlier: ask() may run out of memory, but completes nothing
  return Pending([this, number, membership, qp, qpn, use, request = std::move(request)]() mutable {
    if (!requests_.is_pending(number)) return;  // the join is complete
    request.cancel();
    --use->pending_requests;
    undo(membership, qp, qpn, use);
  });
}

// Detaches the QP after a failed or cancelled request, unless another request for the same
// membership has succeeded or is pending, or the QP needs the group on another interface.
void Memberships::undo(const Membership& membership, hca::QpHandle qp, Qpn qpn,
                       const std::shared_ptr<Use>& use) {
  if (use->is_joined || use->pending_requests > 0) return;
  const auto found = qps_.find(membership);
  // If false, the program has detached the QP since the request, or the agent has died.
  const bool is_current =
      found != qps_.end() && found->second.contains(qpn) && found->second.at(qpn) == use;
  if (is_current) forget(membership, qpn);
  const auto is_wanted = [&](const auto& other) {
    return other.first.group == membership.group && other.second.contains(qpn);
  };
  if (std::ranges::any_of(qps_, is_wanted)) return;
  // This call fails if the program has detached the QP meanwhile.
  (void)engine_.detach_multicast(qp, membership.group).has_value();
}

Result<void> Memberships::detach(hca::QpHandle qp, const Gid& group) {
  const Qpn qpn = VB_TRY(engine_.query_qp(qp)).qpn;
  VB_TRY_VOID(engine_.detach_multicast(qp, group));
  std::vector<Membership> unneeded;
  for (const auto& [membership, qps] : qps_) {
    if (membership.group == group && qps.contains(qpn)) unneeded.push_back(membership);
  }
  for (const Membership& membership : unneeded) forget(membership, qpn);
  return {};
}

// Records that the QP does not need the membership any more.  If no QP needs it, the sockets leave
// the group.
void Memberships::forget(const Membership& membership, Qpn qpn) {
  const auto found = qps_.find(membership);
  if (found == qps_.end() || found->second.erase(qpn) == 0 || !found->second.empty()) return;
  qps_.erase(found);
  requests_.send(ipc::LeaveGroup{membership.range, membership.group, membership.interface});
}

}  // namespace verbena::process
