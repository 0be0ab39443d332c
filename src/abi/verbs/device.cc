#include <infiniband/verbs.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

#include "abi/abi.h"
#include "abi/library.h"
#include "abi/objects.h"
#include "abi/verbs/ops.h"

// Implements the list of devices, their attributes, and contexts.
//
// Devices are in static storage: pointers to them stay valid when lists and contexts are freed.

namespace verbena::abi {
namespace {

// Device::ops points to this array, whose contents nobody reads.
constexpr std::uint64_t kNoProviderOps[64] = {};

std::mutex device_mutex;
constexpr std::uint32_t kDevicesMax = 64;
constinit Device devices[kDevicesMax]{};
std::uint32_t device_count = 0;

// Adds a device to `devices`.  An entry is written only once, because other threads may read it.
// REQUIRES: the caller has locked device_mutex.
void add_device(const vb_device_attr& attr) {
  const std::uint32_t index = device_count;
  Device& new_device = devices[index];
  ibv_device& public_device = new_device.device;
  public_device.node_type = IBV_NODE_CA;
  public_device.transport_type = IBV_TRANSPORT_IB;
  std::snprintf(public_device.name, sizeof public_device.name, "%.63s", attr.name);
  std::snprintf(public_device.dev_name, sizeof public_device.dev_name, "uverbs%u", index);
  std::snprintf(public_device.dev_path, sizeof public_device.dev_path,
                "/sys/class/infiniband_verbs/uverbs%u", index);
  std::snprintf(public_device.ibdev_path, sizeof public_device.ibdev_path,
                "/sys/class/infiniband/%.63s", attr.name);
  new_device.ops = kNoProviderOps;
  new_device.node_guid = attr.node_guid;
  new_device.index = index;
  ++device_count;
}

// Counts the devices of the host, and adds new devices to `devices`.
int find_devices(std::uint32_t& count) {
  if (int error = check_verbs_library()) return error;
  for (count = 0; count < kDevicesMax; ++count) {
    vb_device_attr attr{};
    const int error = vb_device_query(count, &attr);
    if (error == ENOENT && count > 0) return 0;
    if (error != 0) {
      explain_once();
      return error;
    }
    std::scoped_lock lock(device_mutex);
    if (count == device_count) add_device(attr);
  }
  return 0;
}

}  // namespace

void lock_device() { device_mutex.lock(); }
void unlock_device() { device_mutex.unlock(); }

namespace {

int to_int(std::uint32_t value) {
  return static_cast<int>(std::min<std::uint32_t>(value, INT_MAX));
}

ibv_device_attr to_public(const vb_device_attr& attr) {
  ibv_device_attr out{};
  std::memcpy(out.fw_ver, attr.fw_ver, std::min(sizeof out.fw_ver, sizeof attr.fw_ver));
  out.fw_ver[sizeof out.fw_ver - 1] = '\0';
  out.node_guid = htobe64(attr.node_guid);
  out.sys_image_guid = htobe64(attr.sys_image_guid);
  out.max_mr_size = attr.max_mr_bytes;
  out.page_size_cap = 0xfffff000;  // any page size from 4 KiB up
  out.vendor_id = attr.vendor_id;
  out.vendor_part_id = attr.vendor_part_id;
  out.hw_ver = attr.hw_ver;
  out.max_qp = to_int(attr.max_qp);
  out.max_qp_wr = to_int(attr.max_qp_wr);
  // Storage targets invalidate keys remotely only if the device has MEM_MGT_EXTENSIONS.
  out.device_cap_flags = IBV_DEVICE_AUTO_PATH_MIG | IBV_DEVICE_UD_AV_PORT_ENFORCE |
                         IBV_DEVICE_PORT_ACTIVE_EVENT | IBV_DEVICE_SYS_IMAGE_GUID |
                         IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SRQ_RESIZE | IBV_DEVICE_MEM_WINDOW |
                         IBV_DEVICE_MEM_MGT_EXTENSIONS | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
  out.max_sge = to_int(attr.max_sge);
  out.max_sge_rd = to_int(attr.max_sge_rd);
  out.max_cq = to_int(attr.max_cq);
  out.max_cqe = to_int(attr.max_cqe);
  out.max_mr = to_int(attr.max_mr);
  out.max_mw = to_int(attr.max_mw);
  out.max_pd = to_int(attr.max_pd);
  out.max_qp_rd_atom = to_int(attr.max_qp_rd_atom);
  out.max_res_rd_atom = to_int(attr.max_res_rd_atom);
  out.max_qp_init_rd_atom = to_int(attr.max_qp_init_rd_atom);
  out.atomic_cap = static_cast<ibv_atomic_cap>(attr.atomic_cap);
  out.max_ah = to_int(attr.max_ah);
  out.max_srq = to_int(attr.max_srq);
  out.max_mcast_grp = to_int(attr.max_mcast_grp);
  out.max_mcast_qp_attach = to_int(attr.max_mcast_qp_attach);
  out.max_total_mcast_qp_attach = to_int(attr.max_mcast_grp * attr.max_mcast_qp_attach);
  out.max_srq_wr = to_int(attr.max_qp_wr);
  out.max_srq_sge = to_int(attr.max_sge);
  out.local_ca_ack_delay = attr.local_ca_ack_delay;
  out.phys_port_cnt = attr.phys_port_count;
  return out;
}

// All memory supports on-demand paging: libverbena moves the data with the program's own loads and
// stores.
void set_odp_caps(ibv_odp_caps& caps) {
  constexpr std::uint32_t kMessages =
      IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
  caps.general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT;
  caps.per_transport_caps.rc_odp_caps =
      kMessages | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
  caps.per_transport_caps.uc_odp_caps = kMessages | IBV_ODP_SUPPORT_WRITE;
  caps.per_transport_caps.ud_odp_caps = kMessages;
}

int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input,
                    ibv_device_attr_ex* attr, size_t attr_bytes) {
  if (input != nullptr && input->comp_mask != 0) return with_errno(EINVAL);
  if (attr_bytes < sizeof attr->orig_attr) return with_errno(EINVAL);
  ibv_device_attr_ex full{};
  if (int error = ibv_query_device(context, &full.orig_attr)) return with_errno(error);
  constexpr std::uint64_t kAtomicWrite = std::uint64_t{1} << 40;  // IB_UVERBS_DEVICE_ATOMIC_WRITE
  full.device_cap_flags_ex = full.orig_attr.device_cap_flags | kAtomicWrite;
  full.phys_port_cnt_ex = full.orig_attr.phys_port_cnt;
  // Time stamps are nanoseconds.
  full.completion_timestamp_mask = ~std::uint64_t{0};
  full.hca_core_clock = 1'000'000;  // kHz
  set_odp_caps(full.odp_caps);
  // Programs of another version have a shorter or a longer structure.
  std::memset(attr, 0, attr_bytes);
  std::memcpy(attr, &full, std::min(attr_bytes, sizeof full));
  return 0;
}

}  // namespace
}  // namespace verbena::abi

