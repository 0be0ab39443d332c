#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
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

// Makes, keeps and ends the RC connections of one host by CM messages.
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
// Two hosts that connect to each other peer to peer (ConnectRequest) both call connect(); which of
// the two gets ReqReceived for it, and which RepReceived, is settled between them.
//
// Spec: vol1 12.9 (states), 12.9.8 (timeouts), 12.10 (stale connections, timewait).
//
// A pure machine: after each call the owner drains poll() and asks for deadline() again.  Calls
// that are too late for their state say kBadState; a stale or forged handle kBadHandle.
//
// Invariants:
//  * What was answered once is answered the same way again for as long as the peer may repeat its
//    question.  (A REJ: for twice the peer's repeat interval, see RejCache.)
//  * Between connect() or accept() and Closed, one deadline is armed or the consumer's turn it is.
//  * An endpoint whose owner is gone ends by itself; nothing of it is reported any more.
//  * Every exit from kRepSent or later passes kTimewait, but of a REP that waits and was not said.
class Manager {
 public:
  Manager(const Config& config, Random random);
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;
  ~Manager();

  // ---- Consumer
  // The REQ, and accept()'s REP, goes at once, or when the QP has rested, or when it is its turn
  // (SendThrottle).  That counts as part of its patience, which begins anew with each answer that
  // those get whose turn it is, up to Retry::kExtensionMax after the call.
  Result<EndpointHandle> connect(const ConnectRequest& request, std::uint64_t cookie, Time now);
  // Requests for this service come as ReqReceived, or SidrReqReceived, with this cookie.
  // kAddressInUse: another listener could be meant by one of them.
  Result<void> listen(const Service& service, std::uint64_t cookie);
  Result<void> unlisten(const Service& service);
  // Somebody will listen for the service soon: until then requests are left unanswered, so that
  // their peers ask again, and not refused.
  void expect(ServiceId id, Time now, Time until) { listeners_.expect(id, now, until); }
  void expect_no_more(ServiceId id) { listeners_.expect_no_more(id); }

  Result<void> set_cookie(EndpointHandle endpoint, std::uint64_t cookie);
  // After ReqReceived.
  Result<void> accept(EndpointHandle endpoint, const AcceptParameters& parameters, Time now);
  // After ReqReceived or RepReceived.
  Result<void> reject(EndpointHandle endpoint, const RejectParameters& parameters, Time now);
  // After ReqReceived: forgets it, as if it had been lost, so that the peer asks again.
  Result<void> drop(EndpointHandle endpoint);
  // After RepReceived, when the QP is ready.  At most 224 bytes.
  Result<void> establish(EndpointHandle endpoint, std::span<const std::byte> private_data,
                         Time now);
  // The QP received its first packet.  Nothing happens unless that is news.
  void comm_established(EndpointHandle endpoint, Time now);
  void comm_established(Qpn local, Time now);
  // At most 220 bytes.  kBadState when it is over already, or was never established.
  Result<void> disconnect(EndpointHandle endpoint, std::span<const std::byte> private_data,
                          Time now);
  // Connected, active side: offers the peer another path for the QP, by LAP; at most 168 bytes.
  // AprReceived or LapUnanswered follows.  kBusy: the last one was not answered yet.
  Result<void> load_alternate_path(EndpointHandle endpoint, const AlternatePath& path,
                                   std::span<const std::byte> private_data, Duration give_up_after,
                                   Time now);
  // After LapReceived.
  Result<void> answer_alternate_path(EndpointHandle endpoint, const PathAnswer& answer);
  // The QP has migrated to the path that was agreed on: messages take it, too.
  void path_migrated(EndpointHandle endpoint);
  void path_migrated(Qpn local);
  // Ends a connection of a manager that is no more: DREQ until it is answered or patience ends.
  // kBusy: it is being ended, or its id is another's.  kNoResources: inherited_max.
  Result<void> inherit(const Inherited& inherited, Time now);
  // Drops the endpoint in whatever state: the peer gets REJ or DREQ, and the goodbye goes on alone.
  Result<void> destroy(EndpointHandle endpoint, Time now);

  // The process ends: those who wait for their turn to say goodbye do so now, some thousands at a
  // time.  True: there were any.
  bool flush_disconnects(Time now);

  // Datagrams: who listens is asked for them as well, by SidrReqReceived.
  Sidr& sidr() { return sidr_; }
  const Sidr& sidr() const { return sidr_; }

  // ---- Wire and time
  void receive(const mad::Delivered& mad, Time now);
  void on_timer(Time now);
  Time deadline() const;
  std::optional<Output> poll() { return outbox_.poll(); }

  // ---- Questions
  // No endpoint without an owner: nobody is missed if the process ends now.
  bool idle() const { return orphans_.empty(); }
  std::optional<View> view(EndpointHandle endpoint) const;
  std::size_t endpoints() const;
  const Counters& counters() const { return counters_; }
  // One that the owner has refused before it came here.
  void count_inherited_refused() { ++counters_.inherited_refused; }
  // Every endpoint, those without owners included, in order of their comm ids.
  void visit(const std::function<void(const View&)>& f) const;

 private:
  void receive_req(const mad::Delivered& mad, const wire::cm::Req& req, Time now);
  // True if this REQ met one of ours (peer to peer).
  bool meet(const mad::Delivered& mad, const wire::cm::Req& req, Time now);
  void receive_rep(const mad::Delivered& mad, const wire::cm::Rep& rep, Time now);
  void receive_rej(const wire::cm::Rej& rej, Time now);
  void receive_lap(const mad::Delivered& mad, const wire::cm::Lap& lap, Time now);
  void receive_dreq(const mad::Delivered& mad, const wire::cm::Dreq& dreq, Time now);
  void receive_wrong_version(const mad::Delivered& mad, const wire::cm::Message& message);
  Endpoint* by_ids(CommId ours, CommId theirs, Time now);

  // Repeats the REJ that answered this REQ or REP before; false if there was none.
  bool repeat_rej(const mad::Delivered& mad, wire::cm::AttributeId request, RejCache::Key key,
                  Time now);
  // Answers by nobody in particular.
  void refuse(const mad::Delivered& mad, CommId theirs, wire::cm::RejSubject subject,
              wire::cm::RejReason reason, CommId ours = {});
  mad::Mad answer(const mad::Delivered& mad, const wire::cm::Message& message) const;
  void ignore(Ignored reason) { ++counters_.of(reason); }

  Result<Endpoint*> find(EndpointHandle handle) const;
  Time quiesce_until(Qpn local, Time now) const;
  std::vector<CommId> connected_with(Qpn qpn, Guid guid, const Gid& from) const;
  void reset(const std::vector<CommId>& ids, Time now);
  CommId new_id();
  Result<EndpointHandle> adopt(std::unique_ptr<Endpoint> endpoint, Time now);
  // After every input to an endpoint: its deadline, its places in the tables, its end.
  void note_state(Endpoint& endpoint, Time now);
  void quiesce_or_request_send(Endpoint& endpoint, Time rested, Time now);
  void on_quiesced(Endpoint& endpoint, Time now);
  void request_send(Endpoint& endpoint, Time now);
  void release_send(Endpoint& endpoint, Time now);
  // Before it is dealt with.
  void note_answer(const Endpoint& endpoint, Time now);
  void settle(Endpoint& endpoint, Time now);
  // A DREQ that waits for its turn is said now.
  void flush_disconnect_of(Qpn local, Time now);
  void flush_disconnect(Endpoint& endpoint, Time now);
  // Nobody holds it any more: it is here until it ends.
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
  std::size_t inherited_ = 0;  // of them
};

}  // namespace verbena::cm
