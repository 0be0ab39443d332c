#pragma once

#include <infiniband/sa.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "abi/event_targets.h"
#include "border/sockaddr.h"
#include "verbena/border.h"

// The connection manager's objects: the public structure, and behind it what is ours.
namespace verbena::abi {

struct CmChannel : rdma_event_channel {
  vb_handle library_handle;
  std::atomic<bool> destroyed{false};
  bool blocking = true;                        // as it was when it was destroyed
  std::atomic<std::uint64_t> last_request{0};  // cookie of the id that the last request has brought
  std::atomic<bool> hoards{false};  // its program takes requests and leaves them for later
};

// A multicast group that was joined and not left.
struct CmGroup {
  std::uint64_t cookie = 0;
  sockaddr_storage address{};
  socklen_t address_bytes = 0;
  void* context = nullptr;
};

// Events and flags of rdma-core 60, which Debian's header has not yet.  Its enumeration ends before
// these events, and so must variables of that type.
inline constexpr std::uint32_t kAddrInfoResolved = 16;
inline constexpr std::uint32_t kAddrInfoError = 17;
inline constexpr std::uint32_t kUserEvent = 18;
inline constexpr int kResolveBySa = 0x10;  // RAI_SA

struct CmEvent;
struct CmLookup;

struct CmId : rdma_cm_id {
  CmId();
  ~CmId();
  CmId(const CmId&) = delete;
  CmId& operator=(const CmId&) = delete;

  vb_handle library_handle = 0;
  std::uint64_t cookie = 0;
  // Brought by a request, and the program has done nothing with it yet.
  std::atomic<bool> untouched{false};
  // Synchronous: has a channel of its own, and each call waits for its event, kept in `event`.
  bool sync = false;
  ibv_sa_path_rec path{};    // route.path_rec points here once the route is known
  vb_handle library_qp = 0;  // what the engine takes for the QP of this id
  // Enhanced connection establishment: what we say in the next REQ or REP, and what the peer said.
  ibv_ece local_ece{};
  ibv_ece remote_ece{};
  // Of a listening id made by rdma_create_ep(): each request gets such a QP.
  std::optional<ibv_qp_init_attr> request_qp;

  std::uint32_t events_given = 0;  // under the lock of the EventTargets
  pthread_mutex_t mutex;           // guards what follows
  pthread_cond_t cond;
  std::uint32_t events_filled = 0;  // of those given: nobody here works on them any more
  std::uint32_t events_completed = 0;
  CmEvent* held = nullptr;  // those that the program has; a list
  bool named = false;       // by the CONNECT_REQUEST that has brought it, not acknowledged yet
  bool destroyed = false;   // what is left of it is its events'
  std::vector<CmGroup> groups;
  std::shared_ptr<CmLookup> lookup;  // the last rdma_resolve_addrinfo()
};

// An event counts for the id that it came to: a CONNECT_REQUEST for the listening one.  Until it is
// acknowledged the ids that it names are there, also if the program has destroyed them.
struct CmEvent : rdma_cm_event {
  CmId* counted_for;
  CmId* brought;  // by a CONNECT_REQUEST; else null
  pthread_t taker;
  CmEvent* previous;
  CmEvent* next;
  std::uint8_t private_bytes[sizeof(vb_cm_event::private_data)];
};

EventTargets<CmId>& cm_ids();

inline bool is_datagram(const rdma_cm_id& id) { return id.qp_type == IBV_QPT_UD; }

// These give 0 or a positive errno.
// An id made by this library, or (engine != 0) one that a CONNECT_REQUEST has brought.
int cm_make_id(rdma_event_channel* channel, void* context, rdma_port_space ps, ibv_qp_type qp_type,
               vb_handle library_handle, CmId*& id);
// The program has destroyed it, and may free what its other threads use as long as they have an
// event of it: so they are waited for, but the caller's own events are not, nor those that nobody
// acknowledges for `kHandlerSeconds`, as when their thread waits for the caller.
void cm_let_go(CmId& id);

// Requests are given out one at a time where the program waits for them: see cm_requests.cc.
// Waits until the last one is in use, within limits.  A cancellation point.
void cm_await_turn(CmChannel& channel);
void cm_request_given(CmChannel& channel, CmId& id);
// The program has begun to use the id, or has destroyed it.
void cm_touched(CmId& id);

// Around a fork.
void cm_hold_turns();
void cm_release_turns(bool in_child);
void cm_forget_device();
void cm_forget_lookups();
// Brings the public members up to date: addresses, device, default PD, route.
int cm_refresh(CmId& id);
// The engine's view of whose the QP is: programs move one from id to id by writing to id->qp.
int cm_follow_qp(CmId& id);
// The device as all ids of this process share it, with its default protection domain.
struct CmDevice {
  ibv_context* verbs;
  ibv_pd* pd;
};
int cm_device(CmDevice& device);

// These give 0 or -1 with errno, as the public functions do.
// Of a synchronous id: waits for the event of the call just made.  Whether it is one is asked
// before the call: of another, a thread that hears the event may have destroyed it.
int cm_complete(CmId& id);
// Of a synchronous id: the next event of its steps.  What a program has written itself, or looked
// up, before the id became synchronous is passed over.
int cm_next_step(rdma_event_channel* channel, rdma_cm_event*& event);

}  // namespace verbena::abi
