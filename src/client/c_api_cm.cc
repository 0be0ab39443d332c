// Implements the C API: event channels and ids of the RDMA connection manager.

#include <rdma/rdma_cma.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "client/c_api_support.h"
#include "client/sockaddr.h"

using verbena::Completion;
using verbena::Errc;
using verbena::Result;
using verbena::Started;
using verbena::Time;
using namespace verbena::client;  // NOLINT(google-build-using-namespace): implements its C API
namespace hca = verbena::hca;
namespace ipc = verbena::ipc;
namespace rdmacm = verbena::rdmacm;
using verbena::process::CmNotice;
using verbena::process::Connection;
using verbena::process::ConnectionHandle;
using verbena::process::Process;

namespace {

vb_cm_args args_for(vb_handle id) {
  vb_cm_args args{};
  args.id = id;
  return args;
}

// Returns the length of an option's value, as the kernel requires it; 0 if there is no such option.
std::size_t value_bytes_of(int level, int option) {
  if (level != RDMA_OPTION_ID) return 0;
  switch (option) {
    case RDMA_OPTION_ID_TOS:
    case RDMA_OPTION_ID_ACK_TIMEOUT: return sizeof(std::uint8_t);
    case RDMA_OPTION_ID_REUSEADDR:
    case RDMA_OPTION_ID_AFONLY: return sizeof(int);
    default: return 0;
  }
}

vb_cm_event to_vb_event(const CmNotice& notice) {
  const rdmacm::Event& event = notice.event;
  const rdmacm::ConnParam& param = event.param;
  vb_cm_event out{};
  out.type = std::to_underlying(event.kind);
  out.status = event.status;
  out.id = notice.id.value;
  out.cookie = notice.cookie;
  out.new_id = notice.new_id.value;
  out.new_ps = event.port_space;
  out.new_qp_type = event.qp_type;
  std::memcpy(out.private_data, param.private_data.data(), param.private_data.size());
  out.private_data_len = param.private_data_bytes;
  out.responder_resources = param.responder_resources;
  out.initiator_depth = param.initiator_depth;
  out.flow_control = param.flow_control;
  out.retry_count = param.retry_count;
  out.rnr_retry_count = param.rnr_retry_count;
  out.srq = param.srq;
  out.qp_num = param.qpn;
  out.qkey = param.qkey;
  out.ece_vendor_id = param.ece_vendor_id;
  out.ece_options = param.ece_options;
  if (notice.group != 0) {
    convert_path({.address = event.path.address,
                  .sgid_index = static_cast<std::uint8_t>(event.path.sgid_index)},
                 event.path.address.port.number, out.group);
    out.group_rate = notice.group_rate;
    out.group_cookie = notice.group;
  }
  out.arg = notice.arg;
  out.service = event.source.service.value;
  const verbena::link::Address& alternate = param.alternate.address;
  std::memcpy(out.alternate.sgid, alternate.source.bytes.data(), sizeof out.alternate.sgid);
  std::memcpy(out.alternate.dgid, alternate.destination.bytes.data(), sizeof out.alternate.dgid);
  out.alternate.interface_index = alternate.interface;
  out.alternate.flow_label = alternate.flow_label;
  out.alternate.hop_limit = alternate.hop_limit;
  out.alternate.traffic_class = alternate.traffic_class;
  out.alternate_accepted = param.alternate_accepted ? 1 : 0;
  const auto info = std::min(event.additional_info.size(), sizeof out.additional_info);
  std::copy_n(event.additional_info.begin(), info,
              reinterpret_cast<std::byte*>(out.additional_info));
  out.additional_info_len = static_cast<std::uint8_t>(info);
  return out;
}

}  // namespace

