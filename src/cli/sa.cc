#include "cli/sa.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/agent_connection.h"
#include "cli/fabric.h"
#include "cli/sa_services.h"
#include "cli/text.h"
#include "ipc/counters.h"
#include "wire/sa.h"

namespace verbena::cli {
namespace {

using Json = nlohmann::ordered_json;
using Rows = std::vector<std::vector<std::string>>;

// Limits the pages of one listing, so that the listing ends even if the agent's rows change all the
// time.  A node cannot have so many rows.
constexpr std::size_t kPagesMax = 65536;

constexpr unsigned kMtuCodeMax = 5;

unsigned mtu_bytes(std::uint8_t code) {
  return code >= 1 && code <= kMtuCodeMax ? 128u << code : 0;
}

// Returns the rate in units of 0.1 Gbit/s.  Returns 0 if the code is not in enum ibv_rate.
unsigned rate_tenths(std::uint8_t code) {
  constexpr std::array<unsigned, 25> kTenths{0,    0,    25,  100,  300,  50,   200,  400,  600,
                                             800,  1200, 140, 560,  1120, 1680, 250,  1000, 2000,
                                             3000, 280,  500, 4000, 6000, 8000, 12000};
  return code < kTenths.size() ? kTenths[code] : 0;
}

std::string number_or_dash(std::uint64_t value) { return value == 0 ? "-" : fmt::to_string(value); }
std::string hex_or_dash(std::uint64_t value, int digits) {
  return value == 0 ? "-" : fmt::format("0x{:0{}x}", value, digits);
}

std::string age_text(Duration age) { return duration_text(whole_seconds(age)); }

std::string port_text(const SaListing& listing, PortId port) {
  const bool is_known = port.device < listing.devices.size();
  return fmt::format("{}/{}", is_known ? listing.devices[port.device] : "?", port.number);
}

Rows path_rows(const SaListing& listing) {
  Rows rows{{"PORT", "STATE", "DESTINATION", "DLID", "SLID", "P_KEY", "SL", "MTU", "RATE", "LIFE",
             "AGE", "WAITERS", "ERROR"}};
  for (const ipc::SaPathRow& path : listing.rows.paths) {
    const bool is_known = path.state == "known";
    rows.push_back({port_text(listing, path.port), path.state, address_text(path.destination),
                    number_or_dash(path.destination_lid.value),
                    number_or_dash(path.source_lid.value), hex_or_dash(path.pkey.value, 4),
                    is_known ? std::to_string(path.service_level) : "-", mtu_text(path.mtu),
                    static_rate_text(path.rate), is_known ? life_time_text(path.packet_life) : "-",
                    path.state == "asked" ? "-" : age_text(path.age), std::to_string(path.waiters),
                    path.error});
  }
  return rows;
}

Json path_json(const SaListing& listing, const ipc::SaPathRow& path) {
  Json all{{"port", port_text(listing, path.port)},
           {"state", path.state},
           {"destination", address_text(path.destination)},
           {"source", address_text(path.source)},
           {"destination_lid", path.destination_lid.value},
           {"source_lid", path.source_lid.value},
           {"pkey", path.pkey.value},
           {"service_level", path.service_level},
           {"mtu", mtu_bytes(path.mtu)},
           {"rate_gbps", rate_tenths(path.rate) / 10.0},
           {"packet_life_time_ns", nullptr},
           {"age_seconds", nullptr},
           {"waiters", path.waiters},
           {"error", path.error}};
  if (path.state == "known") {
    all["packet_life_time_ns"] = timeout_of_code(path.packet_life).count();
  }
  if (path.state != "asked") all["age_seconds"] = whole_seconds(path.age);
  return all;
}

Rows group_rows(const SaListing& listing) {
  Rows rows{{"PORT", "MGID", "MLID", "Q_KEY", "P_KEY", "JOINED", "WANTED", "MEMBERS", "MTU", "RATE",
             "SL", "BUSY"}};
  for (const ipc::SaGroupRow& group : listing.rows.groups) {
    rows.push_back({port_text(listing, group.port), address_text(group.mgid),
                    hex_or_dash(group.mlid.value, 4), hex_or_dash(group.qkey.value, 8),
                    hex_or_dash(group.pkey.value, 4), join_state_text(group.join_state),
                    join_state_text(group.wanted), std::to_string(group.members),
                    mtu_text(group.mtu), static_rate_text(group.rate),
                    group.mlid == Lid{} ? "-" : std::to_string(group.service_level),
                    group.busy ? "yes" : "no"});
  }
  return rows;
}

Json group_json(const SaListing& listing, const ipc::SaGroupRow& group) {
  return {{"port", port_text(listing, group.port)},
          {"mgid", address_text(group.mgid)},
          {"mlid", group.mlid.value},
          {"qkey", group.qkey.value},
          {"pkey", group.pkey.value},
          {"joined", join_state_text(group.join_state)},
          {"wanted", join_state_text(group.wanted)},
          {"members", group.members},
          {"mtu", mtu_bytes(group.mtu)},
          {"rate_gbps", rate_tenths(group.rate) / 10.0},
          {"service_level", group.service_level},
          {"busy", group.busy}};
}

Rows address_rows(const SaListing& listing) {
  Rows rows{{"PORT", "ADDRESS", "STATE", "GID", "QPN", "AGE", "WAITERS", "UNANSWERED"}};
  for (const ipc::SaAddressRow& address : listing.rows.addresses) {
    rows.push_back({port_text(listing, address.port), address_text(address.ip), address.state,
                    address_text(address.gid), qpn_text(address.qpn.value), age_text(address.age),
                    std::to_string(address.waiters), std::to_string(address.tries)});
  }
  return rows;
}

Json address_json(const SaListing& listing, const ipc::SaAddressRow& address) {
  return {{"port", port_text(listing, address.port)},
          {"address", address_text(address.ip)},
          {"state", address.state},
          {"gid", address_text(address.gid)},
          {"qpn", address.qpn.value},
          {"age_seconds", whole_seconds(address.age)},
          {"waiters", address.waiters},
          {"unanswered_requests", address.tries}};
}

Rows counter_rows(const SaListing& listing) {
  Rows rows{{"COUNTER", "VALUE"}};
  for (const ipc::NamedCount& counter : listing.rows.counters) {
    if (counter.value != 0) rows.push_back({counter.name, std::to_string(counter.value)});
  }
  return rows;
}

std::string sa_json_text(const Json& all) {
  return all.dump(2, ' ', true, Json::error_handler_t::replace) + "\n";
}

const char* key_of(ipc::SaTopic topic) {
  switch (topic) {
    case ipc::SaTopic::kPaths: return "paths";
    case ipc::SaTopic::kGroups: return "groups";
    case ipc::SaTopic::kAddresses: return "addresses";
    case ipc::SaTopic::kCounters: return "counters";
  }
  std::unreachable();
}

Json rows_json(const SaListing& listing) {
  Json list = Json::array();
  switch (listing.topic) {
    case ipc::SaTopic::kPaths:
      for (const auto& path : listing.rows.paths) list.push_back(path_json(listing, path));
      break;
    case ipc::SaTopic::kGroups:
      for (const auto& group : listing.rows.groups) list.push_back(group_json(listing, group));
      break;
    case ipc::SaTopic::kAddresses:
      for (const auto& row : listing.rows.addresses) list.push_back(address_json(listing, row));
      break;
    case ipc::SaTopic::kCounters:
      list = Json::object();
      for (const auto& counter : listing.rows.counters) list[counter.name] = counter.value;
      break;
  }
  return list;
}

// Moves the rows of a page to the end of all rows.
void append(ipc::SaReply& all, ipc::SaReply& page) {
  std::ranges::move(page.paths, std::back_inserter(all.paths));
  std::ranges::move(page.groups, std::back_inserter(all.groups));
  std::ranges::move(page.addresses, std::back_inserter(all.addresses));
  std::ranges::move(page.counters, std::back_inserter(all.counters));
}

std::size_t count_rows(const ipc::SaReply& reply) {
  return reply.paths.size() + reply.groups.size() + reply.addresses.size() + reply.counters.size();
}

Answer<SaListing> read_rows(AgentConnection& agent, ipc::SaTopic topic) {
  SaListing listing{.agent_pid = static_cast<std::uint32_t>(agent.pid()), .topic = topic};
  for (const ipc::Device& device : agent.welcome().devices) listing.devices.push_back(device.name);
  for (std::size_t pages = 0; pages < kPagesMax; ++pages) {
    const auto skip = static_cast<std::uint32_t>(count_rows(listing.rows));
    auto page = agent.ask<ipc::SaReply>(ipc::ShowSa{.topic = topic, .skip = skip});
    if (!page) return std::unexpected(page.error());
    append(listing.rows, *page);
    if (!page->more) break;
  }
  return listing;
}

ipc::SaTopic topic_of(SaOptions::Action action) {
  switch (action) {
    case SaOptions::Action::kGroups: return ipc::SaTopic::kGroups;
    case SaOptions::Action::kAddresses: return ipc::SaTopic::kAddresses;
    case SaOptions::Action::kStats: return ipc::SaTopic::kCounters;
    case SaOptions::Action::kPaths:
    case SaOptions::Action::kFlush:  // this action and the next two list no rows
    case SaOptions::Action::kServices:
    case SaOptions::Action::kRegister: return ipc::SaTopic::kPaths;
  }
  std::unreachable();
}

// Asks the agent and returns the text to print.
Answer<std::string> ask_agent(AgentConnection& agent, const SaOptions& options) {
  if (options.action == SaOptions::Action::kFlush) {
    const auto flushed = agent.ask<ipc::SaFlushed>(ipc::FlushSa{});
    if (!flushed) return std::unexpected(flushed.error());
    const auto pid = static_cast<std::uint32_t>(agent.pid());
    return options.json ? as_json(pid, *flushed) : as_text(*flushed);
  }
  const auto listing = read_rows(agent, topic_of(options.action));
  if (!listing) return std::unexpected(listing.error());
  return options.json ? as_json(*listing) : as_text(*listing);
}

}  // namespace

std::string mtu_text(std::uint8_t code) { return number_or_dash(mtu_bytes(code)); }

std::string static_rate_text(std::uint8_t code) {
  const unsigned tenths = rate_tenths(code);
  if (tenths == 0) return "-";
  return tenths % 10 == 0 ? fmt::format("{}", tenths / 10)
                          : fmt::format("{}.{}", tenths / 10, tenths % 10);
}

std::string join_state_text(std::uint8_t bits) {
  using Name = std::pair<std::uint8_t, const char*>;
  constexpr std::array<Name, 4> kNames{{{wire::join_state::kFullMember, "full"},
                                        {wire::join_state::kNonMember, "non"},
                                        {wire::join_state::kSendOnlyNonMember, "send-only non"},
                                        {wire::join_state::kSendOnlyFullMember, "send-only full"}}};
  std::string text;
  for (const auto& [bit, name] : kNames) {
    if ((bits & bit) != 0) text += (text.empty() ? "" : ", ") + std::string(name);
  }
  return text.empty() ? "-" : text;
}

std::string life_time_text(std::uint8_t code) {
  const double us = static_cast<double>(timeout_of_code(code).count()) / 1e3;
  if (us < 1e3) return fmt::format("{:.3g} us", us);
  return us < 1e6 ? fmt::format("{:.3g} ms", us / 1e3) : fmt::format("{:.4g} s", us / 1e6);
}

std::string as_text(const SaListing& listing) {
  switch (listing.topic) {
    case ipc::SaTopic::kPaths: return table_text(path_rows(listing));
    case ipc::SaTopic::kGroups: return table_text(group_rows(listing));
    case ipc::SaTopic::kAddresses: return table_text(address_rows(listing));
    case ipc::SaTopic::kCounters: return table_text(counter_rows(listing));
  }
  std::unreachable();
}

std::string as_json(const SaListing& listing) {
  return sa_json_text(
      {{"agent", {{"pid", listing.agent_pid}}}, {key_of(listing.topic), rows_json(listing)}});
}

std::string as_text(const ipc::SaFlushed& flushed) {
  return fmt::format("removed {} path{} and {} address{} from the cache\n", flushed.paths,
                     flushed.paths == 1 ? "" : "s", flushed.addresses,
                     flushed.addresses == 1 ? "" : "es");
}

std::string as_json(std::uint32_t agent_pid, const ipc::SaFlushed& flushed) {
  return sa_json_text({{"agent", {{"pid", agent_pid}}},
                       {"flushed", {{"paths", flushed.paths}, {"addresses", flushed.addresses}}}});
}

int sa(const SaOptions& options) {
  if (!options.node.empty()) {
    if (const auto entered = enter_host(options.fabric, options.node); !entered) {
      return print_error("sa", entered.error());
    }
  }
  const bool uses_services = options.action == SaOptions::Action::kServices ||
                             options.action == SaOptions::Action::kRegister;
  auto agent = AgentConnection::find(uses_services ? AgentConnection::Role::kProgram
                                                   : AgentConnection::Role::kTool);
  if (!agent) return print_error("sa", agent.error());
  if (!*agent && options.action == SaOptions::Action::kRegister) {
    return print_error("sa register", "no agent is running (one starts with the first program)");
  }
  if (!*agent) {
    std::puts(options.json ? "{\n  \"agent\": null\n}"
                           : "no agent is running (one starts with the first program)");
    return 0;
  }
  if (uses_services) return sa_services(**agent, options);
  const auto text = ask_agent(**agent, options);
  if (!text) return print_error("sa", text.error());
  std::fputs(text->c_str(), stdout);
  return 0;
}

}  // namespace verbena::cli
