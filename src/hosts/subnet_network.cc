#include "hosts/subnet_network.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "hosts/capture_packet.h"
#include "hosts/ipoib_addresses.h"
#include "ipc/counters.h"
#include "os/clock.h"

namespace verbena::hosts {
namespace {

// Returns the speed as the number in Linux's ib_port_attr.active_speed.
std::uint16_t speed_code(subnet::LinkSpeed speed) {
  switch (speed) {
    case subnet::LinkSpeed::kSdr: return 1;
    case subnet::LinkSpeed::kDdr: return 2;
    case subnet::LinkSpeed::kQdr: return 4;
    case subnet::LinkSpeed::kFdr10: return 8;
    case subnet::LinkSpeed::kFdr: return 16;
    case subnet::LinkSpeed::kEdr: return 32;
    case subnet::LinkSpeed::kHdr: return 64;
    case subnet::LinkSpeed::kNdr: return 128;
    case subnet::LinkSpeed::kXdr: return 256;
  }
  return 1;
}

// Returns the code of PortInfo.VLCap for a number of data VLs (vol1 14.2.5.6).
std::uint8_t virtual_lanes_code(unsigned lanes) {
  constexpr std::array<unsigned, 5> kLanes{1, 2, 4, 8, 15};
  const auto found = std::ranges::lower_bound(kLanes, std::min(lanes, kLanes.back()));
  return static_cast<std::uint8_t>(1 + (found - kLanes.begin()));
}

std::optional<std::string> why_inactive(const subnet::PortStatus& port) {
  switch (port.state) {
    case subnet::PortState::kActive: return {};
    case subnet::PortState::kInit:
    case subnet::PortState::kArmed:
      return "no subnet manager has configured it yet (run opensm on a node of the fabric)";
    default: break;
  }
  return port.physical_state == subnet::PhysicalState::kDisabled
             ? "its link is disabled (see ibportstate)"
             : "it has no link: the cable is pulled, or the port at its other end is down";
}

}  // namespace

node::PortState port_state_of(const subnet::PortStatus& port) {
  node::PortState state{.down_reason = why_inactive(port),
                        .pkeys = port.pkeys,
                        .lid = port.lid,
                        .lmc = port.lmc,
                        .sm_lid = port.sm_lid,
                        .sm_sl = port.sm_sl,
                        .active_mtu = std::to_underlying(port.mtu_active),
                        .link = {.state = std::to_underlying(port.state),
                                 .physical_state = std::to_underlying(port.physical_state),
                                 .max_mtu = std::to_underlying(port.mtu_max),
                                 .width = std::to_underlying(port.width_active),
                                 .speed = speed_code(port.speed_active),
                                 .virtual_lanes = virtual_lanes_code(port.max_virtual_lanes),
                                 .subnet_timeout = port.subnet_timeout,
                                 .capability_mask = port.capability_mask}};
  for (std::size_t i = 0; i < port.guids.size(); ++i) state.gids.push_back(port.gid(i));
  return state;
}

std::uint8_t SubnetNetwork::port_count() const {
  return switch_.subnet().topology().nodes[hca_].ports;
}

agent::Network::Identity SubnetNetwork::identity() const {
  const subnet::Node& hca = switch_.subnet().topology().nodes[hca_];
  node::DeviceConfig device{.name = kDevice,
                            .description = hca.description.empty() ? hca.name : hca.description,
                            .guid = hca.node_guid,
                            .ports = {}};
  for (std::uint8_t number = 1; number <= hca.ports; ++number) {
    device.ports.push_back({.link_layer = LinkLayer::kInfiniband,
                            .pkeys = switch_.status({.node = hca_, .port = number}).pkeys});
  }
  return {.node_guid = hca.node_guid, .devices = {std::move(device)}, .sa = sa_};
}

void SubnetNetwork::open(User& user) {
  user_ = &user;
  switch_.connect(hca_, *this);
  reregistrations_.assign(port_count(), 0);
  user.addresses_changed(addresses());
  for (std::uint8_t number = 1; number <= port_count(); ++number) port_changed(number, false);
  user.port_changed(std::nullopt);
}

void SubnetNetwork::close() {
  if (user_ == nullptr) return;
  switch_.disconnect(hca_);
  user_ = nullptr;
}

void SubnetNetwork::port_changed(std::uint8_t port, bool client_reregister) {
  std::uint32_t& reregistrations = reregistrations_[port - std::size_t{1}];
  if (client_reregister) ++reregistrations;
  node::PortState state = port_state_of(switch_.status({.node = hca_, .port = port}));
  state.link.reregistrations = reregistrations;
  user_->port_state_changed({.device = 0, .number = port}, state);
}

std::vector<node::HostAddress> SubnetNetwork::addresses() const {
  std::vector<node::HostAddress> all;
  for (std::uint8_t number = 1; number <= port_count(); ++number) {
    for (const ipoib::OwnAddress& own :
         ipoib_addresses(switch_.subnet().topology(), {.node = hca_, .port = number})) {
      all.push_back({.port = {.device = 0, .number = number},
                     .gid = own.ip,
                     .interface = number,
                     .interface_name = interface_name(number),
                     .prefix_bits = own.prefix_bits});
    }
  }
  return all;
}

std::span<const link::Arrival> SubnetNetwork::send(link::Burst& burst, Time now) {
  for (const link::Burst::Packet& packet : burst.packets()) {
    capture_packet(user_->captures(), link::Direction::kOut,
                   {packet.address, burst.transport(packet)}, now);
  }
  switch_.send(hca_, burst, now);
  return {};
}

void SubnetNetwork::arrived(const link::Arrival& arrival) {
  ++qp1_packets_;
  capture_packet(user_->captures(), link::Direction::kIn, arrival, os::now());
  user_->arrived({&arrival, 1});
}

void SubnetNetwork::notify_user(node::ClientId client, const std::string& text) {
  user_->log(text);
  user_->notify_user(client, text);
}

// Always fails, because on InfiniBand the node itself queries the SA for path records.
agent::Network::Answer SubnetNetwork::route(const node::Node::RouteRequest&) {
  return fail(Errc::kNotSupported, "an HCA of a subnet has no IP routes", EOPNOTSUPP);
}

Result<void> SubnetNetwork::set_members(std::uint16_t range, const Gid& group,
                                        std::span<const std::uint32_t> interfaces) {
  return switch_.set_members(hca_, range, group, interfaces);
}

void SubnetNetwork::add_counters(std::vector<ipc::NamedCount>& out) const {
  out.push_back({"data_packets", 0});
  out.push_back({"qp1_packets", qp1_packets_});
}

}  // namespace verbena::hosts
