#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>

#include "base/handle.h"
#include "base/strong.h"
#include "base/time.h"
#include "mad/mad.h"
#include "wire/bth.h"
#include "wire/cm.h"

// What goes into and comes out of the communication manager.
namespace verbena::cm {

class Endpoint;
using EndpointHandle = Handle<Endpoint>;
class Resolution;
using ResolutionHandle = Handle<Resolution>;

using wire::kDefaultPkey;
// RoCE has this one alone; the upper bit says full or limited member (vol1 10.9.1).
constexpr bool is_our_partition(Pkey pkey) { return (pkey.value & 0x7fff) == 0x7fff; }

struct Config {
  Guid ca_guid{};  // of this host; must differ from every peer's
  // With and without an owner, timewait included, in which most of a busy host's are.
  std::uint32_t endpoints_max = 262144;
  std::uint32_t listeners_max = 65536;
  std::uint32_t resolutions_max = 16384;  // of service ids, asked and not answered
  std::uint32_t inherited_max = 16384;    // endpoints inherited, until no more are
  // A host-local connection (both CA GUIDs the same) counts with this packet life, and with no ack
  // delay beyond it, whatever its REQ says: it sets the length of timewait (code 8: 1 ms).
  std::uint8_t local_packet_life{8};
  bool trace = false;  // report StateChanged

  friend bool operator==(const Config&, const Config&) = default;
};

// Enhanced connection establishment: what adapters of one vendor tell each other in REQ, REP and
// SIDR_REP.  The options travel as the MAD's attribute modifier.  Zeros: nothing.
struct Ece {
  std::uint32_t vendor_id{};  // 24 bits
  std::uint32_t options{};

