#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/handle.h"
#include "base/strong.h"
#include "base/time.h"
#include "cm/types.h"
#include "mad/mad.h"

// Defines the values of the RDMA CM that programs see.  The layer ipc carries the types of the
// first part, so they are plain structs of integers, arrays and the strong numbers of base.
namespace verbena::rdmacm {

class Id;
using IdHandle = Handle<Id>;
using Owner = std::uint64_t;  // the number that node has given to a client of the host

// ---- Values that ipc carries

// Holds an address and a port.  IPv4 is written as ::ffff:a.b.c.d, and its wildcard as
// ::ffff:0.0.0.0.
struct SocketAddress {
  Gid ip{};
  std::uint16_t port{};
  std::uint32_t scope{};  // IPv6 link-local: interface index
  std::uint8_t family{};  // 4, 6, or 0 for "not set"
  // True for AF_IB: the address is a GID and a service id, whose low 16 bits are `port`.  An id
  // with such an address shares the ports with ids that have IP addresses, unless it has no port
  // space.  Its requests have no header before the program's private data.
  bool by_gid{};
  ServiceId service{};

  friend bool operator==(const SocketAddress&, const SocketAddress&) = default;
};

// kPortSpaceNone is for ids of the InfiniBand CM itself.  They have a GID and any service id, and
// give access to everything in its messages.
inline constexpr std::uint16_t kPortSpaceNone = 0;
inline constexpr std::uint16_t kPortSpaceTcp = 0x0106;
inline constexpr std::uint16_t kPortSpaceUdp = 0x0111;
inline constexpr std::uint16_t kPortSpaceIpoib = 0x0002;
inline constexpr std::uint16_t kPortSpaceIb = 0x013f;

inline constexpr std::uint32_t kChoosePsn = 0xffffffff;

// The datagram QPs and multicast groups of ids use this Q_Key, except in kPortSpaceIpoib.
inline constexpr std::uint32_t kDatagramQkey = 0x01234567;

// These are numbers of enum ibv_qp_type.
inline constexpr std::uint8_t kQpTypeRc = 2;
inline constexpr std::uint8_t kQpTypeUd = 4;

// Limits the ids of one program, including those made for incoming requests.
inline constexpr std::uint32_t kIdsPerOwnerMax = 32768;

// Limits the private data of programs: the space in the messages, minus the header of annex A11 in
// requests of ids that have IP addresses.
// Events report the whole space, padded with zeros.
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

// Programs may use these reasons in a REJ.
inline constexpr std::uint16_t kRejectConsumer = 28;
inline constexpr std::uint16_t kRejectVendorOption = 35;
inline constexpr std::uint16_t kRejectReasonMax = 33;  // without a port space: 1 to 33, and 35

// Holds the contents of a path record.  On RoCE this stack computes them, because there is no SA.
struct PathInfo {
  link::Address address{};  // from this host to the peer; the UDP source port is not set
  std::uint32_t sgid_index{};
  std::uint16_t pkey{0xffff};
  std::uint8_t mtu{};               // 1 = 256 bytes .. 5 = 4096
  std::uint8_t packet_life_time{};  // timeout code

  friend bool operator==(const PathInfo&, const PathInfo&) = default;
};

// Corresponds to struct rdma_conn_param.  An event holds the peer's values from our point of view:
// the peer's initiator depth is in responder_resources, because we need that many resources.
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
  std::uint32_t psn{kChoosePsn};  // our starting PSN; in an event the peer's starting PSN
  std::uint32_t qkey{};           // for datagrams; in an event the peer's Q_Key
  // These carry the options of enhanced connection establishment, see cm::Ece; in an event the
  // peer's options.
  std::uint32_t ece_vendor_id{};
  std::uint32_t ece_options{};
  // ---- For ids without a port space.  Ids with a port space may use `timeout`, too, and accept
  // alternate paths on InfiniBand.
  // The QP may migrate to this alternate path.  If its source is empty, there is no alternate path.
  // connect() uses only the member `address`.  CONNECT_REQUEST has the path that the peer offers.
  PathInfo alternate{};
  bool alternate_accepted{};  // our QP (accept()) or the peer's QP (CONNECT_RESPONSE) has loaded it
  bool peer_to_peer{};        // connect(): see cm::ConnectRequest
  Duration timeout{};         // of connect() and accept(); 0: the default of the host

