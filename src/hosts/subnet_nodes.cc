#include "hosts/subnet_nodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "hosts/ipoib_addresses.h"
#include "hosts/subnet_network.h"
#include "ipc/counters.h"
#include "node/infiniband_port.h"
#include "os/agent_name.h"
#include "os/clock.h"
#include "wire/ipoib.h"

namespace verbena::hosts {

std::expected<std::unique_ptr<SubnetNodes>, std::string> SubnetNodes::create(
    asio::io_context& loop, subnet::Topology topology, const Options& options,
    const agent::Log& log) {
  auto subnet_switch = SubnetSwitch::create(loop, std::move(topology));
  if (!subnet_switch) return std::unexpected(std::string(subnet_switch.error().context));
  std::unique_ptr<SubnetNodes> nodes(
      new SubnetNodes(loop, std::move(*subnet_switch), options.build));
  for (const std::uint32_t node : nodes->hcas_) {
    if (auto result = nodes->serve(loop, node, options, log); !result) {
      return std::unexpected(std::move(result.error()));
    }
  }
  return nodes;
}

SubnetNodes::SubnetNodes(asio::io_context& loop, std::unique_ptr<SubnetSwitch> subnet_switch,
                         const std::string& build)
    : switch_(std::move(subnet_switch)),
      mads_(loop, switch_->subnet(), build, [this] { switch_->pump(os::now()); }) {
  switch_->set_mad_receiver([this](const subnet::MadDelivery& mad) { mads_.receive(mad); });
  const auto& nodes = switch_->subnet().topology().nodes;
  for (std::uint32_t node = 0; node < nodes.size(); ++node) {
    if (nodes[node].is_hca()) hcas_.push_back(node);
  }
}

std::expected<void, std::string> SubnetNodes::serve(asio::io_context& loop, std::uint32_t node,
                                                    const Options& options, const agent::Log& log) {
  const std::string& host = switch_->subnet().topology().nodes[node].name;
  const auto name = os::mad_socket_name({.fabric = options.fabric, .host = host});
  if (!name) return std::unexpected(fmt::format("host '{}': {}", host, name.error().context));
  if (const auto result = mads_.serve(*name, node, SubnetNetwork::kDevice); !result) {
    return std::unexpected(fmt::format("cannot listen on the name '{}' of host '{}': {}", *name,
                                       host, result.error().context));
  }
  auto agent = start_agent(loop, host, std::make_unique<SubnetNetwork>(*switch_, node, options.sa),
                           options, log);
  if (!agent) return std::unexpected(std::move(agent.error()));
  agents_.push_back(std::move(*agent));
  return {};
}

void SubnetNodes::set_link(std::size_t link, bool up) {
  switch_->subnet().set_link(link, up, os::now());
  switch_->pump(os::now());
}

void SubnetNodes::set_power(std::uint32_t node, bool on) {
  switch_->subnet().set_power(node, on, os::now());
  switch_->pump(os::now());
}

void SubnetNodes::set_paused(std::uint32_t node, bool paused) {
  switch_->subnet().set_paused(node, paused, os::now());
  switch_->pump(os::now());
}

void SubnetNodes::set_loss(std::size_t link, const faults::Loss& loss) {
  switch_->subnet().set_loss(link, loss);
}

void SubnetNodes::set_delay(std::size_t link, Duration delay) {
  switch_->subnet().set_delay(link, delay);
}

void SubnetNodes::set_mtu(std::size_t link, std::optional<subnet::Mtu> mtu) {
  switch_->subnet().set_mtu(link, mtu, os::now());
  switch_->pump(os::now());
}

bool SubnetNodes::set_pkey(subnet::PortRef port, Pkey pkey, bool present) {
  subnet::Subnet& subnet = switch_->subnet();
  const bool changed = present ? subnet.add_pkey(port, pkey) : subnet.remove_pkey(port, pkey);
  switch_->pump(os::now());
  return changed;
}

ipc::HostStatus SubnetNodes::status(std::size_t host) const {
  const std::uint32_t node = hcas_[host];
  const subnet::Node& hca = switch_->subnet().topology().nodes[node];
  ipc::HostStatus status{
      .name = hca.name,
      .description = hca.description,
      .guid = hca.node_guid,
      .programs = static_cast<std::uint32_t>(mads_.programs(node) + agents_[host]->programs())};
  ipc::RailStatus rail{.device = SubnetNetwork::kDevice, .network = "InfiniBand"};
  for (std::uint8_t number = 1; number <= hca.ports; ++number) {
    const subnet::PortStatus& port = switch_->status({.node = node, .port = number});
    rail.mtu_bytes = static_cast<std::uint32_t>(subnet::mtu_bytes(port.mtu_active));
    const auto addresses =
        ipoib_addresses(switch_->subnet().topology(), {.node = node, .port = number});
    for (const ipoib::OwnAddress& own : addresses) rail.addresses.push_back(own.ip);
    rail.addresses.push_back(port.gid(0));
    if (number > 1) continue;  // only the P_Keys of the first port are shown
    std::ranges::copy_if(port.pkeys, std::back_inserter(rail.pkeys),
                         [](Pkey pkey) { return pkey.value != 0; });  // skips empty entries
  }
  status.rails.push_back(std::move(rail));
  return status;
}

std::vector<interfaces::Interface> SubnetNodes::interfaces(std::size_t host) const {
  constexpr std::size_t kIpoibHeaderBytes = wire::kSize<wire::IpoibHeader>;
  constexpr std::uint32_t kLoopbackIndex = 1;
  const std::uint32_t node = hcas_[host];
  const subnet::Topology& topology = subnet().topology();
  std::vector<interfaces::Interface> all;
  for (std::uint8_t number = 1; number <= topology.nodes[node].ports; ++number) {
    const subnet::PortRef ref{.node = node, .port = number};
    const subnet::PortStatus& port = switch_->status(ref);
    const wire::IpoibAddress address{.qpn = node::InfinibandPort::kIpoibQpn, .gid = port.gid(0)};
    const auto bytes = wire::encode(address);
    interfaces::Interface port_interface{
        .name = SubnetNetwork::interface_name(number),
        .index = kLoopbackIndex + number,
        .mtu_bytes =
            static_cast<std::uint32_t>(subnet::mtu_bytes(port.mtu_active) - kIpoibHeaderBytes),
        .running = port.state == subnet::PortState::kActive,
        .hardware_address = {bytes.begin(), bytes.end()}};
    for (const ipoib::OwnAddress& own : ipoib_addresses(topology, ref)) {
      port_interface.addresses.push_back({own.ip, own.prefix_bits});
    }
    all.push_back(std::move(port_interface));
  }
  return all;
}

void SubnetNodes::add_counters(std::vector<ipc::NamedCount>& counters) const {
  switch_->add_counters(counters);
  mads_.add_counters(counters);
}

void SubnetNodes::stop(const char* why) {
  for (const auto& agent : agents_) agent->stop(why);
}

}  // namespace verbena::hosts
