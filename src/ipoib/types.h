#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/strong.h"
#include "base/time.h"
#include "link/address.h"
#include "wire/bth.h"

// Defines the inputs and outputs of Neighbours.
namespace verbena::ipoib {

// Names an IPoIB interface on a subnet by the GID of its port and the number of its queue pair.
struct LinkAddress {
  Gid gid{};
  Qpn qpn{};

  friend bool operator==(const LinkAddress&, const LinkAddress&) = default;
};

struct Config {
  std::uint32_t entries_max = 4096;
  std::uint32_t waiters_max = 16384;  // unanswered calls of resolve()
  std::uint32_t frames_max = 8192;    // frames that wait for poll()
};

// Requests are repeated at this interval as long as a call of resolve() (a waiter) waits.  Requests
// for a known address (probes) are repeated until kTries of them got no answer.  RFC 4861 section
// 10 and Linux have the same interval and number of tries.  The interval does not grow, because
// each waiter waits for only three tries.
inline constexpr Duration kRequestInterval = std::chrono::seconds(1);
inline constexpr std::uint32_t kTries = 3;
inline constexpr Duration kAnswerTimeout = kTries * kRequestInterval;
// Limits how long a waiter waits for the interface to join its broadcast group.
inline constexpr Duration kGroupTimeout = std::chrono::seconds(10);
// An answer is used for this time without another request (RFC 4861 section 10: REACHABLE_TIME).
inline constexpr Duration kReachableTime = std::chrono::seconds(30);
// Limits the age of the entries that resolve() uses.  Older entries are ignored.
inline constexpr Duration kAgeMax = std::chrono::minutes(10);
// A message with another link address is ignored if it comes within this time after the address of
// the entry last changed (locktime of ARP on Linux).
inline constexpr Duration kLockTime = std::chrono::seconds(1);

// Names the state of an entry (RFC 4861 section 7.3.2).  The state DELAY is not needed, because no
// other protocol confirms that a neighbour is reachable.
enum class State : std::uint8_t {
  kIncomplete,  // the entry has waiters, and no link address yet
  kReachable,   // confirmed within kReachableTime
  kStale,       // not confirmed within kReachableTime; the next use sends a request
  kProbe,       // a request is pending, but the entry is still used
};
const char* to_string(State state);

// ---- Outputs

// Asks the owner to send a frame from the interface's queue pair, as the payload of a UD SEND with
// a GRH.
struct SendFrame {
  // The QPN of a group is kMulticastQpn.  If the SA does not know the solicited-node group of
  // another host, the owner may use the broadcast group.  All its members check the IP address in
  // the frame.
  LinkAddress to{};
  // Only answers to one host have this path, which is the reversed path of the request.  Therefore
  // such an answer needs no path record.  The source LID is not set.
  std::optional<link::Address> reply_path{};
  std::vector<std::byte> frame{};

  bool is_multicast() const { return to.qpn == wire::kMulticastQpn; }
  friend bool operator==(const SendFrame&, const SendFrame&) = default;
};

// Ends a call of resolve() that had to wait.  Errors:
//  * kAddressNotFound: no host has answered, or the address is not on the link any more.
//  * kTimedOut: the interface was not in its broadcast group for kGroupTimeout.
struct Resolved {
  std::uint64_t cookie{};
  Gid ip{};
  Result<LinkAddress> neighbour{};
};

using Output = std::variant<SendFrame, Resolved>;

// Describes an entry for `verbena sa`.
struct Row {
  Gid ip{};
  State state{};
  LinkAddress neighbour{};  // not set if the entry is incomplete
  // The time since a message of the neighbour last set or confirmed the link address.  In an
  // incomplete entry, the time since the oldest waiter called resolve().
  Duration age{};
  std::size_t waiters = 0;
  std::uint32_t tries = 0;  // requests without an answer

  friend bool operator==(const Row&, const Row&) = default;
};

}  // namespace verbena::ipoib
