// Compares the numbers of the C++ API with those of Debian's headers and of the specification.
// Compiling this file is the test.
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "cm_numbers.h"
#include "verbena/cm.h"
#include "verbena/ib_cm.h"
#include "verbena/queues.h"
#include "verbena/window.h"

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

static_assert(same(Transport::kRc, IBV_QPT_RC));
static_assert(same(Transport::kUc, IBV_QPT_UC));
static_assert(same(Transport::kUd, IBV_QPT_UD));
static_assert(same(Endpoint::Kind::kConnection, IBV_QPT_RC));
static_assert(same(Endpoint::Kind::kDatagrams, IBV_QPT_UD));
static_assert(same(MemoryWindow::Type::kOne, IBV_MW_TYPE_1));
static_assert(same(MemoryWindow::Type::kTwo, IBV_MW_TYPE_2));

static_assert(same(Opcode::kWrite, IBV_WR_RDMA_WRITE));
static_assert(same(Opcode::kWriteImm, IBV_WR_RDMA_WRITE_WITH_IMM));
static_assert(same(Opcode::kSend, IBV_WR_SEND));
static_assert(same(Opcode::kSendImm, IBV_WR_SEND_WITH_IMM));
static_assert(same(Opcode::kRead, IBV_WR_RDMA_READ));
static_assert(same(Opcode::kCompareSwap, IBV_WR_ATOMIC_CMP_AND_SWP));
static_assert(same(Opcode::kFetchAdd, IBV_WR_ATOMIC_FETCH_AND_ADD));
static_assert(same(Opcode::kLocalInvalidate, IBV_WR_LOCAL_INV));
static_assert(same(Opcode::kBindWindow, IBV_WR_BIND_MW));
static_assert(same(Opcode::kSendInvalidate, IBV_WR_SEND_WITH_INV));
static_assert(same(Opcode::kAtomicWrite, IBV_WR_ATOMIC_WRITE));

static_assert(same(SendFlags::kFence, IBV_SEND_FENCE));
static_assert(same(SendFlags::kSignaled, IBV_SEND_SIGNALED));
static_assert(same(SendFlags::kSolicited, IBV_SEND_SOLICITED));
static_assert(same(SendFlags::kInline, IBV_SEND_INLINE));

static_assert(same(Access::kLocalWrite, IBV_ACCESS_LOCAL_WRITE));
static_assert(same(Access::kRemoteWrite, IBV_ACCESS_REMOTE_WRITE));
static_assert(same(Access::kRemoteRead, IBV_ACCESS_REMOTE_READ));
static_assert(same(Access::kRemoteAtomic, IBV_ACCESS_REMOTE_ATOMIC));
static_assert(same(Access::kBindWindow, IBV_ACCESS_MW_BIND));

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
