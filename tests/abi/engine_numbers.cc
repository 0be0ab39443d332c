// Compares the numbers that the engine and the connection managers name with those of Debian's
// headers and of the specification.  It only has to compile.
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "cm_numbers.h"
#include "hca/events.h"
#include "hca/types.h"
#include "rdmacm/types.h"
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

static_assert(same(hca::QpEvent::Kind::kFatal, IBV_EVENT_QP_FATAL));
static_assert(same(hca::QpEvent::Kind::kRequestError, IBV_EVENT_QP_REQ_ERR));
static_assert(same(hca::QpEvent::Kind::kAccessError, IBV_EVENT_QP_ACCESS_ERR));
static_assert(same(hca::QpEvent::Kind::kCommEst, IBV_EVENT_COMM_EST));
static_assert(same(hca::QpEvent::Kind::kSqDrained, IBV_EVENT_SQ_DRAINED));
static_assert(same(hca::QpEvent::Kind::kPathMigrated, IBV_EVENT_PATH_MIG));
static_assert(same(hca::QpEvent::Kind::kPathMigrationError, IBV_EVENT_PATH_MIG_ERR));
static_assert(same(hca::QpEvent::Kind::kLastWqe, IBV_EVENT_QP_LAST_WQE_REACHED));

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

}  // namespace
}  // namespace verbena::numbers
