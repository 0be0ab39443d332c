#pragma once

#include <compare>
#include <cstdint>

namespace verbena {

// Limits the devices of a host, and the ports of a device.
inline constexpr std::uint8_t kDevicesMax = 8;
inline constexpr std::uint8_t kPortsPerDeviceMax = 2;

// Names a port of this host: its device by the place in the host's list, and the port by its number
// on the device, which counts from 1 (vol1 11.2.1.2).  The default is the only port of a host with
// one device.
struct PortId {
  std::uint8_t device = 0;
  std::uint8_t number = 1;
  friend constexpr auto operator<=>(const PortId&, const PortId&) = default;
};

}  // namespace verbena
