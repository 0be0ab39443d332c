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

// Declares the inputs and outputs of the communication manager.
namespace verbena::cm {

class Endpoint;
using EndpointHandle = Handle<Endpoint>;
class Resolution;
using ResolutionHandle = Handle<Resolution>;

using wire::kDefaultPkey;
struct Config {
  Guid ca_guid{};  // the GUID of this host; must differ from every peer's
  // Limits the endpoints with and without an owner.  On a busy host most of them are in timewait.
  std::uint32_t endpoints_max = 262144;
  std::uint32_t listeners_max = 65536;
  std::uint32_t resolutions_max = 16384;  // SIDR requests without an answer yet, both directions
  std::uint32_t inherited_max = 16384;    // connections that inherit() is still ending
  // Loopback connections (both CA GUIDs are the same) have this packet life, which is a timeout
  // code.  Their timewait lasts twice this time, and ignores the packet life and ack delay in the
  // messages.
  std::uint8_t local_packet_life{8};  // 1 ms
  bool trace = false;                 // report StateChanged

  friend bool operator==(const Config&, const Config&) = default;
};

// Carries the options of enhanced connection establishment, which adapters of one vendor exchange
// in REQ, REP and SIDR_REP.  The MAD's attribute modifier carries the options.  If both members are
// 0, there are no options.
struct Ece {
  std::uint32_t vendor_id{};  // 24 bits
  std::uint32_t options{};

  friend bool operator==(const Ece&, const Ece&) = default;
};

// Describes an alternate path for a connection, as in REQ and LAP (vol1 12.6.5, 12.8.1).
struct AlternatePath {
  mad::Address address{};
  std::uint8_t local_ack_timeout{};  // timeout code
};

// Holds the parameters of the active side (vol1 12.6.5).
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
  std::uint8_t packet_life{};        // timeout code, one way
  std::uint8_t local_ack_timeout{};  // timeout code
  Ece ece{};
  std::array<std::byte, 92> private_data{};
  // The peer connects to us as well, with the same service id and from the address that we connect
  // to.  The two requests become one connection (vol1 12.10.4).  The side that calls connect()
  // first waits for the other side.
  bool peer_to_peer{};
  // The first repeat comes after about four measured round trips.  The intervals grow, and the
  // repeats end after give_up_after.  `round_trip` is the estimate for a peer without a
  // measurement; 0: not known.  The REQ carries max_cm_retries.
  Duration give_up_after = std::chrono::seconds(30);
  Duration round_trip{};
  std::uint8_t max_cm_retries{15};
};

// Holds the parameters of the passive side (vol1 12.6.8).
struct AcceptParameters {
  Qpn qpn{};
  Psn starting_psn{};
  std::uint8_t responder_resources{};
  std::uint8_t initiator_depth{};
  std::uint8_t rnr_retry_count{7};
  bool end_to_end_flow_control{};
  bool srq{};
  std::uint8_t target_ack_delay{15};  // timeout code
  bool alternate_path_accepted{};     // the QP has loaded the path that the REQ offers
  Ece ece{};
  std::array<std::byte, 196> private_data{};
  Duration give_up_after = std::chrono::seconds(30);
};

// Asks for the datagram QP of a service (vol1 12.11.1).
struct ResolveRequest {
  mad::Address address{};
  ServiceId service_id{};
  Pkey pkey{kDefaultPkey};
  std::array<std::byte, 216> private_data{};
  // These two work as in ConnectRequest.  The number of repeats has no limit.
  Duration give_up_after = std::chrono::seconds(30);
  Duration round_trip{};
};

// Answers a ResolveRequest (vol1 12.11.2).
struct ResolveAnswer {
  wire::cm::SidrStatus status{};  // qpn and qkey are used only if this is kValid
  Qpn qpn{};
  Qkey qkey{};
  Ece ece{};
  std::span<const std::byte> private_data{};  // at most 136 bytes
};

// Answers a LAP on the passive side (vol1 12.8.2).
struct PathAnswer {
  wire::cm::AprStatus status{};                  // kAccepted: the QP has loaded the path
  std::span<const std::byte> additional_info{};  // at most 72 bytes
  std::span<const std::byte> private_data{};     // at most 148 bytes
};

struct RejectParameters {
  wire::cm::RejReason reason{wire::cm::RejReason::kConsumer};
  std::span<const std::byte> additional_info{};  // at most 72 bytes
  std::span<const std::byte> private_data{};     // at most 148 bytes
};

// Describes a connection whose manager has died.  inherit() needs these values for the DREQ to the
// peer.
struct InheritedConnection {
  mad::Address address{};
  CommId local_id{};
  CommId remote_id{};
  Qpn local_qpn{};
  Qpn remote_qpn{};
  std::uint8_t packet_life{};  // timeout code
};

