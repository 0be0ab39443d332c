#include "link/access_grant.h"

#include "wire/bth.h"

namespace verbena::link {
namespace {

// Two PSNs can be compared only if their distance is less than half of the range (vol1 9.7.1).
constexpr std::uint32_t kPsnSpanMax = 0x7fffff;

// Returns true if the request's PSNs can follow the PSNs that the target has received.  See grant()
// for the rule.
bool continues(const QpRow& row, const AccessRequest& request) {
  if (request.psns == 0 || request.psns > kPsnSpanMax) return false;
  if (request.generation == 0) return row.expected_psn == request.first_psn.value;
  const std::uint32_t distance = (request.first_psn.value - row.expected_psn) & kMask24;
  return row.generation == request.generation && distance <= kPsnSpanMax - request.psns;
}

}  // namespace

std::optional<AccessGrant> grant(const AccessTable& table, const AccessRequest& request) {
  const auto qp = table.qp(request.target.value);
  const bool accepts = qp && qp->peer_qpn == request.initiator.value &&
                       qp->peer == request.initiator_address && qp->mtu == request.mtu &&
                       wire::pkeys_match(Pkey{qp->pkey}, request.pkey) &&
                       (qp->access_flags & request.access_flags) == request.access_flags &&
                       qp->generation != 0 && continues(*qp, request);
  if (!accepts || request.length == 0 || request.access_flags == 0) return {};
  const auto region = table.region(request.r_key);
  if (!region || region->domain != qp->domain ||
      (region->access_flags & request.access_flags) != request.access_flags) {
    return {};
  }
  const auto address = region->find(request.remote_address, request.length);
  if (!address) return {};
  return AccessGrant{*address, qp->generation};
}

}  // namespace verbena::link
