#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <expected>
#include <string>

// Loads the system's libibverbs and librdmacm at run time, because hosts without an adapter may not
// have these libraries.
namespace verbena::adapter {

// Holds pointers to functions, under their names without the prefix.  The inline functions of
// <infiniband/verbs.h> use the function table of the device, so they need no pointer.
struct Libraries {
  decltype(&::ibv_get_device_list) get_device_list;
  decltype(&::ibv_free_device_list) free_device_list;
  decltype(&::ibv_get_device_name) get_device_name;
  decltype(&::ibv_open_device) open_device;
  decltype(&::ibv_query_device) query_device;
  decltype(&::ibv_query_port) query_port;
  decltype(&::ibv_query_pkey) query_pkey;
  decltype(&::_ibv_query_gid_ex) query_gid_ex;
  decltype(&::ibv_get_async_event) get_async_event;
  decltype(&::ibv_ack_async_event) ack_async_event;
  decltype(&::ibv_alloc_pd) alloc_pd;
  decltype(&::ibv_dealloc_pd) dealloc_pd;
  decltype(&::ibv_reg_mr_iova2) reg_mr;
  decltype(&::ibv_dereg_mr) dereg_mr;
  decltype(&::ibv_create_comp_channel) create_comp_channel;
  decltype(&::ibv_destroy_comp_channel) destroy_comp_channel;
  decltype(&::ibv_create_cq) create_cq;
  decltype(&::ibv_resize_cq) resize_cq;
  decltype(&::ibv_destroy_cq) destroy_cq;
  decltype(&::ibv_get_cq_event) get_cq_event;
  decltype(&::ibv_ack_cq_events) ack_cq_events;
  decltype(&::ibv_create_ah) create_ah;
  decltype(&::ibv_destroy_ah) destroy_ah;
  decltype(&::ibv_create_srq) create_srq;
  decltype(&::ibv_modify_srq) modify_srq;
  decltype(&::ibv_query_srq) query_srq;
  decltype(&::ibv_destroy_srq) destroy_srq;
  decltype(&::ibv_create_qp) create_qp;
  decltype(&::ibv_modify_qp) modify_qp;
  decltype(&::ibv_query_qp) query_qp;
  decltype(&::ibv_destroy_qp) destroy_qp;
  decltype(&::ibv_attach_mcast) attach_mcast;
  decltype(&::ibv_detach_mcast) detach_mcast;

  decltype(&::rdma_get_devices) get_devices;
  decltype(&::rdma_create_event_channel) create_event_channel;
  decltype(&::rdma_destroy_event_channel) destroy_event_channel;
  decltype(&::rdma_create_id) create_id;
  decltype(&::rdma_destroy_id) destroy_id;
  decltype(&::rdma_migrate_id) migrate_id;
  decltype(&::rdma_bind_addr) bind_addr;
  decltype(&::rdma_resolve_addr) resolve_addr;
  decltype(&::rdma_resolve_route) resolve_route;
  decltype(&::rdma_listen) listen;
  decltype(&::rdma_set_option) set_option;
  decltype(&::rdma_init_qp_attr) init_qp_attr;
  decltype(&::rdma_connect) connect;
  decltype(&::rdma_accept) accept;
  decltype(&::rdma_reject) reject;
  decltype(&::rdma_reject_ece) reject_ece;
  decltype(&::rdma_set_local_ece) set_local_ece;
  decltype(&::rdma_get_remote_ece) get_remote_ece;
  decltype(&::rdma_establish) establish;
  decltype(&::rdma_notify) notify;
  decltype(&::rdma_disconnect) disconnect;
  decltype(&::rdma_join_multicast_ex) join_multicast;
  decltype(&::rdma_leave_multicast) leave_multicast;
  decltype(&::rdma_get_cm_event) get_cm_event;
  decltype(&::rdma_ack_cm_event) ack_cm_event;
};

// Loads both libraries.  The text of an error names the missing library or function.
std::expected<Libraries, std::string> load_libraries();

}  // namespace verbena::adapter
