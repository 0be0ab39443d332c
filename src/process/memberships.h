#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "base/error.h"
#include "base/operation.h"
#include "base/strong.h"
#include "hca/engine.h"
#include "ipc/messages.h"
#include "process/agent_requests.h"

namespace verbena::process {

// Attaches QPs to multicast groups, and tells the agent which of the program's sockets must be
// members.
//
// Invariants: the sockets of a range are members of a group on an interface as long as a QP of the
// range is attached to the group on this interface.
class Memberships {
 public:
  // REQUIRES: `engine` and `requests` outlive this object.
  Memberships(hca::Engine& engine, AgentRequests& requests)
      : engine_(engine), requests_(requests) {}

  // Attaches the QP to the group on one interface.  If `interface` is 0, attaches it on all
  // interfaces of the host, including later ones.  On InfiniBand, `interface` is a port's number.
  Started<ipc::Done> attach(hca::QpHandle qp, const Gid& group, std::uint32_t interface,
                            Completion<ipc::Done> done);
  // Detaches the QP on all interfaces.
  Result<void> detach(hca::QpHandle qp, const Gid& group);
  // Removes all memberships, because the agent has died.
  void clear() { qps_.clear(); }

 private:
  struct Membership {
    std::uint16_t range = 0;
    Gid group{};
    std::uint32_t interface = 0;
    friend auto operator<=>(const Membership&, const Membership&) = default;
  };
  // Counts the requests of one QP for one membership.  A program may attach a QP several times.
  struct Use {
    std::size_t pending_requests = 0;
    bool is_joined = false;  // a request has succeeded
  };
  void undo(const Membership& membership, hca::QpHandle qp, Qpn qpn,
            const std::shared_ptr<Use>& use);
  void forget(const Membership& membership, Qpn qpn);

  hca::Engine& engine_;
  AgentRequests& requests_;
  // Holds the QPs that need each membership.
  std::map<Membership, std::map<Qpn, std::shared_ptr<Use>>> qps_{};
};

}  // namespace verbena::process
