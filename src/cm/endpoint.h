#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <tuple>

#include "base/error.h"
#include "base/random.h"
#include "base/strong.h"
#include "base/time.h"
#include "cm/answer_cache.h"
#include "cm/counters.h"
#include "cm/outbox.h"
#include "cm/retry.h"
#include "cm/round_trips.h"
#include "cm/send_throttle.h"
#include "cm/stored_mad.h"
#include "cm/types.h"
#include "mad/dispatcher.h"
#include "mad/mad.h"
#include "wire/cm.h"

namespace verbena::cm {

// Holds the parts that all endpoints share.  The Manager owns them.
struct Services {
  const Config& config;
  Random& random;
  Counters& counters;
  Outbox& outbox;
  RejCache& rej_cache;
  RoundTrips& round_trips;
};

// Identifies a peer-to-peer connection before its REQ comes: the service, the peer's address and
// ours.
using PeerToPeerKey = std::tuple<ServiceId, Gid, Gid>;

// Manages one connection, from REQ to the end of timewait.
//
//   active                                       passive
//   start()                                      on REQ
//     | send_request(): REQ                         |        duplicate REQ: send MRA
//  kReqSent <-> kMraReqReceived                  kReqReceived ------------> kMraReqSent
//     | REP             | no REP: REJ 4             | accept(): REP            |   | reject(): REJ
//  kRepReceived         +--> kClosed             kRepSent <--------------------+   +--> kClosed
//     | establish(): RTU                            |  <-> kMraRepReceived
//     |                                             | RTU, data, DREQ, LAP; none: REJ 4, kTimewait
//     +-----------------> kEstablished <------------+
//                           |        | disconnect(), abandon(): DREQ
//         DREQ: send DREP,  |     kDreqSent
//         or any REJ        |        | DREP, DREQ, REJ or silence
//                           +----> kTimewait ----> kClosed
//
// The drawing leaves out the arrows into kTimewait and kClosed that a REJ causes, and the arrow
// from kEstablished to kTimewait that the answer to a Probe causes.  It also leaves out the arrow
// from kReqSent to kReqReceived: a peer connects to us at the same time, and our REQ loses against
// its REQ (become_passive()).
//
// The code is split by side: active.cc, passive.cc, disconnect.cc, alternate.cc (LAP and APR, while
// connected).  endpoint.cc has what both sides do.
//
// Spec: vol1 12.9.5 (active), 12.9.6 (passive), 12.9.7, 12.9.8, 12.10.8.
//
// Invariants:
//  * request_ is the message that the Retry repeats; answer_ is the reply to a duplicate.
//    Alternate::sent replaces both for LAP and APR.  All are stored as bytes as long as repeats may
//    be needed, so that each repeat is the same message.
//  * `probe_` exists only in kRepReceived and kEstablished.
//  * `retry_` is armed in kReqSent, kRepSent, kDreqSent and the two kMra...Received states.  It is
//    also armed in kEstablished while our LAP waits for its APR.  In kTimewait its deadline
//    is the end of timewait.
//  * An endpoint without an owner (no handle) reports nothing.
//
// A REQ, REP or DREQ may be sent later than its state begins.  The member sending_ is the state of
// this message, and only the endpoint changes it:
//
//   start(), accept(), disconnect() ...  kQueued <-> kQuiescing     quiesce(), end_quiesce()
//   send_request(), or on_timer()           +-> kSent
//   answer, timeout, end                            +-> kNone
//
// is_queued() is true in kQueued and kQuiescing.  Until the message is sent, the peer does not know
// of it.  So any answer that arrives is stale, and an endpoint that ends does not have to withdraw
// the message.  The Manager decides when to send: a ticket of the SendThrottle
// (Bookkeeping::ticket) only gives the order.
class Endpoint {
 public:
  // Limits the time for which a DREQ is repeated.
  static constexpr Duration kDisconnectTimeout = std::chrono::seconds(10);
  // Limits timewait, whatever packet life the peer names.
  static constexpr Duration kTimewaitMax = std::chrono::seconds(60);
  // We answer a REP within about 1 s.  Peers shall send MRA if their consumer needs more than 4 s.
  // Our MRA asks for 17 s more.
  static constexpr std::uint8_t kLocalCmResponseTimeout = 18;
  static constexpr std::uint8_t kRemoteCmResponseTimeout = 20;
  static constexpr std::uint8_t kMraServiceTimeout = 22;

