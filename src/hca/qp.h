#pragma once

#include <atomic>
#include <optional>
#include <vector>

#include "base/error.h"
#include "hca/deadline_heap.h"
#include "hca/list.h"
#include "hca/post_queues.h"
#include "hca/qp_core.h"
#include "hca/requester.h"
#include "hca/responder.h"
#include "hca/uc.h"
#include "hca/ud.h"
#include "link/framing.h"

namespace verbena::hca {

// Represents one queue pair: its attributes and state, its two queues, and the machines that work
// on them (vol1 10.3; transitions.h has a diagram of the states).
//
//             RESET  INIT  RTR  RTS  SQD  SQE  ERROR
//   send       no     no    no   x    q    f    f       x executed, q queued, f flushed
//   receive    no     q     x    x    x    x    f       no: the post fails
//   packets    -      -     req  all  all  all  -       req: only requests, -: dropped
//
// In the error state, all requests of both queues and all later posts complete in order with
// kFlushed.  The responder may still send the responses to earlier READs, and then its NAK.  If the
// error has no NAK, the responder may still send the responses to earlier requests.
//
// Threads: any thread may call post_send(), post_send_list(), post_recv() and free_send_slots();
// the driver makes all other calls.
class Qp {
 public:
  // Limits the packets that one QP may send before the next QP gets its turn.
  static constexpr unsigned kQuotaPackets = 16;

  // `srq` is the source of the QP's receives, or null if the QP has a receive queue of its own.
  Qp(Shared& shared, Pd& pd, CompletionQueue& send_cq, CompletionQueue& recv_cq,
     SharedReceiveQueue* srq, const QpInit& init, Qpn qpn);

  // ---- any thread ----
  // The next functions return true if the driver must handle the post (see PostQueues).
  Result<bool> post_send(const SendRequest& request, const AddressHandle* ah) {
    return queues_.post_send(request, ah);
  }
  Result<bool> post_send_list(
      std::size_t count,
      const std::function<Result<PostQueues::ListedSend>(std::size_t)>& request_at) {
    return queues_.post_send_list(count, request_at);
  }
  Result<bool> post_recv(const RecvRequest& request) { return queues_.post_recv(request); }

  // ---- driver ----
  QpCore& core() { return core_; }
  const QpCore& core() const { return core_; }
  // Any thread may call this function.
  std::uint32_t free_send_slots() const { return queues_.free_send_slots(); }
  void set_handle(QpHandle handle) { core_.handle = handle; }
  Result<void> modify(const QpAttributes& target, std::uint32_t mask);
  QpAttributes attributes() const;
  bool sq_draining() const { return core_.attributes.state == QpState::kSqd && !is_drained_; }
  // Removes the QP's completions from its CQs.  Frees the receive that the QP has taken from its
  // SRQ.
  void discard_completions();
  // Writes to the access table which rights the peer has through this QP.
  void publish_access();
  void mark_established() { is_marked_established_ = true; }

  void receive(const wire::TransportPacket& packet, const link::Arrival& arrival, Time now);
  // Handles the record of a WRITE or READ that the peer has carried out by direct access.
  void receive(const link::ExecutedRecord& executed);
  // Adds packets to the burst or the lane.  Returns true if there is more to send.
  bool transmit(link::Burst& burst, Time now);
  // Returns true if the newest posts may wait for more posts (Engine::posts_can_wait()).
  bool posts_can_wait() const;
  // Returns true while UC or UD sends wait for on_burst_sent(), which completes them.
  bool waits_for_burst() const { return !uc_.has_sent_all() || !ud_.drained(); }
  void on_burst_sent();
  // Returns true while packets wait because the lane is full.
  bool waits_for_lane() const { return core_.lane_is_full; }
  bool uses_lane(const link::Lane& lane) const { return core_.lane == &lane || uc_link_ == &lane; }
  // Drops the pointers to the lane, so that the owner may remove the lane.  The next packets choose
  // their link again.
  void detach_lane();
  void on_timer(Time now);
  Time deadline() const;
  QpRow row() const;

  // ---- for the engine ----
  ListLink<Qp> active_link{};  // linked if the QP may have packets to send
  ListLink<Qp> burst_link{};   // linked if waits_for_burst()
  ListLink<Qp> lane_link{};    // linked if waits_for_lane()
  HeapPosition heap_position{};
  Qp* ready_next = nullptr;  // the next QP in ReadyList
  std::uint32_t groups = 0;  // the number of multicast groups that the QP is attached to
  // The QP is in ReadyList, or is being added or taken out.
  std::atomic<bool> in_ready_list = false;

 private:
  void apply(const QpAttributes& target, std::uint32_t mask);
  void reset();
  void enter_error();
  void on_transport_error();
  bool peer_accesses_have_ended();
  void flush();
  void flush_sends();
  void flush_receives();
  bool accepts_requests() const;
  bool is_from_partition(const wire::Bth& bth, const link::Address& address) const;
  bool is_from_peer(const wire::Bth& bth, const link::Address& address);
  void choose_lane();
  Verdict dispatch(const wire::TransportPacket& packet, Time now);
  void note_first_packet();
  bool transmit_unreliable(link::Burst& burst, bool may_begin);
  void on_send_failed();
  void report_if_drained();

  std::uint64_t generation_ = 0;  // a number that identifies the current connection
  // Holds the direct accesses of peers that began before the error state and may still be in
  // progress.
  std::vector<link::Lanes::Access> accesses_{};
  QpCore core_;
  PostQueues queues_;
  SendQueue& sends_;  // the send queue of queues_
  ReceiveSource receive_source_;
  Requester requester_;
  Responder responder_;
  UcTransport uc_;
  UdTransport ud_;
  // Holds the link of the first packet of a UC QP: a lane, or null for bursts.
  std::optional<link::Lane*> uc_link_{};
  bool has_received_packet_ = false;    // in the current connection
  bool is_marked_established_ = false;  // mark_established() was called
  bool is_drained_ = false;             // in SQD: the send queue is drained
  Time flush_at_ = kNever;              // the time to flush the queues in the error state
};

// Collects the QPs with new posts that the driver has not seen.  Many threads push QPs, and the
// driver takes all of them at once.
class ReadyList {
 public:
  bool empty() const { return head_.load(std::memory_order_acquire) == nullptr; }
  void push(Qp& qp) {
    // If the flag is set already, the driver will clear it later, and read the queue after that.
    if (qp.in_ready_list.exchange(true, std::memory_order_acq_rel)) return;
    Qp* head = head_.load(std::memory_order_relaxed);
    do {
      qp.ready_next = head;
    } while (!head_.compare_exchange_weak(head, &qp, std::memory_order_acq_rel));
  }
  // Returns the newest QP, or null.  The driver may follow ready_next from this QP on, until it
  // calls take_all().
  const Qp* newest() const { return head_.load(std::memory_order_acquire); }
  // Returns the QPs, newest first, linked by ready_next.  The driver must clear in_ready_list
  // before it reads a QP's queue.
  Qp* take_all() { return head_.exchange(nullptr, std::memory_order_acq_rel); }

 private:
  std::atomic<Qp*> head_ = nullptr;
};

}  // namespace verbena::hca
