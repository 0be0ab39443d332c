#pragma once

#include "hca/qp_core.h"
#include "hca/types.h"
#include "hca/work_queue.h"
#include "wire/headers.h"

// What each kind of send request is on the wire and in a completion, as tables.
namespace verbena::hca {

constexpr bool is_atomic(WrOpcode opcode) {
  return opcode == WrOpcode::kCompareSwap || opcode == WrOpcode::kFetchAdd;
}
// Its answer is a packet of its own, which an acknowledgement of something later does not replace;
// it takes one of the QP's max_rd_atomic, and a fence waits for it (vol1 9.7.3.1, 10.8.3.3).
constexpr bool has_own_answer(WrOpcode opcode) {
  return opcode == WrOpcode::kRead || is_atomic(opcode);
}
// Its answer goes where its elements say.
constexpr bool fills_elements(WrOpcode opcode) { return has_own_answer(opcode); }
// It needs a receive at the peer, and so can be solicited there.
constexpr bool needs_receive(WrOpcode opcode) {
  return opcode == WrOpcode::kSend || opcode == WrOpcode::kSendImm || opcode == WrOpcode::kWriteImm;
}

// The packet of a request at this place of its message.
wire::Operation operation_of(WrOpcode opcode, bool first, bool last);
// A packet with this opcode answers such a request.
bool is_answer_to(WrOpcode request, wire::Opcode response);
WcOpcode completion_opcode(WrOpcode opcode);
// Bytes that the completion of a request tells.
std::uint32_t completion_bytes(const SendWqe& wqe);

// What is wrong with a request of a connected QP, before its first packet.
WcStatus check_request(const QpCore& core, const SendWqe& wqe);

}  // namespace verbena::hca
