#pragma once

#include <cstdint>
#include <optional>

#include "subnet/device.h"
#include "wire/smp.h"

// Implements the subnet management agent of a node: Get and Set of each attribute (vol1 14.2.5).
// It sees one node only.  Effects on links are the caller's.
namespace verbena::subnet {

// Names an attribute of a request.
struct SmaRequest {
  std::uint8_t in_port = 0;  // by which the SMP came; 0 for an SMP of the switch's own port 0
  std::uint16_t attribute_id = 0;
  std::uint32_t modifier = 0;
};

// Describes the effects of a Set beyond the node's attributes.
struct SmaEffects {
  // Requests that a port leaves its link: to sleep, to train again, or to be disabled.
  struct LinkChange {
    std::uint8_t port = 0;
    wire::PortPhysicalState to{};  // kSleep, kPolling or kDisabled
  };
  std::optional<LinkChange> link_change{};
  // Reports that this port's status has changed.
  std::optional<std::uint8_t> changed_port{};
  bool client_reregister = false;
};

// These return the status of the answer (wire::mad_status, 0 for success).  A Get fills `data`.  A
// Set with an error changes nothing.
std::uint16_t sma_get(const Device& device, const SmaRequest& request, wire::SmpData& data);
std::uint16_t sma_set(Device& device, const SmaRequest& request, const wire::SmpData& data,
                      SmaEffects& effects);

// Returns true if the M_Key of a request allows it (vol1 14.2.4).
bool m_key_allows(const wire::PortInfo& info, wire::Method method, std::uint64_t m_key);

}  // namespace verbena::subnet
