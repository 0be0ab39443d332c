#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

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

struct Pd : ibv_pd {
  vb_handle engine;
};

struct Mr : ibv_mr {
  vb_handle engine;
};

struct CompChannel : ibv_comp_channel {
  vb_handle engine;
};

struct Cq : ibv_cq {
  vb_handle engine;
  std::uint64_t cookie;
  std::uint32_t comp_events_given;  // under the lock of the Cookies
  std::uint32_t async_events_given;
};

struct Ah : ibv_ah {
  vb_handle engine;
};

struct Srq : ibv_srq {
  vb_handle engine;
  std::uint64_t cookie;
  std::uint32_t async_events_given;  // under the lock of the Cookies
};

struct Qp : ibv_qp {
  vb_handle engine;
  std::uint64_t cookie;
  std::uint32_t async_events_given;  // under the lock of the Cookies
  // The rdma_cm_id that moves this QP: programs destroy such a QP with ibv_destroy_qp(), too.
  vb_handle cm_id;
};

inline ibv_qp_state state_of(std::uint32_t state) { return static_cast<ibv_qp_state>(state); }

// The state that programs read in the structure, after somebody else has moved the QP.
inline void refresh_state(Qp& qp) {
  vb_qp_attr attr{};
  vb_qp_init init{};
  if (vb_qp_query(qp.engine, &attr, &init) == 0) qp.state = state_of(attr.qp_state);
}

}  // namespace verbena::abi
