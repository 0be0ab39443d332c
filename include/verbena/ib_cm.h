#pragma once

#include <endian.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "verbena/c_api_requests.h"
#include "verbena/cm.h"
#include "verbena/device.h"
#include "verbena/loop.h"
#include "verbena/outcome.h"
#include "verbena/queues.h"
#include "verbena/request.h"
#include "verbena/task.h"

// Connects programs with the InfiniBand connection manager (vol1 12), without the RDMA CM: by GID
// and service id, with private data in each message, peer to peer, and with alternate paths.  Over
// an adapter Endpoint::create() fails with operation_not_supported.
namespace verbena {

// Selects the requests that a listener gets: their service id must match the listener's in the bits
// of `mask`, and their private data must match `data` in the bits of `data_mask` (same length, up
// to 92 bytes).
//
// This structure and Endpoint::Parameters have constructors for the same reason as ConnectOptions
// (cm.h).
struct ServiceFilter {
  ServiceFilter() {}  // NOLINT(modernize-use-equals-default): see above
  std::uint64_t mask = ~std::uint64_t{0};
  std::vector<std::byte> data{};
  std::vector<std::byte> data_mask{};
};

// Describes an alternate path of a connection, to which its queue pair may migrate (vol1 17.2.8).
struct AlternatePath {
  Gid source{};  // an address of this host
  Gid destination{};
  std::uint32_t interface = 0;   // of a link-local source; 0: the first one with this address
  std::uint32_t flow_label = 0;  // 20 bits; 0: computed from the queue pairs' numbers
  std::uint8_t hop_limit = 0;    // 0: 64
  std::uint8_t traffic_class = 0;
};

// Tells the reason for rejecting a request.  Names some of the reasons of vol1 12.6.7.2; any number
// from 1 to 33, and 35, is allowed.
enum class RejectReason : std::uint16_t {
  kNoQueuePair = 1,
  kNoResources = 3,
  kTimeout = 4,
  kUnsupportedRequest = 5,
  kInvalidServiceId = 8,
  kStaleConnection = 10,
  kPrimaryGidRejected = 12,    // the additional information is an acceptable GID
  kAlternateGidRejected = 18,  // the additional information is an acceptable GID
  kPortAndCmRedirect = 24,
  kPortRedirect = 25,
  kInvalidPathMtu = 26,
  kInsufficientResponderResources = 27,
  kConsumer = 28,
  kRnrRetryCountInvalid = 29,
  kInvalidPrimaryFlowLabel = 32,
  kInvalidAlternateFlowLabel = 33,
  kVendorOptionNotSupported = 35,
};

// Tells the answer to an offered path.  Names some of the answers of vol1 table 123; any number
// from 0 to 13 is allowed.
enum class PathStatus : std::uint16_t {
  kAccepted = 0,
  kNotSupported = 2,
  kRejected = 3,
  kRedirect = 4,
  kIsCurrentPath = 5,
  kGidRejected = 8,
  kFlowLabelRejected = 9,
  kTrafficClassRejected = 10,
  kHopLimitRejected = 11,
};

namespace detail {

// Has the layout of struct sockaddr_ib (AF_IB).
struct ServiceAddress {
  std::uint16_t family = AF_IB;
  std::uint16_t pkey = 0;
  std::uint32_t flow_info = 0;
  Gid gid{};
  std::uint64_t service = 0, mask = 0;  // big-endian
  std::uint64_t scope = 0;

  ServiceAddress(const Gid& at, std::uint64_t id, std::uint32_t interface)
      : gid(at), service(htobe64(id)), mask(~std::uint64_t{0}), scope(interface) {}
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(this); }
};
static_assert(sizeof(ServiceAddress) == 48);

inline vb_cm_path c_api_of(const AlternatePath& path) {
  vb_cm_path out{};
  std::copy(path.source.begin(), path.source.end(), out.sgid);
  std::copy(path.destination.begin(), path.destination.end(), out.dgid);
  out.interface_index = path.interface;
  out.flow_label = path.flow_label;
  out.hop_limit = path.hop_limit;
  out.traffic_class = path.traffic_class;
  return out;
}

inline std::uint8_t length_of(std::span<const std::byte> bytes) {
  return static_cast<std::uint8_t>(std::min<std::size_t>(bytes.size(), 255));
}

}  // namespace detail