using namespace verbena::abi;

VB_EXPORT ibv_device** ibv_get_device_list(int* num_devices) {
  if (num_devices != nullptr) *num_devices = 0;
  std::uint32_t count = 0;
  if (int error = find_devices(count)) return null_with(error);
  auto** list = static_cast<ibv_device**>(std::calloc(count + 1, sizeof(ibv_device*)));
  if (list == nullptr) return null_with(ENOMEM);
  for (std::uint32_t i = 0; i < count; ++i) list[i] = &devices[i].device;
  if (num_devices != nullptr) *num_devices = static_cast<int>(count);
  return list;
}

VB_EXPORT void ibv_free_device_list(ibv_device** list) { std::free(static_cast<void*>(list)); }

VB_EXPORT const char* ibv_get_device_name(ibv_device* device) { return device->name; }

// The kernel has no device for Verbena, so the device has no index.
VB_EXPORT int ibv_get_device_index(ibv_device*) { return -1; }

VB_EXPORT __be64 ibv_get_device_guid(ibv_device* device) {
  return htobe64(reinterpret_cast<const Device*>(device)->node_guid);
}

VB_EXPORT ibv_context* ibv_open_device(ibv_device* device) {
  if (int error = check_verbs_library()) return null_with(error);
  std::unique_ptr<Context> verbs(new (std::nothrow) Context{});
  if (!verbs) return null_with(ENOMEM);
  int async_fd = -1;
  if (int error = vb_context_create(reinterpret_cast<const Device*>(device)->index,
                                    &verbs->library_handle, &async_fd)) {
    explain_once();
    return null_with(error);
  }

  ibv_context& context = verbs->context;
  context.device = device;
  // There is no kernel device to open.  Programs may duplicate cmd_fd to import the device, but
  // ibv_import_device() refuses it.
  context.cmd_fd = async_fd;
  context.async_fd = async_fd;
  context.num_comp_vectors = 1;
  pthread_mutex_init(&context.mutex, nullptr);
  context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  set_data_path_ops(context.ops);
  set_port_ops(*verbs);
  set_srq_ops(*verbs);
  set_cq_ex_ops(*verbs);
  set_qp_ex_ops(*verbs);
  set_domain_ops(*verbs);
  set_memory_ops(*verbs);
  context.ops._compat_query_device = ibv_query_device;
  verbs->query_device_ex = query_device_ex;
  verbs->sz = sizeof(verbs_context);
  return &verbs.release()->context;
}

// Objects that the program has not destroyed remain usable, but their events are lost.  An error of
// vb_context_destroy() is ignored: a forked child may close a context of its parent, and libverbena
// has no such context in the child.
VB_EXPORT int ibv_close_device(ibv_context* context) {
  const std::unique_ptr<Context> verbs(&context_of(context));
  (void)vb_context_destroy(verbs->library_handle);
  pthread_mutex_destroy(&context->mutex);
  return 0;
}

VB_EXPORT int ibv_query_device(ibv_context* context, ibv_device_attr* device_attr) {
  vb_device_attr attr{};
  if (int error = vb_device_query(device_of(context), &attr)) return with_errno(error);
  *device_attr = to_public(attr);
  // The ports may have P_Key tables of different lengths; max_pkeys is the length of the longest.
  for (std::uint32_t number = 1; number <= attr.phys_port_count; ++number) {
    vb_port_attr port{};
    if (int error = vb_port_query(device_of(context), number, &port)) return with_errno(error);
    device_attr->max_pkeys =
        std::max(device_attr->max_pkeys, static_cast<std::uint16_t>(port.pkey_tbl_len));
  }
  return 0;
}

// Objects of other processes cannot be used.
VB_EXPORT ibv_context* ibv_import_device(int) { return null_with(EOPNOTSUPP); }
