// Connects, accepts, rejects and disconnects ids.  Wrong calls are refused before a QP changes its
// state.  The exception is disconnect(), which moves the QP to the error state even if there is no
// connection.

#include <algorithm>
#include <utility>

#include "process/ask.h"
#include "process/process.h"
#include "rdmacm/rules.h"

namespace verbena::process {

using rdmacm::check_private_data;
using Stage = Connection::Stage;

namespace {

// Returns true for an id of connections, not of datagrams, that has a port space.  Most of its
// requests do not wait for the agent.  The requests of other ids have many more parameters, so the
// program waits for the agent's checks.
bool is_rdma_cm_connection(const Connection& connection) {
  return !connection.is_datagram() && !connection.is_without_port_space();
}

// Returns true if the id has an endpoint of the CM, but nothing that could be disconnected: it
// listens on a device, or one side has not answered the other.
bool is_being_made(const Connection& connection) {
  if (connection.is_without_port_space()) return false;
  return connection.stage == Stage::kConnecting || connection.stage == Stage::kRequested ||
         (connection.stage == Stage::kListening && connection.bound);
}

}  // namespace

Started<ipc::Done> Process::connect(ConnectionHandle id, const rdmacm::ConnParam& param,
                                    Completion<ipc::Done> done) {
  const auto found = find_with_agent(id);
  if (!found) return failed(found.error());
  Connection& connection = **found;
  if (const auto valid = check_depths(connection, param); !valid) return failed(valid.error());
  if (connection.stage != Stage::kRouteResolved) {
    return failed({Errc::kBadState, 0, "no route resolved"});
  }
  ipc::Connect message{{}, param, connection.path.address.traffic_class};
  if (param.alternate.address.source != Gid{}) {
    const auto alternate = alternate_path(connection, param.alternate);
    if (!alternate) return failed(alternate.error());
    message.param.alternate = alternate->path;
  }
  if (connection.qp) {
    message.param.qpn = connection.qpn.value;
    message.param.ece_vendor_id = message.param.ece_options = 0;  // QPs of this stack have no ECE
  }
  const std::uint8_t depth_max = config_.limits.max_rd_atomic;
  message.param.responder_resources = std::min(param.responder_resources, depth_max);
  message.param.initiator_depth = std::min(param.initiator_depth, depth_max);
  if (!is_rdma_cm_connection(connection) || param.alternate.address.source != Gid{} ||
      param.peer_to_peer) {
    if (!connection.is_datagram()) leases_.numbers().mark_known_to_peer(Qpn{message.param.qpn});
    return ask_about(id, std::move(message),
                     set_stage_on_success(id, Stage::kConnecting, std::move(done)));
  }
  if (const auto fits =
          check_private_data(param.private_data_bytes,
                             rdmacm::connect_private_bytes(connection.qp_type, connection.source));
      !fits) {
    return failed(fits.error());
  }
  if (const auto owned = check_qp({message.param.qpn}); !owned) return failed(owned.error());
  leases_.numbers().mark_known_to_peer(Qpn{message.param.qpn});
  return send_without_reply(connection, Stage::kConnecting, std::move(message));
}

// Refuses more READs and atomics than the device supports, as librdmacm does.  That library does
// not check ids of other port spaces; their values are cut.
Result<void> Process::check_depths(const Connection& connection,
                                   const rdmacm::ConnParam& param) const {
  constexpr std::uint8_t kDeviceLimit = 0xff;  // RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH
  const std::uint8_t depth_max = config_.limits.max_rd_atomic;
  const auto fits = [&](std::uint8_t depth) { return depth <= depth_max || depth == kDeviceLimit; };
  if (connection.port_space != rdmacm::kPortSpaceTcp || connection.is_datagram()) return {};
  if (fits(param.responder_resources) && fits(param.initiator_depth)) return {};
  return fail(Errc::kInvalidArgument,
              "responder_resources or initiator_depth exceeds the device's max_qp_rd_atom");
}

// Refuses a QP of another program, as the node does.
Result<void> Process::check_qp(Qpn qpn) const {
  if (leases_.numbers().has_leased(qpn)) return {};
  return fail(Errc::kInvalidArgument, "not a QP of this program");
}

Completion<ipc::Done> Process::mark_answered(ConnectionHandle id, Completion<ipc::Done> done) {
  return [this, id, done = std::move(done)](Result<ipc::Done> result) mutable {
    Connection* const accepted = connections_.find(id);
    if (result && accepted != nullptr) accepted->unanswered = false;
    done(std::move(result));
  };
}

Started<ipc::Done> Process::accept(ConnectionHandle id, const rdmacm::ConnParam& param, Time now,
                                   Completion<ipc::Done> done) {
  const auto found = find_with_agent(id);
  if (!found) return failed(found.error());
  Connection& connection = **found;
  ipc::Accept message{{}, param};
  if (connection.is_datagram()) {
    if (connection.qp) message.param.qpn = connection.qpn.value;
    message.param.qkey = connection.qkey.value;
    return ask_about(
        id, std::move(message),
        set_stage_on_success(id, Stage::kConnected, mark_answered(id, std::move(done))));
  }
  if (const auto valid = check_depths(connection, param); !valid) return failed(valid.error());
  if (connection.stage != Stage::kRequested || connection.qp_transition.valid == 0) {
    return failed({Errc::kBadState, 0, "no request to accept"});
  }
  if (const auto fits = check_private_data(param.private_data_bytes, rdmacm::kAcceptPrivateBytes);
      !fits) {
    return failed(fits.error());
  }
  const Qpn qpn = connection.qp ? connection.qpn : Qpn{param.qpn};
  if (const auto owned = check_qp(qpn); !owned) return failed(owned.error());
  AlternatePath alternate;
  if (param.alternate_accepted) {
    if (!connection.is_without_port_space() || connection.offered_path.address.source == Gid{}) {
      return failed({Errc::kInvalidArgument, 0, "the request offers no alternate path"});
    }
    auto offered = alternate_path(connection, connection.offered_path);
    if (!offered) return failed(offered.error());
    alternate = *offered;
  } else if (auto offered = acceptable_alternate(connection)) {
    alternate = *std::move(offered);
    message.param.alternate_accepted = true;
  }
  auto& qp = connection.qp_transition;
  rdmacm::accept_resources(qp, param);
  qp.peer_rnr_retries = param.rnr_retry_count;
  qp.min_rnr_timer = rdmacm::min_rnr_timer(param.rnr_retry_count);
  message.param.responder_resources = qp.responder_resources;
  message.param.initiator_depth = qp.initiator_depth;
  message.param.psn = qp.rq_psn;
  message.param.qpn = qpn.value;
  if (connection.qp) {
    message.param.ece_vendor_id = message.param.ece_options = 0;
    // The QP goes to RTR and RTS before the REP is sent, because the peer may send data as soon as
    // it has the REP.
    if (const auto moved = connect_qp(id, now); !moved) return failed(moved.error());
  }
  if (const auto loaded = load(connection, alternate, now); !loaded) {
    return failed(loaded.error());
  }
  connection.pending_disconnect.local_qpn = qpn;
  connection.peer_may_be_connected = true;
  if (!is_rdma_cm_connection(connection)) {
    return ask_about(
        id, std::move(message),
        Completion<ipc::Done>([this, id, done = std::move(done)](Result<ipc::Done> result) mutable {
          Connection* const accepted = connections_.find(id);
          if (result && accepted != nullptr) {
            accepted->unanswered = false;
            accepted->stage = Stage::kAccepting;
            accepted->offered_path = {};
          }
          done(std::move(result));
        }));
  }
  connection.offered_path = {};
  connection.unanswered = false;
  return send_without_reply(connection, Stage::kAccepting, std::move(message));
}

Started<ipc::Done> Process::reject(ConnectionHandle id, const rdmacm::Refusal& refusal,
                                   Completion<ipc::Done> done) {
  const auto found = find_with_agent(id);
  if (!found) return failed(found.error());
  Connection& connection = **found;
  if (const auto valid = rdmacm::check_reason(connection.port_space, refusal.reason); !valid) {
    return failed(valid.error());
  }
  if (connection.stage != Stage::kRequested && connection.stage != Stage::kResponded) {
    return failed({Errc::kBadState, 0, "no request or response to reject"});
  }
  ipc::Reject message{
      {}, refusal.reason, bytes(refusal.additional_info), bytes(refusal.private_data)};
  if (!is_rdma_cm_connection(connection)) {
    return ask_about(
        id, std::move(message),
        Completion<ipc::Done>([this, id, done = std::move(done)](Result<ipc::Done> result) mutable {
          Connection* const rejected = connections_.find(id);
          if (result && rejected != nullptr) rejected->end();
          done(std::move(result));
        }));
  }
  if (const auto fits =
          check_private_data(refusal.private_data.size(), rdmacm::kRejectPrivateBytes);
      !fits) {
    return failed(fits.error());
  }
  if (!refusal.additional_info.empty()) {
    return failed(
        {Errc::kInvalidArgument, 0, "a reject of the RDMA CM carries no additional information"});
  }
  auto result = send_without_reply(connection, Stage::kEnded, std::move(message));
  connection.end();
  return result;
}

Started<ipc::Done> Process::establish(ConnectionHandle id, std::span<const std::byte> private_data,
                                      Time now, Completion<ipc::Done>) {
  const auto found = find_with_agent(id);
  if (!found) return failed(found.error());
  Connection& connection = **found;
  if (connection.stage != Stage::kResponded) {
    return failed({Errc::kBadState, 0, "no REP waits for an RTU"});
  }
  if (const auto fits = check_private_data(private_data.size(), rdmacm::kEstablishPrivateBytes);
      !fits) {
    return failed(fits.error());
  }
  AlternatePath alternate;
  if (connection.accepted_path.address.source != Gid{}) {
    auto agreed = alternate_path(connection, connection.accepted_path);
    if (!agreed) return failed(agreed.error());
    alternate = *agreed;
  }
  if (connection.qp) {  // its send queue is empty, so no data precedes the RTU
    if (const auto moved = connect_qp(id, now); !moved) return failed(moved.error());
  }
  if (const auto loaded = load(connection, alternate, now); !loaded) {
    return failed(loaded.error());
  }
  if (connection.qp) (void)engine_.mark_established(connection.qp).has_value();
  auto result =
      send_without_reply(connection, Stage::kConnected, ipc::Establish{{}, bytes(private_data)});
  connection.established = true;
  return result;
}

Started<ipc::Done> Process::disconnect(ConnectionHandle id, std::span<const std::byte> private_data,
                                       Time now, Completion<ipc::Done>) {
  const auto found = find(id);
  if (!found) return failed(found.error());
  Connection& connection = **found;
  // If the program has not answered the peer's response, disconnect() rejects the response.
  const bool rejects = connection.stage == Stage::kResponded;
  const std::size_t bytes_max =
      rejects ? rdmacm::kRejectPrivateBytes : rdmacm::kDisconnectPrivateBytes;
  if (const auto fits = check_private_data(private_data.size(), bytes_max); !fits) {
    return failed(fits.error());
  }
  // The CM disconnects even if the QP cannot move to the error state.
  (void)move_to_error(connection, now).has_value();
  if (const auto alive = find_with_agent(id); !alive) return failed(alive.error());
  if (connection.stage == Stage::kEnded) return Result<ipc::Done>(ipc::Done{});
  // As on Linux, this call sends no message while the connection is being made.  The QP is in the
  // error state, so the connection fails when the answer comes.
  if (is_being_made(connection)) return Result<ipc::Done>(ipc::Done{});
  if (connection.stage < Stage::kResponded || connection.stage == Stage::kRequested) {
    return failed({Errc::kBadState, 0, "not connected"});
  }
  // `peer_may_be_connected` remains set until the DREP shows that the peer has disconnected.
  auto result =
      send_without_reply(connection, Stage::kEnded, ipc::Disconnect{{}, bytes(private_data)});
  if (rejects) connection.end();
  return result;
}

}  // namespace verbena::process
