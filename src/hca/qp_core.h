#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "base/random.h"
#include "base/time.h"
#include "hca/completion_queue.h"
#include "hca/counters.h"
#include "hca/events.h"
#include "hca/list.h"
#include "hca/memory.h"
#include "hca/ports.h"
#include "hca/srq.h"
#include "hca/types.h"
#include "link/burst.h"
#include "link/lanes.h"
#include "wire/headers.h"
#include "wire/mad.h"

// Defines the state that the machines of a QP (requester, responder, UC, UD) share.  The functions
// here report completions and events, and write packets.
namespace verbena::hca {

struct Shared;

// Tells the QP how to continue after an input.  kError requests the error state, or SQE if a send
// of a UC or UD QP has failed.
enum class [[nodiscard]] Verdict : std::uint8_t{kContinue, kError};

// Tells the direction of the data of a direct access, as seen from one end.
enum class DataFlow : std::uint8_t { kIn, kOut };

// Holds the state that the machines of one QP share.
struct QpCore {
  Shared& shared;
  Pd& pd;
  CompletionQueue& send_cq;
  CompletionQueue& recv_cq;
  SharedReceiveQueue* srq;  // null: the QP has its own receive queue
  QpInit init;              // with the capacities that were granted
  Qpn qpn{};
  QpHandle handle{};
  QpAttributes attributes{};
  QpTraffic traffic{};
  std::uint32_t events_pending = 0;  // one bit for each QpEvent::Kind
  ListLink<QpCore> event_link{};
  link::Lane* lane = nullptr;  // packets are added to this lane; null: to the burst
  bool lane_is_full = false;   // packets wait until the lane has space

  std::uint32_t mtu() const { return bytes_of(attributes.path_mtu); }
  PortId port() const { return {init.device, attributes.port}; }
  // Returns true for QP1.  An engine has one QP1, which represents the QP1 of each port.  It uses
  // the first valid P_Key of the port.
  bool is_gsi() const { return qpn == wire::kGsiQpn; }
  // Returns the MigReq bit of the packets that the QP sends, see migration.h.
  bool migration_request() const { return attributes.migration == MigrationState::kMigrated; }
  // Returns the bytes that a peer's request names, if the peer has the rights in `needed`
  // (Memory::find_remote).
  std::optional<std::span<std::byte>> remote_memory(std::uint32_t r_key, std::uint64_t iova,
                                                    std::uint64_t length,
                                                    std::uint32_t needed) const;
  void raise(QpEvent::Kind kind);
  // Counts a WRITE or READ that the initiator has carried out by direct access: the packets that
  // the access has replaced, and the bytes of its data, without headers.
  void count_direct(bool is_read, DataFlow flow, std::uint32_t packets, std::uint32_t bytes);
  // Chooses the lane for packets to the QP `destination` at this address.
  void choose_lane(const link::Address& address, Qpn destination);
  // Prepares space for a packet in the lane, or in the burst if there is no lane.  Returns false if
  // there is no space.
  bool prepare_space(const link::Burst& burst, const link::Address& address);
};

// Holds the state that all QPs of an engine share.
struct Shared {
  Shared(const Limits& engine_limits, const Personality& engine_personality, Random random)
      : limits(engine_limits), personality(engine_personality), memory(random) {}

  // Counts the completion of a SEND; ignores other requests and failures.
  void count_send(const WorkCompletion& completion) {
    if (completion.status != WcStatus::kSuccess || completion.opcode != WcOpcode::kSend) return;
    ++counters[Counter::kSends];
  }
  // Adds a completion to a CQ, and queues its event now or in publish().  Returns false if the CQ
  // overflowed.
  bool complete(CompletionQueue& cq, const WorkCompletion& completion, WqeSlot slot,
                bool solicited);
  // Makes all completions visible that were added before (Personality::batches_completions).
  void publish();
  // Makes the completions of one CQ visible.
  void publish(CompletionQueue& cq);
  // Returns the next event.  Pending events are flags in their objects, so no event is lost for
  // lack of memory.
  std::optional<Event> poll_event();
  // Stores at most kFailuresMax failures and counts the others.
  void add_failure(const RequestFailure& failure);
  std::optional<RequestFailure> poll_failure();

  static constexpr std::size_t kFailuresMax = 32;

  const Limits limits;
  const Personality personality;
  link::Lanes* lanes = nullptr;               // null: all packets are added to bursts
  link::AccessTable* access_table = nullptr;  // null: nothing is published
  std::uint64_t connections = 0;              // counts the changes of QPs to RTR
  Memory memory;
  Ports ports{};
  Counters counters{};
  std::array<RequestFailure, kFailuresMax> failures{};  // a ring
  std::size_t first_failure = 0;
  std::size_t failure_count = 0;
  std::uint64_t copied_bytes = 0;              // the bytes of direct accesses, also of refused ones
  Time now{};                                  // the time of the driver's latest call
  std::atomic<std::uint64_t> sends_refused{};  // kLimitSendQueue; any thread counts
  std::atomic<std::uint64_t> receives_refused{};  // kLimitRecvQueue; any thread counts
  List<CompletionQueue, &CompletionQueue::event_link> cq_events;
  List<CompletionQueue, &CompletionQueue::publish_link> unpublished;
  List<QpCore, &QpCore::event_link> qp_events;
  List<SharedReceiveQueue, &SharedReceiveQueue::event_link> srq_events;
};

// Adds one packet to the lane or the burst: headers, a payload that fill(span) writes, and padding.
// Returns false, and adds nothing, if fill() returns false.  REQUIRES: prepare_space() has returned
// true for this packet.
template <class Fill>
bool emit(QpCore& core, link::Burst& burst, const link::Address& address,
          wire::TransportPacket& packet, std::size_t payload_bytes, Fill fill) {
  const std::span<std::byte> out =
      core.lane != nullptr ? core.lane->packet_space() : burst.prepare();
  packet.bth.pad_count = wire::pad_count(payload_bytes);
  const PkeyTable& pkeys = core.shared.ports.pkeys(address.port);
  packet.bth.pkey = core.is_gsi() ? pkeys.first_valid() : pkeys.at(core.attributes.pkey_index);
  const std::size_t headers = wire::write_headers(out, packet);
  if (!fill(out.subspan(headers, payload_bytes))) return false;
  std::memset(out.data() + headers + payload_bytes, 0, packet.bth.pad_count);
  const std::size_t bytes = headers + payload_bytes + packet.bth.pad_count;
  if (core.lane != nullptr) {
    core.lane->commit(bytes);
  } else {
    burst.commit(address, bytes);
  }
  ++core.shared.counters[Counter::kPacketsOut];
  core.shared.counters[Counter::kBytesOut] += bytes;
  ++core.traffic.packets_out;
  core.traffic.bytes_out += payload_bytes;
  return true;
}

}  // namespace verbena::hca
