#include "sockets/tracing.h"

#include <algorithm>
#include <utility>

#include "os/clock.h"

namespace verbena::sockets {
namespace {

using broker::Event;
using broker::EventKind;

// Holds the events at the two ends of a direction since the last sample.  The sender's events are
// sent to the tools first.
struct NewEvents {
  std::vector<Event> sender_events{};
  std::vector<Event> receiver_events{};
};

std::uint64_t wall_ns() {
  return static_cast<std::uint64_t>(os::now().time_since_epoch().count()) +
         os::wall_clock_offset_ns();
}

std::uint32_t number_of(stream::Reason reason) { return static_cast<std::uint32_t>(reason); }

NewEvents events_between(const stream::Counters& before, const stream::Counters& now) {
  NewEvents events;
  if (now.sender_started && !before.sender_started) {
    events.sender_events.push_back({.kind = EventKind::kChangedOver});
  }
  if (now.changes != 0 && before.changes == 0) {
    events.sender_events.push_back({.kind = EventKind::kRing, .offset = now.ring_start});
  }
  if (now.sender_leave_reason != before.sender_leave_reason) {
    events.sender_events.push_back({.kind = EventKind::kSendsByTcp,
                                    .offset = now.segment_start,
                                    .reason = number_of(now.sender_leave_reason)});
  }
  if (now.receiver_leave_reason != before.receiver_leave_reason) {
    events.receiver_events.push_back(
        {.kind = EventKind::kReadsFromTcp, .reason = number_of(now.receiver_leave_reason)});
  }
  return events;
}

void set_actor(Event& event, const Session& actor) {
  event.pid = actor.pid;
  event.program = broker::text_field<broker::kNameBytes>(actor.program);
}

}  // namespace

void Tracing::add(Session& tool, bool sees_all) {
  sample(os::now());
  const bool is_first = tools_.empty();
  Tool& new_tool =
      tools_.emplace(tool.id(), Tool{.session = tool, .sees_all = sees_all}).first->second;
  for (const auto& end : broker_.ends()) {
    for (const broker::ProgramId program : end.holders) {
      send_event(end.cookie, {.kind = EventKind::kOffered, .is_earlier = 1},
                 sessions_.at(program).get(), &new_tool);
    }
    if (!end.pair && is_first) no_peer_deadlines_[end.cookie] = os::now() + kNoPeerAfter;
    if (!end.pair || !memories_.contains(*end.pair)) continue;
    send_event(end.cookie, {.kind = EventKind::kPaired, .is_earlier = 1}, nullptr, &new_tool);
  }
  for (const auto& [pair, memory] : memories_) {
    LastCounters counters{};
    report_changes(pair, counters, &new_tool);
    if (is_first) last_counters_[pair] = counters;
  }
  next_sample_ = os::now() + kSampleInterval;
}

void Tracing::remove(std::uint64_t session) {
  tools_.erase(session);
  if (is_active()) return;
  last_counters_.clear();
  no_peer_deadlines_.clear();
}

void Tracing::on_offer(const Session& program, const broker::Report& report,
                       bool is_within_limits) {
  if (!is_active()) return;
  send_event(report.cookie, {.kind = is_within_limits ? EventKind::kOffered : EventKind::kLimit},
             &program, nullptr);
  const auto end = broker_.end(report.cookie);
  if (end && !end->pair) no_peer_deadlines_[report.cookie] = os::now() + kNoPeerAfter;
}

void Tracing::on_refusal(const Session& program, const broker::Report& report) {
  if (!is_active()) return;
  Event event{.kind = EventKind::kRefused, .wall_ns = wall_ns(), .connection = report.connection};
  set_actor(event, program);
  for (const auto& [id, tool] : tools_) send(tool, event, {program.uid});
}

void Tracing::on_introduction(broker::PairId pair, bool has_memory) {
  if (!is_active()) return;
  for (const std::uint64_t cookie : broker_.cookies_of_pair(pair)) {
    no_peer_deadlines_.erase(cookie);
    send_event(cookie, {.kind = has_memory ? EventKind::kPaired : EventKind::kLimit}, nullptr,
               nullptr);
  }
}

void Tracing::on_forget(const Session& program, const broker::Forget& forget) {
  if (!is_active()) return;
  const auto end = broker_.end(forget.cookie);
  if (!end || std::ranges::find(end->holders, program.id()) == end->holders.end()) return;
  const auto kind = forget.reason != 0 ? EventKind::kWithdrawn : EventKind::kClosed;
  send_leave_event(program, forget.cookie, kind, forget.reason);
}

void Tracing::on_program_end(const Session& program) {
  if (!is_active()) return;
  for (const std::uint64_t cookie : broker_.cookies_of_program(program.id())) {
    send_leave_event(program, cookie, EventKind::kProgramEnded, 0);
  }
}

void Tracing::send_leave_event(const Session& program, std::uint64_t cookie, EventKind kind,
                               std::uint32_t reason) {
  const auto end = broker_.end(cookie);
  if (!end) return;
  Event event{.kind = kind, .reason = reason};
  if (end->pair && memories_.contains(*end->pair)) {
    report_changes(*end->pair, last_counters_[*end->pair], nullptr);
    event.has_ring = 1;
    event.out = memories_.at(*end->pair).traffic(end->side, os::now());
  }
  if (end->holders.size() == 1) no_peer_deadlines_.erase(cookie);
  send_event(cookie, event, &program, nullptr);
}

void Tracing::sample(Time now) {
  if (!is_active()) return;
  next_sample_ = now + kSampleInterval;
  for (const auto& [pair, memory] : memories_) report_changes(pair, last_counters_[pair], nullptr);
  for (auto one = no_peer_deadlines_.begin(); one != no_peer_deadlines_.end();) {
    if (one->second > now) {
      ++one;
      continue;
    }
    send_event(one->first, {.kind = EventKind::kPeerNotReported}, nullptr, nullptr);
    one = no_peer_deadlines_.erase(one);
  }
}

// Reports the changes since `last_counters`, and updates `last_counters`.
void Tracing::report_changes(broker::PairId pair, LastCounters& last_counters, Tool* only_tool) {
  const auto memory = memories_.find(pair);
  if (memory == memories_.end()) return;
  const auto cookies = broker_.cookies_of_pair(pair);
  if (cookies.size() != 2) return;
  for (const std::uint32_t side : {0U, 1U}) {
    const stream::Counters now = memory->second.counters(side);
    const NewEvents events = events_between(std::exchange(last_counters[side], now), now);
    for (Event event : events.sender_events) {
      event.is_earlier = only_tool != nullptr ? 1 : 0;
      send_event(cookies[side], event, nullptr, only_tool);
    }
    for (Event event : events.receiver_events) {
      event.is_earlier = only_tool != nullptr ? 1 : 0;
      send_event(cookies[1 - side], event, nullptr, only_tool);
    }
  }
}

// Completes an event of an end, and sends it to all tools that may see it, or only to `only_tool`.
// If `actor` is null, the event names the end's first holder as the actor.
void Tracing::send_event(std::uint64_t cookie, Event event, const Session* actor, Tool* only_tool) {
  const auto end = broker_.end(cookie);
  if (!end) return;
  const auto first_holder = [this](const broker::Broker::End& holders_end) -> const Session* {
    return holders_end.holders.empty() ? nullptr : sessions_.at(holders_end.holders.front()).get();
  };
  if (actor == nullptr) actor = first_holder(*end);
  event.wall_ns = wall_ns();
  event.cookie = cookie;
  event.connection = end->connection;
  if (actor != nullptr) set_actor(event, *actor);
  const Session* peer = nullptr;
  if (end->pair) {
    const auto cookies = broker_.cookies_of_pair(*end->pair);
    const auto other = broker_.end(cookies[1 - end->side]);
    peer = other ? first_holder(*other) : nullptr;
  }
  if (peer != nullptr) {
    event.peer_pid = peer->pid;
    event.peer_program = broker::text_field<broker::kNameBytes>(peer->program);
  }
  const auto user_of = [](const Session* one) {
    return one != nullptr ? std::optional(one->uid) : std::nullopt;
  };
  for (const auto& [id, tool] : tools_) {
    if (only_tool == nullptr || only_tool == &tool)
      send(tool, event, {user_of(actor), user_of(peer)});
  }
}

void Tracing::send(const Tool& tool, const Event& event,
                   std::initializer_list<std::optional<std::uint32_t>> users) {
  if (tool.sees_all || std::ranges::find(users, std::optional(tool.session.uid)) != users.end()) {
    tool.session.send(event);
  }
}

}  // namespace verbena::sockets
