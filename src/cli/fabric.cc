#include "cli/fabric.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "cli/fabric_client.h"
#include "cli/fabric_file.h"
#include "cli/fabric_up.h"
#include "cli/text.h"
#include "ipc/counters.h"
#include "os/agent_name.h"
#include "os/clock.h"
#include "os/process.h"
#include "os/unix_channel.h"
#include "plan/plan.h"
#include "subnet/generate.h"
#include "subnet/netlist.h"
#include "subnet/netlist_words.h"
#include "wire/address_text.h"

namespace verbena::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr Duration kDownTimeout = std::chrono::seconds(10);

int check(const FabricOptions& options) {
  const auto fabric_file = read_fabric_file(options.file);
  if (!fabric_file) return print_error("fabric", fabric_file.error());
  fmt::print("{}: {}\n", options.file, size_text(*fabric_file));
  if (options.faults.empty()) return 0;
  const auto faults = read_faults_file(options.faults, *fabric_file);
  if (!faults) return print_error("fabric", faults.error());
  fmt::print("{}: {}\n", options.faults, quantity_text(faults->faults.size(), "fault", "faults"));
  return 0;
}

// Ends a fabric, of this or another build, and waits until its process has ended.
Answer<void> stop_fabric(const std::string& name) {
  auto channel = os::UnixChannel::connect(os::fabric_socket_name(name), os::now() + kDownTimeout);
  if (!channel && channel.error().code == Errc::kUnreachable) return {};  // the fabric just ended
  if (!channel) {
    return std::unexpected(
        fmt::format("cannot reach the fabric '{}': {}", name, channel.error().context));
  }
  const auto peer = channel->peer();
  if (!peer || peer->uid != ::geteuid()) {
    return std::unexpected(
        fmt::format("the fabric '{}' belongs to {}", name, os::describe_name_owner(*channel)));
  }
  const auto process = os::open_pidfd(peer->pid);
  if (!process) return {};
  (void)::syscall(SYS_pidfd_send_signal, process->get(), SIGTERM, nullptr, 0);
  const auto ended = os::wait_for(process->get(), POLLIN, os::now() + kDownTimeout);
  if (ended && *ended != 0) return {};
  return std::unexpected(
      fmt::format("the fabric '{}' (pid {}) does not end; if it hangs: kill -9 "
                  "{}",
                  name, peer->pid, peer->pid));
}

int down(const FabricOptions& options) {
  const auto name = resolve_fabric_name(options.name);
  if (!name) return print_error("fabric", name.error());
  const auto stopped = stop_fabric(*name);
  if (!stopped) return print_error("fabric", stopped.error());
  fmt::print("fabric '{}' is down\n", *name);
  return 0;
}

std::vector<std::string> texts_of(const std::vector<Gid>& addresses) {
  std::vector<std::string> texts;
  for (const Gid& address : addresses) texts.push_back(wire::address_text(address));
  return texts;
}

std::uint32_t count_programs(const ipc::FabricReply& fabric) {
  std::uint32_t programs = 0;
  for (const ipc::HostStatus& host : fabric.hosts) programs += host.programs;
  return programs;
}

std::string dump(const Json& json) {
  return json.dump(2, ' ', true, Json::error_handler_t::replace) + "\n";
}

int list(const FabricOptions& options) {
  std::vector<std::vector<std::string>> rows{{"FABRIC", "PID", "HOSTS", "PROGRAMS", "UP", "FILE"}};
  Json fabrics = Json::array();
  for (const std::string& name : running_fabrics()) {
    const auto reply = ask_fabric(name);
    if (!reply) {
      rows.push_back({name, "-", "-", "-", "-", reply.error()});
      fabrics.push_back({{"name", name}, {"problem", reply.error()}});
      continue;
    }
    rows.push_back({name, std::to_string(reply->pid), std::to_string(reply->hosts.size()),
                    std::to_string(count_programs(*reply)),
                    duration_text(whole_seconds(reply->uptime)), printable(reply->file)});
    fabrics.push_back({{"name", name},
                       {"pid", reply->pid},
                       {"hosts", reply->hosts.size()},
                       {"programs", count_programs(*reply)},
                       {"uptime_seconds", whole_seconds(reply->uptime)},
                       {"file", reply->file}});
  }
  if (options.json) {
    std::fputs(dump({{"fabrics", std::move(fabrics)}}).c_str(), stdout);
  } else if (rows.size() == 1) {
    std::puts("no fabric is up (see 'verbena fabric up')");
  } else {
    std::fputs(table_text(rows).c_str(), stdout);
  }
  return 0;
}

