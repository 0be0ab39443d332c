#pragma once

#include <infiniband/verbs.h>

// Sets the operations that programs call through a context instead of by name.
namespace verbena::abi {

void set_cq_ops(ibv_context_ops& ops);
void set_qp_ops(ibv_context_ops& ops);
void set_mw_ops(ibv_context_ops& ops);
void set_port_ops(verbs_context& verbs);
void set_srq_ops(verbs_context& verbs);
void set_cq_ex_ops(verbs_context& verbs);
void set_qp_ex_ops(verbs_context& verbs);
void set_domain_ops(verbs_context& verbs);
void set_memory_ops(verbs_context& verbs);

// The fork handlers call these.
void lock_device();
void unlock_device();

inline void set_data_path_ops(ibv_context_ops& ops) {
  set_cq_ops(ops);
  set_qp_ops(ops);
  set_mw_ops(ops);
}

}  // namespace verbena::abi