// Represents one end of a connection, or a listener.
//
//   active                                      passive
//     resolve() -> kAddressResolved,              listen()
//     resolve_route() -> kRouteResolved            |
//     connect() ......................... REQ ...> kConnectRequest, with a new endpoint
//     kConnectResponse <................. REP ....  accept()
//     establish() ....................... RTU ...> kEstablished
//     offer_path() ...................... LAP ...> kPathOffered
//     kPathAnswered <.................... APR ....  answer_path()
//     disconnect() ...................... DREQ ..> kDisconnected
//
// If the first packet on the queue pair arrives before the RTU, this packet establishes the
// connection.
// If two endpoints connect peer to peer, one of them gets kConnectRequest without a new endpoint,
// and has to accept.  co_await event() returns the events in order; only one coroutine may wait at
// a time.  Destroying an endpoint disconnects the peer.
class Endpoint {
 public:
  using EventType = CmEventType;
  struct Event;

  // Holds the parameters of connect() and accept().  0xff stands for the largest value that both
  // sides allow.
  struct Parameters {
    Parameters() {}                         // NOLINT(modernize-use-equals-default): see above
    std::vector<std::byte> private_data{};  // connect(): up to 92 bytes; accept(): 196
    std::uint8_t responder_resources = 0xff, initiator_depth = 0xff;
    std::uint8_t retry_count = 7, rnr_retry_count = 7;
    std::uint32_t queue_pair = 0;              // the number of a queue pair that is not of this API
    std::optional<AlternatePath> alternate{};  // connect()
    bool alternate_accepted = false;           // accept(): use the path that the peer has offered
    bool peer_to_peer = false;                 // connect()
    // Limits the time of this call and of offer_path(): at most an hour; 0 stands for 30 s.
    std::chrono::milliseconds timeout{};
  };

  explicit Endpoint(std::unique_ptr<detail::IdSink> sink) : sink_(std::move(sink)) {}

  // kDatagrams makes the endpoint look up the UD queue pair of a service with SIDR (vol1 12.11).
  // connect() carries up to 216 bytes and ends with kEstablished, which has the queue pair's number
  // and Q_Key, or with kUnreachable.  accept() carries up to 136 bytes.  No connection exists
  // afterwards.
  enum class Kind : std::uint32_t { kConnection = 2, kDatagrams = 4 };  // enum ibv_qp_type
  static Request<Endpoint> create(Loop& loop, Kind kind = Kind::kConnection) {
    return detail::create_id<Endpoint>(loop, VB_PS_NONE, static_cast<std::uint32_t>(kind));
  }
  class Next;
  Next event();
  // Works as ConnectionId::move_to() does.
  Outcome<void> move_to(Loop& loop) { return detail::move_id(*sink_, loop); }

  // ---- passive
  // Binds the endpoint.  `gid` is an address of this host; {}: all addresses.  `interface` is for
  // link-local addresses.
  Request<void> bind(std::uint64_t service, const Gid& gid = {}, std::uint32_t interface = 0) {
    const detail::ServiceAddress at(gid, service, interface);
    return command(VB_CM_BIND, [&](vb_cm_args& args) { args.src = at.get(); });
  }
  // Listens for requests.  Fails with address_in_use if another listener could get the same
  // request, even at another GID.
  Request<void> listen(int backlog = 128, const ServiceFilter& filter = {}) {
    vb_cm_filter c_filter{};
    c_filter.mask = filter.mask;
    c_filter.data = filter.data.data();
    c_filter.data_mask = filter.data_mask.data();
    c_filter.data_len =
        std::max(detail::length_of(filter.data), detail::length_of(filter.data_mask));
    // The C API refuses data without a mask.
    if (filter.data.size() != filter.data_mask.size()) c_filter.data_mask = nullptr;
    return command(VB_CM_LISTEN, [&](vb_cm_args& args) {
      args.backlog = backlog;
      args.filter = &c_filter;
    });
  }
  Request<void> accept(const Parameters& parameters = {}) {
    return with_parameters(VB_CM_ACCEPT, parameters);
  }

