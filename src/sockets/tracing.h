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

// Reports the events of connections to tools (`verbena sockets trace`).
//
// Programs do not report how they use a ring, but the memory of the connection shows it.  So while
// a tool traces, this class samples the counters in all memories from time to time, and reports the
// changes since the last sample.  No value returns to an earlier value, and this class takes
// another sample before a program forgets its end or ends.  So it misses no event of these
// programs, but the time of an event may be late by kSampleInterval.
//
// While no tool traces, each call returns at once and costs one comparison.  Only the thread of the
// owner's event loop may use this class.
class Tracing {
 public:
  static constexpr Duration kSampleInterval = std::chrono::milliseconds(50);
  // If the peer of an end has not reported after this time, the tools get the event
  // kPeerNotReported once.
  static constexpr Duration kNoPeerAfter = std::chrono::seconds(1);

  using Sessions = std::map<std::uint64_t, std::unique_ptr<Session>>;
  using Memories = std::map<broker::PairId, PairMemory>;

  // REQUIRES: all three arguments outlive this object.
  Tracing(const broker::Broker& broker, Memories& memories, const Sessions& sessions)
      : broker_(broker), memories_(memories), sessions_(sessions) {}

  // Sends the tool the earlier events of all connections, marked as earlier, and each new event.
  // With `sees_all`, the tool also gets the events of other users.
  void add(Session& tool, bool sees_all);
  void remove(std::uint64_t session);
  bool is_active() const { return !tools_.empty(); }

  // These functions send events to the tools.  `program` is the session that has sent the message,
  // or that has ended.
  void on_offer(const Session& program, const broker::Report& report, bool is_within_limits);
  void on_refusal(const Session& program, const broker::Report& report);
  // Reports that the pair has got its memory, or that a limit prevented this (`has_memory` is
  // false).
  void on_introduction(broker::PairId pair, bool has_memory);
  // Call on_forget() and on_program_end() before the broker processes the message or the end.
  void on_forget(const Session& program, const broker::Forget& forget);
  void on_program_end(const Session& program);
  // Forgets the counters of a pair whose memory was released.
  void on_release(broker::PairId pair) { last_counters_.erase(pair); }

  // Reports the events since the last sample.  Call it at deadline().
  void sample(Time now);
  Time deadline() const { return is_active() ? next_sample_ : kNever; }

 private:
  // Holds the counters of each direction at the last sample.
  using LastCounters = std::array<stream::Counters, 2>;
  struct Tool {
    Session& session;
    bool sees_all = false;
  };

  void report_changes(broker::PairId pair, LastCounters& last_counters, Tool* only_tool);
  void send_event(std::uint64_t cookie, broker::Event event, const Session* actor, Tool* only_tool);
  void send_leave_event(const Session& program, std::uint64_t cookie, broker::EventKind kind,
                        std::uint32_t reason);
  static void send(const Tool& tool, const broker::Event& event,
                   std::initializer_list<std::optional<std::uint32_t>> users);

  const broker::Broker& broker_;
  Memories& memories_;
  const Sessions& sessions_;
  std::map<std::uint64_t, Tool> tools_{};  // by session
  std::map<broker::PairId, LastCounters> last_counters_{};
  std::map<std::uint64_t, Time> no_peer_deadlines_{};  // by cookie: when to send kPeerNotReported
  Time next_sample_ = kNever;
};

}  // namespace verbena::sockets
