#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/handle.h"
#include "base/strong.h"
#include "base/time.h"
#include "cm/types.h"
#include "mad/mad.h"

// Values of the RDMA CM that programs see.  Those in the first part cross to programs by ipc: plain
// structs of integers, arrays and the strong numbers of base.
namespace verbena::rdmacm {

class Id;
using IdHandle = Handle<Id>;
using Owner = std::uint64_t;  // a client of the host, as node names it

// ---- Values that ipc carries

// An address and a port.  IPv4 stands as ::ffff:a.b.c.d, and its wildcard as ::ffff:0.0.0.0.
struct SocketAddress {
  Gid ip{};
  std::uint16_t port{};
  std::uint32_t scope{};  // IPv6 link-local: interface index
  std::uint8_t family{};  // 4, 6, or 0 for "not set"
  // AF_IB: named by GID and service id, whose last 16 bits are `port`.  Ids of both kinds share the
  // ports, but for those without a port space.  Requests to one of these have no header before the
  // program's private data.
  bool by_gid{};
  ServiceId service{};

  friend bool operator==(const SocketAddress&, const SocketAddress&) = default;
};

// None: ids of the InfiniBand CM itself.  They are named by GID and by any service id, and have all
// that its messages have; the rest here is for RDMA CM ids as well.
inline constexpr std::uint16_t kPortSpaceNone = 0;
inline constexpr std::uint16_t kPortSpaceTcp = 0x0106;
inline constexpr std::uint16_t kPortSpaceUdp = 0x0111;
inline constexpr std::uint16_t kPortSpaceIb = 0x013f;

inline constexpr std::uint32_t kChoosePsn = 0xffffffff;

// Of all QPs for datagrams whose ids have IP addresses, and of their multicast groups.
inline constexpr std::uint32_t kDatagramQkey = 0x01234567;

// enum ibv_qp_type
inline constexpr std::uint8_t kQpTypeRc = 2;
inline constexpr std::uint8_t kQpTypeUd = 4;

// Ids of one program, those that requests have brought among them.
inline constexpr std::uint32_t kIdsPerOwnerMax = 32768;

// kNotSupported: no such port space, or none with such QPs.
Result<void> check_kind(std::uint32_t port_space, std::uint32_t qp_type);

// Sizes of private data that programs may give, and that events report (zero padded).
inline constexpr std::size_t kConnectPrivateBytes = 56;
inline constexpr std::size_t kAcceptPrivateBytes = 196;
inline constexpr std::size_t kConnectDatagramPrivateBytes = 180;
inline constexpr std::size_t kConnectByGidPrivateBytes = 92;
inline constexpr std::size_t kConnectDatagramByGidPrivateBytes = 216;
inline constexpr std::size_t kAcceptDatagramPrivateBytes = 136;
inline constexpr std::size_t kRejectPrivateBytes = 148;
inline constexpr std::size_t kEstablishPrivateBytes = 224;
inline constexpr std::size_t kDisconnectPrivateBytes = 220;
inline constexpr std::size_t kPathAnswerPrivateBytes = 148;
inline constexpr std::size_t kAdditionalInfoBytes = 72;  // of REJ and APR

// Of a REJ: what programs may say.
inline constexpr std::uint16_t kRejectConsumer = 28;
inline constexpr std::uint16_t kRejectVendorOption = 35;
inline constexpr std::uint16_t kRejectReasonMax = 33;  // without a port space: any up to it, and 35

// What a path record says, computed (RoCE has no SA).
struct PathInfo {
  Gid source{};
  Gid destination{};
  std::uint32_t interface {};
  std::uint32_t sgid_index{};
  std::uint32_t flow_label{};  // 20 bits
  std::uint16_t pkey{0xffff};
  std::uint8_t mtu{};               // 1 = 256 bytes .. 5 = 4096
  std::uint8_t packet_life_time{};  // timeout code
  std::uint8_t hop_limit{64};
  std::uint8_t traffic_class{};

