#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/random.h"
#include "base/time.h"
#include "hca/counters.h"
#include "hca/events.h"
#include "hca/types.h"
#include "link/access_table.h"
#include "link/burst.h"
#include "link/framing.h"
#include "link/lanes.h"

namespace verbena::hca {

// Implements a software HCA: a whole channel adapter as a function of its inputs.  Work requests,
// packets and time go in.  Packets, completions, events and the next deadline come out.  It has no
// access to sockets, clocks or threads.
//
//     post_send, post_recv ----> +--------+ ----> poll_cq
//     receive(arrival, now) ---> | Engine | ----> transmit(burst, now)
//     on_timer(now) -----------> |        | ----> deadline(), poll_event()
//     create_..., modify_qp ---> +--------+
//
// Spec: vol1 chapter 9 (RC, UC and UD transport), 10 and 11 (verbs); annex A17 (RoCEv2).
//
// Threads.  All calls except the "direct" ones belong to the *driver*: only one thread at a time
// may make them, so the owner holds a lock.  Any thread may make the direct calls, in parallel with
// the driver and with each other.  Each queue has a mutex for its producers (send and receive
// queues) or consumers (CQs), which is held only while entries are copied.  A caller must not
// destroy an object while another thread uses it, as with all verbs objects.  No call of the data
// path allocates memory.
//
// A post may leave work that only the driver can do.  The poster calls has_work() to check this.
// After any input the driver calls transmit() until it returns false, then drains poll_event() and
// reads deadline() again.
//
// Handles: a stale or forged handle gives kBadHandle.  No call blocks.  Destroying an object that
// other objects use gives kBusy, and the error's context names these objects.
class Engine {
 public:
  // `random` makes the keys of memory regions and windows.  Peers cannot guess these keys if the
  // seed of `random` came from the kernel.
  Engine(const Limits& limits, Random random, const Personality& personality = kConnectX);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  const Limits& limits() const;

  // ---- commands (driver) ----------------------------------------------------------------------

  Result<PdHandle> create_pd();
  Result<void> destroy_pd(PdHandle pd);

  // Registers the memory [address, address + length) of this process; peers and Sges address it
  // from `iova` on.  `access_flags`: see namespace access; remote write and atomic need local
  // write.  The engine accesses the memory only while it is registered, and checks the registration
  // for every packet.
  Result<MrInfo> register_mr(PdHandle pd, std::uint64_t address, std::uint64_t length,
                             std::uint64_t iova, std::uint32_t access_flags);
  // Registers a region that only Sges may name, at any address and with any length.  The region
  // reads as zeros and discards writes.  Programs use such a region for parts of messages that they
  // do not need.
  Result<MrInfo> register_null_mr(PdHandle pd);
  // Changes the domain, the memory or the access rights of a region, as `what` says (vol1
  // 10.6.3.3.4, 11.2.8.5).  Peers and Sges address new memory from `address` on, or from 0 on with
  // kZeroBased.  The keys stay the same.  If the call fails, nothing changes.  kBusy: windows are
  // bound to the region.
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
  // Returns the memory that `sge` names if it belongs to this domain and grants all rights in
  // `needed`; otherwise kFault.  If `sge` has the length 0, returns an empty span without a check.
  Result<std::span<std::byte>> find_memory(PdHandle pd, const Sge& sge, std::uint32_t needed) const;
  // Installs a function through which drivers and posting threads touch registered memory.  With
  // it, memory that was unmapped causes a protection or access error, as a bad key does.  Without
  // it, memory must stay mapped as long as it is registered.
  void set_memory_guard(MemoryGuard guard);

  // Publishes the memory regions that peers may read or write, and the RC QPs that accept requests.
  // Memory windows are not published.  Null ends the publication; the rows in the old table remain.
  // REQUIRES: the table is empty, and lives until the engine is destroyed or this function is
  // called again.
  void set_access_table(link::AccessTable* table);

  // Sets the P_Key table of a port.  A QP uses the entry at its pkey_index.  The port {0, 1} exists
  // from the beginning, with the default P_Key at index 0.  Other ports exist from this call on.
  // kInvalidArgument: see Ports::set().
  Result<void> set_pkeys(std::span<const Pkey> pkeys, PortId port = {});
  // Sets the number of path bits of the port's LIDs.  kInvalidArgument: no such port, or more
  // than 7.
  Result<void> set_lmc(PortId port, std::uint8_t lmc);

