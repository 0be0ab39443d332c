#ifndef VERBENA_BORDER_H
#define VERBENA_BORDER_H

// The border of libverbena.so: plain C, versioned symbols, no C++ type crosses it.  The drop-in
// libraries stand on it, and so does whatever else is loaded into a program, because a program has
// one engine, whoever loads it.
//
// Rules for all functions:
//  * int results are 0 or a positive errno value; nothing of ours unwinds through them.
//  * Objects are handles: 64 bits, index and generation, 0 is none.  A stale or forged handle
//    gives EINVAL, never a crash.
//  * Numbers of opcodes, states, statuses, masks and flags are those of <infiniband/verbs.h> and
//    <rdma/rdma_cma.h> (frozen ABI).  Integers are in host order unless the name says `be`.
//  * Any function may be called from any thread.  Only vb_channel_next(), vb_async_next() and
//    vb_cm_next_event() wait for the world; they are cancellation points and return EAGAIN at once
//    if the caller has set O_NONBLOCK on the descriptor.  The others wait for the agent at most.
//    On a connection's way in an RDMA CM port space (resolving with no source given, connecting,
//    accepting, rejecting, disconnecting) they do not even that: what the agent alone can see (a
//    limit of the host) is the status of ADDR_ERROR or CONNECT_ERROR, and its words are
//    vb_last_error() in the thread that takes the event.
//  * Nothing waits for a peer.  Destroying an object that others stand on gives EBUSY.

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#ifdef __cplusplus
extern "C" {
#endif

#define VB_API __attribute__((visibility("default")))

typedef uint64_t vb_handle;

// ---- the library ------------------------------------------------------------------------------

// What went wrong last in this thread, in one line that names peer, step and time; never null.
VB_API const char* vb_last_error(void);
// Build identity of this library: a drop-in of another build must refuse to work with it.
VB_API const char* vb_build_id(void);

// ---- device and port --------------------------------------------------------------------------

struct vb_device_attr {
  char name[64];  // "verbena0"
  char fw_ver[64];
  uint64_t node_guid;
  uint64_t sys_image_guid;
  uint64_t max_mr_bytes;
  uint32_t vendor_id, vendor_part_id, hw_ver;
  uint32_t max_qp, max_qp_wr, max_sge, max_sge_rd, max_inline;
  uint32_t max_cq, max_cqe, max_mr, max_mw, max_pd, max_ah, max_srq;
  uint32_t max_mcast_grp, max_mcast_qp_attach;
  uint32_t max_qp_rd_atom, max_qp_init_rd_atom, max_res_rd_atom;
  uint32_t atomic_cap;  // enum ibv_atomic_cap
  uint8_t local_ca_ack_delay;
  uint8_t phys_port_count;
};

struct vb_port_attr {
  uint8_t state;                // IBV_PORT_ACTIVE or IBV_PORT_DOWN
  uint8_t phys_state;           // 5 LinkUp, 3 Disabled
  uint8_t max_mtu, active_mtu;  // enum ibv_mtu
  uint8_t active_width, active_speed;
  uint8_t link_layer;  // IBV_LINK_LAYER_ETHERNET
  uint32_t gid_tbl_len, pkey_tbl_len;
  uint32_t max_msg_bytes;
  uint32_t port_cap_flags;
};

struct vb_gid_entry {
  uint8_t raw[16];
  uint32_t index;
  uint32_t interface_index;
  uint32_t in_use;  // 0: the index is empty
};

// These connect to the agent, which is started if there is none.
VB_API int vb_device_query(struct vb_device_attr* attr);
VB_API int vb_port_query(struct vb_port_attr* attr);
VB_API int vb_gid_query(uint32_t index, struct vb_gid_entry* entry);  // ENOENT past the table
VB_API int vb_pkey_query(uint32_t index, uint16_t* pkey);

// A context is one opening of the device: it has asynchronous events of its own, with a descriptor,
// which is level-triggered POLLIN exactly while events wait.  The events of a QP, CQ or SRQ come to
// the context that it was made with (0, or one that is closed: to nobody); those of the port and
// the device come to every context.  All objects can be used with all others.
VB_API int vb_context_create(vb_handle* context, int* fd);
VB_API int vb_context_destroy(vb_handle context);  // objects made with it stay
struct vb_async_event {
  uint32_t type;    // enum ibv_event_type
  uint64_t cookie;  // of the QP, CQ or SRQ concerned; 0 for port and device events
};
VB_API int vb_async_next(vb_handle context, struct vb_async_event* event);

// ---- protection domains and memory ------------------------------------------------------------

VB_API int vb_pd_create(vb_handle* pd);
VB_API int vb_pd_destroy(vb_handle pd);

// EFAULT if the memory is not there, ENOMEM past a limit, EINVAL for bad flags.
VB_API int vb_mr_register(vb_handle pd, void* address, uint64_t length, uint64_t iova,
                          uint32_t access, vb_handle* mr, uint32_t* lkey, uint32_t* rkey);
// At any address and of any length: zeros come out of it, and what goes in is gone.  *lkey is for
// elements; peers cannot name it.
VB_API int vb_mr_create_null(vb_handle pd, vb_handle* mr, uint32_t* lkey);
// Changes what `what` (enum ibv_rereg_mr_flags) names; the keys stay.  After an error nothing has
// changed.
VB_API int vb_mr_reregister(vb_handle mr, uint32_t what, vb_handle pd, void* address,
                            uint64_t length, uint32_t access);
VB_API int vb_mr_deregister(vb_handle mr);  // EBUSY while memory windows are bound to it

// `type` is enum ibv_mw_type; a type 2 window is a 2B.  Windows are bound and invalidated by send
// requests, which name them by their R_Key.  Destroying a bound one ends what peers may do by it.
VB_API int vb_mw_create(vb_handle pd, uint32_t type, vb_handle* mw, uint32_t* rkey);
VB_API int vb_mw_destroy(vb_handle mw);

// ---- completion queues ------------------------------------------------------------------------

// Completion channel: *fd is an own descriptor, level-triggered POLLIN exactly while events wait.
VB_API int vb_channel_create(vb_handle* channel, int* fd);
VB_API int vb_channel_destroy(vb_handle channel);  // EBUSY while a CQ uses it
VB_API int vb_channel_next(vb_handle channel, uint64_t* cq_cookie);

struct vb_wc {
  uint64_t wr_id;
  uint32_t status, opcode;  // enum ibv_wc_status, ibv_wc_opcode
  uint32_t vendor_err, byte_len;
  uint32_t imm;  // host order
  uint32_t invalidated_rkey;
  uint32_t qp_num, src_qp;
  uint32_t wc_flags;
  uint16_t pkey_index;
  uint8_t sl;  // of a datagram, where adapters say by it what network packet it came in
  uint8_t reserved;
  uint64_t timestamp_ns;  // CLOCK_MONOTONIC
};

// `cookie` comes back from vb_channel_next() and vb_async_next().  *entries in: wanted, out: given.
VB_API int vb_cq_create(vb_handle context, uint32_t* entries, vb_handle channel, uint64_t cookie,
                        vb_handle* cq);
// *entries in: wanted, out: given.  EINVAL: more completions than wanted are in it.
VB_API int vb_cq_resize(vb_handle cq, uint32_t* entries);
// After return no event of this CQ will come out of its channel any more.
VB_API int vb_cq_destroy(vb_handle cq);
// How many completions were stored, or -errno.  Drives the engine when the CQ is empty.
VB_API int vb_cq_poll(vb_handle cq, int max, struct vb_wc* wc);
VB_API int vb_cq_arm(vb_handle cq, int solicited_only);

// ---- address handles --------------------------------------------------------------------------

struct vb_ah_attr {
  uint8_t dgid[16];
  uint32_t flow_label;
  uint8_t sgid_index, hop_limit, traffic_class;
  uint8_t sl;
};
VB_API int vb_ah_create(vb_handle pd, const struct vb_ah_attr* attr, vb_handle* ah);
VB_API int vb_ah_destroy(vb_handle ah);

// ---- shared receive queues --------------------------------------------------------------------

struct vb_srq_attr {
  uint32_t max_wr, max_sge;
  uint32_t limit;  // fewer receives than that wait: IBV_EVENT_SRQ_LIMIT_REACHED, once; 0: never
};
// `cookie` comes back from vb_async_next().  *attr in: wanted, out: given; its limit does not
// count.
VB_API int vb_srq_create(vb_handle context, vb_handle pd, struct vb_srq_attr* attr, uint64_t cookie,
                         vb_handle* srq);
// `mask` as enum ibv_srq_attr_mask.  EINVAL and nothing changed: more receives than that stand
// there.
VB_API int vb_srq_modify(vb_handle srq, const struct vb_srq_attr* attr, uint32_t mask);
VB_API int vb_srq_query(vb_handle srq, struct vb_srq_attr* attr);
VB_API int vb_srq_destroy(vb_handle srq);  // EBUSY while a QP uses it

// ---- queue pairs ------------------------------------------------------------------------------

struct vb_qp_cap {
  uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
};

struct vb_qp_init {
  vb_handle context;
  uint64_t cookie;  // comes back from vb_async_next()
  vb_handle pd, send_cq, recv_cq;
  vb_handle srq;         // 0: receives of its own
  struct vb_qp_cap cap;  // in: wanted, out: given
  uint32_t type;         // IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD; others EOPNOTSUPP
  uint32_t sq_sig_all;
};

struct vb_qp_attr {
  uint32_t qp_state, cur_qp_state;
  uint32_t path_mtu;  // enum ibv_mtu
  uint32_t path_mig_state;
  uint32_t qkey;
  uint32_t rq_psn, sq_psn;
  uint32_t dest_qp_num;
  uint32_t qp_access_flags;
  struct vb_qp_cap cap;
  struct vb_ah_attr ah;
  uint8_t ah_is_global;
  uint16_t pkey_index;
  uint8_t max_rd_atomic, max_dest_rd_atomic;
  uint8_t min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry;
  uint8_t en_sqd_async_notify, sq_draining;  // SQD: to be told when it is drained; it is not yet
  // The alternate path (IBV_QP_ALT_PATH); after a migration the one that was left.
  struct vb_ah_attr alt_ah;
  uint8_t alt_ah_is_global, alt_port_num, alt_timeout;
  uint16_t alt_pkey_index;
};

VB_API int vb_qp_create(struct vb_qp_init* init, vb_handle* qp, uint32_t* qp_num);
// Masks as enum ibv_qp_attr_mask; checked against the specification's table (vol1 11.2.5.2).
VB_API int vb_qp_modify(vb_handle qp, const struct vb_qp_attr* attr, uint32_t mask);
VB_API int vb_qp_query(vb_handle qp, struct vb_qp_attr* attr, struct vb_qp_init* init);
VB_API int vb_qp_destroy(vb_handle qp);  // EBUSY while it is attached to a multicast group

// From now on a UD QP gets a copy of what is sent to the multicast group whose address this is, and
// which reaches the interface; 0: any interface of the host.  Sending to a group needs none of it.
// ENOMEM: a limit, of the device or of the host (net.ipv4.igmp_max_memberships).
VB_API int vb_qp_attach(vb_handle qp, const uint8_t group[16], uint32_t interface_index);
VB_API int vb_qp_detach(vb_handle qp, const uint8_t group[16]);  // EINVAL: not attached

struct vb_sge {
  uint64_t addr;
  uint32_t length, lkey;
};

// Asks for the pages of registered memory, so that using them does not wait for the kernel. EFAULT:
// an element names no memory of the domain, or none with the right to write it that `write` wants.
VB_API int vb_mr_prefetch(vb_handle pd, const struct vb_sge* list, uint32_t count, int write);

struct vb_send_wr {
  uint64_t wr_id;
  const struct vb_sge* sg_list;
  uint32_t num_sge;
  uint32_t opcode;      // enum ibv_wr_opcode
  uint32_t send_flags;  // enum ibv_send_flags
  uint32_t imm;         // host order
  uint64_t remote_addr;
  uint32_t rkey;  // of the peer; or to be invalidated; or the new one of the window to be bound
  uint64_t compare_add, swap;        // atomics
  uint64_t bind_addr, bind_length;   // IBV_WR_BIND_MW
  uint32_t bind_lkey, bind_access;   // the region's; enum ibv_access_flags
  uint32_t remote_qpn, remote_qkey;  // UD
  vb_handle ah;                      // UD
};

struct vb_recv_wr {
  uint64_t wr_id;
  const struct vb_sge* sg_list;
  uint32_t num_sge;
};

// How many send requests there is room for.
VB_API int vb_qp_send_room(vb_handle qp, uint32_t* room);

// ENOMEM: the queue is full.  EINVAL: bad request or state.  EOPNOTSUPP: opcode not built.
// A list is posted with `more` set on all but its last request, which starts the engine.
VB_API int vb_post_send(vb_handle qp, const struct vb_send_wr* wr, int more);
VB_API int vb_post_recv(vb_handle qp, const struct vb_recv_wr* wr);
VB_API int vb_post_srq_recv(vb_handle srq, const struct vb_recv_wr* wr);

// ---- RDMA connection manager ------------------------------------------------------------------

// Event channel: *fd is an own descriptor, level-triggered POLLIN exactly while events wait.
VB_API int vb_cm_channel_create(vb_handle* channel, int* fd);
VB_API int vb_cm_channel_destroy(vb_handle channel);  // EBUSY while an id uses it
// What happens to an id that a CONNECT_REQUEST brought is not told here until the program accepts
// it; if it is over by then, accepting fails.  So does the kernel's RDMA CM, and programs written
// for it take the context of such an id for their listener's (UCX's server does).
VB_API int vb_cm_channel_hide_lost_requests(vb_handle channel);

struct vb_cm_addresses {
  struct sockaddr_storage src, dst;
  uint8_t sgid[16], dgid[16];
  uint32_t sgid_index;
  uint16_t pkey;
  uint8_t bound;          // 1: on a device (src is a specific address), so id->verbs is set
  uint8_t resolved_path;  // 1: the path fields below are valid
  uint8_t path_mtu;       // enum ibv_mtu
  uint8_t traffic_class, hop_limit, packet_life_time;
  uint32_t flow_label;
};

// `ps` is enum rdma_port_space or VB_PS_NONE, `qp_type` IBV_QPT_RC or IBV_QPT_UD.  `cookie` comes
// with events.
VB_API int vb_cm_id_create(vb_handle channel, uint32_t ps, uint32_t qp_type, uint64_t cookie,
                           vb_handle* id);
// Never waits for the peer: the goodbye goes out on its own.  Events not yet taken are dropped,
// with the requests (new ids) that they carry.
VB_API int vb_cm_id_destroy(vb_handle id);
VB_API int vb_cm_id_set_cookie(vb_handle id, uint64_t cookie);
// Moves the id and its waiting events.
VB_API int vb_cm_id_migrate(vb_handle id, vb_handle channel);
VB_API int vb_cm_id_addresses(vb_handle id, struct vb_cm_addresses* addresses);
VB_API int vb_cm_bind(vb_handle id, const struct sockaddr* addr);
// Address and route resolution answer with events.
VB_API int vb_cm_resolve_addr(vb_handle id, const struct sockaddr* src, const struct sockaddr* dst,
                              int timeout_ms);
VB_API int vb_cm_resolve_route(vb_handle id, int timeout_ms);
VB_API int vb_cm_listen(vb_handle id, int backlog);
VB_API int vb_cm_set_option(vb_handle id, int level, int optname, const void* value, size_t bytes);

// Gives the id a QP (0 takes it away): the QP goes to INIT now, and to RTR, RTS and ERR as the
// connection does.
VB_API int vb_cm_id_set_qp(vb_handle id, vb_handle qp);
// The attributes for a transition to attr->qp_state, for programs that move their QP themselves.
VB_API int vb_cm_init_qp_attr(vb_handle id, struct vb_qp_attr* attr, uint32_t* mask);

// Another path for a connection; no source: none.
struct vb_cm_path {
  uint8_t sgid[16], dgid[16];
  uint32_t interface_index;          // of the source; 0: the first that has it
  uint32_t flow_label;               // 20 bits; 0: made of the QP numbers
  uint8_t hop_limit, traffic_class;  // hop limit 0: 64
};

struct vb_conn_param {
  const void* private_data;
  uint8_t private_data_len;
  uint8_t responder_resources, initiator_depth;  // 0xff: the most that both sides allow
  uint8_t flow_control, retry_count, rnr_retry_count;
  uint8_t srq;
  uint32_t qp_num;  // used if the id has no QP of its own
  // Enhanced connection establishment: vendor (24 bits) and its options; 0 and 0: nothing.  Said if
  // the id has no QP of its own.
  uint32_t ece_vendor_id, ece_options;
  // ---- of VB_PS_NONE only
  const struct vb_cm_path* alternate;  // connect: another path for the QP, or null
  uint8_t alternate_accepted;          // accept: the peer's other path is taken
  uint8_t peer_to_peer;                // connect: the peer connects to us at the same time
  uint32_t patience_ms;                // connect, accept: how long to try; 0: 30 s, at most 1 h
};
VB_API int vb_cm_connect(vb_handle id, const struct vb_conn_param* param);
VB_API int vb_cm_accept(vb_handle id, const struct vb_conn_param* param);
// `reason` is that of the REJ: 28 (or 0), the program's, or 35, about enhanced connection
// establishment.
VB_API int vb_cm_reject(vb_handle id, uint32_t reason, const void* private_data,
                        uint8_t private_data_len);
VB_API int vb_cm_establish(vb_handle id);  // after CONNECT_RESPONSE, for an id without a QP
VB_API int vb_cm_notify(vb_handle id, uint32_t ibv_event_type);
VB_API int vb_cm_disconnect(vb_handle id);

// Of an id for datagrams that is bound to the device: MULTICAST_JOIN says where to send to, or
// MULTICAST_ERROR comes.  If the id has a QP, and unless `send_only`, the QP is attached to the
// group on the id's interface; it may be so to several.  `group` is an IP multicast address (its
// port means nothing); `cookie`, not 0, comes with the events, and names the join.
VB_API int vb_cm_join(vb_handle id, const struct sockaddr* group, int send_only, uint64_t cookie);
// Events of the join that were not taken are dropped.
VB_API int vb_cm_leave(vb_handle id, uint64_t cookie);

struct vb_cm_event {
  uint32_t type;   // enum rdma_cm_event_type
  int32_t status;  // REJECTED: the reason; UNREACHABLE: SIDR's status, if positive; else -errno
  vb_handle id;
  uint64_t cookie;   // of `id`; for CONNECT_REQUEST of the listening id
  vb_handle new_id;  // CONNECT_REQUEST only: the id of the connection to be, cookie 0
  uint32_t new_ps, new_qp_type;
  uint8_t private_data[256];
  uint8_t private_data_len;
  uint8_t responder_resources, initiator_depth;
  uint8_t flow_control, retry_count, rnr_retry_count;
  uint8_t srq;
  uint32_t qp_num;
  uint32_t qkey;                        // datagrams: of qp_num
  uint32_t ece_vendor_id, ece_options;  // CONNECT_REQUEST and its answer: the peer's
  uint8_t group[16];                    // MULTICAST_JOIN, MULTICAST_ERROR: the address
  uint64_t group_cookie;                // of the join
  uint64_t arg;                         // of vb_cm_id_write_event()
  // ---- of VB_PS_NONE only
  uint64_t service;             // CONNECT_REQUEST: the service id that is asked for
  struct vb_cm_path alternate;  // CONNECT_REQUEST, VB_CM_PATH_OFFERED: the peer's other path
  uint8_t alternate_accepted;   // CONNECT_RESPONSE: ours
  uint8_t additional_info_len;  // REJECTED, VB_CM_PATH_ANSWERED
  uint8_t additional_info[72];
};
// After a failure vb_last_error() says what happened, in words; it is empty if that is not known.
VB_API int vb_cm_next_event(vb_handle channel, struct vb_cm_event* event);
// Puts an event of the program's own among the id's: RDMA_CM_EVENT_ADDRINFO_RESOLVED or _ERROR, or
// RDMA_CM_EVENT_USER (16, 17, 18), with its own status and arg.  EINVAL: another type.  ENOMEM: so
// many events of its channel have not been read that no more USER is taken (kUnreadEventsMax).
// EOPNOTSUPP: over an adapter, whatever is asked.
VB_API int vb_cm_id_write_event(vb_handle id, uint32_t type, int32_t status, uint64_t arg);

// ---- the InfiniBand CM itself -----------------------------------------------------------------

// Ids without a port space: vol1 12 as it stands.  The calls above are theirs as well, with these
// differences:
//  * They are named by GID and any service id: addresses are of AF_IB, whose service id is all that
//    counts of it, and private data is all theirs, up to 92 bytes of a REQ.
//  * CONNECT_RESPONSE comes also to an id with a QP; vb_cm_establish_with() moves the QP, and sends
//    the RTU.
//  * One that connects peer to peer may get CONNECT_REQUEST itself, with new_id 0: it is to accept.
// EOPNOTSUPP over an adapter: the system's libraries have nothing of this.
#define VB_PS_NONE 0

// Types of events that enum rdma_cm_event_type has not.
enum {
  VB_CM_PATH_OFFERED = 32,  // by the peer's LAP
  // By its APR, whose status is the event's.  0: the QP has the path; -errno: the peer has agreed,
  // and the path could not be loaded.
  VB_CM_PATH_ANSWERED = 33,
  VB_CM_PATH_UNANSWERED = 34,  // the connection stays with the path that it has
};

// What a message has room for besides its numbers.  Too much is EINVAL.
struct vb_cm_words {
  const void* private_data;
  const void* additional_info;  // REJ, APR: up to 72 bytes
  uint8_t private_data_len, additional_info_len;
};

// Which requests a listener wants: service ids that are as its own where `mask` is set, and private
// data that is as `data` where `data_mask` is set.  No request is for two, whatever GIDs they are
// bound to: EADDRINUSE.  EINVAL: it would hear of more than one port of the RDMA CM.  ENOMEM: a
// limit, of masks or of listeners that only their data tells apart.
struct vb_cm_filter {
  uint64_t mask;
  const void *data, *data_mask;
  uint8_t data_len;  // up to 92 bytes
};
VB_API int vb_cm_listen_for(vb_handle id, int backlog, const struct vb_cm_filter* filter);

// `reason` is 1 to 33 or 35 (vol1 table 108).
VB_API int vb_cm_reject_with(vb_handle id, uint32_t reason, const struct vb_cm_words* words);
VB_API int vb_cm_establish_with(vb_handle id, const struct vb_cm_words* words);
VB_API int vb_cm_disconnect_with(vb_handle id, const struct vb_cm_words* words);

// Offers another path for the QP, by LAP, for as long as the connection was tried for.  EBUSY: the
// last one was not answered yet.  EOPNOTSUPP: only the side that asked for the connection may.
VB_API int vb_cm_load_path(vb_handle id, const struct vb_cm_path* path,
                           const struct vb_cm_words* words);
// `status` is 0 to 13 (vol1 table 123); with 0 the id's QP has the path from now on.
VB_API int vb_cm_answer_path(vb_handle id, uint32_t status, const struct vb_cm_words* words);

#ifdef __cplusplus
}
#endif

#endif  // VERBENA_BORDER_H
