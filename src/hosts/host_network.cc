#include "hosts/host_network.h"

#include <cerrno>

#include "hosts/capture_packet.h"
#include "ipc/counters.h"
#include "os/clock.h"

namespace verbena::hosts {
namespace {

// Returns a GUID that is the same each time the fabric is started, and differs for each host and
// device.
Guid guid_of(const plan::Fabric& fabric, HostIndex host, std::uint8_t device) {
  std::uint64_t guid = 0xcbf29ce484222325;  // the offset basis of the hash FNV-1a
  for (const char c : fabric.name + "/" + fabric.hosts[host].name) {
    guid = (guid ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  // Marks the GUID as locally administered.  The last byte is the number of the device.
  return {((guid & 0xfcffffffffffff00) | 0x0200000000000000) + device};
}

}  // namespace

agent::Network::Identity HostNetwork::identity() const {
  const plan::Fabric& fabric = switch_.network().fabric();
  Identity identity{.node_guid = guid_of(fabric, host_, 0)};
  for (const plan::Rail& rail : fabric.hosts[host_].rails) {
    const auto device = static_cast<std::uint8_t>(identity.devices.size());
    identity.devices.push_back({.name = rail.device,
                                .guid = guid_of(fabric, host_, device),
                                .ports = {node::PortConfig{.pkeys = rail.pkeys}}});
  }
  return identity;
}

void HostNetwork::open(User& user) {
  user_ = &user;
  switch_.connect(host_, *this);
  user.addresses_changed(switch_.network().addresses(host_));
  user.port_changed(std::nullopt);
}

void HostNetwork::report_links() {
  if (user_ == nullptr) return;
  const ethernet::Network& network = switch_.network();
  user_->addresses_changed(network.addresses(host_));  // the addresses carry the MTUs
  const auto devices = static_cast<std::uint8_t>(network.fabric().hosts[host_].rails.size());
  for (std::uint8_t device = 0; device < devices; ++device) {
    const RailId rail{.host = host_, .device = device};
    user_->port_state_changed(
        {.device = device, .number = 1},
        {.down_reason = network.down_reason(rail), .pkeys = network.pkeys(rail)});
  }
}

void HostNetwork::close() {
  if (user_ == nullptr) return;
  switch_.disconnect(host_);
  user_ = nullptr;
}

std::span<const link::Arrival> HostNetwork::send(link::Burst& burst, Time now) {
  for (const link::Burst::Packet& packet : burst.packets()) {
    capture_packet(user_->captures(), link::Direction::kOut,
                   {packet.address, burst.transport(packet)}, now);
  }
  switch_.send(host_, burst, now);
  return {};
}

void HostNetwork::arrived(const link::Arrival& arrival) {
  ++qp1_packets_;
  capture_packet(user_->captures(), link::Direction::kIn, arrival, os::now());
  user_->arrived({&arrival, 1});
}

void HostNetwork::notify_user(node::ClientId client, const std::string& text) {
  user_->log(text);
  user_->notify_user(client, text);
}

agent::Network::Answer HostNetwork::route(const node::Node::RouteRequest& request) {
  const auto route = switch_.network().route(host_, request.destination, request.source);
  if (!route) {
    user_->notify_user(request.client, route.error());
    return fail(Errc::kAddressNotFound, "the fabric has no route to this address", ENETUNREACH);
  }
  return node::HostRoute{.source = route->source,
                         .interface = route->interface,
                         .mtu_bytes = route->mtu_bytes,
                         .loopback = route->loopback};
}

Result<void> HostNetwork::set_members(std::uint16_t range, const Gid& group,
                                      std::span<const std::uint32_t> interfaces) {
  if (switch_.network().set_members(host_, range, group, interfaces)) return {};
  return fail(Errc::kNoResources, "the fabric's limit of multicast groups or members is reached");
}

void HostNetwork::add_counters(std::vector<ipc::NamedCount>& out) const {
  out.push_back({"data_packets", 0});
  out.push_back({"qp1_packets", qp1_packets_});
}

}  // namespace verbena::hosts
