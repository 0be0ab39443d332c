#include "ipc/device.h"

#include <algorithm>

namespace verbena::ipc {

Result<void> check_devices(const std::vector<Device>& devices) {
  const auto is_valid = [](const Device& device) {
    return !device.ports.empty() && device.ports.size() <= kPortsPerDeviceMax &&
           std::ranges::all_of(device.ports, [](const Port& port) {
             return !port.pkeys.empty() && port.pkeys.size() <= Port::kPkeysMax &&
                    port.lmc <= Port::kLmcMax;
           });
  };
  if (devices.empty() || devices.size() > kDevicesMax || !std::ranges::all_of(devices, is_valid)) {
    return fail(Errc::kMalformed, "ipc: an invalid list of devices");
  }
  return {};
}

const Port* find_port(const std::vector<Device>& devices, PortId port) {
  if (port.device >= devices.size()) return nullptr;
  const auto& ports = devices[port.device].ports;
  return port.number >= 1 && port.number <= ports.size() ? &ports[port.number - 1u] : nullptr;
}

}  // namespace verbena::ipc
