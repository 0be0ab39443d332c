#ifndef VERBENA_C_API_H
#define VERBENA_C_API_H

// Declares the C API of libverbena.so: plain C with versioned symbols and no C++ types.  The
// drop-in libraries and the C++ API call these functions.  So all code of a program shares one
// engine.
//
// Rules for all functions:
//  * int results are 0 or a positive errno value, except for vb_cq_poll().  No function throws.
//  * A handle of 64 bits (index and generation) stands for each object; 0 stands for no object.  A
//    stale or forged handle gives EINVAL, never a crash.
//  * Opcodes, states, statuses, masks and flags have the numbers of <infiniband/verbs.h> and
//    <rdma/rdma_cma.h> (frozen ABI).  Integers are in host order unless the name says `be`.
//  * Any thread may call any function.  vb_channel_next(), vb_async_next() and vb_cm_next_event()
//    wait for events, and are cancellation points.  If the program has set O_NONBLOCK on the
//    descriptor and no event is there, they return EAGAIN at once.
//  * Other functions may wait for the agent.  They wait for no other process unless their comments
//    say so.  Some steps of a connection in an RDMA CM port space do not wait for the agent either:
//    resolving without a given source, connecting, accepting, rejecting, disconnecting.  If the
//    agent refuses such a step (a limit of the host), ADDR_ERROR or CONNECT_ERROR reports the error
//    as its status.  In the thread that takes this event, vb_last_error() returns the error's text.
//  * Destroying an object that other objects use gives EBUSY.  Contexts (vb_context_destroy()) are
//    the exception.

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#ifdef __cplusplus
extern "C" {
#endif

#define VB_API __attribute__((visibility("default")))

typedef uint64_t vb_handle;

// ---- the library ------------------------------------------------------------------------------

// Returns the text of this thread's last error; never null.  It is one line.  If a step of a
// connection has failed, the line names the peer, the step and its duration, as far as they are
// known.
VB_API const char* vb_last_error(void);
// Identifies the build of this library.  Drop-in libraries of another build must refuse to use it.
VB_API const char* vb_build_id(void);

// ---- devices and ports -------------------------------------------------------------------------

// The devices of the host have the indices 0, 1 and so on.  The ports of a device have the numbers
// 1, 2 and so on.  Both numberings stay the same while the agent runs.  A host has one device
// with one port unless it is part of a fabric.
#define VB_PORTS_MAX 2  // no device has more ports

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
  uint8_t state;                // enum ibv_port_state
  uint8_t phys_state;           // 5 LinkUp, 3 Disabled, 2 Polling
  uint8_t max_mtu, active_mtu;  // enum ibv_mtu
  uint8_t active_width, active_speed;
  uint8_t link_layer;    // IBV_LINK_LAYER_ETHERNET, or IBV_LINK_LAYER_INFINIBAND
  uint16_t lid, sm_lid;  // InfiniBand: the port has 2^lmc LIDs, from `lid` on
  uint8_t lmc, sm_sl;
  uint32_t gid_tbl_len, pkey_tbl_len;
  uint32_t max_msg_bytes;
  uint32_t port_cap_flags;
  uint8_t max_vl_num;      // a code: 1, 2, 3, 4, 5 stand for 1, 2, 4, 8, 15 virtual lanes
  uint8_t subnet_timeout;  // InfiniBand: 4.096 us * 2^subnet_timeout
  uint8_t host_alone;  // 1: the port reaches only this host's programs; vb_last_error() tells why
};

struct vb_gid_entry {
  uint8_t raw[16];
  uint32_t index;
  uint32_t interface_index;
  uint32_t in_use;  // 0: the index is empty
};

