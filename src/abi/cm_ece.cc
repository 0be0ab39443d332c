#include "abi/abi.h"
#include "abi/cm.h"

// Enhanced connection establishment: what adapters of one vendor tell each other when they connect.
// Verbena's own QPs have nothing to say; who has QPs that no id knows may.  Refusing is in
// cm_connect.cc.

using namespace verbena::abi;

namespace {

constexpr std::uint32_t kVendorIdMax = 0xffffff;

}  // namespace

VB_EXPORT int rdma_set_local_ece(rdma_cm_id* id, ibv_ece* ece) {
  if (id == nullptr || id->qp != nullptr || ece == nullptr) return failed(EINVAL);
  if (ece->vendor_id == 0 || ece->vendor_id > kVendorIdMax || ece->comp_mask != 0) {
    return failed(EINVAL);
  }
  auto& mine = *static_cast<CmId*>(id);
  cm_touched(mine);
  mine.local_ece = *ece;
  return 0;
}

VB_EXPORT int rdma_get_remote_ece(rdma_cm_id* id, ibv_ece* ece) {
  if (id == nullptr || id->qp != nullptr || ece == nullptr) return failed(EINVAL);
  auto& mine = *static_cast<CmId*>(id);
  cm_touched(mine);
  *ece = mine.remote_ece;
  return 0;
}