  friend bool operator==(const ConnParam&, const ConnParam&) = default;
};

// The numbers below 32 are those of enum rdma_cm_event_type.
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
  // Only ids without a port space get these events: the peer offered an alternate path, answered
  // our offer, or did not answer our offer.
  kPathOffered = 32,
  kPathAnswered = 33,
  kPathUnanswered = 34,
};
const char* to_string(EventKind kind);

// Holds the values with which a program moves its QP from INIT to RTR and on to RTS.  They are
// complete in CONNECT_RESPONSE and CONNECT_REQUEST.  After CONNECT_REQUEST, accept() may lower the
// depths, but not raise them, and it tells how often the peer retries after an RNR NAK.
struct QpTransition {
  PathInfo path{};
  std::uint32_t remote_qpn{};
  // A message's Starting PSN is where its *receiver* begins to send (vol1 12.7.31).
  std::uint32_t sq_psn{};              // RTS: the peer's choice
  std::uint32_t rq_psn{};              // RTR: our own
  std::uint8_t valid{};                // 0: the values of this struct are not set
  std::uint8_t path_mtu{};             // RTR
  std::uint8_t responder_resources{};  // RTR: max_dest_rd_atomic
  std::uint8_t min_rnr_timer{};        // RTR: code, see min_rnr_timer(); 0 in CONNECT_REQUEST
  std::uint8_t peer_rnr_retries{};     // the number that our REQ asked for; 0 in CONNECT_REQUEST
  std::uint8_t initiator_depth{};      // RTS: max_rd_atomic
  std::uint8_t ack_timeout{};          // RTS: timeout code
  std::uint8_t retry_count{};          // RTS
  std::uint8_t rnr_retry_count{};      // RTS

  friend bool operator==(const QpTransition&, const QpTransition&) = default;
};

// Holds the values for a connection's DREQ.  If the agent that made the connection dies, the next
// agent needs these values to send the DREQ.  They are complete in CONNECT_RESPONSE;
// CONNECT_REQUEST lacks `local_qpn`.
struct PendingDisconnect {
  link::Address address{};
  CommId local_comm_id{};
  CommId remote_comm_id{};
  Qpn local_qpn{};
  Qpn remote_qpn{};
  std::uint8_t packet_life_time{};  // timeout code

  friend bool operator==(const PendingDisconnect&, const PendingDisconnect&) = default;
};

// Returns the RNR NAK timer code (vol1 table 45) for a peer that retries this often.  Linux always
// uses code 0, so that each retry waits 655 ms.  Programs need a wait of 655 ms in total, but not
// much more.  So here all retries together take 655 to 820 ms.  If the peer retries for ever, each
// retry waits 0.64 ms.
constexpr std::uint8_t min_rnr_timer(std::uint8_t peer_retries) {
  constexpr std::array<std::uint8_t, 7> kCodes{0, 0, 30, 29, 28, 28, 27};
  return peer_retries < kCodes.size() ? kCodes[peer_retries] : std::uint8_t{12};
}

