#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/random.h"
#include "base/time.h"
#include "hca/counters.h"
#include "hca/events.h"
#include "hca/types.h"
#include "link/burst.h"
#include "link/framing.h"

namespace verbena::hca {

// The software HCA: a whole channel adapter as a function of its inputs.  Work requests, packets
// and time go in; packets, completions, events and one next deadline come out.  It knows no socket,
// clock or thread.
//
//     post_send, post_recv ----> +--------+ ----> poll_cq
//     receive(arrival, now) ---> | Engine | ----> transmit(burst, now)
//     on_timer(now) -----------> |        | ----> deadline(), poll_event()
//     create_..., modify_qp ---> +--------+
//
// Spec: vol1 chapter 9 (RC, UC and UD transport), 10 and 11 (verbs); annex A17 (RoCEv2).
//
// Threads.  The engine has a *driver*: whoever calls anything but the "direct" calls must be
// alone in doing so; the owner holds a lock.  The direct calls run in any thread, beside the driver
// and beside one another; each queue has a mutex of its own for its producers (send and receive
// queues) or consumers (CQs), held for a copy.  As with every verbs object, destroying one while
// another thread uses it is the caller's mistake.  No call of the data path allocates.
//
// A post may leave work behind that only the driver can do: has_work() says so to whoever posted.
// After any input the driver calls transmit() until it returns false, then drains poll_event() and
// asks for deadline() again.
//
// Handles: a stale or forged one gives kBadHandle.  Nothing waits; destroying what others stand on
// gives kBusy and the context says what they are.
class Engine {
 public:
  // `random` makes the keys of memory regions: with a key from the kernel they cannot be guessed.
  Engine(const Limits& limits, Random random, const Personality& personality = kConnectX);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  const Limits& limits() const;

  // ---- commands (driver) ----------------------------------------------------------------------

  Result<PdHandle> create_pd();
  Result<void> destroy_pd(PdHandle pd);

  // Memory [address, address + length) of this process; peers and Sges name it from `iova` on.
  // `access_flags`: access; remote write and atomic need local write.  The engine touches the
  // memory only while it is registered, and checks that at every packet.
  Result<MrInfo> register_mr(PdHandle pd, std::uint64_t address, std::uint64_t length,
                             std::uint64_t iova, std::uint32_t access_flags);
  // A region for elements alone, at any address and of any length: zeros come out of it, and what
  // goes in is gone.  For parts of messages that nobody wants.
  Result<MrInfo> register_null_mr(PdHandle pd);
  // Changes the domain, the memory (then `iova` begins at its address) or the rights of a region,
  // as `what` says (vol1 10.6.3.3.4, 11.2.8.5); its keys stay.  An error: nothing has changed;
  // kBusy while windows are bound to it.
  struct MrChange {
    static constexpr std::uint32_t kTranslation = 1, kPd = 2, kAccess = 4;  // ibv_rereg_mr_flags
    std::uint32_t what = 0;
    PdHandle pd{};
    std::uint64_t address = 0;
    std::uint64_t length = 0;
    std::uint32_t access_flags = 0;
  };
  Result<void> reregister_mr(MrHandle mr, const MrChange& change);
  Result<void> deregister_mr(MrHandle mr);  // kBusy while windows are bound to it
  // The memory that the element names, if it is of this domain and has all the rights in `needed`;
  // else kFault.
  Result<std::span<std::byte>> find_memory(PdHandle pd, const Sge& sge, std::uint32_t needed) const;
  // Through it goes each touch of registered memory, in drivers and in posting threads.  Memory
  // that has gone is then a protection or access error, as a bad key is.  Without one, memory must
  // stay as long as it is registered.
  void set_memory_guard(MemoryGuard guard);

  // A window is bound and invalidated by requests of QPs (SendRequest::r_key names it).  Destroying
  // a bound one ends what peers may do by it, at once.
  Result<MwInfo> create_mw(PdHandle pd, WindowType type);
  Result<void> destroy_mw(MwHandle mw);

  // At least `entries` completions.
  Result<CqHandle> create_cq(std::uint32_t entries, std::uint64_t cookie);
  Result<std::uint32_t> cq_capacity(CqHandle cq) const;
  Result<std::uint64_t> cq_cookie(CqHandle cq) const;
  // kInvalidArgument: more completions than `entries` are in it.
  Result<void> resize_cq(CqHandle cq, std::uint32_t entries);
  Result<void> destroy_cq(CqHandle cq);  // its events not yet polled are gone

