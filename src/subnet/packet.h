#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/strong.h"
#include "link/address.h"
#include "mad/mad.h"
#include "subnet/subnet.h"
#include "wire/infiniband.h"
#include "wire/smp.h"

namespace verbena::subnet {

inline constexpr std::uint8_t kManagementLane = 15;

// Holds the header fields that are needed to forward a packet.
struct PacketView {
  wire::Lrh lrh{};
  std::size_t bth_offset = 0;  // the offset of the BTH in the packet
  Pkey pkey{};
  Qpn destination_qpn{};
  std::size_t payload_bytes = 0;  // including pad bytes

  bool is_management() const { return lrh.virtual_lane == kManagementLane; }
  bool is_multicast() const {
    return lrh.destination.value >= wire::kFirstMulticastLid.value &&
           lrh.destination != wire::kPermissiveLid;
  }
};

// Reads the headers of a packet that begins with the LRH and ends with the ICRC.  Returns nothing
// if a length, the version or the next header is wrong.  Does not check the ICRC.
std::optional<PacketView> view_packet(std::span<const std::byte> packet);

// Returns true if the packet uses the management lane, as SMPs do.  REQUIRES: view_packet() accepts
// the packet.
bool uses_management_lane(const Packet& packet);

// set_virtual_lane() and set_lids() change the LRH but not the ICRC.  The ICRC does not cover the
// virtual lane.  After set_lids(), call refresh_icrc().
void set_virtual_lane(Packet& packet, std::uint8_t lane);
void set_lids(Packet& packet, Lid source, Lid destination);
void refresh_icrc(Packet& packet);

// Holds a MAD with the headers of its packet.
struct OpenMad {
  link::Address address{};  // from the sender to the receiver, as in the packet
  Pkey pkey{};
  Qkey qkey{};
  Qpn source_qpn{};
  Qpn destination_qpn{};
  mad::Mad mad{};
};

// Returns the MAD in a packet; nothing if the packet is not a UD SEND with the size of a MAD.
std::optional<OpenMad> open_mad(std::span<const std::byte> packet, const PacketView& view);
// Makes a packet that contains a MAD.  A MAD for QP0 uses the management lane.
Packet seal_mad(const OpenMad& mad);
// Replaces the SMP in a packet, but does not change the ICRC.  REQUIRES: open_mad() accepts the
// packet.
void replace_smp(Packet& packet, const PacketView& view, const wire::Smp& smp);

}  // namespace verbena::subnet