// These functions connect to the agent, and start it if necessary.
// ENOENT: the list has no such device.
VB_API int vb_device_query(uint32_t device, struct vb_device_attr* attr);
// EINVAL: there is no such device or port.
VB_API int vb_port_query(uint32_t device, uint32_t port, struct vb_port_attr* attr);
// EINVAL: there is no such device or port.  ENOENT: the index is past the end of the table.
VB_API int vb_gid_query(uint32_t device, uint32_t port, uint32_t index, struct vb_gid_entry* entry);
// EINVAL: there is no such device or port, or the index is past the end of the table.
VB_API int vb_pkey_query(uint32_t device, uint32_t port, uint32_t index, uint16_t* pkey);

// A context receives asynchronous events.  Its descriptor is readable exactly while events wait.
// Each event gives an edge (EPOLLET), although older ones are unread.  The events of a QP, CQ or
// SRQ go to the context with which the object was created; they are dropped if that context is 0 or
// destroyed.  Events of a port go to every context of its device and to every context of
// VB_ALL_DEVICES.  Events of the device go to every context. Objects of different contexts can be
// used together, but a QP has the ports of one device only.
#define VB_ALL_DEVICES 0xffffffffu
VB_API int vb_context_create(uint32_t device, vb_handle* context, int* fd);
VB_API int vb_context_destroy(vb_handle context);  // its objects remain usable
struct vb_async_event {
  uint32_t type;          // enum ibv_event_type
  uint64_t cookie;        // the cookie of the QP, CQ or SRQ; 0 for port and device events
  uint32_t device, port;  // the port of a port event; 0 for other events
};
VB_API int vb_async_next(vb_handle context, struct vb_async_event* event);

// ---- protection domains and memory ------------------------------------------------------------

VB_API int vb_pd_create(vb_handle* pd);
VB_API int vb_pd_destroy(vb_handle pd);

// EFAULT: the memory does not exist.  ENOMEM: a limit is reached.  EINVAL: the flags are wrong.
VB_API int vb_mr_register(vb_handle pd, void* address, uint64_t length, uint64_t iova,
                          uint32_t access, vb_handle* mr, uint32_t* lkey, uint32_t* rkey);
// Creates a null region, which covers any address and length: reads give zeros, and writes are
// discarded.  *lkey is for elements of local requests; peers cannot access the region.
VB_API int vb_mr_create_null(vb_handle pd, vb_handle* mr, uint32_t* lkey);
// Changes the attributes that `what` names (enum ibv_rereg_mr_flags); the keys stay the same.
// After an error nothing has changed.  This function and vb_mr_deregister() wait until no peer of
// this host uses the old rights any more.  The wait takes microseconds, unless a signal has stopped
// a peer in the middle of an access.
VB_API int vb_mr_reregister(vb_handle mr, uint32_t what, vb_handle pd, void* address,
                            uint64_t length, uint32_t access);
VB_API int vb_mr_deregister(vb_handle mr);  // EBUSY while memory windows are bound to it

// Creates a memory window.  `type` is enum ibv_mw_type; windows of type 2 are 2B.  Send requests
// bind and invalidate windows, and name them by their R_Key.  Destroying a bound window ends the
// access of peers.
VB_API int vb_mw_create(vb_handle pd, uint32_t type, vb_handle* mw, uint32_t* rkey);
VB_API int vb_mw_destroy(vb_handle mw);

// ---- completion queues ------------------------------------------------------------------------

// Each completion channel has a descriptor, which is readable exactly while events wait.  Each
// event gives an edge (EPOLLET), although older ones are unread.
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
  // sl is only for datagrams.  On Ethernet it is the type of the network header in ConnectX's
  // numbers: 9 is IPv6, 10 is IPv4.  It is 0 if the adapter does not report the type, as with
  // VERBENA_PERSONALITY=rxe.  dlid_path_bits and slid are only for datagrams on InfiniBand.
  uint8_t sl;
  uint8_t dlid_path_bits;
  uint16_t slid;
  uint64_t timestamp_ns;  // CLOCK_MONOTONIC
};

