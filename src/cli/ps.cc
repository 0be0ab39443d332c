#include "cli/ps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "cli/text.h"
#include "ipc/counters.h"
#include "ipc/tool_messages.h"
#include "os/shared_memory.h"

namespace verbena::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kNoAgent = "no agent is running (one starts with the first program)";

// A program may round the size of its table up to whole pages.
constexpr std::size_t kTableBytesMax = ipc::QpTable::kBytes + 65536;

void read_table(int fd, ProcessQps& out) {
  const auto mapping = os::map_shared(fd, ipc::QpTable::kBytes, kTableBytesMax, false);
  if (!mapping) return;  // without a valid table there are no QPs to show
  const ipc::QpTable table(mapping->bytes());
  for (std::uint32_t i = 0; i < ipc::QpTable::kRows; ++i) {
    if (const auto row = table.read(i)) out.qps.push_back(*row);
  }
  const auto shown_count = static_cast<std::uint32_t>(out.qps.size());
  out.qps_not_shown = table.count() > ipc::QpTable::kRows ? table.count() - shown_count : 0;
  out.counters = table.counters();
}

std::uint64_t data_packets(const ipc::StatusReply& agent) {
  const auto found = std::ranges::find(agent.counters, "data_packets", &ipc::NamedCount::name);
  return found == agent.counters.end() ? 0 : found->value;
}

// Returns the address of one end of a QP.  Returns the LID on InfiniBand, because packets are
// addressed by LIDs there and the GID may be unknown.
std::string endpoint_text(const ipc::QpTableRow& qp, const Gid& gid, Lid lid) {
  if (qp.link_layer == LinkLayer::kEthernet) return address_text(gid);
  return fmt::format("LID {}", lid.value);
}

Json qp_json(const ipc::QpTableRow& qp) {
  return {{"qpn", qp.qpn},
          {"type", qp_type_text(qp.type)},
          {"state", qp_state_text(qp.state)},
          {"local", endpoint_text(qp, qp.source, qp.source_lid)},
          {"peer", endpoint_text(qp, qp.destination, qp.destination_lid)},
          {"peer_qpn", qp.destination_qpn},
          {"send_psn", qp.send_psn},
          {"acked_psn", qp.acked_psn},
          {"expected_psn", qp.expected_psn},
          {"send_queued", qp.send_queued},
          {"recv_queued", qp.recv_queued},
          {"packets_in", qp.packets_in},
          {"packets_out", qp.packets_out},
          {"bytes_in", qp.bytes_in},
          {"bytes_out", qp.bytes_out},
          {"retransmissions", qp.retransmissions},
          {"timeouts", qp.timeouts},
          {"rnr_naks_in", qp.rnr_naks_in},
          {"rnr_naks_out", qp.rnr_naks_out}};
}

Json id_json(const ipc::ConnectionInfo& id) {
  return {{"pid", id.pid},
          {"state", id.state},
          {"local", address_text(id.source)},
          {"peer", address_text(id.destination)},
          {"qpn", id.qpn.value},
          {"peer_qpn", id.remote_qpn.value},
          {"tries", id.tries}};
}

}  // namespace

Answer<Listing> read_listing(AgentConnection& agent) {
  Listing listing;
  ipc::Processes page;
  for (bool more = true; more;) {
    std::vector<os::Fd> tables;
    auto reply = agent.ask<ipc::ProcessesReply>(page, {}, &tables);
    if (!reply) return std::unexpected(reply.error());
    std::size_t next_table = 0;
    for (auto& process : reply->processes) {
      page.after_process = process.number;
      ProcessQps qps{.process = std::move(process)};
      if (qps.process.has_table && next_table < tables.size()) {
        read_table(tables[next_table++].get(), qps);
      }
      listing.processes.push_back(std::move(qps));
    }
    for (auto& id : reply->connections) {
      page.after_connection = id.number;
      listing.connections.push_back(std::move(id));
    }
    more = reply->more;
  }
  auto status = agent.ask<ipc::StatusReply>(ipc::Status{});
  if (!status) return std::unexpected(status.error());
  listing.agent = std::move(*status);
  return listing;
}

