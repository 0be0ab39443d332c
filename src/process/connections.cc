#include "process/connections.h"

#include <utility>

#include "ipc/messages.h"

namespace verbena::process {

Result<ConnectionHandle> Connections::insert(std::unique_ptr<Connection> connection) {
  auto handle = slots_.insert(std::move(connection));
  if (handle) return handle;
  ++refused_;
  return fail(handle.error().code, "a program's RDMA CM ids are all in use (ids_per_owner_max)");
}

std::unique_ptr<Connection> Connections::remove(ConnectionHandle id) {
  auto connection = slots_.remove(id);
  if (!connection) return connection;
  remove_qp(*connection);
  by_agent_id_.erase(connection->agent_id);
  return connection;
}

Connection* Connections::find_by_agent_id(rdmacm::IdHandle agent_id,
                                          ConnectionHandle& handle) const {
  if (ipc::is_name(agent_id)) {
    handle = {agent_id.value & ~ipc::kNameBit};
  } else if (const auto found = by_agent_id_.find(agent_id); found != by_agent_id_.end()) {
    handle = found->second;
  } else {
    return nullptr;
  }
  Connection* const connection = slots_.find(handle);
  return connection != nullptr && connection->agent_id == agent_id ? connection : nullptr;
}

Connection* Connections::find_by_qpn(Qpn qpn) const {
  const auto found = by_qpn_.find(qpn.value);
  return found == by_qpn_.end() ? nullptr : slots_.find(found->second);
}

void Connections::set_qp(ConnectionHandle id, hca::QpHandle qp, Qpn qpn) {
  Connection& connection = *slots_.find(id);
  remove_qp(connection);
  if (Connection* const other = find_by_qpn(qpn)) remove_qp(*other);
  connection.qp = qp;
  connection.qpn = qpn;
  by_qpn_[qpn.value] = id;
}

void Connections::remove_qp(Connection& connection) {
  if (connection.qp) by_qpn_.erase(connection.qpn.value);
  connection.qp = {};
  connection.qpn = {};
}

}  // namespace verbena::process
