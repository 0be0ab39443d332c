#include "cli/agent_command.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/agent_connection.h"
#include "cli/text.h"
#include "ipc/tool_messages.h"

namespace verbena::cli {

std::string as_text(const ipc::StatusReply& status) {
  std::vector<std::vector<std::string>> rows{
      {"agent", fmt::format("pid {}, build {}, up {}", status.pid, status.build,
                            duration_text(whole_seconds(status.uptime)))},
  };
  if (status.all_users) rows.push_back({"serves", "all users"});
  for (const ipc::PortStatus& port : status.ports) {
    // A host has one port, unless it belongs to a fabric.
    const std::string name =
        status.ports.size() == 1 ? "port" : fmt::format("port {}/{}", port.device, port.number);
    const std::string host_alone = port.why_only_this_host.empty()
                                       ? ""
                                       : ", but only within this host: " + port.why_only_this_host;
    rows.push_back({name, port.active ? "active" + host_alone : "DOWN: " + port.down_reason});
  }
  rows.push_back({"programs", std::to_string(status.programs)});
  rows.push_back({"leases", std::to_string(status.leases)});
  rows.push_back({"ids", std::to_string(status.ids)});
  for (const auto& counter : status.counters) {
    // Leave out counters that are 0, because there are about a hundred and most of them are 0.
    // Always show data_packets, because 0 means that all packets for programs reached the programs'
    // own sockets.
    if (counter.value == 0 && counter.name != "data_packets") continue;
    rows.push_back({counter.name, std::to_string(counter.value)});
  }
  return table_text(rows);
}

std::string as_json(const ipc::StatusReply& status) {
  using Json = nlohmann::ordered_json;
  Json counters = Json::object();
  for (const auto& counter : status.counters) counters[counter.name] = counter.value;
  Json ports = Json::array();
  for (const ipc::PortStatus& port : status.ports) {
    ports.push_back({{"device", port.device},
                     {"port", port.number},
                     {"active", port.active},
                     {"why_down", port.down_reason},
                     {"why_host_alone", port.why_only_this_host}});
  }
  const ipc::PortStatus* const down_port = status.find_down_port();
  const Json all{{"agent",
                  {{"pid", status.pid},
                   {"build", status.build},
                   {"uptime_seconds", whole_seconds(status.uptime)},
                   {"all_users", status.all_users},
                   {"port_active", down_port == nullptr},
                   {"why_down", down_port == nullptr ? "" : down_port->down_reason},
                   {"ports", std::move(ports)},
                   {"programs", status.programs},
                   {"leases", status.leases},
                   {"ids", status.ids},
                   {"counters", std::move(counters)}}}};
  return all.dump(2, ' ', true, Json::error_handler_t::replace) + "\n";
}

int agent_status(bool json) {
  auto agent = AgentConnection::find();
  if (!agent) return print_error("agent", agent.error());
  if (!*agent) {
    std::puts(json ? "{\n  \"agent\": null\n}"
                   : "no agent is running (one starts with the first program)");
    return 0;
  }
  const auto status = (*agent)->ask<ipc::StatusReply>(ipc::Status{});
  if (!status) return print_error("agent", status.error());
  std::fputs((json ? as_json(*status) : as_text(*status)).c_str(), stdout);
  return 0;
}

int agent_start(bool all_users) {
  const auto text = start_agent(all_users);
  if (!text) return print_error("agent", text.error());
  std::puts(text->c_str());
  return 0;
}

int agent_stop() {
  const auto text = stop_agent();
  if (!text) return print_error("agent", text.error());
  std::puts(text->c_str());
  return 0;
}

}  // namespace verbena::cli