  // Creates a memory window.  Requests of QPs bind and invalidate the window by its key
  // (SendRequest::r_key).  Destroying a bound window revokes the peers' access at once.
  Result<MwInfo> create_mw(PdHandle pd, WindowType type);
  Result<void> destroy_mw(MwHandle mw);

  // Creates a CQ that holds at least `entries` completions.
  Result<CqHandle> create_cq(std::uint32_t entries, std::uint64_t cookie);
  Result<std::uint32_t> cq_capacity(CqHandle cq) const;
  Result<std::uint64_t> cq_cookie(CqHandle cq) const;
  // Changes the capacity to at least `entries`.  kInvalidArgument: the CQ contains more than
  // `entries` completions.
  Result<void> resize_cq(CqHandle cq, std::uint32_t entries);
  Result<void> destroy_cq(CqHandle cq);  // discards its events that were not polled

  Result<AhHandle> create_ah(PdHandle pd, const Path& path);
  Result<void> destroy_ah(AhHandle ah);

  // Creates a queue of receives for several QPs.  A QP takes a receive when a SEND begins, or when
  // the immediate data of a WRITE arrive (vol1 10.2.9).
  Result<SrqHandle> create_srq(PdHandle pd, const SrqCaps& caps, std::uint64_t cookie);
  struct SrqInfo {
    SrqCaps caps{};  // the granted sizes, at least the requested ones
    std::uint32_t limit = 0;
    std::uint64_t cookie = 0;
  };
  Result<SrqInfo> query_srq(SrqHandle srq) const;
  // Requests the event SrqLimitReached, which is raised once when fewer than `limit` receives wait.
  // A limit of 0 cancels the request.
  Result<void> arm_srq(SrqHandle srq, std::uint32_t limit);
  Result<void> resize_srq(SrqHandle srq, std::uint32_t max_wr);
  Result<void> destroy_srq(SrqHandle srq);  // discards its events that were not polled

  // Creates a QP in kReset.  `qpn` is 1 to 0xfffffe and not in use by another QP of this engine.
  // The owner ensures that the QPN was assigned to this process.
  Result<QpHandle> create_qp(const QpInit& init, Qpn qpn);
  // Changes attributes and state as the specification's table of transitions allows, with its
  // required and optional attributes (vol1 11.2.5.2).  kInvalidArgument: the table does not allow
  // this, or a value is invalid.  kNotSupported: the mask contains kCaps.  After an error nothing
  // has changed.
  Result<void> modify_qp(QpHandle qp, const QpAttributes& attributes, std::uint32_t mask, Time now);
  struct QpInfo {
    Qpn qpn{};
    QpInit init{};  // with the capacities that were granted
    QpAttributes attributes{};
    bool sq_draining = false;  // in SQD: some requests that were started are not complete yet
  };
  Result<QpInfo> query_qp(QpHandle qp) const;
  // Destroys the QP and discards its events that were not polled.  kBusy: the QP is attached to
  // multicast groups.
  Result<void> destroy_qp(QpHandle qp);
  // Attaches the QP, which must be UD, to a group.  While the QP is in a state to receive, it gets
  // a copy of each packet to the group that receive() gets, also if a QP of this engine has sent
  // the packet (vol1 10.5, 11.3).  Attaching twice has no further effect.
  Result<void> attach_multicast(QpHandle qp, const Gid& group);
  // Detaches the QP from a group.  kInvalidArgument: the QP is not attached.
  Result<void> detach_multicast(QpHandle qp, const Gid& group);
  // Tells the QP that the connection is established.  After this call the QP reports no
  // kFirstPacket, because the CM no longer needs that event.
  Result<void> mark_established(QpHandle qp);
  Result<QpHandle> find_qp(Qpn qpn) const;

  // ---- direct calls (any thread) --------------------------------------------------------------

