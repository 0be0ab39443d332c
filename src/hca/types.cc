#include "hca/types.h"

#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "hca/counters.h"

namespace verbena::hca {

static_assert(std::is_trivially_copyable_v<QpRow>);

const char* to_string(QpType type) {
  switch (type) {
    case QpType::kRc: return "RC";
    case QpType::kUc: return "UC";
    case QpType::kUd: return "UD";
  }
  return "?";
}

const char* to_string(QpState state) {
  switch (state) {
    case QpState::kReset: return "RESET";
    case QpState::kInit: return "INIT";
    case QpState::kRtr: return "RTR";
    case QpState::kRts: return "RTS";
    case QpState::kSqd: return "SQD";
    case QpState::kSqe: return "SQE";
    case QpState::kError: return "ERROR";
  }
  return "?";
}

const char* to_string(WcStatus status) {
  switch (status) {
    case WcStatus::kSuccess: return "success";
    case WcStatus::kLocalLengthError: return "local length error";
    case WcStatus::kLocalQpOperationError: return "local QP operation error";
    case WcStatus::kLocalProtectionError: return "local protection error";
    case WcStatus::kFlushed: return "flushed";
    case WcStatus::kWindowBindError: return "memory management operation error";
    case WcStatus::kBadResponse: return "bad response";
    case WcStatus::kLocalAccessError: return "local access error";
    case WcStatus::kRemoteInvalidRequest: return "remote invalid request";
    case WcStatus::kRemoteAccessError: return "remote access error";
    case WcStatus::kRemoteOperationError: return "remote operation error";
    case WcStatus::kRetryExceeded: return "retries exceeded";
    case WcStatus::kRnrRetryExceeded: return "RNR retries exceeded";
    case WcStatus::kRemoteAborted: return "remote aborted";
    case WcStatus::kFatal: return "fatal";
    case WcStatus::kGeneralError: return "general error";
  }
  return "?";
}

const char* to_string(Counter counter) {
  static constexpr std::array kNames{"packets_in",
                                     "bytes_in",
                                     "packets_out",
                                     "bytes_out",
                                     "drop_unknown_qp",
                                     "drop_wrong_transport",
                                     "drop_bad_state",
                                     "drop_bad_pkey",
                                     "drop_bad_qkey",
                                     "drop_wrong_source",
                                     "drop_no_receive",
                                     "drop_too_long",
                                     "drop_gap",
                                     "drop_refused",
                                     "drop_no_member",
                                     "drop_bad_group",
                                     "drop_unexpected_response",
                                     "packets_to_qps",
                                     "retransmissions",
                                     "timeouts",
                                     "probes",
                                     "rnr_naks_in",
                                     "rnr_naks_out",
                                     "sequence_naks_in",
                                     "sequence_naks_out",
                                     "error_naks_in",
                                     "error_naks_out",
                                     "read_gaps",
                                     "duplicates",
                                     "out_of_order",
                                     "migrations",
                                     "retries_exceeded",
                                     "rnr_retries_exceeded",
                                     "sends",
                                     "receives",
                                     "qp_errors",
                                     "cq_overflows",
                                     "limit_pds",
                                     "limit_mrs",
                                     "limit_mws",
                                     "limit_cqs",
                                     "limit_ahs",
                                     "limit_srqs",
                                     "limit_qps",
                                     "limit_groups",
                                     "limit_sizes",
                                     "limit_send_queue",
                                     "limit_recv_queue",
                                     "limit_failures"};
  static_assert(kNames.size() == std::to_underlying(Counter::kCount));
  const std::size_t index = std::to_underlying(counter);
  return index < kNames.size() ? kNames[index] : "?";
}

}  // namespace verbena::hca
