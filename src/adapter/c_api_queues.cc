// Implements the C API over an adapter: completion queues, address handles, shared receive queues,
// queue pairs, and posting requests.

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>
#include <set>

#include "adapter/adapter.h"
#include "c_api/attributes.h"
#include "os/multicast.h"
#include "wire/ip.h"

using verbena::Errc;
using verbena::Gid;
using verbena::Result;
using namespace verbena::adapter;  // NOLINT(google-build-using-namespace): the C API of adapters
namespace c_api = verbena::c_api;
namespace os = verbena::os;

namespace {

void* cookie_pointer(std::uint64_t cookie) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): cookies of the C API are numbers
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(cookie));
}
std::uint64_t cookie_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

std::uint64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

// Sets the time stamp to `now`, because adapters have their own clocks, or none.  The completion
// was generated at `now` or before.
vb_wc to_c_api(const ibv_wc& wc, std::uint64_t now) {
  vb_wc out{};
  out.timestamp_ns = now;
  out.wr_id = wc.wr_id;
  out.status = static_cast<std::uint32_t>(wc.status);
  out.opcode = static_cast<std::uint32_t>(wc.opcode);
  out.vendor_err = wc.vendor_err;
  out.byte_len = wc.byte_len;
  if ((wc.wc_flags & IBV_WC_WITH_INV) != 0) {
    out.invalidated_rkey = wc.invalidated_rkey;
  } else {
    out.imm = ntohl(wc.imm_data);
  }
  out.qp_num = wc.qp_num;
  out.src_qp = wc.src_qp;
  out.wc_flags = wc.wc_flags;
  out.pkey_index = wc.pkey_index;
  out.sl = wc.sl;
  out.slid = wc.slid;
  out.dlid_path_bits = wc.dlid_path_bits;
  return out;
}

Gid address_of(const ibv_gid& gid) {
  Gid out;
  std::memcpy(out.bytes.data(), gid.raw, out.bytes.size());
  return out;
}

ibv_sge* segments_of(const vb_sge* list) {
  return reinterpret_cast<ibv_sge*>(const_cast<vb_sge*>(list));
}

ibv_recv_wr from_c_api(const vb_recv_wr& wr) {
  ibv_recv_wr out{};
  out.wr_id = wr.wr_id;
  out.sg_list = segments_of(wr.sg_list);
  out.num_sge = static_cast<int>(wr.num_sge);
  return out;
}

// Finds the window and the region of a bind request by their keys.
int fill_binding(Adapter& adapter, const vb_send_wr& wr, ibv_send_wr& out) {
  const std::lock_guard lock(adapter.mutex);
  const auto window = adapter.windows.find(wr.rkey >> 8);
  const auto region = adapter.regions.find(wr.bind_lkey);
  if (window == adapter.windows.end() || region == adapter.regions.end()) {
    return c_api::failed({Errc::kInvalidArgument, 0, "no such memory window or region"});
  }
  out.bind_mw.mw = window->second;
  out.bind_mw.rkey = wr.rkey;
  out.bind_mw.bind_info = {.mr = region->second,
                           .addr = wr.bind_addr,
                           .length = wr.bind_length,
                           .mw_access_flags = wr.bind_access};
  return 0;
}

int from_c_api(Adapter& adapter, const vb_send_wr& wr, ibv_qp_type type, ibv_send_wr& out) {
  out.wr_id = wr.wr_id;
  out.sg_list = segments_of(wr.sg_list);
  out.num_sge = static_cast<int>(wr.num_sge);
  out.opcode = static_cast<ibv_wr_opcode>(wr.opcode);
  out.send_flags = wr.send_flags;
  switch (wr.opcode) {
    case IBV_WR_LOCAL_INV:
    case IBV_WR_SEND_WITH_INV: out.invalidate_rkey = wr.rkey; break;
    case IBV_WR_BIND_MW: return fill_binding(adapter, wr, out);
    default: out.imm_data = htonl(wr.imm); break;
  }
  if (type == IBV_QPT_UD) {
    out.wr.ud.ah = adapter.ahs.find(wr.ah);
    out.wr.ud.remote_qpn = wr.remote_qpn;
    out.wr.ud.remote_qkey = wr.remote_qkey;
    return out.wr.ud.ah == nullptr ? fail_without_object() : 0;
  }
  if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    out.wr.atomic = {.remote_addr = wr.remote_addr,
                     .compare_add = wr.compare_add,
                     .swap = wr.swap,
                     .rkey = wr.rkey};
  } else {
    out.wr.rdma = {.remote_addr = wr.remote_addr, .rkey = wr.rkey};
  }
  return 0;
}

