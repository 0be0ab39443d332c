#include "cli/fabric_file.h"

#include <fmt/format.h>
#include <limits.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>
#include <utility>

#include "base/host_name.h"
#include "plan/find_rail.h"
#include "subnet/check_fault.h"
#include "subnet/netlist.h"

namespace verbena::cli {
namespace {

Answer<FabricFile> read_netlist(const std::string& file, std::string path, std::string_view text) {
  auto topology = subnet::parse_netlist(text);
  if (!topology) {
    const subnet::NetlistError& problem = topology.error();
    return std::unexpected(
        fmt::format("{}:{}:{}: {}", file, problem.line, problem.column, problem.reason));
  }
  return FabricFile{.path = std::move(path), .topology = std::move(*topology)};
}

std::string text_of(const std::string& file, const plan::Problem& problem) {
  return fmt::format("{}:{}:{}: {}", file, problem.line, problem.column, problem.text);
}

struct FileText {
  std::string path{};
  std::string text{};
};

Answer<FileText> read_text(const std::string& file) {
  std::array<char, PATH_MAX> real{};
  if (::realpath(file.c_str(), real.data()) == nullptr) {
    return std::unexpected(fmt::format("cannot read {}: {}", file, std::strerror(errno)));
  }
  errno = 0;
  std::ifstream in(real.data());
  std::string text(subnet::kNetlistBytesMax + 1, '\0');  // the limit for TOML is lower
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (in.bad() || (text.empty() && errno != 0)) {
    return std::unexpected(fmt::format("cannot read {}: {}", file, std::strerror(errno)));
  }
  return FileText{.path = real.data(), .text = std::move(text)};
}

}  // namespace

Answer<FabricFile> read_fabric_file(const std::string& file) {
  const auto contents = read_text(file);
  if (!contents) return std::unexpected(contents.error());
  const auto& [path, text] = *contents;
  if (subnet::looks_like_netlist(text)) return read_netlist(file, path, text);
  auto fabric = plan::parse(text);
  if (!fabric) return std::unexpected(text_of(file, fabric.error()));
  return FabricFile{.path = path, .fabric = std::move(*fabric)};
}

Answer<FaultsFile> read_faults_file(const std::string& file, const FabricFile& fabric) {
  const auto contents = read_text(file);
  if (!contents) return std::unexpected(contents.error());
  auto faults = plan::parse_faults(contents->text);
  if (!faults) return std::unexpected(text_of(file, faults.error()));
  for (const plan::ScheduledFault& scheduled : *faults) {
    auto problem = fabric.topology ? subnet::problem_with(*fabric.topology, scheduled.fault)
                                   : plan::problem_with(fabric.fabric, scheduled.fault);
    if (!problem) continue;
    return std::unexpected(text_of(file, {scheduled.line, scheduled.column, std::move(*problem)}));
  }
  return FaultsFile{.path = contents->path, .faults = std::move(*faults)};
}

std::string quantity_text(std::size_t number, const char* singular, const char* plural) {
  return fmt::format("{} {}", number, number == 1 ? singular : plural);
}

Answer<std::string> fabric_name(const std::string& name_option, const FabricFile& fabric_file) {
  std::string name = !name_option.empty() ? name_option : fabric_file.fabric.name;
  if (name.empty()) {
    name = fabric_file.path.substr(fabric_file.path.rfind('/') + 1);
    name.resize(std::min(name.find('.'), name.size()));
  }
  if (is_host_name(name)) return name;
  return std::unexpected(
      fmt::format("'{}' is no name for a fabric: use {} (see --name)", name, kHostNameRule));
}

std::string size_text(const FabricFile& fabric_file) {
  if (fabric_file.topology) {
    const auto& nodes = fabric_file.topology->nodes;
    const auto count = [&](subnet::NodeType type) {
      return static_cast<std::size_t>(std::ranges::count(nodes, type, &subnet::Node::type));
    };
    const std::size_t routers = count(subnet::NodeType::kRouter);
    return fmt::format("{}, {}, {}{}", quantity_text(count(subnet::NodeType::kHca), "HCA", "HCAs"),
                       quantity_text(count(subnet::NodeType::kSwitch), "switch", "switches"),
                       routers == 0 ? "" : quantity_text(routers, "router", "routers") + ", ",
                       quantity_text(fabric_file.topology->links.size(), "link", "links"));
  }
  const plan::Fabric& fabric = fabric_file.fabric;
  std::size_t rails = 0;
  for (const plan::Host& host : fabric.hosts) rails += host.rails.size();
  std::string text = fmt::format("{}, {}", quantity_text(fabric.hosts.size(), "host", "hosts"),
                                 quantity_text(rails, "rail", "rails"));
  if (!fabric.faults.empty()) text += ", " + quantity_text(fabric.faults.size(), "fault", "faults");
  return text;
}

}  // namespace verbena::cli