  friend bool operator==(const Ece&, const Ece&) = default;
};

// Another path for a connection, as REQ and LAP name it (vol1 12.6.5, 12.8.1).
struct AlternatePath {
  mad::Address address{};
  std::uint32_t flow_label{};
  std::uint8_t local_ack_timeout{};  // timeout code
};

// What the active side says and wants (vol1 12.6.5).
struct ConnectRequest {
  mad::Address address{};
  std::optional<AlternatePath> alternate_path{};
  ServiceId service_id{};
  Qpn qpn{};
  Psn starting_psn{};
  std::uint8_t responder_resources{};
  std::uint8_t initiator_depth{};
  std::uint8_t retry_count{7};
  std::uint8_t rnr_retry_count{7};
  bool end_to_end_flow_control{};
  bool srq{};
  std::uint8_t path_mtu{};  // 1 = 256 bytes .. 5 = 4096
  Pkey pkey{kDefaultPkey};
  std::uint32_t flow_label{};
  std::uint8_t packet_life{};        // timeout code, one way
  std::uint8_t local_ack_timeout{};  // timeout code
  Ece ece{};
  std::array<std::byte, 92> private_data{};
  // The peer connects at the same time, to the same service id and from the address that we connect
  // to; the two become one connection (vol1 12.10.4).  Who is there first waits for the other.
  bool peer_to_peer{};
  // How long to try.  Repeats begin after about four round trips, as measured (`round_trip`, if the
  // peer is new; 0: not known), and back off; max_cm_retries is what the peer is told.
  Duration give_up_after = std::chrono::seconds(30);
  Duration round_trip{};
  std::uint8_t max_cm_retries{15};
};

// What the passive side says (vol1 12.6.8).
struct AcceptParameters {
  Qpn qpn{};
  Psn starting_psn{};
  std::uint8_t responder_resources{};
  std::uint8_t initiator_depth{};
  std::uint8_t rnr_retry_count{7};
  bool end_to_end_flow_control{};
  bool srq{};
  std::uint8_t target_ack_delay{15};  // timeout code
  bool alternate_path_accepted{};     // the QP has the REQ's
  Ece ece{};
  std::array<std::byte, 196> private_data{};
  Duration give_up_after = std::chrono::seconds(30);
};

// Who wants to know the datagram QP of a service (vol1 12.11.1).
struct ResolveRequest {
  mad::Address address{};
  ServiceId service_id{};
  Pkey pkey{kDefaultPkey};
  std::array<std::byte, 216> private_data{};
  // As in ConnectRequest; SIDR has no counts of its own.
  Duration give_up_after = std::chrono::seconds(30);
  Duration round_trip{};
};

// What it is told (vol1 12.11.2).
struct ResolveAnswer {
  wire::cm::SidrStatus status{};  // the numbers count only with kValid
  Qpn qpn{};
  Qkey qkey{};
  Ece ece{};
  std::span<const std::byte> private_data{};  // at most 136 bytes
};

// What the passive side says to a LAP (vol1 12.8.2).
struct PathAnswer {
  wire::cm::AprStatus status{};                  // kAccepted: the QP has it
  std::span<const std::byte> additional_info{};  // at most 72 bytes
  std::span<const std::byte> private_data{};     // at most 148 bytes
};

struct RejectParameters {
  wire::cm::RejReason reason{wire::cm::RejReason::kConsumer};
  std::span<const std::byte> additional_info{};  // at most 72 bytes
  std::span<const std::byte> private_data{};     // at most 148 bytes
};

// A connection of a manager that is no more: what its peer needs to hear that it is over.
struct Inherited {
  mad::Address address{};
  CommId local_id{};
  CommId remote_id{};
  Qpn local_qpn{};
  Qpn remote_qpn{};
  std::uint8_t packet_life{};  // timeout code
};

// Where a connection stands; drawn in endpoint.h.
enum class State : std::uint8_t {
  kReqSent,         // active: no answer yet
  kMraReqReceived,  // active: the peer asked for time
  kRepReceived,     // active: our consumer decides
  kReqReceived,     // passive: our consumer decides
  kMraReqSent,      // passive: we asked for time
  kRepSent,         // passive: no RTU and no data yet
  kMraRepReceived,  // passive: the peer asked for time
  kEstablished,
  kDreqSent,
  kTimewait,
  kClosed,  // over; only the consumer's handle keeps it
};

// A name for `verbena ps` and messages, never null.
const char* to_string(State state);

// ---- Events.  Each names its endpoint and the cookie that the consumer gave it; but for those of
// ---- alternate paths each kind comes at most once for an endpoint, TimewaitExit last.

// Passive: somebody wants to connect.  The endpoint is new, and `cookie` is the listener's until
// set_cookie(); or it is one that connects peer to peer and has become the passive side.  Answer
// with accept(), reject(), drop() or destroy().
struct ReqReceived {
  EndpointHandle endpoint{};
  std::uint64_t cookie{};
  wire::cm::Req req{};
  mad::Address address{};
  Ece ece{};
};

// Active: the peer accepted.  Answer with establish() or reject().
struct RepReceived {
  EndpointHandle endpoint{};
  std::uint64_t cookie{};
  wire::cm::Rep rep{};
  Ece ece{};
};

// Passive: the peer is there.  `cause` says how we know.
struct Established {
  enum class Cause : std::uint8_t { kRtu, kData, kDreq, kLap };
  EndpointHandle endpoint{};
  std::uint64_t cookie{};
  Cause cause{};
  std::array<std::byte, 224> private_data{};  // the RTU's, if it was the first sign
};

// Either side, before it was established: the answer is no.
struct Rejected {
  EndpointHandle endpoint{};
  std::uint64_t cookie{};
  wire::cm::Rej rej{};
};

// Either side, before it was established: no answer.
struct Unreachable {
  enum class Step : std::uint8_t { kReq, kRep };
  EndpointHandle endpoint{};
  std::uint64_t cookie{};
  Step step{};
  std::uint32_t tries{};  // messages sent
  Duration spent{};
};

// Either side, after it was established.
struct Disconnected {
  enum class Cause : std::uint8_t {
    kPeer,     // DREQ from the peer
    kLocal,    // our DREQ was answered
    kSilence,  // our DREQ never was
    kReset,    // the peer said that it has no such connection (REJ, or a new REQ of its QP)
  };
  EndpointHandle endpoint{};
  std::uint64_t cookie{};
  Cause cause{};
  std::array<std::byte, 220> private_data{};  // the peer's DREQ's
};

// Passive, connected: the peer has another path for us.  Answer with answer_alternate_path(), or
// leave it: the peer gives up.
struct LapReceived {
  EndpointHandle endpoint{};
  std::uint64_t cookie{};
  wire::cm::Lap lap{};
};

// Active, connected: what the peer says to our other path.
struct AprReceived {
  EndpointHandle endpoint{};
  std::uint64_t cookie{};
  wire::cm::Apr apr{};
};

// Active, connected: nothing was said to it.  The connection stays, with the path that it has.
struct LapUnanswered {
  EndpointHandle endpoint{};
  std::uint64_t cookie{};
  std::uint32_t tries{};  // messages sent
  Duration spent{};
};

// The QP number may be used again.
struct TimewaitExit {
  EndpointHandle endpoint{};
  std::uint64_t cookie{};
};

// Somebody wants to know the datagram QP of a service.  `cookie` is the listener's until
// set_cookie().  Answer with answer(), drop() or destroy().
struct SidrReqReceived {
  ResolutionHandle resolution{};
  std::uint64_t cookie{};
  wire::cm::SidrReq req{};
  mad::Address address{};
};

// The answer, good or bad.  The resolution is over.
struct SidrRepReceived {
  ResolutionHandle resolution{};
  std::uint64_t cookie{};
  wire::cm::SidrRep rep{};
  Ece ece{};
};

// No answer.  The resolution is over.
struct SidrUnreachable {
  ResolutionHandle resolution{};
  std::uint64_t cookie{};
  std::uint32_t tries{};  // messages sent
  Duration spent{};
};

// For a log, if Config has asked for it: what an input has made of an endpoint, with an owner or
// without.  A new one was kClosed before.
struct StateChanged {
  CommId local_id{};
  CommId remote_id{};
  Qpn local_qpn{};
  Gid local{};
  Gid remote{};
  State from{};
  State to{};
  Duration after{};  // in `from`
};

using Event = std::variant<ReqReceived, RepReceived, Established, Rejected, Unreachable,
                           Disconnected, LapReceived, AprReceived, LapUnanswered, TimewaitExit,
                           SidrReqReceived, SidrRepReceived, SidrUnreachable, StateChanged>;
using Output = std::variant<mad::SendMad, Event>;

// One endpoint as `verbena ps` shows it.
struct View {
  State state{};
  CommId local_comm_id{};
  CommId remote_comm_id{};
  Qpn local_qpn{};
  Qpn remote_qpn{};
  std::uint32_t tries{};  // sends of the message that waits for an answer
};

}  // namespace verbena::cm