extern "C" {

int vb_cm_channel_create(vb_handle* channel, int* fd) {
  return on_client([&](Client& client) {
    const auto handle = client.channels().create_cm();
    if (!handle) return failed(handle.error());
    *channel = handle->value;
    *fd = client.channels().cm(*handle)->fd();
    return 0;
  });
}

int vb_cm_channel_hide_lost_requests(vb_handle channel) {
  return on_object([&](Client& client) {
    return result_of(client.channels().hide_lost_requests(as_handle<CmChannelHandle>(channel)));
  });
}

int vb_cm_channel_destroy(vb_handle channel) {
  return on_object([&](Client& client) {
    return result_of(client.channels().destroy_cm(as_handle<CmChannelHandle>(channel)));
  });
}

// Does not use guarded(), because this function may unwind when the thread is cancelled.
int vb_cm_next_event(vb_handle channel, struct vb_cm_event* event) {
  Client* client = client_if_any();
  if (client == nullptr) return EINVAL;
  const auto queue = client->channels().cm(as_handle<CmChannelHandle>(channel));
  if (queue == nullptr) return EINVAL;
  CmNotice notice;
  if (const int error = client->next_event(*queue, notice); error != 0) return error;
  *event = to_vb_event(notice);
  set_last_error(notice.why);
  // Uses the current cookie, because the program may have set it after the event came.
  client->command([&](Process& process, Time) {
    if (const auto found = process.connection(notice.id)) event->cookie = (*found)->cookie;
    return 0;
  });
  return 0;
}

int vb_cm_id_write_event(vb_handle id, uint32_t type, int32_t status, uint64_t arg) {
  return on_object([&](Client& client) {
    const auto kind = static_cast<rdmacm::EventKind>(type);
    if (type < std::to_underlying(rdmacm::EventKind::kAddrInfoResolved) ||
        type > std::to_underlying(rdmacm::EventKind::kUser)) {
      return EINVAL;
    }
    CmNotice notice{.id = ConnectionHandle{id}, .arg = arg};
    notice.event.kind = kind;
    notice.event.status = status;
    return result_of(client.channels().write_event(std::move(notice)));
  });
}

int vb_cm_id_create(vb_handle channel, uint32_t ps, uint32_t qp_type, uint64_t cookie,
                    vb_handle* id) {
  return on_client([&](Client& client) {
    const auto channel_handle = as_handle<CmChannelHandle>(channel);
    if (client.channels().cm(channel_handle) == nullptr) {
      return failed({verbena::Errc::kBadHandle, 0, "no such event channel"});
    }
    return result_of(client.command([&](Process& process, Time) -> verbena::Result<void> {
      const ConnectionHandle handle = VB_TRY(process.create_id(ps, qp_type, cookie));
      auto added = client.channels().add_id(handle, channel_handle);
      if (added) {
        *id = handle.value;
      } else {
        (void)process.destroy_id(handle).has_value();  // cannot fail: the id is new
      }
      return added;
    }));
  });
}

int vb_cm_id_destroy(vb_handle id) {
  return on_object([&](Client& client) {
    const ConnectionHandle handle{id};
    const auto outcome = client.command([&](Process& process, Time) {
      auto result = process.destroy_id(handle);
      for (const CmNotice& notice : client.channels().remove_id(handle)) {
        if (notice.new_id) (void)process.destroy_id(notice.new_id).has_value();
      }
      return result;
    });
    return result_of(outcome);
  });
}

int vb_cm_id_set_cookie(vb_handle id, uint64_t cookie) {
  return on_object([&](Client& client) {
    return result_of(client.command(
        [&](Process& process, Time) { return process.set_cookie(ConnectionHandle{id}, cookie); }));
  });
}

int vb_cm_id_migrate(vb_handle id, vb_handle channel) {
  return on_object([&](Client& client) {
    return result_of(
        client.channels().migrate_id(ConnectionHandle{id}, as_handle<CmChannelHandle>(channel)));
  });
}

int vb_cm_id_addresses(vb_handle id, struct vb_cm_addresses* addresses) {
  return on_object([&](Client& client) {
    return client.command([&](Process& process, Time) {
      const auto found = process.connection(ConnectionHandle{id});
      if (!found) return failed(found.error());
      const Connection& connection = **found;
      *addresses = {};
      addresses->src = to_sockaddr(connection.source);
      addresses->dst = to_sockaddr(connection.destination);
      const rdmacm::PathInfo& path = connection.path;
      std::memcpy(addresses->sgid, path.address.source.bytes.data(), sizeof addresses->sgid);
      std::memcpy(addresses->dgid, path.address.destination.bytes.data(), sizeof addresses->dgid);
      addresses->device = path.address.port.device;
      addresses->port_num = path.address.port.number;
      addresses->sgid_index = path.sgid_index;
      addresses->pkey = path.pkey;
      addresses->bound = connection.bound ? 1 : 0;
      addresses->resolved_path = connection.resolved ? 1 : 0;
      addresses->path_mtu = path.mtu;
      addresses->traffic_class = path.address.traffic_class;
      addresses->hop_limit = path.address.hop_limit;
      addresses->packet_life_time = path.packet_life_time;
      addresses->flow_label = path.address.flow_label;
      addresses->slid = path.address.source_lid.value;
      addresses->dlid = path.address.destination_lid.value;
      addresses->sl = path.address.service_level;
      addresses->is_global = path.address.carries_gids() ? 1 : 0;
      return 0;
    });
  });
}

int vb_cm_bind(vb_handle id, const struct sockaddr* addr) {
  vb_cm_args args = args_for(id);
  args.src = addr;
  return cm_command(nullptr, VB_CM_BIND, args);
}

int vb_cm_resolve_addr(vb_handle id, const struct sockaddr* src, const struct sockaddr* dst,
                       int timeout_ms) {
  vb_cm_args args = args_for(id);
  args.src = src;
  args.dst = dst;
  args.timeout_ms = timeout_ms;
  return cm_command(nullptr, VB_CM_RESOLVE_ADDR, args);
}

int vb_cm_resolve_route(vb_handle id, int timeout_ms) {
  vb_cm_args args = args_for(id);
  args.timeout_ms = timeout_ms;
  return cm_command(nullptr, VB_CM_RESOLVE_ROUTE, args);
}

int vb_cm_listen(vb_handle id, int backlog) {
  vb_cm_args args = args_for(id);
  args.backlog = backlog;
  return cm_command(nullptr, VB_CM_LISTEN, args);
}

int vb_cm_set_option(vb_handle id, int level, int optname, const void* value, size_t bytes) {
  if (level == RDMA_OPTION_IB && optname == RDMA_OPTION_IB_PATH) {
    return set_paths(id, value, bytes);
  }
  const std::size_t value_bytes = value_bytes_of(level, optname);
  if (value_bytes == 0) return failed({Errc::kNotSupported, ENOSYS, "no such option"});
  if (value == nullptr || bytes != value_bytes) {
    return failed({Errc::kInvalidArgument, 0, "the option has a value of another length"});
  }
  std::uint64_t number = 0;
  std::memcpy(&number, value, bytes);  // an int or a byte, in host order (little-endian)
  return call_or_submit_for_id<ipc::Done>(
      nullptr, id,
      [&](Process& process, ConnectionHandle handle, Time, Completion<ipc::Done> done) {
        return process.set_option(handle, static_cast<std::uint32_t>(level),
                                  static_cast<std::uint32_t>(optname), number, std::move(done));
      });
}

int vb_cm_id_set_qp(vb_handle id, vb_handle qp) {
  return on_object([&](Client& client) {
    return result_of(client.command([&](Process& process, Time now) {
      return process.set_qp(ConnectionHandle{id}, as_handle<hca::QpHandle>(qp), now);
    }));
  });
}

int vb_cm_init_qp_attr(vb_handle id, struct vb_qp_attr* attr, uint32_t* mask) {
  return on_object([&](Client& client) {
    const auto new_state = static_cast<hca::QpState>(attr->qp_state);
    const auto transition = client.command([&](Process& process, Time) {
      return process.transition(ConnectionHandle{id}, new_state);
    });
    if (!transition) return failed(transition.error());
    *attr = {};
    convert_attributes(transition->attributes, *attr);
    *mask = transition->mask;
    return 0;
  });
}

int vb_cm_connect(vb_handle id, const struct vb_conn_param* param) {
  vb_cm_args args = args_for(id);
  args.param = param;
  return cm_command(nullptr, VB_CM_CONNECT, args);
}

int vb_cm_accept(vb_handle id, const struct vb_conn_param* param) {
  vb_cm_args args = args_for(id);
  args.param = param;
  return cm_command(nullptr, VB_CM_ACCEPT, args);
}

int vb_cm_reject(vb_handle id, uint32_t reason, const void* private_data,
                 uint8_t private_data_len) {
  vb_conn_param param{};
  param.private_data = private_data;
  param.private_data_len = private_data_len;
  vb_cm_args args = args_for(id);
  args.param = &param;
  args.reason = reason;
  return cm_command(nullptr, VB_CM_REJECT, args);
}

int vb_cm_establish(vb_handle id) { return cm_command(nullptr, VB_CM_ESTABLISH, args_for(id)); }

int vb_cm_notify(vb_handle id, uint32_t ibv_event_type) {
  constexpr std::uint32_t kCommEst = 4;  // IBV_EVENT_COMM_EST
  if (ibv_event_type != kCommEst) {
    return failed({Errc::kInvalidArgument, 0, "rdma_notify() accepts only IBV_EVENT_COMM_EST"});
  }
  return on_object([&](Client& client) {
    return result_of(client.command(
        [&](Process& process, Time) { return process.notify(ConnectionHandle{id}); }));
  });
}

int vb_cm_join(vb_handle id, const struct sockaddr* group, int send_only, uint64_t cookie) {
  return on_object([&](Client& client) {
    const auto address = group_from_sockaddr(group);
    if (!address) return failed(address.error());
    return result_of(client.command([&](Process& process, Time) {
      return process.join_multicast(ConnectionHandle{id}, *address, send_only == 0, cookie);
    }));
  });
}

int vb_cm_leave(vb_handle id, uint64_t cookie) {
  return on_object([&](Client& client) {
    return result_of(client.command([&](Process& process, Time) {
      auto result = process.leave_multicast(ConnectionHandle{id}, cookie);
      client.channels().remove_group(ConnectionHandle{id}, cookie);
      return result;
    }));
  });
}

int vb_cm_disconnect(vb_handle id) { return cm_command(nullptr, VB_CM_DISCONNECT, args_for(id)); }

int vb_cm_listen_for(vb_handle id, int backlog, const struct vb_cm_filter* filter) {
  vb_cm_args args = args_for(id);
  args.backlog = backlog;
  args.filter = filter;
  return cm_command(nullptr, VB_CM_LISTEN, args);
}

int vb_cm_reject_with(vb_handle id, uint32_t reason, const struct vb_cm_message_data* data) {
  // Passes empty data instead of null, because null stands for vb_cm_reject() and its default
  // reason.
  constexpr vb_cm_message_data kNoData{};
  vb_cm_args args = args_for(id);
  args.reason = reason;
  args.data = data != nullptr ? data : &kNoData;
  return cm_command(nullptr, VB_CM_REJECT, args);
}

int vb_cm_establish_with(vb_handle id, const struct vb_cm_message_data* data) {
  vb_cm_args args = args_for(id);
  args.data = data;
  return cm_command(nullptr, VB_CM_ESTABLISH, args);
}

int vb_cm_disconnect_with(vb_handle id, const struct vb_cm_message_data* data) {
  vb_cm_args args = args_for(id);
  args.data = data;
  return cm_command(nullptr, VB_CM_DISCONNECT, args);
}

int vb_cm_load_path(vb_handle id, const struct vb_cm_path* path,
                    const struct vb_cm_message_data* data) {
  vb_cm_args args = args_for(id);
  args.path = path;
  args.data = data;
  return cm_command(nullptr, VB_CM_LOAD_PATH, args);
}

int vb_cm_answer_path(vb_handle id, uint32_t status, const struct vb_cm_message_data* data) {
  vb_cm_args args = args_for(id);
  args.reason = status;
  args.data = data;
  return cm_command(nullptr, VB_CM_ANSWER_PATH, args);
}

}  // extern "C"