  // Posts a send request.  kBadState: the state is before RTS; in kError and kSqe requests are
  // accepted and flushed.  kNoResources: the queue is full.  The completion reports wrong keys and
  // lengths, as with hardware.
  Result<void> post_send(QpHandle qp, const SendRequest& request);
  // Posts `count` requests, or none of them if post_send() would refuse one.  `request_at` returns
  // the request with this index, which is valid until the next call, or an error of its own.
  using SendRequestAt = std::function<Result<SendRequest>(std::size_t)>;
  Result<void> post_send_list(QpHandle qp, std::size_t count, const SendRequestAt& request_at);
  // Returns how many send requests can be posted now.  Only posts make that number smaller.
  Result<std::uint32_t> free_send_slots(QpHandle qp) const;
  // Posts a receive.  kBadState: the state is kReset.  kInvalidArgument: the QP uses an SRQ.
  Result<void> post_recv(QpHandle qp, const RecvRequest& request);
  // Posts a receive to an SRQ.  kNoResources: the queue is full.
  Result<void> post_srq_recv(SrqHandle srq, const RecvRequest& request);
  // Polls completions, and returns the number that was stored in `out`.
  Result<unsigned> poll_cq(CqHandle cq, std::span<WorkCompletion> out);
  // Requests a CqNotify for the next completion.  With `solicited_only`, requests it for the next
  // completion that is solicited or failed.  The caller must poll again after arming, because
  // completions that were added before cause no event.
  Result<void> arm_cq(CqHandle cq, bool solicited_only);
  // Returns true if a posted request waits for the driver to call transmit().
  bool has_work() const;

  // ---- driving (driver) -----------------------------------------------------------------------

  // Handles a packet whose ICRC was checked; the source of its address is the peer.
  void receive(const link::Arrival& arrival, Time now);
  // Handles the record of a WRITE or READ that a peer has carried out by direct access
  // (link/lane.h).
  void receive(const link::ExecutedRecord& executed, Time now);
  // Adds packets to the burst and to lanes until the burst is full, a few hundred packets are sent,
  // or no further packet can be sent now.  Then the caller must send the burst, which may be empty.
  // Returns true if the caller must call again after that.
  bool transmit(link::Burst& burst, Time now);
  // Returns true if the driver may wait for more posts, and send all of them as a batch: there are
  // new posts, they follow packets that the peer has not answered yet, and the newest post of each
  // QP is small.  Returns false when the waiting posts of a QP already fill a batch.
  bool posts_can_wait() const;
  // Sends packets for processes of this host by these lanes from now on.  With null, all packets
  // are added to bursts.  REQUIRES: the lanes live until the engine is destroyed or this function
  // is called again.
  void set_lanes(link::Lanes* lanes);
  // Drops all pointers to this lane.  The QPs that use it choose their lane again with their next
  // packet.  REQUIRES: the owner calls this function before it removes a lane from link::Lanes.
  void detach_lane(const link::Lane& lane);
  // Drops all pointers to lanes.  Each QP chooses its lane again with its next packet.  REQUIRES:
  // the owner calls this function before it removes all lanes from link::Lanes.
  void detach_lanes();
  // Returns true if packets wait for space in a lane.  The next transmit() tries again.
  bool waits_for_lane() const;
  // Makes completions visible to the consumer (Personality::batches_completions).  A driver that
  // delays its packets calls this function.  transmit() also makes completions visible, before it
  // sends packets.
  void publish();
  // Handles the deadlines that have passed.  A call before deadline() has no effect.
  void on_timer(Time now);
  // Returns the time at which to call on_timer(), or kNever.  The time may be earlier than
  // necessary, but never later.
  Time deadline() const;
  std::optional<Event> poll_event();
  // Returns the oldest failure, and removes it.  The caller may ignore failures: the engine stores
  // a few of them, and only counts the others until the caller has removed some.
  std::optional<RequestFailure> poll_failure();

  // ---- diagnostics (driver) -------------------------------------------------------------------

  std::size_t qp_count() const;
  // Writes one row per QP, as far as `out` has space.  Returns the number of rows that were
  // written.
  std::size_t rows(std::span<QpRow> out) const;
  // Returns the current values.  They include the events that posting threads have counted.
  Counters counters() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace verbena::hca
