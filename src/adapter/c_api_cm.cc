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
  return on_command(&Adapter::ids, id, [&](Adapter& adapter, Id& object) {
    return call(adapter.system, object.raw) == 0 ? 0 : fail_with_errno(what, errno);
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

int fail_without_ib_cm() {
  return c_api::failed({Errc::kNotSupported, 0, "the system's libraries support only the RDMA CM"});
}

int fail_without_services() {
  return c_api::failed({Errc::kNotSupported, 0, "an adapter does not find or register services"});
}

// Creates an Id with a handle for an id of the system, and stores the Id as the context of `raw`.
int add_id(Adapter& adapter, rdma_cm_id* raw, Channel* channel, std::uint64_t cookie,
           vb_handle* handle) {
  auto entry = std::make_unique<Id>();
  entry->raw = raw;
  entry->channel = channel;
  entry->cookie = cookie;
  const std::lock_guard lock(adapter.mutex);
  const auto slot = adapter.ids.insert(entry.get());
  if (!slot) return c_api::failed(slot.error());
  ++channel->id_count;
  entry->handle = slot->value;
  *handle = slot->value;
  raw->context = entry.release();
  return 0;
}

// Detaches the queue pair from the id.
void detach_qp(Adapter& adapter, Id& object) {
  const auto user = adapter.ids_of_qps.find(std::exchange(object.raw->qp, nullptr));
  if (user != adapter.ids_of_qps.end() && user->second == object.raw)
    adapter.ids_of_qps.erase(user);
}

int fail_wrong_device(Adapter& adapter, const rdma_cm_id& id) {
  const auto name = [&](ibv_context* context) {
    return context == nullptr ? "none" : adapter.system.get_device_name(context->device);
  };
  c_api::set_last_error(
      fmt::format("the device of the id is {}, and the device of its queue pair is {}",
                  name(id.verbs), name(adapter.context)));
  return EINVAL;
}

// Works like on_id(), but fails with EINVAL if the id has no device, which librdmacm does not
// check.
template <class Call>
int on_bound_id(const char* what, vb_handle id, Call call) {
  return on_id(what, id, [&](const Libraries& system, rdma_cm_id* object) {
    if (object->verbs != nullptr) return call(system, object);
    errno = EINVAL;
    return -1;
  });
}

// Moves a datagram queue pair to RTS, because it has no peer to wait for.
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

bool is_multicast_event(rdma_cm_event_type type) {
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
    if (is_multicast_event(event.event)) {
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

void read_ece(const Libraries& system, const rdma_cm_event& from, vb_cm_event& out) {
  const bool may_have_ece = from.event == RDMA_CM_EVENT_CONNECT_REQUEST ||
                            from.event == RDMA_CM_EVENT_CONNECT_RESPONSE ||
                            from.event == RDMA_CM_EVENT_ESTABLISHED;
  ibv_ece ece{};
  if (!may_have_ece || system.get_remote_ece(from.id, &ece) != 0) return;
  out.ece_vendor_id = ece.vendor_id;
  out.ece_options = ece.options;
}

}  // namespace

extern "C" {

int vb_cm_channel_create(vb_handle* channel, int* fd) {
  return on_adapter([&](Adapter& adapter) {
    rdma_event_channel* const raw = adapter.system.create_event_channel();
    if (raw == nullptr) return fail_with_errno("create an event channel", errno);
    // NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDeleteLeaks): the table owns it
    const int error = add(adapter, &Adapter::channels, "create an event channel", new Channel{raw},
                          channel, [&](Channel* object) {
                            adapter.system.destroy_event_channel(object->raw);
                            delete object;
                          });
    if (error == 0) *fd = raw->fd;
    return error;
  });
}

int vb_cm_channel_hide_lost_requests(vb_handle) { return 0; }  // Linux hides them

int vb_cm_id_write_event(vb_handle, uint32_t, int32_t, uint64_t) {
  return c_api::failed(
      {Errc::kNotSupported, 0, "a program cannot write events of an adapter's connection manager"});
}

// These functions are not supported, because rdma-core finds services only from version 60 on, and
// cannot register services.
int vb_cm_find_services(vb_handle, const struct vb_service_query*) {
  return fail_without_services();
}
int vb_cm_services(vb_handle, struct vb_service*, uint32_t, uint32_t*) {
  return fail_without_services();
}
int vb_services_find(uint32_t, uint8_t, const struct vb_service_query*, struct vb_service*,
                     uint32_t, uint32_t*) {
  return fail_without_services();
}
int vb_service_add(uint32_t, uint8_t, const struct vb_service*, uint64_t*) {
  return fail_without_services();
}
int vb_service_remove(uint64_t) { return fail_without_services(); }
// Fabrics of virtual hosts are not supported over an adapter.
int vb_fabric_fault(const char*, const char* const*, size_t, const uint64_t*, char*, size_t) {
  return c_api::failed(
      {Errc::kNotSupported, 0, "an adapter is not a part of a fabric of virtual hosts"});
}

int vb_cm_channel_destroy(vb_handle channel) {
  return remove(&Adapter::channels, "destroy the event channel", channel,
                [](Adapter& adapter, Channel& object) {
                  {
                    // Another thread may add an id, for a connection request.
                    const std::lock_guard lock(adapter.mutex);
                    if (object.id_count > 0) return EBUSY;
                  }
                  adapter.system.destroy_event_channel(object.raw);
                  delete &object;
                  return 0;
                });
}

// Waits for an event.  Thread cancellation may unwind this function, so it holds no lock while it
// waits.
int vb_cm_next_event(vb_handle channel, struct vb_cm_event* event) {
  Adapter* const adapter = Adapter::get_if_open();
  Channel* const object = adapter == nullptr ? nullptr : adapter->channels.find(channel);
  if (object == nullptr) return fail_without_object();
  rdma_cm_event* raw_event = nullptr;
  for (;;) {
    if (adapter->system.get_cm_event(object->raw, &raw_event) != 0) return errno;
    // The ids of the event remain valid until ack_cm_event(), because vb_cm_id_destroy() waits
    // until the events of the id are acknowledged.
    convert(*raw_event, *event);
    read_ece(adapter->system, *raw_event, *event);
    c_api::set_last_error("");  // the system's library gives no text for events
    int error = 0;
    const bool is_request = raw_event->event == RDMA_CM_EVENT_CONNECT_REQUEST;
    rdma_cm_id* const new_id = is_request ? raw_event->id : nullptr;
    const Id& reporting_id =
        *static_cast<Id*>((is_request ? raw_event->listen_id : raw_event->id)->context);
    if (is_request) {
      error = c_api::guarded([&] { return add_id(*adapter, new_id, object, 0, &event->new_id); });
    }
    event->id = reporting_id.handle;
    {
      const std::lock_guard lock(adapter->mutex);
      event->cookie = reporting_id.cookie;
    }
    adapter->system.ack_cm_event(raw_event);
    if (error == 0) return 0;
    // Rejects the peer and takes the next event, because the new id got no handle: the table of ids
    // is full, or there is no memory.
    adapter->system.reject(new_id, nullptr, 0);
    adapter->system.destroy_id(new_id);
  }
}

int vb_cm_id_create(vb_handle channel, uint32_t ps, uint32_t qp_type, uint64_t cookie,
                    vb_handle* id) {
  return on_command(&Adapter::channels, channel, [&](Adapter& adapter, Channel& object) {
    if (ps == VB_PS_NONE) return fail_without_ib_cm();
    rdma_cm_id* raw_id = nullptr;
    const auto space = static_cast<rdma_port_space>(ps);
    if (adapter.system.create_id(object.raw, &raw_id, nullptr, space) != 0) {
      return fail_with_errno("create an id", errno);
    }
    if (static_cast<std::uint32_t>(raw_id->qp_type) != qp_type) {
      adapter.system.destroy_id(raw_id);
      return c_api::failed(
          {Errc::kNotSupported, 0, "the port space does not support this QP type"});
    }
    const int error = add_id(adapter, raw_id, &object, cookie, id);
    if (error != 0) adapter.system.destroy_id(raw_id);
    return error;
  });
}

int vb_cm_id_destroy(vb_handle id) {
  return on_command(&Adapter::ids, id, [&](Adapter& adapter, Id& object) {
    // Leaves all groups, because otherwise the queue pair would remain attached to them.
    for (auto& [cookie, group] : object.joins) {
      adapter.system.leave_multicast(object.raw, reinterpret_cast<sockaddr*>(&group));
    }
    detach_qp(adapter, object);
    {
      const std::lock_guard lock(adapter.mutex);
      adapter.ids.remove(id);
    }
    // destroy_id() waits until the events of the id are acknowledged.
    const int result = adapter.system.destroy_id(object.raw);
    // After an error, `object` is not freed, because librdmacm may still use it.
    if (result != 0) return fail_with_errno("destroy the id", errno);
    const std::lock_guard lock(adapter.mutex);
    --object.channel->id_count;
    delete &object;
    return 0;
  });
}

int vb_cm_id_set_cookie(vb_handle id, uint64_t cookie) {
  return on_command(&Adapter::ids, id, [&](Adapter& adapter, Id& object) {
    const std::lock_guard lock(adapter.mutex);
    object.cookie = cookie;
    return 0;
  });
}

int vb_cm_id_migrate(vb_handle id, vb_handle channel) {
  return on_command(&Adapter::ids, id, [&](Adapter& adapter, Id& object) {
    Channel* const new_channel = adapter.channels.find(channel);
    if (new_channel == nullptr) return fail_without_object();
    if (adapter.system.migrate_id(object.raw, new_channel->raw) != 0)
      return fail_with_errno("move the id", errno);
    const std::lock_guard lock(adapter.mutex);
    --object.channel->id_count;
    ++new_channel->id_count;
    object.channel = new_channel;
    return 0;
  });
}

int vb_cm_id_addresses(vb_handle id, struct vb_cm_addresses* addresses) {
  return on_command(&Adapter::ids, id, [&](Adapter&, Id& object) {
    const rdma_cm_id& raw = *object.raw;
    *addresses = {};
    addresses->src = raw.route.addr.src_storage;
    addresses->dst = raw.route.addr.dst_storage;
    std::memcpy(addresses->sgid, raw.route.addr.addr.ibaddr.sgid.raw, sizeof addresses->sgid);
    std::memcpy(addresses->dgid, raw.route.addr.addr.ibaddr.dgid.raw, sizeof addresses->dgid);
    addresses->pkey = be16toh(raw.route.addr.addr.ibaddr.pkey);
    addresses->is_global = 1;
    addresses->bound = raw.verbs != nullptr ? 1 : 0;
    addresses->port_num = 1;  // the C API has only the chosen port, as port 1
    vb_gid_entry entry{};
    for (std::uint32_t i = 0; addresses->bound != 0 && vb_gid_query(0, 1, i, &entry) == 0; ++i) {
      const bool is_same_gid = std::memcmp(entry.raw, addresses->sgid, sizeof entry.raw) == 0;
      if (entry.in_use == 0 || !is_same_gid) continue;
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
  return on_id("bind the id", id, [&](const Libraries& system, rdma_cm_id* object) {
    return system.bind_addr(object, raw(addr));
  });
}

int vb_cm_resolve_addr(vb_handle id, const struct sockaddr* src, const struct sockaddr* dst,
                       int timeout_ms) {
  return on_id("resolve the address", id, [&](const Libraries& system, rdma_cm_id* object) {
    return system.resolve_addr(object, raw(src), raw(dst), timeout_ms);
  });
}

int vb_cm_resolve_route(vb_handle id, int timeout_ms) {
  return on_id("resolve the route", id, [&](const Libraries& system, rdma_cm_id* object) {
    return system.resolve_route(object, timeout_ms);
  });
}

int vb_cm_listen(vb_handle id, int backlog) {
  return on_id("listen", id, [&](const Libraries& system, rdma_cm_id* object) {
    return system.listen(object, backlog);
  });
}

int vb_cm_set_option(vb_handle id, int level, int optname, const void* value, size_t bytes) {
  return on_id("set the option", id, [&](const Libraries& system, rdma_cm_id* object) {
    return system.set_option(object, level, optname, const_cast<void*>(value), bytes);
  });
}

// Moves a queue pair for connections to INIT, and a datagram queue pair to RTS.  librdmacm makes
// all later changes of the state, when it establishes or ends the connection.
int vb_cm_id_set_qp(vb_handle id, vb_handle qp) {
  return on_command(&Adapter::ids, id, [&](Adapter& adapter, Id& object) {
    if (qp == 0) {
      detach_qp(adapter, object);
      return 0;
    }
    ibv_qp* const pair = adapter.qps.find(qp);
    if (pair == nullptr) return fail_without_object();
    if (object.raw->verbs != adapter.context) return fail_wrong_device(adapter, *object.raw);
    ibv_qp_attr attr{};
    int mask = 0;
    attr.qp_state = IBV_QPS_INIT;
    if (adapter.system.init_qp_attr(object.raw, &attr, &mask) != 0) {
      return fail_with_errno("get the attributes of the queue pair", errno);
    }
    int error = adapter.system.modify_qp(pair, &attr, mask);
    if (error == 0 && pair->qp_type == IBV_QPT_UD) error = start_datagrams(adapter, *pair);
    if (error != 0) return fail_with_errno("start the queue pair", error);
    detach_qp(adapter, object);
    if (const auto old_user = adapter.ids_of_qps.extract(pair)) old_user.mapped()->qp = nullptr;
    adapter.ids_of_qps[pair] = object.raw;
    object.raw->qp = pair;
    return 0;
  });
}

int vb_cm_init_qp_attr(vb_handle id, struct vb_qp_attr* attr, uint32_t* mask) {
  return on_command(&Adapter::ids, id, [&](Adapter& adapter, Id& object) {
    ibv_qp_attr attributes = c_api::from_c_api(*attr);
    int attribute_mask = 0;
    if (adapter.system.init_qp_attr(object.raw, &attributes, &attribute_mask) != 0) {
      return fail_with_errno("get the attributes of the queue pair", errno);
    }
    *attr = c_api::to_c_api(attributes, attribute_mask);
    *mask = static_cast<std::uint32_t>(attribute_mask);
    return 0;
  });
}

int vb_cm_connect(vb_handle id, const struct vb_conn_param* param) {
  return on_bound_id("connect", id, [&](const Libraries& system, rdma_cm_id* object) {
    const vb_conn_param c_api_param = param != nullptr ? *param : vb_conn_param{};
    if (const int error = set_ece(system, object, c_api_param)) return error;
    rdma_conn_param conn_param = from_c_api(c_api_param);
    return system.connect(object, &conn_param);
  });
}

int vb_cm_accept(vb_handle id, const struct vb_conn_param* param) {
  return on_bound_id("accept", id, [&](const Libraries& system, rdma_cm_id* object) {
    const vb_conn_param c_api_param = param != nullptr ? *param : vb_conn_param{};
    if (const int error = set_ece(system, object, c_api_param)) return error;
    rdma_conn_param conn_param = from_c_api(c_api_param);
    return system.accept(object, &conn_param);
  });
}

int vb_cm_reject(vb_handle id, uint32_t reason, const void* private_data,
                 uint8_t private_data_len) {
  return on_id("reject", id, [&](const Libraries& system, rdma_cm_id* object) {
    constexpr std::uint32_t kConsumer = 28, kVendorOption = 35;
    if (reason == kVendorOption) return system.reject_ece(object, private_data, private_data_len);
    if (reason == 0 || reason == kConsumer)
      return system.reject(object, private_data, private_data_len);
    errno = EINVAL;
    return -1;
  });
}

int vb_cm_establish(vb_handle id) {
  return on_id("establish", id, [](const Libraries& system, rdma_cm_id* object) {
    return system.establish(object);
  });
}

int vb_cm_notify(vb_handle id, uint32_t ibv_event_type) {
  return on_id("notify", id, [&](const Libraries& system, rdma_cm_id* object) {
    return system.notify(object, static_cast<enum ibv_event_type>(ibv_event_type));
  });
}

int vb_cm_disconnect(vb_handle id) {
  return on_id("disconnect", id, [](const Libraries& system, rdma_cm_id* object) {
    return system.disconnect(object);
  });
}

int vb_cm_listen_for(vb_handle, int, const struct vb_cm_filter*) { return fail_without_ib_cm(); }
int vb_cm_reject_with(vb_handle, uint32_t, const struct vb_cm_message_data*) {
  return fail_without_ib_cm();
}
int vb_cm_establish_with(vb_handle, const struct vb_cm_message_data*) {
  return fail_without_ib_cm();
}
int vb_cm_disconnect_with(vb_handle, const struct vb_cm_message_data*) {
  return fail_without_ib_cm();
}
int vb_cm_load_path(vb_handle, const struct vb_cm_path*, const struct vb_cm_message_data*) {
  return fail_without_ib_cm();
}
int vb_cm_answer_path(vb_handle, uint32_t, const struct vb_cm_message_data*) {
  return fail_without_ib_cm();
}

int vb_cm_join(vb_handle id, const struct sockaddr* group, int send_only, uint64_t cookie) {
  return on_command(&Adapter::ids, id, [&](Adapter& adapter, Id& object) {
    rdma_cm_join_mc_attr_ex attributes{};
    attributes.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    attributes.join_flags =
        send_only != 0 ? RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER : RDMA_MC_JOIN_FLAG_FULLMEMBER;
    attributes.addr = raw(group);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): cookies of the C API are numbers
    auto* const context = reinterpret_cast<void*>(static_cast<std::uintptr_t>(cookie));
    if (adapter.system.join_multicast(object.raw, &attributes, context) != 0) {
      return fail_with_errno("join the group", errno);
    }
    std::memcpy(&object.joins[cookie], group, c_api::bytes_of(*group));
    return 0;
  });
}

int vb_cm_leave(vb_handle id, uint64_t cookie) {
  return on_command(&Adapter::ids, id, [&](Adapter& adapter, Id& object) {
    const auto join = object.joins.find(cookie);
    if (join == object.joins.end()) {
      return c_api::failed({Errc::kInvalidArgument, 0, "no such join"});
    }
    sockaddr_storage group = join->second;
    const int result =
        adapter.system.leave_multicast(object.raw, reinterpret_cast<sockaddr*>(&group));
    if (result == 0) object.joins.erase(join);
    return result == 0 ? 0 : fail_with_errno("leave the group", errno);
  });
}

}  // extern "C"