int show(const FabricOptions& options) {
  const auto name = resolve_fabric_name(options.name);
  if (!name) return print_error("fabric", name.error());
  const auto reply = ask_fabric(*name);
  if (!reply) return print_error("fabric", reply.error());
  std::fputs((options.json ? fabric_as_json(*reply) : fabric_as_text(*reply)).c_str(), stdout);
  return 0;
}

// Prints a file, if it exists, under a heading.
void print_file(const std::string& heading, const std::string& path) {
  std::ifstream file(path);
  if (!file || file.peek() == std::ifstream::traits_type::eof()) return;
  fmt::print("==> {}: {} <==\n", heading, path);
  std::array<char, 65536> buffer{};
  while (file.read(buffer.data(), buffer.size()), file.gcount() > 0) {
    std::fwrite(buffer.data(), 1, static_cast<std::size_t>(file.gcount()), stdout);
  }
}

int show_logs(const FabricOptions& options) {
  const auto name = resolve_fabric_name(options.name);
  if (!name) return print_error("fabric", name.error());
  const auto reply = ask_fabric(*name);
  if (!reply) return print_error("fabric", reply.error());
  auto connection = connect_to_fabric(*name);
  if (!connection) return print_error("fabric", connection.error());
  std::uint64_t next = 0;
  for (bool more = true; more;) {
    const auto page = connection->ask<ipc::LogReply>(ipc::ShowLog{next});
    if (!page) return print_error("fabric", page.error());
    for (const std::string& line : page->lines) std::puts(line.c_str());
    next = page->next_line;
    more = page->more;
  }
  for (const ipc::ManagerStatus& manager : reply->managers) {
    print_file(fmt::format("output of OpenSM on {}", manager.node),
               manager.directory + "/opensm.out");
    print_file(fmt::format("log of OpenSM on {}", manager.node), manager.directory + "/opensm.log");
  }
  return 0;
}

int make(const FabricOptions& options) {
  if (options.infiniband || options.fat_tree_hosts != 0) {
    const auto topology =
        options.fat_tree_hosts != 0
            ? subnet::make_fat_tree(options.fat_tree_hosts)
            : subnet::make_hosts(options.hosts, static_cast<std::uint8_t>(options.rails));
    if (!topology) {
      return print_error(
          "fabric",
          fmt::format("an InfiniBand fabric has 1 to {} hosts at a switch, with 1 or {} ports",
                      subnet::kHostsOfSwitchMax, subnet::kHcaPortsMax));
    }
    std::fputs(subnet::write_netlist(*topology).c_str(), stdout);
    return 0;
  }
  std::fputs(plan::to_text(plan::make(options.hosts, options.rails)).c_str(), stdout);
  return 0;
}

bool has_description(const ipc::HostStatus& host) {
  return !host.description.empty() && host.description != host.name;
}

// Returns the rows of a table of hosts.  The table has a column for the descriptions, if any host
// has one that is not its name.
std::vector<std::vector<std::string>> host_rows(const std::vector<ipc::HostStatus>& hosts) {
  std::vector<std::vector<std::string>> rows{
      {"HOST", "PROGRAMS", "DEVICE", "NETWORK", "VLAN", "MTU", "ADDRESSES"}};
  const bool with_descriptions = std::ranges::any_of(hosts, has_description);
  if (with_descriptions) rows[0].insert(rows[0].begin() + 1, "DESCRIPTION");
  for (const ipc::HostStatus& host : hosts) {
    for (const ipc::RailStatus& rail : host.rails) {
      const bool is_first = &rail == &host.rails.front();
      rows.push_back({is_first ? host.name : "", is_first ? std::to_string(host.programs) : "",
                      rail.device, rail.network, rail.vlan == 0 ? "-" : std::to_string(rail.vlan),
                      std::to_string(rail.mtu_bytes), joined(texts_of(rail.addresses))});
      if (!with_descriptions) continue;
      rows.back().insert(rows.back().begin() + 1, is_first ? printable(host.description) : "");
    }
  }
  return rows;
}

// Returns true if a text of a user is the GUID of a host: "0x", or "H-", and hexadecimal digits.
bool is_guid_of(const ipc::HostStatus& host, const std::string& text) {
  const auto guid = subnet::parse_guid(text);
  return guid && guid->value != 0 && *guid == host.guid;
}

}  // namespace

std::string fabric_as_text(const ipc::FabricReply& fabric) {
  std::string text =
      table_text(host_rows(fabric.hosts)) +
      fmt::format("fabric '{}': pid {}, up {}, from {}\n", fabric.name, fabric.pid,
                  duration_text(whole_seconds(fabric.uptime)), printable(fabric.file));
  for (const ipc::ManagerStatus& manager : fabric.managers) {
    text += fmt::format("subnet manager on {}: {}, OpenSM, pid {}\n", manager.node, manager.state,
                        manager.pid);
  }
  for (const ipc::FaultStatus& fault : fabric.faults) {
    text += fmt::format("fault: {} {}\n", printable(fault.what), fault.state);
  }
  if (fabric.faults_left_out != 0) {
    text += fmt::format("fault: {} more\n", fabric.faults_left_out);
  }
  for (const ipc::NamedCount& counter : fabric.counters) {
    if (counter.value != 0) text += fmt::format("  {} {}\n", counter.name, counter.value);
  }
  return text;
}

