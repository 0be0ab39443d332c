#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "wire/drop.h"

// Defines the counters of an engine.  Each counter has a name, so that a tool can print all
// counters without a list of its own.
namespace verbena::hca {

enum class Counter : std::uint8_t {
  // The first four also count direct accesses: the packets that these replace, and the bytes of
  // their data, without headers.
  kPacketsIn,
  kBytesIn,  // the bytes from the BTH to the padding; kBytesOut counts the same bytes
  kPacketsOut,
  kBytesOut,
  // These count dropped packets by reason.  Counters::malformed counts the packets that wire/
  // rejected.
  kDropUnknownQp,
  kDropWrongTransport,  // for example an RC packet for a UD QP
  kDropBadState,        // the state of the QP does not accept the packet
  kDropBadPkey,
  kDropBadQkey,
  kDropWrongSource,  // not from the address of the QP's peer; UD: to another port of the host
  kDropNoReceive,    // UD or UC: no receive is posted
  kDropTooLong,      // UD or UC: the message is longer than the posted receive
  kDropGap,          // UC: a packet of the message is missing
  kDropRefused,      // UC: a reliable connection would send a NAK
  kDropNoMember,     // the packet is for a multicast group that no QP is attached to
  kDropBadGroup,  // a group address without the QPN 0xffffff, or this QPN without a group address
  kDropUnexpectedResponse,  // a response that matches no outstanding request
  kDropExecuted,            // a record of a direct access that does not match the state of its QP
  // Counts packets whose transport, P_Key and source are right for the state of their QP, once for
  // each member of a group.  This includes packets that are dropped later: bad Q_Key, missing or
  // short receive, gap, refused, unexpected response.
  kPacketsToQps,
  // These count losses and retransmissions.
  kRetransmissions,
  kTimeouts,
  kProbes,  // retransmissions of the oldest packets before the QP's timeout
  kRnrNaksIn,
  kRnrNaksOut,
  kSequenceNaksIn,
  kSequenceNaksOut,
  kErrorNaksIn,
  kErrorNaksOut,
  kReadGaps,            // missing responses to READs or atomics that a later packet revealed
  kDuplicates,          // requests with a PSN before the expected PSN
  kOutOfOrder,          // requests with a PSN after the expected PSN
  kMigrations,          // switches of QPs to their alternate path
  kRetriesExceeded,     // requests that ended with "retries exceeded"
  kRnrRetriesExceeded,  // requests that ended with "RNR retries exceeded"
  // These count messages.
  kSends,     // SENDs that completed with success, signaled or not
  kReceives,  // receives that a SEND of the peer completed with success
  // Both ends count the WRITEs and READs that the initiator has carried out itself (direct access).
  kDirectWrites,
  kDirectReads,
  kDirectBytes,
  kDirectRefused,  // direct accesses that failed, so that their requests were sent as packets
  // These count failed objects.
  kQpErrors,  // QPs that went to the error state because of a failure
  kCqOverflows,
  // These count how often a limit was reached.  Most of these limits are in hca::Limits.
  kLimitPds,
  kLimitMrs,
  kLimitMws,
  kLimitCqs,
  kLimitAhs,
  kLimitSrqs,
  kLimitQps,
  kLimitGroups,     // multicast groups, or QPs in one group
  kLimitSizes,      // max_wr, max_sge, max_inline_bytes, max_cqe
  kLimitSendQueue,  // posts to a full queue
  kLimitRecvQueue,
  kLimitPublished,  // regions and QPs without a row in the access table
  kLimitFailures,   // RequestFailures that were not stored
  kCount,           // not a counter: the number of counters
};

// Returns a name for tools, never null.
const char* to_string(Counter counter);

struct Counters {
  std::array<std::uint64_t, std::to_underlying(Counter::kCount)> values{};
  std::array<std::uint64_t, std::to_underlying(wire::Drop::kCount)> malformed{};

  std::uint64_t& operator[](Counter c) { return values[std::to_underlying(c)]; }
  std::uint64_t operator[](Counter c) const { return values[std::to_underlying(c)]; }
};

}  // namespace verbena::hca
