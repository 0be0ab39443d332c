#include <algorithm>
#include <cstring>
#include <utility>

#include "fabric/greeting.h"
#include "fabric/programs.h"

namespace verbena::fabric {
namespace {

constexpr Duration kTimeout = std::chrono::seconds(2);
constexpr std::uint32_t kEndpointNumber = 1;  // also the cookie of the id
constexpr std::uint32_t kDeviceFatal = 8;     // IBV_EVENT_DEVICE_FATAL

}  // namespace

Client::Client(SimProcess& sim_process, Config config)
    : sim_process_(sim_process), config_(std::move(config)), verbs_(sim_process) {}

void Client::start() {
  const auto id = sim_process_.process().create_id(
      rdmacm::kPortSpaceTcp, std::to_underlying(hca::QpType::kRc), kEndpointNumber);
  if (!id) {
    sim_process_.add_failed_call("create_id", id.error());
    return finish();
  }
  id_ = *id;
  state_ = State::kResolvingAddress;
  sim_process_.track("resolve_address", sim_process_.process().resolve_address(
                                            id_, config_.source, config_.server, kTimeout,
                                            sim_process_.completion_for("resolve_address")));
}

void Client::on_notice(const process::Notice& notice) {
  if (const auto* cm = std::get_if<process::CmNotice>(&notice)) {
    on_cm_event(cm->event);
  } else if (const auto* async = std::get_if<process::AsyncNotice>(&notice)) {
    if (async->type == kDeviceFatal) {
      ++device_fatal_count_;
    } else {
      port_events_.push_back(*async);
    }
  } else if (std::holds_alternative<process::CqNotice>(notice) && verbs_.is_open()) {
    verbs_.poll([this](const hca::WorkCompletion& completion) { on_completion(completion); });
  }
  if (state_ == State::kDisconnecting && outcome_.has_ended() &&
      (!endpoint_ || endpoint_->is_drained()))
    finish();
}

void Client::on_cm_event(const rdmacm::Event& event) {
  using rdmacm::EventKind;
  const bool had_ended = outcome_.has_ended();
  outcome_.count(event);
  sim_process_.note(event);
  if (outcome_.established > 1) sim_process_.report_violation("ESTABLISHED twice");
  if (outcome_.disconnected > 1) sim_process_.report_violation("DISCONNECTED twice");
  if (outcome_.has_ended() && !had_ended) ended_at_ = sim_process_.now();
  switch (event.kind) {
    case EventKind::kAddrResolved:
      return sim_process_.track(
          "resolve_route", sim_process_.process().resolve_route(id_, std::chrono::seconds(1), {}));
    case EventKind::kRouteResolved: return create_qp();
    case EventKind::kEstablished:
      if (state_ != State::kConnecting)
        return sim_process_.report_violation("ESTABLISHED in a wrong state");
      server_memory_ = decode_memory(event.param);
      state_ = State::kWorking;
      return start_operations();
    case EventKind::kDisconnected:
    case EventKind::kRejected:
    case EventKind::kUnreachable:
    case EventKind::kDeviceRemoval:
    case EventKind::kAddrError:
    case EventKind::kConnectError: return disconnect();
    default: return;
  }
}

void Client::create_qp() {
  state_ = State::kCreatingQp;
  port_ = sim_process_.process().connection(id_).value()->path.address.port;
  verbs_.open();
  endpoint_.emplace(sim_process_, verbs_.pd, kEndpointNumber);
  auto on_created = [this](Result<hca::QpHandle> qp) {
    if (qp) return connect(*qp);
    sim_process_.add_failed_call("create_qp", qp.error());
    disconnect();
  };
  auto started = sim_process_.process().create_qp(
      endpoint_->qp_init(verbs_.pd, verbs_.cq, port_.device), sim_process_.now(), on_created);
  if (auto* result = std::get_if<Result<hca::QpHandle>>(&started)) {
    on_created(*result);
  } else {
    sim_process_.track("create_qp", std::move(started));
  }
}

void Client::connect(hca::QpHandle qp) {
  endpoint_->attach(qp);
  sim_process_.require("set_qp", sim_process_.process().set_qp(id_, qp, sim_process_.now()));
  endpoint_->post_receives();
  rdmacm::ConnParam param{
      .responder_resources = 4, .initiator_depth = 4, .retry_count = 7, .rnr_retry_count = 7};
  const auto sends =
      std::ranges::count(config_.operations, Operation::Kind::kSend, &Operation::kind);
  encode_plan(param, {.sends = static_cast<std::uint32_t>(sends),
                      .server_disconnects = config_.server_disconnects});
  state_ = State::kConnecting;
  connect_called_at_ = sim_process_.now();
  sim_process_.track("connect", sim_process_.process().connect(
                                    id_, param, sim_process_.completion_for("connect")));
}

// ---- operations ---------------------------------------------------------------------------------

void Client::start_operations() {
  const auto count = static_cast<std::uint32_t>(config_.operations.size());
  while (state_ == State::kWorking && next_operation_ < count && pending_.size() < config_.window) {
    // The server disconnects after the last operation.  So the client starts the last operation
    // only when no other operation is pending.
    if (config_.server_disconnects && next_operation_ + 1 == count && !pending_.empty()) return;
    start_operation(next_operation_++);
  }
  if (state_ == State::kWorking && completed_count_ == count && !config_.server_disconnects)
    disconnect();
}

void Client::start_operation(std::uint32_t operation) {
  const auto [kind, bytes] = config_.operations[operation];
  // A SEND has two parts: its own completion, and the arrival of its echo.
  pending_[operation] = kind == Operation::Kind::kSend ? 2 : 1;
  if (kind == Operation::Kind::kRead) {
    // A READ reads the slot of the last WRITE.
    std::uint32_t last_write = operation;
    while (last_write > 0 && config_.operations[last_write].kind != Operation::Kind::kWrite)
      --last_write;
    const std::uint32_t length = std::min(bytes, config_.operations[last_write].bytes);
    return endpoint_->post_rdma(hca::WrOpcode::kRead, operation, last_write, length,
                                server_memory_);
  }
  RcEndpoint::fill(endpoint_->slot(RcEndpoint::Area::kOut, operation).first(bytes),
                   salt_of(operation));
  if (kind == Operation::Kind::kSend) {
    sends_without_echo_.push_back(operation);
    endpoint_->post_send(operation, bytes);
  } else {
    endpoint_->post_rdma(hca::WrOpcode::kWrite, operation, operation, bytes, server_memory_);
  }
}

void Client::on_completion(const hca::WorkCompletion& completion) {
  const auto request = endpoint_->find_completed(completion);
  if (!request) return;
  if (!request->succeeded) {
    // A request may fail by a flush or by too many retries, because network faults may break the
    // connection.
    const bool is_allowed = completion.status == hca::WcStatus::kFlushed ||
                            completion.status == hca::WcStatus::kRetryExceeded;
    if (!is_allowed)
      sim_process_.report_violation(std::string("completion: ") +
                                    hca::to_string(completion.status));
    // If the echo of a SEND has arrived, the server has received the SEND, even if the SEND failed
    // here.  In this case the server's ACK was lost, and the server disconnected before it could
    // repeat the ACK.
    const bool is_send = !request->is_receive && request->opcode == hca::WrOpcode::kSend;
    if (is_send &&
        std::ranges::find(sends_without_echo_, request->index) == sends_without_echo_.end())
      complete_part(request->index);
    if (state_ == State::kWorking) disconnect();
    return;
  }
  if (request->is_receive) return on_echo(*request);
  if (request->opcode == hca::WrOpcode::kRead) check_read(request->index);
  complete_part(request->index);
}

void Client::on_echo(const RcEndpoint::CompletedRequest& request) {
  if (sends_without_echo_.empty()) return sim_process_.report_violation("an echo without a SEND");
  const std::uint32_t operation = sends_without_echo_.front();
  sends_without_echo_.pop_front();
  const auto bytes = config_.operations[operation].bytes;
  const auto received = endpoint_->slot(RcEndpoint::Area::kIn, request.index).first(request.bytes);
  if (request.bytes != bytes || !RcEndpoint::is_filled(received, salt_of(operation))) {
    sim_process_.report_violation("an echo with wrong data");
  }
  endpoint_->post_receive(request.index);
  complete_part(operation);
}

void Client::check_read(std::uint32_t operation) {
  std::uint32_t last_write = operation;
  while (last_write > 0 && config_.operations[last_write].kind != Operation::Kind::kWrite)
    --last_write;
  const std::uint32_t length =
      std::min(config_.operations[operation].bytes, config_.operations[last_write].bytes);
  if (!RcEndpoint::is_filled(endpoint_->slot(RcEndpoint::Area::kReadBack, operation).first(length),
                             salt_of(last_write))) {
    sim_process_.report_violation("a READ with wrong data");
  }
}

void Client::complete_part(std::uint32_t operation) {
  const auto found = pending_.find(operation);
  if (found == pending_.end()) return sim_process_.report_violation("an operation completed twice");
  if (--found->second > 0) return;
  pending_.erase(found);
  ++completed_count_;
  start_operations();
}

// ---- disconnecting ------------------------------------------------------------------------------

void Client::disconnect() {
  if (state_ == State::kDisconnecting || state_ == State::kDone) return;
  const bool was_connected = state_ == State::kWorking;
  state_ = State::kDisconnecting;
  if (was_connected) {
    sim_process_.track(
        "disconnect", sim_process_.process().disconnect(id_, sim_process_.now(),
                                                        sim_process_.completion_for("disconnect")));
  } else if (!outcome_.has_ended()) {
    finish();  // the connection does not exist, so no event will follow
  }
}

void Client::finish() {
  if (endpoint_) endpoint_->close();
  endpoint_.reset();
  if (id_) sim_process_.require("destroy_id", sim_process_.process().destroy_id(id_));
  verbs_.close();
  state_ = State::kDone;
}

}  // namespace verbena::fabric
