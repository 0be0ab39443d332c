#include <infiniband/verbs.h>

#include <algorithm>
#include <cstring>

#include "abi/abi.h"
#include "abi/library.h"
#include "abi/objects.h"
#include "abi/verbs/ops.h"
#include "verbena/c_api.h"

// Implements queries of ports, their GIDs and their P_Keys.

// <infiniband/verbs.h> defines this name as a macro, which calls the operation of the context.
#undef ibv_query_port

namespace verbena::abi {
namespace {

int query_port(ibv_context* context, std::uint8_t port_num, ibv_port_attr* attr,
               size_t attr_bytes) {
  vb_port_attr port{};
  if (int error = vb_port_query(device_of(context), port_num, &port)) return with_errno(error);
  const bool waits_for_manager =
      port.link_layer == IBV_LINK_LAYER_INFINIBAND && port.state != IBV_PORT_ACTIVE;
  if (port.state == IBV_PORT_DOWN || waits_for_manager || port.host_alone != 0) explain_once();
  ibv_port_attr full{};
  full.state = static_cast<ibv_port_state>(port.state);
  full.max_mtu = static_cast<ibv_mtu>(port.max_mtu);
  full.active_mtu = static_cast<ibv_mtu>(port.active_mtu);
  full.gid_tbl_len = static_cast<int>(port.gid_tbl_len);
  full.port_cap_flags = port.port_cap_flags;
  full.max_msg_sz = port.max_msg_bytes;
  full.pkey_tbl_len = static_cast<std::uint16_t>(port.pkey_tbl_len);
  full.max_vl_num = port.max_vl_num;
  full.subnet_timeout = port.subnet_timeout;
  full.active_width = port.active_width;
  full.active_speed = port.active_speed;
  full.phys_state = port.phys_state;
  full.link_layer = port.link_layer;
  full.lid = port.lid;
  full.sm_lid = port.sm_lid;
  full.lmc = port.lmc;
  full.sm_sl = port.sm_sl;
  // RoCE has no LIDs: every address is a GID.
  if (port.link_layer == IBV_LINK_LAYER_ETHERNET) full.flags = IBV_QPF_GRH_REQUIRED;
  std::memset(attr, 0, attr_bytes);
  std::memcpy(attr, &full, std::min(attr_bytes, sizeof full));
  return 0;
}

// Returns ENODATA for an empty entry of the table, as the kernel does.
int query_gid(const ibv_context* context, std::uint32_t port_num, std::uint32_t index,
              ibv_gid_entry& out) {
  const std::uint32_t device = device_of(context);
  vb_gid_entry entry{};
  if (int error = vb_gid_query(device, port_num, index, &entry)) {
    return error == ENOENT ? EINVAL : error;
  }
  if (entry.in_use == 0) return ENODATA;
  out = {};
  std::memcpy(out.gid.raw, entry.raw, sizeof out.gid.raw);
  out.gid_index = index;
  out.port_num = port_num;
  vb_port_attr port{};
  if (int error = vb_port_query(device, port_num, &port)) return error;
  out.gid_type =
      port.link_layer == IBV_LINK_LAYER_ETHERNET ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_IB;
  out.ndev_ifindex = entry.interface_index;
  return 0;
}

}  // namespace

void set_port_ops(verbs_context& verbs) {
  verbs.query_port = query_port;
  verbs.context.ops._compat_query_port = ibv_query_port;
}

}  // namespace verbena::abi

using namespace verbena::abi;

// Old programs pass a structure that ends before port_cap_flags2.
VB_EXPORT int ibv_query_port(ibv_context* context, uint8_t port_num,
                             _compat_ibv_port_attr* port_attr) {
  return query_port(context, port_num, reinterpret_cast<ibv_port_attr*>(port_attr),
                    offsetof(ibv_port_attr, port_cap_flags2));
}

VB_EXPORT int ibv_query_gid(ibv_context* context, uint8_t port_num, int index, ibv_gid* gid) {
  ibv_gid_entry entry{};
  const int error = query_gid(context, port_num, static_cast<std::uint32_t>(index), entry);
  if (error != 0 && error != ENODATA) return failed(error);
  *gid = entry.gid;  // all zero for an empty entry, as programs expect
  return 0;
}

VB_EXPORT int _ibv_query_gid_ex(ibv_context* context, uint32_t port_num, uint32_t gid_index,
                                ibv_gid_entry* entry, uint32_t flags, size_t entry_size) {
  if (flags != 0) return with_errno(EOPNOTSUPP);
  ibv_gid_entry found{};
  if (int error = query_gid(context, port_num, gid_index, found)) return with_errno(error);
  std::memset(entry, 0, entry_size);
  std::memcpy(entry, &found, std::min(entry_size, sizeof found));
  return 0;
}

VB_EXPORT ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries,
                                       size_t max_entries, uint32_t flags, size_t entry_size) {
  if (flags != 0) return -with_errno(EOPNOTSUPP);
  auto* out = reinterpret_cast<std::byte*>(entries);
  size_t stored_count = 0;
  vb_device_attr device{};
  if (int error = vb_device_query(device_of(context), &device)) return -with_errno(error);
  for (std::uint32_t port = 1; port <= device.phys_port_count; ++port) {
    for (std::uint32_t index = 0;; ++index) {
      ibv_gid_entry entry{};
      const int error = query_gid(context, port, index, entry);
      if (error == ENODATA) continue;
      if (error == EINVAL) break;  // the index is past the end of the table
      if (error != 0) return -with_errno(error);
      if (stored_count == max_entries) return -with_errno(EINVAL);
      std::memset(out, 0, entry_size);
      std::memcpy(out, &entry, std::min(entry_size, sizeof entry));
      out += entry_size;
      ++stored_count;
    }
  }
  return static_cast<ssize_t>(stored_count);
}

// ibv_devinfo and pyverbs call this private function.  It sets *type to 1 for RoCE v2, and to 0 for
// InfiniBand and for an empty entry.
VB_EXPORT int ibv_query_gid_type(ibv_context* context, uint8_t port_num, unsigned int index,
                                 int* type) {
  ibv_gid_entry entry{};
  const int error = query_gid(context, port_num, index, entry);
  if (error != 0 && error != ENODATA) return failed(error);
  *type = error == 0 && entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? 1 : 0;
  return 0;
}

VB_EXPORT int ibv_query_pkey(ibv_context* context, uint8_t port_num, int index, __be16* pkey) {
  std::uint16_t value = 0;
  if (int error =
          vb_pkey_query(device_of(context), port_num, static_cast<std::uint32_t>(index), &value)) {
    return failed(error == ENOENT ? EINVAL : error);
  }
  *pkey = htobe16(value);
  return 0;
}

VB_EXPORT int ibv_get_pkey_index(ibv_context* context, uint8_t port_num, __be16 pkey) {
  for (int index = 0;; ++index) {
    __be16 found = 0;
    if (ibv_query_pkey(context, port_num, index, &found) != 0) return -1;
    if (found == pkey) return index;
  }
}
