// Implements the C API over an adapter: the library itself, the device and its port, protection
// domains, memory.

#include <cstdio>
#include <cstring>

#include "adapter/adapter.h"
#include "c_api/attributes.h"
#include "verbena_build.h"

using verbena::Errc;
using namespace verbena::adapter;  // NOLINT(google-build-using-namespace): the C API of adapters
namespace c_api = verbena::c_api;

namespace {

vb_device_attr to_c_api(const ibv_device_attr& attr, const char* name) {
  vb_device_attr out{};
  std::snprintf(out.name, sizeof out.name, "%s", name);
  std::memcpy(out.fw_ver, attr.fw_ver, sizeof out.fw_ver);
  out.node_guid = be64toh(attr.node_guid);
  out.sys_image_guid = be64toh(attr.sys_image_guid);
  out.max_mr_bytes = attr.max_mr_size;
  out.vendor_id = attr.vendor_id;
  out.vendor_part_id = attr.vendor_part_id;
  out.hw_ver = attr.hw_ver;
  const auto count = [](int number) { return static_cast<std::uint32_t>(number); };
  out.max_qp = count(attr.max_qp);
  out.max_qp_wr = count(attr.max_qp_wr);
  out.max_sge = count(attr.max_sge);
  out.max_sge_rd = count(attr.max_sge_rd);
  out.max_cq = count(attr.max_cq);
  out.max_cqe = count(attr.max_cqe);
  out.max_mr = count(attr.max_mr);
  out.max_mw = count(attr.max_mw);
  out.max_pd = count(attr.max_pd);
  out.max_ah = count(attr.max_ah);
  out.max_srq = count(attr.max_srq);
  out.max_mcast_grp = count(attr.max_mcast_grp);
  out.max_mcast_qp_attach = count(attr.max_mcast_qp_attach);
  out.max_qp_rd_atom = count(attr.max_qp_rd_atom);
  out.max_qp_init_rd_atom = count(attr.max_qp_init_rd_atom);
  out.max_res_rd_atom = count(attr.max_res_rd_atom);
  out.atomic_cap = attr.atomic_cap;
  out.local_ca_ack_delay = attr.local_ca_ack_delay;
  out.phys_port_count = 1;  // programs see only the chosen port
  return out;
}

int query_port(const Adapter& adapter, ibv_port_attr& attr) {
  attr = {};
  if (verbs_context* const extended = verbs_get_ctx_op(adapter.context, query_port)) {
    return extended->query_port(adapter.context, adapter.port, &attr, sizeof attr);
  }
  return adapter.system.query_port(adapter.context, adapter.port,
                                   reinterpret_cast<_compat_ibv_port_attr*>(&attr));
}

constexpr vb_handle kOnlyContext = 1;

// VERBENA_ADAPTER chooses one port of one device.  The C API presents it as the only port.
constexpr std::uint32_t kOnlyDevice = 0, kOnlyPort = 1;
bool is_chosen_port(std::uint32_t device, std::uint32_t port) {
  return device == kOnlyDevice && port == kOnlyPort;
}

int fail_without_port() { return c_api::failed({Errc::kBadHandle, 0, "no such port"}); }

bool is_port_event(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE: return true;
    default: return false;
  }
}

// Returns the index of a window in Adapter::windows: the upper bits of its key, which do not
// change.
std::uint32_t window_index_of(std::uint32_t key) { return key >> 8; }

int add_region(Adapter& adapter, ibv_mr* raw, vb_handle* mr) {
  const auto end = [&](ibv_mr* object) { adapter.system.dereg_mr(object); };
  const int error = add(adapter, &Adapter::mrs, "register memory", raw, mr, end);
  if (error != 0) return error;
  const std::lock_guard lock(adapter.mutex);
  adapter.regions[raw->lkey] = raw;
  return 0;
}

}  // namespace

