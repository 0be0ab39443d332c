#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "c_api/sockaddr.h"
#include "fake_objects.h"

// Implements the connection manager of the fake libverbena.

using namespace fake;

namespace {

void report_event(const Id& id, vb_cm_event event) {
  event.cookie = id.cookie;
  channel_of(id.channel)->push({.cm = event});
}

// Sets the id's port by an address: 10.0.D.N selects port N of device D, if the host has that port.
// Any other address selects the first port of the first device.
void set_port(Id& id, const sockaddr_in& address) {
  const std::uint32_t ip = ntohl(address.sin_addr.s_addr);
  const std::uint32_t device = ip >> 8 & 0xff, port = ip & 0xff;
  const bool has_such_port = ip >> 16 == 0x0a00 && has_port(device, port);
  id.addresses.device = has_such_port ? device : 0;
  id.addresses.port_num = has_such_port ? port : 1;
  id.addresses.is_global = id.addresses.device == 0;
  if (id.addresses.device == 0) return;
  id.addresses.slid = static_cast<std::uint16_t>(8 * port);
  id.addresses.dlid = 0x55;
  id.addresses.sl = 3;
}

int set_qp_state(vb_handle qp, std::uint32_t value) {
  if (Qp* found = find(state().qps, qp)) found->attr.qp_state = value;
  return 0;
}

}  // namespace

