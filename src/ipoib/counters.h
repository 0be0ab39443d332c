#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/counter_names.h"

namespace verbena::ipoib {

// Names the reasons why the interface ignored a received frame: the frame set no link address,
// confirmed no entry and got no answer.
enum class Ignored : std::uint8_t {
  kMalformed,         // the frame is invalid
  kOtherProtocol,     // the frame is valid, but not for address resolution
  kNotJoined,         // the interface is not in its broadcast group
  kOwnFrame,          // this interface has sent the frame to a group
  kBadLinkAddress,    // no other interface can have the GID or QPN of the sender
  kForged,            // the sender in the frame is not the sender of the packet
  kNoLinkAddress,     // the message has no link-layer address, and the packet has no GRH
  kBadIp,             // no host on the link can have the sender's IP address
  kAddressConflict,   // another host has an IP address of this interface
  kNotForUs,          // the frame requests the address of another host
  kUnknownNeighbour,  // the table has no entry for the sender
  kUnchanged,         // the entry already has this link address, and is not confirmed
  kNoOverride,        // the frame has a new link address but no Override flag
  kWithinLockTime,    // the entry got another link address less than kLockTime ago
  kCount,
};
const char* to_string(Ignored reason);

struct EventCounters {
  std::uint64_t hits = 0;                  // calls of resolve() that returned an address
  std::uint64_t resolved = 0;              // calls of resolve() that got an answer
  std::uint64_t failed = 0;                // calls of resolve() that got no answer
  std::uint64_t failed_without_group = 0;  // failed calls outside the broadcast group
  std::uint64_t requests = 0;  // requests sent for incomplete entries, including repeats
  std::uint64_t probes = 0;    // requests sent for entries with an address
  std::uint64_t lost = 0;      // entries removed because probes got no answer
  std::uint64_t answers = 0;
  std::uint64_t announcements = 0;  // frames that announce the interface's own addresses
  std::uint64_t moved = 0;          // entries whose link address has changed
  std::uint64_t forgotten = 0;      // entries removed by forget() and flush()
  std::uint64_t evicted = 0;        // entries removed because of entries_max
  std::uint64_t entries_refused = 0;
  std::uint64_t waiters_refused = 0;
  std::uint64_t frames_dropped = 0;  // frames not sent because of frames_max
};
inline constexpr auto kEventNames = std::to_array<MemberName<EventCounters>>({
    {&EventCounters::hits, "ipoib_hits"},
    {&EventCounters::resolved, "ipoib_resolved"},
    {&EventCounters::failed, "ipoib_failed"},
    {&EventCounters::failed_without_group, "ipoib_failed_without_group"},
    {&EventCounters::requests, "ipoib_requests"},
    {&EventCounters::probes, "ipoib_probes"},
    {&EventCounters::lost, "ipoib_lost"},
    {&EventCounters::answers, "ipoib_answers"},
    {&EventCounters::announcements, "ipoib_announcements"},
    {&EventCounters::moved, "ipoib_moved"},
    {&EventCounters::forgotten, "ipoib_forgotten"},
    {&EventCounters::evicted, "limit_neighbours_evicted"},
    {&EventCounters::entries_refused, "limit_neighbours"},
    {&EventCounters::waiters_refused, "limit_neighbour_waiters"},
    {&EventCounters::frames_dropped, "limit_neighbour_frames"},
});
static_assert(names_every_counter(kEventNames));

struct Counters : EventCounters {
  std::array<std::uint64_t, static_cast<std::size_t>(Ignored::kCount)> ignored{};

  std::uint64_t& of(Ignored reason) { return ignored[static_cast<std::size_t>(reason)]; }
  std::uint64_t of(Ignored reason) const { return ignored[static_cast<std::size_t>(reason)]; }
};

}  // namespace verbena::ipoib
