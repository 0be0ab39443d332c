#include "hca/types.h"

#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "base/counter_names.h"
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

namespace {
constexpr auto kCounterNames = std::to_array<CounterName<Counter>>({
    {Counter::kPacketsIn, "packets_in"},
    {Counter::kBytesIn, "bytes_in"},
    {Counter::kPacketsOut, "packets_out"},
    {Counter::kBytesOut, "bytes_out"},
    {Counter::kDropUnknownQp, "drop_unknown_qp"},
    {Counter::kDropWrongTransport, "drop_wrong_transport"},
    {Counter::kDropBadState, "drop_bad_state"},
    {Counter::kDropBadPkey, "drop_bad_pkey"},
    {Counter::kDropBadQkey, "drop_bad_qkey"},
    {Counter::kDropWrongSource, "drop_wrong_source"},
    {Counter::kDropNoReceive, "drop_no_receive"},
    {Counter::kDropTooLong, "drop_too_long"},
    {Counter::kDropGap, "drop_gap"},
    {Counter::kDropRefused, "drop_refused"},
    {Counter::kDropNoMember, "drop_no_member"},
    {Counter::kDropBadGroup, "drop_bad_group"},
    {Counter::kDropUnexpectedResponse, "drop_unexpected_response"},
    {Counter::kDropExecuted, "drop_executed"},
    {Counter::kPacketsToQps, "packets_to_qps"},
    {Counter::kRetransmissions, "retransmissions"},
    {Counter::kTimeouts, "timeouts"},
    {Counter::kProbes, "probes"},
    {Counter::kRnrNaksIn, "rnr_naks_in"},
    {Counter::kRnrNaksOut, "rnr_naks_out"},
    {Counter::kSequenceNaksIn, "sequence_naks_in"},
    {Counter::kSequenceNaksOut, "sequence_naks_out"},
    {Counter::kErrorNaksIn, "error_naks_in"},
    {Counter::kErrorNaksOut, "error_naks_out"},
    {Counter::kReadGaps, "read_gaps"},
    {Counter::kDuplicates, "duplicates"},
    {Counter::kOutOfOrder, "out_of_order"},
    {Counter::kMigrations, "migrations"},
    {Counter::kRetriesExceeded, "retries_exceeded"},
    {Counter::kRnrRetriesExceeded, "rnr_retries_exceeded"},
    {Counter::kSends, "sends"},
    {Counter::kReceives, "receives"},
    {Counter::kDirectWrites, "direct_writes"},
    {Counter::kDirectReads, "direct_reads"},
    {Counter::kDirectBytes, "direct_bytes"},
    {Counter::kDirectRefused, "direct_refused"},
    {Counter::kQpErrors, "qp_errors"},
    {Counter::kCqOverflows, "cq_overflows"},
    {Counter::kLimitPds, "limit_pds"},
    {Counter::kLimitMrs, "limit_mrs"},
    {Counter::kLimitMws, "limit_mws"},
    {Counter::kLimitCqs, "limit_cqs"},
    {Counter::kLimitAhs, "limit_ahs"},
    {Counter::kLimitSrqs, "limit_srqs"},
    {Counter::kLimitQps, "limit_qps"},
    {Counter::kLimitGroups, "limit_groups"},
    {Counter::kLimitSizes, "limit_sizes"},
    {Counter::kLimitSendQueue, "limit_send_queue"},
    {Counter::kLimitRecvQueue, "limit_recv_queue"},
    {Counter::kLimitPublished, "limit_published"},
    {Counter::kLimitFailures, "limit_failures"},
});
static_assert(names_every_counter(kCounterNames));

}  // namespace

const char* to_string(Counter counter) { return name_of(kCounterNames, counter); }

}  // namespace verbena::hca
