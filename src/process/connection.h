#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/handle.h"
#include "base/operation.h"
#include "hca/types.h"
#include "ipc/subnet_messages.h"
#include "rdmacm/rules.h"
#include "rdmacm/types.h"

namespace verbena::process {

class Connection;
using ConnectionHandle = Handle<Connection>;

// Holds the program's side of one RDMA CM id: its state as the program knows it, and its QP.
class Connection {
 public:
  // Names the last request of the program, for diagnostics.
  enum class Step : std::uint8_t { kNone, kResolve, kRoute, kConnect, kAccept };
  // Names the state as the program knows it, from its requests and the events that it has
  // received.  Process refuses calls in the wrong state without asking the agent.  The agent may
  // already be in a later state; then its events follow.
  enum class Stage : std::uint8_t {
    kNew,
    kBound,
    kListening,
    kResolving,
    kAddressResolved,
    kRouteResolved,
    kConnecting,
    kResponded,  // CONNECT_RESPONSE has come, and the program has not answered it
    kRequested,  // CONNECT_REQUEST has come, and the program has not answered it
    kAccepting,
    kConnected,
    kEnded,  // disconnected, rejected or failed
  };

  rdmacm::IdHandle agent_id{};  // the id's name in messages; empty if its agent has died
  bool create_sent = false;     // CreateId was sent to the agent
  bool create_refused = false;  // the agent could not create the id; CreateId must be sent again
  bool unanswered = false;      // CONNECT_REQUEST created the id, which is not accepted yet
  Stage stage = Stage::kNew;
  std::uint64_t cookie = 0;
  std::uint32_t port_space = 0;
  std::uint32_t qp_type = 0;
  // Datagrams use this Q_Key.  An id of RDMA_PS_IPOIB has the Q_Key 0 until its address is resolved
  // or it has joined a group.
  Qkey qkey{};
  rdmacm::SocketAddress source{};
  rdmacm::SocketAddress destination{};
  rdmacm::PathInfo path{};
  // True: the program has given the source address, and may want the port again after destroy_id().
  bool program_chose_port = false;
  bool bound = false;     // bound to a device: the source is a specific address
  bool resolved = false;  // the path is known
  std::uint8_t tos = 0;   // on Ethernet it becomes the traffic class of the path
  rdmacm::QpTransition qp_transition{};
  hca::QpHandle qp{};
  Qpn qpn{};
  Step step = Step::kNone;
  Time step_began{};
  // The next three members are alternate paths.  A path without a source GID is empty.
  rdmacm::PathInfo offered_path{};   // the peer offers this path and waits for our answer
  rdmacm::PathInfo accepted_path{};  // the peer has accepted this path; the QP must load it
  rdmacm::PathInfo loaded_path{};    // the QP has loaded this path and may migrate to it
  bool is_datagram() const { return rdmacm::is_datagram(qp_type); }
  bool is_without_port_space() const { return port_space == rdmacm::kPortSpaceNone; }

  // Describes a multicast group that the program has joined with this id.
  struct Group {
    Gid address{};  // on InfiniBand the MGID, as soon as it is known
    bool receives = false;
    hca::QpHandle qp{};  // the QP to attach, if any
    bool attached = false;
    Pending pending{};  // the request to the agent: to join the group, or to attach the QP
    // The next members are only for InfiniBand.
    std::uint64_t membership = 0;  // the number of the join; 0: the agent has not answered
    std::uint8_t rate = 0;
    rdmacm::PathInfo path{};  // the path to the group
  };
  std::map<std::uint64_t, Group> groups{};  // by the program's cookie

  // The next members are for ids on InfiniBand that look for services.
  std::vector<ipc::Service> services{};     // found services; not empty after a success
  std::optional<Pending> service_lookup{};  // set during a lookup of services and after a success
  // True: resolve_route() also resolves the address, and the program gets only the event of the
  // route.
  bool reports_only_route = false;

  // If the agent of the id dies, the next agent disconnects the peer with these values.
  rdmacm::PendingDisconnect pending_disconnect{};
  bool established = false;            // ESTABLISHED was reported to the program
  bool peer_may_be_connected = false;  // if the agent dies, the peer must get a DREQ

  // Call this when the connection has ended or was refused.  The peer then expects no more answers.
  void end() {
    stage = Stage::kEnded;
    peer_may_be_connected = false;
    offered_path = accepted_path = {};
  }
};

}  // namespace verbena::process
