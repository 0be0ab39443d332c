// Implements the data path of engine.h: posting, polling, packets and time.
#include <cstddef>
#include <functional>
#include <utility>

#include "hca/engine.h"
#include "hca/engine_state.h"
#include "wire/headers.h"
#include "wire/ip.h"

namespace verbena::hca {
namespace {

// Limits the packets of one call of transmit(), because the driver must release its lock for other
// threads.  Without the limit, the driver could send for ever to a peer that reads its lane fast
// enough.
constexpr std::uint64_t kPacketsPerTransmit = 256;
// Each call of DirectAccess::carry_out() counts towards kPacketsPerTransmit as one packet per this
// number of bytes.  A direct WRITE counts once more, because kPacketsOut contains its packets.
constexpr std::uint64_t kBytesPerPacket = 4096;

}  // namespace

// ---- direct calls -------------------------------------------------------------------------------

Result<void> Engine::post_send(QpHandle handle, const SendRequest& request) {
  Qp& qp = *VB_TRY(find(state_->qps, handle, kNoQp));
  const AddressHandle* const ah = request.ah ? state_->ahs.find(request.ah) : nullptr;
  if (VB_TRY(qp.post_send(request, ah))) state_->ready.push(qp);
  return {};
}

Result<void> Engine::post_send_list(QpHandle handle, std::size_t count,
                                    const SendRequestAt& request_at) {
  Qp& qp = *VB_TRY(find(state_->qps, handle, kNoQp));
  const auto request_with_ah = [&](std::size_t i) -> Result<PostQueues::ListedSend> {
    const SendRequest request = VB_TRY(request_at(i));
    return PostQueues::ListedSend{request, request.ah ? state_->ahs.find(request.ah) : nullptr};
  };
  if (VB_TRY(qp.post_send_list(count, std::cref(request_with_ah)))) state_->ready.push(qp);
  return {};
}

Result<std::uint32_t> Engine::free_send_slots(QpHandle handle) const {
  return VB_TRY(find(state_->qps, handle, kNoQp))->free_send_slots();
}

Result<void> Engine::post_recv(QpHandle handle, const RecvRequest& request) {
  Qp& qp = *VB_TRY(find(state_->qps, handle, kNoQp));
  if (VB_TRY(qp.post_recv(request))) state_->ready.push(qp);
  return {};
}

Result<void> Engine::post_srq_recv(SrqHandle handle, const RecvRequest& request) {
  return VB_TRY(find(state_->srqs, handle, kNoSrq))->post(request);
}

Result<unsigned> Engine::poll_cq(CqHandle handle, std::span<WorkCompletion> out) {
  return VB_TRY(find(state_->cqs, handle, kNoCq))->poll(out);
}

Result<void> Engine::arm_cq(CqHandle handle, bool solicited_only) {
  VB_TRY(find(state_->cqs, handle, kNoCq))->arm(solicited_only);
  return {};
}

bool Engine::has_work() const { return !state_->ready.empty(); }

// ---- driving ------------------------------------------------------------------------------------

// Passes the packet to each member separately, because one member may refuse it while others accept
// it (vol1 10.5.1).
void Engine::State::receive_for_group(const wire::TransportPacket& packet,
                                      const link::Arrival& arrival) {
  const auto members = groups.members(arrival.address.destination);
  if (members.empty()) ++shared.counters[Counter::kDropNoMember];
  for (Qp* qp : members) {
    qp->receive(packet, arrival, shared.now);
    reschedule(*qp);
  }
}

void Engine::receive(const link::Arrival& arrival, Time now) {
  State& s = *state_;
  s.shared.now = now;
  Counters& counters = s.shared.counters;
  ++counters[Counter::kPacketsIn];
  counters[Counter::kBytesIn] += arrival.transport.size();
  const auto packet = wire::parse_transport(arrival.transport, arrival.headers);
  if (!packet) {
    ++counters.malformed[std::to_underlying(wire::drop_reason(packet.error()))];
    return;
  }
  const bool to_group = wire::is_multicast(arrival.address.destination);
  if (to_group != (packet->bth.destination_qpn == wire::kMulticastQpn)) {
    ++counters[Counter::kDropBadGroup];
    return;
  }
  if (to_group) return s.receive_for_group(*packet, arrival);
  Qp* const qp = s.qps_by_qpn.find(packet->bth.destination_qpn.value);
  if (qp == nullptr) {
    ++counters[Counter::kDropUnknownQp];
    return;
  }
  qp->receive(*packet, arrival, now);
  s.reschedule(*qp);
}

void Engine::receive(const link::ExecutedRecord& executed, Time now) {
  State& s = *state_;
  s.shared.now = now;
  Qp* const qp = s.qps_by_qpn.find(executed.target_qpn);
  if (qp == nullptr) {
    ++s.shared.counters[Counter::kDropExecuted];
    return;
  }
  qp->receive(executed);
  s.reschedule(*qp);
}

bool Engine::posts_can_wait() const {
  constexpr int kQpsMax = 16;  // limits the time that this function takes in each post
  int qps = 0;
  for (const Qp* qp = state_->ready.newest(); qp != nullptr; qp = qp->ready_next) {
    if (++qps > kQpsMax || !qp->posts_can_wait()) return false;
  }
  return qps > 0;
}

void Engine::set_lanes(link::Lanes* lanes) {
  detach_lanes();
  state_->shared.lanes = lanes;
}

void Engine::detach_lane(const link::Lane& lane) {
  State& s = *state_;
  s.qps.for_each([&](QpHandle, Qp& qp) {
    if (!qp.uses_lane(lane)) return;
    qp.detach_lane();
    s.reschedule(qp);
  });
}

void Engine::detach_lanes() {
  State& s = *state_;
  s.qps.for_each([&](QpHandle, Qp& qp) {
    qp.detach_lane();
    s.reschedule(qp);
  });
}

bool Engine::waits_for_lane() const { return !state_->waiting_for_lane.empty(); }

void Engine::publish() { state_->shared.publish(); }

bool Engine::transmit(link::Burst& burst, Time now) {
  State& s = *state_;
  s.shared.now = now;
  const auto sent_packets = [&s] {
    return s.shared.counters[Counter::kPacketsOut] + s.shared.copied_bytes / kBytesPerPacket;
  };
  const std::uint64_t packets_max = sent_packets() + kPacketsPerTransmit;
  while (!s.waiting_for_burst.empty()) {
    Qp& qp = s.waiting_for_burst.pop_front();
    qp.on_burst_sent();
    s.active.push_back(qp);  // the QP may have waited for on_burst_sent() to send again
  }
  while (!s.waiting_for_lane.empty()) s.active.push_back(s.waiting_for_lane.pop_front());
  s.activate_ready();
  s.shared.publish();
  while (!burst.full() && sent_packets() < packets_max && !s.active.empty()) {
    Qp& qp = s.active.pop_front();
    const bool more = qp.transmit(burst, now);
    s.deadlines.schedule(qp, qp.deadline());
    if (qp.waits_for_lane()) {
      s.waiting_for_lane.push_back(qp);
    } else if (more) {
      s.active.push_back(qp);
    }
    if (qp.waits_for_burst()) s.waiting_for_burst.push_back(qp);
  }
  return !s.active.empty() || !s.waiting_for_burst.empty() || !s.shared.unpublished.empty() ||
         has_work();
}

void Engine::on_timer(Time now) {
  State& s = *state_;
  s.shared.now = now;
  while (s.deadlines.top_deadline() <= now) {
    Qp& qp = s.deadlines.pop();
    qp.on_timer(now);
    s.reschedule(qp);
  }
}

Time Engine::deadline() const { return state_->deadlines.top_deadline(); }

std::optional<Event> Engine::poll_event() { return state_->shared.poll_event(); }

std::optional<RequestFailure> Engine::poll_failure() { return state_->shared.poll_failure(); }

// ---- diagnostics --------------------------------------------------------------------------------

std::size_t Engine::qp_count() const { return state_->qps.size(); }

std::size_t Engine::rows(std::span<QpRow> out) const {
  std::size_t written = 0;
  state_->qps.for_each([&](QpHandle, const Qp& qp) {
    if (written < out.size()) out[written++] = qp.row();
  });
  return written;
}

Counters Engine::counters() const {
  const Shared& shared = state_->shared;
  Counters copy = shared.counters;
  copy[Counter::kLimitSendQueue] = shared.sends_refused.load(std::memory_order_relaxed);
  copy[Counter::kLimitRecvQueue] = shared.receives_refused.load(std::memory_order_relaxed);
  return copy;
}

}  // namespace verbena::hca