// A connection has one of these states; endpoint.h draws the transitions.
enum class State : std::uint8_t {
  kReqSent,         // active: the peer has not answered the REQ
  kMraReqReceived,  // active: the peer asked for time
  kRepReceived,     // active: our consumer has not answered the REP
  kReqReceived,     // passive: our consumer has not answered the REQ
  kMraReqSent,      // passive: as kReqReceived, and we asked the peer for time
  kRepSent,         // passive: neither the RTU nor data has arrived
  kMraRepReceived,  // passive: the peer asked for time
  kEstablished,
  kDreqSent,
  kTimewait,
  kClosed,  // the connection is over, but the consumer still has its handle
};

// Returns a name for `verbena ps` and messages; never null.
const char* to_string(State state);

// ---- Events

// Each event (except StateChanged) names its endpoint or resolution, and the cookie that the
// consumer gave it.  Each kind comes at most once for an endpoint, except StateChanged and the
// events of alternate paths.  TimewaitExit is the last event for the consumer.

// Passive: a REQ arrived.  The endpoint is new, and `cookie` is the listener's until set_cookie().
// For peer to peer, the endpoint may be one that connect() made, and that has become the passive
// side.  Answer with accept(), reject(), drop() or destroy().
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

// Passive: the peer is connected, too.  `cause` tells how this side learned that.
struct Established {
  enum class Cause : std::uint8_t { kRtu, kData, kDreq, kLap };
  EndpointHandle endpoint{};
  std::uint64_t cookie{};
  Cause cause{};
  std::array<std::byte, 224> private_data{};  // of the RTU, if cause is kRtu
};

// Either side: before the connection was established, the peer rejected it, or began a new
// connection with the same QP.
struct Rejected {
  EndpointHandle endpoint{};
  std::uint64_t cookie{};
  wire::cm::Rej rej{};
};

// Either side: the peer did not answer before the connection was established.
struct Unreachable {
  enum class Step : std::uint8_t { kReq, kRep };
  EndpointHandle endpoint{};
  std::uint64_t cookie{};
  Step step{};
  std::uint32_t tries{};  // messages sent
  Duration spent{};
};

// Either side: an established connection is over.
struct Disconnected {
  enum class Cause : std::uint8_t {
    kPeer,     // the peer sent a DREQ
    kLocal,    // our DREQ was answered, or disconnect() came before the REP was sent
    kSilence,  // our DREQ was never answered
    kReset,    // the peer lost the connection: it sent a REJ, or its QP connected again
  };
  EndpointHandle endpoint{};
  std::uint64_t cookie{};
  Cause cause{};
  std::array<std::byte, 220> private_data{};  // of the peer's DREQ
};

// Passive, connected: the peer offers an alternate path.  Answer with answer_alternate_path().
// Without an answer the peer gives up.
struct LapReceived {
  EndpointHandle endpoint{};
  std::uint64_t cookie{};
  wire::cm::Lap lap{};
};

// Active, connected: the peer answered our LAP.
struct AprReceived {
  EndpointHandle endpoint{};
  std::uint64_t cookie{};
  wire::cm::Apr apr{};
};

// Active, connected: the peer did not answer our LAP.  The connection stays on its path.
struct LapUnanswered {
  EndpointHandle endpoint{};
  std::uint64_t cookie{};
  std::uint32_t tries{};  // messages sent
  Duration spent{};
};

// Timewait is over: the QP number may be used again.
struct TimewaitExit {
  EndpointHandle endpoint{};
  std::uint64_t cookie{};
};

// A peer asks for the datagram QP of a service.  `cookie` is the listener's until set_cookie().
// Answer with answer(), drop() or destroy().
struct SidrReqReceived {
  ResolutionHandle resolution{};
  std::uint64_t cookie{};
  wire::cm::SidrReq req{};
  mad::Address address{};
};

// The peer answered, with a QP or an error.  The resolution is over.
struct SidrRepReceived {
  ResolutionHandle resolution{};
  std::uint64_t cookie{};
  wire::cm::SidrRep rep{};
  Ece ece{};
};

// The peer did not answer.  The resolution is over.
struct SidrUnreachable {
  ResolutionHandle resolution{};
  std::uint64_t cookie{};
  std::uint32_t tries{};  // messages sent
  Duration spent{};
};

// Reports, if Config::trace is set, that an endpoint changed its state; for a log.  Endpoints
// without an owner are included.  `from` is kClosed for a new endpoint.
struct StateChanged {
  CommId local_id{};
  CommId remote_id{};
  Qpn local_qpn{};
  Gid local{};
  Gid remote{};
  State from{};
  State to{};
  Duration after{};  // time spent in `from`
};

using Event = std::variant<ReqReceived, RepReceived, Established, Rejected, Unreachable,
                           Disconnected, LapReceived, AprReceived, LapUnanswered, TimewaitExit,
                           SidrReqReceived, SidrRepReceived, SidrUnreachable, StateChanged>;
using Output = std::variant<mad::SendMad, Event>;

// Describes one endpoint for `verbena ps`.
struct View {
  State state{};
  CommId local_comm_id{};
  CommId remote_comm_id{};
  Qpn local_qpn{};
  Qpn remote_qpn{};
  std::uint32_t tries{};  // how often the pending message was sent
};

}  // namespace verbena::cm
