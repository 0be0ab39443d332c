#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>

#include "base/counter_names.h"
#include "cm/times.h"
#include "cm/types.h"
#include "wire/cm.h"

namespace verbena::cm {

// Tells why a CM MAD changed nothing.
enum class Ignored : std::uint8_t {
  kMalformed,        // unknown attribute or wrong length
  kOtherVersion,     // another class version, in a message that gets no answer
  kPeerIsPassive,    // peer to peer: this REQ loses against ours
  kUnknownId,        // no such connection or resolution (REP, LAP and DREQ get an answer, though)
  kWrongRemoteId,    // our id is right, but the peer's id or address is wrong
  kWrongQpn,         // a DREQ for another QP
  kWrongState,       // the message came too late or too early for the state
  kLimitReached,     // a limit was reached; the peer repeats the message
  kNotListeningYet,  // no listener yet, see Listeners::expect(); the peer repeats the message
  kCount,
};
const char* to_string(Ignored reason);

// Counts events other than messages.
struct EventCounters {
  std::uint64_t unreachable = 0;
  std::uint64_t late_rtu = 0;             // RTUs that came after the first data or a LAP
  std::uint64_t sends_dropped = 0;        // the outbox was full, because nobody called poll()
  std::uint64_t requests_dropped = 0;     // drop() was called: the listener's backlog is full
  std::uint64_t requests_queued = 0;      // queued by the SendThrottle
  std::uint64_t replies_queued = 0;       // queued by the SendThrottle
  std::uint64_t disconnects_queued = 0;   // queued by the SendThrottle
  std::uint64_t inherited = 0;            // connections taken over from a dead manager
  std::uint64_t inherited_refused = 0;    // connections that inherit() or its caller refused
  std::uint64_t endpoints_refused = 0;    // the limit endpoints_max was reached
  std::uint64_t resolutions_refused = 0;  // the limit resolutions_max was reached
  std::uint64_t listeners_refused = 0;    // listeners_max or a limit of Listeners was reached
};
inline constexpr auto kEventNames = std::to_array<MemberName<EventCounters>>({
    {&EventCounters::unreachable, "cm_unreachable"},
    {&EventCounters::late_rtu, "cm_late_rtu"},
    {&EventCounters::requests_queued, "cm_requests_held"},
    {&EventCounters::replies_queued, "cm_replies_held"},
    {&EventCounters::disconnects_queued, "cm_disconnects_held"},
    {&EventCounters::inherited, "cm_inherited"},
    {&EventCounters::inherited_refused, "cm_inherited_refused"},
    {&EventCounters::sends_dropped, "limit_cm_sends"},
    {&EventCounters::requests_dropped, "limit_backlog"},
    {&EventCounters::endpoints_refused, "limit_endpoints"},
    {&EventCounters::resolutions_refused, "limit_resolutions"},
    {&EventCounters::listeners_refused, "limit_listeners"},
});
static_assert(names_every_counter(kEventNames));

// Counts messages by attribute id, and other events.
struct Counters : EventCounters {
  struct Message {
    std::uint64_t sent = 0;      // without repeats
    std::uint64_t repeated = 0;  // by timer, or to answer a duplicate
    std::uint64_t received = 0;
    std::uint64_t duplicate = 0;
  };
  static constexpr std::size_t kFirst = 0x10;  // REQ
  static constexpr std::size_t kMessages = 11;

  std::array<Message, kMessages> messages{};
  std::array<std::uint64_t, static_cast<std::size_t>(Ignored::kCount)> ignored{};
  // These count REJs by reason.  A reason above kRejectReasonsMax counts as reason 0.
  std::map<std::uint16_t, std::uint64_t> rejects_sent{};
  std::map<std::uint16_t, std::uint64_t> rejects_received{};
  // Records how long endpoints stay in each State.  The time is added when the endpoint leaves the
  // state.
  static constexpr std::size_t kStates = static_cast<std::size_t>(State::kClosed);
  std::array<TimeHistogram, kStates> times{};
  static constexpr std::uint16_t kRejectReasonsMax = 64;

  void count_reject_sent(wire::cm::RejReason reason) { ++rejects_sent[bounded(reason)]; }
  void count_reject_received(wire::cm::RejReason reason) { ++rejects_received[bounded(reason)]; }

  Message& of(wire::cm::AttributeId id) { return messages[static_cast<std::size_t>(id) - kFirst]; }
  const Message& of(wire::cm::AttributeId id) const {
    return messages[static_cast<std::size_t>(id) - kFirst];
  }
  std::uint64_t& of(Ignored reason) { return ignored[static_cast<std::size_t>(reason)]; }
  std::uint64_t of(Ignored reason) const { return ignored[static_cast<std::size_t>(reason)]; }

 private:
  static std::uint16_t bounded(wire::cm::RejReason reason) {
    const auto number = static_cast<std::uint16_t>(reason);
    return number <= kRejectReasonsMax ? number : std::uint16_t{0};
  }
};

}  // namespace verbena::cm
