#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "base/error.h"
#include "base/handle.h"
#include "process/connection.h"

namespace verbena::process {

// Holds the program's ids, and finds them by handle, by their name in messages and by QP.
//
// Invariants: an id has at most one QP, and a QP belongs to at most one id.
class Connections {
 public:
  explicit Connections(std::uint32_t ids_max) : slots_(ids_max) {}

  // Adds an id and returns its handle.  Fails with kNoResources if the ids are all in use.
  Result<ConnectionHandle> insert(std::unique_ptr<Connection> connection);
  // Returns null if there is no such id.
  std::unique_ptr<Connection> remove(ConnectionHandle id);
  Connection* find(ConnectionHandle id) const { return slots_.find(id); }
  // Finds the id with this name in messages, and sets `handle`.  Returns null if there is none.
  Connection* find_by_agent_id(rdmacm::IdHandle agent_id, ConnectionHandle& handle) const;
  Connection* find_by_qpn(Qpn qpn) const;
  void for_each(auto&& f) const { slots_.for_each(f); }

  // Records the name that the agent has given to the id of a CONNECT_REQUEST.
  void set_agent_id(rdmacm::IdHandle agent_id, ConnectionHandle id) { by_agent_id_[agent_id] = id; }
  // Removes all names that a dead agent has given.
  void forget_agent_ids() { by_agent_id_.clear(); }

  // Gives the id this QP instead of its old one.  If another id has this QP, that id loses it.
  void set_qp(ConnectionHandle id, hca::QpHandle qp, Qpn qpn);
  void remove_qp(Connection& connection);

  // Returns how many ids insert() has refused.
  std::uint64_t refused() const { return refused_; }

 private:
  Slots<Connection> slots_;
  std::map<rdmacm::IdHandle, ConnectionHandle> by_agent_id_{};  // only ids that the agent named
  std::map<std::uint32_t, ConnectionHandle> by_qpn_{};
  std::uint64_t refused_ = 0;
};

}  // namespace verbena::process
