#pragma once

#include <array>
#include <span>

#include "base/error.h"
#include "base/port_id.h"
#include "hca/pkey_table.h"

namespace verbena::hca {

// Holds the P_Key table and the LMC (vol1 4.1.3) of each port of the host.  The port {0, 1} exists
// from the beginning.  Any other port exists after set() was called for it.
class Ports {
 public:
  // Sets the P_Key table of a port.  kInvalidArgument: the port number or device number exceeds a
  // limit of port_id.h, or PkeyTable rejects the table.
  Result<void> set(PortId port, std::span<const Pkey> pkeys) {
    if (!is_within_limits(port))
      return fail(Errc::kInvalidArgument, "the device number or port number exceeds the limit");
    Port& entry = at(port);
    VB_TRY_VOID(entry.pkeys.set(pkeys));
    entry.exists = true;
    return {};
  }
  // Sets the number of path bits of the port's LIDs.  REQUIRES: has(port), and `lmc` is at most 7.
  void set_lmc(PortId port, std::uint8_t lmc) { at(port).lmc = lmc; }
  // Returns the path bits of one of the port's LIDs.
  std::uint8_t path_bits(PortId port, Lid lid) const {
    return static_cast<std::uint8_t>(lid.value & ((1u << at(port).lmc) - 1));
  }
  bool has(PortId port) const { return is_within_limits(port) && at(port).exists; }
  // REQUIRES: the port is within the limits of port_id.h.
  const PkeyTable& pkeys(PortId port) const { return at(port).pkeys; }

 private:
  struct Port {
    bool exists = false;
    std::uint8_t lmc = 0;
    PkeyTable pkeys{};
  };
  static constexpr bool is_within_limits(PortId port) {
    return port.device < kDevicesMax && port.number >= 1 && port.number <= kPortsPerDeviceMax;
  }
  static constexpr std::size_t index(PortId port) {
    return std::size_t{port.device} * kPortsPerDeviceMax + port.number - 1;
  }
  const Port& at(PortId port) const { return ports_[index(port)]; }
  Port& at(PortId port) { return ports_[index(port)]; }

  std::array<Port, std::size_t{kDevicesMax} * kPortsPerDeviceMax> ports_{Port{.exists = true}};
};

}  // namespace verbena::hca