std::string as_text(const Listing& listing) {
  std::vector<std::vector<std::string>> rows{{"PID", "PROGRAM", "QPN", "TYPE", "STATE", "LOCAL",
                                              "PEER", "PEER-QPN", "SEND-PSN", "ACKED-PSN",
                                              "RECV-PSN", "OUT", "IN", "RETRIES"}};
  std::map<std::uint32_t, std::string> names;
  for (const auto& [process, qps, hidden_count, counters] : listing.processes) {
    const std::string name = printable_name(process.name);
    names[process.pid] = name;
    const std::string pid = std::to_string(process.pid);
    for (const auto& qp : qps) {
      rows.push_back({pid, name, qpn_text(qp.qpn), qp_type_text(qp.type), qp_state_text(qp.state),
                      endpoint_text(qp, qp.source, qp.source_lid),
                      endpoint_text(qp, qp.destination, qp.destination_lid),
                      qpn_text(qp.destination_qpn), fmt::format("{:06x}", qp.send_psn),
                      fmt::format("{:06x}", qp.acked_psn), fmt::format("{:06x}", qp.expected_psn),
                      std::to_string(qp.packets_out), std::to_string(qp.packets_in),
                      std::to_string(qp.retransmissions)});
    }
    if (hidden_count > 0) {
      rows.push_back({pid, name, fmt::format("and {} more", hidden_count)});
    } else if (qps.empty()) {
      rows.push_back({pid, name, "-"});
    }
  }
  for (const auto& id : listing.connections) {
    rows.push_back({id.pid == 0 ? "-" : std::to_string(id.pid),
                    names.contains(id.pid) ? names.at(id.pid) : "-", qpn_text(id.qpn.value), "id",
                    id.state, address_text(id.source), address_text(id.destination),
                    qpn_text(id.remote_qpn.value), "-", "-", "-", "-", "-",
                    std::to_string(id.tries)});
  }
  return table_text(rows) + fmt::format("agent: pid {}; it handled {} data packets\n",
                                        listing.agent.pid, data_packets(listing.agent));
}

std::string as_json(const Listing& listing) {
  Json processes = Json::array();
  for (const auto& [process, qps, hidden_count, counters] : listing.processes) {
    Json list = Json::array();
    for (const auto& qp : qps) list.push_back(qp_json(qp));
    processes.push_back({{"pid", process.pid},
                         {"program", process.name},
                         {"ranges", process.ranges},
                         {"qps", std::move(list)},
                         {"qps_not_shown", hidden_count}});
  }
  Json ids = Json::array();
  for (const auto& id : listing.connections) ids.push_back(id_json(id));
  const Json all{
      {"agent", {{"pid", listing.agent.pid}, {"data_packets", data_packets(listing.agent)}}},
      {"processes", std::move(processes)},
      {"ids", std::move(ids)}};
  return all.dump(2, ' ', true, Json::error_handler_t::replace) + "\n";
}

std::string counters_as_text(const Listing& listing) {
  std::vector<std::vector<std::string>> rows{{"PID", "PROGRAM", "COUNTER", "VALUE", "SAID-BY"}};
  // A program can write any name and any number into its table.
  const auto add = [&](std::uint32_t pid, const std::string& name, const auto& counters,
                       const char* source) {
    for (const auto& counter : counters) {
      if (counter.value == 0) continue;
      rows.push_back({std::to_string(pid), name, printable_name(counter.name),
                      std::to_string(counter.value), source});
    }
  };
  for (const auto& program : listing.processes) {
    add(program.process.pid, printable_name(program.process.name), program.counters, "program");
  }
  add(listing.agent.pid, "verbenad", listing.agent.counters, "agent");
  return table_text(rows);
}

std::string counters_as_json(const Listing& listing) {
  const auto object = [](const auto& counters) {
    Json all = Json::object();
    for (const auto& counter : counters) all[counter.name] = counter.value;
    return all;
  };
  Json processes = Json::array();
  for (const auto& program : listing.processes) {
    processes.push_back({{"pid", program.process.pid},
                         {"program", program.process.name},
                         {"counters", object(program.counters)}});
  }
  const Json all{
      {"agent", {{"pid", listing.agent.pid}, {"counters", object(listing.agent.counters)}}},
      {"processes", std::move(processes)}};
  return all.dump(2, ' ', true, Json::error_handler_t::replace) + "\n";
}

int ps(const PsOptions& options) {
  auto agent = AgentConnection::find();
  if (agent && !*agent) {
    if (options.json) {
      std::puts("{\n  \"agent\": null,\n  \"processes\": [],\n  \"ids\": []\n}");
    } else {
      std::puts(kNoAgent);
    }
    return 0;
  }
  const Answer<Listing> listing =
      agent ? read_listing(**agent) : Answer<Listing>(std::unexpected(agent.error()));
  if (!listing) {
    std::fprintf(stderr, "verbena ps: %s\n", printable(listing.error()).c_str());
    return 1;
  }
  std::string text;
  if (options.counters) {
    text = options.json ? counters_as_json(*listing) : counters_as_text(*listing);
  } else {
    text = options.json ? as_json(*listing) : as_text(*listing);
  }
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace verbena::cli