// Creates a completion queue.  vb_channel_next() and vb_async_next() return `cookie` with its
// events.  The caller sets *entries to the wanted number, and the call changes it to the actual
// number.
VB_API int vb_cq_create(vb_handle context, uint32_t* entries, vb_handle channel, uint64_t cookie,
                        vb_handle* cq);
// Changes the capacity.  The caller sets *entries to the wanted number, and the call changes it to
// the actual number.  EINVAL: the queue holds more completions than the wanted number, or the
// wanted number is 0 or too large.
VB_API int vb_cq_resize(vb_handle cq, uint32_t* entries);
// After this call has returned, no event of this CQ comes from its channel.
VB_API int vb_cq_destroy(vb_handle cq);
// Stores at most `max` completions in `wc`, and returns their number, or -errno.  If the CQ is
// empty, the call runs the engine.
VB_API int vb_cq_poll(vb_handle cq, int max, struct vb_wc* wc);
VB_API int vb_cq_arm(vb_handle cq, int solicited_only);

// ---- address handles --------------------------------------------------------------------------

struct vb_ah_attr {
  uint8_t dgid[16];
  uint32_t flow_label;
  uint8_t sgid_index, hop_limit, traffic_class;
  // 1: the packets have a GRH, filled from the members above.  EINVAL: it is 0 on Ethernet.
  uint8_t is_global;
  uint8_t port_num;
  // Only InfiniBand uses these.  EINVAL: there is no destination LID, or the path bits or the
  // service level are too large.
  uint8_t sl, src_path_bits;
  uint16_t dlid;
};
// ETIMEDOUT: the kernel has no route to the destination.  ENETUNREACH: it has no multicast route
// from the GID at sgid_index, which is ::1.
VB_API int vb_ah_create(uint32_t device, vb_handle pd, const struct vb_ah_attr* attr,
                        vb_handle* ah);
VB_API int vb_ah_destroy(vb_handle ah);

// ---- shared receive queues --------------------------------------------------------------------

struct vb_srq_attr {
  uint32_t max_wr, max_sge;
  // IBV_EVENT_SRQ_LIMIT_REACHED is reported once, when fewer receives than `limit` are posted.  0
  // requests no event.
  uint32_t limit;
};
// Creates a shared receive queue.  vb_async_next() returns `cookie` with its events.  The caller
// sets *attr to the wanted numbers, and the call changes them to the actual numbers.  `limit` is
// ignored.
VB_API int vb_srq_create(vb_handle context, vb_handle pd, struct vb_srq_attr* attr, uint64_t cookie,
                         vb_handle* srq);
// `mask` is enum ibv_srq_attr_mask.  EINVAL: the new size is smaller than the number of posted
// receives; nothing has changed.
VB_API int vb_srq_modify(vb_handle srq, const struct vb_srq_attr* attr, uint32_t mask);
VB_API int vb_srq_query(vb_handle srq, struct vb_srq_attr* attr);
VB_API int vb_srq_destroy(vb_handle srq);  // EBUSY while a QP uses it

// ---- queue pairs ------------------------------------------------------------------------------

struct vb_qp_cap {
  uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
};

struct vb_qp_init {
  vb_handle context;
  uint64_t cookie;  // vb_async_next() returns the cookie with the QP's events
  uint32_t device;
  vb_handle pd, send_cq, recv_cq;
  vb_handle srq;         // 0: the QP has its own receive queue
  struct vb_qp_cap cap;  // in: the wanted numbers; out: the actual numbers
  uint32_t type;         // IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD; EOPNOTSUPP: another type
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
  struct vb_ah_attr ah;  // EINVAL: ah.port_num is not the port of the QP
  uint16_t pkey_index;
  uint8_t max_rd_atomic, max_dest_rd_atomic;
  uint8_t min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry;
  // For SQD: en_sqd_async_notify requests IBV_EVENT_SQ_DRAINED; sq_draining is 1 until that event.
  uint8_t en_sqd_async_notify, sq_draining;
  // The alternate path (IBV_QP_ALT_PATH).  After a migration, these members have the path that the
  // QP used before the migration.
  struct vb_ah_attr alt_ah;
  uint8_t alt_port_num, alt_timeout;
  uint16_t alt_pkey_index;
};

