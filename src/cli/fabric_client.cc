#include "cli/fabric_client.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "os/agent_name.h"
#include "plan/plan.h"

namespace verbena::cli {
namespace {

std::string none_up(const std::string& name) {
  const auto names = fabrics_that_are_up();
  const std::string there_is = names.empty() ? "no fabric is up" : "these are up: " + joined(names);
  return name.empty() ? there_is : fmt::format("the fabric '{}' is not up; {}", name, there_is);
}

}  // namespace

std::vector<std::string> fabrics_that_are_up() {
  // The last column of /proc/net/unix is the name; '@' stands for the zero of an abstract one.
  const std::string prefix = "@" + os::fabric_socket_name("");
  std::set<std::string> names;
  std::ifstream table("/proc/net/unix");
  for (std::string line; std::getline(table, line);) {
    const auto at = line.find(prefix);
    if (at == std::string::npos) continue;
    const std::string name = line.substr(at + prefix.size());
    if (plan::is_name(name)) names.insert(name);  // others are those of hosts
  }
  return {names.begin(), names.end()};
}

Answer<std::string> name_or_only_one(const std::string& name) {
  const auto names = fabrics_that_are_up();
  if (!name.empty()) {
    if (std::ranges::find(names, name) != names.end()) return name;
    return std::unexpected(none_up(name));
  }
  if (names.empty()) return std::unexpected(none_up(name));
  if (names.size() == 1) return names[0];
  return std::unexpected("there are several fabrics, so name one: " + joined(names));
}

Answer<AgentConnection> connect_to_fabric(const std::string& name) {
  auto found = AgentConnection::find_fabric(name);
  if (!found) return std::unexpected(found.error());
  if (!*found) return std::unexpected(none_up(name));
  return std::move(**found);
}

Answer<ipc::FabricReply> ask_fabric(const std::string& name) {
  auto connection = connect_to_fabric(name);
  if (!connection) return std::unexpected(connection.error());
  ipc::FabricReply all;
  for (std::uint32_t first = 0;; first = static_cast<std::uint32_t>(all.hosts.size())) {
    auto page = connection->ask<ipc::FabricReply>(ipc::ShowFabric{first});
    if (!page) return std::unexpected(page.error());
    auto hosts = std::move(all.hosts);
    std::ranges::move(page->hosts, std::back_inserter(hosts));
    all = std::move(*page);
    all.hosts = std::move(hosts);
    if (!all.more) return all;
  }
}

}  // namespace verbena::cli