  // ---- active
  // Finds the peer; ends with kAddressResolved or kAddressError.  `source` is as in bind();
  // `interface` is for link-local addresses.
  Request<void> resolve(std::uint64_t service, const Gid& to, int timeout_ms,
                        const Gid& source = {}, std::uint32_t interface = 0) {
    const detail::ServiceAddress from(source, 0, interface);
    const detail::ServiceAddress destination(to, service, interface);
    return command(VB_CM_RESOLVE_ADDR, [&](vb_cm_args& args) {
      if (source != Gid{}) args.src = from.get();
      args.dst = destination.get();
      args.timeout_ms = timeout_ms;
    });
  }
  Request<void> resolve_route(int timeout_ms) {
    return command(VB_CM_RESOLVE_ROUTE, [&](vb_cm_args& args) { args.timeout_ms = timeout_ms; });
  }
  Request<void> connect(const Parameters& parameters = {}) {
    return with_parameters(VB_CM_CONNECT, parameters);
  }
  // Accepts the response after kConnectResponse.  Carries up to 224 bytes.
  Request<void> establish(std::span<const std::byte> private_data = {}) {
    return with_data(VB_CM_ESTABLISH, 0, private_data);
  }

  // ---- both
  // Attaches a queue pair to the endpoint.  From then on, the endpoint changes the state of the
  // queue pair when the state of the connection changes.  Without this call, the program changes
  // the state of its queue pair itself.
  Request<void> set_queue_pair(const QueuePair& qp) {
    return command(VB_CM_ID_SET_QP, [&](vb_cm_args& args) { args.qp = qp.handle(); });
  }
  // Rejects a request or response.  Carries up to 148 bytes, and 72 bytes of additional
  // information.
  Request<void> reject(RejectReason reason, std::span<const std::byte> private_data = {},
                       std::span<const std::byte> additional_info = {}) {
    return with_data(VB_CM_REJECT, static_cast<std::uint32_t>(reason), private_data,
                     additional_info);
  }
  // Disconnects.  Carries up to 220 bytes.  Between kConnectResponse and establish() it rejects the
  // response instead, and carries up to 148 bytes.
  Request<void> disconnect(std::span<const std::byte> private_data = {}) {
    return with_data(VB_CM_DISCONNECT, 0, private_data);
  }
  // Offers an alternate path; only the side that called connect() may do so.  Carries up to 168
  // bytes.  kPathAnswered or kPathUnanswered follows.  With kAccepted the queue pair has loaded the
  // path; the next packets of both sides arm it.
  Request<void> offer_path(const AlternatePath& path,
                           std::span<const std::byte> private_data = {}) {
    const vb_cm_path c_path = detail::c_api_of(path);
    const vb_cm_message_data data = data_of(private_data, {});
    return command(VB_CM_LOAD_PATH, [&](vb_cm_args& args) {
      args.path = &c_path;
      args.data = &data;
    });
  }
  // Answers kPathOffered.  Carries up to 148 bytes, and 72 bytes of additional information.
  Request<void> answer_path(PathStatus status, std::span<const std::byte> private_data = {},
                            std::span<const std::byte> additional_info = {}) {
    return with_data(VB_CM_ANSWER_PATH, static_cast<std::uint32_t>(status), private_data,
                     additional_info);
  }

  vb_handle handle() const { return sink_->handle.get(); }
  Loop& loop() const { return *sink_->loop; }

