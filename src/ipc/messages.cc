#include "ipc/messages.h"

#include <algorithm>

namespace verbena::ipc {
namespace {

constexpr std::size_t kHeader = sizeof(std::uint32_t) + sizeof(Type) + sizeof(std::uint64_t);

}  // namespace

Result<void> check_devices(const std::vector<Device>& devices) {
  const auto is_possible = [](const Device& device) {
    return !device.ports.empty() && device.ports.size() <= kPortsPerDeviceMax &&
           std::ranges::all_of(device.ports, [](const Port& port) {
             return !port.pkeys.empty() && port.pkeys.size() <= Port::kPkeysMax &&
                    port.lmc <= Port::kLmcMax;
           });
  };
  if (devices.empty() || devices.size() > kDevicesMax ||
      !std::ranges::all_of(devices, is_possible)) {
    return fail(Errc::kMalformed, "ipc: an invalid list of devices");
  }
  return {};
}

const Port* find_port(const std::vector<Device>& devices, PortId port) {
  if (port.device >= devices.size()) return nullptr;
  const auto& ports = devices[port.device].ports;
  return port.number >= 1 && port.number <= ports.size() ? &ports[port.number - 1u] : nullptr;
}

const PortStatus* StatusReply::find_down_port() const {
  const auto found = std::ranges::find(ports, false, &PortStatus::active);
  return found == ports.end() ? nullptr : &*found;
}

Result<Envelope> open(std::span<const std::byte> message) {
  if (message.size() < kHeader || message.size() > kMessageBytesMax) {
    return fail(Errc::kMalformed, "ipc: message of a wrong length");
  }
  Reader reader(message.first(kHeader));
  std::uint32_t size = 0;
  Envelope envelope;
  reader(size, envelope.type, envelope.request);
  if (size != message.size()) return fail(Errc::kMalformed, "ipc: message of a wrong length");
  envelope.body = message.subspan(kHeader);
  return envelope;
}

Result<std::span<const std::byte>> take_message(std::span<const std::byte>& datagram) {
  std::uint32_t size = 0;
  Reader reader(datagram);
  reader(size);
  if (!reader.good() || size < kHeader || size > datagram.size()) {
    return fail(Errc::kMalformed, "ipc: a datagram ends within a message");
  }
  const auto message = datagram.first(size);
  datagram = datagram.subspan(size);
  return message;
}

}  // namespace verbena::ipc