VB_API int vb_qp_create(struct vb_qp_init* init, vb_handle* qp, uint32_t* qp_num);
// `mask` is enum ibv_qp_attr_mask, checked against the specification's table (vol1 11.2.5.2).
// ETIMEDOUT: the kernel has no route for the path.
VB_API int vb_qp_modify(vb_handle qp, const struct vb_qp_attr* attr, uint32_t mask);
VB_API int vb_qp_query(vb_handle qp, struct vb_qp_attr* attr, struct vb_qp_init* init);
VB_API int vb_qp_destroy(vb_handle qp);  // EBUSY while the QP is attached to a multicast group

// Attaches a UD QP to a multicast group.  The QP receives a copy of each datagram that is sent to
// this address and reaches the interface; index 0 stands for any interface of the host.  A QP that
// only sends to a group need not be attached.  ENOMEM: a limit of the device or of the host is
// reached (net.ipv4.igmp_max_memberships).
VB_API int vb_qp_attach(vb_handle qp, const uint8_t group[16], uint32_t interface_index);
VB_API int vb_qp_detach(vb_handle qp, const uint8_t group[16]);  // EINVAL: the QP is not attached

struct vb_sge {
  uint64_t addr;
  uint32_t length, lkey;
};

// Makes pages of registered memory present, so that using them does not wait for the kernel.
// EFAULT: an element is not in a region of the domain, or (with `write`) the region does not allow
// writing.
VB_API int vb_mr_prefetch(vb_handle pd, const struct vb_sge* list, uint32_t count, int write);

struct vb_send_wr {
  uint64_t wr_id;
  const struct vb_sge* sg_list;
  uint32_t num_sge;
  uint32_t opcode;      // enum ibv_wr_opcode
  uint32_t send_flags;  // enum ibv_send_flags
  uint32_t imm;         // host order
  uint64_t remote_addr;
  uint32_t rkey;                     // the peer's key, the key to invalidate, or the window's key
  uint64_t compare_add, swap;        // atomics
  uint64_t bind_addr, bind_length;   // IBV_WR_BIND_MW
  uint32_t bind_lkey, bind_access;   // the region's key; enum ibv_access_flags
  uint32_t remote_qpn, remote_qkey;  // UD
  vb_handle ah;                      // UD
};

struct vb_recv_wr {
  uint64_t wr_id;
  const struct vb_sge* sg_list;
  uint32_t num_sge;
};

// Posts a send request.  ENOMEM: the queue is full.  EINVAL: the request or the state is wrong.
// EOPNOTSUPP: the opcode is not implemented.  To post a list, set `more` in all calls but the last
// one.  Only a call without `more` starts the engine.
VB_API int vb_post_send(vb_handle qp, const struct vb_send_wr* wr, int more);
// Posts all requests of an array, or none of them if vb_post_send() would refuse one, with its
// error.  EOPNOTSUPP: over an adapter.
VB_API int vb_post_send_list(vb_handle qp, const struct vb_send_wr* wrs, uint32_t count);
VB_API int vb_post_recv(vb_handle qp, const struct vb_recv_wr* wr);
VB_API int vb_post_srq_recv(vb_handle srq, const struct vb_recv_wr* wr);

// ---- RDMA connection manager ------------------------------------------------------------------

// Each event channel has a descriptor, which is readable exactly while events wait.  Each event
// gives an edge (EPOLLET), although older ones are unread.
VB_API int vb_cm_channel_create(vb_handle* channel, int* fd);
VB_API int vb_cm_channel_destroy(vb_handle channel);  // EBUSY while an id uses it
// Hides the events of an id that a CONNECT_REQUEST created, until the program has accepted the id.
// Accepting fails if the request has ended already.  The kernel's RDMA CM does the same.  UCX
// relies on this behaviour, because such an id has the context of the listener until UCX accepts
// the id.
VB_API int vb_cm_channel_hide_lost_requests(vb_handle channel);

