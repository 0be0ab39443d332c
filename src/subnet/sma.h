#pragma once

#include <cstdint>
#include <optional>

#include "subnet/device.h"
#include "wire/smp.h"

// Implements the subnet management agent (SMA) of a node: Get and Set of each attribute (vol1
// 14.2.5).  The agent knows only its node, so the caller carries out the effects on links.
namespace verbena::subnet {

// Names the attribute that a request reads or writes.
struct SmaRequest {
  std::uint8_t in_port = 0;  // the port where the SMP arrived
  std::uint16_t attribute_id = 0;
  std::uint32_t modifier = 0;
};

// Describes the effects of a Set beyond the node's attributes.
struct SmaEffects {
  // Asks the caller to take down the link of a port, and to put the port into this state.
  struct LinkChange {
    std::uint8_t port = 0;
    wire::PortPhysicalState physical_state{};  // kSleep, kPolling or kDisabled
  };
  std::optional<LinkChange> link_change{};
  // Names the port whose status has changed.
  std::optional<std::uint8_t> changed_port{};
  bool client_reregister = false;
};

// sma_get() and sma_set() return the status of the answer (wire::mad_status, 0 for success).
// sma_get() fills `data`.  sma_set() changes no attribute if it returns an error.
std::uint16_t sma_get(const Device& device, const SmaRequest& request, wire::SmpData& data);
std::uint16_t sma_set(Device& device, const SmaRequest& request, const wire::SmpData& data,
                      SmaEffects& effects);

// Returns true if a port accepts a request with this method and M_Key (vol1 14.2.4).
bool m_key_allows(const wire::PortInfo& info, wire::Method method, std::uint64_t m_key);

}  // namespace verbena::subnet
