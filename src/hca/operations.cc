#include "hca/operations.h"

namespace verbena::hca {

using wire::Operation;

Operation operation_of(WrOpcode opcode, bool first, bool last) {
  using enum Operation;
  switch (opcode) {
    case WrOpcode::kRead: return kReadRequest;
    case WrOpcode::kCompareSwap: return kCompareSwap;
    case WrOpcode::kFetchAdd: return kFetchAdd;
    case WrOpcode::kSend:
    case WrOpcode::kSendImm:
      if (!last) return first ? kSendFirst : kSendMiddle;
      if (opcode == WrOpcode::kSendImm) return first ? kSendOnlyImm : kSendLastImm;
      return first ? kSendOnly : kSendLast;
    default:
      if (!last) return first ? kWriteFirst : kWriteMiddle;
      if (opcode == WrOpcode::kWriteImm) return first ? kWriteOnlyImm : kWriteLastImm;
      return first ? kWriteOnly : kWriteLast;
  }
}

bool is_answer_to(WrOpcode request, wire::Opcode response) {
  if (is_atomic(request)) return response == wire::Opcode::kRcAtomicAcknowledge;
  return request == WrOpcode::kRead && wire::is_read_response(response);
}

WcOpcode completion_opcode(WrOpcode opcode) {
  switch (opcode) {
    case WrOpcode::kWrite:
    case WrOpcode::kWriteImm: return WcOpcode::kWrite;
    case WrOpcode::kRead: return WcOpcode::kRead;
    case WrOpcode::kCompareSwap: return WcOpcode::kCompareSwap;
    case WrOpcode::kFetchAdd: return WcOpcode::kFetchAdd;
    default: return WcOpcode::kSend;
  }
}

std::uint32_t completion_bytes(const SendWqe& wqe) {
  return is_atomic(wqe.opcode) ? kAtomicBytes : static_cast<std::uint32_t>(wqe.length);
}

WcStatus check_request(const QpCore& core, const SendWqe& wqe) {
  if (wqe.length > core.shared.limits.max_message_bytes) return WcStatus::kLocalLengthError;
  if (is_atomic(wqe.opcode) && wqe.length < kAtomicBytes) return WcStatus::kLocalLengthError;
  if (has_own_answer(wqe.opcode) && core.attributes.max_rd_atomic == 0) {
    return WcStatus::kLocalQpOperationError;
  }
  const std::uint32_t needed = fills_elements(wqe.opcode) ? access::kLocalWrite : 0;
  if (!core.shared.memory.valid(core.pd, SendQueue::sges(wqe), needed)) {
    return WcStatus::kLocalProtectionError;
  }
  return WcStatus::kSuccess;
}

}  // namespace verbena::hca
