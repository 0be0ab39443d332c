#pragma once

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "verbena/c_api_requests.h"
#include "verbena/device.h"
#include "verbena/loop.h"
#include "verbena/outcome.h"
#include "verbena/queues.h"
#include "verbena/request.h"
#include "verbena/task.h"

// Connects programs by IP address, with the RDMA connection manager.
namespace verbena {

// Holds an IPv4 or IPv6 address and a port.
class Address {
 public:
  // Looks up a name such as "10.0.0.1", "fe80::1%eth0" or "localhost".  An empty name is the
  // wildcard address.
  static Outcome<Address> find(const std::string& name, std::uint16_t port) {
    addrinfo hints{};
    hints.ai_flags = AI_NUMERICSERV | (name.empty() ? AI_PASSIVE : 0);
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* list = nullptr;
    const int error = ::getaddrinfo(name.empty() ? nullptr : name.c_str(),
                                    std::to_string(port).c_str(), &hints, &list);
    if (error != 0) {
      const std::string text = "'" + name + "': " + ::gai_strerror(error);
      return failure(EADDRNOTAVAIL, text.c_str());
    }
    Address address;
    std::memcpy(&address.storage_, list->ai_addr,
                std::min<std::size_t>(list->ai_addrlen, sizeof address.storage_));
    ::freeaddrinfo(list);
    return address;
  }
  // Returns the GID of the IP address (of a host or a multicast group), without the port.
  Gid gid() const {
    Gid out{};
    if (storage_.ss_family == AF_INET6) {
      std::memcpy(out.data(), &reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr, 16);
    } else {
      out[10] = out[11] = 0xff;
      std::memcpy(out.data() + 12, &reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr, 4);
    }
    return out;
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }

 private:
  sockaddr_storage storage_{};
};

// The values are those of enum rdma_cm_event_type, except the last three, which are additions for
// the InfiniBand CM (ib_cm.h).
enum class CmEventType : std::uint32_t {
  kAddressResolved = 0,
  kAddressError = 1,
  kRouteResolved = 2,
  kRouteError = 3,
  kConnectRequest = 4,
  kConnectResponse = 5,
  kConnectError = 6,
  kUnreachable = 7,
  kRejected = 8,
  kEstablished = 9,
  kDisconnected = 10,
  kDeviceRemoval = 11,
  kTimewaitExit = 15,
  kPathOffered = VB_CM_PATH_OFFERED,
  kPathAnswered = VB_CM_PATH_ANSWERED,
  kPathUnanswered = VB_CM_PATH_UNANSWERED,
};

namespace detail {

class IdSink;

// Holds an event.  A connection request also has its new id, because events for that id may come
// before the program takes the request.
struct IdEvent : vb_cm_event {
  std::unique_ptr<IdSink> incoming{};
  // Describes a failure: peer, step, reason and time, as far as they are known.  Else it is empty.
  std::string text{};
};

inline bool is_failure(const vb_cm_event& event) {
  switch (static_cast<CmEventType>(event.type)) {
    case CmEventType::kAddressError:
    case CmEventType::kRouteError:
    case CmEventType::kConnectError:
    case CmEventType::kUnreachable:
    case CmEventType::kRejected:
    case CmEventType::kPathUnanswered: return true;
    default: return false;
  }
}

// Owns an id, and its events that were not taken yet.
class IdSink final : public Sink {
 public:
  void on_cm_event(const vb_cm_event& event) override;

