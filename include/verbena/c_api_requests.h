#ifndef VERBENA_C_API_REQUESTS_H
#define VERBENA_C_API_REQUESTS_H

#include "verbena/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

// Declares the part of the C API that submits commands as requests.

// A program may submit commands instead of calling functions of c_api.h.  enum vb_command lists the
// commands, which have the names of the functions.  vb_submit() never waits: when it returns, the
// command is done, or it is pending (EINPROGRESS).  Later, vb_requests_next() or vb_requests_wait()
// takes the request of a pending command, exactly once.  There are no callbacks, so these functions
// may be used at any time and in any thread.
//
// The caller owns the request and its arguments, and must not move or free them until the request
// is taken or cancelled.  Data that the arguments point to (private data, socket addresses) is
// copied.
//
// In this list, a comment names the structure of a command's arguments.  It also holds for the
// commands that follow, up to the next comment.
enum vb_command {
  // VB_OPEN stands for vb_device_query() and vb_port_query() of all ports of the device.
  VB_OPEN = 1,   // vb_open_args
  VB_GID_QUERY,  // vb_gid_args
  VB_PD_CREATE,  // vb_pd_args
  VB_PD_DESTROY,
  VB_MR_REGISTER,  // vb_mr_args
  VB_MR_DEREGISTER,
  VB_CQ_CREATE,  // vb_cq_args
  VB_CQ_DESTROY,
  VB_AH_CREATE,  // vb_ah_args
  VB_AH_DESTROY,
  VB_QP_CREATE,  // vb_qp_args
  VB_QP_MODIFY,
  VB_QP_QUERY,
  VB_QP_DESTROY,
  VB_QP_ATTACH,  // vb_group_args
  VB_QP_DETACH,
  VB_CM_ID_CREATE,  // vb_cm_args
  VB_CM_ID_DESTROY,
  VB_CM_ID_SET_QP,
  VB_CM_BIND,
  VB_CM_RESOLVE_ADDR,
  VB_CM_RESOLVE_ROUTE,
  VB_CM_LISTEN,
  VB_CM_CONNECT,
  VB_CM_ACCEPT,
  VB_CM_REJECT,
  VB_CM_ESTABLISH,
  VB_CM_DISCONNECT,
  VB_CM_LOAD_PATH,
  VB_CM_ANSWER_PATH,
  VB_SRQ_CREATE,  // vb_srq_args
  VB_SRQ_MODIFY,
  VB_SRQ_QUERY,
  VB_SRQ_DESTROY,
  VB_MW_CREATE,  // vb_mw_args
  VB_MW_DESTROY,
  VB_MR_CREATE_NULL,  // vb_mr_args
  VB_MR_REREGISTER,
  VB_MR_PREFETCH,  // vb_prefetch_args
  VB_CQ_RESIZE,    // vb_cq_args
};

// These structures hold the parameters of the functions in c_api.h, with the same names.  The
// command's function defines which members are read and which members are written.
struct vb_open_args {
  uint32_t index;  // of the device
  struct vb_device_attr device;
  struct vb_port_attr ports[VB_PORTS_MAX];  // port n is ports[n - 1]
};
struct vb_gid_args {
  uint32_t device, port, index;
  struct vb_gid_entry entry;
};
struct vb_pd_args {
  vb_handle pd;
};
struct vb_mr_args {
  vb_handle pd;
  void* address;
  uint64_t length, iova;
  uint32_t access;
  vb_handle mr;
  uint32_t lkey, rkey;
  uint32_t what;  // VB_MR_REREGISTER: enum ibv_rereg_mr_flags
};
struct vb_mw_args {
  vb_handle pd;
  uint32_t type;
  vb_handle mw;
  uint32_t rkey;
};
struct vb_prefetch_args {
  vb_handle pd;
  const struct vb_sge* list;
  uint32_t count;
  int32_t write;
};
struct vb_srq_args {
  vb_handle context, pd;
  struct vb_srq_attr attr;
  uint32_t mask;
  uint64_t cookie;
  vb_handle srq;
};
struct vb_cq_args {
  vb_handle context;
  uint32_t entries;
  vb_handle channel;
  uint64_t cookie;
  vb_handle cq;
};
struct vb_ah_args {
  uint32_t device;
  vb_handle pd;
  struct vb_ah_attr attr;
  vb_handle ah;
};
struct vb_qp_args {
  struct vb_qp_init init;
  struct vb_qp_attr attr;
  uint32_t mask;
  vb_handle qp;
  uint32_t qp_num;
};
struct vb_group_args {
  vb_handle qp;
  uint8_t group[16];
  uint32_t interface_index;
};
struct vb_cm_args {
  vb_handle channel;
  uint32_t ps, qp_type;
  uint64_t cookie;
  vb_handle id, qp;
  const struct sockaddr *src, *dst;  // bind uses only src; for resolve_addr, src may be null
  int32_t timeout_ms, backlog;
  const struct vb_conn_param* param;  // reject uses only the private data
  uint32_t reason;                    // reject: the reason; answer_path: the status
  // These are used only for VB_PS_NONE.  If `data` is set, VB_CM_REJECT, VB_CM_ESTABLISH and
  // VB_CM_DISCONNECT work as vb_cm_reject_with(), vb_cm_establish_with() and
  // vb_cm_disconnect_with().
  const struct vb_cm_message_data* data;
  const struct vb_cm_filter* filter;
  const struct vb_cm_path* path;
};

struct vb_request {
  void* user;        // for the caller; the library does not use it
  void* arguments;   // the command's arguments, in and out
  uint32_t command;  // enum vb_command
  int32_t status;    // 0 or errno, once the command is done
  char text[192];    // vb_last_error() of the command, if it has failed
  // The library uses these members while the request is pending.
  struct vb_request* next;
  uint32_t state;
};

// Creates a queue of requests.  *fd is readable exactly while completed requests wait to be taken.
// Each completed request gives an edge (EPOLLET), although older ones wait.
VB_API int vb_requests_create(vb_handle* queue, int* fd);
VB_API int vb_requests_destroy(vb_handle queue);  // EBUSY while it has requests

// Starts the command, and returns its status or EINPROGRESS.
VB_API int vb_submit(vb_handle queue, struct vb_request* request);
// Takes the next completed request; returns null if there is none.  Never waits.
VB_API struct vb_request* vb_requests_next(vb_handle queue);
// Waits until this request is done, and takes it.  REQUIRES: the request is pending, or is done and
// was not taken.
VB_API int vb_requests_wait(vb_handle queue, struct vb_request* request);
// Cancels the request: after this call has returned, the library does not use the request any more.
// A command that was not carried out yet will not be carried out.  Otherwise the object that the
// command created is destroyed.
VB_API int vb_requests_cancel(vb_handle queue, struct vb_request* request);

#ifdef __cplusplus
}
#endif

#endif  // VERBENA_C_API_REQUESTS_H