extern "C" {

const char* vb_last_error(void) { return c_api::last_error(); }

const char* vb_build_id(void) { return verbena_build_id(); }

int vb_device_query(uint32_t device, struct vb_device_attr* attr) {
  if (device != kOnlyDevice) return c_api::failed({Errc::kSystem, ENOENT, "no such device"});
  return on_adapter([&](Adapter& adapter) {
    ibv_device_attr attributes{};
    if (const int error = adapter.system.query_device(adapter.context, &attributes)) {
      return fail_with_errno("query the adapter", error);
    }
    *attr = to_c_api(attributes, adapter.system.get_device_name(adapter.context->device));
    return 0;
  });
}

int vb_port_query(uint32_t device, uint32_t port, struct vb_port_attr* attr) {
  if (!is_chosen_port(device, port)) return fail_without_port();
  return on_adapter([&](Adapter& adapter) {
    ibv_port_attr attributes;
    if (const int error = query_port(adapter, attributes))
      return fail_with_errno("query the port", error);
    *attr = {};
    attr->state = static_cast<std::uint8_t>(attributes.state);
    attr->phys_state = attributes.phys_state;
    attr->max_mtu = static_cast<std::uint8_t>(attributes.max_mtu);
    attr->active_mtu = static_cast<std::uint8_t>(attributes.active_mtu);
    attr->active_width = attributes.active_width;
    attr->active_speed = attributes.active_speed;
    attr->link_layer = attributes.link_layer;
    attr->lid = attributes.lid;
    attr->lmc = attributes.lmc;
    attr->sm_lid = attributes.sm_lid;
    attr->sm_sl = attributes.sm_sl;
    attr->gid_tbl_len = static_cast<std::uint32_t>(attributes.gid_tbl_len);
    attr->pkey_tbl_len = attributes.pkey_tbl_len;
    attr->max_msg_bytes = attributes.max_msg_sz;
    attr->port_cap_flags = attributes.port_cap_flags;
    attr->max_vl_num = attributes.max_vl_num;
    attr->subnet_timeout = attributes.subnet_timeout;
    // The drop-in libraries print this text if the port is down.
    if (attributes.state != IBV_PORT_ACTIVE) {
      c_api::set_last_error("the port of the adapter is not active");
    }
    return 0;
  });
}

// Returns an empty entry for a GID of RoCEv1, which Verbena does not support.
int vb_gid_query(uint32_t device, uint32_t port_num, uint32_t index, struct vb_gid_entry* entry) {
  if (!is_chosen_port(device, port_num)) return fail_without_port();
  return on_adapter([&](Adapter& adapter) {
    ibv_port_attr port;
    if (const int error = query_port(adapter, port))
      return fail_with_errno("query the port", error);
    if (index >= static_cast<std::uint32_t>(port.gid_tbl_len)) {
      return fail_with_errno("query an address of the port", ENOENT);
    }
    *entry = {.raw = {}, .index = index, .interface_index = 0, .in_use = 0};
    ibv_gid_entry raw_entry{};
    const int error = adapter.system.query_gid_ex(adapter.context, adapter.port, index, &raw_entry,
                                                  0, sizeof raw_entry);
    if (error == ENODATA) return 0;
    if (error != 0) return fail_with_errno("query an address of the port", error);
    if (raw_entry.gid_type == IBV_GID_TYPE_ROCE_V1) return 0;
    std::memcpy(entry->raw, raw_entry.gid.raw, sizeof entry->raw);
    entry->interface_index = raw_entry.ndev_ifindex;
    entry->in_use = 1;
    return 0;
  });
}

int vb_pkey_query(uint32_t device, uint32_t port, uint32_t index, uint16_t* pkey) {
  if (!is_chosen_port(device, port)) return fail_without_port();
  return on_adapter([&](Adapter& adapter) {
    __be16 raw_pkey = 0;
    const int error = adapter.system.query_pkey(adapter.context, adapter.port,
                                                static_cast<int>(index), &raw_pkey);
    if (error != 0) return fail_with_errno("query a P_Key", EINVAL);
    *pkey = be16toh(raw_pkey);
    return 0;
  });
}

// Returns the only context of the process, because the device is opened once, with one descriptor.
// One context is enough, because C++ programs create one context for all their loops.
int vb_context_create(uint32_t /*device*/, vb_handle* context, int* fd) {
  return on_adapter([&](Adapter& adapter) {
    *context = kOnlyContext;
    *fd = adapter.context->async_fd;
    return 0;
  });
}

int vb_context_destroy(vb_handle context) {
  return context == kOnlyContext ? 0 : fail_without_object();
}

// Waits for an event.  Thread cancellation may unwind this function, so it holds no lock while it
// waits.
int vb_async_next(vb_handle context, struct vb_async_event* event) {
  Adapter* const adapter = Adapter::get_if_open();
  if (adapter == nullptr || context != kOnlyContext) return fail_without_object();
  ibv_async_event raw_event;
  for (;;) {
    if (adapter->system.get_async_event(adapter->context, &raw_event) != 0) return errno;
    if (!is_port_event(raw_event.event_type) || raw_event.element.port_num == adapter->port) break;
    // Drops the event of another port, because the C API has only the chosen port.
    adapter->system.ack_async_event(&raw_event);
  }
  const void* cookie = nullptr;
  switch (raw_event.event_type) {
    case IBV_EVENT_CQ_ERR: cookie = raw_event.element.cq->cq_context; break;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED: cookie = raw_event.element.srq->srq_context; break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR: cookie = raw_event.element.qp->qp_context; break;
    default: break;
  }
  *event = {.type = static_cast<std::uint32_t>(raw_event.event_type),
            .cookie = reinterpret_cast<std::uintptr_t>(cookie),
            .device = kOnlyDevice,
            .port = is_port_event(raw_event.event_type) ? kOnlyPort : 0};
  adapter->system.ack_async_event(&raw_event);
  return 0;
}

int vb_pd_create(vb_handle* pd) {
  return on_adapter([&](Adapter& adapter) {
    return add(adapter, &Adapter::pds, "create a protection domain",
               adapter.system.alloc_pd(adapter.context), pd,
               [&](ibv_pd* object) { adapter.system.dealloc_pd(object); });
  });
}

int vb_pd_destroy(vb_handle pd) {
  return remove(
      &Adapter::pds, "destroy the protection domain", pd,
      [](Adapter& adapter, ibv_pd& domain) { return adapter.system.dealloc_pd(&domain); });
}

int vb_mr_register(vb_handle pd, void* address, uint64_t length, uint64_t iova, uint32_t access,
                   vb_handle* mr, uint32_t* lkey, uint32_t* rkey) {
  return on_command(&Adapter::pds, pd, [&](Adapter& adapter, ibv_pd& domain) {
    ibv_mr* const raw = adapter.system.reg_mr(&domain, address, length, iova, access);
    const int error = add_region(adapter, raw, mr);
    if (error != 0) return error;
    *lkey = raw->lkey;
    *rkey = raw->rkey;
    return 0;
  });
}

int vb_mr_create_null(vb_handle pd, vb_handle* mr, uint32_t* lkey) {
  return on_command(&Adapter::pds, pd, [&](Adapter& adapter, ibv_pd& domain) {
    ibv_mr* const raw = ibv_alloc_null_mr(&domain);
    const int error = add_region(adapter, raw, mr);
    if (error == 0) *lkey = raw->lkey;
    return error;
  });
}

// Refuses every change, because some adapters change the keys.  The C API promises that the keys of
// a region do not change.
int vb_mr_reregister(vb_handle mr, uint32_t /*what*/, vb_handle /*pd*/, void* /*address*/,
                     uint64_t /*length*/, uint32_t /*access*/) {
  return on_command(&Adapter::mrs, mr, [](Adapter&, ibv_mr&) {
    return c_api::failed({Errc::kNotSupported, 0, "regions of an adapter cannot be reregistered"});
  });
}

int vb_mr_deregister(vb_handle mr) {
  return remove(&Adapter::mrs, "deregister the region", mr, [](Adapter& adapter, ibv_mr& object) {
    const std::uint32_t key = object.lkey;
    if (const int error = adapter.system.dereg_mr(&object)) return error;
    const std::lock_guard lock(adapter.mutex);
    adapter.regions.erase(key);
    return 0;
  });
}

int vb_mr_prefetch(vb_handle pd, const struct vb_sge* list, uint32_t count, int write) {
  return on_command(&Adapter::pds, pd, [&](Adapter&, ibv_pd& domain) {
    auto* const segments = reinterpret_cast<ibv_sge*>(const_cast<vb_sge*>(list));
    const auto advice =
        write != 0 ? IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE : IBV_ADVISE_MR_ADVICE_PREFETCH;
    const int error = ibv_advise_mr(&domain, advice, IBV_ADVISE_MR_FLAG_FLUSH, segments, count);
    return error == 0 ? 0 : fail_with_errno("prefetch memory", error);
  });
}

// Windows of type 1 are not supported.  A function of the adapter binds them and chooses their key,
// but the C API binds windows only with requests.
int vb_mw_create(vb_handle pd, uint32_t type, vb_handle* mw, uint32_t* rkey) {
  return on_command(&Adapter::pds, pd, [&](Adapter& adapter, ibv_pd& domain) {
    if (type != IBV_MW_TYPE_2) {
      return c_api::failed(
          {Errc::kNotSupported, 0, "an adapter supports only memory windows of type 2"});
    }
    ibv_mw* const raw = ibv_alloc_mw(&domain, IBV_MW_TYPE_2);
    const int error =
        add(adapter, &Adapter::mws, "create a memory window", raw, mw, ibv_dealloc_mw);
    if (error != 0) return error;
    *rkey = raw->rkey;
    const std::lock_guard lock(adapter.mutex);
    adapter.windows[window_index_of(raw->rkey)] = raw;
    return 0;
  });
}

int vb_mw_destroy(vb_handle mw) {
  return remove(&Adapter::mws, "destroy the memory window", mw,
                [](Adapter& adapter, ibv_mw& object) {
                  const std::uint32_t index = window_index_of(object.rkey);
                  if (const int error = ibv_dealloc_mw(&object)) return error;
                  const std::lock_guard lock(adapter.mutex);
                  adapter.windows.erase(index);
                  return 0;
                });
}

}  // extern "C"
