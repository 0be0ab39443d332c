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
// It is done here, without a packet.
constexpr bool is_local(WrOpcode opcode) {
  return opcode == WrOpcode::kLocalInvalidate || opcode == WrOpcode::kBindWindow;
}
// Its answer is a packet of its own, which an acknowledgement of something later does not replace;
// it takes one of the QP's max_rd_atomic, and a fence waits for it (vol1 9.7.3.1, 10.8.3.3).
constexpr bool has_own_answer(WrOpcode opcode) {
  return opcode == WrOpcode::kRead || opcode == WrOpcode::kAtomicWrite || is_atomic(opcode);
}
// Its answer goes where its elements say.
constexpr bool fills_elements(WrOpcode opcode) {
  return opcode == WrOpcode::kRead || is_atomic(opcode);
}
// It needs a receive at the peer, and so can be solicited there.
constexpr bool needs_receive(WrOpcode opcode) {
  return opcode == WrOpcode::kSend || opcode == WrOpcode::kSendImm ||
         opcode == WrOpcode::kSendInvalidate || opcode == WrOpcode::kWriteImm;
}

// The packet of a request at this place of its message.
wire::Operation operation_of(WrOpcode opcode, bool first, bool last);
// A packet with this opcode answers such a request.
bool is_answer_to(WrOpcode request, wire::Opcode response);
WcOpcode completion_opcode(WrOpcode opcode);
// Bytes that the completion of a request tells.
std::uint32_t completion_bytes(const SendWqe& wqe);

// Does what a local request says.  False: it may not be, and nothing has changed.
bool execute_local(QpCore& core, const SendWqe& wqe);

// Puts together one packet of a SEND or WRITE: the one with this index in its message.  False: the
// memory it is to be taken from is not there any more, and nothing was added.
struct DataPacket {
  wire::Transport transport{};
  std::uint32_t index = 0;
  Psn psn{};
  bool acknowledge_request = false;
};
bool emit_data(QpCore& core, link::Burst& burst, const SendWqe& wqe, const DataPacket& where);
// The bytes of a request from this offset on.
bool copy_data(const QpCore& core, const SendWqe& wqe, std::uint64_t offset,
               std::span<std::byte> out);

// How many packets a request takes.
std::uint32_t packets_of(const QpCore& core, const SendWqe& wqe);

// What is wrong with a request of a connected QP, before its first packet.
WcStatus check_request(const QpCore& core, const SendWqe& wqe);

}  // namespace verbena::hca
