#include "hca/transitions.h"

#include <algorithm>
#include <array>

namespace verbena::hca {
namespace {

using enum QpState;
using enum QpType;
using namespace attribute;

struct Row {
  QpType type;
  QpState from;
  QpState to;
  std::uint32_t required;
  std::uint32_t optional;
};

// kCurrentState is an optional attribute of all transitions to RTS.
// clang-format off
constexpr auto kRows = std::to_array<Row>({
  {kRc, kReset, kInit, kPkeyIndex | kPort | kAccessFlags, 0},
  {kRc, kInit,  kInit, 0, kPkeyIndex | kPort | kAccessFlags},
  {kRc, kInit,  kRtr,  kPath | kPathMtu | kDestinationQpn | kRqPsn | kMaxDestRdAtomic | kMinRnrTimer,
                       kAccessFlags | kPkeyIndex | kAlternatePath},
  {kRc, kRtr,   kRts,  kSqPsn | kTimeout | kRetryCount | kRnrRetry | kMaxRdAtomic,
                       kCurrentState | kAccessFlags | kMinRnrTimer | kAlternatePath | kMigrationState},
  {kRc, kRts,   kRts,  0, kCurrentState | kAccessFlags | kMinRnrTimer | kAlternatePath | kMigrationState},
  {kRc, kRts,   kSqd,  0, kSqdNotify},
  {kRc, kSqd,   kRts,  0, kCurrentState | kAccessFlags | kMinRnrTimer | kAlternatePath | kMigrationState},
  {kRc, kSqd,   kSqd,  0, kPath | kPort | kTimeout | kRetryCount | kRnrRetry | kMaxRdAtomic |
                          kMaxDestRdAtomic | kAccessFlags | kPkeyIndex | kMinRnrTimer |
                          kAlternatePath | kMigrationState},
  {kUc, kReset, kInit, kPkeyIndex | kPort | kAccessFlags, 0},
  {kUc, kInit,  kInit, 0, kPkeyIndex | kPort | kAccessFlags},
  {kUc, kInit,  kRtr,  kPath | kPathMtu | kDestinationQpn | kRqPsn,
                       kAccessFlags | kPkeyIndex | kAlternatePath},
  {kUc, kRtr,   kRts,  kSqPsn, kCurrentState | kAccessFlags | kAlternatePath | kMigrationState},
  {kUc, kRts,   kRts,  0, kCurrentState | kAccessFlags | kAlternatePath | kMigrationState},
  {kUc, kRts,   kSqd,  0, kSqdNotify},
  {kUc, kSqd,   kRts,  0, kCurrentState | kAccessFlags | kAlternatePath | kMigrationState},
  {kUc, kSqd,   kSqd,  0, kPath | kPort | kAccessFlags | kPkeyIndex | kAlternatePath | kMigrationState},
  {kUc, kSqe,   kRts,  0, kCurrentState | kAccessFlags},
  {kUd, kReset, kInit, kPkeyIndex | kPort | kQkey, 0},
  {kUd, kInit,  kInit, 0, kPkeyIndex | kPort | kQkey},
  {kUd, kInit,  kRtr,  0, kPkeyIndex | kQkey},
  {kUd, kRtr,   kRts,  kSqPsn, kCurrentState | kQkey},
  {kUd, kRts,   kRts,  0, kCurrentState | kQkey},
  {kUd, kRts,   kSqd,  0, kSqdNotify},
  {kUd, kSqd,   kRts,  0, kCurrentState | kQkey},
  {kUd, kSqd,   kSqd,  0, kPkeyIndex | kQkey},
  {kUd, kSqe,   kRts,  0, kCurrentState | kQkey},
});
// clang-format on

constexpr Psn kPsnMax{kMask24};
constexpr Qpn kQpnLast{0xfffffe};  // 0xffffff is multicast
constexpr std::uint8_t kFiveBits = 31;
constexpr std::uint8_t kThreeBits = 7;
constexpr const char* kNoPort = "the device has no port with this number";
constexpr const char* kNoPkey = "the P_Key table has no entry at this index";

// Returns a message if the port, the port of a path, or a P_Key index is not valid for the device
// and its tables; else null.
const char* find_port_error(const QpAttributes& current, const QpAttributes& a, std::uint32_t mask,
                            const Ports& ports, std::uint8_t device) {
  const auto has = [mask](std::uint32_t bit) { return (mask & bit) != 0; };
  const PortId port{device, has(kPort) ? a.port : current.port};
  if (!ports.has(port)) return kNoPort;
  if (has(kPkeyIndex) && a.pkey_index >= ports.pkeys(port).size()) return kNoPkey;
  if (has(kPath) && a.path.address.port != port) return "the path begins at another port";
  if (!has(kAlternatePath)) return nullptr;
  const PortId alternate{device, a.alternate_port};
  if (!ports.has(alternate)) return kNoPort;
  if (a.alternate_pkey_index >= ports.pkeys(alternate).size()) return kNoPkey;
  return a.alternate_path.address.port == alternate ? nullptr
                                                    : "the alternate path begins at another port";
}

// Returns a message about the first attribute of the mask with an invalid value, or null.
const char* find_value_error(const QpAttributes& a, std::uint32_t mask, const Limits& limits) {
  const auto has = [mask](std::uint32_t bit) { return (mask & bit) != 0; };
  if (has(kPathMtu) && (a.path_mtu < Mtu::k256 || a.path_mtu > Mtu::k4096))
    return "path_mtu is not a valid MTU";
  if (has(kRqPsn) && a.rq_psn.value > kPsnMax.value) return "rq_psn has more than 24 bits";
  if (has(kSqPsn) && a.sq_psn.value > kPsnMax.value) return "sq_psn has more than 24 bits";
  if (has(kDestinationQpn) && (a.destination_qpn.value == 0 || a.destination_qpn > kQpnLast)) {
    return "destination_qpn is 0 or above 0xfffffe";
  }
  if (has(kMinRnrTimer) && a.min_rnr_timer > kFiveBits) return "min_rnr_timer is above 31";
  if (has(kTimeout) && a.timeout > kFiveBits) return "timeout is above 31";
  if (has(kRetryCount) && a.retry_count > kThreeBits) return "retry_count is above 7";
  if (has(kRnrRetry) && a.rnr_retry > kThreeBits) return "rnr_retry is above 7";
  if (has(kMaxRdAtomic) && a.max_rd_atomic > limits.max_rd_atomic)
    return "max_rd_atomic exceeds the limit";
  if (has(kMaxDestRdAtomic) && a.max_dest_rd_atomic > limits.max_rd_atomic) {
    return "max_dest_rd_atomic exceeds the limit";
  }
  if (has(kAlternatePath)) {
    if (a.alternate_timeout > kFiveBits) return "the alternate timeout is above 31";
  }
  return nullptr;
}

// Returns a message if the program may not request this migration state, else null.  A program may
// request MIGRATED or REARM; only a packet from the peer leads to ARMED.
const char* find_migration_error(const QpAttributes& current, const QpAttributes& target,
                                 std::uint32_t mask) {
  if ((mask & kMigrationState) == 0 || target.migration == MigrationState::kMigrated) {
    return nullptr;
  }
  if (target.migration != MigrationState::kRearm) {
    return "a program may request only the migration states MIGRATED and REARM";
  }
  const bool has_alternate =
      (mask & kAlternatePath) != 0 || current.alternate_path.address != link::Address{};
  return has_alternate ? nullptr : "there is no alternate path to be armed";
}

}  // namespace

Result<void> check_transition(QpType type, const QpAttributes& current, const QpAttributes& target,
                              std::uint32_t mask, const Limits& limits, const Ports& ports,
                              std::uint8_t device) {
  if ((mask & kCaps) != 0) return fail(Errc::kNotSupported, "queues of a QP cannot be resized");
  if ((mask & kCurrentState) != 0 && target.current_state != current.state) {
    return fail(Errc::kInvalidArgument, "the QP is not in the state that current_state names");
  }
  const QpState to = (mask & kState) != 0 ? target.state : current.state;
  const std::uint32_t attributes = mask & ~(kState | kCurrentState);
  const bool is_allowed_from_any_state = to == kError || to == kReset;
  if (is_allowed_from_any_state && (mask & kState) != 0) {
    if (attributes != 0)
      return fail(Errc::kInvalidArgument, "the transitions to RESET and ERROR have no attributes");
    return {};
  }
  const auto row = std::ranges::find_if(
      kRows, [&](const Row& r) { return r.type == type && r.from == current.state && r.to == to; });
  if (row == kRows.end())
    return fail(Errc::kInvalidArgument, "the specification does not allow this transition of a QP");
  if ((row->required & ~attributes) != 0) {
    return fail(Errc::kInvalidArgument, "a required attribute of this transition is missing");
  }
  if ((attributes & ~(row->required | row->optional)) != 0) {
    return fail(Errc::kInvalidArgument, "an attribute does not belong to this transition");
  }
  if ((mask & kCurrentState) != 0 && (row->optional & kCurrentState) == 0) {
    return fail(Errc::kInvalidArgument, "current_state is not an attribute of this transition");
  }
  if (const char* error = find_port_error(current, target, mask, ports, device)) {
    return fail(Errc::kInvalidArgument, error);
  }
  if (const char* error = find_value_error(target, mask, limits)) {
    return fail(Errc::kInvalidArgument, error);
  }
  if (const char* error = find_migration_error(current, target, mask)) {
    return fail(Errc::kInvalidArgument, error);
  }
  return {};
}

}  // namespace verbena::hca
