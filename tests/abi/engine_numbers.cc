// Compares the numbers of the engine and of the connection managers with those of Debian's headers,
// of the C API and of the specification.  Compiling this file is the test.
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "cm_numbers.h"
#include "hca/events.h"
#include "hca/types.h"
#include "process/async_type.h"
#include "rdmacm/types.h"
#include "verbena/c_api.h"
#include "wire/cm_common.h"

namespace verbena::numbers {
namespace {

static_assert(same(rdmacm::EventKind::kAddrResolved, RDMA_CM_EVENT_ADDR_RESOLVED));
static_assert(same(rdmacm::EventKind::kAddrError, RDMA_CM_EVENT_ADDR_ERROR));
static_assert(same(rdmacm::EventKind::kRouteResolved, RDMA_CM_EVENT_ROUTE_RESOLVED));
static_assert(same(rdmacm::EventKind::kRouteError, RDMA_CM_EVENT_ROUTE_ERROR));
static_assert(same(rdmacm::EventKind::kConnectRequest, RDMA_CM_EVENT_CONNECT_REQUEST));
static_assert(same(rdmacm::EventKind::kConnectResponse, RDMA_CM_EVENT_CONNECT_RESPONSE));
static_assert(same(rdmacm::EventKind::kConnectError, RDMA_CM_EVENT_CONNECT_ERROR));
static_assert(same(rdmacm::EventKind::kUnreachable, RDMA_CM_EVENT_UNREACHABLE));
static_assert(same(rdmacm::EventKind::kRejected, RDMA_CM_EVENT_REJECTED));
static_assert(same(rdmacm::EventKind::kEstablished, RDMA_CM_EVENT_ESTABLISHED));
static_assert(same(rdmacm::EventKind::kDisconnected, RDMA_CM_EVENT_DISCONNECTED));
static_assert(same(rdmacm::EventKind::kDeviceRemoval, RDMA_CM_EVENT_DEVICE_REMOVAL));
static_assert(same(rdmacm::EventKind::kMulticastJoin, RDMA_CM_EVENT_MULTICAST_JOIN));
static_assert(same(rdmacm::EventKind::kMulticastError, RDMA_CM_EVENT_MULTICAST_ERROR));
static_assert(same(rdmacm::EventKind::kAddrChange, RDMA_CM_EVENT_ADDR_CHANGE));
static_assert(same(rdmacm::EventKind::kTimewaitExit, RDMA_CM_EVENT_TIMEWAIT_EXIT));
static_assert(same(rdmacm::EventKind::kPathOffered, VB_CM_PATH_OFFERED));
static_assert(same(rdmacm::EventKind::kPathAnswered, VB_CM_PATH_ANSWERED));
static_assert(same(rdmacm::EventKind::kPathUnanswered, VB_CM_PATH_UNANSWERED));

static_assert(same(rdmacm::kPortSpaceNone, VB_PS_NONE));
static_assert(same(rdmacm::kPortSpaceTcp, RDMA_PS_TCP));
static_assert(same(rdmacm::kPortSpaceUdp, RDMA_PS_UDP));
static_assert(same(rdmacm::kPortSpaceIb, RDMA_PS_IB));
static_assert(same(rdmacm::kPortSpaceIpoib, RDMA_PS_IPOIB));
static_assert(same(rdmacm::kQpTypeRc, IBV_QPT_RC));
static_assert(same(rdmacm::kQpTypeUd, IBV_QPT_UD));
static_assert(same(rdmacm::kDatagramQkey, RDMA_UDP_QKEY));
static_assert(same(rdmacm::kRejectConsumer, kRejConsumer));
static_assert(same(rdmacm::kRejectVendorOption, kRejVendorOptionNotSupported));
static_assert(same(rdmacm::kRejectReasonMax, kRejInvalidAlternateFlowLabel));

static_assert(same(hca::QpEvent::Kind::kFatal, IBV_EVENT_QP_FATAL));
static_assert(same(hca::QpEvent::Kind::kRequestError, IBV_EVENT_QP_REQ_ERR));
static_assert(same(hca::QpEvent::Kind::kAccessError, IBV_EVENT_QP_ACCESS_ERR));
static_assert(same(hca::QpEvent::Kind::kCommEst, IBV_EVENT_COMM_EST));
static_assert(same(hca::QpEvent::Kind::kSqDrained, IBV_EVENT_SQ_DRAINED));
static_assert(same(hca::QpEvent::Kind::kPathMigrated, IBV_EVENT_PATH_MIG));
static_assert(same(hca::QpEvent::Kind::kPathMigrationError, IBV_EVENT_PATH_MIG_ERR));
static_assert(same(hca::QpEvent::Kind::kLastWqe, IBV_EVENT_QP_LAST_WQE_REACHED));

static_assert(same(hca::QpType::kRc, IBV_QPT_RC));
static_assert(same(hca::QpType::kUc, IBV_QPT_UC));
static_assert(same(hca::QpType::kUd, IBV_QPT_UD));

static_assert(same(hca::QpState::kReset, IBV_QPS_RESET));
static_assert(same(hca::QpState::kInit, IBV_QPS_INIT));
static_assert(same(hca::QpState::kRtr, IBV_QPS_RTR));
static_assert(same(hca::QpState::kRts, IBV_QPS_RTS));
static_assert(same(hca::QpState::kSqd, IBV_QPS_SQD));
static_assert(same(hca::QpState::kSqe, IBV_QPS_SQE));
static_assert(same(hca::QpState::kError, IBV_QPS_ERR));

static_assert(same(hca::Mtu::k256, IBV_MTU_256));
static_assert(same(hca::Mtu::k4096, IBV_MTU_4096));
static_assert(same(hca::MigrationState::kMigrated, IBV_MIG_MIGRATED));
static_assert(same(hca::MigrationState::kRearm, IBV_MIG_REARM));
static_assert(same(hca::MigrationState::kArmed, IBV_MIG_ARMED));
static_assert(same(hca::WindowType::kOne, IBV_MW_TYPE_1));
static_assert(same(hca::WindowType::kTwo, IBV_MW_TYPE_2));

static_assert(same(hca::access::kLocalWrite, IBV_ACCESS_LOCAL_WRITE));
static_assert(same(hca::access::kRemoteWrite, IBV_ACCESS_REMOTE_WRITE));
static_assert(same(hca::access::kRemoteRead, IBV_ACCESS_REMOTE_READ));
static_assert(same(hca::access::kRemoteAtomic, IBV_ACCESS_REMOTE_ATOMIC));
static_assert(same(hca::access::kWindowBind, IBV_ACCESS_MW_BIND));
static_assert(same(hca::access::kZeroBased, IBV_ACCESS_ZERO_BASED));
static_assert(same(hca::access::kOnDemand, IBV_ACCESS_ON_DEMAND));

static_assert(same(hca::attribute::kState, IBV_QP_STATE));
static_assert(same(hca::attribute::kCurrentState, IBV_QP_CUR_STATE));
static_assert(same(hca::attribute::kSqdNotify, IBV_QP_EN_SQD_ASYNC_NOTIFY));
static_assert(same(hca::attribute::kAccessFlags, IBV_QP_ACCESS_FLAGS));
static_assert(same(hca::attribute::kPkeyIndex, IBV_QP_PKEY_INDEX));
static_assert(same(hca::attribute::kPort, IBV_QP_PORT));
static_assert(same(hca::attribute::kQkey, IBV_QP_QKEY));
static_assert(same(hca::attribute::kPath, IBV_QP_AV));
static_assert(same(hca::attribute::kPathMtu, IBV_QP_PATH_MTU));
static_assert(same(hca::attribute::kTimeout, IBV_QP_TIMEOUT));
static_assert(same(hca::attribute::kRetryCount, IBV_QP_RETRY_CNT));
static_assert(same(hca::attribute::kRnrRetry, IBV_QP_RNR_RETRY));
static_assert(same(hca::attribute::kRqPsn, IBV_QP_RQ_PSN));
static_assert(same(hca::attribute::kMaxRdAtomic, IBV_QP_MAX_QP_RD_ATOMIC));
static_assert(same(hca::attribute::kAlternatePath, IBV_QP_ALT_PATH));
static_assert(same(hca::attribute::kMinRnrTimer, IBV_QP_MIN_RNR_TIMER));
static_assert(same(hca::attribute::kSqPsn, IBV_QP_SQ_PSN));
static_assert(same(hca::attribute::kMaxDestRdAtomic, IBV_QP_MAX_DEST_RD_ATOMIC));
static_assert(same(hca::attribute::kMigrationState, IBV_QP_PATH_MIG_STATE));
static_assert(same(hca::attribute::kCaps, IBV_QP_CAP));
static_assert(same(hca::attribute::kDestinationQpn, IBV_QP_DEST_QPN));

static_assert(same(hca::WcStatus::kSuccess, IBV_WC_SUCCESS));
static_assert(same(hca::WcStatus::kLocalLengthError, IBV_WC_LOC_LEN_ERR));
static_assert(same(hca::WcStatus::kLocalQpOperationError, IBV_WC_LOC_QP_OP_ERR));
static_assert(same(hca::WcStatus::kLocalProtectionError, IBV_WC_LOC_PROT_ERR));
static_assert(same(hca::WcStatus::kFlushed, IBV_WC_WR_FLUSH_ERR));
static_assert(same(hca::WcStatus::kWindowBindError, IBV_WC_MW_BIND_ERR));
static_assert(same(hca::WcStatus::kBadResponse, IBV_WC_BAD_RESP_ERR));
static_assert(same(hca::WcStatus::kLocalAccessError, IBV_WC_LOC_ACCESS_ERR));
static_assert(same(hca::WcStatus::kRemoteInvalidRequest, IBV_WC_REM_INV_REQ_ERR));
static_assert(same(hca::WcStatus::kRemoteAccessError, IBV_WC_REM_ACCESS_ERR));
static_assert(same(hca::WcStatus::kRemoteOperationError, IBV_WC_REM_OP_ERR));
static_assert(same(hca::WcStatus::kRetryExceeded, IBV_WC_RETRY_EXC_ERR));
static_assert(same(hca::WcStatus::kRnrRetryExceeded, IBV_WC_RNR_RETRY_EXC_ERR));
static_assert(same(hca::WcStatus::kRemoteAborted, IBV_WC_REM_ABORT_ERR));
static_assert(same(hca::WcStatus::kFatal, IBV_WC_FATAL_ERR));
static_assert(same(hca::WcStatus::kGeneralError, IBV_WC_GENERAL_ERR));

static_assert(same(hca::WcOpcode::kSend, IBV_WC_SEND));
static_assert(same(hca::WcOpcode::kWrite, IBV_WC_RDMA_WRITE));
static_assert(same(hca::WcOpcode::kRead, IBV_WC_RDMA_READ));
static_assert(same(hca::WcOpcode::kCompareSwap, IBV_WC_COMP_SWAP));
static_assert(same(hca::WcOpcode::kFetchAdd, IBV_WC_FETCH_ADD));
static_assert(same(hca::WcOpcode::kBindWindow, IBV_WC_BIND_MW));
static_assert(same(hca::WcOpcode::kLocalInvalidate, IBV_WC_LOCAL_INV));
static_assert(same(hca::WcOpcode::kReceive, IBV_WC_RECV));
static_assert(same(hca::WcOpcode::kReceiveWriteImm, IBV_WC_RECV_RDMA_WITH_IMM));

static_assert(same(wire::cm::RejReason::kNoQp, kRejNoQp));
static_assert(same(wire::cm::RejReason::kNoResources, kRejNoResources));
static_assert(same(wire::cm::RejReason::kTimeout, kRejTimeout));
static_assert(same(wire::cm::RejReason::kUnsupportedRequest, kRejUnsupportedRequest));
static_assert(same(wire::cm::RejReason::kInvalidServiceId, kRejInvalidServiceId));
static_assert(same(wire::cm::RejReason::kStaleConnection, kRejStaleConnection));
static_assert(same(wire::cm::RejReason::kPrimaryGidRejected, kRejPrimaryGidRejected));
static_assert(same(wire::cm::RejReason::kAlternateGidRejected, kRejAlternateGidRejected));
static_assert(same(wire::cm::RejReason::kPortAndCmRedirect, kRejPortAndCmRedirect));
static_assert(same(wire::cm::RejReason::kPortRedirect, kRejPortRedirect));
static_assert(same(wire::cm::RejReason::kInvalidPathMtu, kRejInvalidPathMtu));
static_assert(same(wire::cm::RejReason::kInsufficientResponderResources,
                   kRejInsufficientResponderResources));
static_assert(same(wire::cm::RejReason::kConsumer, kRejConsumer));
static_assert(same(wire::cm::RejReason::kRnrRetryCountInvalid, kRejRnrRetryCountInvalid));
static_assert(same(wire::cm::RejReason::kInvalidPrimaryFlowLabel, kRejInvalidPrimaryFlowLabel));
static_assert(same(wire::cm::RejReason::kInvalidAlternateFlowLabel, kRejInvalidAlternateFlowLabel));
static_assert(same(wire::cm::RejReason::kVendorOptionNotSupported, kRejVendorOptionNotSupported));

static_assert(same(wire::cm::AprStatus::kAccepted, kAprAccepted));
static_assert(same(wire::cm::AprStatus::kNotSupported, kAprNotSupported));
static_assert(same(wire::cm::AprStatus::kRejected, kAprRejected));
static_assert(same(wire::cm::AprStatus::kRedirect, kAprRedirect));
static_assert(same(wire::cm::AprStatus::kIsCurrentPath, kAprIsCurrentPath));
static_assert(same(wire::cm::AprStatus::kGidRejected, kAprGidRejected));
static_assert(same(wire::cm::AprStatus::kFlowLabelRejected, kAprFlowLabelRejected));
static_assert(same(wire::cm::AprStatus::kTrafficClassRejected, kAprTrafficClassRejected));
static_assert(same(wire::cm::AprStatus::kHopLimitRejected, kAprHopLimitRejected));

static_assert(same(process::AsyncType::kCqError, IBV_EVENT_CQ_ERR));
static_assert(same(process::AsyncType::kDeviceFatal, IBV_EVENT_DEVICE_FATAL));
static_assert(same(process::AsyncType::kPortActive, IBV_EVENT_PORT_ACTIVE));
static_assert(same(process::AsyncType::kPortError, IBV_EVENT_PORT_ERR));
static_assert(same(process::AsyncType::kSrqLimitReached, IBV_EVENT_SRQ_LIMIT_REACHED));
static_assert(same(process::AsyncType::kGidChange, IBV_EVENT_GID_CHANGE));

}  // namespace
}  // namespace verbena::numbers
