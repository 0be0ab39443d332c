#include <unistd.h>

#include <algorithm>
#include <utility>

#include "agent/agent.h"
#include "ipc/counters.h"
#include "ipc/qp_table.h"
#include "ipc/tool_messages.h"
#include "os/clock.h"
#include "os/limits.h"
#include "os/shared_memory.h"

// Implements the part of Agent that answers `verbena ps` and `verbena agent status` and adds up the
// port's counters.
namespace verbena::agent {
namespace {

// A program may round the size of its table up to whole pages.
constexpr std::size_t kTableBytesMax = ipc::QpTable::kBytes + 65536;

}  // namespace

ipc::StatusReply Agent::status() const {
  ipc::StatusReply reply;
  reply.pid = static_cast<std::uint32_t>(::getpid());
  reply.build = options_.build;
  reply.uptime = os::now() - started_;
  reply.all_users = options_.all_users;
  const os::AgentLimits limits = os::agent_limits();
  reply.open_files_max = limits.open_files;
  reply.cpu_seconds_max = limits.cpu_seconds;
  reply.programs = static_cast<std::uint32_t>(programs());
  reply.leases = static_cast<std::uint32_t>(network_->leases());
  reply.ids = static_cast<std::uint32_t>(node_.ids());
  for (const ipc::Device& device : node_.devices()) {
    std::uint8_t number = 1;
    for (const ipc::Port& port : device.ports) {
      reply.ports.push_back(
          {device.name, number++, port.active, port.down_reason, port.reach.why_only_this_host});
    }
  }
  reply.counters = counters();
  if (reply.counters.size() > ipc::kListMax) reply.counters.resize(ipc::kListMax);
  return reply;
}

std::vector<ipc::NamedCount> Agent::counters() const {
  std::vector<ipc::NamedCount> all;
  network_->add_counters(all);
  all.push_back({"port_downs", times_down_});
  all.push_back({"clients_refused", clients_refused_});
  all.push_back({"limit_client_requests", limit_counters_.requests});
  all.push_back({"limit_client_queue", limit_counters_.queue});
  all.push_back({"counts_implausible", implausible_counts()});
  all.push_back({"captures", captures_.size()});
  all.push_back({"captures_refused", captures_refused_});
  all.push_back({"captures_incomplete", captures_.incomplete()});
  all.push_back({"capture_dropped", captures_.dropped()});
  all.push_back({"port_files", port_files_.size()});
  all.push_back({"port_files_refused", port_files_refused_});
  for (auto& counter : node_.counters()) all.push_back(std::move(counter));
  return all;
}

// Adds the counters of a running or just ended program to the sums.
void Agent::add_counters(Session& session, CounterSums& sums) {
  if (!session.qp_table) return;
  if (!session.mapped_table) {
    auto mapped =
        os::map_shared(session.qp_table.get(), ipc::QpTable::kBytes, kTableBytesMax, false);
    if (!mapped) return;  // not a valid table
    session.mapped_table = *std::move(mapped);
  }
  session.counters.update(ipc::QpTable(session.mapped_table.bytes()).counters(), os::now());
  session.counters.add_to(sums);
}

std::uint64_t Agent::implausible_counts() const {
  std::uint64_t sum = implausible_counts_of_ended_programs_;
  for (const auto& [id, session] : sessions_) sum += session->counters.implausible();
  return sum;
}

std::vector<ipc::NamedCount> Agent::port_counter_values() {
  CounterSums programs = ended_program_counters_, agent_counters;
  for (const auto& [id, session] : sessions_) add_counters(*session, programs);
  for (const auto& counter : counters()) agent_counters[counter.name] += counter.value;
  return port_counters(programs, agent_counters, times_down_);
}

// Counts how often the first port of the host's first device goes down.  Call it whenever the state
// of a port may have changed.
void Agent::track_port_state() {
  const bool active = node_.devices().front().ports.front().active;
  if (port_was_active_ && !active) ++times_down_;
  port_was_active_ = active;
}

// Updates the files.  Programs do not report changes of their counters, so the agent reads their
// tables periodically while programs run.
void Agent::refresh_port_files() {
  if (port_files_.empty()) return;
  port_files_.refresh(port_counter_values());
  if (programs() > 0) {
    port_files_timer_.at(os::now() + PortFiles::kRefreshInterval);
  }
}

// Replies with a page of the list: first programs, then connections.  A page has as many entries as
// fit into one message, which can carry the descriptors of only a few tables.
void Agent::list_processes(Session& session, const ipc::Envelope& envelope) {
  const auto request = ipc::decode<ipc::Processes>(envelope);
  if (!request) {
    return session.connection.reply_result(envelope.request, std::unexpected(request.error()));
  }
  ipc::ProcessesReply reply;
  std::vector<int> tables;
  for (auto at = sessions_.upper_bound(request->after_process); at != sessions_.end(); ++at) {
    const Session& other = *at->second;
    if (other.role != Role::kProgram || !may_see(session, other)) continue;
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
    const Session* const owner = session_of(client);
    if (is_guest(session) && (owner == nullptr || !may_see(session, *owner))) continue;
    if (owner != nullptr) info.pid = owner->pid;
    reply.connections.push_back(std::move(info));
  }
  session.connection.reply(envelope.request, reply, tables);
}

}  // namespace verbena::agent
