#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "wire/drop.h"

// What an engine counts.  A table with names, so that a tool prints all of it without knowing any.
namespace verbena::hca {

enum class Counter : std::uint8_t {
  kPacketsIn,
  kBytesIn,  // BTH to pad
  kPacketsOut,
  kBytesOut,
  // Packets dropped, by reason; what wire/ refused is in Counters::malformed.
  kDropUnknownQp,
  kDropWrongTransport,  // an RC packet for a UD QP and the like
  kDropBadState,        // the QP is not ready to receive
  kDropBadPkey,
  kDropBadQkey,
  kDropWrongSource,         // not from the address the QP is connected to
  kDropNoReceive,           // UD or UC without a posted receive
  kDropTooLong,             // UD or UC larger than the posted receive
  kDropGap,                 // UC: a packet of a message with one missing before it
  kDropRefused,             // UC: what a reliable connection would answer with a NAK
  kDropNoMember,            // for a multicast group that no QP is attached to
  kDropBadGroup,            // for a group and one QP, or for all QPs of no group
  kDropUnexpectedResponse,  // a response to nothing that is under way
  // What no reason above has held back, once for each member of a group; but bad Q_Keys, missing
  // and short receives, gaps, refusals and ghosts show only there.
  kPacketsToQps,
  // Reliability.
  kRetransmissions,  // packets sent again
  kTimeouts,
  kProbes,  // silences after which the oldest packets went out again before the time-out
  kRnrNaksIn,
  kRnrNaksOut,
  kSequenceNaksIn,
  kSequenceNaksOut,
  kErrorNaksIn,
  kErrorNaksOut,
  kReadGaps,            // READ responses seen missing before any timer ran out
  kDuplicates,          // requests behind the expected PSN
  kOutOfOrder,          // requests ahead of it
  kMigrations,          // of QPs to their alternate path
  kRetriesExceeded,     // requests that ended with "retry exceeded"
  kRnrRetriesExceeded,  // and with "RNR retry exceeded"
  // Messages.
  kSends,     // SENDs that completed with success, signaled or not
  kReceives,  // SENDs that completed a receive with success
  // Objects.
  kQpErrors,  // QPs that went to the error state by themselves
  kCqOverflows,
  // Limits reached (hca::Limits), by name.
  kLimitPds,
  kLimitMrs,
  kLimitMws,
  kLimitCqs,
  kLimitAhs,
  kLimitSrqs,
  kLimitQps,
  kLimitGroups,     // multicast groups, or QPs in one
  kLimitSizes,      // max_wr, max_sge, max_inline_bytes, max_cqe
  kLimitSendQueue,  // posted to a queue that is full
  kLimitRecvQueue,
  kLimitFailures,  // RequestFailures that nobody took
  kCount,          // not a counter: how many there are
};

// A name for tools, never null.
const char* to_string(Counter counter);

struct Counters {
  std::array<std::uint64_t, std::to_underlying(Counter::kCount)> values{};
  std::array<std::uint64_t, std::to_underlying(wire::Drop::kCount)> malformed{};

  std::uint64_t& operator[](Counter c) { return values[std::to_underlying(c)]; }
  std::uint64_t operator[](Counter c) const { return values[std::to_underlying(c)]; }
};

}  // namespace verbena::hca
