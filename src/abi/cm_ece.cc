#include "abi/abi.h"
#include "abi/cm.h"

// Enhanced connection establishment: what adapters of one vendor tell each other when they connect.
// Verbena's own QPs have nothing to say; who has QPs elsewhere, under an id, may.

using namespace verbena::abi;

namespace {

constexpr std::uint32_t kVendorIdMax = 0xffffff;
constexpr std::uint8_t kRejectBytesMax = 148;
constexpr std::uint32_t kRejectVendorOption = 35;

}  // namespace

VB_EXPORT int rdma_set_local_ece(rdma_cm_id* id, ibv_ece* ece) {
  if (id == nullptr || id->qp != nullptr || ece == nullptr) return failed(EINVAL);
  if (ece->vendor_id == 0 || ece->vendor_id > kVendorIdMax || ece->comp_mask != 0) {
    return failed(EINVAL);
  }
  static_cast<CmId*>(id)->local_ece = *ece;
  return 0;
}

VB_EXPORT int rdma_get_remote_ece(rdma_cm_id* id, ibv_ece* ece) {
  if (id == nullptr || id->qp != nullptr || ece == nullptr) return failed(EINVAL);
  *ece = static_cast<CmId*>(id)->remote_ece;
  return 0;
}

VB_EXPORT int rdma_reject_ece(rdma_cm_id* id, const void* private_data, uint8_t private_data_len) {
  auto& mine = *static_cast<CmId*>(id);
  cm_touched(mine);
  if (private_data_len > kRejectBytesMax) return failed(EINVAL);
  if (int error = vb_cm_reject(mine.engine, kRejectVendorOption, private_data, private_data_len)) {
    return failed(error);
  }
  return 0;
}