// Creates a socket that can join a group.  An adapter receives a group's packets only if a socket
// has joined the group on the adapter's interface.
Result<os::Fd> create_group_socket(const ibv_gid& group) {
  const int family = verbena::wire::is_ipv4(address_of(group)) ? AF_INET : AF_INET6;
  os::Fd socket(::socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (socket) return socket;
  return verbena::fail(Errc::kSystem, "no socket for a group", static_cast<std::uint16_t>(errno));
}

// Joins the group on one interface.  If `interface` is 0, joins the group on each interface that
// has an address of the port, and succeeds if one of these joins succeeds.
Result<void> join(const os::Fd& socket, const ibv_gid& group, std::uint32_t interface) {
  const Gid address = address_of(group);
  if (interface != 0) return os::join_group(socket.get(), address, interface);
  std::set<std::uint32_t> interfaces;
  vb_gid_entry entry{};
  for (std::uint32_t i = 0; vb_gid_query(0, 1, i, &entry) == 0; ++i) {
    if (entry.in_use != 0) interfaces.insert(entry.interface_index);
  }
  Result<void> result = verbena::fail(Errc::kAddressNotFound, "the port has no address");
  for (const std::uint32_t index : interfaces) {
    if (result) {
      static_cast<void>(os::join_group(socket.get(), address, index).has_value());
    } else {
      result = os::join_group(socket.get(), address, index);
    }
  }
  return result;
}

auto find_membership(Adapter& adapter, ibv_qp& qp, const ibv_gid& group) {
  const auto [first, last] = adapter.memberships.equal_range(&qp);
  const auto found = std::find_if(first, last, [&](const auto& entry) {
    return std::memcmp(entry.second.group.raw, group.raw, sizeof group.raw) == 0;
  });
  return found == last ? adapter.memberships.end() : found;
}

int result_of_post(int error) {
  return error == 0 ? 0 : fail_with_errno("post the request", error);
}

}  // namespace

