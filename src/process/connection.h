#pragma once

#include <cstdint>
#include <map>

#include "base/handle.h"
#include "base/operation.h"
#include "hca/types.h"
#include "rdmacm/types.h"

namespace verbena::process {

class Connection;
using ConnectionHandle = Handle<Connection>;

// The near end of one RDMA CM id: what the agent has said of it, and the program's QP.
class Connection {
 public:
  // What the program has asked for last, for messages.
  enum class Step : std::uint8_t { kNone, kResolve, kRoute, kConnect, kAccept };
  // Where it stands, by what the program has asked for and has heard: right calls at wrong moments
  // are refused by this side alone.  The agent may be ahead, and then its event says so.
  enum class Stage : std::uint8_t {
    kNew,
    kBound,
    kListening,
    kResolving,
    kAddressResolved,
    kRouteResolved,
    kConnecting,
    kResponded,  // CONNECT_RESPONSE is here, and the program has not answered it
    kRequested,  // so is CONNECT_REQUEST
    kAccepting,
    kConnected,
    kOver,  // or has been refused
  };

  rdmacm::IdHandle agent_id{};  // as both sides call it; none: its agent is gone
  bool made = false;            // the agent has been asked to make it,
  bool unmade = false;          // and could not: it is to be asked again
  bool unanswered = false;      // a request brought it, and the program has not accepted
  Stage stage = Stage::kNew;
  std::uint64_t cookie = 0;
  std::uint32_t port_space = 0;
  std::uint32_t qp_type = 0;
  rdmacm::SocketAddress source{};
  rdmacm::SocketAddress destination{};
  rdmacm::PathInfo path{};
  bool was_bound = false;  // by the program, which may count on its port's being free afterwards
  bool bound = false;      // on the device: the source is a specific address
  bool resolved = false;   // the path is known
  std::uint8_t tos = 0;    // for its traffic class
  rdmacm::QpTransition qp_transition{};
  hca::QpHandle qp{};
  Qpn qpn{};
  Step step = Step::kNone;
  Time step_began{};
  // Of another path, if they have a source: what the peer has for us and waits for our word on;
  // what it has agreed to and the QP is to get; what the QP may migrate to.
  rdmacm::PathInfo offered{};
  rdmacm::PathInfo agreed{};
  rdmacm::PathInfo other{};
  bool is_datagram() const { return qp_type == rdmacm::kQpTypeUd; }
  bool is_without_port_space() const { return port_space == rdmacm::kPortSpaceNone; }

  // A multicast group that the program has joined with this id.
  struct Group {
    Gid address{};
    hca::QpHandle qp{};  // to be attached to it, if any
    bool attached = false;
    Pending attaching{};
  };
  std::map<std::uint64_t, Group> groups{};  // by the program's cookie

  // For the next agent, should this one die: from connect() or accept() on until it is over.
  rdmacm::PendingDisconnect pending_disconnect{};
  bool established = false;    // as the program has heard
  bool peer_believes = false;  // that there is a connection, or may do so

  // It is over, or was refused: nobody waits for an answer.
  void end() {
    stage = Stage::kOver;
    peer_believes = false;
    offered = agreed = {};
  }
};

}  // namespace verbena::process
