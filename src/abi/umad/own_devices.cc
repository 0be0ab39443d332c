#include <endian.h>
#include <fmt/format.h>

#include <cstring>

#include "abi/library.h"
#include "abi/umad/service.h"
#include "verbena_build.h"

namespace verbena::abi::umad {

namespace um = ipc::umad;

namespace {

constexpr std::uint8_t kInfinibandLayer = 1;  // IBV_LINK_LAYER_INFINIBAND
// Holds the rates of a lane in units of 0.1 Gbit/s.  The index is the number of the bit that the
// speed code has set.
constexpr unsigned kLaneTenths[] = {25, 50, 100, 100, 140, 250, 500, 1000};

// Returns Gbit/s from the codes of width and speed (vol1 14.2.5.6).
std::uint32_t rate_of(unsigned width, unsigned speed) {
  const unsigned lanes = width == 1 ? 1 : width == 2 ? 4 : width == 4 ? 8 : width == 8 ? 12 : 2;
  unsigned speed_bit = 0;
  while (speed_bit < 7 && speed > 1) {
    speed >>= 1;
    ++speed_bit;
  }
  return lanes * kLaneTenths[speed_bit] / 10;
}

std::uint64_t big_endian(const std::uint8_t* bytes) {
  std::uint64_t value = 0;
  std::memcpy(&value, bytes, sizeof value);
  return be64toh(value);
}

um::Port port_of(std::uint32_t device, std::uint8_t number) {
  um::Port port{.number = number};
  vb_port_attr attr{};
  if (vb_port_query(device, number, &attr) != 0) return port;
  port.infiniband = attr.link_layer == kInfinibandLayer;
  port.lid = attr.lid;
  port.lmc = attr.lmc;
  port.sm_lid = attr.sm_lid;
  port.sm_sl = attr.sm_sl;
  port.state = attr.state;
  port.physical_state = attr.phys_state;
  port.rate = rate_of(attr.active_width, attr.active_speed);
  port.capability_mask = attr.port_cap_flags;
  vb_gid_entry gid{};
  if (vb_gid_query(device, number, 0, &gid) == 0 && gid.in_use != 0) {
    port.gid_prefix = big_endian(gid.raw);
    port.guid = big_endian(gid.raw + 8);
  }
  for (std::uint32_t i = 0; i < attr.pkey_tbl_len; ++i) {
    std::uint16_t pkey = 0;
    if (vb_pkey_query(device, number, i, &pkey) == 0) port.pkeys.push_back(pkey);
  }
  return port;
}

}  // namespace

std::optional<std::vector<um::Device>> host_devices() {
  if (check_library("libibumad.so.3", verbena_build_id()) != 0) return std::nullopt;
  std::vector<um::Device> devices;
  for (std::uint32_t index = 0; index < um::kDevicesMax; ++index) {
    vb_device_attr attr{};
    if (vb_device_query(index, &attr) != 0) {
      if (index > 0) break;
      explain(vb_last_error());
      return std::nullopt;
    }
    um::Device device{.name = attr.name,
                      .firmware = attr.fw_ver,
                      .hardware = fmt::format("{:#x}", attr.hw_ver),
                      .type = attr.name,
                      .node_guid = attr.node_guid,
                      .system_guid = attr.sys_image_guid};
    for (std::uint8_t port = 1; port <= attr.phys_port_count; ++port) {
      device.ports.push_back(port_of(index, port));
    }
    devices.push_back(std::move(device));
  }
  return devices;
}

}  // namespace verbena::abi::umad