  friend bool operator==(const PathInfo&, const PathInfo&) = default;
};

// struct rdma_conn_param.  In an event: what the peer said, from our point of view (its initiator
// depth is the responder resources that we need).
struct ConnParam {
  std::array<std::byte, 224> private_data{};
  std::uint8_t private_data_bytes{};
  std::uint8_t responder_resources{};
  std::uint8_t initiator_depth{};
  std::uint8_t flow_control{};
  std::uint8_t retry_count{};
  std::uint8_t rnr_retry_count{};
  std::uint8_t srq{};
  std::uint32_t qpn{};
  std::uint32_t psn{kChoosePsn};  // our starting PSN; in an event the peer's
  std::uint32_t qkey{};           // datagrams: in an event the peer's
  // Enhanced connection establishment, see cm::Ece; in an event the peer's.
  std::uint32_t ece_vendor_id{};
  std::uint32_t ece_options{};
  // ---- without a port space only
  // Another path that the QP may migrate to; no source: none.  What counts are GIDs, flow label,
  // traffic class and hop limit.  In CONNECT_REQUEST the peer's.
  PathInfo alternate{};
  bool alternate_accepted{};  // accept(), CONNECT_RESPONSE: the QP has it, or the peer's
  bool peer_to_peer{};        // connect(): see cm::ConnectRequest
  Duration patience{};        // how long to try; 0: as long as the host does

  friend bool operator==(const ConnParam&, const ConnParam&) = default;
};

// The numbers of enum rdma_cm_event_type.
enum class EventKind : std::uint8_t {
  kAddrResolved = 0,
  kAddrError = 1,
  kRouteResolved = 2,
  kRouteError = 3,
  kConnectRequest = 4,
  kConnectResponse = 5,
  kConnectError = 6,
  kUnreachable = 7,
  kRejected = 8,
  kEstablished = 9,
  kDisconnected = 10,
  kDeviceRemoval = 11,
  kMulticastJoin = 12,
  kMulticastError = 13,
  kAddrChange = 14,
  kTimewaitExit = 15,
  kAddrInfoResolved = 16,
  kAddrInfoError = 17,
  kUser = 18,
  kInternal = 19,
  // Without a port space only: the peer asks for another path; what it says to ours; or nothing.
  kPathOffered = 32,
  kPathAnswered = 33,
  kPathUnanswered = 34,
};
const char* to_string(EventKind kind);

// What a program needs to move its QP from INIT to RTR and on to RTS.  Complete in CONNECT_RESPONSE
// and in CONNECT_REQUEST; there, accept() may go below its depths, not above.
struct QpTransition {
  PathInfo path{};
  std::uint32_t remote_qpn{};
  // A message's Starting PSN is where its *receiver* begins to send (vol1 12.7.31).
  std::uint32_t sq_psn{};              // RTS: the peer's choice
  std::uint32_t rq_psn{};              // RTR: our own
  std::uint8_t valid{};                // 0: nothing here
  std::uint8_t path_mtu{};             // RTR
  std::uint8_t responder_resources{};  // RTR: max_dest_rd_atomic
  std::uint8_t min_rnr_timer{};        // RTR: code, see min_rnr_timer()
  std::uint8_t peer_rnr_retries{};     // what we have asked of the peer; 0 in CONNECT_REQUEST
  std::uint8_t initiator_depth{};      // RTS: max_rd_atomic
  std::uint8_t ack_timeout{};          // RTS: timeout code
  std::uint8_t retry_count{};          // RTS
  std::uint8_t rnr_retry_count{};      // RTS

  friend bool operator==(const QpTransition&, const QpTransition&) = default;
};

// What a connection's DREQ says, for whoever may have to send it when the agent that made the
// connection is no more.  Complete in CONNECT_RESPONSE; in CONNECT_REQUEST but for `local_qpn`.
struct Goodbye {
  Gid source{};
  Gid destination{};
  std::uint32_t interface {};
  CommId local_comm_id{};
  CommId remote_comm_id{};
  Qpn local_qpn{};
  Qpn remote_qpn{};
  std::uint8_t packet_life_time{};  // timeout code
  std::uint8_t hop_limit{64};
  std::uint8_t traffic_class{};

