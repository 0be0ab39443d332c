#include "cli/sa_services.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "cli/text.h"
#include "sa/services.h"
#include "wire/sa.h"

namespace verbena::cli {
namespace {

constexpr Duration kSaTimeout = std::chrono::seconds(10);
// The agent may answer only after kSaTimeout, so this tool waits longer.
constexpr Duration kAnswerTimeout = std::chrono::seconds(20);

std::string text_of(const ipc::ServiceName& name) {
  const auto end = std::ranges::find(name, std::byte{});
  const auto bytes = static_cast<std::size_t>(end - name.begin());
  return {reinterpret_cast<const char*>(name.data()), bytes};
}

std::string lease_text(std::uint32_t seconds) {
  if (seconds == wire::ServiceRecord::kLeaseForever) return "forever";
  return duration_text(std::chrono::seconds(seconds).count());
}

Answer<ipc::ServicesFound> find_services(AgentConnection& agent, const SaOptions& options) {
  ipc::FindServices query{.port = {.number = static_cast<std::uint8_t>(options.port)},
                          .timeout = kSaTimeout};
  query.by_name = !options.service_name.empty();
  query.name = sa::ServiceQuery::name_of(options.service_name);
  query.by_id = options.service_id.has_value();
  query.service_id = {options.service_id.value_or(0)};
  return agent.ask<ipc::ServicesFound>(query);
}

// Registers the service and keeps it registered.  When the registration ends, returns the reason.
std::string keep_registered(AgentConnection& agent, const SaOptions& options) {
  const auto added = agent.ask<ipc::ServiceAdded>(
      ipc::AddService{.port = {.number = static_cast<std::uint8_t>(options.port)},
                      .service = {.service_id = {options.service_id.value_or(0)},
                                  .lease_seconds = options.lease_seconds,
                                  .name = sa::ServiceQuery::name_of(options.service_name)}});
  if (!added) return added.error();
  std::puts("registered");
  std::fflush(stdout);
  const auto remark = agent.wait_for_remark();
  return remark ? *remark : remark.error();
}

}  // namespace

std::string as_text(const ipc::ServicesFound& found) {
  std::vector<std::vector<std::string>> rows{{"NAME", "SERVICE_ID", "GID", "P_KEY", "LEASE"}};
  for (const ipc::Service& service : found.services) {
    rows.push_back({printable_name(text_of(service.name)),
                    fmt::format("0x{:016x}", service.service_id.value), address_text(service.gid),
                    fmt::format("0x{:04x}", service.pkey.value),
                    lease_text(service.lease_seconds)});
  }
  std::string text = table_text(rows);
  if (found.omitted != 0) text += fmt::format("and {} more\n", found.omitted);
  return text;
}

std::string as_json(const ipc::ServicesFound& found) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const ipc::Service& service : found.services) {
    Json data = Json::array();
    for (const std::byte byte : service.data) data.push_back(std::to_integer<unsigned>(byte));
    list.push_back({{"name", text_of(service.name)},
                    {"service_id", service.service_id.value},
                    {"gid", address_text(service.gid)},
                    {"pkey", service.pkey.value},
                    {"lease_seconds", service.lease_seconds},
                    {"data", std::move(data)}});
  }
  return Json{{"services", std::move(list)}, {"left_out", found.omitted}}.dump(
             2, ' ', true, Json::error_handler_t::replace) +
         "\n";
}

int sa_services(AgentConnection& agent, const SaOptions& options) {
  if (options.service_name.size() > sizeof(ipc::ServiceName)) {
    return print_error("sa", "the name of a service has 64 bytes at most");
  }
  agent.set_timeout(kAnswerTimeout);
  if (options.action == SaOptions::Action::kRegister) {
    return print_error("sa register", keep_registered(agent, options));
  }
  const auto found = find_services(agent, options);
  if (!found) return print_error("sa services", found.error());
  std::fputs((options.json ? as_json(*found) : as_text(*found)).c_str(), stdout);
  return 0;
}

}  // namespace verbena::cli