std::string fabric_as_json(const ipc::FabricReply& fabric) {
  Json hosts = Json::array();
  for (const ipc::HostStatus& host : fabric.hosts) {
    Json rails = Json::array();
    for (const ipc::RailStatus& rail : host.rails) {
      Json pkeys = Json::array();
      for (const Pkey pkey : rail.pkeys) pkeys.push_back(pkey.value);
      rails.push_back({{"device", rail.device},
                       {"network", rail.network},
                       {"vlan", rail.vlan},
                       {"mtu", rail.mtu_bytes},
                       {"addresses", texts_of(rail.addresses)},
                       {"pkeys", std::move(pkeys)}});
    }
    Json json{{"name", host.name}};
    if (host.guid.value != 0) {
      json["description"] = host.description;
      json["guid"] = fmt::format("{:#018x}", host.guid.value);
    }
    json["programs"] = host.programs;
    json["rails"] = std::move(rails);
    hosts.push_back(std::move(json));
  }
  Json managers = Json::array();
  for (const ipc::ManagerStatus& manager : fabric.managers) {
    managers.push_back({{"node", manager.node},
                        {"pid", manager.pid},
                        {"state", manager.state},
                        {"directory", manager.directory}});
  }
  Json faults = Json::array();
  for (const ipc::FaultStatus& fault : fabric.faults) {
    faults.push_back({{"what", fault.what}, {"state", fault.state}});
  }
  Json counters = Json::object();
  for (const ipc::NamedCount& counter : fabric.counters) counters[counter.name] = counter.value;
  return dump({{"fabric",
                {{"name", fabric.name},
                 {"pid", fabric.pid},
                 {"file", fabric.file},
                 {"uptime_seconds", whole_seconds(fabric.uptime)},
                 {"hosts", std::move(hosts)},
                 {"managers", std::move(managers)},
                 {"faults", std::move(faults)},
                 {"faults_left_out", fabric.faults_left_out},
                 {"counters", std::move(counters)}}}});
}

Answer<ipc::HostStatus> enter_host(const std::string& fabric, const std::string& host) {
  const auto name = resolve_fabric_name(fabric);
  if (!name) return std::unexpected(name.error());
  const auto reply = ask_fabric(*name);
  if (!reply) return std::unexpected(reply.error());
  auto found = find_host(reply->hosts, host);
  if (!found) {
    return std::unexpected(fmt::format("the fabric '{}' {}", *name, found.error()));
  }
  ::setenv("VERBENA_FABRIC", name->c_str(), 1);
  ::setenv("VERBENA_NODE", found->name.c_str(), 1);
  return *std::move(found);
}

Answer<ipc::HostStatus> find_host(const std::vector<ipc::HostStatus>& hosts,
                                  const std::string& text) {
  const auto named = std::ranges::find(hosts, text, &ipc::HostStatus::name);
  if (named != hosts.end()) return *named;
  std::vector<std::string> names;
  const ipc::HostStatus* described = nullptr;
  for (const ipc::HostStatus& host : hosts) {
    if (text.empty() || host.description != text) continue;
    described = &host;
    names.push_back(host.name);
  }
  if (names.size() == 1) return *described;
  if (names.size() > 1) {
    return std::unexpected(
        fmt::format("has several hosts with the description '{}': {}", text, joined(names)));
  }
  const auto with_guid =
      std::ranges::find_if(hosts, [&](const auto& host) { return is_guid_of(host, text); });
  if (with_guid != hosts.end()) return *with_guid;
  for (const ipc::HostStatus& host : hosts) names.push_back(host.name);
  return std::unexpected(fmt::format("has no host '{}'; it has: {}", text, joined(names)));
}

int fabric(const FabricOptions& options) {
  switch (options.action) {
    case FabricOptions::Action::kUp: return fabric_up(options);
    case FabricOptions::Action::kDown: return down(options);
    case FabricOptions::Action::kList: return list(options);
    case FabricOptions::Action::kShow: return show(options);
    case FabricOptions::Action::kCheck: return check(options);
    case FabricOptions::Action::kLog: return show_logs(options);
    case FabricOptions::Action::kFault: return fabric_fault(options.fault);
    case FabricOptions::Action::kMake: return make(options);
  }
  return 1;
}

}  // namespace verbena::cli
