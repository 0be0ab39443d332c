#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/time.h"
#include "cm/listeners.h"
#include "cm/types.h"
#include "rdmacm/rules.h"
#include "rdmacm/types.h"

namespace verbena::rdmacm {

// An id has one of these states; manager.h draws the transitions.
enum class IdState : std::uint8_t {
  kIdle,
  kBound,
  kListening,
  kResolving,
  kResolved,
  kConnecting,  // REQ or SIDR_REQ was sent
  kResponded,   // the peer has responded with a REP; the program changes the state of its QP
  kRequested,   // REQ or SIDR_REQ was received: a child, or peer to peer
  kAccepting,   // REP was sent
  kConnected,
  kDisconnecting,  // DREQ was sent
  kDisconnected,
  kFailed,  // rejected by either side, or unreachable
};
const char* to_string(IdState state);

// Represents one RDMA CM id, made by rdma_create_id() or by a listener for a request.
class Id {
 public:
  Owner owner{};
  std::uint64_t name = 0;  // the owner chose it
  std::uint16_t port_space{};
  std::uint8_t qp_type{};
  IdState state = IdState::kIdle;

  bool is_datagram() const { return rdmacm::is_datagram(qp_type); }
  bool has_header() const { return rdmacm::has_header(source); }

  bool reuse_addr = false;
  bool af_only = false;
  std::uint8_t tos = 0;
  std::uint8_t ack_timeout = 0;  // timeout code; 0: derived from the path

  SocketAddress source{};
  SocketAddress destination{};
  bool has_reserved_port = false;  // false for children: they use the port of their listener
  bool bound_to_device = false;
  bool is_loopback = false;
  bool is_peer_to_peer = false;
  PathInfo path{};

  std::uint64_t query_token = 0;  // set in kResolving

  struct Listening {
    std::uint32_t backlog = 0;
    std::uint32_t children = 0;  // the children in kRequested, which the program has not answered
    std::optional<cm::Service> service{};  // set if the id has no port space
  };
  std::unique_ptr<Listening> listening{};  // set in kListening
  IdHandle listener{};                     // the listener of a child in kRequested

  cm::EndpointHandle endpoint{};
  cm::ResolutionHandle resolution{};  // replaces `endpoint` for datagrams, until the answer
  // Stores parameters of connect() that later steps need.
  struct ConnectOptions {
    std::uint8_t responder_resources{};
    std::uint8_t initiator_depth{};
    std::uint8_t retry_count{};
    std::uint8_t rnr_retry_count{};
    std::chrono::duration<std::uint32_t, std::milli> give_up_after{};  // at most an hour
    // The alternate path comes from the route (InfiniBand), from connect() or from load_path().
    std::unique_ptr<PathInfo> alternate{};
  };
  ConnectOptions options{};
  QpTransition qp{};
  std::uint32_t qpn = 0;
};

}  // namespace verbena::rdmacm
