// Connections of ids: asked for, answered, ended.  What is wrong is refused before a QP moves.

#include <algorithm>
#include <utility>

#include "process/ask.h"
#include "process/process.h"

namespace verbena::process {
namespace {

// As rdmacm has it; here as well, since from then on there is nothing for the next agent to end.
Result<void> check_reason(const Connection& connection, std::uint16_t reason) {
  using namespace rdmacm;
  const bool without = connection.is_without_port_space();
  if (without && reason >= 1 && reason <= kRejectReasonMax) return {};
  if (reason == kRejectConsumer || reason == kRejectVendorOption) return {};
  return fail(Errc::kInvalidArgument,
              without ? "reasons are 1 to 33 and 35" : "reasons for programs are 28 and 35");
}

}  // namespace

Started<ipc::Done> Process::connect(ConnectionHandle id, const rdmacm::ConnParam& param,
                                    Completion<ipc::Done> done) {
  const auto found = find(id);
  if (!found) return failed(found.error());
  const Connection& connection = **found;
  ipc::Connect message{{}, param};
  if (param.alternate.source != Gid{}) {
    const auto other = other_path(connection, param.alternate);
    if (!other) return failed(other.error());
    message.param.alternate = other->path;
  }
  if (connection.qp) {
    message.param.qpn = connection.qpn.value;
    message.param.ece_vendor_id = message.param.ece_options = 0;  // ours have nothing to say
  }
  const std::uint8_t most = config_.limits.max_rd_atomic;
  message.param.responder_resources = std::min(param.responder_resources, most);
  message.param.initiator_depth = std::min(param.initiator_depth, most);
  if (!connection.is_datagram()) numbers_.told(Qpn{message.param.qpn});
  return ask_for(id, std::move(message), std::move(done));
}

Started<ipc::Done> Process::accept(ConnectionHandle id, const rdmacm::ConnParam& param, Time now,
                                   Completion<ipc::Done> done) {
  const auto found = find(id);
  if (!found) return failed(found.error());
  Connection& connection = **found;
  ipc::Accept message{{}, param};
  if (connection.is_datagram()) {
    if (connection.qp) message.param.qpn = connection.qpn.value;
    return ask_for(id, std::move(message), std::move(done));
  }
  if (!connection.requested || connection.qp_transition.valid == 0) {
    return failed({Errc::kBadState, 0, "nothing to accept"});
  }
  if (!connection.agent_id) return failed({Errc::kDeviceFatal, 0, kIdGone});
  OtherPath other;
  if (param.alternate_accepted) {
    if (!connection.is_without_port_space() || connection.offered.source == Gid{}) {
      return failed({Errc::kInvalidArgument, 0, "the request has no other path to be accepted"});
    }
    auto offered = other_path(connection, connection.offered);
    if (!offered) return failed(offered.error());
    other = *offered;
  }
  auto& qp = connection.qp_transition;
  // What the peer offered bounds what is accepted; 0xff asks for all of it (rdma_accept(3)).
  qp.responder_resources = std::min(qp.responder_resources, param.responder_resources);
  qp.initiator_depth = std::min(qp.initiator_depth, param.initiator_depth);
  qp.peer_rnr_retries = param.rnr_retry_count;
  message.param.responder_resources = qp.responder_resources;
  message.param.initiator_depth = qp.initiator_depth;
  message.param.psn = qp.rq_psn;
  if (connection.qp) {
    message.param.qpn = connection.qpn.value;
    message.param.ece_vendor_id = message.param.ece_options = 0;
    // Both moves before the REP goes out: data may follow it at once.
    if (const auto moved = connect_qp(id, now); !moved) return failed(moved.error());
  }
  if (const auto loaded = load(connection, other, now); !loaded) return failed(loaded.error());
  connection.goodbye.local_qpn = {message.param.qpn};
  connection.peer_believes = true;
  return ask_for(
      id, std::move(message),
      Completion<ipc::Done>([this, id, done = std::move(done)](Result<ipc::Done> said) mutable {
        Connection* const accepted = connections_.find(id);
        if (said && accepted != nullptr) {
          accepted->requested = false;
          accepted->offered = {};
        }
        done(std::move(said));
      }));
}

Started<ipc::Done> Process::reject(ConnectionHandle id, const rdmacm::Refusal& refusal,
                                   Completion<ipc::Done> done) {
  const auto found = find(id);
  if (!found) return failed(found.error());
  if (const auto right = check_reason(**found, refusal.reason); !right) {
    return failed(right.error());
  }
  return ask_for(
      id,
      ipc::Reject{{}, refusal.reason, bytes(refusal.additional_info), bytes(refusal.private_data)},
      Completion<ipc::Done>([this, id, done = std::move(done)](Result<ipc::Done> said) mutable {
        Connection* const connection = connections_.find(id);
        if (said && connection != nullptr) connection->no_more_asked();
        done(std::move(said));
      }));
}

Started<ipc::Done> Process::establish(ConnectionHandle id, std::span<const std::byte> private_data,
                                      Time now, Completion<ipc::Done> done) {
  const auto found = find(id);
  if (!found) return failed(found.error());
  Connection& connection = **found;
  if (!connection.responded) return failed({Errc::kBadState, 0, "no response to establish"});
  if (private_data.size() > rdmacm::kEstablishPrivateBytes) {
    return failed({Errc::kInvalidArgument, 0, "more private data than the message holds"});
  }
  if (!connection.agent_id) return failed({Errc::kDeviceFatal, 0, kIdGone});
  OtherPath other;
  if (connection.agreed.source != Gid{}) {
    auto agreed = other_path(connection, connection.agreed);
    if (!agreed) return failed(agreed.error());
    other = *agreed;
  }
  if (connection.qp) {  // has nothing to send before the RTU goes
    if (const auto moved = connect_qp(id, now); !moved) return failed(moved.error());
  }
  if (const auto loaded = load(connection, other, now); !loaded) return failed(loaded.error());
  if (connection.qp) (void)engine_.mark_established(connection.qp).has_value();
  connection.responded = false;
  return ask_for(
      id, ipc::Establish{{}, bytes(private_data)},
      Completion<ipc::Done>([this, id, done = std::move(done)](Result<ipc::Done> said) mutable {
        Connection* const established = connections_.find(id);
        if (said && established != nullptr) established->established = true;
        done(std::move(said));
      }));
}

Started<ipc::Done> Process::disconnect(ConnectionHandle id, std::span<const std::byte> private_data,
                                       Time now, Completion<ipc::Done> done) {
  const auto connection = find(id);
  if (!connection) return failed(connection.error());
  // To a response that waits, it is a no.
  const std::size_t most =
      (*connection)->responded ? rdmacm::kRejectPrivateBytes : rdmacm::kDisconnectPrivateBytes;
  if (private_data.size() > most) {
    return failed({Errc::kInvalidArgument, 0, "more private data than the message holds"});
  }
  (void)to_error(**connection, now).has_value();
  return ask_for(id, ipc::Disconnect{{}, bytes(private_data)}, std::move(done));
}

}  // namespace verbena::process
