// Implements the calls of the consumer.  receive.cc handles the inputs from the wire and the clock.
#include "cm/manager.h"

#include <algorithm>
#include <utility>

#include "cm/tables.h"
#include "wire/source_port.h"

namespace verbena::cm {

namespace {

constexpr std::size_t kRtuPrivateBytes = 224;   // vol1 12.6.9
constexpr std::size_t kDreqPrivateBytes = 220;  // vol1 12.6.10
constexpr std::size_t kRejPrivateBytes = 148;   // vol1 12.6.7
constexpr std::size_t kRejInfoBytes = 72;
constexpr std::size_t kLapPrivateBytes = 168;  // vol1 12.6.12
constexpr std::size_t kAprPrivateBytes = 148;  // vol1 12.6.13
constexpr std::size_t kAprInfoBytes = 72;

bool is_in_range(const AlternatePath& path) {
  return path.address.path.flow_label <= wire::kFlowLabelMask && path.local_ack_timeout < 32;
}

bool is_in_range(const Ece& ece) { return ece.vendor_id <= kMask24; }

bool is_in_range(const ConnectRequest& request) {
  return is_in_range(request.ece) && request.qpn.value <= kMask24 &&
         request.starting_psn.value <= kMask24 && request.path_mtu >= 1 && request.path_mtu <= 5 &&
         request.retry_count <= 7 && request.rnr_retry_count <= 7 && request.max_cm_retries <= 15 &&
         request.packet_life < 32 && request.local_ack_timeout < 32 &&
         request.give_up_after > Duration(0) &&
         (!request.alternate_path || is_in_range(*request.alternate_path));
}

bool is_in_range(const AcceptParameters& parameters) {
  return is_in_range(parameters.ece) && parameters.qpn.value <= kMask24 &&
         parameters.starting_psn.value <= kMask24 && parameters.rnr_retry_count <= 7 &&
         parameters.target_ack_delay < 32 && parameters.give_up_after > Duration(0);
}

bool has_pending_disconnect(const Endpoint& endpoint) {
  return endpoint.state() == State::kDreqSent && endpoint.is_queued();
}

bool is_in_range(const InheritedConnection& inherited) {
  return inherited.local_id != CommId{} && inherited.remote_id != CommId{} &&
         inherited.local_qpn.value <= kMask24 && inherited.remote_qpn.value <= kMask24 &&
         inherited.packet_life < 32;
}

}  // namespace

Manager::Manager(const Config& config, Random random)
    : config_(config),
      random_(random),
      transaction_ids_(random_),
      comm_ids_(random_),
      outbox_(counters_),
      services_{config_, random_, counters_, outbox_, rej_cache_, round_trips_},
      sidr_(config_, random_, counters_, outbox_, round_trips_, transaction_ids_, comm_ids_),
      tables_(std::make_unique<Tables>()),
      slots_(config.endpoints_max) {}

Manager::~Manager() = default;

Result<EndpointHandle> Manager::connect(const ConnectRequest& request, std::uint64_t cookie,
                                        Time now) {
  if (!is_in_range(request))
    return fail(Errc::kInvalidArgument, "a value of the REQ is out of range");
  const EndpointHandle handle = VB_TRY(add_endpoint(
      std::make_unique<Endpoint>(services_, request, new_id(), transaction_ids_.next(), cookie),
      now));
  Endpoint& endpoint = *slots_.find(handle);
  flush_disconnect_of(request.qpn, now);
  endpoint.start(request, now);
  quiesce_or_request_permit(endpoint, quiesce_until(request.qpn, now), now);
  update_or_remove(endpoint, now);
  return handle;
}

Result<void> Manager::listen(const Service& service, std::uint64_t cookie) {
  if (listeners_.size() >= config_.listeners_max && !listeners_.is_taken(service)) {
    ++counters_.listeners_refused;
    return fail(Errc::kNoResources, "the host listens on too many ports (listeners_max)");
  }
  auto added = listeners_.add(service, cookie);
  if (!added && added.error().code == Errc::kNoResources) ++counters_.listeners_refused;
  return added;
}

Result<void> Manager::unlisten(const Service& service) { return listeners_.remove(service); }

Result<void> Manager::set_cookie(EndpointHandle handle, std::uint64_t cookie) {
  Endpoint* endpoint = VB_TRY(find(handle));
  endpoint->set_cookie(cookie);
  return {};
}

Result<void> Manager::accept(EndpointHandle handle, const AcceptParameters& parameters, Time now) {
  Endpoint* endpoint = VB_TRY(find(handle));
  if (!is_in_range(parameters)) {
    return fail(Errc::kInvalidArgument, "a value of the REP is out of range");
  }
  VB_TRY_VOID(endpoint->accept(parameters, now));
  flush_disconnect_of(parameters.qpn, now);
  quiesce_or_request_permit(*endpoint, quiesce_until(parameters.qpn, now), now);
  update_or_remove(*endpoint, now);
  return {};
}

Result<void> Manager::reject(EndpointHandle handle, const RejectParameters& parameters, Time now) {
  Endpoint* endpoint = VB_TRY(find(handle));
  if (parameters.additional_info.size() > kRejInfoBytes ||
      parameters.private_data.size() > kRejPrivateBytes) {
    return fail(Errc::kInvalidArgument, "too much private data");
  }
  VB_TRY_VOID(endpoint->reject(parameters, now));
  update_or_remove(*endpoint, now);
  return {};
}

Result<void> Manager::drop(EndpointHandle handle) {
  Endpoint* endpoint = VB_TRY(find(handle));
  VB_TRY_VOID(endpoint->drop());
  ++counters_.requests_dropped;
  update_or_remove(*endpoint, endpoint->bookkeeping.state_since);
  slots_.remove(handle);
  return {};
}

Result<void> Manager::establish(EndpointHandle handle, std::span<const std::byte> private_data,
                                Time now) {
  Endpoint* endpoint = VB_TRY(find(handle));
  if (private_data.size() > kRtuPrivateBytes) {
    return fail(Errc::kInvalidArgument, "too much private data");
  }
  VB_TRY_VOID(endpoint->establish(private_data));
  update_or_remove(*endpoint, now);
  return {};
}

void Manager::comm_established(EndpointHandle handle, Time now) {
  Endpoint* endpoint = slots_.find(handle);
  if (endpoint == nullptr) return;
  note_answer(*endpoint, now);
  endpoint->comm_established();
  update_or_remove(*endpoint, now);
}

void Manager::comm_established(Qpn local_qpn, Time now) {
  Endpoint* waiting = nullptr;
  tables_->any_with_local_qpn(local_qpn, [&](Endpoint& endpoint) {
    const bool waits =
        endpoint.state() == State::kRepSent || endpoint.state() == State::kMraRepReceived;
    if (waits) waiting = &endpoint;
    return waits;
  });
  if (waiting == nullptr) return;
  note_answer(*waiting, now);
  waiting->comm_established();
  update_or_remove(*waiting, now);
}

Result<void> Manager::disconnect(EndpointHandle handle, std::span<const std::byte> private_data,
                                 Time now) {
  Endpoint* endpoint = VB_TRY(find(handle));
  if (private_data.size() > kDreqPrivateBytes) {
    return fail(Errc::kInvalidArgument, "too much private data");
  }
  VB_TRY_VOID(endpoint->disconnect(private_data, now));
  update_or_remove(*endpoint, now);
  return {};
}

Result<void> Manager::load_alternate_path(EndpointHandle handle, const AlternatePath& path,
                                          std::span<const std::byte> private_data,
                                          Duration give_up_after, Time now) {
  Endpoint* endpoint = VB_TRY(find(handle));
  if (!is_in_range(path) || give_up_after <= Duration(0)) {
    return fail(Errc::kInvalidArgument, "a value of the LAP is out of range");
  }
  if (private_data.size() > kLapPrivateBytes) {
    return fail(Errc::kInvalidArgument, "too much private data");
  }
  VB_TRY_VOID(endpoint->load_alternate_path(path, transaction_ids_.next(), private_data,
                                            give_up_after, now));
  update_or_remove(*endpoint, now);
  return {};
}

Result<void> Manager::answer_alternate_path(EndpointHandle handle, const PathAnswer& answer) {
  Endpoint* endpoint = VB_TRY(find(handle));
  if (answer.additional_info.size() > kAprInfoBytes ||
      answer.private_data.size() > kAprPrivateBytes) {
    return fail(Errc::kInvalidArgument, "too much private data");
  }
  VB_TRY_VOID(endpoint->answer_alternate_path(answer));
  update_or_remove(*endpoint, endpoint->bookkeeping.state_since);
  return {};
}

void Manager::path_migrated(EndpointHandle handle) {
  if (Endpoint* endpoint = slots_.find(handle)) endpoint->path_migrated();
}

// Several endpoints may have this QPN, but only one of them is connected.
void Manager::path_migrated(Qpn local_qpn) {
  tables_->any_with_local_qpn(local_qpn, [](Endpoint& endpoint) {
    const bool is_connected = endpoint.state() == State::kEstablished;
    if (is_connected) endpoint.path_migrated();
    return is_connected;
  });
}

Result<void> Manager::destroy(EndpointHandle handle, Time now) {
  Endpoint& endpoint = *VB_TRY(find(handle));
  endpoint.abandon(now);
  std::unique_ptr<Endpoint> owned = slots_.remove(handle);
  if (endpoint.state() != State::kClosed) make_orphan(std::move(owned));
  update_or_remove(endpoint, now);
  return {};
}

Result<void> Manager::inherit(const InheritedConnection& inherited, Time now) {
  const auto count_and_fail = [&](Errc code, const char* why) {
    ++counters_.inherited_refused;
    return fail(code, why);
  };
  if (!is_in_range(inherited))
    return count_and_fail(Errc::kInvalidArgument,
                          "a value of the inherited connection is out of range");
  if (tables_->by_local_id(inherited.local_id) != nullptr) {
    return count_and_fail(Errc::kBusy, "the communication id is in use");
  }
  if (inherited_ >= config_.inherited_max)
    return count_and_fail(Errc::kNoResources,
                          "too many inherited connections are ending (inherited_max)");
  if (slots_.size() + orphans_.size() >= config_.endpoints_max) {
    return count_and_fail(Errc::kNoResources, "the host has too many connections (endpoints_max)");
  }
  ++counters_.inherited;
  auto owned = std::make_unique<Endpoint>(services_, inherited, transaction_ids_.next());
  Endpoint& endpoint = *owned;
  tables_->add(endpoint);
  endpoint.bookkeeping.inherited = true;
  ++inherited_;
  make_orphan(std::move(owned));
  endpoint.abandon(now);
  update_or_remove(endpoint, now);
  return {};
}

bool Manager::flush_disconnects(Time now) {
  // Limits the size of the outbox.  The caller sends these DREQs before it calls again.
  constexpr std::size_t kDreqsPerCallMax = 4096;
  std::vector<CommId> pending;
  tables_->visit([&](const Endpoint& endpoint) {
    if (has_pending_disconnect(endpoint)) pending.push_back(endpoint.local_id());
  });
  if (pending.size() > kDreqsPerCallMax) pending.resize(kDreqsPerCallMax);
  for (const CommId id : pending) flush_disconnect(*tables_->by_local_id(id), now);
  return !pending.empty();
}

// Sends the queued DREQ of a QP at once, because another connection is going to use the QP.
void Manager::flush_disconnect_of(Qpn local_qpn, Time now) {
  if (local_qpn == Qpn{}) return;
  Endpoint* pending = nullptr;
  tables_->any_with_local_qpn(local_qpn, [&](Endpoint& endpoint) {
    if (has_pending_disconnect(endpoint)) pending = &endpoint;
    return pending != nullptr;
  });
  if (pending != nullptr) flush_disconnect(*pending, now);
}

void Manager::flush_disconnect(Endpoint& endpoint, Time now) {
  auto& ticket = endpoint.bookkeeping.ticket;
  if (ticket && !ticket->has_permit) {
    throttle_.leave(*ticket, endpoint.local_id());
    ticket.reset();
  }
  endpoint.send_request(now);
  update_or_remove(endpoint, now);
}

// Returns the time before which a QP must not be used again: the end of its timewait (vol1 12.9.8).
// While a DREQ of the QP is not answered, returns the time of the next check instead, at least
// kFirstIntervalMin from now.  QP number 0 stands for "no QP".
Time Manager::quiesce_until(Qpn local_qpn, Time now) const {
  Time end = now;
  if (local_qpn == Qpn{}) return end;
  tables_->any_with_local_qpn(local_qpn, [&](const Endpoint& endpoint) {
    if (endpoint.state() == State::kTimewait) end = std::max(end, endpoint.deadline());
    if (endpoint.state() == State::kDreqSent) {
      end = std::max({end, endpoint.deadline(), now + Retry::kFirstIntervalMin});
    }
    return false;
  });
  return end;
}

Time Manager::deadline() const { return std::min(tables_->deadline(), sidr_.deadline()); }

std::size_t Manager::endpoints() const { return tables_->size(); }

void Manager::visit(const std::function<void(const View&)>& f) const {
  tables_->visit([&](const Endpoint& endpoint) { f(endpoint.view()); });
}

std::optional<View> Manager::view(EndpointHandle handle) const {
  const Endpoint* endpoint = slots_.find(handle);
  if (endpoint == nullptr) return std::nullopt;
  return endpoint->view();
}

Result<Endpoint*> Manager::find(EndpointHandle handle) const {
  Endpoint* endpoint = slots_.find(handle);
  if (endpoint == nullptr) return fail(Errc::kBadHandle, "no such endpoint");
  return endpoint;
}

CommId Manager::new_id() {
  CommId id;
  do {
    id = comm_ids_.next();
  } while (tables_->by_local_id(id) != nullptr);
  return id;
}

Result<EndpointHandle> Manager::add_endpoint(std::unique_ptr<Endpoint> endpoint, Time now) {
  if (slots_.size() + orphans_.size() >= config_.endpoints_max) {
    ++counters_.endpoints_refused;
    return fail(Errc::kNoResources, "the host has too many connections (endpoints_max)");
  }
  Endpoint& added = *endpoint;
  const EndpointHandle handle = VB_TRY(slots_.insert(std::move(endpoint)));
  added.set_handle(handle);
  tables_->add(added);
  note_state(added, now);
  return handle;
}

void Manager::note_state(Endpoint& endpoint, Time now) {
  auto& bookkeeping = endpoint.bookkeeping;
  const State from = bookkeeping.state, to = endpoint.state();
  if (from == to) return;
  const Duration after = from == State::kClosed ? Duration(0) : now - bookkeeping.state_since;
  if (from != State::kClosed) counters_.times[static_cast<std::size_t>(from)].add(after);
  bookkeeping.state = to;
  bookkeeping.state_since = now;
  if (!config_.trace) return;
  outbox_.report(StateChanged{.local_id = endpoint.local_id(),
                              .remote_id = endpoint.remote_id(),
                              .local_qpn = endpoint.local_qpn(),
                              .local = endpoint.address().local(),
                              .remote = endpoint.address().remote(),
                              .from = from,
                              .to = to,
                              .after = after});
}

void Manager::quiesce_or_request_permit(Endpoint& endpoint, Time until, Time now) {
  if (until <= now) return request_permit(endpoint, now);
  endpoint.quiesce(until);
}

// Requests a permit of the SendThrottle after timewait, unless the message has timed out.
void Manager::on_quiesced(Endpoint& endpoint, Time now) {
  endpoint.end_quiesce();
  if (endpoint.deadline() <= now) return endpoint.on_timer(now);
  quiesce_or_request_permit(endpoint, quiesce_until(endpoint.local_qpn(), now), now);
}

void Manager::request_permit(Endpoint& endpoint, Time now) {
  auto& ticket = endpoint.bookkeeping.ticket;
  VB_CHECK(!ticket);
  const auto target = endpoint.send_target();
  VB_CHECK(target.has_value());
  ticket = throttle_.enter(*target, endpoint.local_id());
  if (ticket->has_permit) return endpoint.send_request(now);
  switch (std::get<SendThrottle::Kind>(*target)) {
    case SendThrottle::Kind::kReq: ++counters_.requests_queued; break;
    case SendThrottle::Kind::kRep: ++counters_.replies_queued; break;
    case SendThrottle::Kind::kDreq: ++counters_.disconnects_queued; break;
  }
}

void Manager::release_permit(Endpoint& endpoint, Time now) {
  if (!endpoint.bookkeeping.ticket) return;
  const SendThrottle::Ticket ticket = *endpoint.bookkeeping.ticket;
  if (endpoint.throttled_target() == ticket.queue->first) return;
  endpoint.bookkeeping.ticket.reset();
  const auto next = throttle_.leave(ticket, endpoint.local_id());
  if (!next) return;
  Endpoint* const other = tables_->by_local_id(*next);
  VB_CHECK(other != nullptr);
  // Sets the timer of `other` instead of sending at once, because the owner may be about to destroy
  // many endpoints, and `other` may be one of them.
  other->bookkeeping.ticket->has_permit = true;
  other->renew_timeout(ticket.queue->second.last_answer);
  other->send_at(now);
  tables_->update(*other);
}

void Manager::note_answer(const Endpoint& endpoint, Time now) {
  if (endpoint.is_queued()) return;
  if (const auto target = endpoint.send_target()) throttle_.note_answer(*target, now);
}

void Manager::update_or_remove(Endpoint& endpoint, Time now) {
  note_state(endpoint, now);
  release_permit(endpoint, now);
  if (has_pending_disconnect(endpoint) && !endpoint.bookkeeping.ticket)
    request_permit(endpoint, now);
  if (endpoint.state() != State::kClosed) return tables_->update(endpoint);
  if (tables_->by_local_id(endpoint.local_id()) == &endpoint) tables_->remove(endpoint);
  if (endpoint.bookkeeping.inherited) --inherited_;
  if (endpoint.bookkeeping.orphan) orphans_.erase(*endpoint.bookkeeping.orphan);
}

void Manager::make_orphan(std::unique_ptr<Endpoint> endpoint) {
  Endpoint& orphan = *endpoint;
  orphan.bookkeeping.orphan = orphans_.insert(orphans_.end(), std::move(endpoint));
}

}  // namespace verbena::cm
