#include "hosts/host_nodes.h"

#include <utility>

namespace verbena::hosts {

std::expected<std::unique_ptr<HostNodes>, std::string> HostNodes::create(asio::io_context& loop,
                                                                         plan::Fabric fabric,
                                                                         const Options& options,
                                                                         const agent::Log& log) {
  fabric.name = options.fabric;
  auto packets = Switch::create(loop, std::move(fabric));
  if (!packets) return std::unexpected(std::string(packets.error().context));
  std::unique_ptr<HostNodes> nodes(new HostNodes(std::move(*packets)));
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
  const plan::Host& its = switch_->network().fabric().hosts[host];
  ipc::HostStatus status{.name = its.name,
                         .programs = static_cast<std::uint32_t>(agents_[host]->programs())};
  for (const plan::Rail& rail : its.rails) {
    status.rails.push_back({.device = rail.device,
                            .network = rail.network,
                            .vlan = rail.vlan,
                            .mtu_bytes = rail.mtu_bytes,
                            .addresses = rail.addresses,
                            .pkeys = rail.pkeys});
  }
  return status;
}

void HostNodes::stop(const char* why) {
  for (const auto& agent : agents_) agent->stop(why);
}

}  // namespace verbena::hosts