struct vb_cm_addresses {
  struct sockaddr_storage src, dst;
  uint8_t sgid[16], dgid[16];
  uint32_t device, port_num;  // valid if `bound`
  uint32_t sgid_index;
  uint16_t pkey;
  // 1: the id has a device, because src is a specific address.  Then the drop-in library sets
  // rdma_cm_id::verbs.
  uint8_t bound;
  uint8_t resolved_path;  // 1: the path fields below are valid
  uint8_t path_mtu;       // enum ibv_mtu
  uint8_t traffic_class, hop_limit, packet_life_time;
  uint32_t flow_label;
  // InfiniBand: the LIDs of the path; 0 on Ethernet.
  uint16_t slid, dlid;
  uint8_t sl;
  uint8_t is_global;  // 1: packets to the peer have a GRH; always 1 on Ethernet
};

// Creates an id.  `ps` is enum rdma_port_space or VB_PS_NONE; `qp_type` is IBV_QPT_RC or
// IBV_QPT_UD.  Events carry `cookie`.
VB_API int vb_cm_id_create(vb_handle channel, uint32_t ps, uint32_t qp_type, uint64_t cookie,
                           vb_handle* id);
// Destroys an id without waiting for the peer: the DREQ is sent in the background.  Events that
// were not taken are dropped.  New ids of dropped CONNECT_REQUESTs are destroyed, too.
VB_API int vb_cm_id_destroy(vb_handle id);
VB_API int vb_cm_id_set_cookie(vb_handle id, uint64_t cookie);
// Moves the id and its waiting events to another channel.
VB_API int vb_cm_id_migrate(vb_handle id, vb_handle channel);
VB_API int vb_cm_id_addresses(vb_handle id, struct vb_cm_addresses* addresses);
VB_API int vb_cm_bind(vb_handle id, const struct sockaddr* addr);
// Address and route resolution end with an event.  ENETUNREACH: the kernel has no route.  On a
// virtual host, the event reports this error.
VB_API int vb_cm_resolve_addr(vb_handle id, const struct sockaddr* src, const struct sockaddr* dst,
                              int timeout_ms);
VB_API int vb_cm_resolve_route(vb_handle id, int timeout_ms);
// Binds an id, if it is not bound yet, to the IPv4 wildcard and a free port.
VB_API int vb_cm_listen(vb_handle id, int backlog);
// Sets an option of rdma_set_option(3).  RDMA_OPTION_IB_PATH sets the path of an id on InfiniBand,
// after its address was resolved; then ROUTE_RESOLVED follows.  ENOSYS: there is no such option.
// EINVAL: the value has another length than that of the option.
VB_API int vb_cm_set_option(vb_handle id, int level, int optname, const void* value, size_t bytes);

// Attaches a QP to the id.  If `qp` is 0, detaches the QP from the id.  This call moves the QP to
// INIT.  Later, changes of the connection's state move the QP to RTR, RTS and ERR.
VB_API int vb_cm_id_set_qp(vb_handle id, vb_handle qp);
// Returns the attributes for the state attr->qp_state, for programs that change the state of their
// QP themselves.
VB_API int vb_cm_init_qp_attr(vb_handle id, struct vb_qp_attr* attr, uint32_t* mask);

// Describes an alternate path for a connection.  An sgid of zeros stands for no path.
struct vb_cm_path {
  uint8_t sgid[16], dgid[16];
  uint32_t interface_index;          // of the source; 0: the first interface that has sgid
  uint32_t flow_label;               // 20 bits; 0: computed from the QP numbers
  uint8_t hop_limit, traffic_class;  // hop_limit 0 stands for 64
};

