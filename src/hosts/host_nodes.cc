#include "hosts/host_nodes.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "wire/ip.h"

namespace verbena::hosts {
namespace {

// The file of a fabric gives addresses without prefix lengths, because its networks decide which
// hosts reach each other.  These prefix lengths are usual in small networks.
constexpr std::uint8_t kRailIpv4PrefixBits = 24;
constexpr std::uint8_t kRailIpv6PrefixBits = 64;

// Returns a MAC address for the interface of a device.  The address is locally administered, and
// contains the last five bytes of the device's GUID.
std::vector<std::byte> mac_of(Guid guid) {
  constexpr std::byte kLocallyAdministered{2};
  std::vector<std::byte> mac{kLocallyAdministered};
  for (int shift = 32; shift >= 0; shift -= 8) {
    mac.push_back(static_cast<std::byte>(guid.value >> shift));
  }
  return mac;
}

}  // namespace

std::expected<std::unique_ptr<HostNodes>, std::string> HostNodes::create(asio::io_context& loop,
                                                                         plan::Fabric fabric,
                                                                         const Options& options,
                                                                         const agent::Log& log) {
  fabric.name = options.fabric;
  auto fabric_switch = Switch::create(loop, std::move(fabric));
  if (!fabric_switch) return std::unexpected(std::string(fabric_switch.error().context));
  std::unique_ptr<HostNodes> nodes(new HostNodes(std::move(*fabric_switch)));
  for (const plan::Host& host : nodes->network().fabric().hosts) {
    const auto index = static_cast<HostIndex>(nodes->agents_.size());
    auto network = std::make_unique<HostNetwork>(*nodes->switch_, index);
    nodes->networks_.push_back(network.get());
    auto agent = start_agent(loop, host.name, std::move(network), options, log);
    if (!agent) return std::unexpected(std::move(agent.error()));
    nodes->agents_.push_back(std::move(*agent));
  }
  return nodes;
}

ipc::HostStatus HostNodes::status(std::size_t host) const {
  const plan::Host& planned_host = switch_->network().fabric().hosts[host];
  ipc::HostStatus status{.name = planned_host.name,
                         .programs = static_cast<std::uint32_t>(agents_[host]->programs())};
  const ethernet::Network& network = switch_->network();
  RailId id{.host = static_cast<HostIndex>(host)};
  for (const plan::Rail& rail : planned_host.rails) {
    status.rails.push_back({.device = rail.device,
                            .network = rail.network,
                            .vlan = rail.vlan,
                            .mtu_bytes = network.mtu_bytes(id),
                            .addresses = rail.addresses});
    std::ranges::copy_if(network.pkeys(id), std::back_inserter(status.rails.back().pkeys),
                         [](Pkey pkey) { return pkey != Pkey{}; });  // skips empty entries
    ++id.device;
  }
  return status;
}

std::vector<interfaces::Interface> HostNodes::interfaces(std::size_t host) const {
  const ethernet::Network& network = switch_->network();
  const auto index = static_cast<HostIndex>(host);
  const auto devices = networks_[host]->identity().devices;
  std::vector<interfaces::Interface> all;
  for (const plan::Rail& rail : network.fabric().hosts[host].rails) {
    const auto device = static_cast<std::uint8_t>(all.size());
    interfaces::Interface rail_interface{
        .name = interfaces::name_for(rail.device, device),
        .index = ethernet::Network::interface_of(device),
        .mtu_bytes = network.mtu_bytes({.host = index, .device = device}),
        .running = !network.down_reason({.host = index, .device = device}),
        .hardware_address = mac_of(devices[device].guid)};
    for (const Gid& ip : rail.addresses) {
      rail_interface.addresses.push_back(
          {ip, wire::is_ipv4(ip) ? kRailIpv4PrefixBits : kRailIpv6PrefixBits});
    }
    all.push_back(std::move(rail_interface));
  }
  return all;
}

void HostNodes::stop(const char* why) {
  for (const auto& agent : agents_) agent->stop(why);
}

}  // namespace verbena::hosts
