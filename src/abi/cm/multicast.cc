#include <rdma/rdma_cma.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "abi/abi.h"
#include "abi/acknowledge.h"
#include "abi/cm/cm.h"

// Lets ids (rdma_cm_id) join and leave multicast groups.

namespace verbena::abi {
namespace {

std::atomic<std::uint64_t> last_cookie{0};

// Joins a group.  Stores the group before it calls vb_cm_join(), because another thread may take
// the event before vb_cm_join() returns.
int join(CmId& id, const sockaddr& address, bool send_only, void* context) {
  const std::size_t bytes = verbena::c_api::bytes_of(address);
  if (bytes == 0) return EINVAL;
  if (int error = cm_update_qp(id)) return error;
  CmGroup group{
      .cookie = ++last_cookie, .address_bytes = static_cast<socklen_t>(bytes), .context = context};
  std::memcpy(&group.address, &address, bytes);
  const int error = guarded([&] {
    PthreadLock lock(id.mutex);
    id.groups.push_back(group);
    return 0;
  });
  if (error != 0) return error;
  const int join_error = vb_cm_join(id.library_handle, &address, send_only ? 1 : 0, group.cookie);
  if (join_error != 0) {
    PthreadLock lock(id.mutex);
    std::erase_if(id.groups, [&](const CmGroup& one) { return one.cookie == group.cookie; });
  }
  return join_error;
}

// Removes the group that was joined last with this address, as librdmacm does.  An older one may
// have failed.  Returns its cookie, or 0 if there is none.
std::uint64_t remove_group(CmId& id, const sockaddr& address) {
  PthreadLock lock(id.mutex);
  const auto found = std::find_if(id.groups.rbegin(), id.groups.rend(), [&](const CmGroup& group) {
    return group.address_bytes == verbena::c_api::bytes_of(address) &&
           std::memcmp(&group.address, &address, group.address_bytes) == 0;
  });
  if (found == id.groups.rend()) return 0;
  const std::uint64_t cookie = found->cookie;
  id.groups.erase(std::next(found).base());
  return cookie;
}

}  // namespace
}  // namespace verbena::abi

using namespace verbena::abi;

VB_EXPORT int rdma_join_multicast_ex(rdma_cm_id* id, rdma_cm_join_mc_attr_ex* mc_join_attr,
                                     void* context) {
  constexpr std::uint32_t kKnown = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
  if (mc_join_attr == nullptr || mc_join_attr->addr == nullptr) return failed(EINVAL);
  if ((mc_join_attr->comp_mask & ~kKnown) != 0) return failed(EOPNOTSUPP);
  if (mc_join_attr->comp_mask != kKnown) return failed(EINVAL);
  if (mc_join_attr->join_flags >= RDMA_MC_JOIN_FLAG_RESERVED) return failed(EINVAL);
  auto& self = *static_cast<CmId*>(id);
  const bool send_only = mc_join_attr->join_flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
  const bool waits = self.is_synchronous;
  if (int error = join(self, *mc_join_attr->addr, send_only, context)) return failed(error);
  return waits ? cm_wait_for_event(self) : 0;
}

VB_EXPORT int rdma_join_multicast(rdma_cm_id* id, sockaddr* addr, void* context) {
  if (addr == nullptr) return failed(EINVAL);
  auto& self = *static_cast<CmId*>(id);
  const bool waits = self.is_synchronous;
  if (int error = join(self, *addr, false, context)) return failed(error);
  return waits ? cm_wait_for_event(self) : 0;
}

// Leaving does not wait for acknowledgements: an event stays valid until the program acknowledges
// it.
VB_EXPORT int rdma_leave_multicast(rdma_cm_id* id, sockaddr* addr) {
  if (addr == nullptr) return failed(EINVAL);
  auto& self = *static_cast<CmId*>(id);
  const std::uint64_t cookie = remove_group(self, *addr);
  if (cookie == 0) return failed(EADDRNOTAVAIL);
  const int error = vb_cm_leave(self.library_handle, cookie);
  // A group that a MULTICAST_ERROR has reported is known only to this library.  As in librdmacm,
  // the program still leaves it, and succeeds.
  return error == 0 || error == EADDRNOTAVAIL ? 0 : failed(error);
}
