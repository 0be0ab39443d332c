// Implements the C API: address handles, queue pairs and posting.

#include <algorithm>
#include <cstring>
#include <span>

#include "client/c_api_support.h"
#include "client/kernel_routes.h"
#include "client/sizes.h"
#include "client/unset_array.h"
#include "wire/source_port.h"

namespace verbena::client {

void convert_path(const hca::Path& path, std::uint8_t port, vb_ah_attr& out) {
  const link::Address& address = path.address;
  std::memcpy(out.dgid, address.destination.bytes.data(), sizeof out.dgid);
  out.flow_label = address.flow_label;
  out.sgid_index = path.sgid_index;
  out.hop_limit = address.hop_limit;
  out.traffic_class = address.traffic_class;
  out.is_global = address.carries_gids() ? 1 : 0;
  out.port_num = port;
  out.sl = address.service_level;
  out.dlid = address.destination_lid.value;
  out.src_path_bits = path.source_path_bits;
}

void convert_attributes(const hca::QpAttributes& a, vb_qp_attr& out) {
  out.qp_state = std::to_underlying(a.state);
  out.cur_qp_state = std::to_underlying(a.current_state);
  out.path_mtu = std::to_underlying(a.path_mtu);
  out.qkey = a.qkey.value;
  out.rq_psn = a.rq_psn.value;
  out.sq_psn = a.sq_psn.value;
  out.dest_qp_num = a.destination_qpn.value;
  out.qp_access_flags = a.access_flags;
  convert_path(a.path, a.port, out.ah);
  out.pkey_index = a.pkey_index;
  out.port_num = a.port;
  out.max_rd_atomic = a.max_rd_atomic;
  out.max_dest_rd_atomic = a.max_dest_rd_atomic;
  out.min_rnr_timer = a.min_rnr_timer;
  out.timeout = a.timeout;
  out.retry_cnt = a.retry_count;
  out.rnr_retry = a.rnr_retry;
  out.en_sqd_async_notify = a.sqd_notify ? 1 : 0;
  out.path_mig_state = std::to_underlying(a.migration);
  if (a.alternate_path.address == verbena::link::Address{}) return;
  convert_path(a.alternate_path, a.alternate_port, out.alt_ah);
  out.alt_port_num = a.alternate_port;
  out.alt_timeout = a.alternate_timeout;
  out.alt_pkey_index = a.alternate_pkey_index;
}

}  // namespace verbena::client

using verbena::Errc;
using verbena::Result;
using verbena::Time;
using namespace verbena::client;  // NOLINT(google-build-using-namespace): implements its C API
namespace hca = verbena::hca;
using verbena::process::Process;