struct vb_conn_param {
  const void* private_data;
  uint8_t private_data_len;
  uint8_t responder_resources, initiator_depth;  // 0xff: the most that both sides allow
  uint8_t flow_control, retry_count, rnr_retry_count;
  uint8_t srq;
  uint32_t qp_num;  // used if the id has no QP of its own
  // The vendor (24 bits) and its options for enhanced connection establishment; both are 0 without
  // it.  These members are used only if the id has no QP of its own.
  uint32_t ece_vendor_id, ece_options;
  // ---- only for VB_PS_NONE
  const struct vb_cm_path* alternate;  // connect: an alternate path for the QP, or null
  uint8_t alternate_accepted;          // accept: use the alternate path that the peer has offered
  uint8_t peer_to_peer;                // connect: the peer connects to us at the same time
  uint32_t timeout_ms;                 // connect, accept: the timeout; 0: 30 s, at most 1 h
};
VB_API int vb_cm_connect(vb_handle id, const struct vb_conn_param* param);
VB_API int vb_cm_accept(vb_handle id, const struct vb_conn_param* param);
// `reason` is the reason of the REJ: 28 (rejected by the program; 0 stands for 28, too), or 35 (the
// options of enhanced connection establishment are rejected).
VB_API int vb_cm_reject(vb_handle id, uint32_t reason, const void* private_data,
                        uint8_t private_data_len);
VB_API int vb_cm_establish(vb_handle id);  // after CONNECT_RESPONSE, for an id without a QP
// Tells the CM that the id's QP got its first packet.  EINVAL: the type is not IBV_EVENT_COMM_EST,
// or the id does not accept a connection.
VB_API int vb_cm_notify(vb_handle id, uint32_t ibv_event_type);
// While the connection is being made, only moves the QP to the error state.
VB_API int vb_cm_disconnect(vb_handle id);

// Joins a group with a datagram id that is bound to the device.  MULTICAST_JOIN carries the
// destination for datagrams to the group; MULTICAST_ERROR reports a failure.  If the id has a QP
// and `send_only` is 0, the QP is attached to the group on the id's interface.  An id may join
// several groups.  `group` is an IP multicast address; its port is ignored.  `cookie` must not be
// 0: events carry it, and vb_cm_leave() takes it.
//
// On InfiniBand the join also asks the subnet administration, with or without a QP.  On InfiniBand
// `group` may also be an MGID (AF_IB), or a wildcard: the subnet chooses a group.  MULTICAST_ERROR
// may follow MULTICAST_JOIN: the group has ended or its parameters have changed, and the id has
// left it.  EADDRNOTAVAIL: RDMA_PS_IPOIB has no groups on Ethernet.
VB_API int vb_cm_join(vb_handle id, const struct sockaddr* group, int send_only, uint64_t cookie);
// Leaves the group.  Events of the join that were not taken are dropped.
VB_API int vb_cm_leave(vb_handle id, uint64_t cookie);

