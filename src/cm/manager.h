#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/handle.h"
#include "base/random.h"
#include "base/strong.h"
#include "base/time.h"
#include "cm/answer_cache.h"
#include "cm/comm_ids.h"
#include "cm/counters.h"
#include "cm/endpoint.h"
#include "cm/listeners.h"
#include "cm/outbox.h"
#include "cm/send_throttle.h"
#include "cm/sidr.h"
#include "cm/types.h"
#include "mad/dispatcher.h"

namespace verbena::cm {

class Tables;

// Establishes, tracks and ends the RC connections of one host by CM messages.
//
//   consumer                           Manager                            peer
//   connect()  ------------------> [Endpoint] --- REQ ------------------>
//       RepReceived <--------------           <-- REP -------------------
//   establish() ----------------->            --- RTU ------------------>
//   listen()
//       ReqReceived <-------------- [Endpoint] <-- REQ -------------------
//   accept() -------------------->            --- REP ------------------>
//       Established <--------------           <-- RTU, or the first data -
//   load_alternate_path() ------->            --- LAP ------------------>
//       AprReceived <--------------           <-- APR -------------------
//   disconnect() ---------------->            --- DREQ ----------------->
//       Disconnected, TimewaitExit            <-- DREP ------------------
//
// Two hosts that connect peer to peer (ConnectRequest) both call connect().  The protocol decides
// which of them becomes the passive side and gets ReqReceived; the other one gets RepReceived.
//
// Spec: vol1 12.9 (states), 12.9.8 (timeouts), 12.10 (stale connections, timewait).
//
// The Manager does no I/O itself: after each call the owner drains poll() and asks for deadline()
// again.  A call that the endpoint's state does not allow fails with kBadState; a stale or forged
// handle fails with kBadHandle.
//
// Invariants:
//  * A repeated request gets the same answer again, for as long as the peer may repeat it.  (A REJ
//    is repeated for twice the peer's repeat interval, see RejCache.)
//  * Between connect() or accept() and kClosed, either a deadline is armed or the endpoint waits
//    for its consumer.
//  * An endpoint without an owner ends by itself, and reports nothing.
//  * Every exit from kRepSent or a later state leads through kTimewait, unless the REP is queued.
class Manager {
 public:
  Manager(const Config& config, Random random);
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;
  ~Manager();

  // ---- Consumer
  // connect() sends its REQ, and accept() its REP, at once, unless the QP is in timewait or the
  // SendThrottle queues the message.  The timeout give_up_after includes that wait.  The timeout
  // restarts when the target answers another request, but ends at the latest Retry::kExtensionMax
  // after the call.
  Result<EndpointHandle> connect(const ConnectRequest& request, std::uint64_t cookie, Time now);
  // Reports requests for this service by ReqReceived or SidrReqReceived, with this cookie.
  // kAddressInUse: a request could match another listener as well.
  Result<void> listen(const Service& service, std::uint64_t cookie);
  // Ends a listen() for the same service.  kInvalidArgument: there is no such listener.
  Result<void> unlisten(const Service& service);
  // Announces that a program will probably listen for the service before `until`.  Until then,
  // requests for the service are neither answered nor rejected, so the peers repeat them.
  void expect(ServiceId id, Time now, Time until) { listeners_.expect(id, now, until); }
  void stop_expecting(ServiceId id) { listeners_.stop_expecting(id); }

  Result<void> set_cookie(EndpointHandle endpoint, std::uint64_t cookie);
  // Answers ReqReceived with a REP.
  Result<void> accept(EndpointHandle endpoint, const AcceptParameters& parameters, Time now);
  // Answers ReqReceived or RepReceived with a REJ.
  Result<void> reject(EndpointHandle endpoint, const RejectParameters& parameters, Time now);
  // Forgets the REQ of a ReqReceived as if it had been lost, so that the peer repeats it.
  Result<void> drop(EndpointHandle endpoint);
  // Answers RepReceived with an RTU, once the QP is ready.  `private_data` has at most 224 bytes.
  Result<void> establish(EndpointHandle endpoint, std::span<const std::byte> private_data,
                         Time now);
  // Reports that the QP received its first packet.  Changes nothing if the connection is
  // established already.
  void comm_established(EndpointHandle endpoint, Time now);
  void comm_established(Qpn local_qpn, Time now);
  // Ends the connection with a DREQ.  `private_data` has at most 220 bytes.  kBadState: the
  // connection was neither accepted nor established, or is ending already.
  Result<void> disconnect(EndpointHandle endpoint, std::span<const std::byte> private_data,
                          Time now);
  // Sends a LAP, which offers the peer an alternate path for the QP.  Only the active side of an
  // established connection may call it.  `private_data` has at most 168 bytes.  AprReceived or
  // LapUnanswered follows.  kBusy: the last LAP was not answered yet.
  Result<void> load_alternate_path(EndpointHandle endpoint, const AlternatePath& path,
                                   std::span<const std::byte> private_data, Duration give_up_after,
                                   Time now);
  // Answers LapReceived with an APR.
  Result<void> answer_alternate_path(EndpointHandle endpoint, const PathAnswer& answer);
  // Reports that the QP migrated to the alternate path that both sides accepted.  CM messages use
  // the new path from now on as well.
  void path_migrated(EndpointHandle endpoint);
  void path_migrated(Qpn local_qpn);
  // Ends a connection whose manager has died: repeats the DREQ until it is answered or
  // kDisconnectTimeout is over.  kBusy: the connection is ending already, or another connection has
  // its id.  kNoResources: inherited_max connections are ending already, or there are endpoints_max
  // endpoints.
  Result<void> inherit(const InheritedConnection& inherited, Time now);
  // Destroys the endpoint in any state.  The peer gets a REJ or DREQ.  The manager itself repeats
  // the DREQ, although the endpoint has no owner any more.
  Result<void> destroy(EndpointHandle endpoint, Time now);

