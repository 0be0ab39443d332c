#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/handle.h"
#include "base/strong.h"
#include "base/time.h"
#include "link/address.h"

// Defines the values that users of the software HCA pass in and get back (vol1 chapters 10 and 11).
// Enumerations and flags have the same numbers as in <infiniband/verbs.h>, which is a frozen ABI.
// So the C API and the ABI boundary of libverbena need no translation.
namespace verbena::hca {

class Pd;
class MemoryRegion;
class MemoryWindow;
class CompletionQueue;
class AddressHandle;
class SharedReceiveQueue;
class Qp;

using PdHandle = Handle<Pd>;
using MrHandle = Handle<MemoryRegion>;
using MwHandle = Handle<MemoryWindow>;
using CqHandle = Handle<CompletionQueue>;
using AhHandle = Handle<AddressHandle>;
using SrqHandle = Handle<SharedReceiveQueue>;
using QpHandle = Handle<Qp>;

enum class QpType : std::uint8_t { kRc = 2, kUc = 3, kUd = 4 };

enum class QpState : std::uint8_t {
  kReset = 0,
  kInit = 1,
  kRtr = 2,
  kRts = 3,
  kSqd = 4,  // send queue drain: finishes started requests, and starts no further requests
  kSqe = 5,  // send queue error: UC and UD only
  kError = 6,
};

enum class Mtu : std::uint8_t { k256 = 1, k512 = 2, k1024 = 3, k2048 = 4, k4096 = 5 };
constexpr std::uint32_t bytes_of(Mtu mtu) { return 128u << static_cast<unsigned>(mtu); }

enum class WrOpcode : std::uint8_t {
  kWrite = 0,
  kWriteImm = 1,
  kSend = 2,
  kSendImm = 3,
  kRead = 4,
  kCompareSwap = 5,
  kFetchAdd = 6,
  kLocalInvalidate = 7,
  kBindWindow = 8,
  kSendInvalidate = 9,
  kAtomicWrite = 15,  // stores 8 bytes at once (release 1.5)
};

enum class WcStatus : std::uint8_t {
  kSuccess = 0,
  kLocalLengthError = 1,
  kLocalQpOperationError = 2,
  kLocalProtectionError = 4,
  kFlushed = 5,
  kWindowBindError = 6,  // a bind or a local invalidate failed
  kBadResponse = 7,
  kLocalAccessError = 8,
  kRemoteInvalidRequest = 9,
  kRemoteAccessError = 10,
  kRemoteOperationError = 11,
  kRetryExceeded = 12,
  kRnrRetryExceeded = 13,
  kRemoteAborted = 16,
  kFatal = 19,
  kGeneralError = 21,
};

enum class WcOpcode : std::uint8_t {
  kSend = 0,
  kWrite = 1,
  kRead = 2,
  kCompareSwap = 3,
  kFetchAdd = 4,
  kBindWindow = 5,
  kLocalInvalidate = 6,
  kAtomicWrite = 9,
  kReceive = 128,
  kReceiveWriteImm = 129,
};

// The constants of the next four namespaces are bits.  They are plain numbers because callers pass
// them as masks.
namespace send_flag {
inline constexpr std::uint32_t kFence = 1, kSignaled = 2, kSolicited = 4, kInline = 8;
}
namespace wc_flag {
inline constexpr std::uint32_t kGrh = 1, kWithImm = 2, kWithInvalidate = 8;
}
namespace access {
inline constexpr std::uint32_t kLocalWrite = 1, kRemoteWrite = 2, kRemoteRead = 4,
                               kRemoteAtomic = 8, kWindowBind = 16, kZeroBased = 32, kOnDemand = 64;
}
namespace attribute {
inline constexpr std::uint32_t kState = 1u << 0, kCurrentState = 1u << 1, kSqdNotify = 1u << 2,
                               kAccessFlags = 1u << 3, kPkeyIndex = 1u << 4, kPort = 1u << 5,
                               kQkey = 1u << 6, kPath = 1u << 7, kPathMtu = 1u << 8,
                               kTimeout = 1u << 9, kRetryCount = 1u << 10, kRnrRetry = 1u << 11,
                               kRqPsn = 1u << 12, kMaxRdAtomic = 1u << 13,
                               kAlternatePath = 1u << 14, kMinRnrTimer = 1u << 15,
                               kSqPsn = 1u << 16, kMaxDestRdAtomic = 1u << 17,
                               kMigrationState = 1u << 18, kCaps = 1u << 19,
                               kDestinationQpn = 1u << 20;
}

// Tells if a connected QP may switch from `path` to its alternate path (vol1 10.4).  The numbers
// are those of enum ibv_mig_state.
enum class MigrationState : std::uint8_t {
  kMigrated = 0,  // the QP uses `path` and does not migrate
  kRearm = 1,     // the QP uses `path`, and tells the peer that there is an alternate path
  kArmed = 2,     // the QP uses `path`; either side may switch to the alternate path at any time
};

inline constexpr std::uint32_t kAtomicBytes = 8;  // the size of an atomic's operand

struct Sge {
  std::uint64_t address = 0;
  std::uint32_t length = 0;
  std::uint32_t lkey = 0;
  friend bool operator==(const Sge&, const Sge&) = default;
};

// Describes the address range that a window is bound to: [address, address + length), in the
// addresses of its region.
struct WindowBinding {
  std::uint64_t address = 0;
  std::uint64_t length = 0;        // 0: a type 1 window is unbound
  std::uint32_t lkey = 0;          // the key of the region
  std::uint32_t access_flags = 0;  // remote rights; kZeroBased: peers address the window from 0
};

struct SendRequest {
  std::uint64_t wr_id = 0;
  WrOpcode opcode = WrOpcode::kSend;
  std::uint32_t flags = 0;  // see namespace send_flag
  std::span<const Sge> sges{};
  std::uint32_t immediate = 0;       // host order
  std::uint64_t remote_address = 0;  // WRITE, READ, atomics; for atomics a multiple of 8
  // Depends on the opcode: the key of the remote memory, the key to invalidate, or the new key of
  // the window to bind.
  std::uint32_t r_key = 0;
  WindowBinding bind{};
  std::uint64_t compare_add = 0;  // atomics: the number to compare with, or to add
  std::uint64_t swap = 0;         // compare-swap: the number to store if the comparison succeeds
  Qpn remote_qpn{};               // UD
  Qkey remote_qkey{};             // UD; the top bit selects the QP's own Q_Key (vol1 10.2.5)
  AhHandle ah{};                  // UD; copied, so the handle may be destroyed after the post
};

struct RecvRequest {
  std::uint64_t wr_id = 0;
  std::span<const Sge> sges{};
};

// If the status is not kSuccess, only wr_id, status, vendor_error, qpn and time are valid.
struct WorkCompletion {
  std::uint64_t wr_id = 0;
  WcStatus status = WcStatus::kSuccess;
  WcOpcode opcode = WcOpcode::kSend;
  std::uint8_t pkey_index = 0;
  std::uint8_t service_level = 0;  // UD; see Personality
  std::uint32_t vendor_error = 0;  // the syndrome of the NAK that failed the request, or 0
  std::uint32_t byte_len = 0;
  std::uint32_t immediate = 0;          // host order; if flags has kWithImm
  std::uint32_t invalidated_r_key = 0;  // if flags has kWithInvalidate
  Qpn qpn{};
  Qpn source_qpn{};                        // UD
  Lid source_lid{};                        // UD on InfiniBand
  std::uint8_t destination_path_bits = 0;  // UD on InfiniBand
  std::uint32_t flags = 0;                 // see namespace wc_flag
  Time time{};                             // the driver's time when the completion was added
  friend bool operator==(const WorkCompletion&, const WorkCompletion&) = default;
};

struct QpCaps {
  std::uint32_t max_send_wr = 0;
  std::uint32_t max_recv_wr = 0;
  std::uint32_t max_send_sge = 0;
  std::uint32_t max_recv_sge = 0;
  std::uint32_t max_inline_bytes = 0;
  friend bool operator==(const QpCaps&, const QpCaps&) = default;
};

struct SrqCaps {
  std::uint32_t max_wr = 0;
  std::uint32_t max_sge = 0;
  friend bool operator==(const SrqCaps&, const SrqCaps&) = default;
};

struct QpInit {
  QpType type = QpType::kRc;
  PdHandle pd{};
  CqHandle send_cq{};
  CqHandle recv_cq{};
  // If set, the QP takes receives from this queue, and max_recv_wr and max_recv_sge are ignored.
  SrqHandle srq{};
  QpCaps caps{};  // the requested sizes; query_qp() returns the granted ones, which may be larger
  bool signal_all = false;
  std::uint8_t device = 0;   // PortId::device of the ports that the QP may use
  std::uint64_t cookie = 0;  // returned in events
  friend bool operator==(const QpInit&, const QpInit&) = default;
};

// Describes the path to a peer (an address vector).  The source of `address` is our address, and
// the destination is the peer's.  The engine only stores the other members, for query_qp().
struct Path {
  link::Address address{};
  std::uint8_t sgid_index = 0;
  std::uint8_t source_path_bits = 0;  // InfiniBand: the path bits of the source LID
  friend bool operator==(const Path&, const Path&) = default;
};

// Holds the attributes that modify_qp() sets and query_qp() returns.  A mask of `attribute` bits
// selects the fields that are valid.
struct QpAttributes {
  QpState state = QpState::kReset;
  QpState current_state = QpState::kReset;
  Mtu path_mtu = Mtu::k1024;
  Qkey qkey{};   // UD
  Psn rq_psn{};  // query: the next expected PSN
  Psn sq_psn{};  // query: the next PSN to be sent
  Qpn destination_qpn{};
  std::uint32_t access_flags = 0;  // see namespace access
  Path path{};
  std::uint16_t pkey_index = 0;
  std::uint8_t port = 1;
  bool sqd_notify = false;
  std::uint8_t max_rd_atomic = 0;       // READs and atomics that we may have outstanding
  std::uint8_t max_dest_rd_atomic = 0;  // READs and atomics that the peer may have outstanding
  std::uint8_t min_rnr_timer = 0;       // a 5-bit code, see wire::rnr_timer(); 0 is 655 ms
  // Tells how often the peer retries after an RNR NAK.  It is set together with min_rnr_timer.  If
  // it is 1 to 6, the RNR timers grow from retry to retry, up to 655 ms for the last retry.
  // Otherwise each retry gets min_rnr_timer.
  std::uint8_t peer_rnr_retries = 0;
  std::uint8_t timeout = 0;  // a 5-bit code, see timeout_of_code(); 0 is no timer
  std::uint8_t retry_count = 0;
  std::uint8_t rnr_retry = 0;  // 7: without a limit
  // The QP may migrate to this path.  After a migration, this is the former `path`.
  Path alternate_path{};
  std::uint16_t alternate_pkey_index = 0;
  std::uint8_t alternate_port = 1;
  std::uint8_t alternate_timeout = 0;
  MigrationState migration = MigrationState::kMigrated;  // kArmed cannot be set
  friend bool operator==(const QpAttributes&, const QpAttributes&) = default;
};

// Calls touch(context), which accesses the memory at `address`.  Returns false if the memory is not
// mapped.  Then touch() was aborted before its end.  See os/fault_guard.h.
using MemoryGuard = bool (*)(const void* address, std::size_t length, bool writes,
                             void (*touch)(void*), void* context);

struct MrInfo {
  MrHandle handle{};
  std::uint32_t lkey = 0;
  std::uint32_t rkey = 0;
};

// Selects which QPs may use a window.  Any QP of its PD may bind a type 1 window, and all QPs of
// the PD may use it.  Only the QP that has bound a type 2 window (here always 2B) may use it.  This
// QP chooses the low 8 bits of the R_Key, and must invalidate the window before the next bind (vol1
// 10.6.7.2).  The numbers are those of enum ibv_mw_type.
enum class WindowType : std::uint8_t { kOne = 1, kTwo = 2 };

struct MwInfo {
  MwHandle handle{};
  std::uint32_t rkey = 0;  // invalid until the window is bound
};

// Limits the objects and sizes of an engine.  A call that would exceed a limit returns kNoResources
// or kInvalidArgument, and the error names the limit.
struct Limits {
  std::uint32_t pds = 65'536;
  std::uint32_t mrs = 1'048'576;
  std::uint32_t mws = 1'048'576;
  std::uint32_t cqs = 65'536;
  std::uint32_t ahs = 1'048'576;
  std::uint32_t srqs = 65'536;
  std::uint32_t qps = 262'144;
  std::uint32_t groups = 4'096;         // multicast groups
  std::uint32_t group_members = 1'024;  // QPs in one group
  std::uint32_t max_wr = 32'768;        // requests in one send, receive or shared receive queue
  std::uint32_t max_sge = 32;
  std::uint32_t max_cqe = 4'194'304;
  std::uint32_t max_inline_bytes = 1'024;
  std::uint8_t max_rd_atomic = 16;  // per QP, as initiator and as target
  // This default is the maximum of vol1 9.3.3.  A longer request completes with an error.
  std::uint64_t max_message_bytes = std::uint64_t{1} << 31;
};

// Selects behaviour that differs between adapters, each within the specification.  Programs tend to
// rely on the behaviour of one adapter.
struct Personality {
  // True: completions become visible together, when the driver calls Engine::publish() or
  // transmit().  One event may announce many of them.  False: each completion becomes visible at
  // once.
  bool batches_completions = false;
  // A QP that enters the error state waits for this time before it flushes its requests.
  Duration flush_delay{};
  // True: the service level of a datagram that was received by RoCE tells its network type (vol1
  // A17.4.5.1), with the values of ConnectX: 10 is IPv4, 9 is IPv6.  False: the level
  // is 0.
  bool reports_network = true;
  friend bool operator==(const Personality&, const Personality&) = default;
};
inline constexpr Personality kConnectX{};
inline constexpr Personality kRxe{.batches_completions = true,
                                  .flush_delay = std::chrono::milliseconds(20),
                                  .reports_network = false};

// Counts the traffic of one QP.
struct QpTraffic {
  std::uint64_t packets_in = 0, bytes_in = 0;  // bytes of payload
  std::uint64_t packets_out = 0, bytes_out = 0;
  std::uint64_t retransmissions = 0;
  std::uint64_t timeouts = 0;
  std::uint64_t rnr_naks_in = 0, rnr_naks_out = 0;
};

// Describes one QP for `verbena ps`.  It is trivially copyable, so that it can be copied to
// shared memory.
struct QpRow : QpTraffic {
  std::uint32_t qpn = 0;
  QpType type{};
  QpState state{};
  Mtu path_mtu{};
  LinkLayer link_layer{};
  std::uint32_t destination_qpn = 0;
  Gid source{};
  Gid destination{};
  Lid source_lid{};  // InfiniBand
  Lid destination_lid{};
  std::uint32_t send_psn = 0;      // the next PSN to be sent
  std::uint32_t acked_psn = 0;     // the oldest PSN that is not acknowledged
  std::uint32_t expected_psn = 0;  // the next PSN expected from the peer
  std::uint32_t send_queued = 0;   // work requests that are not complete
  std::uint32_t recv_queued = 0;
  std::uint32_t window_packets = 0;
};

// Describes a request that failed in a QP, with details that its completion does not have.
// Messages to the user contain these details.
struct RequestFailure {
  Qpn qpn{};
  Qpn destination_qpn{};
  Gid destination{};
  WcStatus status{};
  WrOpcode opcode{};           // not valid for a receive request
  bool is_receive = false;     // the request is a receive request
  std::uint8_t rnr_retry = 0;  // QpAttributes::rnr_retry
  std::uint32_t tries = 0;  // how often the oldest unacknowledged packet was sent, without probes
  Time since{};             // when this packet became the oldest; not valid if tries is 0
};

const char* to_string(QpType type);
const char* to_string(QpState state);
const char* to_string(WcStatus status);

}  // namespace verbena::hca
