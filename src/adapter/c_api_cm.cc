// Implements the C API over an adapter: event channels and ids of the RDMA connection manager.

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "adapter/adapter.h"
#include "c_api/attributes.h"
#include "c_api/sockaddr.h"

using verbena::Errc;
using namespace verbena::adapter;  // NOLINT(google-build-using-namespace): the C API of adapters
namespace c_api = verbena::c_api;

namespace {

// Calls a function of librdmacm on an id.  An error is -1 with errno.
template <class Call>
int on_id(const char* what, vb_handle id, Call call) {
  return on_command(&Adapter::ids, id, [&](Adapter& adapter, Id& its) {
    return call(adapter.system, its.raw) == 0 ? 0 : refused(what, errno);
  });
}

sockaddr* raw(const sockaddr* address) { return const_cast<sockaddr*>(address); }

rdma_conn_param from_c_api(const vb_conn_param& param) {
  rdma_conn_param out{};
  out.private_data = param.private_data;
  out.private_data_len = param.private_data_len;
  out.responder_resources = param.responder_resources;
  out.initiator_depth = param.initiator_depth;
  out.flow_control = param.flow_control;
  out.retry_count = param.retry_count;
  out.rnr_retry_count = param.rnr_retry_count;
  out.srq = param.srq;
  out.qp_num = param.qp_num;
  return out;
}

// Sets the options of enhanced connection establishment for the next REQ or REP of the id.
int set_ece(const Libraries& system, rdma_cm_id* id, const vb_conn_param& param) {
  if (id->qp != nullptr || (param.ece_vendor_id == 0 && param.ece_options == 0)) return 0;
  ibv_ece ece{.vendor_id = param.ece_vendor_id, .options = param.ece_options, .comp_mask = 0};
  return system.set_local_ece(id, &ece);
}

int no_ib_cm() {
  return c_api::failed({Errc::kNotSupported, 0, "the system's libraries support only the RDMA CM"});
}

// Creates an Id with a handle for an id of the system, and makes it that id's context.
int keep(Adapter& adapter, rdma_cm_id* raw, Channel* channel, std::uint64_t cookie,
         vb_handle* handle) {
  auto made = std::make_unique<Id>();
  made->raw = raw;
  made->channel = channel;
  made->cookie = cookie;
  const std::lock_guard lock(adapter.mutex);
  const auto place = adapter.ids.insert(made.get());
  if (!place) return c_api::failed(place.error());
  ++channel->ids;
  made->handle = place->value;
  *handle = place->value;
  raw->context = made.release();
  return 0;
}

// Takes the queue pair away from the id.
void give_back(Adapter& adapter, Id& its) {
  const auto user = adapter.users.find(std::exchange(its.raw->qp, nullptr));
  if (user != adapter.users.end() && user->second == its.raw) adapter.users.erase(user);
}

int of_another_device(Adapter& adapter, const rdma_cm_id& id) {
  const auto name = [&](ibv_context* context) {
    return context == nullptr ? "none" : adapter.system.get_device_name(context->device);
  };
  c_api::set_last_error(
      fmt::format("the id is on {}, its queue pair on {}", name(id.verbs), name(adapter.context)));
  return EINVAL;
}

// Like on_id(), but fails with EINVAL if the id has no device: librdmacm does not check that.
template <class Call>
int on_device(const char* what, vb_handle id, Call call) {
  return on_id(what, id, [&](const Libraries& system, rdma_cm_id* its) {
    if (its->verbs != nullptr) return call(system, its);
    errno = EINVAL;
    return -1;
  });
}

// Moves a datagram queue pair to RTS: it has no peer to wait for.
int start_datagrams(Adapter& adapter, ibv_qp& qp) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  if (const int error = adapter.system.modify_qp(&qp, &attr, IBV_QP_STATE)) return error;
  attr.qp_state = IBV_QPS_RTS;
  return adapter.system.modify_qp(&qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

void copy_private_data(vb_cm_event& out, const void* data, std::uint8_t bytes) {
  if (data == nullptr) return;
  std::memcpy(out.private_data, data, bytes);
  out.private_data_len = bytes;
}

// A path with more hops than this leads through a router, so its packets need a GRH.
constexpr std::uint8_t kHopsInSubnet = 1;

bool is_of_group(rdma_cm_event_type type) {
  return type == RDMA_CM_EVENT_MULTICAST_JOIN || type == RDMA_CM_EVENT_MULTICAST_ERROR;
}

void convert(const rdma_cm_event& event, vb_cm_event& out) {
  out = {};
  out.type = static_cast<std::uint32_t>(event.event);
  out.status = event.status;
  out.new_ps = static_cast<std::uint32_t>(event.id->ps);
  out.new_qp_type = static_cast<std::uint32_t>(event.id->qp_type);
  if (event.id->qp_type == IBV_QPT_UD) {
    const rdma_ud_param& param = event.param.ud;
    out.qp_num = param.qp_num;
    out.qkey = param.qkey;
    if (is_of_group(event.event)) {
      out.group = c_api::to_c_api(param.ah_attr);
      out.group_rate = param.ah_attr.static_rate;
      out.group_cookie = reinterpret_cast<std::uintptr_t>(param.private_data);
    } else {
      copy_private_data(out, param.private_data, param.private_data_len);
    }
    return;
  }
  const rdma_conn_param& param = event.param.conn;
  copy_private_data(out, param.private_data, param.private_data_len);
  out.responder_resources = param.responder_resources;
  out.initiator_depth = param.initiator_depth;
  out.flow_control = param.flow_control;
  out.retry_count = param.retry_count;
  out.rnr_retry_count = param.rnr_retry_count;
  out.srq = param.srq;
  out.qp_num = param.qp_num;
}

void take_ece(const Libraries& system, const rdma_cm_event& from, vb_cm_event& out) {
  const bool may_have = from.event == RDMA_CM_EVENT_CONNECT_REQUEST ||
                        from.event == RDMA_CM_EVENT_CONNECT_RESPONSE ||
                        from.event == RDMA_CM_EVENT_ESTABLISHED;
  ibv_ece ece{};
  if (!may_have || system.get_remote_ece(from.id, &ece) != 0) return;
  out.ece_vendor_id = ece.vendor_id;
  out.ece_options = ece.options;
}

}  // namespace

extern "C" {

int vb_cm_channel_create(vb_handle* channel, int* fd) {
  return on_adapter([&](Adapter& adapter) {
    rdma_event_channel* const raw = adapter.system.create_event_channel();
    if (raw == nullptr) return refused("make an event channel", errno);
    // NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDeleteLeaks): the table has it
    const int error = add(adapter, &Adapter::channels, "make an event channel", new Channel{raw},
                          channel, [&](Channel* made) {
                            adapter.system.destroy_event_channel(made->raw);
                            delete made;
                          });
    if (error == 0) *fd = raw->fd;
    return error;
  });
}

int vb_cm_channel_hide_lost_requests(vb_handle) { return 0; }  // the kernel hides them

int vb_cm_id_write_event(vb_handle, uint32_t, int32_t, uint64_t) { return EOPNOTSUPP; }

// These fail: the system's library finds services only from rdma-core 60 on, and registers none.
int vb_cm_find_services(vb_handle, const struct vb_service_query*) { return EOPNOTSUPP; }
int vb_cm_services(vb_handle, struct vb_service*, uint32_t, uint32_t*) { return EOPNOTSUPP; }
int vb_services_find(uint32_t, uint8_t, const struct vb_service_query*, struct vb_service*,
                     uint32_t, uint32_t*) {
  return EOPNOTSUPP;
}
int vb_service_add(uint32_t, uint8_t, const struct vb_service*, uint64_t*) { return EOPNOTSUPP; }
int vb_service_remove(uint64_t) { return EOPNOTSUPP; }
// Fabrics of virtual hosts are not supported over an adapter.
int vb_fabric_fault(const char*, const char* const*, size_t, const uint64_t*, char*, size_t) {
  return EOPNOTSUPP;
}

int vb_cm_channel_destroy(vb_handle channel) {
  return remove(&Adapter::channels, "end the event channel", channel,
                [](Adapter& adapter, Channel& its) {
                  {
                    const std::lock_guard lock(adapter.mutex);  // a request may add an id
                    if (its.ids > 0) return EBUSY;
                  }
                  adapter.system.destroy_event_channel(its.raw);
                  delete &its;
                  return 0;
                });
}

// The body does not run in guarded(), because thread cancellation may unwind it.
int vb_cm_next_event(vb_handle channel, struct vb_cm_event* event) {
  Adapter* const adapter = Adapter::if_any();
  Channel* const its = adapter == nullptr ? nullptr : adapter->channels.find(channel);
  if (its == nullptr) return EINVAL;
  rdma_cm_event* came = nullptr;
  for (;;) {
    if (adapter->system.get_cm_event(its->raw, &came) != 0) return errno;
    // Until the event is acknowledged, vb_cm_id_destroy() of its id waits.
    convert(*came, *event);
    take_ece(adapter->system, *came, *event);
    c_api::set_last_error("");  // the system's library gives no text for events
    int error = 0;
    const bool asks = came->event == RDMA_CM_EVENT_CONNECT_REQUEST;
    rdma_cm_id* const asked = asks ? came->id : nullptr;
    const Id& about = *static_cast<Id*>((asks ? came->listen_id : came->id)->context);
    if (asks) {
      error = c_api::guarded([&] { return keep(*adapter, asked, its, 0, &event->new_id); });
    }
    event->id = about.handle;
    {
      const std::lock_guard lock(adapter->mutex);
      event->cookie = about.cookie;
    }
    adapter->system.ack_cm_event(came);
    if (error == 0) return 0;
    // Rejects the peer and returns the next event, because the table of ids is full.
    adapter->system.reject(asked, nullptr, 0);
    adapter->system.destroy_id(asked);
  }
}

int vb_cm_id_create(vb_handle channel, uint32_t ps, uint32_t qp_type, uint64_t cookie,
                    vb_handle* id) {
  return on_command(&Adapter::channels, channel, [&](Adapter& adapter, Channel& its) {
    if (ps == VB_PS_NONE) return no_ib_cm();
    rdma_cm_id* made = nullptr;
    const auto space = static_cast<rdma_port_space>(ps);
    if (adapter.system.create_id(its.raw, &made, nullptr, space) != 0) {
      return refused("make an id", errno);
    }
    if (static_cast<std::uint32_t>(made->qp_type) != qp_type) {
      adapter.system.destroy_id(made);
      return c_api::failed({Errc::kNotSupported, 0, "no such queue pairs in this port space"});
    }
    const int error = keep(adapter, made, &its, cookie, id);
    if (error != 0) adapter.system.destroy_id(made);
    return error;
  });
}

int vb_cm_id_destroy(vb_handle id) {
  return on_command(&Adapter::ids, id, [&](Adapter& adapter, Id& its) {
    for (auto& [cookie, group] : its.joins) {  // otherwise its queue pair stays attached
      adapter.system.leave_multicast(its.raw, reinterpret_cast<sockaddr*>(&group));
    }
    give_back(adapter, its);
    {
      const std::lock_guard lock(adapter.mutex);
      adapter.ids.remove(id);
    }
    const int result =
        adapter.system.destroy_id(its.raw);  // waits until its events are acknowledged
    if (result != 0) return refused("end the id", errno);  // `its` stays, as librdmacm may use it
    const std::lock_guard lock(adapter.mutex);
    --its.channel->ids;
    delete &its;
    return 0;
  });
}

int vb_cm_id_set_cookie(vb_handle id, uint64_t cookie) {
  return on_command(&Adapter::ids, id, [&](Adapter& adapter, Id& its) {
    const std::lock_guard lock(adapter.mutex);
    its.cookie = cookie;
    return 0;
  });
}

int vb_cm_id_migrate(vb_handle id, vb_handle channel) {
  return on_command(&Adapter::ids, id, [&](Adapter& adapter, Id& its) {
    Channel* const to = adapter.channels.find(channel);
    if (to == nullptr) return no_such_object();
    if (adapter.system.migrate_id(its.raw, to->raw) != 0) return refused("move the id", errno);
    const std::lock_guard lock(adapter.mutex);
    --its.channel->ids;
    ++to->ids;
    its.channel = to;
    return 0;
  });
}

int vb_cm_id_addresses(vb_handle id, struct vb_cm_addresses* addresses) {
  return on_command(&Adapter::ids, id, [&](Adapter&, Id& its) {
    const rdma_cm_id& raw = *its.raw;
    *addresses = {};
    addresses->src = raw.route.addr.src_storage;
    addresses->dst = raw.route.addr.dst_storage;
    std::memcpy(addresses->sgid, raw.route.addr.addr.ibaddr.sgid.raw, sizeof addresses->sgid);
    std::memcpy(addresses->dgid, raw.route.addr.addr.ibaddr.dgid.raw, sizeof addresses->dgid);
    addresses->pkey = be16toh(raw.route.addr.addr.ibaddr.pkey);
    addresses->is_global = 1;
    addresses->bound = raw.verbs != nullptr ? 1 : 0;
    addresses->port_num = 1;  // the chosen port
    vb_gid_entry entry{};
    for (std::uint32_t i = 0; addresses->bound != 0 && vb_gid_query(0, 1, i, &entry) == 0; ++i) {
      const bool same = std::memcmp(entry.raw, addresses->sgid, sizeof entry.raw) == 0;
      if (entry.in_use == 0 || !same) continue;
      addresses->sgid_index = i;
      break;
    }
    if (raw.route.num_paths == 0) return 0;
    const ibv_sa_path_rec& path = raw.route.path_rec[0];
    addresses->resolved_path = 1;
    addresses->path_mtu = path.mtu;
    addresses->traffic_class = path.traffic_class;
    addresses->hop_limit = path.hop_limit;
    addresses->packet_life_time = path.packet_life_time;
    addresses->flow_label = be32toh(path.flow_label);
    addresses->slid = be16toh(path.slid);
    addresses->dlid = be16toh(path.dlid);
    addresses->sl = path.sl;
    addresses->is_global = path.dlid == 0 || path.hop_limit > kHopsInSubnet ? 1 : 0;
    return 0;
  });
}

int vb_cm_bind(vb_handle id, const struct sockaddr* addr) {
  return on_id("bind the id", id, [&](const Libraries& system, rdma_cm_id* its) {
    return system.bind_addr(its, raw(addr));
  });
}

int vb_cm_resolve_addr(vb_handle id, const struct sockaddr* src, const struct sockaddr* dst,
                       int timeout_ms) {
  return on_id("resolve the address", id, [&](const Libraries& system, rdma_cm_id* its) {
    return system.resolve_addr(its, raw(src), raw(dst), timeout_ms);
  });
}

int vb_cm_resolve_route(vb_handle id, int timeout_ms) {
  return on_id("resolve the route", id, [&](const Libraries& system, rdma_cm_id* its) {
    return system.resolve_route(its, timeout_ms);
  });
}

int vb_cm_listen(vb_handle id, int backlog) {
  return on_id("listen", id, [&](const Libraries& system, rdma_cm_id* its) {
    return system.listen(its, backlog);
  });
}

int vb_cm_set_option(vb_handle id, int level, int optname, const void* value, size_t bytes) {
  return on_id("set the option", id, [&](const Libraries& system, rdma_cm_id* its) {
    return system.set_option(its, level, optname, const_cast<void*>(value), bytes);
  });
}

// librdmacm changes the state of an id's queue pair with the connection.  Only the first change is
// made here.
int vb_cm_id_set_qp(vb_handle id, vb_handle qp) {
  return on_command(&Adapter::ids, id, [&](Adapter& adapter, Id& its) {
    if (qp == 0) {
      give_back(adapter, its);
      return 0;
    }
    ibv_qp* const pair = adapter.qps.find(qp);
    if (pair == nullptr) return no_such_object();
    if (its.raw->verbs != adapter.context) return of_another_device(adapter, *its.raw);
    ibv_qp_attr attr{};
    int mask = 0;
    attr.qp_state = IBV_QPS_INIT;
    if (adapter.system.init_qp_attr(its.raw, &attr, &mask) != 0) {
      return refused("find the queue pair's attributes", errno);
    }
    int error = adapter.system.modify_qp(pair, &attr, mask);
    if (error == 0 && pair->qp_type == IBV_QPT_UD) error = start_datagrams(adapter, *pair);
    if (error != 0) return refused("start the queue pair", error);
    give_back(adapter, its);
    if (const auto before = adapter.users.extract(pair)) before.mapped()->qp = nullptr;
    adapter.users[pair] = its.raw;
    its.raw->qp = pair;
    return 0;
  });
}

int vb_cm_init_qp_attr(vb_handle id, struct vb_qp_attr* attr, uint32_t* mask) {
  return on_command(&Adapter::ids, id, [&](Adapter& adapter, Id& its) {
    ibv_qp_attr found = c_api::from_c_api(*attr);
    int bits = 0;
    if (adapter.system.init_qp_attr(its.raw, &found, &bits) != 0) {
      return refused("find the queue pair's attributes", errno);
    }
    *attr = c_api::to_c_api(found, bits);
    *mask = static_cast<std::uint32_t>(bits);
    return 0;
  });
}

int vb_cm_connect(vb_handle id, const struct vb_conn_param* param) {
  return on_device("connect", id, [&](const Libraries& system, rdma_cm_id* its) {
    const vb_conn_param given = param != nullptr ? *param : vb_conn_param{};
    if (const int error = set_ece(system, its, given)) return error;
    rdma_conn_param wanted = from_c_api(given);
    return system.connect(its, &wanted);
  });
}

int vb_cm_accept(vb_handle id, const struct vb_conn_param* param) {
  return on_device("accept", id, [&](const Libraries& system, rdma_cm_id* its) {
    const vb_conn_param given = param != nullptr ? *param : vb_conn_param{};
    if (const int error = set_ece(system, its, given)) return error;
    rdma_conn_param wanted = from_c_api(given);
    return system.accept(its, &wanted);
  });
}

int vb_cm_reject(vb_handle id, uint32_t reason, const void* private_data,
                 uint8_t private_data_len) {
  return on_id("reject", id, [&](const Libraries& system, rdma_cm_id* its) {
    constexpr std::uint32_t kConsumer = 28, kVendorOption = 35;
    if (reason == kVendorOption) return system.reject_ece(its, private_data, private_data_len);
    if (reason == 0 || reason == kConsumer)
      return system.reject(its, private_data, private_data_len);
    errno = EINVAL;
    return -1;
  });
}

int vb_cm_establish(vb_handle id) {
  return on_id("establish", id,
               [](const Libraries& system, rdma_cm_id* its) { return system.establish(its); });
}

int vb_cm_notify(vb_handle id, uint32_t ibv_event_type) {
  return on_id("notify", id, [&](const Libraries& system, rdma_cm_id* its) {
    return system.notify(its, static_cast<enum ibv_event_type>(ibv_event_type));
  });
}

int vb_cm_disconnect(vb_handle id) {
  return on_id("disconnect", id,
               [](const Libraries& system, rdma_cm_id* its) { return system.disconnect(its); });
}

int vb_cm_listen_for(vb_handle, int, const struct vb_cm_filter*) { return no_ib_cm(); }
int vb_cm_reject_with(vb_handle, uint32_t, const struct vb_cm_message_data*) { return no_ib_cm(); }
int vb_cm_establish_with(vb_handle, const struct vb_cm_message_data*) { return no_ib_cm(); }
int vb_cm_disconnect_with(vb_handle, const struct vb_cm_message_data*) { return no_ib_cm(); }
int vb_cm_load_path(vb_handle, const struct vb_cm_path*, const struct vb_cm_message_data*) {
  return no_ib_cm();
}
int vb_cm_answer_path(vb_handle, uint32_t, const struct vb_cm_message_data*) { return no_ib_cm(); }

int vb_cm_join(vb_handle id, const struct sockaddr* group, int send_only, uint64_t cookie) {
  return on_command(&Adapter::ids, id, [&](Adapter& adapter, Id& its) {
    rdma_cm_join_mc_attr_ex wanted{};
    wanted.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    wanted.join_flags =
        send_only != 0 ? RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER : RDMA_MC_JOIN_FLAG_FULLMEMBER;
    wanted.addr = raw(group);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): cookies of the C API are numbers
    auto* const context = reinterpret_cast<void*>(static_cast<std::uintptr_t>(cookie));
    if (adapter.system.join_multicast(its.raw, &wanted, context) != 0) {
      return refused("join the group", errno);
    }
    std::memcpy(&its.joins[cookie], group, c_api::bytes_of(*group));
    return 0;
  });
}

int vb_cm_leave(vb_handle id, uint64_t cookie) {
  return on_command(&Adapter::ids, id, [&](Adapter& adapter, Id& its) {
    const auto join = its.joins.extract(cookie);
    if (!join) return c_api::failed({Errc::kInvalidArgument, 0, "no such join"});
    sockaddr_storage group = join.mapped();
    const int result = adapter.system.leave_multicast(its.raw, reinterpret_cast<sockaddr*>(&group));
    return result == 0 ? 0 : refused("leave the group", errno);
  });
}

}  // extern "C"
