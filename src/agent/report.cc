#include <unistd.h>

#include <algorithm>
#include <utility>

#include "agent/agent.h"
#include "os/clock.h"

// The part of Agent that answers `verbena ps` and `verbena agent status`.
namespace verbena::agent {

ipc::StatusReply Agent::status() const {
  const ipc::Device device = node_.device();
  ipc::StatusReply reply;
  reply.pid = static_cast<std::uint32_t>(::getpid());
  reply.build = options_.build;
  reply.uptime = os::now() - started_;
  reply.programs = static_cast<std::uint32_t>(programs());
  reply.leases = port_ ? static_cast<std::uint32_t>(port_->leases()) : 0;
  reply.ids = static_cast<std::uint32_t>(node_.ids());
  reply.port_active = device.port_active;
  reply.why_down = device.port_active ? "" : device.why_down;
  if (port_) {
    port_->add_counters(reply.counters);
  } else {
    reply.counters.push_back({"data_packets", 0});
  }
  reply.counters.push_back({"clients_refused", clients_refused_});
  reply.counters.push_back({"limit_client_requests", limits_met_.requests});
  reply.counters.push_back({"limit_client_queue", limits_met_.queue});
  reply.counters.push_back({"captures", captures_.size()});
  reply.counters.push_back({"captures_refused", captures_refused_});
  reply.counters.push_back({"capture_dropped", captures_.dropped()});
  for (auto& counter : node_.counters()) reply.counters.push_back(std::move(counter));
  if (reply.counters.size() > ipc::kListMax) reply.counters.resize(ipc::kListMax);
  return reply;
}

// The list is all programs and then all connections; a reply holds as many as fit, and at most as
// many tables as a message can carry.
void Agent::processes(Session& session, const ipc::Envelope& envelope) {
  const auto request = ipc::decode<ipc::Processes>(envelope);
  if (!request) {
    return session.connection.done(envelope.request, std::unexpected(request.error()));
  }
  ipc::ProcessesReply reply;
  std::vector<int> tables;
  for (auto at = sessions_.upper_bound(request->after_process); at != sessions_.end(); ++at) {
    const Session& other = *at->second;
    if (other.role != Role::kProgram) continue;
    if (reply.processes.size() == ipc::kProcessesPerReply || tables.size() == os::kMessageFdsMax) {
      reply.more = true;
      return session.connection.reply(envelope.request, reply, tables);
    }
    ipc::ProcessInfo info{.number = at->first, .pid = other.pid, .name = other.name};
    info.ranges = node_.ranges_of(*other.client);
    if (other.qp_table) {
      info.has_table = true;
      tables.push_back(other.qp_table.get());
    }
    reply.processes.push_back(std::move(info));
  }
  for (auto& [client, info] : node_.connections()) {
    if (info.number <= request->after_connection) continue;
    if (reply.connections.size() == ipc::kConnectionsPerReply) {
      reply.more = true;
      break;
    }
    if (const auto found = session_of_client_.find(client); found != session_of_client_.end()) {
      info.pid = sessions_.at(found->second)->pid;
    }
    reply.connections.push_back(std::move(info));
  }
  session.connection.reply(envelope.request, reply, tables);
}

}  // namespace verbena::agent
