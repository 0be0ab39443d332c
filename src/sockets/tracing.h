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

// Reports to tools what happens to connections (`verbena sockets trace`).
//
// Programs do not report what they do with a ring: the memory of the connection shows it.  So while
// somebody traces, this class looks into the memories from time to time, and reports the changes
// since the last look.  No value in a memory returns to an earlier value, and a last look precedes
// the end of each connection.  So no event is missed, but its time may be late by kLookEvery.
//
// While nobody traces, each call returns at once and costs one comparison.  The owner's loop is the
// only thread.
class Tracing {
 public:
  static constexpr Duration kLookEvery = std::chrono::milliseconds(50);
  // If the peer of an end has not reported after this time, the tools get the event kAlone once.
  static constexpr Duration kAloneAfter = std::chrono::seconds(1);

  using Sessions = std::map<std::uint64_t, std::unique_ptr<Session>>;
  using Memories = std::map<broker::PairId, PairMemory>;

  // All three outlive this object.
  Tracing(const broker::Broker& broker, const Memories& memories, const Sessions& sessions)
      : broker_(broker), memories_(memories), sessions_(sessions) {}

  // Sends the tool what is known already, marked as earlier, and each event from now on.  With
  // `sees_all`, that includes events of other users.
  void add(Session& tool, bool sees_all);
  void remove(std::uint64_t session);
  bool active() const { return !tools_.empty(); }

  // Each of these functions sends the tools an event.  `program` is the session that has sent the
  // message, or that has ended.
  void on_offer(const Session& program, const broker::Report& report, bool in_limits);
  void on_refusal(const Session& program, const broker::Report& report);
  // Reports that the pair has got its memory; if `has_memory` is false, that a limit prevented
  // this.
  void on_introduction(broker::PairId pair, bool has_memory);
  // Call these two before the broker learns of the event.
  void on_forget(const Session& program, const broker::Forget& forget);
  void on_program_end(const Session& program);
  void on_release(broker::PairId pair) { last_counters_.erase(pair); }

  // Looks for what the programs have done.  Call it at deadline().
  void look(Time now);
  Time deadline() const { return active() ? next_look_ : kNever; }

 private:
  // Holds the counters of each direction at the last look.
  using LastCounters = std::array<stream::Counters, 2>;
  struct Tool {
    Session& session;
    bool sees_all = false;
  };

  void report_changes(broker::PairId pair, LastCounters& last, Tool* only_tool);
  void send_event(std::uint64_t cookie, broker::Event event, const Session* actor, Tool* only_tool);
  void send_leave_event(const Session& program, std::uint64_t cookie, broker::What what,
                        std::uint32_t reason);
  static void send(const Tool& tool, const broker::Event& event,
                   std::initializer_list<std::optional<std::uint32_t>> users);

  const broker::Broker& broker_;
  const Memories& memories_;
  const Sessions& sessions_;
  std::map<std::uint64_t, Tool> tools_{};  // by session
  std::map<broker::PairId, LastCounters> last_counters_{};
  std::map<std::uint64_t, Time> alone_deadlines_{};  // by cookie: when to send kAlone
  Time next_look_ = kNever;
};

}  // namespace verbena::sockets