struct Event {
  Owner owner{};
  IdHandle id{};  // CONNECT_REQUEST: the new id
  // CONNECT_REQUEST: the listener.  If the id connects peer to peer and has become the passive
  // side, the listener is `id` itself.
  IdHandle listen_id{};
  EventKind kind{};
  // The status is 0 or -errno; REJECTED: the reason of the REJ; UNREACHABLE of datagrams: the
  // status of the SIDR_REP; PATH_ANSWERED: the status of the APR.
  std::int32_t status{};
  std::uint16_t port_space{};
  std::uint8_t qp_type{};  // enum ibv_qp_type
  SocketAddress source{};  // on this host
  SocketAddress destination{};
  PathInfo path{};
  ConnParam param{};
  QpTransition qp{};
  PendingDisconnect pending_disconnect{};
  std::uint32_t tries{};  // UNREACHABLE, PATH_UNANSWERED: messages sent without an answer
  std::vector<std::byte> additional_info{};  // REJECTED, PATH_ANSWERED

  friend bool operator==(const Event&, const Event&) = default;
};

// Selects the requests for a listener without a port space, see cm::Service.
struct Filter {
  ServiceId mask{~std::uint64_t{0}};
  std::vector<std::byte> data{};
  std::vector<std::byte> data_mask{};

  friend bool operator==(const Filter&, const Filter&) = default;
};

// Holds the contents of a REJ.  For datagrams only the private data is sent.
struct Refusal {
  std::uint16_t reason{kRejectConsumer};
  std::span<const std::byte> additional_info{};
  std::span<const std::byte> private_data{};
};

// Holds the contents of an APR.
struct PathAnswer {
  std::uint16_t status{};  // 0: the path is accepted
  std::span<const std::byte> additional_info{};
  std::span<const std::byte> private_data{};
};

// Names the options of rdma_set_option(), level RDMA_OPTION_ID.
enum class Option : std::uint8_t { kTos = 0, kReuseAddr = 1, kAfOnly = 2, kAckTimeout = 3 };

// Holds the properties of an id that a query returns.
struct IdInfo {
  std::uint16_t port_space{};
  std::uint8_t qp_type{};
  SocketAddress source{};
  SocketAddress destination{};
  PathInfo path{};  // an id that is only bound to an address has sgid_index, pkey and mtu
  std::uint8_t bound_to_device{};

  friend bool operator==(const IdInfo&, const IdInfo&) = default;
};

// ---- Between the manager and node

// Describes one address of this host.
struct Interface {
  PortId port{};
  LinkLayer link_layer = LinkLayer::kEthernet;
  Gid address{};
  Gid gid{};  // of the port; on Ethernet the address itself, and on InfiniBand the port's first GID
  std::uint32_t index{};
  std::array<char, 16> name{};
  std::uint8_t mtu{};  // 1 = 256 bytes .. 5 = 4096
  bool is_loopback{};
  std::uint32_t sgid_index{};
  std::uint16_t pkey{0xffff};  // connections from this address use it
  bool up{};

  friend bool operator==(const Interface&, const Interface&) = default;
};

// Asks for the route to a destination.  on_route() answers it, with the same token.
struct RouteQuery {
  std::uint64_t token{};
  Owner owner{};  // the owner of the id
  SocketAddress destination{};
  SocketAddress source{};  // family 0: any source

  friend bool operator==(const RouteQuery&, const RouteQuery&) = default;
};

struct Route {
  Gid source{};             // the address of this host from which the route leads
  link::Address address{};  // on Ethernet the destination is empty, because the id has it
  std::uint32_t sgid_index{};
  std::uint16_t pkey{0xffff};
  std::uint8_t mtu{};               // 1 = 256 bytes .. 5 = 4096
  std::uint8_t packet_life_time{};  // InfiniBand: timeout code of the path record
  bool is_loopback{};               // true: both ends are on this host
  // InfiniBand: another path between the same ports.  A connection may migrate to it.
  std::optional<link::Address> alternate{};

  friend bool operator==(const Route&, const Route&) = default;
};

using Output = std::variant<mad::SendMad, Event, RouteQuery, cm::StateChanged>;

// Describes an id in a line of `verbena ps`.
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
  const char* cm_state{};  // "" without a CM endpoint or SIDR exchange
};

}  // namespace verbena::rdmacm