struct vb_cm_event {
  uint32_t type;   // enum rdma_cm_event_type
  int32_t status;  // 0 or -errno; REJECTED: the reason; UNREACHABLE: SIDR's status if positive
  vb_handle id;
  uint64_t cookie;   // the cookie of `id`; CONNECT_REQUEST: of the listening id
  vb_handle new_id;  // CONNECT_REQUEST: the id for the new connection, with cookie 0
  uint32_t new_ps, new_qp_type;
  uint8_t private_data[256];
  uint8_t private_data_len;
  uint8_t responder_resources, initiator_depth;
  uint8_t flow_control, retry_count, rnr_retry_count;
  uint8_t srq;
  uint32_t qp_num;
  uint32_t qkey;                        // datagrams: the Q_Key of qp_num
  uint32_t ece_vendor_id, ece_options;  // CONNECT_REQUEST, CONNECT_RESPONSE: of the peer
  // MULTICAST_JOIN: the destination for datagrams to the group.  MULTICAST_ERROR: group.dgid is the
  // group.
  struct vb_ah_attr group;
  uint8_t group_rate;     // the group's rate (enum ibv_rate); 0 on Ethernet
  uint64_t group_cookie;  // the cookie of the join
  uint64_t arg;           // the `arg` of vb_cm_id_write_event()
  // ---- only for VB_PS_NONE
  uint64_t service;             // CONNECT_REQUEST: the service id of the request
  struct vb_cm_path alternate;  // CONNECT_REQUEST, VB_CM_PATH_OFFERED: the peer's alternate path
  uint8_t alternate_accepted;   // CONNECT_RESPONSE: the peer has accepted our alternate path
  uint8_t additional_info_len;  // REJECTED, VB_CM_PATH_ANSWERED
  uint8_t additional_info[72];
};
// Takes the next event.  If it is a failure, vb_last_error() describes it; the text is empty if the
// reason is not known.
VB_API int vb_cm_next_event(vb_handle channel, struct vb_cm_event* event);
// Adds an event of the program to the id's events: RDMA_CM_EVENT_ADDRINFO_RESOLVED (16),
// RDMA_CM_EVENT_ADDRINFO_ERROR (17) or RDMA_CM_EVENT_USER (18), with the given status and arg.
// EINVAL: `type` is another type.  ENOMEM: the event is USER, and too many events of the channel
// are unread (kUnreadEventsMax).  Over an adapter, every call fails with EOPNOTSUPP.
VB_API int vb_cm_id_write_event(vb_handle id, uint32_t type, int32_t status, uint64_t arg);

// ---- services of an InfiniBand subnet ---------------------------------------------------------

// Describes a service that is registered with the subnet administration (SA, vol1 15.2.5.14).
struct vb_service {
  uint64_t service_id;
  uint8_t gid[16];  // of the port; vb_service_add: zeros stand for the port's own GID
  uint16_t pkey;    // vb_service_add: 0 stands for the port's partition
  uint32_t lease_seconds;
  char name[64];     // UTF-8, padded with zeros; a name of 64 bytes has no zero at its end
  uint8_t data[64];  // the service defines its meaning
};
// Selects services by name, by service id, or by both.
struct vb_service_query {
  const char* name;            // or null; at most 64 bytes
  const uint64_t* service_id;  // or null
  int timeout_ms;              // at most 1 h
};

// Asks the SA of the id's port for services.  An id may ask only once.  ADDRINFO_RESOLVED or
// ADDRINFO_ERROR follows.  The error's status is -EADDRNOTAVAIL if there is no such service.  After
// ADDRINFO_RESOLVED, vb_cm_services() returns the services, and vb_cm_resolve_route() resolves the
// path to the first service; vb_cm_resolve_addr() is not needed.  EINVAL: the id is not bound to a
// port, or has asked before.  EOPNOTSUPP: the port is not an InfiniBand port.
VB_API int vb_cm_find_services(vb_handle id, const struct vb_service_query* query);
// Copies at most `max` services, and sets *count to the number of all services.
VB_API int vb_cm_services(vb_handle id, struct vb_service* services, uint32_t max, uint32_t* count);
// Asks the SA of a port, and waits for its answer.  Sets *count as vb_cm_services() does.  If there
// is no such service, the call succeeds with *count 0.
VB_API int vb_services_find(uint32_t device, uint8_t port, const struct vb_service_query* query,
                            struct vb_service* services, uint32_t max, uint32_t* count);
// Registers a service with the SA of a port, and waits until the SA has it.  The agent renews the
// registration before its lease ends, and removes it when the program ends.  EADDRINUSE: a program
// of this host has registered the same service id, GID and P_Key.
VB_API int vb_service_add(uint32_t device, uint8_t port, const struct vb_service* service,
                          uint64_t* registration);
VB_API int vb_service_remove(uint64_t registration);

// ---- fabrics of virtual hosts -----------------------------------------------------------------

