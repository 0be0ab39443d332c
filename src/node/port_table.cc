#include "node/port_table.h"

#include <algorithm>
#include <span>
#include <utility>

#include "hca/pkey_table.h"
#include "wire/bth.h"

namespace verbena::node {

PortTable::PortTable(const std::vector<DeviceConfig>& devices) : devices_(devices) {
  std::size_t count = 0;
  for (const DeviceConfig& device : devices_) count += device.ports.size();
  const std::size_t gids_max = std::min<std::size_t>(
      ipc::Port::kGidsMax, ipc::kGidsOfHostMax / std::max<std::size_t>(count, 1));
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    std::uint8_t number = 1;
    for (const PortConfig& port : devices_[i].ports) {
      const PortId id{static_cast<std::uint8_t>(i), number++};
      ports_.push_back({.id = id,
                        .link_layer = port.link_layer,
                        .state = {.pkeys = port.pkeys},
                        .gids = GidTable(id, gids_max)});
    }
  }
  VB_CHECK(ipc::check_devices(this->devices()).has_value());
}

void PortTable::set_addresses(const std::vector<HostAddress>& addresses) {
  for (Port& port : ports_) port.gids.update(addresses);
}

void PortTable::set_all_down_reason(std::optional<std::string> reason) {
  all_down_reason_ = std::move(reason);
}

Result<void> PortTable::set_state(PortId id, const PortState& state) {
  if (state.pkeys.empty() || state.pkeys.size() > ipc::Port::kPkeysMax ||
      state.lmc > ipc::Port::kLmcMax || state.gids.size() > ipc::Port::kGidsMax) {
    return fail(Errc::kInvalidArgument,
                "a port has 1 to 128 P_Keys, an LMC of at most 7, and at most 256 GIDs");
  }
  const auto port = std::ranges::find(ports_, id, &Port::id);
  if (port == ports_.end()) return fail(Errc::kAddressNotFound, "the host has no such port");
  port->state = state;
  return {};
}

Pkey connection_pkey(const PortState& state) {
  const auto is_default = [](Pkey pkey) {
    return (pkey.value & 0x7fff) == (wire::kDefaultPkey.value & 0x7fff);
  };
  auto found = std::ranges::find_if(state.pkeys, is_default);
  if (found == state.pkeys.end()) found = std::ranges::find_if(state.pkeys, hca::is_valid_pkey);
  return found == state.pkeys.end() ? Pkey{} : *found;
}

std::vector<ipc::GidEntry> PortTable::Port::gid_entries() const {
  if (link_layer != LinkLayer::kInfiniband) return gids.entries();
  std::vector<ipc::GidEntry> all;
  for (std::size_t i = 0; i < state.gids.size(); ++i) {
    if (state.gids[i] == Gid{}) continue;
    all.push_back({.gid = state.gids[i], .index = static_cast<std::uint32_t>(i)});
  }
  return all;
}

std::optional<std::uint32_t> PortTable::Port::index_of(const Gid& gid,
                                                       std::uint32_t interface) const {
  if (link_layer != LinkLayer::kInfiniband) return gids.index_of(gid, interface);
  const auto found = std::ranges::find(state.gids, gid);
  if (found == state.gids.end()) return {};
  return static_cast<std::uint32_t>(found - state.gids.begin());
}

ipc::Port PortTable::describe(const Port& port) const {
  const bool infiniband = port.link_layer == LinkLayer::kInfiniband;
  std::string down_reason = all_down_reason_.value_or(port.state.down_reason.value_or(""));
  // Only an Ethernet port needs an interface of the host that is up.
  if (!infiniband && down_reason.empty()) {
    if (!port.gids.has_address()) {
      down_reason = "the host has no address";
    } else if (!port.gids.is_up()) {
      down_reason = "no network interface with an address is up";
    }
  }
  return {.link_layer = port.link_layer,
          .active = down_reason.empty(),
          .active_mtu = infiniband ? port.state.active_mtu : port.gids.active_mtu(),
          .down_reason = std::move(down_reason),
          .reach = infiniband ? ipc::Reach{} : reach_,
          .gid_indexes = static_cast<std::uint32_t>(infiniband ? port.state.gids.size()
                                                               : port.gids.entries_max()),
          .gids = port.gid_entries(),
          .pkeys = port.state.pkeys,
          .lid = port.state.lid,
          .lmc = port.state.lmc,
          .sm_lid = port.state.sm_lid,
          .sm_sl = port.state.sm_sl,
          .link = port.state.link};
}

std::vector<ipc::Device> PortTable::devices() const {
  std::vector<ipc::Device> all;
  for (const DeviceConfig& device : devices_) {
    all.push_back({.name = device.name,
                   .description = device.description,
                   .node_guid = device.guid,
                   .ports = {}});
  }
  for (const Port& port : ports_) all[port.id.device].ports.push_back(describe(port));
  return all;
}

std::vector<rdmacm::Interface> PortTable::interfaces() const {
  std::vector<rdmacm::Interface> all;
  for (const Port& port : ports_) {
    const std::size_t first = all.size();
    port.gids.append_interfaces(all, connection_pkey(port.state));
    if (port.link_layer != LinkLayer::kInfiniband) continue;
    for (rdmacm::Interface& entry : std::span(all).subspan(first)) {
      entry.link_layer = port.link_layer;
      entry.gid = port.state.gids.empty() ? Gid{} : port.state.gids.front();
      entry.sgid_index = 0;
      entry.mtu = port.state.active_mtu;
    }
  }
  return all;
}

std::optional<PortId> PortTable::find_port(const Gid& address, bool by_gid) const {
  for (const rdmacm::Interface& entry : interfaces()) {
    if ((by_gid ? entry.gid : entry.address) == address) return entry.port;
  }
  return {};
}

std::vector<ipc::GidEntry> PortTable::gids() const {
  std::vector<ipc::GidEntry> all;
  for (const Port& port : ports_) {
    const auto entries = port.gid_entries();
    all.insert(all.end(), entries.begin(), entries.end());
  }
  return all;
}

std::optional<PortTable::Source> PortTable::find(const Gid& gid, std::uint32_t interface) const {
  for (const Port& port : ports_) {
    if (const auto index = port.index_of(gid, interface)) {
      return Source{port.id, *index, port.link_layer, connection_pkey(port.state)};
    }
  }
  return {};
}

std::size_t PortTable::gids_dropped() const {
  std::size_t sum = 0;
  for (const Port& port : ports_) sum += port.gids.dropped();
  return sum;
}

}  // namespace verbena::node
