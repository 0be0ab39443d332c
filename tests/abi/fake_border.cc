#include "fake_border.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "verbena_build.h"

namespace fake {

State& state() {
  static State& all = *[] {
    auto* made = new State;
    made->connect_answer.type = RDMA_CM_EVENT_ESTABLISHED;
    return made;
  }();
  return all;
}

Queue::Queue() : fd_(eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE)) {}
Queue::~Queue() { close(fd_); }

void Queue::push(const Event& event) {
  std::scoped_lock lock(mutex_);
  events_.push_back(event);
  eventfd_write(fd_, 1);
}

int Queue::take(Event& event) {
  for (;;) {
    if ((fcntl(fd_, F_GETFL) & O_NONBLOCK) == 0) {
      pollfd wait{.fd = fd_, .events = POLLIN, .revents = 0};
      if (poll(&wait, 1, -1) < 0) return errno;
    }
    std::scoped_lock lock(mutex_);
    if (!events_.empty()) {
      event = events_.front();
      events_.pop_front();
      remove_readable(1);
      return 0;
    }
    if ((fcntl(fd_, F_GETFL) & O_NONBLOCK) != 0) return EAGAIN;
  }
}

void Queue::remove_readable(std::size_t count) {
  for (; count > 0; --count) {
    eventfd_t one = 0;
    eventfd_read(fd_, &one);
  }
}

