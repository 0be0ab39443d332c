// Compares the numbers that the C++ API names with those of Debian's headers and of the
// specification.  It only has to compile.
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "cm_numbers.h"
#include "verbena/cm.h"
#include "verbena/ib_cm.h"
#include "verbena/queues.h"

namespace verbena::numbers {
namespace {

static_assert(same(CmEventType::kAddressResolved, RDMA_CM_EVENT_ADDR_RESOLVED));
static_assert(same(CmEventType::kAddressError, RDMA_CM_EVENT_ADDR_ERROR));
static_assert(same(CmEventType::kRouteResolved, RDMA_CM_EVENT_ROUTE_RESOLVED));
static_assert(same(CmEventType::kRouteError, RDMA_CM_EVENT_ROUTE_ERROR));
static_assert(same(CmEventType::kConnectRequest, RDMA_CM_EVENT_CONNECT_REQUEST));
static_assert(same(CmEventType::kConnectResponse, RDMA_CM_EVENT_CONNECT_RESPONSE));
static_assert(same(CmEventType::kConnectError, RDMA_CM_EVENT_CONNECT_ERROR));
static_assert(same(CmEventType::kUnreachable, RDMA_CM_EVENT_UNREACHABLE));
static_assert(same(CmEventType::kRejected, RDMA_CM_EVENT_REJECTED));
static_assert(same(CmEventType::kEstablished, RDMA_CM_EVENT_ESTABLISHED));
static_assert(same(CmEventType::kDisconnected, RDMA_CM_EVENT_DISCONNECTED));
static_assert(same(CmEventType::kDeviceRemoval, RDMA_CM_EVENT_DEVICE_REMOVAL));
static_assert(same(CmEventType::kTimewaitExit, RDMA_CM_EVENT_TIMEWAIT_EXIT));

static_assert(same(QueuePair::Event::kFatal, IBV_EVENT_QP_FATAL));
static_assert(same(QueuePair::Event::kRequestError, IBV_EVENT_QP_REQ_ERR));
static_assert(same(QueuePair::Event::kAccessError, IBV_EVENT_QP_ACCESS_ERR));
static_assert(same(QueuePair::Event::kEstablished, IBV_EVENT_COMM_EST));
static_assert(same(QueuePair::Event::kDrained, IBV_EVENT_SQ_DRAINED));
static_assert(same(QueuePair::Event::kMigrated, IBV_EVENT_PATH_MIG));
static_assert(same(QueuePair::Event::kMigrationError, IBV_EVENT_PATH_MIG_ERR));
static_assert(same(QueuePair::Event::kLastReceive, IBV_EVENT_QP_LAST_WQE_REACHED));
static_assert(same(SharedReceiveQueue::Event::kError, IBV_EVENT_SRQ_ERR));
static_assert(same(SharedReceiveQueue::Event::kLimitReached, IBV_EVENT_SRQ_LIMIT_REACHED));

static_assert(same(RejectReason::kNoQueuePair, kRejNoQp));
static_assert(same(RejectReason::kNoResources, kRejNoResources));
static_assert(same(RejectReason::kTimeout, kRejTimeout));
static_assert(same(RejectReason::kUnsupportedRequest, kRejUnsupportedRequest));
static_assert(same(RejectReason::kInvalidServiceId, kRejInvalidServiceId));
static_assert(same(RejectReason::kStaleConnection, kRejStaleConnection));
static_assert(same(RejectReason::kPrimaryGidRejected, kRejPrimaryGidRejected));
static_assert(same(RejectReason::kAlternateGidRejected, kRejAlternateGidRejected));
static_assert(same(RejectReason::kPortAndCmRedirect, kRejPortAndCmRedirect));
static_assert(same(RejectReason::kPortRedirect, kRejPortRedirect));
static_assert(same(RejectReason::kInvalidPathMtu, kRejInvalidPathMtu));
static_assert(same(RejectReason::kInsufficientResponderResources,
                   kRejInsufficientResponderResources));
static_assert(same(RejectReason::kConsumer, kRejConsumer));
static_assert(same(RejectReason::kRnrRetryCountInvalid, kRejRnrRetryCountInvalid));
static_assert(same(RejectReason::kInvalidPrimaryFlowLabel, kRejInvalidPrimaryFlowLabel));
static_assert(same(RejectReason::kInvalidAlternateFlowLabel, kRejInvalidAlternateFlowLabel));
static_assert(same(RejectReason::kVendorOptionNotSupported, kRejVendorOptionNotSupported));

static_assert(same(PathStatus::kAccepted, kAprAccepted));
static_assert(same(PathStatus::kNotSupported, kAprNotSupported));
static_assert(same(PathStatus::kRejected, kAprRejected));
static_assert(same(PathStatus::kRedirect, kAprRedirect));
static_assert(same(PathStatus::kIsCurrentPath, kAprIsCurrentPath));
static_assert(same(PathStatus::kGidRejected, kAprGidRejected));
static_assert(same(PathStatus::kFlowLabelRejected, kAprFlowLabelRejected));
static_assert(same(PathStatus::kTrafficClassRejected, kAprTrafficClassRejected));
static_assert(same(PathStatus::kHopLimitRejected, kAprHopLimitRejected));

}  // namespace
}  // namespace verbena::numbers
