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

// Holds the header fields by which a packet is forwarded.
struct PacketView {
  wire::Lrh lrh{};
  std::size_t bth_at = 0;  // the place of the BTH in the packet
  Pkey pkey{};
  Qpn destination_qpn{};
  std::size_t payload_bytes = 0;  // with pad

  bool is_management() const { return lrh.virtual_lane == kManagementLane; }
  bool is_multicast() const {
    return lrh.destination.value >= wire::kFirstMulticastLid.value &&
           lrh.destination != wire::kPermissiveLid;
  }
};

// Reads the headers of a packet from LRH to ICRC, and checks lengths and versions, but not the
// ICRC.
std::optional<PacketView> view_packet(std::span<const std::byte> packet);

// These change the LRH.  They do not change the ICRC.  It does not cover the virtual lane; after
// the other changes, call refresh_icrc().
void set_virtual_lane(Packet& packet, std::uint8_t lane);
void set_lids(Packet& packet, Lid source, Lid destination);
void refresh_icrc(Packet& packet);

// Holds a MAD with the headers of its packet.
struct OpenMad {
  link::Address address{};  // as the packet has it: from the sender to the receiver
  Pkey pkey{};
  Qkey qkey{};
  Qpn source_qpn{};
  Qpn destination_qpn{};
  mad::Mad mad{};
};

// Returns the MAD in a packet; nothing if it is not a UD SEND with the size of a MAD.
std::optional<OpenMad> open_mad(std::span<const std::byte> packet, const PacketView& view);
// Makes a packet of a MAD; one of QP0 is on the management lane.
Packet seal_mad(const OpenMad& mad);
// Replaces the SMP in a packet that open_mad() accepts.
void replace_smp(Packet& packet, const PacketView& view, const wire::Smp& smp);

}  // namespace verbena::subnet
