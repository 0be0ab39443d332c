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
// there since the last look.  Nothing there goes back to what it was before, and a last look
// precedes each end.  So only the time of such an event is uncertain, by kLookEvery.
//
// While nobody traces, each call returns at once and costs one comparison.  The owner's loop is the
// only thread.
class Tracing {
 public:
  static constexpr Duration kLookEvery = std::chrono::milliseconds(50);
  // An end whose peer does not come for so long is told once.
  static constexpr Duration kAloneAfter = std::chrono::seconds(1);

  using Sessions = std::map<std::uint64_t, std::unique_ptr<Session>>;
  using Memories = std::map<broker::PairId, PairMemory>;

  // All three outlive this object.
  Tracing(const broker::Broker& broker, const Memories& memories, const Sessions& sessions)
      : broker_(broker), memories_(memories), sessions_(sessions) {}

  // Tells the tool what is known already, marked as earlier, and each event from now on.
  // `sees_all`: also those of other users.
  void add(Session& tool, bool sees_all);
  void remove(std::uint64_t session);
  bool active() const { return !tools_.empty(); }

  // These tell events.  `program` is the session whose message or end it was.
  void offered(const Session& program, const broker::Report& report, bool in_limits);
  void refused(const Session& program, const broker::Report& report);
  // The pair has got its memory, or not because of a limit.
  void introduced(broker::PairId pair, bool made);
  // Call it before the broker learns of it.
  void forgotten(const Session& program, const broker::Forget& forget);
  void ended(const Session& program);
  void released(broker::PairId pair) { known_.erase(pair); }

  // Looks for what the programs have done.  Call it at deadline().
  void look(Time now);
  Time deadline() const { return active() ? look_at_ : kNever; }

 private:
  using Known = std::array<stream::Counters, 2>;  // of each direction, at the last look
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
  std::map<std::uint64_t, Time> alone_{};  // ends without peer, and when they are told
  Time look_at_ = kNever;
};

}  // namespace verbena::sockets
