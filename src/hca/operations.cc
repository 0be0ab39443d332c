#include "hca/operations.h"

#include <algorithm>
#include <cstring>

namespace verbena::hca {

using wire::Operation;

Operation operation_of(WrOpcode opcode, bool first, bool last) {
  using enum Operation;
  switch (opcode) {
    case WrOpcode::kRead: return kReadRequest;
    case WrOpcode::kCompareSwap: return kCompareSwap;
    case WrOpcode::kFetchAdd: return kFetchAdd;
    case WrOpcode::kAtomicWrite: return kAtomicWrite;
    case WrOpcode::kSend:
    case WrOpcode::kSendImm:
    case WrOpcode::kSendInvalidate:
      if (!last) return first ? kSendFirst : kSendMiddle;
      if (opcode == WrOpcode::kSendImm) return first ? kSendOnlyImm : kSendLastImm;
      if (opcode == WrOpcode::kSendInvalidate) {
        return first ? kSendOnlyInvalidate : kSendLastInvalidate;
      }
      return first ? kSendOnly : kSendLast;
    default:
      if (!last) return first ? kWriteFirst : kWriteMiddle;
      if (opcode == WrOpcode::kWriteImm) return first ? kWriteOnlyImm : kWriteLastImm;
      return first ? kWriteOnly : kWriteLast;
  }
}

bool is_response_to(WrOpcode request, wire::Opcode response) {
  if (is_atomic(request)) return response == wire::Opcode::kRcAtomicAcknowledge;
  if (request == WrOpcode::kAtomicWrite) return response == wire::Opcode::kRcReadResponseOnly;
  return request == WrOpcode::kRead && wire::is_read_response(response);
}

WcOpcode completion_opcode(WrOpcode opcode) {
  switch (opcode) {
    case WrOpcode::kWrite:
    case WrOpcode::kWriteImm: return WcOpcode::kWrite;
    case WrOpcode::kRead: return WcOpcode::kRead;
    case WrOpcode::kCompareSwap: return WcOpcode::kCompareSwap;
    case WrOpcode::kFetchAdd: return WcOpcode::kFetchAdd;
    case WrOpcode::kAtomicWrite: return WcOpcode::kAtomicWrite;
    case WrOpcode::kBindWindow: return WcOpcode::kBindWindow;
    case WrOpcode::kLocalInvalidate: return WcOpcode::kLocalInvalidate;
    default: return WcOpcode::kSend;
  }
}

std::uint32_t completion_bytes(const SendWqe& wqe) {
  return is_atomic(wqe.opcode) ? kAtomicBytes : wqe.length;
}

bool execute_local(QpCore& core, const SendWqe& wqe) {
  Memory& memory = core.shared.memory;
  return wqe.opcode == WrOpcode::kBindWindow
             ? memory.bind(core.pd, core.handle, wqe.r_key, wqe.bind)
             : memory.invalidate(core.pd, core.handle, wqe.r_key);
}

bool copy_data(const QpCore& core, const SendWqe& wqe, std::uint64_t offset,
               std::span<std::byte> out) {
  if (wqe.is_copied()) {
    std::memcpy(out.data(), SendQueue::copied_bytes(wqe) + offset, out.size());
    return true;
  }
  return core.shared.memory.gather(core.pd, SendQueue::sges(wqe), offset, out) == CopyFault::kNone;
}

bool emit_data(QpCore& core, link::Burst& burst, const SendWqe& wqe, const DataPacket& data) {
  const std::uint64_t offset = std::uint64_t{data.index} * core.mtu();
  const auto bytes = std::min<std::uint64_t>(core.mtu(), wqe.length - offset);
  const bool last = data.index + 1 == wqe.packets;

  wire::TransportPacket packet;
  packet.bth.opcode =
      wire::opcode_of(data.transport, operation_of(wqe.opcode, data.index == 0, last));
  packet.bth.solicited_event =
      last && needs_receive(wqe.opcode) && (wqe.flags & send_flag::kSolicited) != 0;
  packet.bth.migration_request = core.migration_request();
  packet.bth.destination_qpn = core.attributes.destination_qpn;
  packet.bth.acknowledge_request = data.acknowledge_request;
  packet.bth.psn = data.psn;
  packet.reth = {wqe.remote.address, wqe.r_key, wqe.length};
  packet.immediate = wqe.immediate;
  packet.invalidate_r_key = wqe.r_key;
  return emit(core, burst, core.attributes.path.address, packet, static_cast<std::size_t>(bytes),
              [&](std::span<std::byte> out) { return copy_data(core, wqe, offset, out); });
}

std::uint32_t packets_of(const QpCore& core, const SendWqe& wqe) {
  if (is_atomic(wqe.opcode)) return 1;
  const std::uint64_t mtu = core.mtu();
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(1, (wqe.length + mtu - 1) / mtu));
}

WcStatus check_request(const QpCore& core, const SendWqe& wqe) {
  if (wqe.length > core.shared.limits.max_message_bytes) return WcStatus::kLocalLengthError;
  if (is_atomic(wqe.opcode) && wqe.length < kAtomicBytes) return WcStatus::kLocalLengthError;
  if (wqe.opcode == WrOpcode::kAtomicWrite && wqe.length != kAtomicBytes) {
    return WcStatus::kLocalLengthError;
  }
  if (needs_response(wqe.opcode) && core.attributes.max_rd_atomic == 0) {
    return WcStatus::kLocalQpOperationError;
  }
  // All keys were valid at the post.  If the generation is the same, no key has become invalid
  // since then.
  if ((wqe.flags & kCopiedFlag) != 0 && wqe.key_generation == core.shared.memory.generation()) {
    return WcStatus::kSuccess;
  }
  const std::uint32_t needed = fills_elements(wqe.opcode) ? access::kLocalWrite : 0;
  if (!core.shared.memory.are_valid(core.pd, SendQueue::sges(wqe), needed)) {
    return WcStatus::kLocalProtectionError;
  }
  return WcStatus::kSuccess;
}

}  // namespace verbena::hca
