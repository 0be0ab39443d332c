#include "hca/uc.h"

#include <algorithm>

#include "hca/operations.h"

namespace verbena::hca {

UcTransport::UcTransport(QpCore& core, SendQueue& sends, ReceiveSource& receives)
    : core_(core), sends_(sends), receives_(receives) {}

void UcTransport::start_receiving() {
  expected_ = core_.attributes.rq_psn;
  message_ = Message::kNone;
}

void UcTransport::start_sending() {
  next_psn_ = core_.attributes.sq_psn;
  sends_in_burst_ = 0;
  packet_index_ = 0;
}

// ---- sending ------------------------------------------------------------------------------------

WcStatus UcTransport::begin(SendWqe& wqe) {
  if (is_local(wqe.opcode)) {
    return execute_local(core_, wqe) ? WcStatus::kSuccess : WcStatus::kWindowBindError;
  }
  wqe.packets = packets_of(core_, wqe);
  return check_request(core_, wqe);
}

Verdict UcTransport::complete_send(const SendWqe& wqe, WcStatus status) {
  const bool good = status == WcStatus::kSuccess;
  const bool signaled = !good || core_.init.signal_all || (wqe.flags & send_flag::kSignaled) != 0;
  const WorkCompletion completion{.wr_id = wqe.wr_id,
                                  .status = status,
                                  .opcode = completion_opcode(wqe.opcode),
                                  .byte_len = completion_bytes(wqe),
                                  .qpn = core_.qpn};
  core_.shared.count_send(completion);
  const WqeSlot slot = sends_.release();
  const bool added = !signaled || core_.shared.complete(core_.send_cq, completion, slot, !good);
  return good && added ? Verdict::kContinue : Verdict::kError;
}

Verdict UcTransport::complete_sent() {
  Verdict verdict = Verdict::kContinue;
  while (sends_in_burst_ > 0) {
    --sends_in_burst_;
    const SendWqe& wqe = sends_.at(sends_.head());
    if (complete_send(wqe, WcStatus::kSuccess) == Verdict::kError) verdict = Verdict::kError;
  }
  return verdict;
}

// Completes a request without a further packet, but only after the requests before it are complete.
Verdict UcTransport::complete_locally(const SendWqe& wqe, WcStatus status) {
  if (sends_in_burst_ > 0) return Verdict::kContinue;
  packet_index_ = 0;
  return complete_send(wqe, status);
}

Verdict UcTransport::transmit(link::Burst& burst, unsigned quota, bool begin_new, bool* more) {
  while (sends_in_burst_ < sends_.size() && (begin_new || packet_index_ > 0) && quota > 0 &&
         core_.prepare_space(burst, core_.attributes.path.address)) {
    --quota;
    SendWqe& wqe = sends_.at(sends_.head() + sends_in_burst_);
    if (packet_index_ == 0 && is_local(wqe.opcode)) {
      // A local request is executed only when it can complete at once.
      if (sends_in_burst_ > 0) return Verdict::kContinue;
      if (complete_locally(wqe, begin(wqe)) == Verdict::kError) return Verdict::kError;
      continue;
    }
    if (packet_index_ == 0) {
      const WcStatus status = begin(wqe);
      if (status != WcStatus::kSuccess) return complete_locally(wqe, status);
    }
    if (!emit_data(core_, burst, wqe,
                   {.transport = wire::Transport::kUc, .index = packet_index_, .psn = next_psn_})) {
      return complete_locally(wqe, WcStatus::kLocalProtectionError);
    }
    next_psn_ = next_psn_ + 1;
    if (++packet_index_ < wqe.packets) continue;
    ++sends_in_burst_;
    packet_index_ = 0;
  }
  *more = sends_in_burst_ < sends_.size() && (begin_new || packet_index_ > 0);
  return Verdict::kContinue;
}

// ---- receiving ----------------------------------------------------------------------------------

Verdict UcTransport::drop(Counter reason) {
  ++core_.shared.counters[reason];
  message_ = Message::kNone;
  return Verdict::kContinue;
}

Verdict UcTransport::receive(const wire::TransportPacket& packet) {
  const wire::Opcode opcode = packet.bth.opcode;
  const std::size_t bytes = packet.payload.size();
  const bool in_order = packet.bth.psn == expected_;
  const Message kind = wire::is_send(opcode) ? Message::kSend : Message::kWrite;
  expected_ = packet.bth.psn + 1;
  if (wire::starts_message(opcode)) {
    // The end of the previous message is missing, so that message is dropped.
    if (message_ != Message::kNone) static_cast<void>(drop(Counter::kDropGap));
    received_bytes_ = 0;
  } else if (!in_order || message_ != kind) {
    return drop(Counter::kDropGap);
  }
  const bool has_valid_length = wire::ends_message(opcode)
                                    ? bytes <= core_.mtu() && (bytes > 0 || wire::is_only(opcode))
                                    : bytes == core_.mtu();
  if (!has_valid_length) return drop(Counter::kDropRefused);
  return kind == Message::kSend ? on_send(packet) : on_write(packet);
}

Verdict UcTransport::on_send(const wire::TransportPacket& packet) {
  if (receives_.empty()) return drop(Counter::kDropNoReceive);
  receives_.begin_message();
  const RecvWqe& wqe = receives_.head();
  const std::uint64_t limit =
      std::min<std::uint64_t>(wqe.length, core_.shared.limits.max_message_bytes);
  if (received_bytes_ + packet.payload.size() > limit) return drop(Counter::kDropTooLong);
  if (core_.shared.memory.scatter(receives_.pd(), RecvQueue::sges(wqe), received_bytes_,
                                  packet.payload) != CopyFault::kNone) {
    return complete_receive({.status = WcStatus::kLocalProtectionError}, true);
  }
  received_bytes_ += packet.payload.size();
  message_ = Message::kSend;
  if (!wire::ends_message(packet.bth.opcode)) return Verdict::kContinue;
  const bool has_immediate = wire::carries_immediate(packet.bth.opcode);
  return complete_receive({.opcode = WcOpcode::kReceive,
                           .byte_len = static_cast<std::uint32_t>(received_bytes_),
                           .immediate = has_immediate ? packet.immediate : 0,
                           .flags = has_immediate ? wc_flag::kWithImm : 0},
                          packet.bth.solicited_event);
}

Verdict UcTransport::on_write(const wire::TransportPacket& packet) {
  const wire::Opcode opcode = packet.bth.opcode;
  const std::size_t bytes = packet.payload.size();
  const bool ends = wire::ends_message(opcode);
  if (wire::starts_message(opcode)) {
    write_address_ = packet.reth.virtual_address;
    write_length_ = packet.reth.dma_length_bytes;
    write_key_ = packet.reth.r_key;
  }
  const std::uint64_t remaining = write_length_ - received_bytes_;
  const bool allowed = (core_.attributes.access_flags & access::kRemoteWrite) != 0 &&
                       write_length_ <= core_.shared.limits.max_message_bytes &&
                       (ends ? bytes == remaining : bytes < remaining);
  if (!allowed) return drop(Counter::kDropRefused);
  const bool has_immediate = wire::carries_immediate(opcode);
  if (has_immediate && receives_.empty()) return drop(Counter::kDropNoReceive);
  if (remaining > 0) {  // an empty WRITE needs no key (vol1 9.7.4.1.5)
    const auto to = core_.remote_memory(write_key_, write_address_ + received_bytes_, remaining,
                                        access::kRemoteWrite);
    if (!to || !core_.shared.memory.write(to->first(bytes), packet.payload)) {
      return drop(Counter::kDropRefused);
    }
  }
  received_bytes_ += bytes;
  message_ = ends ? Message::kNone : Message::kWrite;
  if (!has_immediate) return Verdict::kContinue;
  return complete_receive({.opcode = WcOpcode::kReceiveWriteImm,
                           .byte_len = write_length_,
                           .immediate = packet.immediate,
                           .flags = wc_flag::kWithImm},
                          packet.bth.solicited_event);
}

Verdict UcTransport::complete_receive(WorkCompletion completion, bool solicited) {
  completion.wr_id = receives_.head().wr_id;
  completion.qpn = core_.qpn;
  message_ = Message::kNone;
  const WqeSlot slot = receives_.release();
  const bool added = core_.shared.complete(core_.recv_cq, completion, slot, solicited);
  return added && completion.status == WcStatus::kSuccess ? Verdict::kContinue : Verdict::kError;
}

}  // namespace verbena::hca
