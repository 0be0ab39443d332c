#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/strong.h"
#include "hca/types.h"

namespace verbena::hca {

// The QPs that are attached to each multicast group (vol1 10.5, 11.3).  A group exists as long as
// it has a member.
class MulticastGroups {
 public:
  explicit MulticastGroups(const Limits& limits) : limits_(limits) {}

  // kInvalidArgument: not a group address, or not a UD QP.  kNoResources: a limit is reached.
  Result<void> attach(const Gid& group, Qp& qp);
  // kInvalidArgument: not attached.
  Result<void> detach(const Gid& group, Qp& qp);
  // In the order of attaching; valid until the next change.
  std::span<Qp* const> members(const Gid& group) const;

 private:
  const Limits& limits_;
  std::map<Gid, std::vector<Qp*>> groups_{};
};

}  // namespace verbena::hca
