#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/time.h"
#include "broker/broker.h"
#include "broker/messages.h"
#include "sockets/pair_memory.h"
#include "sockets/session.h"
#include "stream/memory.h"

namespace verbena::sockets {

// Tells tools what becomes of connections while it happens (`verbena sockets trace`).
//
// Programs do not report what they do with a ring: the memory of the connection says it.  So while
// somebody traces, this class looks into the memories from time to time, and tells what is new
// there since the last look.  No value there returns to an earlier one, and a last look precedes
// the end of each connection.  So no event is missed, but its time may be late by kLookEvery.
//
// While nobody traces, each call returns at once and costs one comparison.  The owner's loop is the
// only thread.
class Tracing {
 public:
  static constexpr Duration kLookEvery = std::chrono::milliseconds(50);
  // If an end's peer has not reported after this time, the tools are told so once.
  static constexpr Duration kAloneAfter = std::chrono::seconds(1);

  using Sessions = std::map<std::uint64_t, std::unique_ptr<Session>>;
  using Memories = std::map<broker::PairId, PairMemory>;

  // All three outlive this object.
  Tracing(const broker::Broker& broker, const Memories& memories, const Sessions& sessions)
      : broker_(broker), memories_(memories), sessions_(sessions) {}

  // Tells the tool what is known already, marked as earlier, and each event from now on.  With
  // `sees_all`, that includes events of other users.
  void add(Session& tool, bool sees_all);
  void remove(std::uint64_t session);
  bool active() const { return !tools_.empty(); }

  // Each of these tells the tools an event.  `program` is the session that has sent the message, or
  // that has ended.
  void offered(const Session& program, const broker::Report& report, bool in_limits);
  void refused(const Session& program, const broker::Report& report);
  // Tells that the pair has got its memory; if `made` is false, that a limit prevented it.
  void introduced(broker::PairId pair, bool made);
  // Call these two before the broker learns of the event.
  void forgotten(const Session& program, const broker::Forget& forget);
  void ended(const Session& program);
  void released(broker::PairId pair) { known_.erase(pair); }

  // Looks for what the programs have done.  Call it at deadline().
  void look(Time now);
  Time deadline() const { return active() ? look_at_ : kNever; }

 private:
  using Known = std::array<stream::Counters, 2>;  // counters of each direction at the last look
  struct Tool {
    Session& session;
    bool sees_all = false;
  };

  void look_at(broker::PairId pair, Known& known, Tool* only);
  void tell_end(std::uint64_t cookie, broker::Event event, const Session* actor, Tool* only);
  void tell_leaving(const Session& program, std::uint64_t cookie, broker::What what,
                    std::uint32_t reason);
  static void send(const Tool& tool, const broker::Event& event,
                   std::initializer_list<std::optional<std::uint32_t>> users);

  const broker::Broker& broker_;
  const Memories& memories_;
  const Sessions& sessions_;
  std::map<std::uint64_t, Tool> tools_{};  // by session
  std::map<broker::PairId, Known> known_{};
  std::map<std::uint64_t, Time> alone_{};  // by cookie: when to tell that an end has no peer
  Time look_at_ = kNever;
};

}  // namespace verbena::sockets
