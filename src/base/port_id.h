#pragma once

#include <compare>
#include <cstdint>

namespace verbena {

// Limits the devices of a host, and the ports of a device.
inline constexpr std::uint8_t kDevicesMax = 8;
inline constexpr std::uint8_t kPortsPerDeviceMax = 2;

// Names a port of this host: `device` is the index in the host's list of devices, and `number` is
// the port's number on the device, from 1 on (vol1 11.2.1.2).  The default is the first port of the
// first device.
struct PortId {
  std::uint8_t device = 0;
  std::uint8_t number = 1;
  friend constexpr auto operator<=>(const PortId&, const PortId&) = default;
};

}  // namespace verbena
