#include <algorithm>
#include <cstring>
#include <utility>

#include "fabric/greeting.h"
#include "fabric/programs.h"

namespace verbena::fabric {
namespace {

constexpr Duration kPatience = std::chrono::seconds(2);
constexpr std::uint32_t kLine = 1;
constexpr std::uint32_t kDeviceFatal = 8;  // IBV_EVENT_DEVICE_FATAL

}  // namespace

Client::Client(Seat& seat, Config config) : seat_(seat), config_(std::move(config)), verbs_(seat) {}

void Client::start() {
  const auto id =
      seat_.process().create_id(rdmacm::kPortSpaceTcp, std::to_underlying(hca::QpType::kRc), kLine);
  if (!id) {
    seat_.refused("create_id", id.error());
    return finish();
  }
  id_ = *id;
  state_ = State::kResolvingAddress;
  seat_.expect("resolve_address",
               seat_.process().resolve_address(id_, {}, config_.server, kPatience,
                                               seat_.answer("resolve_address")));
}

void Client::on_notice(const process::Notice& notice) {
  if (const auto* cm = std::get_if<process::CmNotice>(&notice)) {
    on_cm(cm->event);
  } else if (const auto* async = std::get_if<process::AsyncNotice>(&notice)) {
    if (async->type == kDeviceFatal) ++device_fatal_;
  } else if (std::holds_alternative<process::CqNotice>(notice) && verbs_.is_open()) {
    verbs_.poll([this](const hca::WorkCompletion& done) { on_completion(done); });
  }
  if (state_ == State::kDisconnecting && story_.over() && (!line_ || line_->drained())) finish();
}

void Client::on_cm(const rdmacm::Event& event) {
  using rdmacm::EventKind;
  const bool was_over = story_.over();
  story_.count(event);
  seat_.note(event);
  if (story_.established > 1) seat_.complain("ESTABLISHED twice");
  if (story_.disconnected > 1) seat_.complain("DISCONNECTED twice");
  if (story_.over() && !was_over) told_ = seat_.now();
  switch (event.kind) {
    case EventKind::kAddrResolved:
      return seat_.expect("resolve_route", seat_.process().resolve_route(id_));
    case EventKind::kRouteResolved: return make_qp();
    case EventKind::kEstablished:
      if (state_ != State::kConnecting) return seat_.complain("ESTABLISHED out of turn");
      server_memory_ = read_memory(event.param);
      state_ = State::kWorking;
      return advance();
    case EventKind::kDisconnected:
    case EventKind::kRejected:
    case EventKind::kUnreachable:
    case EventKind::kDeviceRemoval:
    case EventKind::kAddrError:
    case EventKind::kConnectError: return hang_up();
    default: return;
  }
}

void Client::make_qp() {
  state_ = State::kMakingQp;
  verbs_.open();
  line_.emplace(seat_, verbs_.pd, kLine);
  auto made = [this](Result<hca::QpHandle> qp) {
    if (qp) return connect(*qp);
    seat_.refused("create_qp", qp.error());
    hang_up();
  };
  auto started = seat_.process().create_qp(line_->qp_init(verbs_.pd, verbs_.cq), seat_.now(), made);
  if (auto* now = std::get_if<Result<hca::QpHandle>>(&started)) {
    made(*now);
  } else {
    seat_.expect("create_qp", std::move(started));
  }
}

void Client::connect(hca::QpHandle qp) {
  line_->attach(qp);
  seat_.sure("set_qp", seat_.process().set_qp(id_, qp, seat_.now()));
  line_->post_receives();
  rdmacm::ConnParam param{
      .responder_resources = 4, .initiator_depth = 4, .retry_count = 7, .rnr_retry_count = 7};
  const auto sends =
      std::ranges::count(config_.operations, Operation::Kind::kSend, &Operation::kind);
  write_wishes(param,
               {.sends = static_cast<std::uint32_t>(sends), .hang_up = config_.server_hangs_up});
  state_ = State::kConnecting;
  asked_ = seat_.now();
  seat_.expect("connect", seat_.process().connect(id_, param, seat_.answer("connect")));
}

// ---- operations ---------------------------------------------------------------------------------

void Client::advance() {
  const auto count = static_cast<std::uint32_t>(config_.operations.size());
  while (state_ == State::kWorking && next_ < count && under_way_.size() < config_.window) {
    // The server hangs up upon the last one: nothing may be under way beside it.
    if (config_.server_hangs_up && next_ + 1 == count && !under_way_.empty()) return;
    begin(next_++);
  }
  if (state_ == State::kWorking && completed_ == count && !config_.server_hangs_up) hang_up();
}

void Client::begin(std::uint32_t operation) {
  const auto [kind, bytes] = config_.operations[operation];
  under_way_[operation] = kind == Operation::Kind::kSend ? 2 : 1;
  if (kind == Operation::Kind::kRead) {
    // The slot of the last WRITE.
    std::uint32_t from = operation;
    while (from > 0 && config_.operations[from].kind != Operation::Kind::kWrite) --from;
    const std::uint32_t length = std::min(bytes, config_.operations[from].bytes);
    return line_->post_rdma(hca::WrOpcode::kRead, operation, from, length, server_memory_);
  }
  Line::fill(line_->slot(Line::Area::kOut, operation).first(bytes), salt_of(operation));
  if (kind == Operation::Kind::kSend) {
    echoes_.push_back(operation);
    line_->post_send(operation, bytes);
  } else {
    line_->post_rdma(hca::WrOpcode::kWrite, operation, operation, bytes, server_memory_);
  }
}

void Client::on_completion(const hca::WorkCompletion& completion) {
  const auto done = line_->take(completion);
  if (!done) return;
  if (!done->good) {
    // Nobody answers any more: that is the network's right.
    const bool allowed = completion.status == hca::WcStatus::kFlushed ||
                         completion.status == hca::WcStatus::kRetryExceeded;
    if (!allowed) seat_.complain(std::string("completion: ") + hca::to_string(completion.status));
    // An echo came, and the server hung up before a repeat of its lost ACK: the SEND was carried
    // out.
    const bool sent = !done->receive && done->opcode == hca::WrOpcode::kSend;
    if (sent && std::ranges::find(echoes_, done->index) == echoes_.end()) part_done(done->index);
    if (state_ == State::kWorking) hang_up();
    return;
  }
  if (done->receive) return on_echo(*done);
  if (done->opcode == hca::WrOpcode::kRead) check_read(done->index);
  part_done(done->index);
}

void Client::on_echo(const Line::Done& done) {
  if (echoes_.empty()) return seat_.complain("a message that nobody sent");
  const std::uint32_t operation = echoes_.front();
  echoes_.pop_front();
  const auto bytes = config_.operations[operation].bytes;
  const auto received = line_->slot(Line::Area::kIn, done.index).first(done.bytes);
  if (done.bytes != bytes || !Line::is_filled(received, salt_of(operation))) {
    seat_.complain("an echo with wrong data");
  }
  line_->post_receive(done.index);
  part_done(operation);
}

void Client::check_read(std::uint32_t operation) {
  std::uint32_t from = operation;
  while (from > 0 && config_.operations[from].kind != Operation::Kind::kWrite) --from;
  const std::uint32_t length =
      std::min(config_.operations[operation].bytes, config_.operations[from].bytes);
  if (!Line::is_filled(line_->slot(Line::Area::kBack, operation).first(length), salt_of(from))) {
    seat_.complain("a READ with wrong data");
  }
}

void Client::part_done(std::uint32_t operation) {
  const auto found = under_way_.find(operation);
  if (found == under_way_.end()) return seat_.complain("an operation is done twice");
  if (--found->second > 0) return;
  under_way_.erase(found);
  ++completed_;
  advance();
}

// ---- the end ------------------------------------------------------------------------------------

void Client::hang_up() {
  if (state_ == State::kDisconnecting || state_ == State::kDone) return;
  const bool connected = state_ == State::kWorking;
  state_ = State::kDisconnecting;
  if (connected) {
    seat_.expect("disconnect",
                 seat_.process().disconnect(id_, seat_.now(), seat_.answer("disconnect")));
  } else if (!story_.over()) {
    finish();  // it never began
  }
}

void Client::finish() {
  if (line_) line_->close();
  line_.reset();
  if (id_) seat_.sure("destroy_id", seat_.process().destroy_id(id_));
  verbs_.close();
  state_ = State::kDone;
}

}  // namespace verbena::fabric
