#pragma once

#include "hca/qp_core.h"
#include "hca/types.h"
#include "hca/work_queue.h"
#include "wire/headers.h"

// Defines how each kind of send request appears on the wire and in a completion.
namespace verbena::hca {

constexpr bool is_atomic(WrOpcode opcode) {
  return opcode == WrOpcode::kCompareSwap || opcode == WrOpcode::kFetchAdd;
}
// Returns true if the engine executes the request itself, without a packet.
constexpr bool is_local(WrOpcode opcode) {
  return opcode == WrOpcode::kLocalInvalidate || opcode == WrOpcode::kBindWindow;
}
// Returns true if the request needs a response packet of its own.  The acknowledgement of a later
// request does not replace such a response.  Such a request counts towards max_rd_atomic, and a
// fence waits for it (vol1 9.7.3.1, 10.8.3.3).
constexpr bool needs_response(WrOpcode opcode) {
  return opcode == WrOpcode::kRead || opcode == WrOpcode::kAtomicWrite || is_atomic(opcode);
}
// Returns true if the response is written to the request's elements.
constexpr bool fills_elements(WrOpcode opcode) {
  return opcode == WrOpcode::kRead || is_atomic(opcode);
}
// Returns true if the request consumes a receive of the peer, so it may carry the solicited event
// bit.
constexpr bool needs_receive(WrOpcode opcode) {
  return opcode == WrOpcode::kSend || opcode == WrOpcode::kSendImm ||
         opcode == WrOpcode::kSendInvalidate || opcode == WrOpcode::kWriteImm;
}

// Returns the operation of a packet.  `first` and `last` give its position in the request's
// message.
wire::Operation operation_of(WrOpcode opcode, bool first, bool last);
// Returns true if a packet with this opcode is a response to such a request.
bool is_response_to(WrOpcode request, wire::Opcode response);
WcOpcode completion_opcode(WrOpcode opcode);
// Returns the byte count in the completion of a request.
std::uint32_t completion_bytes(const SendWqe& wqe);

// Executes a local request.  Returns false, and changes nothing, if the request is not allowed.
bool execute_local(QpCore& core, const SendWqe& wqe);

// Identifies one packet of a SEND or WRITE by its index in the message.
struct DataPacket {
  wire::Transport transport{};
  std::uint32_t index = 0;
  Psn psn{};
  bool acknowledge_request = false;
};
// Adds the packet to the burst or the lane.  Returns false, and adds nothing, if the memory of its
// data is no longer accessible.
bool emit_data(QpCore& core, link::Burst& burst, const SendWqe& wqe, const DataPacket& data);
// Copies the bytes of a request from this offset on.  Returns false if the memory is not
// accessible.
bool copy_data(const QpCore& core, const SendWqe& wqe, std::uint64_t offset,
               std::span<std::byte> out);

// Returns the number of packets of a request.
std::uint32_t packets_of(const QpCore& core, const SendWqe& wqe);

// Checks a request of a connected QP before its first packet.  Returns kSuccess, or the status with
// which the request fails.
WcStatus check_request(const QpCore& core, const SendWqe& wqe);

}  // namespace verbena::hca
