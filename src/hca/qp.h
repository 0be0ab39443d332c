#pragma once

#include <atomic>

#include "base/error.h"
#include "hca/deadline_heap.h"
#include "hca/list.h"
#include "hca/qp_core.h"
#include "hca/requester.h"
#include "hca/responder.h"
#include "hca/uc.h"
#include "hca/ud.h"
#include "hca/work_queue.h"
#include "link/framing.h"

namespace verbena::hca {

// One queue pair: its attributes and state, its two queues, and the machines that work on them
// (vol1 10.3; the drawing of the states is in transitions.h).
//
//             RESET  INIT  RTR  RTS  SQD  SQE  ERROR
//   send       no     no    no   x    q    f    f       x executed, q queued, f flushed
//   receive    no     q     x    x    x    x    f
//   packets    -      -     req  all  all  req  -       req: requests alone
//
// In the error state both queues are emptied in order with kFlushed, and so is what is posted
// later. What may still leave then is the responder's NAK, behind the READs before it; if the error
// has no NAK, the answers to what came before it.
//
// Threads: post_send() and post_recv() anywhere, all else the driver.  The state changes under the
// mutexes of both queues, so a poster, under one of them, sees the state in which its request is.
class Qp {
 public:
  // Packets that one QP may send before another has its turn.
  static constexpr unsigned kQuotaPackets = 16;

  // `srq`: null, or where its receives come from.
  Qp(Shared& shared, Pd& pd, CompletionQueue& send_cq, CompletionQueue& recv_cq,
     SharedReceiveQueue* srq, const QpInit& init, Qpn qpn);

  // ---- any thread; true: the driver has something to do ----
  Result<bool> post_send(const SendRequest& request, const AddressHandle* ah);
  Result<bool> post_recv(const RecvRequest& request);

  // ---- driver ----
  QpCore& core() { return core_; }
  const QpCore& core() const { return core_; }
  // Any thread.
  std::uint32_t send_room() const { return sends_.room(); }
  void set_handle(QpHandle handle) { core_.handle = handle; }
  Result<void> modify(const QpAttributes& wanted, std::uint32_t mask);
  QpAttributes attributes() const;
  bool sq_draining() const { return core_.attributes.state == QpState::kSqd && !drained_told_; }
  // Whatever it has left in its CQs, and taken from its SRQ.
  void forget_completions();
  void mark_established() { known_established_ = true; }

  void receive(const wire::TransportPacket& packet, const link::Arrival& arrival, Time now);
  // True if more remains.
  bool transmit(link::Burst& burst, Time now);
  // Sends are done when the burst with them is sent (UC and UD), and wait for burst_sent().
  bool waits_for_burst() const { return !unreliable_.sent() || !datagrams_.drained(); }
  void burst_sent();
  void on_timer(Time now);
  Time deadline() const;
  QpRow row() const;

  // ---- the engine's bookkeeping ----
  ListLink<Qp> active_link{};  // may have packets to send
  ListLink<Qp> burst_link{};   // waits_for_burst()
  HeapPlace heap_place{};
  Qp* ready_next = nullptr;  // posted to, see ReadyList
  std::uint32_t groups = 0;  // multicast groups that it is attached to
  std::atomic<bool> ready = false;

 private:
  Result<void> check_send(const SendRequest& request, const AddressHandle* ah,
                          std::uint64_t length) const;
  void copy_small(SendWqe& wqe) const;
  void apply(const QpAttributes& wanted, std::uint32_t mask);
  void set_state(QpState state);
  void reset();
  void enter_error();
  void on_own_error();
  void flush();
  void flush_sends();
  void flush_receives();
  bool is_from_peer(const wire::Bth& bth, const link::Flow& flow);
  Verdict dispatch(const wire::TransportPacket& packet, Time now);
  void note_first_packet();
  bool transmit_unanswered(link::Burst& burst, bool may_begin);
  void on_send_failed();
  void settle();

  QpCore core_;
  SendQueue sends_;
  RecvQueue receives_;  // of capacity 0 with an SRQ
  ReceiveSource source_;
  Requester requester_;
  Responder responder_;
  Unreliable unreliable_;
  Datagrams datagrams_;
  std::atomic<QpState> state_ = QpState::kReset;  // for posters; the driver's is in the attributes
  bool first_packet_came_ = false;
  bool known_established_ = false;  // the CM needs no kFirstPacket
  bool drained_told_ = false;
  Time flush_at_ = kNever;  // in the error state, and it has not flushed yet
};

// QPs that were posted to and wait for the driver: many threads push, the driver takes all.
class ReadyList {
 public:
  bool empty() const { return head_.load(std::memory_order_acquire) == nullptr; }
  void push(Qp& qp) {
    // Whoever finds the flag set may leave: the driver will clear it and look at the queue after.
    if (qp.ready.exchange(true, std::memory_order_acq_rel)) return;
    Qp* head = head_.load(std::memory_order_relaxed);
    do {
      qp.ready_next = head;
    } while (!head_.compare_exchange_weak(head, &qp, std::memory_order_acq_rel));
  }
  // The newest first, linked by ready_next; ready is to be cleared before a queue is looked at.
  Qp* take() { return head_.exchange(nullptr, std::memory_order_acq_rel); }

 private:
  std::atomic<Qp*> head_ = nullptr;
};

}  // namespace verbena::hca
