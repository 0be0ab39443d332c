#include "plan/find_rail.h"

#include <algorithm>
#include <vector>

namespace verbena::plan {

std::expected<HostIndex, std::string> find_host(const Fabric& fabric, std::string_view name) {
  const auto found = std::ranges::find(fabric.hosts, name, &Host::name);
  if (found == fabric.hosts.end()) {
    return std::unexpected("there is no host '" + std::string(name) + "'");
  }
  return static_cast<HostIndex>(found - fabric.hosts.begin());
}

std::expected<RailId, std::string> find_rail(const Fabric& fabric, std::string_view host_and_device,
                                             std::string_view network) {
  const auto colon = host_and_device.find(':');
  const auto host = find_host(fabric, host_and_device.substr(0, colon));
  if (!host) return std::unexpected(host.error());
  const bool has_device = colon != std::string_view::npos;
  const std::string device(has_device ? host_and_device.substr(colon + 1) : "");
  std::vector<RailId> found;
  std::string all_links;
  RailId id{.host = *host};
  for (const Rail& rail : fabric.hosts[*host].rails) {
    if (rail.network == network && (!has_device || rail.device == device)) found.push_back(id);
    all_links += (all_links.empty() ? "" : ", ") + link_text(fabric, id);
    ++id.device;
  }
  if (found.size() == 1) return found[0];
  const std::string ends =
      "'" + std::string(host_and_device) + "' and the network '" + std::string(network) + "'";
  if (found.empty()) {
    return std::unexpected("there is no link between " + ends + "; there are: " + all_links);
  }
  return std::unexpected("there are several links between " + ends +
                         ", so name the device (HOST:DEVICE); there are: " + all_links);
}

std::expected<RailId, std::string> find_link(const Fabric& fabric, std::string_view a,
                                             std::string_view b) {
  const auto rail = find_rail(fabric, a, b);
  if (rail) return rail;
  const auto reversed = find_rail(fabric, b, a);
  return reversed ? reversed : rail;
}

std::string link_text(const Fabric& fabric, RailId id) {
  const Host& host = fabric.hosts[id.host];
  const Rail& rail = host.rails[id.device];
  return host.name + ":" + rail.device + " - " + rail.network;
}

std::optional<std::string> problem_with(const Fabric& fabric, const faults::Fault& fault) {
  if (!faults::is_link_fault(fault.kind)) {
    const auto host = find_host(fabric, fault.a);
    return host ? std::nullopt : std::optional(host.error());
  }
  const auto link = find_link(fabric, fault.a, fault.b);
  if (!link) return link.error();
  const std::uint32_t mtu = fault.mtu_bytes;
  if (mtu == 0 || (mtu >= kMtuMin && mtu <= kMtuMax)) return std::nullopt;
  return "the MTU of a rail must be " + std::to_string(kMtuMin) + " to " + std::to_string(kMtuMax);
}

}  // namespace verbena::plan
