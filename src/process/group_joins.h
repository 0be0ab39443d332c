#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/operation.h"
#include "ipc/messages.h"
#include "ipc/subnet_messages.h"
#include "process/agent_requests.h"
#include "process/connection.h"

namespace verbena::process {

// Joins groups of an InfiniBand subnet.  The agent asks the subnet administration.  If a join
// succeeds, the agent's reply has the number of the membership.
//
// Invariants: each membership is left exactly once, unless it was lost or the agent died.  If a
// join is cancelled before the reply has come, this object leaves the group when the reply comes,
// because only the reply has the membership's number.
class GroupJoins {
 public:
  // Limits the joins that wait for the agent, including cancelled joins.  The subnet administration
  // may take seconds for each join.
  static constexpr std::size_t kWaitingMax = 4096;

  // Identifies the join to which a membership belongs.
  struct Holder {
    ConnectionHandle id{};
    std::uint64_t cookie = 0;
  };

  // REQUIRES: `requests` outlives this object.
  explicit GroupJoins(AgentRequests& requests) : requests_(requests) {}
  GroupJoins(const GroupJoins&) = delete;
  GroupJoins& operator=(const GroupJoins&) = delete;

  // Asks the agent to join a group.  Fails with kNoResources if kWaitingMax joins wait already.
  Result<Pending> join(const ipc::JoinMulticast& message, Completion<ipc::MulticastJoined> done);
  // Records the holder of a membership.  Fails with kMalformed if the membership is 0, or if
  // another join has it.
  Result<void> set_holder(std::uint64_t membership, const Holder& holder);
  // Leaves the group of a membership.  Does nothing if the membership has no holder.
  void leave(std::uint64_t membership);
  // Removes a membership that the agent has ended.  Returns its holder, if there is one.
  std::optional<Holder> forget(std::uint64_t membership);
  // Removes all memberships, because the agent has died.
  void clear() { holders_.clear(); }

  std::size_t size() const { return holders_.size(); }
  // Returns how many joins were refused because of kWaitingMax.
  std::uint64_t refused() const { return refused_; }

 private:
  void on_reply(std::uint64_t number, Result<ipc::MulticastJoined> reply);

  struct WaitingJoin {
    Pending request{};
    Completion<ipc::MulticastJoined> done{};  // empty: the join was cancelled
  };

  AgentRequests& requests_;
  std::map<std::uint64_t, WaitingJoin> waiting_{};  // by the number of the request
  std::map<std::uint64_t, Holder> holders_{};       // by membership
  std::uint64_t refused_ = 0;
};

}  // namespace verbena::process
