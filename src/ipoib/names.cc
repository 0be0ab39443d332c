#include <utility>

#include "ipoib/counters.h"
#include "ipoib/types.h"

namespace verbena::ipoib {

namespace {
constexpr auto kIgnoredNames = std::to_array<CounterName<Ignored>>({
    {Ignored::kMalformed, "malformed"},
    {Ignored::kOtherProtocol, "other protocol"},
    {Ignored::kNotJoined, "not joined"},
    {Ignored::kOwnFrame, "own frame"},
    {Ignored::kBadLinkAddress, "bad link address"},
    {Ignored::kForged, "forged sender"},
    {Ignored::kNoLinkAddress, "no link address"},
    {Ignored::kBadIp, "bad IP address"},
    {Ignored::kAddressConflict, "address conflict"},
    {Ignored::kNotForUs, "not for us"},
    {Ignored::kUnknownNeighbour, "unknown neighbour"},
    {Ignored::kUnchanged, "no news"},
    {Ignored::kNoOverride, "no override"},
    {Ignored::kWithinLockTime, "too soon"},
});
static_assert(names_every_counter(kIgnoredNames));
}  // namespace

const char* to_string(Ignored reason) { return name_of(kIgnoredNames, reason); }

const char* to_string(State state) {
  switch (state) {
    case State::kIncomplete: return "incomplete";
    case State::kReachable: return "reachable";
    case State::kStale: return "stale";
    case State::kProbe: return "probe";
  }
  std::unreachable();
}

}  // namespace verbena::ipoib
