// Implements the C API: commands to the agent's RDMA connection manager.  Programs call or submit
// the commands.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>

#include "client/c_api_support.h"
#include "client/kernel_routes.h"
#include "client/sockaddr.h"

namespace verbena::client {
namespace {

using process::Connection;
using process::ConnectionHandle;
using process::Process;
using Done = Completion<ipc::Done>;

Result<rdmacm::PathInfo> path_of(const vb_cm_path& path) {
  constexpr std::uint32_t kFlowLabelMax = 0xfffff;
  if (path.flow_label > kFlowLabelMax) {
    return verbena::fail(Errc::kInvalidArgument, "a flow label has 20 bits");
  }
  link::Address out{.interface = path.interface_index,
                    .flow_label = path.flow_label,
                    .traffic_class = path.traffic_class,
                    .hop_limit = path.hop_limit == 0 ? std::uint8_t{64} : path.hop_limit};
  std::memcpy(out.source.bytes.data(), path.sgid, sizeof path.sgid);
  std::memcpy(out.destination.bytes.data(), path.dgid, sizeof path.dgid);
  if (out.source == Gid{} || out.destination == Gid{}) {
    return verbena::fail(Errc::kInvalidArgument, "a path needs a source and a destination");
  }
  return rdmacm::PathInfo{.address = out};
}

Result<rdmacm::ConnParam> param_of(const vb_conn_param* param, std::size_t private_bytes_max) {
  rdmacm::ConnParam out{
      .responder_resources = 0xff, .initiator_depth = 0xff, .retry_count = 7, .rnr_retry_count = 7};
  if (param == nullptr) return out;
  if (param->ece_vendor_id > kMask24) {
    return verbena::fail(Errc::kInvalidArgument, "a vendor id has 24 bits");
  }
  if (param->private_data_len > private_bytes_max) {
    return verbena::fail(Errc::kInvalidArgument,
                         "the private data is longer than the message allows");
  }
  if (param->private_data_len > 0 && param->private_data == nullptr) {
    return verbena::fail(Errc::kInvalidArgument, "private data without an address");
  }
  if (param->private_data_len > 0) {
    std::memcpy(out.private_data.data(), param->private_data, param->private_data_len);
  }
  out.private_data_bytes = param->private_data_len;
  out.responder_resources = param->responder_resources;
  out.initiator_depth = param->initiator_depth;
  out.flow_control = param->flow_control;
  out.retry_count = std::min<std::uint8_t>(param->retry_count, 7);
  out.rnr_retry_count = std::min<std::uint8_t>(param->rnr_retry_count, 7);
  out.srq = param->srq;
  out.qpn = param->qp_num;
  out.ece_vendor_id = param->ece_vendor_id;
  out.ece_options = param->ece_options;
  if (param->alternate != nullptr) out.alternate = VB_TRY(path_of(*param->alternate));
  out.alternate_accepted = param->alternate_accepted != 0;
  out.peer_to_peer = param->peer_to_peer != 0;
  out.timeout = std::chrono::milliseconds(param->timeout_ms);
  return out;
}

// Holds the program's data for a message.  The code that builds the message checks the lengths.
struct MessageData {
  std::span<const std::byte> private_data{};
  std::span<const std::byte> additional_info{};
};

Result<std::span<const std::byte>> bytes_of(const void* bytes, std::uint8_t length) {
  if (length > 0 && bytes == nullptr) {
    return verbena::fail(Errc::kInvalidArgument, "a length without an address");
  }
  return std::span(static_cast<const std::byte*>(bytes), length);
}

Result<MessageData> data_of(const vb_cm_message_data* data) {
  if (data == nullptr) return MessageData{};
  return MessageData{
      .private_data = VB_TRY(bytes_of(data->private_data, data->private_data_len)),
      .additional_info = VB_TRY(bytes_of(data->additional_info, data->additional_info_len))};
}

Result<rdmacm::Filter> filter_of(const vb_cm_filter* filter) {
  if (filter == nullptr) return rdmacm::Filter{};
  const auto data = VB_TRY(bytes_of(filter->data, filter->data_len));
  const auto mask = VB_TRY(bytes_of(filter->data_mask, filter->data_len));
  return rdmacm::Filter{.mask = {filter->mask},
                        .data = {data.begin(), data.end()},
                        .data_mask = {mask.begin(), mask.end()}};
}

// Returns the timeout of a command.  A negative timeout expires at once, as in rdma_resolve_addr().
Duration timeout_of(const vb_cm_args& args) {
  return std::chrono::milliseconds(std::max(args.timeout_ms, 0));
}

int bind(const Submission* submission, const vb_cm_args& args) {
  const auto address = source_from_sockaddr(args.src);
  if (!address) return failed(address.error());
  return call_or_submit_for_id<ipc::Bound>(
      submission, args.id,
      [&](Process& process, ConnectionHandle id, Time, Completion<ipc::Bound> done) {
        return process.bind(id, *address, std::move(done));
      });
}

// Fails if the kernel has no route to the destination, because Linux reports that by the call and
// not by an event.
Result<void> check_route(vb_handle id, const rdmacm::SocketAddress& source,
                         const rdmacm::SocketAddress& destination) {
  Client* const client = client_if_any();
  if (client == nullptr) return {};
  const auto route = client->command([&](Process& process, Time) {
    return route_to_resolve(process, ConnectionHandle{id}, source, destination);
  });
  return route ? route->check() : Result<void>{};
}

// Writes the same line for `verbena run --verbose` as for an event.  REQUIRES: there is a Client.
int fail_without_route(const rdmacm::SocketAddress& destination, const Error& error) {
  const int error_number = to_errno(error);
  const auto text = text_of(
      {.kind = rdmacm::EventKind::kAddrError, .status = -error_number, .destination = destination},
      Connection::Step::kResolve, Duration(0));
  if (text) {
    set_last_error(*text);
    client_if_any()->diagnostics().write(*text, Client::os_now());
  }
  return error_number;
}

int resolve_addr(const Submission* submission, const vb_cm_args& args) {
  const auto destination = from_sockaddr(args.dst);
  if (!destination) return failed(destination.error());
  rdmacm::SocketAddress source;
  if (args.src != nullptr) {
    const auto address = source_from_sockaddr(args.src);
    if (!address) return failed(address.error());
    source = *address;
  }
  if (const auto routed = check_route(args.id, source, *destination); !routed) {
    return fail_without_route(*destination, routed.error());
  }
  return call_or_submit_for_id<ipc::Done>(
      submission, args.id, [&](Process& process, ConnectionHandle id, Time now, Done done) {
        process.record_step(id, Connection::Step::kResolve, now);
        return process.resolve_address(id, source, *destination, timeout_of(args), std::move(done));
      });
}

int resolve_route(const Submission* submission, const vb_cm_args& args) {
  return call_or_submit_for_id<ipc::Done>(
      submission, args.id, [&](Process& process, ConnectionHandle id, Time now, Done done) {
        process.record_step(id, Connection::Step::kRoute, now);
        return process.resolve_route(id, timeout_of(args), std::move(done));
      });
}

int listen(const Submission* submission, const vb_cm_args& args) {
  const auto filter = filter_of(args.filter);
  if (!filter) return failed(filter.error());
  return call_or_submit_for_id<ipc::Bound>(
      submission, args.id,
      [&](Process& process, ConnectionHandle id, Time, Completion<ipc::Bound> done) {
        return process.listen(id, args.backlog, *filter, std::move(done));
      });
}

int connect(const Submission* submission, const vb_cm_args& args) {
  // Checks the largest limit of all messages.  The connection manager knows the type of the QP, and
  // checks the limit of the actual message.
  const auto param = param_of(args.param, rdmacm::kConnectDatagramByGidPrivateBytes);
  if (!param) return failed(param.error());
  return call_or_submit_for_id<ipc::Done>(
      submission, args.id, [&](Process& process, ConnectionHandle id, Time now, Done done) {
        process.record_step(id, Connection::Step::kConnect, now);
        return process.connect(id, *param, std::move(done));
      });
}

int accept(const Submission* submission, const vb_cm_args& args) {
  const auto param = param_of(args.param, rdmacm::kAcceptPrivateBytes);
  if (!param) return failed(param.error());
  return call_or_submit_for_id<ipc::Done>(
      submission, args.id, [&](Process& process, ConnectionHandle id, Time now, Done done) {
        process.record_step(id, Connection::Step::kAccept, now);
        return process.accept(id, *param, now, std::move(done));
      });
}

// Rejects a request.  Without args.data the caller is rdma_reject(), which passes only private
// data.  Then reason 0 stands for kRejectConsumer, a rejection by the program.
int reject(const Submission* submission, const vb_cm_args& args) {
  MessageData data;
  if (args.data != nullptr) {
    const auto message_data = data_of(args.data);
    if (!message_data) return failed(message_data.error());
    data = *message_data;
  } else if (args.param != nullptr) {
    const auto bytes = bytes_of(args.param->private_data, args.param->private_data_len);
    if (!bytes) return failed(bytes.error());
    data.private_data = *bytes;
  }
  const bool is_default_reason = args.data == nullptr && args.reason == 0;
  const auto reason = is_default_reason
                          ? rdmacm::kRejectConsumer
                          : static_cast<std::uint16_t>(std::min(args.reason, 0xffffU));
  return call_or_submit_for_id<ipc::Done>(
      submission, args.id, [&](Process& process, ConnectionHandle id, Time, Done done) {
        return process.reject(id,
                              {.reason = reason,
                               .additional_info = data.additional_info,
                               .private_data = data.private_data},
                              std::move(done));
      });
}

int establish(const Submission* submission, const vb_cm_args& args) {
  const auto data = data_of(args.data);
  if (!data) return failed(data.error());
  return call_or_submit_for_id<ipc::Done>(
      submission, args.id, [&](Process& process, ConnectionHandle id, Time now, Done done) {
        return process.establish(id, data->private_data, now, std::move(done));
      });
}

int disconnect(const Submission* submission, const vb_cm_args& args) {
  const auto data = data_of(args.data);
  if (!data) return failed(data.error());
  return call_or_submit_for_id<ipc::Done>(
      submission, args.id, [&](Process& process, ConnectionHandle id, Time now, Done done) {
        return process.disconnect(id, data->private_data, now, std::move(done));
      });
}

int load_path(const Submission* submission, const vb_cm_args& args) {
  if (args.path == nullptr) return failed({Errc::kInvalidArgument, 0, "no path"});
  const auto path = path_of(*args.path);
  if (!path) return failed(path.error());
  const auto data = data_of(args.data);
  if (!data) return failed(data.error());
  return call_or_submit_for_id<ipc::Done>(
      submission, args.id, [&](Process& process, ConnectionHandle id, Time, Done done) {
        return process.load_path(id, *path, data->private_data, std::move(done));
      });
}

int answer_path(const Submission* submission, const vb_cm_args& args) {
  const auto data = data_of(args.data);
  if (!data) return failed(data.error());
  const auto status = static_cast<std::uint16_t>(std::min(args.reason, 0xffffU));
  return call_or_submit_for_id<ipc::Done>(
      submission, args.id, [&](Process& process, ConnectionHandle id, Time now, Done done) {
        return process.answer_path(id,
                                   {.status = status,
                                    .additional_info = data->additional_info,
                                    .private_data = data->private_data},
                                   now, std::move(done));
      });
}

}  // namespace

int cm_command(const Submission* submission, std::uint32_t command, const vb_cm_args& args) {
  switch (command) {
    case VB_CM_BIND: return bind(submission, args);
    case VB_CM_RESOLVE_ADDR: return resolve_addr(submission, args);
    case VB_CM_RESOLVE_ROUTE: return resolve_route(submission, args);
    case VB_CM_LISTEN: return listen(submission, args);
    case VB_CM_CONNECT: return connect(submission, args);
    case VB_CM_ACCEPT: return accept(submission, args);
    case VB_CM_REJECT: return reject(submission, args);
    case VB_CM_ESTABLISH: return establish(submission, args);
    case VB_CM_DISCONNECT: return disconnect(submission, args);
    case VB_CM_LOAD_PATH: return load_path(submission, args);
    case VB_CM_ANSWER_PATH: return answer_path(submission, args);
    default: return failed({Errc::kInvalidArgument, 0, "no such command"});
  }
}

}  // namespace verbena::client