namespace {

// Returns the errno with which the test lets this function fail, or 0.
int refused(const char* function) {
  std::scoped_lock lock(state().mutex);
  const auto it = state().fail.find(function);
  return it != state().fail.end() ? it->second : 0;
}

int make(vb_handle* handle) {
  *handle = ++state().last;
  return 0;
}

int make_other(vb_handle* handle) {
  std::scoped_lock lock(state().mutex);
  make(handle);
  state().others.insert(*handle);
  return 0;
}

int destroy_other(vb_handle handle) {
  std::scoped_lock lock(state().mutex);
  return state().others.erase(handle) == 1 ? 0 : EINVAL;
}

template <class Map>
auto* find(Map& map, vb_handle handle) {
  const auto it = map.find(handle);
  return it != map.end() ? &it->second : nullptr;
}

int make_channel(vb_handle* channel, int* fd) {
  std::scoped_lock lock(state().mutex);
  make(channel);
  Queue* queue = state().channels[*channel] = new Queue;
  *fd = queue->fd();
  return 0;
}

int destroy_channel(vb_handle channel) {
  std::scoped_lock lock(state().mutex);
  Queue** queue = find(state().channels, channel);
  if (queue == nullptr) return EINVAL;
  delete *queue;
  state().channels.erase(channel);
  return 0;
}

Queue* channel_of(vb_handle handle) {
  std::scoped_lock lock(state().mutex);
  Queue** queue = find(state().channels, handle);
  return queue != nullptr ? *queue : nullptr;
}

Queue& context_queue(vb_handle handle) {
  std::scoped_lock lock(state().mutex);
  return *state().contexts.at(handle);
}

void tell(const Id& id, vb_cm_event event) {
  event.cookie = id.cookie;
  channel_of(id.channel)->push({.cm = event});
}

bool has_port(std::uint32_t device, std::uint32_t port) {
  if (device == 0) return port == 1;
  return state().has_two_devices && device == 1 && (port == 1 || port == 2);
}

// The addresses 10.0.d.n are at port n of device d, if there is such a port; all others are at the
// first port.
void place(Id& id, const sockaddr_in& address) {
  const std::uint32_t ip = ntohl(address.sin_addr.s_addr);
  const std::uint32_t device = ip >> 8 & 0xff, port = ip & 0xff;
  const bool known = ip >> 16 == 0x0a00 && has_port(device, port);
  id.addresses.device = known ? device : 0;
  id.addresses.port_num = known ? port : 1;
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
}  // namespace fake

using namespace fake;

#define REFUSED_OR_LOCKED()                  \
  if (int no = refused(__func__)) return no; \
  const std::scoped_lock locked(state().mutex)

#define FOUND(object, map, handle)          \
  auto* object = find(state().map, handle); \
  if (object == nullptr) return EINVAL

extern "C" {

VB_API const char* vb_last_error() { return "the fake engine was told to fail"; }
VB_API const char* vb_build_id() {
  return state().build_id.empty() ? VB_BUILD_ID : state().build_id.c_str();
}

VB_API int vb_device_query(uint32_t device, vb_device_attr* attr) {
  REFUSED_OR_LOCKED();
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
  REFUSED_OR_LOCKED();
  if (!has_port(device, port)) return EINVAL;
  *attr = {.state = 4,
           .phys_state = 5,
           .max_mtu = 5,
           .active_mtu = 3,
           .active_width = 2,
           .active_speed = 4,
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
  REFUSED_OR_LOCKED();
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
  REFUSED_OR_LOCKED();
  if (!has_port(device, port)) return EINVAL;
  if (index > device) return ENOENT;
  *pkey = index == 0 ? 0xffff : static_cast<std::uint16_t>(0x8000 + port);
  return 0;
}

VB_API int vb_context_create(uint32_t device, vb_handle* context, int* fd) {
  REFUSED_OR_LOCKED();
  make(context);
  state().context_devices[*context] = device;
  state().contexts[*context] = std::make_unique<Queue>();
  *fd = state().contexts[*context]->fd();
  return 0;
}
VB_API int vb_context_destroy(vb_handle context) {
  REFUSED_OR_LOCKED();
  return state().contexts.erase(context) == 1 ? 0 : EINVAL;
}
VB_API int vb_async_next(vb_handle context, vb_async_event* event) {
  Event next;
  if (int error = context_queue(context).take(next)) return error;
  *event = next.async;
  return 0;
}

VB_API int vb_pd_create(vb_handle* pd) {
  REFUSED_OR_LOCKED();
  return make_other(pd);
}
VB_API int vb_pd_destroy(vb_handle pd) {
  REFUSED_OR_LOCKED();
  return destroy_other(pd);
}
VB_API int vb_mr_register(vb_handle, void*, uint64_t, uint64_t, uint32_t access, vb_handle* mr,
                          uint32_t* lkey, uint32_t* rkey) {
  REFUSED_OR_LOCKED();
  state().mr_access = access;
  *lkey = 17;
  *rkey = 18;
  return make_other(mr);
}
VB_API int vb_mr_create_null(vb_handle, vb_handle* mr, uint32_t* lkey) {
  REFUSED_OR_LOCKED();
  *lkey = 19;
  return make_other(mr);
}
VB_API int vb_mr_reregister(vb_handle, uint32_t what, vb_handle pd, void* address, uint64_t length,
                            uint32_t access) {
  REFUSED_OR_LOCKED();
  state().rereg = {.what = what, .pd = pd, .address = address, .length = length};
  state().mr_access = access;
  return 0;
}
VB_API int vb_mr_prefetch(vb_handle, const vb_sge* list, uint32_t count, int) {
  REFUSED_OR_LOCKED();
  state().prefetched.assign(list, list + count);
  return 0;
}
VB_API int vb_mr_deregister(vb_handle mr) {
  REFUSED_OR_LOCKED();
  return destroy_other(mr);
}

VB_API int vb_mw_create(vb_handle, uint32_t type, vb_handle* mw, uint32_t* rkey) {
  REFUSED_OR_LOCKED();
  *rkey = 0x123456ff - (type == 2 ? 1 : 0);
  return make_other(mw);
}
VB_API int vb_mw_destroy(vb_handle mw) {
  REFUSED_OR_LOCKED();
  return destroy_other(mw);
}

VB_API int vb_channel_create(vb_handle* channel, int* fd) {
  REFUSED_OR_LOCKED();
  return make_channel(channel, fd);
}
VB_API int vb_channel_destroy(vb_handle channel) { return destroy_channel(channel); }
VB_API int vb_channel_next(vb_handle channel, uint64_t* cq_cookie) {
  if (int no = refused(__func__)) return no;
  Event next;
  if (int error = channel_of(channel)->take(next)) return error;
  *cq_cookie = next.cookie;
  return 0;
}

VB_API int vb_cq_create(vb_handle context, uint32_t* entries, vb_handle channel, uint64_t cookie,
                        vb_handle* cq) {
  REFUSED_OR_LOCKED();
  make(cq);
  *entries += 1;
  state().cqs[*cq] = {.context = context, .cookie = cookie, .channel = channel, .completions = {}};
  return 0;
}
VB_API int vb_cq_resize(vb_handle cq, uint32_t* entries) {
  REFUSED_OR_LOCKED();
  FOUND(found, cqs, cq);
  if (found->completions.size() > *entries) return EINVAL;
  *entries += 1;
  return 0;
}
VB_API int vb_cq_destroy(vb_handle cq) {
  REFUSED_OR_LOCKED();
  FOUND(found, cqs, cq);
  if (found->channel != 0) {
    channel_of(found->channel)->drop([&](const Event& e) { return e.cookie == found->cookie; });
  }
  state().cqs.erase(cq);
  return 0;
}
VB_API int vb_cq_poll(vb_handle cq, int max, vb_wc* wc) {
  const std::scoped_lock locked(state().mutex);
  Cq* found = find(state().cqs, cq);
  if (found == nullptr) return -EINVAL;
  int n = 0;
  for (; n < max && !found->completions.empty(); ++n) {
    wc[n] = found->completions.front();
    found->completions.pop_front();
  }
  return n;
}
VB_API int vb_cq_arm(vb_handle, int) { return refused(__func__); }

VB_API int vb_ah_create(uint32_t device, vb_handle, const vb_ah_attr* attr, vb_handle* ah) {
  REFUSED_OR_LOCKED();
  if (device == 0 && attr->is_global == 0) return EINVAL;
  state().ah = *attr;
  state().ah_device = device;
  return make_other(ah);
}
VB_API int vb_ah_destroy(vb_handle ah) { return destroy_other(ah); }

VB_API int vb_srq_create(vb_handle context, vb_handle, vb_srq_attr* attr, uint64_t cookie,
                         vb_handle* srq) {
  REFUSED_OR_LOCKED();
  make(srq);
  attr->max_wr += 1;
  state().srqs[*srq] = {.context = context, .cookie = cookie, .attr = *attr, .received = {}};
  return 0;
}
VB_API int vb_srq_modify(vb_handle srq, const vb_srq_attr* attr, uint32_t mask) {
  REFUSED_OR_LOCKED();
  FOUND(found, srqs, srq);
  if ((mask & IBV_SRQ_MAX_WR) != 0) found->attr.max_wr = attr->max_wr;
  if ((mask & IBV_SRQ_LIMIT) != 0) found->attr.limit = attr->limit;
  return 0;
}
VB_API int vb_srq_query(vb_handle srq, vb_srq_attr* attr) {
  REFUSED_OR_LOCKED();
  FOUND(found, srqs, srq);
  *attr = found->attr;
  return 0;
}
VB_API int vb_srq_destroy(vb_handle srq) {
  REFUSED_OR_LOCKED();
  for (const auto& [handle, qp] : state().qps) {
    if (qp.init.srq == srq) return EBUSY;
  }
  return state().srqs.erase(srq) == 1 ? 0 : EINVAL;
}
VB_API int vb_post_srq_recv(vb_handle srq, const vb_recv_wr* wr) {
  REFUSED_OR_LOCKED();
  FOUND(found, srqs, srq);
  if (found->received.size() >= state().send_room) return ENOMEM;
  found->received.push_back(*wr);
  return 0;
}

VB_API int vb_qp_create(vb_qp_init* init, vb_handle* qp, uint32_t* qp_num) {
  REFUSED_OR_LOCKED();
  make(qp);
  *qp_num = static_cast<uint32_t>(*qp & 0xffffff);
  init->cap.max_inline_data = 256;
  state().qps[*qp] = {
      .init = *init, .attr = {}, .sent = {}, .inlined = {}, .more = {}, .received = {}};
  return 0;
}
VB_API int vb_qp_modify(vb_handle qp, const vb_qp_attr* attr, uint32_t mask) {
  REFUSED_OR_LOCKED();
  FOUND(found, qps, qp);
  const auto before = found->attr.qp_state;
  found->attr = *attr;
  if ((mask & IBV_QP_STATE) == 0) found->attr.qp_state = before;
  return 0;
}
VB_API int vb_qp_query(vb_handle qp, vb_qp_attr* attr, vb_qp_init* init) {
  REFUSED_OR_LOCKED();
  FOUND(found, qps, qp);
  *attr = found->attr;
  *init = found->init;
  return 0;
}
VB_API int vb_qp_attach(vb_handle qp, const uint8_t group[16], uint32_t) {
  REFUSED_OR_LOCKED();
  FOUND(found, qps, qp);
  return found->init.type == IBV_QPT_UD && group[0] == 0xff ? 0 : EINVAL;
}
VB_API int vb_qp_detach(vb_handle qp, const uint8_t group[16]) {
  return vb_qp_attach(qp, group, 0);
}
VB_API int vb_qp_destroy(vb_handle qp) {
  REFUSED_OR_LOCKED();
  for (const auto& [handle, id] : state().ids) {
    if (id.qp == qp) return EBUSY;
  }
  return state().qps.erase(qp) == 1 ? 0 : EINVAL;
}
VB_API int vb_qp_send_room(vb_handle qp, uint32_t* room) {
  REFUSED_OR_LOCKED();
  FOUND(found, qps, qp);
  *room = state().send_room - static_cast<uint32_t>(found->sent.size());
  return 0;
}
VB_API int vb_post_send(vb_handle qp, const vb_send_wr* wr, int more) {
  REFUSED_OR_LOCKED();
  FOUND(found, qps, qp);
  if (found->sent.size() >= state().send_room) return ENOMEM;
  found->sent.push_back(*wr);
  const bool inlined = (wr->send_flags & IBV_SEND_INLINE) != 0 && wr->num_sge != 0;
  found->inlined.emplace_back(inlined ? reinterpret_cast<const char*>(wr->sg_list[0].addr) : "",
                              inlined ? wr->sg_list[0].length : 0);
  found->more.push_back(more);
  return 0;
}
VB_API int vb_post_recv(vb_handle qp, const vb_recv_wr* wr) {
  REFUSED_OR_LOCKED();
  FOUND(found, qps, qp);
  if (found->received.size() >= state().send_room) return ENOMEM;
  found->received.push_back(*wr);
  return 0;
}

VB_API int vb_cm_channel_create(vb_handle* channel, int* fd) {
  REFUSED_OR_LOCKED();
  return make_channel(channel, fd);
}
VB_API int vb_cm_channel_hide_lost_requests(vb_handle) { return 0; }
VB_API int vb_cm_id_write_event(vb_handle, uint32_t, int32_t, uint64_t) { return EOPNOTSUPP; }
VB_API int vb_cm_channel_destroy(vb_handle channel) {
  const std::scoped_lock locked(state().mutex);
  for (const auto& [handle, id] : state().ids) {
    if (id.channel == channel) return EBUSY;
  }
  return destroy_channel(channel);
}
VB_API int vb_cm_id_create(vb_handle channel, uint32_t, uint32_t, uint64_t cookie, vb_handle* id) {
  REFUSED_OR_LOCKED();
  make(id);
  state().newest_id = *id;
  state().ids[*id] = {
      .channel = channel, .cookie = cookie, .qp = 0, .addresses = {}, .private_data = {}};
  return 0;
}
VB_API int vb_cm_id_destroy(vb_handle id) {
  REFUSED_OR_LOCKED();
  FOUND(found, ids, id);
  channel_of(found->channel)->drop([&](const Event& e) { return e.cm.cookie == found->cookie; });
  state().ids.erase(id);
  return 0;
}
VB_API int vb_cm_id_set_cookie(vb_handle id, uint64_t cookie) {
  REFUSED_OR_LOCKED();
  FOUND(found, ids, id);
  found->cookie = cookie;
  return 0;
}
VB_API int vb_cm_id_migrate(vb_handle id, vb_handle channel) {
  REFUSED_OR_LOCKED();
  FOUND(found, ids, id);
  found->channel = channel;
  return 0;
}
VB_API int vb_cm_id_addresses(vb_handle id, vb_cm_addresses* addresses) {
  REFUSED_OR_LOCKED();
  FOUND(found, ids, id);
  *addresses = found->addresses;
  return 0;
}
VB_API int vb_cm_bind(vb_handle id, const sockaddr* addr) {
  REFUSED_OR_LOCKED();
  FOUND(found, ids, id);
  std::memcpy(&found->addresses.src, addr, sizeof(sockaddr_in));
  auto& src = reinterpret_cast<sockaddr_in&>(found->addresses.src);
  if (src.sin_port == 0) src.sin_port = htons(34567);
  found->addresses.bound = src.sin_addr.s_addr != 0;
  place(*found, src);
  return 0;
}
VB_API int vb_cm_resolve_addr(vb_handle id, const sockaddr*, const sockaddr* dst, int) {
  REFUSED_OR_LOCKED();
  FOUND(found, ids, id);
  std::memcpy(&found->addresses.dst, dst, sizeof(sockaddr_in));
  sockaddr_in src{};
  src.sin_family = AF_INET;
  src.sin_addr.s_addr = htonl(0x0a000001);
  std::memcpy(&found->addresses.src, &src, sizeof src);
  found->addresses.bound = 1;
  place(*found, reinterpret_cast<const sockaddr_in&>(found->addresses.dst));
  found->addresses.pkey = 0xffff;
  found->addresses.sgid[15] = 1;
  found->addresses.dgid[15] = 2;
  tell(*found, {.type = RDMA_CM_EVENT_ADDR_RESOLVED});
  return 0;
}
VB_API int vb_cm_resolve_route(vb_handle id, int) {
  REFUSED_OR_LOCKED();
  FOUND(found, ids, id);
  found->addresses.resolved_path = 1;
  found->addresses.path_mtu = 3;
  found->addresses.hop_limit = 64;
  tell(*found, {.type = RDMA_CM_EVENT_ROUTE_RESOLVED});
  return 0;
}
VB_API int vb_cm_listen(vb_handle, int) { return refused(__func__); }
VB_API int vb_cm_set_option(vb_handle, int, int, const void*, size_t) { return refused(__func__); }
VB_API int vb_cm_id_set_qp(vb_handle id, vb_handle qp) {
  REFUSED_OR_LOCKED();
  FOUND(found, ids, id);
  for (auto& [other, has] : state().ids) {
    if (has.qp == qp) has.qp = 0;
  }
  found->qp = qp;
  return qp == 0 ? 0 : set_qp_state(qp, IBV_QPS_INIT);
}
VB_API int vb_cm_init_qp_attr(vb_handle, vb_qp_attr* attr, uint32_t* mask) {
  REFUSED_OR_LOCKED();
  attr->port_num = 1;
  *mask = IBV_QP_STATE | IBV_QP_PORT;
  return 0;
}
VB_API int vb_cm_connect(vb_handle id, const vb_conn_param* param) {
  REFUSED_OR_LOCKED();
  FOUND(found, ids, id);
  const auto* data = static_cast<const std::uint8_t*>(param->private_data);
  found->private_data.assign(data, data + param->private_data_len);
  found->ece_vendor_id = param->ece_vendor_id;
  found->ece_options = param->ece_options;
  if (state().connect_answer.type == RDMA_CM_EVENT_ESTABLISHED) {
    set_qp_state(found->qp, IBV_QPS_RTS);
  }
  tell(*found, state().connect_answer);
  return 0;
}
VB_API int vb_cm_accept(vb_handle id, const vb_conn_param*) {
  REFUSED_OR_LOCKED();
  FOUND(found, ids, id);
  set_qp_state(found->qp, IBV_QPS_RTS);
  tell(*found, {.type = RDMA_CM_EVENT_ESTABLISHED});
  return 0;
}
VB_API int vb_cm_reject(vb_handle, uint32_t reason, const void*, uint8_t) {
  state().reject_reason = reason;
  return refused(__func__);
}
VB_API int vb_cm_establish(vb_handle) { return refused(__func__); }
VB_API int vb_cm_notify(vb_handle, uint32_t) { return refused(__func__); }
VB_API int vb_cm_disconnect(vb_handle id) {
  REFUSED_OR_LOCKED();
  FOUND(found, ids, id);
  set_qp_state(found->qp, IBV_QPS_ERR);
  tell(*found, {.type = RDMA_CM_EVENT_DISCONNECTED});
  return 0;
}
VB_API int vb_cm_join(vb_handle id, const sockaddr* group, int send_only, uint64_t cookie) {
  REFUSED_OR_LOCKED();
  FOUND(found, ids, id);
  found->groups[cookie] = send_only != 0;
  vb_cm_event event{};
  event.type = state().join_answer;
  event.status = event.type == RDMA_CM_EVENT_MULTICAST_JOIN ? 0 : -ENOMEM;
  event.qp_num = 0xffffff;
  event.qkey = RDMA_UDP_QKEY;
  event.group_cookie = cookie;
  std::memcpy(event.group + 12, &reinterpret_cast<const sockaddr_in*>(group)->sin_addr, 4);
  tell(*found, event);
  return 0;
}
VB_API int vb_cm_leave(vb_handle id, uint64_t cookie) {
  REFUSED_OR_LOCKED();
  FOUND(found, ids, id);
  return found->groups.erase(cookie) == 1 ? 0 : EADDRNOTAVAIL;
}
VB_API int vb_cm_next_event(vb_handle channel, vb_cm_event* event) {
  if (int no = refused(__func__)) return no;
  Event next;
  if (int error = channel_of(channel)->take(next)) return error;
  *event = next.cm;
  return 0;
}

}  // extern "C"