// Breaks or repairs a link or a node of a fabric.  The words are those of `verbena fabric fault`:
// {"link", "a", "red", "lossy", "2"}.  A null `fabric` stands for the fabric in VERBENA_FABRIC.
// Without VERBENA_FABRIC, it stands for the only fabric that is up.  `seed` may be null: lossy then
// uses the seed 1, and flapping has fixed periods.  `text` gets the new state as a line for people,
// cut to `text_bytes`; it may be null.  Waits for the fabric for up to 10 seconds.  Needs no
// device.  EINVAL: the words describe no fault, or the fabric has no such link or node.  ENODEV: no
// such fabric is up, or it does not answer.
VB_API int vb_fabric_fault(const char* fabric, const char* const* words, size_t count,
                           const uint64_t* seed, char* text, size_t text_bytes);

// ---- the InfiniBand CM itself -----------------------------------------------------------------

// Ids without a port space use the connection manager of vol1 12 directly.  The calls above work
// for them too, with these differences:
//  * Their addresses are of AF_IB: a GID and a service id.  Any service id is allowed; it has no
//    meaning as a port.  All private data is the program's, up to 92 bytes in a REQ.
//  * An id with a QP also gets CONNECT_RESPONSE.  Then vb_cm_establish_with() changes the state of
//    the QP and sends the RTU.
//  * An id that connects peer to peer may get CONNECT_REQUEST itself, with new_id 0.  Then the
//    program has to accept.
//
// Over an adapter, creating such an id fails with EOPNOTSUPP, because the system's libraries do not
// support it.
#define VB_PS_NONE 0

// These are types of events that enum rdma_cm_event_type does not have.
enum {
  VB_CM_PATH_OFFERED = 32,  // the peer's LAP has arrived
  // The peer's APR has arrived; the event's status is that of the APR.  0: the QP has loaded the
  // path.  -errno: the peer has agreed, but the path could not be loaded.
  VB_CM_PATH_ANSWERED = 33,
  VB_CM_PATH_UNANSWERED = 34,  // no APR has arrived; the paths are unchanged
};

// Holds the data that a program may add to a message.  EINVAL: the data is too long.
struct vb_cm_message_data {
  const void* private_data;
  const void* additional_info;  // REJ, APR: up to 72 bytes
  uint8_t private_data_len, additional_info_len;
};

// Selects the requests that a listener gets: their service id must match the listener's in the bits
// of `mask`, and their private data must match `data` in the bits of `data_mask`.  EADDRINUSE:
// another listener could get the same request, even if it is bound to another GID.  EINVAL: the
// filter would match more than one port of the RDMA CM.  ENOMEM: there are too many different
// masks, or too many listeners that differ only in their data.
struct vb_cm_filter {
  uint64_t mask;
  const void *data, *data_mask;
  uint8_t data_len;  // up to 92 bytes
};
VB_API int vb_cm_listen_for(vb_handle id, int backlog, const struct vb_cm_filter* filter);

// `reason` is 1 to 33 or 35 (vol1 12.6.7.2).
VB_API int vb_cm_reject_with(vb_handle id, uint32_t reason, const struct vb_cm_message_data* data);
VB_API int vb_cm_establish_with(vb_handle id, const struct vb_cm_message_data* data);
VB_API int vb_cm_disconnect_with(vb_handle id, const struct vb_cm_message_data* data);

// Offers the peer an alternate path with a LAP.  The connection's timeout limits the wait for the
// APR.  EBUSY: the last offer is not answered yet.  EOPNOTSUPP: this side accepted the connection;
// only the side that requested the connection may offer paths.
VB_API int vb_cm_load_path(vb_handle id, const struct vb_cm_path* path,
                           const struct vb_cm_message_data* data);
// Answers an offer.  `status` is 0 to 13 (vol1 table 123); with 0 the id's QP loads the path.
VB_API int vb_cm_answer_path(vb_handle id, uint32_t status, const struct vb_cm_message_data* data);

#ifdef __cplusplus
}
#endif

#endif  // VERBENA_C_API_H