  friend bool operator==(const Goodbye&, const Goodbye&) = default;
};

// The timer code for a peer that tries so often again after an RNR NAK (vol1 table 45): for one
// that does so for ever, 0.64 ms.  Linux has 0 here, 655 ms for each try; programs count on all
// tries together taking that long, and need not wait longer.
constexpr std::uint8_t min_rnr_timer(std::uint8_t peer_retries) {
  constexpr std::array<std::uint8_t, 7> kCodes{0, 0, 30, 29, 28, 28, 27};
  return peer_retries < kCodes.size() ? kCodes[peer_retries] : std::uint8_t{12};
}

struct Event {
  Owner owner{};
  IdHandle id{};  // CONNECT_REQUEST: the new id
  // CONNECT_REQUEST: the listener; or `id` itself, which connects peer to peer and whose turn it is
  // to accept.
  IdHandle listen_id{};
  EventKind kind{};
  // 0, -errno; REJECTED: the CM's reason; UNREACHABLE of datagrams: what SIDR_REP said;
  // PATH_ANSWERED: what APR said
  std::int32_t status{};
  std::uint16_t port_space{};
  std::uint8_t qp_type{};  // enum ibv_qp_type
  SocketAddress source{};  // ours
  SocketAddress destination{};
  PathInfo path{};
  ConnParam param{};
  QpTransition qp{};
  Goodbye goodbye{};
  std::uint32_t tries{};  // UNREACHABLE, PATH_UNANSWERED: messages sent without an answer
  std::vector<std::byte> additional_info{};  // REJECTED, PATH_ANSWERED

  friend bool operator==(const Event&, const Event&) = default;
};

// Without a port space: which requests a listener wants, see cm::Service.
struct Filter {
  ServiceId mask{~std::uint64_t{0}};
  std::vector<std::byte> data{};
  std::vector<std::byte> data_mask{};

  friend bool operator==(const Filter&, const Filter&) = default;
};

// A REJ; of datagrams only its private data is said.
struct Refusal {
  std::uint16_t reason{kRejectConsumer};
  std::span<const std::byte> additional_info{};
  std::span<const std::byte> private_data{};
};

// An APR.
struct PathAnswer {
  std::uint16_t status{};  // 0: the path is taken
  std::span<const std::byte> additional_info{};
  std::span<const std::byte> private_data{};
};

// rdma_set_option(), level RDMA_OPTION_ID.
enum class Option : std::uint8_t { kTos = 0, kReuseAddr = 1, kAfOnly = 2, kAckTimeout = 3 };

// An id's numbers, as a query returns them.
struct IdInfo {
  std::uint16_t port_space{};
  std::uint8_t qp_type{};
  SocketAddress source{};
  SocketAddress destination{};
  PathInfo path{};  // sgid_index etc. of a specific bind, too
  std::uint8_t bound_to_device{};

  friend bool operator==(const IdInfo&, const IdInfo&) = default;
};

// ---- Between the manager and node

// One address of this host.
struct Interface {
  Gid address{};
  std::uint32_t index{};
  std::array<char, 16> name{};
  std::uint8_t mtu{};  // 1 = 256 bytes .. 5 = 4096
  bool is_loopback{};
  std::uint32_t sgid_index{};
  bool up{};

  friend bool operator==(const Interface&, const Interface&) = default;
};

// "How do packets get there?"  Answered by on_route() with the token.
struct RouteQuery {
  std::uint64_t token{};
  SocketAddress destination{};
  SocketAddress source{};  // family 0: any

  friend bool operator==(const RouteQuery&, const RouteQuery&) = default;
};

struct Route {
  Gid source{};
  std::uint32_t interface {};
  std::uint32_t sgid_index{};
  std::uint8_t mtu{};  // 1 = 256 bytes .. 5 = 4096
  bool is_loopback{};  // both ends on this host

  friend bool operator==(const Route&, const Route&) = default;
};

using Output = std::variant<mad::SendMad, Event, RouteQuery, cm::StateChanged>;

// A line of `verbena ps`.
struct Row {
  IdHandle id{};
  Owner owner{};
  const char* state{};
  std::uint16_t port_space{};
  SocketAddress source{};
  SocketAddress destination{};
  std::uint32_t qpn{};
  std::uint32_t remote_qpn{};
  std::uint32_t tries{};
  const char* cm_state{};  // "" without a CM endpoint
};

}  // namespace verbena::rdmacm
