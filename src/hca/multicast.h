#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/strong.h"
#include "hca/types.h"

namespace verbena::hca {

// Stores which QPs are attached to each multicast group (vol1 10.5, 11.3).  A group exists as long
// as it has a member.
class MulticastGroups {
 public:
  explicit MulticastGroups(const Limits& limits) : limits_(limits) {}

  // Attaches the QP to a group.  kInvalidArgument: this is not a group address, or not a UD QP.
  // kNoResources: a limit is reached.
  Result<void> attach(const Gid& group, Qp& qp);
  // Detaches the QP from a group.  kInvalidArgument: the QP is not attached.
  Result<void> detach(const Gid& group, Qp& qp);
  // Returns the members in the order of attaching; valid until the next change.
  std::span<Qp* const> members(const Gid& group) const;

 private:
  const Limits& limits_;
  std::map<Gid, std::vector<Qp*>> groups_{};
};

}  // namespace verbena::hca
