#include "process/group_joins.h"

#include <utility>

namespace verbena::process {

Result<Pending> GroupJoins::join(const ipc::JoinMulticast& message,
                                 Completion<ipc::MulticastJoined> done) {
  if (waiting_.size() >= kWaitingMax) {
    ++refused_;
    return fail(Errc::kNoResources, "too many joins wait for the subnet's answer (kWaitingMax)");
  }
  const std::uint64_t number = requests_.next_number();
  WaitingJoin& waiting = waiting_[number];
  waiting.request = requests_.ask<ipc::MulticastJoined>(
      message, Completion<ipc::MulticastJoined>([this, number](Result<ipc::MulticastJoined> reply) {
        on_reply(number, std::move(reply));
      }));
  waiting.done = std::move(done);
  return Pending([this, number] {
    if (const auto found = waiting_.find(number); found != waiting_.end()) {
      found->second.done = nullptr;
    }
  });
}

void GroupJoins::on_reply(std::uint64_t number, Result<ipc::MulticastJoined> reply) {
  auto waiting = waiting_.extract(number);
  if (!waiting) return;
  if (auto& done = waiting.mapped().done) return done(std::move(reply));
  // The join was cancelled, so the group is left again.  leave() does nothing for a membership
  // without a holder.  set_holder() fails if the membership is invalid.
  if (reply && set_holder(reply->membership, {})) leave(reply->membership);
}

Result<void> GroupJoins::set_holder(std::uint64_t membership, const Holder& holder) {
  if (membership == 0 || !holders_.try_emplace(membership, holder).second) {
    return fail(Errc::kMalformed, "the agent has given an invalid membership");
  }
  return {};
}

void GroupJoins::leave(std::uint64_t membership) {
  if (holders_.erase(membership) != 0) requests_.send(ipc::LeaveMulticast{membership});
}

std::optional<GroupJoins::Holder> GroupJoins::forget(std::uint64_t membership) {
  const auto entry = holders_.extract(membership);
  return entry ? std::optional(entry.mapped()) : std::nullopt;
}

}  // namespace verbena::process