  Loop* loop = nullptr;
  Owned<vb_cm_id_destroy> handle{};
  Mailbox<IdEvent> events{};
};

inline void IdSink::on_cm_event(const vb_cm_event& event) {
  IdEvent id_event;
  static_cast<vb_cm_event&>(id_event) = event;
  if (is_failure(event)) id_event.text = vb_last_error();  // set by vb_cm_next_event()
  if (event.new_id != 0) {
    id_event.incoming = std::make_unique<IdSink>();
    id_event.incoming->loop = loop;
    id_event.incoming->handle = Owned<vb_cm_id_destroy>(event.new_id);
    vb_cm_id_set_cookie(event.new_id, cookie_of(*id_event.incoming));
  }
  events.push(std::move(id_event));
}

// Moves an id to another loop, with the requests that have come for it and were not taken yet.  The
// requests move first: once the id has moved, the thread of the other loop may add events to it.
inline Outcome<void> move_id(IdSink& sink, Loop& loop) {
  Outcome<void> moved{};
  sink.events.for_each([&](IdEvent& event) {
    if (moved && event.incoming != nullptr) moved = move_id(*event.incoming, loop);
  });
  if (!moved) return moved;
  Loop* const old_loop = std::exchange(sink.loop, &loop);
  if (const int error = vb_cm_id_migrate(sink.handle.get(), loop.connections()); error != 0) {
    sink.loop = old_loop;
    return failure(error, vb_last_error());
  }
  return {};
}

struct IdArguments {
  vb_cm_args value{};
  std::unique_ptr<IdSink> sink{};
};

// Creates an id of a port space for a type of queue pairs (enum ibv_qp_type).  `T` is constructed
// from the id's sink.
template <class T>
Request<T> create_id(Loop& loop, std::uint32_t port_space, std::uint32_t qp_type) {
  IdArguments args;
  args.sink = std::make_unique<IdSink>();
  args.sink->loop = &loop;
  args.value.channel = loop.connections();
  args.value.ps = port_space;
  args.value.qp_type = qp_type;
  args.value.cookie = cookie_of(*args.sink);
  return submit<T>(loop, VB_CM_ID_CREATE, std::move(args),
                   [](Loop&, IdArguments& results) -> Outcome<T> {
                     results.sink->handle = Owned<vb_cm_id_destroy>(results.value.id);
                     return T(std::move(results.sink));
                   });
}

// Describes the failure of a step, with the text of the event if it has one.
inline std::unexpected<Failure> step_failure(const char* step, const IdEvent& event) {
  const auto type = static_cast<CmEventType>(event.type);
  std::string text = step;
  int code = event.status < 0 ? -event.status : ECONNABORTED;
  if (type == CmEventType::kRejected) {
    text += ": rejected, reason " + std::to_string(event.status);
    code = ECONNREFUSED;
  } else if (type == CmEventType::kUnreachable) {
    text += ": no answer";
    code = EHOSTUNREACH;
  } else {
    text += ": event " + std::to_string(event.type) + ", status " + std::to_string(event.status);
  }
  return failure(code, event.text.empty() ? text.c_str() : event.text.c_str());
}

}  // namespace detail

// Represents one end of a connection, or a listener (rdma_cm_id).  co_await event() returns its
// events in order.  Only one coroutine may wait at a time.
class ConnectionId {
 public:
  explicit ConnectionId(std::unique_ptr<detail::IdSink> sink) : sink_(std::move(sink)) {}

  static Request<ConnectionId> create(Loop& loop) {
    return detail::create_id<ConnectionId>(loop, 0x0106, 2);  // RDMA_PS_TCP, RC
  }
  detail::Mailbox<detail::IdEvent>::Next event() {
    return detail::Mailbox<detail::IdEvent>::Next(sink_->events);
  }

  // Moves the id and its events to another loop.  REQUIRES: the caller is in the thread of the
  // current loop; no coroutine waits for an event; a device is open in the new loop.  After an
  // error, requests that were not taken yet may have moved.
  Outcome<void> move_to(Loop& loop) { return detail::move_id(*sink_, loop); }

