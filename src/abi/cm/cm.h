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
#include "c_api/sockaddr.h"
#include "verbena/c_api.h"

// Defines the connection manager's objects: each is the public structure, followed by private
// members.
namespace verbena::abi {

struct CmChannel : rdma_event_channel {
  vb_handle library_handle;
  // Counts the ids of the channel.  The program counts too, until it destroys the channel.
  std::atomic<std::uint32_t> users{1};
  std::atomic<bool> is_destroyed{false};
  bool was_blocking = true;  // O_NONBLOCK was not set when the channel was destroyed
  std::atomic<std::uint64_t> last_request{0};  // cookie of the id that the last request created
  std::atomic<bool> defers_requests{false};  // the program stores requests and uses their ids later
};

// Describes a multicast group that the id has joined and not left.
struct CmGroup {
  std::uint64_t cookie = 0;
  sockaddr_storage address{};
  socklen_t address_bytes = 0;
  void* context = nullptr;
};

// These are events and flags of rdma-core 60 that Debian's header lacks.  Its enumeration ends
// before these events, so variables of that type must not hold them.
inline constexpr std::uint32_t kAddrInfoResolved = 16;
inline constexpr std::uint32_t kAddrInfoError = 17;
inline constexpr std::uint32_t kUserEvent = 18;
inline constexpr int kResolveBySa = 0x10;   // RAI_SA
inline constexpr int kResolveByDns = 0x20;  // RAI_DNS

struct CmEvent;
struct CmLookup;

struct CmId : rdma_cm_id {
  CmId();
  ~CmId();
  CmId(const CmId&) = delete;
  CmId& operator=(const CmId&) = delete;

  vb_handle library_handle = 0;
  std::uint64_t cookie = 0;
  // A request created this id, and the program has not used it yet.
  std::atomic<bool> is_unused{false};
  // A synchronous id has its own channel.  Each call waits for its event, and stores it in `event`.
  bool is_synchronous = false;
  ibv_sa_path_rec path{};    // route.path_rec points here once the route is known
  vb_handle library_qp = 0;  // the QP that is attached to this id in libverbena
  // These are options of enhanced connection establishment.  The next REQ or REP carries
  // local_ece.  The peer has sent remote_ece.
  ibv_ece local_ece{};
  ibv_ece remote_ece{};
  // A listening id of rdma_create_ep() creates a QP with these attributes for each request.
  std::optional<ibv_qp_init_attr> request_qp;

  std::uint32_t events_delivered = 0;  // guarded by the lock of the EventTargets
  pthread_mutex_t mutex;               // guards the members below
  pthread_cond_t cond;
  std::uint32_t events_filled = 0;          // counts the delivered events that are filled, too
  std::uint32_t events_completed = 0;       // counts the events that the program has acknowledged
  CmEvent* first_unacknowledged = nullptr;  // the list of unacknowledged events, newest first
  // A CONNECT_REQUEST created this id, and the program has not acknowledged that event.
  bool has_unacknowledged_request = false;
  bool is_destroyed = false;  // the memory is freed when all events are acknowledged
  std::vector<CmGroup> groups;
  std::shared_ptr<CmLookup> lookup;  // of the last rdma_resolve_addrinfo(); null with RAI_SA
};

// Represents an event that the program gets.  The event is counted for its `target`: the id that
// received it, which is the listening id for a CONNECT_REQUEST.  Until the event is acknowledged,
// the memory of `target` and `new_id` is not freed, even if the program destroys these ids.
struct CmEvent : rdma_cm_event {
  CmId* target;
  CmId* new_id;  // the id that a CONNECT_REQUEST has created; else null
  pthread_t receiver_thread;
  CmEvent* previous;
  CmEvent* next;
  std::uint8_t private_bytes[sizeof(vb_cm_event::private_data)];
};

EventTargets<CmId>& cm_ids();

inline bool is_datagram(const rdma_cm_id& id) { return id.qp_type == IBV_QPT_UD; }

// ---- functions; an int result is 0 or a positive errno

// Creates an id.  If `library_handle` is not 0, it is the id of a CONNECT_REQUEST in libverbena.
int cm_make_id(rdma_event_channel* channel, void* context, rdma_port_space ps, ibv_qp_type qp_type,
               vb_handle library_handle, CmId*& id);
// Ends one use of the channel.  The last one destroys the channel of libverbena.
void cm_release_channel(CmChannel& channel);
// Frees an id that the program destroys.  First waits until other threads have acknowledged their
// events of the id, because the program may free memory that they use after this call.  Does not
// wait for events of the calling thread.  Waits at most `kHandlerSeconds`, because another thread
// may wait for this one.
void cm_release(CmId& id);

// Waits, for a limited time, until the program uses the id of the last request.  Requests are
// delivered one at a time (see requests.cc).  The function is a cancellation point.
void cm_wait_until_used(CmChannel& channel);
// Records that the program gets the request that created this id.
void cm_request_delivered(CmChannel& channel, CmId& id);
// Records that the program has begun to use the id, or has destroyed it.
void cm_mark_used(CmId& id);

// The fork handlers call these.
void cm_lock_requests();
void cm_unlock_requests(bool in_child);
void cm_forget_devices();
void cm_forget_lookups();

// Asks the subnet administration for the service of this name or number (RAI_SA).  An event reports
// the result.  For a synchronous id, this call waits for the event.  EOPNOTSUPP: `node` is not null
// (rdma-core also refuses this), or the id is not on an InfiniBand port.  EINVAL: the service is
// neither a name nor a number, or the id is not bound to a port.
int cm_find_services(CmId& id, const char* node, const char* service);
// Lists the services that cm_find_services() has found.  ENOENT: there are none.
int cm_list_services(const CmId& id, rdma_addrinfo*& list);
// Updates the public members: addresses, device, default PD, route.
int cm_refresh(CmId& id);
// Attaches the QP in id->qp to the id in libverbena, or detaches the old QP if id->qp is null.
// Programs may change id->qp themselves, to move a QP to another id.
int cm_update_qp(CmId& id);
// Updates the state of the id's QP in the public structure after libverbena has changed it.  Takes
// a cookie, because another thread may destroy the QP or the id meanwhile.
void cm_refresh_qp(std::uint64_t cookie);
// Holds a device that ids of this process share, and the default protection domain of these ids.
struct CmDevice {
  ibv_context* verbs;
  ibv_pd* pd;
};
// Returns the device with this index in the host's list, and opens it on first use.
int cm_get_device(std::uint32_t index, CmDevice& device);

// ---- functions that return 0, or -1 with errno, as the public functions do

// Lists the services of this name or number, for rdma_getaddrinfo().  Asks the subnet
// administration through each active InfiniBand port, until one answers with such a service.  May
// also return an EAI_ error.
int find_services(const char* service, const rdma_addrinfo& hints, rdma_addrinfo*& list);

// Waits for the event of the step that the caller has started.  REQUIRES: the id is synchronous.
// The caller reads `is_synchronous` before it starts the step.  After that, another thread may
// already have destroyed an id that is not synchronous.
int cm_wait_for_event(CmId& id);
// Gets the next event that reports a step of a synchronous id.  Skips events of
// rdma_write_cm_event() and rdma_resolve_addrinfo(), which may be older than the call that made the
// id synchronous.
int cm_get_step_event(rdma_event_channel* channel, rdma_cm_event*& event);

}  // namespace verbena::abi
