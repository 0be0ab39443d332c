#include "base/counter_names.h"
#include "cm/counters.h"
#include "cm/types.h"

namespace verbena::cm {

const char* to_string(State state) {
  switch (state) {
    case State::kReqSent: return "REQ_SENT";
    case State::kMraReqReceived: return "MRA_REQ_RCVD";
    case State::kRepReceived: return "REP_RCVD";
    case State::kReqReceived: return "REQ_RCVD";
    case State::kMraReqSent: return "MRA_REQ_SENT";
    case State::kRepSent: return "REP_SENT";
    case State::kMraRepReceived: return "MRA_REP_RCVD";
    case State::kEstablished: return "ESTABLISHED";
    case State::kDreqSent: return "DREQ_SENT";
    case State::kTimewait: return "TIMEWAIT";
    case State::kClosed: return "CLOSED";
  }
  return "?";
}

namespace {
constexpr auto kIgnoredNames = std::to_array<CounterName<Ignored>>({
    {Ignored::kMalformed, "malformed"},
    {Ignored::kOtherVersion, "other class version"},
    {Ignored::kPeerIsPassive, "the peer is passive"},
    {Ignored::kUnknownId, "unknown comm id"},
    {Ignored::kWrongRemoteId, "wrong remote comm id"},
    {Ignored::kWrongQpn, "wrong QPN"},
    {Ignored::kWrongState, "wrong state"},
    {Ignored::kLimitReached, "no room"},
    {Ignored::kNotListeningYet, "not listening yet"},
});
static_assert(names_every_counter(kIgnoredNames));
}  // namespace

const char* to_string(Ignored reason) { return name_of(kIgnoredNames, reason); }

}  // namespace verbena::cm
