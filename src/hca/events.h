#pragma once

#include <cstdint>
#include <variant>

#include "base/strong.h"
#include "hca/types.h"

// Defines the events that an engine reports through Engine::poll_event() (vol1 11.6.3).
namespace verbena::hca {

// Reports that a completion was added to an armed CQ.  The CQ is no longer armed.
struct CqNotify {
  CqHandle cq{};
  std::uint64_t cookie = 0;
  friend bool operator==(const CqNotify&, const CqNotify&) = default;
};

// Reports that a CQ was full and a completion was lost.  The completions in the CQ can still be
// polled.
struct CqError {
  CqHandle cq{};
  std::uint64_t cookie = 0;
  friend bool operator==(const CqError&, const CqError&) = default;
};

// Reports that an SRQ has fewer waiting receives than its limit.  The event resets the limit to 0
// (vol1 11.6.3.3).
struct SrqLimitReached {
  SrqHandle srq{};
  std::uint64_t cookie = 0;
  friend bool operator==(const SrqLimitReached&, const SrqLimitReached&) = default;
};

// Reports an affiliated asynchronous event of a QP (vol1 11.6.3).
struct QpEvent {
  enum class Kind : std::uint8_t {  // the numbers of enum ibv_event_type, except kFirstPacket
    kFatal = 1,
    kRequestError = 2,
    kAccessError = 3,
    kCommEst = 4,  // the first packet of the peer arrived while the QP was in RTR
    kSqDrained = 5,
    kPathMigrated = 6,
    kPathMigrationError = 7,  // the peer migrated to a path that is not the alternate path
    kLastWqe = 16,
    kFirstPacket = 31,  // the first packet of the peer arrived in a later state; only for the CM
  };
  QpHandle qp{};
  std::uint64_t cookie = 0;
  Qpn qpn{};
  Kind kind{};
  friend bool operator==(const QpEvent&, const QpEvent&) = default;
};

using Event = std::variant<CqNotify, QpEvent, CqError, SrqLimitReached>;

}  // namespace verbena::hca