  // Holds the state of LAP and APR.  It exists only once a message has named an alternate path.
  struct Alternate {
    enum class Step : std::uint8_t { kIdle, kLapSent, kMraReceived, kLapReceived, kMraSent };
    Step step = Step::kIdle;
    std::uint64_t tid{};                     // the transaction id of the last LAP, of either side
    wire::cm::Lap lap{};                     // the last LAP that the peer sent
    StoredMad sent{};                        // our LAP, or our MRA or APR
    mad::Address proposed{};                 // the path in the REQ or in the last LAP
    std::optional<mad::Address> accepted{};  // the QP may migrate to this path
    std::optional<mad::Address> former{};    // the path before the last migration
  };

  // Asks the peer whether it still has the connection.  The probe is a DREQ with a QPN that no
  // connection has.  A peer that knows the connection ignores such a DREQ.  A peer that does not
  // know the ids answers with a DREP (vol1 12.9.8.1).  Linux and Verbena do both.
  struct Probe {
    StoredMad sent{};
    Retry retry{};
  };
  static constexpr Duration kProbeTimeout = std::chrono::seconds(4);
  static constexpr std::uint32_t kProbeRepeatsMax = 7;

  // Creates the active side.
  Endpoint(Services& services, const ConnectRequest& request, CommId id, std::uint64_t tid,
           std::uint64_t cookie);
  // Creates the passive side.
  Endpoint(Services& services, const mad::Delivered& mad, const wire::cm::Req& req, CommId id,
           std::uint64_t cookie);

  // Creates an endpoint, without an owner, for a connection that a former manager established.
  Endpoint(Services& services, const InheritedConnection& inherited, std::uint64_t tid);

  void set_handle(EndpointHandle handle) { handle_ = handle; }
  void set_cookie(std::uint64_t cookie) { cookie_ = cookie; }

  // ---- Consumer
  void start(const ConnectRequest& request, Time now);                   // active side: call once
  void report_req(const mad::Delivered& mad, const wire::cm::Req& req);  // passive side: call once
  Result<void> accept(const AcceptParameters& parameters, Time now);
  // send_request() sends the queued REQ, REP or DREQ now.  send_at() makes on_timer() send it
  // later.
  void send_request(Time now);
  void send_at(Time at) { retry_.set_due(at); }
  // Postpones the queued message until the timewait of its QP is over.  deadline() becomes that
  // time or the timeout, whichever is earlier.
  void quiesce(Time until);
  void end_quiesce();
  // Restarts the timeout of the queued request, because its target has answered another request and
  // so is alive.
  void renew_timeout(Time answer_time) { retry_.renew(answer_time); }
  Result<void> reject(const RejectParameters& parameters, Time now);
  Result<void> drop();
  Result<void> establish(std::span<const std::byte> private_data);
  void comm_established();
  Result<void> disconnect(std::span<const std::byte> private_data, Time now);
  Result<void> load_alternate_path(const AlternatePath& path, std::uint64_t tid,
                                   std::span<const std::byte> private_data, Duration give_up_after,
                                   Time now);
  Result<void> answer_alternate_path(const PathAnswer& answer);
  // Reports that the QP migrated to the alternate path.  Our messages use that path from now on as
  // well.
  void path_migrated();
  // Ends the endpoint for its owner: sends the REJ or DREQ that the state requires, and reports
  // nothing from now on.
  void abandon(Time now);
  // Decides what to do when a message says that the peer has begun a new connection with the QP of
  // this one.  Others may have made the message.  So an established connection is only probed, and
  // the peer's answer ends it.  A connection that waits for the answer to its REP ends by itself if
  // the peer does not know it.  A REQ that the consumer has not answered is given up.
  void check_stale(Time now);