 private:
  template <class Fill>
  Request<void> command(vb_command code, Fill fill) const {
    return detail::submit_plain<vb_cm_args>(loop(), code, [&](vb_cm_args& args) {
      args.id = sink_->handle.get();
      fill(args);
    });
  }
  static vb_cm_message_data data_of(std::span<const std::byte> private_data,
                                    std::span<const std::byte> additional_info) {
    vb_cm_message_data data{};
    data.private_data = private_data.data();
    data.private_data_len = detail::length_of(private_data);
    data.additional_info = additional_info.data();
    data.additional_info_len = detail::length_of(additional_info);
    return data;
  }
  Request<void> with_data(vb_command code, std::uint32_t reason,
                          std::span<const std::byte> private_data,
                          std::span<const std::byte> additional_info = {}) const {
    const vb_cm_message_data data = data_of(private_data, additional_info);
    return command(code, [&](vb_cm_args& args) {
      args.reason = reason;
      args.data = &data;
    });
  }
  Request<void> with_parameters(vb_command code, const Parameters& parameters) const {
    vb_conn_param param{};
    param.private_data = parameters.private_data.data();
    param.private_data_len = detail::length_of(parameters.private_data);
    param.responder_resources = parameters.responder_resources;
    param.initiator_depth = parameters.initiator_depth;
    param.retry_count = parameters.retry_count;
    param.rnr_retry_count = parameters.rnr_retry_count;
    param.qp_num = parameters.queue_pair;
    vb_cm_path alternate{};
    if (parameters.alternate) {
      alternate = detail::c_api_of(*parameters.alternate);
      param.alternate = &alternate;
    }
    param.alternate_accepted = parameters.alternate_accepted ? 1 : 0;
    param.peer_to_peer = parameters.peer_to_peer ? 1 : 0;
    param.timeout_ms = static_cast<std::uint32_t>(
        std::clamp<std::chrono::milliseconds::rep>(parameters.timeout.count(), 0, 0xffffffff));
    return command(code, [&](vb_cm_args& args) { args.param = &param; });
  }

  std::unique_ptr<detail::IdSink> sink_;
};

// Holds an event of an endpoint.
struct Endpoint::Event {
  explicit Event(detail::IdEvent id_event)
      : type(static_cast<EventType>(id_event.type)),
        raw(id_event),
        incoming(std::move(id_event.incoming)),
        text(std::move(id_event.text)) {}

  EventType type;
  // Returns the status.  kRejected: the reason.  kPathAnswered: a PathStatus, or -errno if the peer
  // has agreed and the path cannot be loaded.  kUnreachable of datagrams: SIDR's status, if
  // positive.  Other events: 0 or -errno.
  int status() const { return raw.status; }
  // Returns the number of the peer's queue pair, for kConnectRequest and for the event that answers
  // a request.  qkey() returns the Q_Key of that queue pair, for datagrams only.
  std::uint32_t queue_pair() const { return raw.qp_num; }
  std::uint32_t qkey() const { return raw.qkey; }
  std::span<const std::byte> private_data() const {
    return std::as_bytes(std::span(raw.private_data).first(raw.private_data_len));
  }
  std::span<const std::byte> additional_info() const {
    return std::as_bytes(std::span(raw.additional_info).first(raw.additional_info_len));
  }
  // kConnectRequest: service() returns the service id, and take_endpoint() the new endpoint that
  // has to answer.  Peer to peer there is no new endpoint: the endpoint that got the event has to
  // answer.
  std::uint64_t service() const { return raw.service; }
  std::optional<Endpoint> take_endpoint() {
    if (incoming == nullptr) return std::nullopt;
    return Endpoint(std::move(incoming));
  }
  // kConnectRequest, kPathOffered: returns the path that the peer offers, as seen from this host.
  std::optional<AlternatePath> alternate_path() const {
    AlternatePath path{.interface = raw.alternate.interface_index,
                       .flow_label = raw.alternate.flow_label,
                       .hop_limit = raw.alternate.hop_limit,
                       .traffic_class = raw.alternate.traffic_class};
    std::copy_n(raw.alternate.sgid, path.source.size(), path.source.begin());
    std::copy_n(raw.alternate.dgid, path.destination.size(), path.destination.begin());
    if (path.source == Gid{}) return std::nullopt;
    return path;
  }
  // kConnectResponse: returns true if the peer has accepted our alternate path.
  bool alternate_accepted() const { return raw.alternate_accepted != 0; }

  vb_cm_event raw;
  std::unique_ptr<detail::IdSink> incoming;
  std::string text;  // of a failure: peer, step, reason and time, as far as they are known
};

class Endpoint::Next {
 public:
  explicit Next(detail::Mailbox<detail::IdEvent>& box) : next_(box) {}
  bool await_ready() const { return next_.await_ready(); }
  void await_suspend(std::coroutine_handle<> frame) { next_.await_suspend(frame); }
  Event await_resume() { return Event(next_.await_resume()); }

 private:
  detail::Mailbox<detail::IdEvent>::Next next_;
};

inline Endpoint::Next Endpoint::event() { return Next(sink_->events); }

}  // namespace verbena
