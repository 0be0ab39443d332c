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
  reply.counters.push_back({"captures", captures_.size()});
  reply.counters.push_back({"captures_refused", captures_refused_});
  reply.counters.push_back({"capture_dropped", captures_.dropped()});
  for (auto& counter : node_.counters()) reply.counters.push_back(std::move(counter));
  if (reply.counters.size() > ipc::kListMax) reply.counters.resize(ipc::kListMax);
  return reply;
}

// The list is all programs and then all connections; a reply holds as many as fit from the
// `first`-th on, and at most as many tables as a message can carry.
void Agent::processes(Session& session, const ipc::Envelope& envelope) {
  constexpr std::size_t kConnectionsPerReply = 256;  // of some 130 bytes
  const auto request = ipc::decode<ipc::Processes>(envelope);
  if (!request) {
    return session.connection.done(envelope.request, std::unexpected(request.error()));
  }
  ipc::ProcessesReply reply;
  std::vector<int> tables;
  std::size_t skip = request->first;
  for (const auto& [id, other] : sessions_) {
    if (other->role != Role::kProgram) continue;
    if (skip > 0) {
      --skip;
      continue;
    }
    if (reply.processes.size() == ipc::kProcessesPerReply || tables.size() == os::kMessageFdsMax) {
      reply.more = true;
      return session.connection.reply(envelope.request, reply, tables);
    }
    ipc::ProcessInfo info{.pid = other->pid, .name = other->name};
    if (const auto ranges = node_.ranges_of(*other->client); !ranges.empty() && other->qp_table) {
      info.leased = true;
      info.range = ranges.front();
      tables.push_back(other->qp_table.get());
    }
    reply.processes.push_back(std::move(info));
  }
  const auto connections = node_.connections();
  for (std::size_t i = skip; i < connections.size(); ++i) {
    if (reply.connections.size() == kConnectionsPerReply) {
      reply.more = true;
      break;
    }
    auto [client, info] = connections[i];
    if (const auto found = session_of_client_.find(client); found != session_of_client_.end()) {
      info.pid = sessions_.at(found->second)->pid;
    }
    reply.connections.push_back(std::move(info));
  }
  session.connection.reply(envelope.request, reply, tables);
}

}  // namespace verbena::agent