  // ---- Wire and time
  void on_duplicate_req(Time now);
  // For peer to peer: compares our REQ with the peer's REQ.  Returns true if this side stays
  // active.
  bool wins_against(const wire::cm::Req& req) const;
  void on_losing_req();
  void become_passive(const mad::Delivered& mad, const wire::cm::Req& req);
  void on_mra(const wire::cm::Mra& mra, Time now);
  void on_rep(const mad::Delivered& mad, const wire::cm::Rep& rep, Time now);
  void on_rtu(const wire::cm::Rtu& rtu, Time now);
  void on_rej(const wire::cm::Rej& rej, Time now);
  void on_dreq(const wire::cm::Dreq& dreq, Time now);
  void on_drep(Time now);
  void on_lap(const wire::cm::Lap& lap, std::uint64_t tid);
  void on_apr(const wire::cm::Apr& apr, std::uint64_t tid);
  void on_timer(Time now);
  Time deadline() const {
    return probe_ ? std::min(retry_.deadline(), probe_->retry.deadline()) : retry_.deadline();
  }

  // ---- Queries
  State state() const { return state_; }
  bool is_active() const { return active_; }
  bool is_peer_to_peer() const { return peer_to_peer_; }
  // Returns the target of the REQ, REP or DREQ that is queued or waits for an answer.
  std::optional<SendThrottle::Target> send_target() const {
    switch (state_) {
      case State::kReqSent:
      case State::kMraReqReceived:
        return {{address_.remote(), service_id_, SendThrottle::Kind::kReq}};
      case State::kRepSent:
      case State::kMraRepReceived:
        return {{address_.remote(), service_id_, SendThrottle::Kind::kRep}};
      case State::kDreqSent: return {{address_.remote(), {}, SendThrottle::Kind::kDreq}};
      default: return std::nullopt;
    }
  }
  // Returns the target in whose SendThrottle queue this endpoint waits or has a permit.  There is
  // one as long as the peer is silent and repeats are left.
  std::optional<SendThrottle::Target> throttled_target() const {
    const bool answered = state_ == State::kMraReqReceived || state_ == State::kMraRepReceived ||
                          (state_ == State::kReqSent && peer_not_ready_);
    const bool exhausted = sending_ == Sending::kSent && retry_.is_exhausted();
    return answered || exhausted ? std::nullopt : send_target();
  }
  // Returns true if the REQ, REP or DREQ of the current state was not sent yet.
  bool is_queued() const { return sending_ == Sending::kQueued || is_quiescing(); }
  bool is_quiescing() const { return sending_ == Sending::kQuiescing; }
  bool waits_for_rep() const {
    return active_ && (state_ == State::kReqSent || state_ == State::kMraReqReceived);
  }
  ServiceId service_id() const { return service_id_; }
  // Returns a key while a peer-to-peer endpoint waits for the REQ of its peer.
  std::optional<PeerToPeerKey> peer_to_peer_key() const;
  EndpointHandle handle() const { return handle_; }
  CommId local_id() const { return local_id_; }
  const mad::Address& address() const { return address_; }
  // Returns true for an address of the peer, on the path in use or on an alternate path.
  bool has_peer_at(const Gid& address) const;
  CommId remote_id() const { return remote_id_; }
  Guid remote_guid() const { return remote_guid_; }
  Qpn local_qpn() const { return local_qpn_; }
  Qpn remote_qpn() const { return remote_qpn_; }
  View view() const {
    return {state_, local_id_, remote_id_, local_qpn_, remote_qpn_, retry_.tries()};
  }

