#include "client/fabric_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <utility>
#include <vector>

#include "ipc/fabric.h"
#include "os/agent_name.h"

namespace verbena::client {
namespace {

std::string comma_list(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

// Returns true for the name of a fabric.  The socket names of hosts have the same prefix as those
// of fabrics.
bool is_name_of_fabric(const std::string& name) {
  return os::mad_socket_name({.fabric = name, .host = "host"}).has_value();
}

std::string not_up_text(const std::string& name) {
  const auto names = running_fabrics();
  const std::string state =
      names.empty() ? "no fabric is up" : "these are up: " + comma_list(names);
  return name.empty() ? state : fmt::format("the fabric '{}' is not up; {}", name, state);
}

}  // namespace

std::vector<std::string> running_fabrics() {
  // The last column of /proc/net/unix is the name; '@' stands for the zero byte of an abstract
  // name.
  const std::string prefix = "@" + os::fabric_socket_name("");
  std::set<std::string> names;
  std::ifstream table("/proc/net/unix");
  for (std::string line; std::getline(table, line);) {
    const auto at = line.find(prefix);
    if (at == std::string::npos) continue;
    const std::string name = line.substr(at + prefix.size());
    if (is_name_of_fabric(name)) names.insert(name);
  }
  return {names.begin(), names.end()};
}

Answer<std::string> resolve_fabric_name(const std::string& name) {
  const auto names = running_fabrics();
  if (!name.empty()) {
    if (std::ranges::find(names, name) != names.end()) return name;
    return std::unexpected(not_up_text(name));
  }
  if (names.empty()) return std::unexpected(not_up_text(name));
  if (names.size() == 1) return names[0];
  return std::unexpected("there are several fabrics, so name one: " + comma_list(names));
}

Answer<AgentConnection> connect_to_fabric(const std::string& name) {
  auto found = AgentConnection::find_fabric(name);
  if (!found) return std::unexpected(found.error());
  if (!*found) return std::unexpected(not_up_text(name));
  return std::move(**found);
}

std::expected<std::string, FaultError> set_fault(const std::string& fabric,
                                                 const faults::Fault& fault) {
  auto connection = connect_to_fabric(fabric);
  if (!connection) return std::unexpected(FaultError{.text = connection.error()});
  const auto reply = connection->ask<ipc::FaultReply>(ipc::SetFault{fault});
  if (!reply) return std::unexpected(FaultError{.text = reply.error()});
  if (reply->problem.empty()) return reply->text;
  return std::unexpected(
      FaultError{.refused = true, .text = fmt::format("fabric '{}': {}", fabric, reply->problem)});
}

}  // namespace verbena::client
