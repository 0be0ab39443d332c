#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include <cstring>

#include "fake_objects.h"

// Implements the verbs of the fake libverbena.

using namespace fake;

namespace {

// Creates a PD, MR, MW or AH.
int make_other(vb_handle* handle) {
  std::scoped_lock lock(state().mutex);
  make_handle(handle);
  state().other_objects.insert(*handle);
  return 0;
}

int destroy_other(vb_handle handle) {
  std::scoped_lock lock(state().mutex);
  return state().other_objects.erase(handle) == 1 ? 0 : EINVAL;
}

Queue& context_queue(vb_handle handle) {
  std::scoped_lock lock(state().mutex);
  return *state().contexts.at(handle);
}

}  // namespace

extern "C" {

VB_API int vb_device_query(uint32_t device, vb_device_attr* attr) {
  RETURN_ERROR_OR_LOCK();
  if (device >= (state().has_two_devices ? 2 : 1)) return ENOENT;
  *attr = {};
  std::strcpy(attr->name, device == 0 ? "verbena0" : "mlx5_7");
  std::strcpy(attr->fw_ver, "0.1");
  attr->node_guid = 0x0011223344556677 + device;
  attr->max_qp = 1000;
  attr->max_cqe = 0xffffffff;
  attr->vendor_id = 0x1234;
  attr->phys_port_count = device == 0 ? 1 : 2;
  attr->atomic_cap = 2;
  return 0;
}
VB_API int vb_port_query(uint32_t device, uint32_t port, vb_port_attr* attr) {
  RETURN_ERROR_OR_LOCK();
  if (!has_port(device, port)) return EINVAL;
  *attr = {.state = 4,
           .phys_state = 5,
           .max_mtu = 5,
           .active_mtu = 3,
           .active_width = state().active_width,
           .active_speed = state().active_speed,
           .link_layer = 2,
           .gid_tbl_len = 4,
           .pkey_tbl_len = 1,
           .max_msg_bytes = 1u << 31,
           .port_cap_flags = 0x10000};
  if (device == 0) return 0;
  attr->link_layer = 1;
  attr->lid = static_cast<std::uint16_t>(8 * port);
  attr->lmc = 2;
  attr->sm_lid = 3;
  attr->sm_sl = 5;
  attr->pkey_tbl_len = 2;
  return 0;
}
VB_API int vb_gid_query(uint32_t device, uint32_t port, uint32_t index, vb_gid_entry* entry) {
  RETURN_ERROR_OR_LOCK();
  if (!has_port(device, port)) return EINVAL;
  if (device == 1) {
    if (index > 0) return ENOENT;
    *entry = {};
    inet_pton(AF_INET6, port == 1 ? "fe80::a" : "fe80::b", entry->raw);
    entry->in_use = 1;
    return 0;
  }
  if (index >= 4) return ENOENT;
  *entry = {};
  entry->index = index;
  if (index == 1) return 0;  // an empty entry
  entry->in_use = 1;
  entry->interface_index = 2;
  if (index == 0) {
    inet_pton(AF_INET6, "fe80::1", entry->raw);
  } else {
    inet_pton(AF_INET6, index == 2 ? "::ffff:10.0.0.1" : "2001:db8::1", entry->raw);
  }
  return 0;
}
VB_API int vb_pkey_query(uint32_t device, uint32_t port, uint32_t index, uint16_t* pkey) {
  RETURN_ERROR_OR_LOCK();
  if (!has_port(device, port)) return EINVAL;
  if (index > device) return ENOENT;
  *pkey = index == 0 ? 0xffff : static_cast<std::uint16_t>(0x8000 + port);
  return 0;
}

VB_API int vb_context_create(uint32_t device, vb_handle* context, int* fd) {
  RETURN_ERROR_OR_LOCK();
  make_handle(context);
  state().context_devices[*context] = device;
  state().contexts[*context] = std::make_unique<Queue>();
  *fd = state().contexts[*context]->fd();
  return 0;
}
VB_API int vb_context_destroy(vb_handle context) {
  RETURN_ERROR_OR_LOCK();
  return state().contexts.erase(context) == 1 ? 0 : EINVAL;
}
VB_API int vb_async_next(vb_handle context, vb_async_event* event) {
  Event next;
  if (int error = context_queue(context).next_event(next)) return error;
  *event = next.async;
  return 0;
}

VB_API int vb_pd_create(vb_handle* pd) {
  RETURN_ERROR_OR_LOCK();
  return make_other(pd);
}
VB_API int vb_pd_destroy(vb_handle pd) {
  RETURN_ERROR_OR_LOCK();
  return destroy_other(pd);
}
VB_API int vb_mr_register(vb_handle, void*, uint64_t, uint64_t, uint32_t access, vb_handle* mr,
                          uint32_t* lkey, uint32_t* rkey) {
  RETURN_ERROR_OR_LOCK();
  state().mr_access = access;
  *lkey = 17;
  *rkey = 18;
  return make_other(mr);
}
VB_API int vb_mr_create_null(vb_handle, vb_handle* mr, uint32_t* lkey) {
  RETURN_ERROR_OR_LOCK();
  *lkey = 19;
  return make_other(mr);
}
VB_API int vb_mr_reregister(vb_handle, uint32_t flags, vb_handle pd, void* address, uint64_t length,
                            uint32_t access) {
  RETURN_ERROR_OR_LOCK();
  state().rereg = {.flags = flags, .pd = pd, .address = address, .length = length};
  state().mr_access = access;
  return 0;
}
VB_API int vb_mr_prefetch(vb_handle, const vb_sge* list, uint32_t count, int) {
  RETURN_ERROR_OR_LOCK();
  state().prefetched.assign(list, list + count);
  return 0;
}
VB_API int vb_mr_deregister(vb_handle mr) {
  RETURN_ERROR_OR_LOCK();
  return destroy_other(mr);
}

VB_API int vb_mw_create(vb_handle, uint32_t type, vb_handle* mw, uint32_t* rkey) {
  RETURN_ERROR_OR_LOCK();
  *rkey = 0x123456ff - (type == 2 ? 1 : 0);
  return make_other(mw);
}
VB_API int vb_mw_destroy(vb_handle mw) {
  RETURN_ERROR_OR_LOCK();
  return destroy_other(mw);
}

VB_API int vb_channel_create(vb_handle* channel, int* fd) {
  RETURN_ERROR_OR_LOCK();
  return make_channel(channel, fd);
}
VB_API int vb_channel_destroy(vb_handle channel) { return destroy_channel(channel); }
VB_API int vb_channel_next(vb_handle channel, uint64_t* cq_cookie) {
  if (int error = injected_error(__func__)) return error;
  Event next;
  if (int error = channel_of(channel)->next_event(next)) return error;
  *cq_cookie = next.cookie;
  return 0;
}

VB_API int vb_cq_create(vb_handle context, uint32_t* entries, vb_handle channel, uint64_t cookie,
                        vb_handle* cq) {
  RETURN_ERROR_OR_LOCK();
  make_handle(cq);
  *entries += 1;
  state().cqs[*cq] = {.context = context, .cookie = cookie, .channel = channel, .completions = {}};
  return 0;
}
VB_API int vb_cq_resize(vb_handle cq, uint32_t* entries) {
  RETURN_ERROR_OR_LOCK();
  FIND_OR_RETURN(found, cqs, cq);
  if (found->completions.size() > *entries) return EINVAL;
  *entries += 1;
  return 0;
}
VB_API int vb_cq_destroy(vb_handle cq) {
  RETURN_ERROR_OR_LOCK();
  FIND_OR_RETURN(found, cqs, cq);
  if (found->channel != 0) {
    channel_of(found->channel)->remove_events([&](const Event& e) {
      return e.cookie == found->cookie;
    });
  }
  state().cqs.erase(cq);
  return 0;
}
VB_API int vb_cq_poll(vb_handle cq, int max, vb_wc* wc) {
  const std::scoped_lock lock(state().mutex);
  Cq* found = find(state().cqs, cq);
  if (found == nullptr) return -EINVAL;
  int n = 0;
  for (; n < max && !found->completions.empty(); ++n) {
    wc[n] = found->completions.front();
    found->completions.pop_front();
  }
  return n;
}
VB_API int vb_cq_arm(vb_handle, int) { return injected_error(__func__); }

VB_API int vb_ah_create(uint32_t device, vb_handle, const vb_ah_attr* attr, vb_handle* ah) {
  RETURN_ERROR_OR_LOCK();
  if (device == 0 && attr->is_global == 0) return EINVAL;
  state().ah = *attr;
  state().ah_device = device;
  return make_other(ah);
}
VB_API int vb_ah_destroy(vb_handle ah) { return destroy_other(ah); }

VB_API int vb_srq_create(vb_handle context, vb_handle, vb_srq_attr* attr, uint64_t cookie,
                         vb_handle* srq) {
  RETURN_ERROR_OR_LOCK();
  make_handle(srq);
  attr->max_wr += 1;
  state().srqs[*srq] = {.context = context, .cookie = cookie, .attr = *attr, .receives = {}};
  return 0;
}
VB_API int vb_srq_modify(vb_handle srq, const vb_srq_attr* attr, uint32_t mask) {
  RETURN_ERROR_OR_LOCK();
  FIND_OR_RETURN(found, srqs, srq);
  if ((mask & IBV_SRQ_MAX_WR) != 0) found->attr.max_wr = attr->max_wr;
  if ((mask & IBV_SRQ_LIMIT) != 0) found->attr.limit = attr->limit;
  return 0;
}
VB_API int vb_srq_query(vb_handle srq, vb_srq_attr* attr) {
  RETURN_ERROR_OR_LOCK();
  FIND_OR_RETURN(found, srqs, srq);
  *attr = found->attr;
  return 0;
}
VB_API int vb_srq_destroy(vb_handle srq) {
  RETURN_ERROR_OR_LOCK();
  for (const auto& [handle, qp] : state().qps) {
    if (qp.init.srq == srq) return EBUSY;
  }
  return state().srqs.erase(srq) == 1 ? 0 : EINVAL;
}
VB_API int vb_post_srq_recv(vb_handle srq, const vb_recv_wr* wr) {
  RETURN_ERROR_OR_LOCK();
  FIND_OR_RETURN(found, srqs, srq);
  if (found->receives.size() >= state().queue_capacity) return ENOMEM;
  found->receives.push_back(*wr);
  return 0;
}

VB_API int vb_qp_create(vb_qp_init* init, vb_handle* qp, uint32_t* qp_num) {
  RETURN_ERROR_OR_LOCK();
  make_handle(qp);
  *qp_num = static_cast<uint32_t>(*qp & 0xffffff);
  init->cap.max_inline_data = 256;
  state().qps[*qp] = {
      .init = *init, .attr = {}, .sent = {}, .inlined = {}, .more = {}, .receives = {}};
  return 0;
}
VB_API int vb_qp_modify(vb_handle qp, const vb_qp_attr* attr, uint32_t mask) {
  RETURN_ERROR_OR_LOCK();
  FIND_OR_RETURN(found, qps, qp);
  const auto before = found->attr.qp_state;
  found->attr = *attr;
  if ((mask & IBV_QP_STATE) == 0) found->attr.qp_state = before;
  return 0;
}
VB_API int vb_qp_query(vb_handle qp, vb_qp_attr* attr, vb_qp_init* init) {
  if (state().on_qp_query) state().on_qp_query();
  RETURN_ERROR_OR_LOCK();
  FIND_OR_RETURN(found, qps, qp);
  *attr = found->attr;
  *init = found->init;
  return 0;
}
VB_API int vb_qp_attach(vb_handle qp, const uint8_t group[16], uint32_t) {
  RETURN_ERROR_OR_LOCK();
  FIND_OR_RETURN(found, qps, qp);
  return found->init.type == IBV_QPT_UD && group[0] == 0xff ? 0 : EINVAL;
}
VB_API int vb_qp_detach(vb_handle qp, const uint8_t group[16]) {
  return vb_qp_attach(qp, group, 0);
}
VB_API int vb_qp_destroy(vb_handle qp) {
  RETURN_ERROR_OR_LOCK();
  for (const auto& [handle, id] : state().ids) {
    if (id.qp == qp) return EBUSY;
  }
  return state().qps.erase(qp) == 1 ? 0 : EINVAL;
}
VB_API int vb_post_send(vb_handle qp, const vb_send_wr* wr, int more) {
  RETURN_ERROR_OR_LOCK();
  FIND_OR_RETURN(found, qps, qp);
  if (found->sent.size() >= state().queue_capacity) return ENOMEM;
  found->sent.push_back(*wr);
  const bool inlined = (wr->send_flags & IBV_SEND_INLINE) != 0 && wr->num_sge != 0;
  found->inlined.emplace_back(inlined ? reinterpret_cast<const char*>(wr->sg_list[0].addr) : "",
                              inlined ? wr->sg_list[0].length : 0);
  found->more.push_back(more);
  return 0;
}
VB_API int vb_post_send_list(vb_handle qp, const vb_send_wr* wrs, uint32_t count) {
  {
    RETURN_ERROR_OR_LOCK();
    FIND_OR_RETURN(found, qps, qp);
    if (count > state().queue_capacity - found->sent.size()) return ENOMEM;
  }
  for (uint32_t i = 0; i < count; ++i) {
    if (int error = vb_post_send(qp, &wrs[i], i + 1 < count ? 1 : 0)) return error;
  }
  return 0;
}
VB_API int vb_post_recv(vb_handle qp, const vb_recv_wr* wr) {
  RETURN_ERROR_OR_LOCK();
  FIND_OR_RETURN(found, qps, qp);
  if (found->receives.size() >= state().queue_capacity) return ENOMEM;
  found->receives.push_back(*wr);
  return 0;
}

}  // extern "C"
