#include "hca/qp_core.h"

#include <bit>
#include <utility>

namespace verbena::hca {

void QpCore::choose_lane(const link::Address& address, Qpn destination) {
  lane_is_full = false;
  lane = shared.lanes == nullptr ? nullptr : shared.lanes->find(address, destination);
}

bool QpCore::prepare_space(const link::Burst& burst, const link::Address& address) {
  if (lane != nullptr) {
    if (lane->prepare(address)) return true;
    lane_is_full = !lane->ended();
    if (lane_is_full) return false;
    lane = nullptr;  // the lane has ended, because the peer has corrupted it
  }
  return !burst.full();
}

void QpCore::raise(QpEvent::Kind kind) {
  events_pending |= 1u << static_cast<unsigned>(kind);
  shared.qp_events.push_back(*this);
}

void QpCore::count_direct(bool is_read, DataFlow flow, std::uint32_t packets, std::uint32_t bytes) {
  Counters& counters = shared.counters;
  ++counters[is_read ? Counter::kDirectReads : Counter::kDirectWrites];
  counters[Counter::kDirectBytes] += bytes;
  const bool is_incoming = flow == DataFlow::kIn;
  counters[is_incoming ? Counter::kPacketsIn : Counter::kPacketsOut] += packets;
  counters[is_incoming ? Counter::kBytesIn : Counter::kBytesOut] += bytes;
  if (is_incoming) counters[Counter::kPacketsToQps] += packets;
  (is_incoming ? traffic.packets_in : traffic.packets_out) += packets;
  (is_incoming ? traffic.bytes_in : traffic.bytes_out) += bytes;
}

std::optional<std::span<std::byte>> QpCore::remote_memory(std::uint32_t r_key, std::uint64_t iova,
                                                          std::uint64_t length,
                                                          std::uint32_t needed) const {
  return shared.memory.find_remote(pd, handle, r_key, iova, length, needed);
}

bool Shared::complete(CompletionQueue& cq, const WorkCompletion& completion, WqeSlot slot,
                      bool solicited) {
  WorkCompletion with_time = completion;
  with_time.time = now;
  if (with_time.status == WcStatus::kSuccess && with_time.opcode == WcOpcode::kReceive) {
    ++counters[Counter::kReceives];
  }
  if (cq.push(with_time, slot, solicited)) {
    if (personality.batches_completions) {
      unpublished.push_back(cq);
    } else {
      publish(cq);
    }
    return true;
  }
  if (!cq.overflow_reported) {
    cq.overflow_reported = true;
    cq.error_pending = true;
    cq_events.push_back(cq);
    ++counters[Counter::kCqOverflows];
  }
  return false;
}

void Shared::publish(CompletionQueue& cq) {
  if (!cq.publish()) return;
  cq.notify_pending = true;
  cq_events.push_back(cq);
}

void Shared::publish() {
  while (!unpublished.empty()) publish(unpublished.pop_front());
}

std::optional<Event> Shared::poll_event() {
  if (!qp_events.empty()) {
    QpCore& qp = qp_events.front();
    const auto lowest = static_cast<unsigned>(std::countr_zero(qp.events_pending));
    qp.events_pending &= qp.events_pending - 1;
    if (qp.events_pending == 0) qp_events.remove(qp);
    return QpEvent{qp.handle, qp.init.cookie, qp.qpn, static_cast<QpEvent::Kind>(lowest)};
  }
  if (!srq_events.empty()) {
    const SharedReceiveQueue& srq = srq_events.pop_front();
    return SrqLimitReached{srq.handle, srq.cookie()};
  }
  if (cq_events.empty()) return std::nullopt;
  CompletionQueue& cq = cq_events.front();
  const bool error = std::exchange(cq.error_pending, false);
  if (!error) cq.notify_pending = false;
  if (!cq.notify_pending) cq_events.remove(cq);
  if (error) return CqError{cq.handle, cq.cookie()};
  return CqNotify{cq.handle, cq.cookie()};
}

void Shared::add_failure(const RequestFailure& failure) {
  if (failure_count == kFailuresMax) {
    ++counters[Counter::kLimitFailures];
    return;
  }
  failures[(first_failure + failure_count++) % kFailuresMax] = failure;
}

std::optional<RequestFailure> Shared::poll_failure() {
  if (failure_count == 0) return std::nullopt;
  --failure_count;
  return failures[std::exchange(first_failure, (first_failure + 1) % kFailuresMax)];
}

}  // namespace verbena::hca