namespace {

constexpr std::uint32_t kSgeMax = 32;
using SgeStorage = UnsetArray<hca::Sge, kSgeMax>;
constexpr std::uint32_t kSendFlagsKnown = hca::send_flag::kFence | hca::send_flag::kSignaled |
                                          hca::send_flag::kSolicited | hca::send_flag::kInline;

hca::QpCaps caps_of(const vb_qp_cap& cap) {
  return {.max_send_wr = cap.max_send_wr,
          .max_recv_wr = cap.max_recv_wr,
          .max_send_sge = cap.max_send_sge,
          .max_recv_sge = cap.max_recv_sge,
          .max_inline_bytes = cap.max_inline_data};
}

vb_qp_cap caps_of(const hca::QpCaps& cap) {
  return {.max_send_wr = cap.max_send_wr,
          .max_recv_wr = cap.max_recv_wr,
          .max_send_sge = cap.max_send_sge,
          .max_recv_sge = cap.max_recv_sge,
          .max_inline_data = cap.max_inline_bytes};
}

verbena::Gid gid_of(const std::uint8_t* raw) {
  verbena::Gid gid;
  std::memcpy(gid.bytes.data(), raw, gid.bytes.size());
  return gid;
}

Result<hca::Path> path_of(Process& process, std::uint32_t device, const vb_ah_attr& ah) {
  if (device >= verbena::kDevicesMax) {
    return verbena::fail(Errc::kInvalidArgument, "the host has no such device");
  }
  return process.path(ah.sgid_index, {.destination = gid_of(ah.dgid),
                                      .flow_label = ah.flow_label,
                                      .traffic_class = ah.traffic_class,
                                      .hop_limit = ah.hop_limit,
                                      .source_lid = {ah.src_path_bits},
                                      .destination_lid = {ah.dlid},
                                      .service_level = ah.sl,
                                      .has_grh = ah.is_global != 0,
                                      .port = {static_cast<std::uint8_t>(device), ah.port_num}});
}

// Converts the path of a connected QP.  On Ethernet without a flow label from the program, derives
// the source port from the QP numbers, as soft-RoCE and adapters do.
Result<hca::Path> connected_path(Process& process, hca::QpHandle qp, const vb_ah_attr& ah,
                                 verbena::Qpn destination) {
  const auto info = VB_TRY(process.engine().query_qp(qp));
  hca::Path path = VB_TRY(path_of(process, info.init.device, ah));
  if (ah.flow_label == 0 && !path.address.is_infiniband()) {
    path.address.source_port =
        verbena::wire::source_port(verbena::wire::default_flow_label(info.qpn, destination));
  }
  return path;
}

Result<hca::QpAttributes> attributes_of(Process& process, hca::QpHandle qp, const vb_qp_attr& a,
                                        std::uint32_t mask) {
  hca::QpAttributes out{.state = static_cast<hca::QpState>(a.qp_state),
                        .current_state = static_cast<hca::QpState>(a.cur_qp_state),
                        .path_mtu = static_cast<hca::Mtu>(a.path_mtu),
                        .qkey = {a.qkey},
                        .rq_psn = {a.rq_psn & verbena::kMask24},
                        .sq_psn = {a.sq_psn & verbena::kMask24},
                        .destination_qpn = {a.dest_qp_num},
                        .access_flags = a.qp_access_flags,
                        .pkey_index = a.pkey_index,
                        .port = a.port_num,
                        .sqd_notify = a.en_sqd_async_notify != 0,
                        .max_rd_atomic = a.max_rd_atomic,
                        .max_dest_rd_atomic = a.max_dest_rd_atomic,
                        .min_rnr_timer = a.min_rnr_timer,
                        .timeout = a.timeout,
                        .retry_count = a.retry_cnt,
                        .rnr_retry = a.rnr_retry,
                        .alternate_pkey_index = a.alt_pkey_index,
                        .alternate_port = a.alt_port_num,
                        .alternate_timeout = a.alt_timeout,
                        .migration = static_cast<hca::MigrationState>(a.path_mig_state)};
  if ((mask & hca::attribute::kPath) != 0) {
    out.path = VB_TRY(connected_path(process, qp, a.ah, out.destination_qpn));
  }
  if ((mask & hca::attribute::kAlternatePath) != 0) {
    const auto info = VB_TRY(process.engine().query_qp(qp));
    const bool sets_destination = (mask & hca::attribute::kDestinationQpn) != 0;
    out.alternate_path = VB_TRY(
        connected_path(process, qp, a.alt_ah,
                       sets_destination ? out.destination_qpn : info.attributes.destination_qpn));
  }
  return out;
}

// Fails if the kernel has no route for a path.  Otherwise all packets of the path would be lost.
Result<void> check_path(Client& client, std::uint32_t device, const vb_ah_attr& ah) {
  const auto route = client.command([&](Process& process, Time) {
    const auto path = path_of(process, device, ah);
    return path ? route_of_path(process, path->address) : std::nullopt;
  });
  if (!route) return {};
  const auto checked = route->check();
  if (checked) return {};
  return std::unexpected(unreachable_path(*route, checked.error()));
}

// Checks the paths that a call of vb_qp_modify() sets.
Result<void> check_paths(Client& client, vb_handle qp, const vb_qp_attr& attr, std::uint32_t mask) {
  constexpr std::uint32_t kPaths = hca::attribute::kPath | hca::attribute::kAlternatePath;
  if ((mask & kPaths) == 0) return {};
  const auto info = client.command([&](Process& process, Time) {
    return process.engine().query_qp(as_handle<hca::QpHandle>(qp));
  });
  if (!info) return {};  // vb_qp_modify() reports this error
  const std::uint32_t device = info->init.device;
  if ((mask & hca::attribute::kPath) != 0) VB_TRY_VOID(check_path(client, device, attr.ah));
  if ((mask & hca::attribute::kAlternatePath) == 0) return {};
  return check_path(client, device, attr.alt_ah);
}

// Converts a list of scatter/gather elements for the engine, and stores it in `storage`.
// kInvalidArgument: the list is too long for any queue.
Result<std::span<const hca::Sge>> sges_of(const vb_sge* list, std::uint32_t count,
                                          SgeStorage& storage) {
  if (count > kSgeMax) {
    return verbena::fail(Errc::kInvalidArgument, "more than 32 scatter/gather elements");
  }
  const std::span sges = storage.all();
  for (std::uint32_t i = 0; i < count; ++i) {
    sges[i] = {.address = list[i].addr, .length = list[i].length, .lkey = list[i].lkey};
  }
  return sges.first(count);
}

// Converts a send request, and stores its elements in `storage`.
Result<hca::SendRequest> send_request_of(const vb_send_wr& wr, SgeStorage& storage) {
  if (wr.opcode > std::to_underlying(hca::WrOpcode::kAtomicWrite)) {
    return verbena::fail(Errc::kNotSupported, "this send opcode is not supported");
  }
  if ((wr.send_flags & ~kSendFlagsKnown) != 0) {
    return verbena::fail(Errc::kInvalidArgument, "unknown send flags");
  }
  return hca::SendRequest{.wr_id = wr.wr_id,
                          .opcode = static_cast<hca::WrOpcode>(wr.opcode),
                          .flags = wr.send_flags,
                          .sges = VB_TRY(sges_of(wr.sg_list, wr.num_sge, storage)),
                          .immediate = wr.imm,
                          .remote_address = wr.remote_addr,
                          .r_key = wr.rkey,
                          .bind = {.address = wr.bind_addr,
                                   .length = wr.bind_length,
                                   .lkey = wr.bind_lkey,
                                   .access_flags = wr.bind_access},
                          .compare_add = wr.compare_add,
                          .swap = wr.swap,
                          .remote_qpn = {wr.remote_qpn},
                          .remote_qkey = {wr.remote_qkey},
                          .ah = {wr.ah}};
}

Result<void> post(hca::Engine& engine, vb_handle qp, const vb_send_wr& wr) {
  SgeStorage storage;
  return engine.post_send(as_handle<hca::QpHandle>(qp), VB_TRY(send_request_of(wr, storage)));
}

Result<void> post_list(hca::Engine& engine, vb_handle qp, std::span<const vb_send_wr> wrs) {
  SgeStorage storage;
  return engine.post_send_list(
      as_handle<hca::QpHandle>(qp), wrs.size(),
      [first = wrs.data(), &storage](std::size_t i) { return send_request_of(first[i], storage); });
}

Result<void> post(hca::Engine& engine, vb_handle qp, const vb_recv_wr& wr) {
  SgeStorage storage;
  return engine.post_recv(
      as_handle<hca::QpHandle>(qp),
      {.wr_id = wr.wr_id, .sges = VB_TRY(sges_of(wr.sg_list, wr.num_sge, storage))});
}

Result<void> post_shared(hca::Engine& engine, vb_handle srq, const vb_recv_wr& wr) {
  SgeStorage storage;
  return engine.post_srq_recv(
      as_handle<hca::SrqHandle>(srq),
      {.wr_id = wr.wr_id, .sges = VB_TRY(sges_of(wr.sg_list, wr.num_sge, storage))});
}

// Returns the errno of a post.  Stores no text for a full queue, because a full queue is normal on
// the data path, where the copy of a text would be too slow.
int errno_of_post(const Result<void>& result) {
  if (result) return 0;
  return result.error().code == Errc::kNoResources ? ENOMEM : failed(result.error());
}

}  // namespace