extern "C" {

// ---- completion channels and queues

int vb_channel_create(vb_handle* channel, int* fd) {
  return on_adapter([&](Adapter& adapter) {
    ibv_comp_channel* const raw = adapter.system.create_comp_channel(adapter.context);
    const int error =
        add(adapter, &Adapter::comp_channels, "create a completion channel", raw, channel,
            [&](ibv_comp_channel* object) { adapter.system.destroy_comp_channel(object); });
    if (error == 0) *fd = raw->fd;
    return error;
  });
}

int vb_channel_destroy(vb_handle channel) {
  return remove(&Adapter::comp_channels, "destroy the completion channel", channel,
                [](Adapter& adapter, ibv_comp_channel& object) {
                  return adapter.system.destroy_comp_channel(&object);
                });
}

// Waits for an event.  Thread cancellation may unwind this function, so it holds no lock while it
// waits.
int vb_channel_next(vb_handle channel, uint64_t* cq_cookie) {
  Adapter* const adapter = Adapter::get_if_open();
  ibv_comp_channel* const object =
      adapter == nullptr ? nullptr : adapter->comp_channels.find(channel);
  if (object == nullptr) return fail_without_object();
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  if (adapter->system.get_cq_event(object, &cq, &context) != 0) return errno;
  *cq_cookie = cookie_of(context);
  adapter->system.ack_cq_events(cq, 1);
  return 0;
}

int vb_cq_create(vb_handle /*context*/, uint32_t* entries, vb_handle channel, uint64_t cookie,
                 vb_handle* cq) {
  return on_adapter([&](Adapter& adapter) {
    const std::lock_guard lock(adapter.command_mutex);
    ibv_comp_channel* const raw_channel = adapter.comp_channels.find(channel);
    if (raw_channel == nullptr && channel != 0) return fail_without_object();
    ibv_cq* const raw = adapter.system.create_cq(adapter.context, static_cast<int>(*entries),
                                                 cookie_pointer(cookie), raw_channel, 0);
    const int error = add(adapter, &Adapter::cqs, "create a completion queue", raw, cq,
                          [&](ibv_cq* object) { adapter.system.destroy_cq(object); });
    if (error == 0) *entries = static_cast<std::uint32_t>(raw->cqe);
    return error;
  });
}

int vb_cq_resize(vb_handle cq, uint32_t* entries) {
  return on_command(&Adapter::cqs, cq, [&](Adapter& adapter, ibv_cq& object) {
    if (const int error = adapter.system.resize_cq(&object, static_cast<int>(*entries))) {
      return fail_with_errno("resize the completion queue", error);
    }
    *entries = static_cast<std::uint32_t>(object.cqe);
    return 0;
  });
}

int vb_cq_destroy(vb_handle cq) {
  return remove(
      &Adapter::cqs, "destroy the completion queue", cq,
      [](Adapter& adapter, ibv_cq& object) { return adapter.system.destroy_cq(&object); });
}

int vb_cq_poll(vb_handle cq, int max, struct vb_wc* wc) {
  Adapter* const adapter = Adapter::get_if_open();
  ibv_cq* const object = adapter == nullptr ? nullptr : adapter->cqs.find(cq);
  if (object == nullptr) return -EINVAL;
  std::array<ibv_wc, 16> completions;
  int count = 0;
  std::uint64_t now = 0;
  while (count < max) {
    const int wanted_count = std::min(max - count, static_cast<int>(completions.size()));
    const int result = ibv_poll_cq(object, wanted_count, completions.data());
    if (result < 0) return count > 0 ? count : -EIO;
    if (result > 0 && now == 0) now = now_ns();
    for (int i = 0; i < result; ++i)
      wc[count++] = to_c_api(completions[static_cast<std::size_t>(i)], now);
    if (result < wanted_count) break;
  }
  return count;
}

int vb_cq_arm(vb_handle cq, int solicited_only) {
  Adapter* const adapter = Adapter::get_if_open();
  ibv_cq* const object = adapter == nullptr ? nullptr : adapter->cqs.find(cq);
  return object == nullptr ? fail_without_object() : ibv_req_notify_cq(object, solicited_only);
}

// ---- address handles, shared receive queues

int vb_ah_create(uint32_t /*device*/, vb_handle pd, const struct vb_ah_attr* attr, vb_handle* ah) {
  return on_command(&Adapter::pds, pd, [&](Adapter& adapter, ibv_pd& domain) {
    ibv_ah_attr attributes = c_api::from_c_api(*attr);
    attributes.port_num = adapter.port;
    return add(adapter, &Adapter::ahs, "create an address handle",
               adapter.system.create_ah(&domain, &attributes), ah,
               [&](ibv_ah* object) { adapter.system.destroy_ah(object); });
  });
}

int vb_ah_destroy(vb_handle ah) {
  return remove(
      &Adapter::ahs, "destroy the address handle", ah,
      [](Adapter& adapter, ibv_ah& object) { return adapter.system.destroy_ah(&object); });
}

int vb_srq_create(vb_handle /*context*/, vb_handle pd, struct vb_srq_attr* attr, uint64_t cookie,
                  vb_handle* srq) {
  return on_command(&Adapter::pds, pd, [&](Adapter& adapter, ibv_pd& domain) {
    ibv_srq_init_attr init{};
    init.srq_context = cookie_pointer(cookie);
    init.attr = {.max_wr = attr->max_wr, .max_sge = attr->max_sge, .srq_limit = 0};
    const int error = add(adapter, &Adapter::srqs, "create a shared receive queue",
                          adapter.system.create_srq(&domain, &init), srq,
                          [&](ibv_srq* object) { adapter.system.destroy_srq(object); });
    if (error == 0) *attr = {init.attr.max_wr, init.attr.max_sge, 0};
    return error;
  });
}

int vb_srq_modify(vb_handle srq, const struct vb_srq_attr* attr, uint32_t mask) {
  return on_command(&Adapter::srqs, srq, [&](Adapter& adapter, ibv_srq& object) {
    ibv_srq_attr attributes{attr->max_wr, attr->max_sge, attr->limit};
    const int error = adapter.system.modify_srq(&object, &attributes, static_cast<int>(mask));
    return error == 0 ? 0 : fail_with_errno("change the shared receive queue", error);
  });
}

int vb_srq_query(vb_handle srq, struct vb_srq_attr* attr) {
  return on_command(&Adapter::srqs, srq, [&](Adapter& adapter, ibv_srq& object) {
    ibv_srq_attr attributes{};
    if (const int error = adapter.system.query_srq(&object, &attributes)) {
      return fail_with_errno("query the shared receive queue", error);
    }
    *attr = {attributes.max_wr, attributes.max_sge, attributes.srq_limit};
    return 0;
  });
}

int vb_srq_destroy(vb_handle srq) {
  return remove(
      &Adapter::srqs, "destroy the shared receive queue", srq,
      [](Adapter& adapter, ibv_srq& object) { return adapter.system.destroy_srq(&object); });
}

// ---- queue pairs

int vb_qp_create(struct vb_qp_init* init, vb_handle* qp, uint32_t* qp_num) {
  return on_command(&Adapter::pds, init->pd, [&](Adapter& adapter, ibv_pd& domain) {
    ibv_qp_init_attr init_attr{};
    init_attr.qp_context = cookie_pointer(init->cookie);
    init_attr.send_cq = adapter.cqs.find(init->send_cq);
    init_attr.recv_cq = adapter.cqs.find(init->recv_cq);
    init_attr.srq = adapter.srqs.find(init->srq);
    init_attr.cap = c_api::from_c_api(init->cap);
    init_attr.qp_type = static_cast<ibv_qp_type>(init->type);
    init_attr.sq_sig_all = static_cast<int>(init->sq_sig_all);
    if (init->type != IBV_QPT_RC && init->type != IBV_QPT_UC && init->type != IBV_QPT_UD) {
      return c_api::failed(
          {Errc::kNotSupported, 0, "only the QP types RC, UC and UD are supported"});
    }
    const bool all_exist = init_attr.send_cq != nullptr && init_attr.recv_cq != nullptr &&
                           (init_attr.srq != nullptr || init->srq == 0);
    if (!all_exist) return fail_without_object();
    ibv_qp* const raw = adapter.system.create_qp(&domain, &init_attr);
    const int error = add(adapter, &Adapter::qps, "create a queue pair", raw, qp,
                          [&](ibv_qp* object) { adapter.system.destroy_qp(object); });
    if (error != 0) return error;
    init->cap = c_api::to_c_api(init_attr.cap);
    *qp_num = raw->qp_num;
    return 0;
  });
}

int vb_qp_modify(vb_handle qp, const struct vb_qp_attr* attr, uint32_t mask) {
  return on_command(&Adapter::qps, qp, [&](Adapter& adapter, ibv_qp& object) {
    if ((mask & IBV_QP_ALT_PATH) != 0 && object.qp_type != IBV_QPT_UD) {
      // Linux has no alternate paths between Ethernet ports, and would return EINVAL.
      return c_api::failed({Errc::kNotSupported, 0, "adapters do not support alternate paths"});
    }
    ibv_qp_attr attributes = c_api::from_c_api(*attr);
    attributes.port_num = attributes.ah_attr.port_num = adapter.port;
    const int error = adapter.system.modify_qp(&object, &attributes, static_cast<int>(mask));
    return error == 0 ? 0 : fail_with_errno("change the queue pair", error);
  });
}

int vb_qp_query(vb_handle qp, struct vb_qp_attr* attr, struct vb_qp_init* init) {
  return on_command(&Adapter::qps, qp, [&](Adapter& adapter, ibv_qp& object) {
    constexpr int kAll = IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_PATH_MTU | IBV_QP_PATH_MIG_STATE |
                         IBV_QP_QKEY | IBV_QP_RQ_PSN | IBV_QP_SQ_PSN | IBV_QP_DEST_QPN |
                         IBV_QP_ACCESS_FLAGS | IBV_QP_CAP | IBV_QP_AV | IBV_QP_ALT_PATH |
                         IBV_QP_PKEY_INDEX | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC |
                         IBV_QP_MIN_RNR_TIMER | IBV_QP_PORT | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                         IBV_QP_RNR_RETRY;
    ibv_qp_attr attributes{};
    ibv_qp_init_attr init_attr{};
    if (const int error = adapter.system.query_qp(&object, &attributes, kAll, &init_attr)) {
      return fail_with_errno("query the queue pair", error);
    }
    *attr = c_api::to_c_api(attributes, kAll);
    attr->sq_draining = attributes.sq_draining;
    init->cap = c_api::to_c_api(init_attr.cap);
    init->type = static_cast<std::uint32_t>(object.qp_type);
    init->sq_sig_all = static_cast<std::uint32_t>(init_attr.sq_sig_all);
    init->cookie = cookie_of(object.qp_context);
    return 0;
  });
}

int vb_qp_destroy(vb_handle qp) {
  return remove(&Adapter::qps, "destroy the queue pair", qp, [](Adapter& adapter, ibv_qp& object) {
    if (adapter.memberships.contains(&object)) return EBUSY;
    if (const int error = adapter.system.destroy_qp(&object)) return error;
    if (const auto user = adapter.ids_of_qps.extract(&object)) user.mapped()->qp = nullptr;
    return 0;
  });
}

int vb_qp_attach(vb_handle qp, const uint8_t group[16], uint32_t interface_index) {
  return on_command(&Adapter::qps, qp, [&](Adapter& adapter, ibv_qp& object) {
    Membership membership{};
    std::memcpy(membership.group.raw, group, sizeof membership.group.raw);
    const auto existing = find_membership(adapter, object, membership.group);
    if (existing != adapter.memberships.end()) {
      return c_api::result_of(join(existing->second.socket, membership.group, interface_index));
    }
    auto socket = create_group_socket(membership.group);
    if (!socket) return c_api::failed(socket.error());
    if (const auto joined = join(*socket, membership.group, interface_index); !joined) {
      return c_api::failed(joined.error());
    }
    membership.socket = *std::move(socket);
    if (const int error = adapter.system.attach_mcast(&object, &membership.group, 0)) {
      return fail_with_errno("attach the queue pair to the group", error);
    }
    adapter.memberships.emplace(&object, std::move(membership));
    return 0;
  });
}

int vb_qp_detach(vb_handle qp, const uint8_t group[16]) {
  return on_command(&Adapter::qps, qp, [&](Adapter& adapter, ibv_qp& object) {
    ibv_gid gid;
    std::memcpy(gid.raw, group, sizeof gid.raw);
    const auto membership = find_membership(adapter, object, gid);
    if (membership == adapter.memberships.end()) {
      return c_api::failed({Errc::kInvalidArgument, 0, "not attached to the group"});
    }
    const int error = adapter.system.detach_mcast(&object, &gid, 0);
    if (error != 0) return fail_with_errno("detach the queue pair from the group", error);
    adapter.memberships.erase(membership);
    return 0;
  });
}

// This call is not supported, because an adapter that refuses a request of a list has already
// posted the requests before it.
int vb_post_send_list(vb_handle, const struct vb_send_wr*, uint32_t) {
  return c_api::failed(
      {Errc::kNotSupported, 0, "an adapter cannot post either all requests of a list or none"});
}

int vb_post_send(vb_handle qp, const struct vb_send_wr* wr, int /*more*/) {
  return on_object(&Adapter::qps, qp, [&](Adapter& adapter, ibv_qp& object) {
    ibv_send_wr request{};
    if (const int error = from_c_api(adapter, *wr, object.qp_type, request)) return error;
    ibv_send_wr* bad = nullptr;
    const int error = ibv_post_send(&object, &request, &bad);
    if (error == 0 && request.opcode == IBV_WR_BIND_MW) {
      const std::lock_guard lock(adapter.mutex);
      request.bind_mw.mw->rkey = wr->rkey;  // later bind requests need the window's current key
    }
    return result_of_post(error);
  });
}

int vb_post_recv(vb_handle qp, const struct vb_recv_wr* wr) {
  return on_object(&Adapter::qps, qp, [&](Adapter&, ibv_qp& object) {
    ibv_recv_wr request = from_c_api(*wr);
    ibv_recv_wr* bad = nullptr;
    return result_of_post(ibv_post_recv(&object, &request, &bad));
  });
}

int vb_post_srq_recv(vb_handle srq, const struct vb_recv_wr* wr) {
  return on_object(&Adapter::srqs, srq, [&](Adapter&, ibv_srq& object) {
    ibv_recv_wr request = from_c_api(*wr);
    ibv_recv_wr* bad = nullptr;
    return result_of_post(ibv_post_srq_recv(&object, &request, &bad));
  });
}

}  // extern "C"
