#include "wire/cm_common.h"

#include <array>
#include <utility>

namespace verbena::wire::cm {
namespace {

// The index is the number of the reason.  The numbers 0 and 34 are not assigned.
constexpr std::array<const char*, 36> kRejReasons = {
    "unknown",
    "no QP available",
    "no EEC available",
    "no resources available",
    "timeout",
    "unsupported request",
    "invalid communication id",
    "invalid communication instance",
    "invalid service id: no program listens on it",
    "invalid transport service type",
    "stale connection",
    "RDC does not exist",
    "primary remote port GID rejected",
    "primary remote port LID rejected",
    "invalid primary SL",
    "invalid primary traffic class",
    "invalid primary hop limit",
    "invalid primary packet rate",
    "alternate remote port GID rejected",
    "alternate remote port LID rejected",
    "invalid alternate SL",
    "invalid alternate traffic class",
    "invalid alternate hop limit",
    "invalid alternate packet rate",
    "port and CM redirection",
    "port redirection",
    "invalid path MTU",
    "insufficient responder resources",
    "rejected by the program",
    "RNR retry count rejected",
    "duplicate local communication id",
    "unsupported class version",
    "invalid primary flow label",
    "invalid alternate flow label",
    "unknown",
    "vendor option not supported",
};

}  // namespace

const char* to_string(SidrStatus status) {
  switch (status) {
    case SidrStatus::kValid: return "valid";
    case SidrStatus::kServiceIdNotSupported: return "no program listens on the port";
    case SidrStatus::kRejected: return "rejected by the consumer";
    case SidrStatus::kNoQp: return "no QP";
    case SidrStatus::kRedirect: return "redirected";
    case SidrStatus::kVersionNotSupported: return "unsupported class version";
  }
  return "unknown";
}

const char* to_string(RejReason reason) {
  const std::size_t number = std::to_underlying(reason);
  return kRejReasons[number < kRejReasons.size() ? number : 0];
}

}  // namespace verbena::wire::cm