  // Sends queued DREQs, at most a few thousand for each call.  Before the process ends, call it
  // until it returns false: then no DREQ is queued any more.
  bool flush_disconnects(Time now);

  // Resolves the services of datagram QPs.  The listeners of the Manager also get SIDR requests, by
  // SidrReqReceived.
  Sidr& sidr() { return sidr_; }
  const Sidr& sidr() const { return sidr_; }

  // Sets the P_Key table of a port.  A request is rejected if it arrives at a port that is not in
  // its partition.  Initially the default port has the default P_Key, and other ports have none.
  void set_pkeys(PortId port, std::vector<Pkey> pkeys);

  // ---- Wire and time
  void receive(const mad::Delivered& mad, Time now);
  void on_timer(Time now);
  Time deadline() const;
  std::optional<Output> poll() { return outbox_.poll(); }

  // ---- Queries
  // Returns true if an endpoint without an owner is still ending.  Then the process must not end
  // yet.
  bool has_orphans() const { return !orphans_.empty(); }
  std::optional<View> view(EndpointHandle endpoint) const;
  std::size_t endpoints() const;
  const Counters& counters() const { return counters_; }
  // Counts an inherited connection that the caller has refused itself.
  void count_inherited_refused() { ++counters_.inherited_refused; }
  // Calls f for every endpoint, also for those without an owner, in the order of their comm ids.
  void visit(const std::function<void(const View&)>& f) const;

 private:
  bool is_our_partition(PortId port, Pkey theirs) const;
  void receive_req(const mad::Delivered& mad, const wire::cm::Req& req, Time now);
  // If this REQ belongs to one of our peer-to-peer endpoints, gives it the REQ and returns true.
  bool match_peer_to_peer(const mad::Delivered& mad, const wire::cm::Req& req, Time now);
  void receive_rep(const mad::Delivered& mad, const wire::cm::Rep& rep, Time now);
  void receive_rej(const wire::cm::Rej& rej, Time now);
  void receive_lap(const mad::Delivered& mad, const wire::cm::Lap& lap, Time now);
  void receive_dreq(const mad::Delivered& mad, const wire::cm::Dreq& dreq, Time now);
  void receive_wrong_version(const mad::Delivered& mad, const wire::cm::Message& message);
  Endpoint* find_and_note_answer(CommId ours, CommId theirs, Time now);

  // Repeats the REJ that answered this REQ or REP before.  Returns false if there was none.
  bool repeat_rej(const mad::Delivered& mad, wire::cm::AttributeId request, RejCache::Key key,
                  Time now);
  // Rejects a message that belongs to no endpoint.
  void refuse(const mad::Delivered& mad, CommId theirs, wire::cm::RejSubject subject,
              wire::cm::RejReason reason, CommId ours = {});
  mad::Mad answer(const mad::Delivered& mad, const wire::cm::Message& message) const;
  void ignore(Ignored reason) { ++counters_.of(reason); }

  Result<Endpoint*> find(EndpointHandle handle) const;
  Time quiesce_until(Qpn local_qpn, Time now) const;
  std::vector<CommId> connections_of_qp(Qpn qpn, Guid guid, const Gid& from) const;
  void check_stale(const std::vector<CommId>& ids, Time now);
  CommId new_id();
  Result<EndpointHandle> add_endpoint(std::unique_ptr<Endpoint> endpoint, Time now);
  // Updates counters and the trace if the state changed.
  void note_state(Endpoint& endpoint, Time now);
  void quiesce_or_request_permit(Endpoint& endpoint, Time until, Time now);
  void on_quiesced(Endpoint& endpoint, Time now);
  void request_permit(Endpoint& endpoint, Time now);
  void release_permit(Endpoint& endpoint, Time now);
  // Tells the SendThrottle that the target has answered.  REQUIRES: the endpoint's state has not
  // changed yet.
  void note_answer(const Endpoint& endpoint, Time now);
  // Updates the endpoint's ticket, its deadline and its entries in the tables, and removes it if it
  // has closed.  Every input to an endpoint must be followed by this call.
  void update_or_remove(Endpoint& endpoint, Time now);
  // Sends the queued DREQ of this QP, if there is one.
  void flush_disconnect_of(Qpn local_qpn, Time now);
  void flush_disconnect(Endpoint& endpoint, Time now);
  // Keeps an endpoint without an owner until it ends.
  void make_orphan(std::unique_ptr<Endpoint> endpoint);

  Config config_;
  Random random_;
  mad::TransactionIds transaction_ids_;
  CommIds comm_ids_;
  Counters counters_;
  Outbox outbox_;
  RejCache rej_cache_;
  RoundTrips round_trips_;
  Services services_;
  Sidr sidr_;
  const std::unique_ptr<Tables> tables_;
  SendThrottle throttle_;
  Listeners listeners_;
  Slots<Endpoint> slots_;
  std::list<std::unique_ptr<Endpoint>> orphans_;
  std::size_t inherited_ = 0;  // the number of orphans_ that inherit() made
  std::map<PortId, std::vector<Pkey>> pkeys_{{PortId{}, {kDefaultPkey}}};
};

}  // namespace verbena::cm