int verbena::client::qp_create(const Submission* submission, vb_qp_init* init, vb_handle* qp,
                               std::uint32_t* qp_num) {
  return on_object_with_agent([&](Client& client) {
    if (init->type < std::to_underlying(hca::QpType::kRc) ||
        init->type > std::to_underlying(hca::QpType::kUd)) {
      return failed({Errc::kNotSupported, 0, "only the QP types RC, UC and UD are supported"});
    }
    if (init->device >= verbena::kDevicesMax) {
      return failed({Errc::kInvalidArgument, 0, "the host has no such device"});
    }
    auto registration = Registration::add(
        client.channels(),
        {.context = as_handle<ContextHandle>(init->context), .cookie = init->cookie});
    if (!registration) return failed(registration.error());
    const hca::QpInit qp_init{.type = static_cast<hca::QpType>(init->type),
                              .pd = {init->pd},
                              .send_cq = {init->send_cq},
                              .recv_cq = {init->recv_cq},
                              .srq = {init->srq},
                              .caps = caps_of(init->cap),
                              .signal_all = init->sq_sig_all != 0,
                              .device = static_cast<std::uint8_t>(init->device),
                              .cookie = (*registration)->object()};
    return call_or_submit<hca::QpHandle>(
        client, submission,
        [&](Process& process, Time now, verbena::Completion<hca::QpHandle> done) {
          return process.create_qp(qp_init, now, std::move(done));
        },
        [=, owned_registration = *std::move(registration)](
            Process& process, const Result<hca::QpHandle>& result) -> Result<void> {
          if (!result) {
            const hca::Limits& limits = process.engine().limits();
            const vb_qp_cap& cap = init->cap;
            const std::uint32_t max_recv_wr = init->srq == 0 ? cap.max_recv_wr : 0;
            const std::uint32_t max_recv_sge = init->srq == 0 ? cap.max_recv_sge : 0;
            return std::unexpected(
                explain_size_error(result.error(), "ibv_create_qp()",
                                   {{"max_send_wr", cap.max_send_wr, "max_qp_wr", limits.max_wr},
                                    {"max_recv_wr", max_recv_wr, "max_qp_wr", limits.max_wr},
                                    {"max_send_sge", cap.max_send_sge, "max_sge", limits.max_sge},
                                    {"max_recv_sge", max_recv_sge, "max_sge", limits.max_sge},
                                    {"max_inline_data", cap.max_inline_data, "the device's",
                                     limits.max_inline_bytes}}));
          }
          owned_registration->commit();
          const hca::QpHandle handle = *result;
          const auto info = VB_TRY(process.engine().query_qp(handle));
          init->cap = caps_of(info.init.caps);
          *qp = handle.value;
          *qp_num = info.qpn.value;
          return {};
        });
  });
}

