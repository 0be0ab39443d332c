#include "abi/abi.h"
#include "abi/cm/cm.h"

// Implements enhanced connection establishment: adapters of one vendor exchange options when they
// connect.  Verbena's QPs have no such options; programs may set them for ids without a QP.
// rdma_reject_ece() is in connect.cc.

using namespace verbena::abi;

namespace {

constexpr std::uint32_t kVendorIdMax = 0xffffff;

}  // namespace

VB_EXPORT int rdma_set_local_ece(rdma_cm_id* id, ibv_ece* ece) {
  if (id == nullptr || id->qp != nullptr || ece == nullptr) return failed(EINVAL);
  if (ece->vendor_id == 0 || ece->vendor_id > kVendorIdMax || ece->comp_mask != 0) {
    return failed(EINVAL);
  }
  auto& self = *static_cast<CmId*>(id);
  cm_mark_used(self);
  self.local_ece = *ece;
  return 0;
}

VB_EXPORT int rdma_get_remote_ece(rdma_cm_id* id, ibv_ece* ece) {
  if (id == nullptr || id->qp != nullptr || ece == nullptr) return failed(EINVAL);
  auto& self = *static_cast<CmId*>(id);
  cm_mark_used(self);
  *ece = self.remote_ece;
  return 0;
}