  Result<AhHandle> create_ah(PdHandle pd, const Path& path);
  Result<void> destroy_ah(AhHandle ah);

  // Receives for many QPs, which take them when a message begins (vol1 10.2.9).
  Result<SrqHandle> create_srq(PdHandle pd, const SrqCaps& caps, std::uint64_t cookie);
  struct SrqInfo {
    SrqCaps caps{};  // as given, at least what was wanted
    std::uint32_t limit = 0;
    std::uint64_t cookie = 0;
  };
  Result<SrqInfo> query_srq(SrqHandle srq) const;
  // The event comes once fewer than `limit` receives wait; 0 disarms it.
  Result<void> arm_srq(SrqHandle srq, std::uint32_t limit);
  Result<void> resize_srq(SrqHandle srq, std::uint32_t max_wr);
  Result<void> destroy_srq(SrqHandle srq);  // its events not yet polled are gone

  // `qpn`: any of 1..0xfffffe that this engine has no QP for; which are this process's the owner
  // knows.  A QP begins in kReset.
  Result<QpHandle> create_qp(const QpInit& init, Qpn qpn);
  // The specification's table of transitions, required and optional attributes (vol1 11.2.5.2):
  // what it does not allow is kInvalidArgument, and then nothing has changed.
  Result<void> modify_qp(QpHandle qp, const QpAttributes& attributes, std::uint32_t mask, Time now);
  struct QpInfo {
    Qpn qpn{};
    QpInit init{};  // with the capacities that were given
    QpAttributes attributes{};
    bool sq_draining = false;  // in SQD: what was begun is not complete yet
  };
  Result<QpInfo> query_qp(QpHandle qp) const;
  // kBusy while it is attached to multicast groups.  Its events not yet polled are gone.
  Result<void> destroy_qp(QpHandle qp);
  // From now on the QP gets a copy of what comes for the group, and of what QPs of this engine send
  // to it; if it is in a state to receive (vol1 10.5, 11.3).  UD alone.  Twice is as good as once.
  Result<void> attach_multicast(QpHandle qp, const Gid& group);
  // kInvalidArgument: it is not attached.
  Result<void> detach_multicast(QpHandle qp, const Gid& group);
  // The connection is known to be established: kFirstPacket is not wanted any more.
  Result<void> mark_established(QpHandle qp);
  Result<QpHandle> find_qp(Qpn qpn) const;

  // ---- direct calls (any thread) --------------------------------------------------------------

  // kBadState before RTS; in kError (and kSqe) requests are taken and flushed.  kNoResources: the
  // queue is full.  Wrong keys and lengths show in the completion, as with hardware.
  Result<void> post_send(QpHandle qp, const SendRequest& request);
  // How many send requests there is room for now, which only this thread's own posts take away.
  Result<std::uint32_t> send_room(QpHandle qp) const;
  // kBadState in kReset; kInvalidArgument for a QP with an SRQ.
  Result<void> post_recv(QpHandle qp, const RecvRequest& request);
  // kNoResources: the queue is full.
  Result<void> post_srq_recv(SrqHandle srq, const RecvRequest& request);
  // How many completions were stored.
  Result<unsigned> poll_cq(CqHandle cq, std::span<WorkCompletion> out);
  // The next completion (or: the next solicited or failed one) makes a CqNotify.  Poll again after
  // arming: what was added before does not count.
  Result<void> arm_cq(CqHandle cq, bool solicited_only);
  // Something was posted and waits for a driver to call transmit().
  bool has_work() const;

  // ---- driving (driver) -----------------------------------------------------------------------

  // A packet whose ICRC is good; the flow's source is the peer.
  void receive(const link::Arrival& arrival, Time now);
  // Adds packets until the burst is full or nothing is left; true: to be called once more, when
  // those are sent.
  bool transmit(link::Burst& burst, Time now);
  // Makes completions visible to the consumer, as transmit() does before it sends anything: for a
  // driver that lets packets wait for a moment.
  void publish();
  // Early calls are harmless.
  void on_timer(Time now);
  // kNever: none.  May be too early, never too late.
  Time deadline() const;
  std::optional<Event> poll_event();
  // What failed, oldest first.  Nobody has to take them: the engine keeps the first few.
  std::optional<RequestFailure> poll_failure();

  // ---- visibility (driver) --------------------------------------------------------------------

  std::size_t qp_count() const;
  // One row per QP by order of creation slots; how many were written.
  std::size_t rows(std::span<QpRow> out) const;
  // As of now: what posting threads count is added in.
  Counters counters() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace verbena::hca