  Request<void> bind(const Address& address) {
    return command(VB_CM_BIND, [&](vb_cm_args& args) { args.src = address.get(); });
  }
  Request<void> listen(int backlog) {
    return command(VB_CM_LISTEN, [&](vb_cm_args& args) { args.backlog = backlog; });
  }
  Request<void> resolve_address(const Address& to, int timeout_ms) {
    return command(VB_CM_RESOLVE_ADDR, [&](vb_cm_args& args) {
      args.dst = to.get();
      args.timeout_ms = timeout_ms;
    });
  }
  Request<void> resolve_route(int timeout_ms) {
    return command(VB_CM_RESOLVE_ROUTE, [&](vb_cm_args& args) { args.timeout_ms = timeout_ms; });
  }
  // Attaches a queue pair to the id.  From then on, the id changes the state of the queue pair when
  // the state of the connection changes.
  Request<void> set_queue_pair(const QueuePair& qp) {
    return command(VB_CM_ID_SET_QP, [&](vb_cm_args& args) { args.qp = qp.handle(); });
  }
  Request<void> connect(std::span<const std::byte> private_data = {}) {
    return with_parameters(VB_CM_CONNECT, private_data);
  }
  Request<void> accept(std::span<const std::byte> private_data = {}) {
    return with_parameters(VB_CM_ACCEPT, private_data);
  }
  Request<void> reject(std::span<const std::byte> private_data = {}) {
    return with_parameters(VB_CM_REJECT, private_data);
  }
  Request<void> disconnect() {
    return command(VB_CM_DISCONNECT, [](vb_cm_args&) {});
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
  Request<void> with_parameters(vb_command code, std::span<const std::byte> private_data) const {
    vb_conn_param param{};
    param.private_data = private_data.data();
    param.private_data_len =
        static_cast<std::uint8_t>(std::min<std::size_t>(private_data.size(), 255));
    param.responder_resources = param.initiator_depth = 0xff;
    param.retry_count = param.rnr_retry_count = 7;
    return command(code, [&](vb_cm_args& args) { args.param = &param; });
  }

  std::unique_ptr<detail::IdSink> sink_;
};

// Holds an established connection: the program may use both queues of `qp`.  `id` gets
// kDisconnected when the connection ends.
struct Connection {
  ConnectionId id;
  QueuePair qp;
  std::vector<std::byte> private_data;  // the peer's data in its request or response
};

namespace detail {

// Waits for the next event.  If it is not `wanted`, the step has failed.
inline Task<Outcome<vb_cm_event>> expect(ConnectionId& id, CmEventType wanted, const char* step) {
  const detail::IdEvent event = co_await id.event();
  if (event.type != static_cast<std::uint32_t>(wanted)) co_return step_failure(step, event);
  co_return static_cast<const vb_cm_event&>(event);
}

inline std::vector<std::byte> private_data_of(const vb_cm_event& event) {
  const auto* begin = reinterpret_cast<const std::byte*>(event.private_data);
  return {begin, begin + event.private_data_len};
}

}  // namespace detail

// Waits until the connection has ended: one side has disconnected, the peer has died, or the agent
// has died.
inline Task<> disconnected(ConnectionId& id) {
  for (;;) {
    const detail::IdEvent event = co_await id.event();
    const auto type = static_cast<CmEventType>(event.type);
    if (type == CmEventType::kDisconnected || type == CmEventType::kDeviceRemoval) co_return;
  }
}

// Holds the options of connect() and Listener::accept().  They call `prepare` after they have
// created the queue pair and before the peer can send, so that `prepare` can post receives.
//
// The constructor exists so that a program cannot write these options in braces inside a co_await:
// GCC 12 would destroy such an object twice.
struct ConnectOptions {
  ConnectOptions() {}  // NOLINT(modernize-use-equals-default): see above
  QueuePairOptions queue_pair{};
  std::function<void(QueuePair&)> prepare{};
  std::vector<std::byte> private_data{};
  // Limits the time of each of the two resolutions in connect().  The steps after them have the
  // timeouts of the CM.
  int timeout_ms = 2000;
};

// Connects a new queue pair to the listener at an address.
inline Task<Outcome<Connection>> connect(const ProtectionDomain& pd, const CompletionQueue& cq,
                                         Address to, ConnectOptions options = {}) {
  auto id = co_await ConnectionId::create(pd.loop());
  if (!id) co_return std::unexpected(id.error());
  if (auto resolved = co_await id->resolve_address(to, options.timeout_ms); !resolved) {
    co_return std::unexpected(resolved.error());
  }
  auto event = co_await detail::expect(*id, CmEventType::kAddressResolved, "resolve the address");
  if (!event) co_return std::unexpected(event.error());
  if (auto resolved = co_await id->resolve_route(options.timeout_ms); !resolved) {
    co_return std::unexpected(resolved.error());
  }
  event = co_await detail::expect(*id, CmEventType::kRouteResolved, "resolve the route");
  if (!event) co_return std::unexpected(event.error());
  auto qp = co_await QueuePair::create(pd, cq, cq, options.queue_pair);
  if (!qp) co_return std::unexpected(qp.error());
  if (auto set = co_await id->set_queue_pair(*qp); !set) co_return std::unexpected(set.error());
  if (options.prepare) options.prepare(*qp);
  if (auto connected = co_await id->connect(options.private_data); !connected) {
    co_return std::unexpected(connected.error());
  }
  event = co_await detail::expect(*id, CmEventType::kEstablished, "connect");
  if (!event) co_return std::unexpected(event.error());
  co_return Connection{std::move(*id), std::move(*qp), detail::private_data_of(*event)};
}

// Listens for connection requests.
class Listener {
 public:
  static Task<Outcome<Listener>> create(Loop& loop, Address at, int backlog = 128) {
    auto id = co_await ConnectionId::create(loop);
    if (!id) co_return std::unexpected(id.error());
    if (auto bound = co_await id->bind(at); !bound) co_return std::unexpected(bound.error());
    if (auto listening = co_await id->listen(backlog); !listening)
      co_return std::unexpected(listening.error());
    co_return Listener(std::move(*id));
  }

  // Holds a request that is not answered yet.  Pass it to accept(), or call id.reject(), or destroy
  // it.
  struct IncomingRequest {
    ConnectionId id;
    std::vector<std::byte> private_data;
  };
  Task<IncomingRequest> next() {
    for (;;) {
      detail::IdEvent event = co_await id_.event();
      if (event.incoming == nullptr) continue;
      co_return IncomingRequest{ConnectionId(std::move(event.incoming)),
                                detail::private_data_of(event)};
    }
  }
  static Task<Outcome<Connection>> accept(const ProtectionDomain& pd, const CompletionQueue& cq,
                                          IncomingRequest request, ConnectOptions options = {}) {
    auto qp = co_await QueuePair::create(pd, cq, cq, options.queue_pair);
    if (!qp) co_return std::unexpected(qp.error());
    if (auto set = co_await request.id.set_queue_pair(*qp); !set) {
      co_return std::unexpected(set.error());
    }
    if (options.prepare) options.prepare(*qp);
    if (auto accepted = co_await request.id.accept(options.private_data); !accepted) {
      co_return std::unexpected(accepted.error());
    }
    auto event = co_await detail::expect(request.id, CmEventType::kEstablished, "accept");
    if (!event) co_return std::unexpected(event.error());
    co_return Connection{std::move(request.id), std::move(*qp), std::move(request.private_data)};
  }

 private:
  explicit Listener(ConnectionId id) : id_(std::move(id)) {}
  ConnectionId id_;
};

}  // namespace verbena
