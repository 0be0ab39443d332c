#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "abi/wall_clock.h"
#include "verbena/border.h"

// The verbs objects as both drop-in libraries see them: the public structure that programs read,
// and behind it what is ours.
namespace verbena::abi {

// What Debian's providers expect of every device listed: libmlx5 and libefa compare the pointer
// behind ibv_device with their own operations, so it must be there and may be anything.
struct Device {
  ibv_device device;
  const void* ops;
  std::uint64_t node_guid;
};

// One opening of the device.
struct Context : verbs_context {
  vb_handle library_handle;
};

inline Context& context_of(ibv_context* context) {
  return *static_cast<Context*>(verbs_get_ctx(context));
}

struct Td : ibv_td {
  std::atomic<std::uint32_t> users;  // parent domains
};

struct Pd : ibv_pd {
  vb_handle library_handle;
  std::atomic<std::uint32_t> children;  // parent domains made of it
  // Of a parent domain, which is another name for `parent`, with the same engine handle.
  Pd* parent;
  Td* td;
};

struct Mr : ibv_mr {
  vb_handle library_handle;
};

struct Mw : ibv_mw {
  vb_handle library_handle;
};

// What a window is to be bound to, and the R_Key that it then has, in a request of the border.
void put_binding(const ibv_mw_bind_info& info, std::uint32_t rkey, vb_send_wr& to);

struct CompChannel : ibv_comp_channel {
  vb_handle library_handle;
};

// Every CQ can be polled either way: programs that have asked for an ibv_cq see the part of an
// ibv_cq_ex that both begin with.
struct Cq : ibv_cq_ex {
  vb_handle library_handle;
  std::uint64_t cookie;
  std::uint32_t comp_events_given;  // under the lock of the EventTargets
  std::uint32_t async_events_given;
  Pd* domain;            // the parent domain that it was made in, or null
  bool single_threaded;  // the program keeps other threads away between start_poll and end_poll
  bool polling;          // between them
  std::mutex pollers;    // held between them, unless single_threaded
  vb_wc current;         // what the read_*() read
  WallClock wall_clock;  // measured by start_poll(), if the program reads it
};

inline Cq* cq_of(ibv_cq* cq) { return static_cast<Cq*>(reinterpret_cast<ibv_cq_ex*>(cq)); }

struct Ah : ibv_ah {
  vb_handle library_handle;
};

struct Srq : ibv_srq {
  vb_handle library_handle;
  std::uint64_t cookie;
  std::uint32_t async_events_given;  // under the lock of the EventTargets
};

class WrBuilder;

// Every QP is an ibv_qp_ex; only one with a builder has the ibv_wr_*() operations.
struct Qp : ibv_qp_ex {
  Qp();
  ~Qp();
  Qp(const Qp&) = delete;
  Qp& operator=(const Qp&) = delete;

  vb_handle library_handle;
  std::uint64_t cookie;
  std::uint32_t async_events_given;  // under the lock of the EventTargets
  // The rdma_cm_id that moves this QP: programs destroy such a QP with ibv_destroy_qp(), too.
  vb_handle cm_id;
  std::unique_ptr<WrBuilder> builder;
};

inline Qp* qp_of(ibv_qp* qp) { return static_cast<Qp*>(reinterpret_cast<ibv_qp_ex*>(qp)); }

inline ibv_qp_state state_of(std::uint32_t state) { return static_cast<ibv_qp_state>(state); }

// The state that programs read in the structure, after somebody else has moved the QP.
inline void refresh_state(Qp& qp) {
  vb_qp_attr attr{};
  vb_qp_init init{};
  if (vb_qp_query(qp.library_handle, &attr, &init) == 0) qp.qp_base.state = state_of(attr.qp_state);
}

}  // namespace verbena::abi
