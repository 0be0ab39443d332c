// Multicast: which QPs are attached to which groups, and what the agent has to know of it.

#include <algorithm>
#include <utility>
#include <vector>

#include "process/ask.h"
#include "process/process.h"

namespace verbena::process {

Started<ipc::Done> Process::attach_multicast(hca::QpHandle qp, const Gid& group,
                                             std::uint32_t interface, Completion<ipc::Done> done) {
  const auto info = engine_.query_qp(qp);
  if (!info) return Result<ipc::Done>(std::unexpected(info.error()));
  if (auto alive = check_alive(qp); !alive)
    return Result<ipc::Done>(std::unexpected(alive.error()));
  if (auto attached = engine_.attach_multicast(qp, group); !attached) {
    return Result<ipc::Done>(std::unexpected(attached.error()));
  }
  const Qpn qpn = info->qpn;
  const Membership membership{static_cast<std::uint16_t>(qpn.value / ipc::kLeaseQpns), group,
                              interface};
  const bool is_new = memberships_[membership].insert(qpn).second;
  const auto undo = [this, membership, qp, qpn, is_new] {
    if (!is_new) return;  // whoever attached it before keeps it
    forget_member(membership, qpn);
    const auto is_wanted = [&](const auto& other) {
      return other.first.group == membership.group && other.second.contains(qpn);
    };
    if (std::ranges::any_of(memberships_, is_wanted)) return;
    (void)engine_.detach_multicast(qp, membership.group).has_value();
  };
  const std::uint64_t number = next_request_;
  Pending asked = ask<ipc::Done>(
      ipc::JoinGroup{membership.range, group, interface},
      Completion<ipc::Done>([undo, done = std::move(done)](Result<ipc::Done> word) mutable {
        if (!word) undo();
        done(std::move(word));
      }));
  return Pending([this, number, undo, asked = std::move(asked)]() mutable {
    if (!waiting_.contains(number)) return;
    asked.cancel();
    undo();
  });
}

Result<void> Process::detach_multicast(hca::QpHandle qp, const Gid& group) {
  const Qpn qpn = VB_TRY(engine_.query_qp(qp)).qpn;
  VB_TRY_VOID(engine_.detach_multicast(qp, group));
  std::vector<Membership> left;
  for (const auto& [membership, qps] : memberships_) {
    if (membership.group == group && qps.contains(qpn)) left.push_back(membership);
  }
  for (const Membership& membership : left) forget_member(membership, qpn);
  return {};
}

// The last QP that wanted it: the sockets leave.
void Process::forget_member(const Membership& membership, Qpn qpn) {
  const auto found = memberships_.find(membership);
  if (found == memberships_.end() || found->second.erase(qpn) == 0 || !found->second.empty()) {
    return;
  }
  memberships_.erase(found);
  say(ipc::LeaveGroup{membership.range, membership.group, membership.interface});
}

}  // namespace verbena::process