  // Holds the data that the Manager, its Tables and its SendThrottle record about the endpoint.
  struct Bookkeeping {
    Time deadline = kNever;
    Time state_since{};  // when the endpoint entered `state`
    State state = State::kClosed;
    std::optional<SendThrottle::Ticket> ticket{};
    std::optional<Qpn> local_qpn{};
    bool in_remote_qpns = false;
    bool in_requests = false;
    bool inherited = false;
    std::unique_ptr<PeerToPeerKey> peer_to_peer_key{};  // few endpoints have one
    std::optional<std::list<std::unique_ptr<Endpoint>>::iterator> orphan{};
  };
  Bookkeeping bookkeeping;

 private:
  enum class Sending : std::uint8_t { kNone, kQuiescing, kQueued, kSent };

  StoredMad store(const wire::cm::Message& message) const { return store(message, tid_); }
  static StoredMad store(const wire::cm::Message& message, std::uint64_t tid,
                         std::uint32_t attribute_modifier = 0);
  void send(const StoredMad& stored, Outbox::Kind kind = Outbox::Kind::kFirst);
  // Queues request_ and starts its timeout, at the beginning of its state.
  void queue_request(Time now, Duration give_up_after, std::uint32_t repeats_max);
  // Stops the repeats of request_.
  void finish_request() {
    probe_.reset();
    retry_.stop();
    sending_ = Sending::kNone;
  }
  void report(const Event& event);
  void count_duplicate(wire::cm::AttributeId id) { ++services_.counters.of(id).duplicate; }
  void ignore(Ignored reason) { ++services_.counters.of(reason); }

  // Sends a REJ, and stores it as the answer to duplicates.
  void send_rej(wire::cm::RejSubject subject, const RejectParameters& parameters);
  void send_timeout_rej(wire::cm::RejSubject subject);
  void remember_rej(Time now);
  void refuse_req(const RejectParameters& parameters, Time now);
  void send_probe(Time now);
  void on_probe_timer(Time now);
  void give_up(Time now);
  void report_established(Established::Cause cause, const wire::cm::Rtu* rtu);
  void report_disconnected(Disconnected::Cause cause, const wire::cm::Dreq* dreq);
  void report_rejected(wire::cm::RejReason reason);
  void send_dreq(std::span<const std::byte> private_data, Time now);
  Alternate& alternate();
  bool waits_for_apr() const;
  void give_up_alternate_path(Time now);
  wire::cm::Apr apr_of(const PathAnswer& answer) const;
  wire::cm::Mra mra_of(wire::cm::MraSubject subject) const {
    return {.local_comm_id = local_id_,
            .remote_comm_id = remote_id_,
            .message_mraed = subject,
            .service_timeout = kMraServiceTimeout};
  }
  Duration round_trip() const {
    return services_.round_trips.find(address_.remote()).value_or(round_trip_);
  }
  void note_answer(Time now) { services_.round_trips.record(address_.remote(), retry_, now); }
  Duration timewait() const;
  void enter_timewait(Time now);
  void close();

  Services& services_;
  EndpointHandle handle_{};
  std::uint64_t cookie_;
  bool active_ = false;
  bool peer_to_peer_ = false;
  bool peer_not_ready_ = false;  // peer to peer: the peer rejected our REQ as too early
  State state_ = State::kReqReceived;
  bool was_established_ = false;
  bool reported_disconnected_ = false;
  bool rtu_seen_ = false;

  ServiceId service_id_{};
  mad::Address address_;
  std::uint64_t tid_ = 0;
  CommId local_id_;
  CommId remote_id_{};
  Guid remote_guid_{};
  Qpn local_qpn_{};
  Qpn remote_qpn_{};

  StoredMad request_{};
  Sending sending_ = Sending::kNone;  // the state of request_
  StoredMad answer_{};
  Retry retry_;
  std::unique_ptr<Probe> probe_;  // only while a probe waits for its answer
  std::uint32_t repeats_max_ = Retry::kNoLimit;
  std::uint8_t packet_life_ = 0;            // timeout code
  std::uint8_t peer_response_timeout_ = 0;  // timeout code
  std::uint8_t ack_delay_ = 0;              // timeout code
  std::unique_ptr<Alternate> alternate_;
  Duration round_trip_{};  // the estimate for a peer without a measurement
};

}  // namespace verbena::cm
