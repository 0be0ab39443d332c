#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/link_layer.h"
#include "base/port_id.h"
#include "base/strong.h"
#include "ipc/messages.h"
#include "node/gid_table.h"
#include "rdmacm/types.h"

namespace verbena::node {

struct PortConfig {
  LinkLayer link_layer = LinkLayer::kEthernet;
  std::vector<Pkey> pkeys{wire::kDefaultPkey};
};

struct DeviceConfig {
  std::string name{"verbena0"};
  std::string description{"verbena"};  // the NodeDescription
  Guid guid{};
  std::vector<PortConfig> ports{PortConfig{}};
};

// Holds the state of a port, as the subnet manager or the host's fabric has set it.  The fields for
// LIDs and the link have the meanings of those in ipc::Port.
struct PortState {
  std::optional<std::string> down_reason{};  // empty: the port is active
  std::vector<Pkey> pkeys{wire::kDefaultPkey};
  Lid lid{};
  std::uint8_t lmc = 0;
  Lid sm_lid{};
  std::uint8_t sm_sl = 0;
  // Only InfiniBand ports use gids, active_mtu and link.  Their GIDs are the subnet's prefix and a
  // GUID of the port, not addresses of the host.  An entry of zeros is empty.
  std::vector<Gid> gids{};
  std::uint8_t active_mtu = 0;  // a value of enum ibv_mtu
  ipc::InfinibandLink link{};
};

// Returns the P_Key for new connections: the P_Key of the default partition, or the first valid
// P_Key if the table does not have the default partition, or 0 if the table has no valid P_Key.
Pkey connection_pkey(const PortState& state);

// Holds the host's devices and their ports: names, states, GID tables and P_Key tables.
class PortTable {
 public:
  // REQUIRES: ipc::check_devices() accepts the devices.
  explicit PortTable(const std::vector<DeviceConfig>& devices);

  void set_addresses(const std::vector<HostAddress>& addresses);
  // Sets the reason why all ports of the host are down.  Without a reason, each port has its own
  // state.
  void set_all_down_reason(std::optional<std::string> reason);
  void set_reach(ipc::Reach reach) { reach_ = std::move(reach); }
  // Fails with kAddressNotFound if the port does not exist.  Fails with kInvalidArgument if a table
  // is too large, if the P_Key table is empty, or if the LMC is too large.
  Result<void> set_state(PortId port, const PortState& state);

  const std::optional<std::string>& all_down_reason() const { return all_down_reason_; }
  std::vector<ipc::Device> devices() const;
  // Returns an interface for each address of the host.
  std::vector<rdmacm::Interface> interfaces() const;
  // Returns all GIDs of the host.
  std::vector<ipc::GidEntry> gids() const;
  struct Source {
    PortId port{};
    std::uint32_t gid_index = 0;
    LinkLayer link_layer{};
    Pkey pkey{};  // for connections from this address
  };
  // Returns the port with an interface that has this IP address.  If `by_gid` is true, `address` is
  // the GID of the interface.
  std::optional<PortId> find_port(const Gid& address, bool by_gid) const;
  // Finds the port that has the address.  For `interface`, see GidTable::index_of().
  std::optional<Source> find(const Gid& gid, std::uint32_t interface) const;
  // Calls f(port, P_Keys) for each port.
  void for_each_pkey_table(auto&& f) const {
    for (const Port& port : ports_) f(port.id, port.state.pkeys);
  }
  // Returns how many addresses of the last update are not in the GID tables, because these are
  // full.
  std::size_t gids_dropped() const;

 private:
  struct Port {
    PortId id{};
    LinkLayer link_layer{};
    PortState state{};
    GidTable gids{};
    std::vector<ipc::GidEntry> gid_entries() const;
    std::optional<std::uint32_t> index_of(const Gid& gid, std::uint32_t interface) const;
  };
  ipc::Port describe(const Port& port) const;

  std::vector<DeviceConfig> devices_;
  std::vector<Port> ports_{};  // of all devices, in their order
  ipc::Reach reach_{};
  std::optional<std::string> all_down_reason_{"the agent has not opened its port yet"};
};

}  // namespace verbena::node