extern "C" {

VB_API int vb_cm_channel_create(vb_handle* channel, int* fd) {
  RETURN_ERROR_OR_LOCK();
  return make_channel(channel, fd);
}
VB_API int vb_cm_channel_hide_lost_requests(vb_handle) { return 0; }
VB_API int vb_cm_id_write_event(vb_handle, uint32_t, int32_t, uint64_t) { return EOPNOTSUPP; }
VB_API int vb_cm_channel_destroy(vb_handle channel) {
  const std::scoped_lock lock(state().mutex);
  for (const auto& [handle, id] : state().ids) {
    if (id.channel == channel) return EBUSY;
  }
  return destroy_channel(channel);
}
VB_API int vb_cm_id_create(vb_handle channel, uint32_t, uint32_t, uint64_t cookie, vb_handle* id) {
  RETURN_ERROR_OR_LOCK();
  make_handle(id);
  state().newest_id = *id;
  state().ids[*id] = {
      .channel = channel, .cookie = cookie, .qp = 0, .addresses = {}, .private_data = {}};
  return 0;
}
VB_API int vb_cm_id_destroy(vb_handle id) {
  RETURN_ERROR_OR_LOCK();
  FIND_OR_RETURN(found, ids, id);
  channel_of(found->channel)->remove_events([&](const Event& e) {
    return e.cm.cookie == found->cookie;
  });
  state().ids.erase(id);
  return 0;
}
VB_API int vb_cm_id_set_cookie(vb_handle id, uint64_t cookie) {
  RETURN_ERROR_OR_LOCK();
  FIND_OR_RETURN(found, ids, id);
  found->cookie = cookie;
  return 0;
}
VB_API int vb_cm_id_migrate(vb_handle id, vb_handle channel) {
  RETURN_ERROR_OR_LOCK();
  FIND_OR_RETURN(found, ids, id);
  found->channel = channel;
  return 0;
}
VB_API int vb_cm_id_addresses(vb_handle id, vb_cm_addresses* addresses) {
  RETURN_ERROR_OR_LOCK();
  FIND_OR_RETURN(found, ids, id);
  *addresses = found->addresses;
  return 0;
}
VB_API int vb_cm_bind(vb_handle id, const sockaddr* addr) {
  RETURN_ERROR_OR_LOCK();
  FIND_OR_RETURN(found, ids, id);
  std::memcpy(&found->addresses.src, addr, sizeof(sockaddr_in));
  auto& src = reinterpret_cast<sockaddr_in&>(found->addresses.src);
  if (src.sin_port == 0) src.sin_port = htons(34567);
  found->addresses.bound = src.sin_addr.s_addr != 0;
  set_port(*found, src);
  return 0;
}
VB_API int vb_cm_resolve_addr(vb_handle id, const sockaddr*, const sockaddr* dst, int) {
  RETURN_ERROR_OR_LOCK();
  FIND_OR_RETURN(found, ids, id);
  std::memcpy(&found->addresses.dst, dst, sizeof(sockaddr_in));
  sockaddr_in src{};
  src.sin_family = AF_INET;
  src.sin_addr.s_addr = htonl(0x0a000001);
  std::memcpy(&found->addresses.src, &src, sizeof src);
  found->addresses.bound = 1;
  set_port(*found, reinterpret_cast<const sockaddr_in&>(found->addresses.dst));
  found->addresses.pkey = 0xffff;
  found->addresses.sgid[15] = 1;
  found->addresses.dgid[15] = 2;
  report_event(*found, {.type = RDMA_CM_EVENT_ADDR_RESOLVED});
  return 0;
}
VB_API int vb_cm_resolve_route(vb_handle id, int) {
  RETURN_ERROR_OR_LOCK();
  FIND_OR_RETURN(found, ids, id);
  found->addresses.resolved_path = 1;
  found->addresses.path_mtu = 3;
  found->addresses.hop_limit = 64;
  report_event(*found, {.type = RDMA_CM_EVENT_ROUTE_RESOLVED});
  return 0;
}
namespace {

void record_query(const vb_service_query& query) {
  state().queried_service =
      query.name != nullptr ? query.name : "#" + std::to_string(*query.service_id);
}
void copy_services(vb_service* services, uint32_t max, uint32_t* count) {
  *count = static_cast<uint32_t>(state().services.size());
  std::copy_n(state().services.begin(), std::min(max, *count), services);
}

}  // namespace
VB_API int vb_cm_find_services(vb_handle id, const vb_service_query* query) {
  RETURN_ERROR_OR_LOCK();
  FIND_OR_RETURN(found, ids, id);
  record_query(*query);
  const bool none = state().services.empty();
  report_event(*found, {.type = none ? 17u : 16u, .status = none ? -EADDRNOTAVAIL : 0});
  return 0;
}
VB_API int vb_cm_services(vb_handle id, vb_service* services, uint32_t max, uint32_t* count) {
  RETURN_ERROR_OR_LOCK();
  FIND_OR_RETURN(found, ids, id);
  copy_services(services, max, count);
  return 0;
}
VB_API int vb_services_find(uint32_t device, uint8_t, const vb_service_query* query,
                            vb_service* services, uint32_t max, uint32_t* count) {
  RETURN_ERROR_OR_LOCK();
  record_query(*query);
  state().queried_device = device;
  copy_services(services, max, count);
  return 0;
}
VB_API int vb_cm_listen(vb_handle, int) { return injected_error(__func__); }
VB_API int vb_cm_set_option(vb_handle, int, int, const void*, size_t) {
  return injected_error(__func__);
}
VB_API int vb_cm_id_set_qp(vb_handle id, vb_handle qp) {
  RETURN_ERROR_OR_LOCK();
  FIND_OR_RETURN(found, ids, id);
  for (auto& [handle, other_id] : state().ids) {
    if (other_id.qp == qp) other_id.qp = 0;
  }
  found->qp = qp;
  return qp == 0 ? 0 : set_qp_state(qp, IBV_QPS_INIT);
}
VB_API int vb_cm_init_qp_attr(vb_handle, vb_qp_attr* attr, uint32_t* mask) {
  RETURN_ERROR_OR_LOCK();
  attr->port_num = 1;
  *mask = IBV_QP_STATE | IBV_QP_PORT;
  return 0;
}
VB_API int vb_cm_connect(vb_handle id, const vb_conn_param* param) {
  RETURN_ERROR_OR_LOCK();
  FIND_OR_RETURN(found, ids, id);
  const auto* data = static_cast<const std::uint8_t*>(param->private_data);
  found->private_data.assign(data, data + param->private_data_len);
  found->ece_vendor_id = param->ece_vendor_id;
  found->ece_options = param->ece_options;
  if (state().connect_answer.type == RDMA_CM_EVENT_ESTABLISHED) {
    set_qp_state(found->qp, IBV_QPS_RTS);
  }
  report_event(*found, state().connect_answer);
  return 0;
}
VB_API int vb_cm_accept(vb_handle id, const vb_conn_param*) {
  RETURN_ERROR_OR_LOCK();
  FIND_OR_RETURN(found, ids, id);
  set_qp_state(found->qp, IBV_QPS_RTS);
  report_event(*found, {.type = RDMA_CM_EVENT_ESTABLISHED});
  return 0;
}
VB_API int vb_cm_reject(vb_handle, uint32_t reason, const void*, uint8_t) {
  state().reject_reason = reason;
  return injected_error(__func__);
}
VB_API int vb_cm_establish(vb_handle) { return injected_error(__func__); }
VB_API int vb_cm_notify(vb_handle, uint32_t) { return injected_error(__func__); }
VB_API int vb_cm_disconnect(vb_handle id) {
  RETURN_ERROR_OR_LOCK();
  FIND_OR_RETURN(found, ids, id);
  set_qp_state(found->qp, IBV_QPS_ERR);
  report_event(*found, {.type = RDMA_CM_EVENT_DISCONNECTED});
  return 0;
}
VB_API int vb_cm_join(vb_handle id, const sockaddr* group, int send_only, uint64_t cookie) {
  RETURN_ERROR_OR_LOCK();
  FIND_OR_RETURN(found, ids, id);
  found->groups[cookie] = send_only != 0;
  vb_cm_event event{};
  event.type = state().join_answer;
  event.status = event.type == RDMA_CM_EVENT_MULTICAST_JOIN ? 0 : -ENOMEM;
  event.qp_num = 0xffffff;
  event.qkey = RDMA_UDP_QKEY;
  event.group_cookie = cookie;
  event.group = state().join_address;
  if (group->sa_family == AF_INET) {
    std::memcpy(event.group.dgid + 12, &reinterpret_cast<const sockaddr_in*>(group)->sin_addr, 4);
  }
  event.group_rate = event.group.dlid != 0 ? IBV_RATE_40_GBPS : 0;
  std::memcpy(&found->joined_address, group, verbena::c_api::bytes_of(*group));
  report_event(*found, event);
  return 0;
}
VB_API int vb_cm_leave(vb_handle id, uint64_t cookie) {
  RETURN_ERROR_OR_LOCK();
  FIND_OR_RETURN(found, ids, id);
  return found->groups.erase(cookie) == 1 ? 0 : EADDRNOTAVAIL;
}
VB_API int vb_cm_next_event(vb_handle channel, vb_cm_event* event) {
  if (int error = injected_error(__func__)) return error;
  Event next;
  if (int error = channel_of(channel)->next_event(next)) return error;
  *event = next.cm;
  return 0;
}

}  // extern "C"
