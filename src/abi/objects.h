#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "abi/abi.h"
#include "abi/wall_clock.h"
#include "verbena/c_api.h"

// Defines the verbs objects that both drop-in libraries use: each is the public structure that
// programs read, followed by private members.
namespace verbena::abi {

// Debian's provider libraries libmlx5 and libefa compare the pointer behind ibv_device with their
// own operations.  So each device must have such a pointer; its value does not matter.
struct Device {
  ibv_device device;
  const void* ops;
  std::uint64_t node_guid;
  std::uint32_t index;  // the device's index in the host's list
};

// Represents an open device.
struct Context : verbs_context {
  vb_handle library_handle;
};

// Returns the index of the context's device in the host's list.
inline std::uint32_t device_of(const ibv_context* context) {
  return reinterpret_cast<const Device*>(context->device)->index;
}

inline Context& context_of(ibv_context* context) {
  return *static_cast<Context*>(verbs_get_ctx(context));
}

struct Td : ibv_td {
  std::atomic<std::uint32_t> users;  // counts the parent domains that use this thread domain
};

struct Pd : ibv_pd {
  vb_handle library_handle;
  // Counts the parent domains that refer to this domain.  A parent domain also counts the QPs that
  // are created with it, and the CQs.
  std::atomic<std::uint32_t> children;
  // These pointers are null unless this is a parent domain.  A parent domain has the same
  // library_handle as its `parent`.
  Pd* parent;
  Td* td;
};

// `pd_handle` is the library_handle of the protection domain.  The Pd itself may be a parent domain
// that is destroyed before the region or the window.
struct Mr : ibv_mr {
  vb_handle library_handle;
  vb_handle pd_handle;
};

struct Mw : ibv_mw {
  vb_handle library_handle;
  vb_handle pd_handle;
};

// Fills the new binding of a window and its R_Key into a request.
void fill_binding(const ibv_mw_bind_info& info, std::uint32_t rkey, vb_send_wr& to);

struct CompChannel : ibv_comp_channel {
  vb_handle library_handle;
};

// Every CQ supports both ways of polling: the beginning of an ibv_cq_ex has the layout of an
// ibv_cq.
struct Cq : ibv_cq_ex {
  vb_handle library_handle;
  std::uint64_t cookie;
  std::uint32_t comp_events_delivered;  // guarded by the lock of the EventTargets
  std::uint32_t async_events_delivered;
  Pd* domain;             // the parent domain in which the CQ was created, or null
  bool single_threaded;   // the program allows only one thread between start_poll() and end_poll()
  bool is_polling;        // start_poll() was called, and end_poll() was not yet
  std::mutex poll_mutex;  // held while `is_polling`, unless single_threaded
  vb_wc current;          // the completion for read_*()
  WallClock wall_clock;   // measured by start_poll(), if the program reads wall-clock times
};

inline Cq* cq_of(ibv_cq* cq) { return static_cast<Cq*>(reinterpret_cast<ibv_cq_ex*>(cq)); }

struct Ah : ibv_ah {
  vb_handle library_handle;
};

struct Srq : ibv_srq {
  vb_handle library_handle;
  std::uint64_t cookie;
  std::uint32_t async_events_delivered;  // guarded by the lock of the EventTargets
};

class WrBuilder;

// Every QP is an ibv_qp_ex.  Only a QP with a builder has the ibv_wr_*() operations.
struct Qp : ibv_qp_ex {
  Qp();
  ~Qp();
  Qp(const Qp&) = delete;
  Qp& operator=(const Qp&) = delete;

  vb_handle library_handle;
  std::uint64_t cookie;
  std::uint32_t async_events_delivered;  // guarded by the lock of the EventTargets
  Pd* domain;                            // the parent domain in which the QP was created, or null
  // Names the rdma_cm_id that owns this QP, because programs may destroy such a QP with
  // ibv_destroy_qp().
  vb_handle cm_id;
  std::unique_ptr<WrBuilder> builder;
};

inline Qp* qp_of(ibv_qp* qp) { return static_cast<Qp*>(reinterpret_cast<ibv_qp_ex*>(qp)); }

inline std::uint32_t public_handle_of(const Cq& cq) {
  return ibv_cq_ex_to_cq(const_cast<Cq*>(&cq))->handle;
}
inline std::uint32_t public_handle_of(const Qp& qp) { return qp.qp_base.handle; }
template <class Object>
std::uint32_t public_handle_of(const Object& object) {
  return object.handle;
}

// Returns ENOENT if the program has overwritten the public handle of one of these objects, and else
// 0.  The kernel finds the objects of its commands by these handles, so a command must fail then.
// Posting and polling do not check the handles, because they are not commands of an adapter.
template <class... Objects>
int check_handles(const Objects&... objects) {
  const bool all_valid = ((public_handle_of(objects) == low_bits(objects.library_handle)) && ...);
  return all_valid ? 0 : ENOENT;
}

inline ibv_qp_state state_of(std::uint32_t state) { return static_cast<ibv_qp_state>(state); }

// Updates the state in the public structure after the connection manager has changed it.
inline void refresh_state(Qp& qp) {
  vb_qp_attr attr{};
  vb_qp_init init{};
  if (vb_qp_query(qp.library_handle, &attr, &init) == 0) qp.qp_base.state = state_of(attr.qp_state);
}

}  // namespace verbena::abi