int verbena::client::qp_attach(const Submission* submission, const vb_group_args& args) {
  return on_object_with_agent([&](Client& client) {
    return call_or_submit<verbena::ipc::Done>(
        client, submission,
        [&](Process& process, Time, verbena::Completion<verbena::ipc::Done> done) {
          return process.attach_multicast(as_handle<hca::QpHandle>(args.qp), gid_of(args.group),
                                          args.interface_index, std::move(done));
        },
        [](Process&, const Result<verbena::ipc::Done>& reply) -> Result<void> {
          if (!reply) return std::unexpected(reply.error());
          return {};
        });
  });
}

extern "C" {

int vb_ah_create(uint32_t device, vb_handle pd, const struct vb_ah_attr* attr, vb_handle* ah) {
  return on_object_with_agent([&](Client& client) {
    if (const auto checked = check_path(client, device, *attr); !checked) {
      return failed(checked.error());
    }
    const auto result = client.command([&](Process& process, Time) -> Result<hca::AhHandle> {
      const auto path = VB_TRY(path_of(process, device, *attr));
      return process.engine().create_ah(as_handle<hca::PdHandle>(pd), path);
    });
    if (!result) return failed(result.error());
    *ah = result->value;
    return 0;
  });
}

int vb_ah_destroy(vb_handle ah) {
  return on_object([&](Client& client) {
    return result_of(client.command([&](Process& process, Time) {
      return process.engine().destroy_ah(as_handle<hca::AhHandle>(ah));
    }));
  });
}

int vb_qp_create(struct vb_qp_init* init, vb_handle* qp, uint32_t* qp_num) {
  return qp_create(nullptr, init, qp, qp_num);
}

int vb_qp_modify(vb_handle qp, const struct vb_qp_attr* attr, uint32_t mask) {
  return on_object([&](Client& client) {
    if (const auto checked = check_paths(client, qp, *attr, mask); !checked) {
      return failed(checked.error());
    }
    return result_of(client.revoke([&](Process& process, Time now) -> Result<void> {
      const auto handle = as_handle<hca::QpHandle>(qp);
      const auto attributes = VB_TRY(attributes_of(process, handle, *attr, mask));
      return process.modify_qp(handle, attributes, mask, now);
    }));
  });
}

int vb_qp_query(vb_handle qp, struct vb_qp_attr* attr, struct vb_qp_init* init) {
  return on_object([&](Client& client) {
    const auto info = client.command([&](Process& process, Time) {
      return process.engine().query_qp(as_handle<hca::QpHandle>(qp));
    });
    if (!info) return failed(info.error());
    *attr = {};
    convert_attributes(info->attributes, *attr);
    attr->sq_draining = info->sq_draining ? 1 : 0;
    attr->cap = caps_of(info->init.caps);
    const EventTarget target = client.channels().target_of(info->init.cookie);
    *init = {.context = target.context.value,
             .cookie = target.cookie,
             .device = info->init.device,
             .pd = info->init.pd.value,
             .send_cq = info->init.send_cq.value,
             .recv_cq = info->init.recv_cq.value,
             .srq = info->init.srq.value,
             .cap = attr->cap,
             .type = std::to_underlying(info->init.type),
             .sq_sig_all = info->init.signal_all ? 1u : 0u};
    return 0;
  });
}

int vb_qp_destroy(vb_handle qp) {
  return on_object([&](Client& client) {
    const auto handle = as_handle<hca::QpHandle>(qp);
    std::uint64_t object = 0;
    const auto result = client.revoke([&](Process& process, Time now) -> Result<void> {
      object = VB_TRY(process.engine().query_qp(handle)).init.cookie;
      return process.destroy_qp(handle, now);
    });
    if (result) client.channels().remove_object(object);
    return result_of(result);
  });
}

int vb_qp_attach(vb_handle qp, const uint8_t group[16], uint32_t interface_index) {
  vb_group_args args{.qp = qp, .group = {}, .interface_index = interface_index};
  std::memcpy(args.group, group, sizeof args.group);
  return qp_attach(nullptr, args);
}

int vb_qp_detach(vb_handle qp, const uint8_t group[16]) {
  return on_object([&](Client& client) {
    return result_of(client.command([&](Process& process, Time) {
      return process.detach_multicast(as_handle<hca::QpHandle>(qp), gid_of(group));
    }));
  });
}

int vb_post_send(vb_handle qp, const struct vb_send_wr* wr, int more) {
  Client* client = client_if_any();
  if (client == nullptr) return EINVAL;
  const int error = errno_of_post(post(client->engine(), qp, *wr));
  // Also kicks the driver after an error, because earlier requests may have been posted with `more`
  // set, and nothing else would send them.
  if (more == 0 || error != 0) client->kick();
  return error;
}

int vb_post_send_list(vb_handle qp, const struct vb_send_wr* wrs, uint32_t count) {
  Client* client = client_if_any();
  if (client == nullptr) return EINVAL;
  const int error = errno_of_post(post_list(client->engine(), qp, std::span(wrs, count)));
  if (error == 0) client->kick();
  return error;
}

int vb_post_recv(vb_handle qp, const struct vb_recv_wr* wr) {
  Client* client = client_if_any();
  if (client == nullptr) return EINVAL;
  const int error = errno_of_post(post(client->engine(), qp, *wr));
  // Kicks the driver because a QP in the error state flushes the request at once.
  if (error == 0 && client->engine().has_work()) client->kick();
  return error;
}

int vb_post_srq_recv(vb_handle srq, const struct vb_recv_wr* wr) {
  Client* client = client_if_any();
  return client == nullptr ? EINVAL : errno_of_post(post_shared(client->engine(), srq, *wr));
}

}  // extern "C"
