#include "cli/fabric_up.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "cli/executable.h"
#include "cli/fabric_client.h"
#include "cli/text.h"
#include "os/clock.h"
#include "os/daemon.h"
#include "subnet/find_link.h"

namespace verbena::cli {
namespace {

constexpr Duration kStartTimeout = std::chrono::seconds(20);
// Returns the time that OpenSM and the nodes have to bring a subnet up.  A small subnet needs a
// second, and longer on a machine that is busy.
Duration subnet_timeout(const subnet::Topology& topology) {
  constexpr Duration kMin = std::chrono::seconds(60);
  constexpr Duration kForEachLink = std::chrono::milliseconds(100);
  return std::max(kMin, kForEachLink * static_cast<int>(topology.links.size()));
}

constexpr std::size_t kManagersMax = 2;  // a master and a standby
constexpr const char* kNoManager = "none";

// Returns true if any port of the node has a cable.
bool has_cable(const subnet::Topology& topology, std::uint32_t node) {
  return std::ranges::any_of(topology.links, [&](const subnet::Link& link) {
    return link.a.node == node || link.b.node == node;
  });
}

std::optional<std::string> first_hca_with_cable(const subnet::Topology& topology) {
  for (std::uint32_t i = 0; i < topology.nodes.size(); ++i) {
    if (topology.nodes[i].is_hca() && has_cable(topology, i)) return topology.nodes[i].name;
  }
  return std::nullopt;
}

// Returns the name of the node that a --sm option means.  The error says why OpenSM cannot run
// there.
Answer<std::string> manager_node(const subnet::Topology& topology, const std::string& option) {
  const auto found = subnet::find_node(topology, option);
  if (!found) return std::unexpected(fmt::format("--sm {}: {}", option, found.error()));
  const subnet::Node& node = topology.nodes[*found];
  if (!node.is_hca()) {
    return std::unexpected(fmt::format("--sm {}: it is a {}, but OpenSM runs on an HCA", option,
                                       node.is_switch() ? "switch" : "router"));
  }
  if (!has_cable(topology, *found)) {
    return std::unexpected(fmt::format("--sm {}: the HCA has no cable", option));
  }
  return node.name;
}

// Finds OpenSM in PATH, and also in system directories that are usually not in a user's PATH.
// Returns an absolute path, because the daemon has another working directory.
std::optional<std::string> find_opensm() {
  const char* path = ::secure_getenv("PATH");
  const std::string directories =
      fmt::format("{}:/usr/local/sbin:/usr/sbin:/sbin", path == nullptr ? kDefaultPath : path);
  const FoundProgram found = find_program("opensm", directories);
  if (found.problem) return std::nullopt;
  return std::filesystem::absolute(found.path).string();
}

std::string scratch_directory() {
  const char* tmpdir = ::secure_getenv("TMPDIR");
  return tmpdir == nullptr || *tmpdir != '/' ? "/tmp" : tmpdir;
}

// Waits until the managers have brought the subnet up, and addresses can be resolved.
Answer<void> await_subnet(const std::string& name, Duration timeout) {
  auto connection = connect_to_fabric(name);
  if (!connection) return std::unexpected(connection.error());
  connection->set_timeout(timeout + std::chrono::seconds(10));
  const auto state = connection->ask<ipc::SubnetState>(ipc::AwaitSubnet{timeout});
  if (!state) return std::unexpected(state.error());
  if (!state->problem.empty()) return std::unexpected(state->problem);
  return {};
}

}  // namespace

Answer<ManagerChoice> choose_managers(const FabricFile& fabric_file,
                                      const std::vector<std::string>& sm_options,
                                      const std::optional<std::string>& opensm) {
  const bool wants_none = std::ranges::find(sm_options, kNoManager) != sm_options.end();
  if (wants_none && sm_options.size() > 1) {
    return std::unexpected("--sm none excludes another --sm");
  }
  if (!fabric_file.topology) {
    if (sm_options.empty()) return ManagerChoice{};
    return std::unexpected("--sm is for the InfiniBand subnet of a netlist");
  }
  if (wants_none) return ManagerChoice{};
  if (sm_options.size() > kManagersMax) {
    return std::unexpected("--sm may be given at most twice, for a master and a standby");
  }
  std::vector<std::string> nodes;
  for (const std::string& option : sm_options) {
    auto node = manager_node(*fabric_file.topology, option);
    if (!node) return std::unexpected(std::move(node.error()));
    nodes.push_back(std::move(*node));
  }
  if (nodes.size() == 2 && nodes[0] == nodes[1]) {
    return std::unexpected(fmt::format("--sm names the node {} twice", nodes[0]));
  }
  if (!opensm) {
    constexpr const char* kInstall = "OpenSM is not installed (apt-get install opensm)";
    if (!sm_options.empty()) return std::unexpected(kInstall);
    return ManagerChoice{
        .warning = fmt::format("{}; without a subnet manager, the ports stay in the state Init, "
                               "and no data moves; --sm none avoids this message",
                               kInstall)};
  }
  if (!nodes.empty()) return ManagerChoice{.nodes = std::move(nodes), .opensm = *opensm};
  const auto first = first_hca_with_cable(*fabric_file.topology);
  if (!first) return ManagerChoice{.warning = "no HCA has a cable, so no subnet manager runs"};
  return ManagerChoice{.nodes = {*first}, .opensm = *opensm};
}

int fabric_up(const FabricOptions& options) {
  const auto fabric_file = read_fabric_file(options.file);
  if (!fabric_file) return print_error("fabric", fabric_file.error());
  const auto faults = options.faults.empty() ? Answer<FaultsFile>(FaultsFile{})
                                             : read_faults_file(options.faults, *fabric_file);
  if (!faults) return print_error("fabric", faults.error());
  const auto name = fabric_name(options.name, *fabric_file);
  if (!name) return print_error("fabric", name.error());
  const auto managers = choose_managers(*fabric_file, options.managers, find_opensm());
  if (!managers) return print_error("fabric", managers.error());
  const auto directory = library_directory();
  if (!directory) return print_error("fabric", directory.error());
  const std::string path = *directory + "/verbena-fabric";
  if (::access(path.c_str(), X_OK) != 0) {
    return print_error("fabric", fmt::format("{} cannot be run: {}", path, std::strerror(errno)));
  }
  std::vector<std::string> args{"verbena-fabric", "--ready-fd", std::to_string(os::kReadyFd),
                                "--name",         *name,        "--file",
                                fabric_file->path};
  for (const std::string& node : managers->nodes) {
    args.insert(args.end(), {"--manager", node});
  }
  if (!managers->nodes.empty()) {
    args.insert(args.end(), {"--opensm", managers->opensm, "--scratch", scratch_directory()});
  }
  if (!faults->path.empty()) args.insert(args.end(), {"--faults", faults->path});
  std::string problem;
  const auto started = os::start_daemon(
      {.path = path, .args = std::move(args), .deadline = os::now() + kStartTimeout}, problem);
  if (!started) {
    return print_error("fabric", fmt::format("the fabric '{}' did not come up: {}", *name,
                                             problem.empty() ? started.error().context : problem));
  }
  if (!managers->warning.empty()) (void)print_error("fabric", managers->warning);
  if (managers->nodes.empty()) {
    fmt::print("fabric '{}' is up: {}\n", *name, size_text(*fabric_file));
    return 0;
  }
  if (const auto waited = await_subnet(*name, subnet_timeout(*fabric_file->topology)); !waited) {
    return print_error(
        "fabric",
        fmt::format("the fabric '{}' is up, but its subnet is not: {}; see 'verbena fabric log {}'",
                    *name, waited.error(), *name));
  }
  fmt::print("fabric '{}' is up: {}; managed by OpenSM on {}\n", *name, size_text(*fabric_file),
             joined(managers->nodes));
  return 0;
}

}  // namespace verbena::cli
