#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/strong.h"
#include "base/time.h"
#include "subnet/counts.h"
#include "subnet/topology.h"
#include "wire/notice.h"
#include "wire/port_info.h"
#include "wire/smp.h"

namespace verbena::subnet {

inline constexpr std::uint16_t kPartitionCap = 64;  // P_Keys of a port; a multiple of 32
inline constexpr std::uint8_t kHcaGuidCap = 32;     // GUIDs of a port; a multiple of 8
inline constexpr std::uint16_t kLinearFdbCap = 0xc000;
inline constexpr std::uint16_t kMulticastFdbCap = 1024;
inline constexpr std::uint8_t kVlArbitrationCap = 8;
inline constexpr unsigned kDataLanes = 8;

inline constexpr std::uint64_t kDefaultGidPrefix = 0xfe80000000000000;

// Returns the number of data lanes for a code of PortInfo.VLCap or PortInfo.OperationalVLs.
std::uint8_t lanes_of_code(std::uint8_t code);

// Holds the attributes of a port that the SMA reads and writes.
struct DevicePort {
  wire::PortInfo info{};
  std::vector<Pkey> pkeys{};
  std::vector<Guid> guids{};
  std::vector<wire::SlToVl> sl_to_vl{};           // by ingress port; an HCA has one table
  std::array<wire::SmpData, 2> vl_arbitration{};  // the tables of low and high priority
  Counts counts{};
  Time m_key_lease_end = kNever;

  // Returns true if data packets may leave.
  bool is_active() const { return info.port_state == wire::PortState::kActive; }
  // Returns true if data packets may arrive (vol1 7.2.7).
  bool accepts_data() const { return is_active() || info.port_state == wire::PortState::kArmed; }
  // Returns true if `lid` is one of the port's 2^LMC LIDs.
  bool has_lid(Lid lid) const {
    return info.lid.value != 0 && lid.value >> info.lmc == info.lid.value >> info.lmc;
  }
  bool accepts_pkey(Pkey pkey) const { return own_pkey(pkey).value != 0; }
  // Returns the P_Key in the port's table that matches the P_Key of a packet; 0 if none matches.
  // Answers carry the P_Key of the table, so that a limited member answers as a limited member.
  Pkey own_pkey(Pkey packet_pkey) const;
  bool operates_lane(std::uint8_t lane) const;
};

// Holds a node's attributes.  Only a switch has port 0.
class Device {
 public:
  explicit Device(const Node& node);

  bool is_switch() const { return node_info.node_type == wire::NodeType::kSwitch; }
  std::uint8_t port_count() const { return static_cast<std::uint8_t>(ports.size() - 1); }
  // Returns the port whose LID, M_Key and SM LID apply to an SMP that arrived at `in_port`.
  std::uint8_t management_port_number(std::uint8_t in_port) const {
    return is_switch() ? 0 : in_port;
  }
  DevicePort& management_port(std::uint8_t in_port) {
    return ports[management_port_number(in_port)];
  }
  const DevicePort& management_port(std::uint8_t in_port) const {
    return ports[management_port_number(in_port)];
  }

  // Returns the egress port for a unicast LID, or wire::kLftNoPort (vol1 18.2.4.3.1).
  std::uint8_t egress(Lid destination) const;
  // Appends the egress ports for a multicast LID, except the ingress port (vol1 18.2.4.3.3).
  void multicast_egress(Lid destination, std::uint8_t ingress,
                        std::vector<std::uint8_t>& ports_out) const;

  wire::LftBlock lft_block(std::size_t block) const;
  void set_lft_block(std::size_t block, const wire::LftBlock& ports_of_lids);
  wire::MftBlock mft_block(std::size_t block, std::size_t position) const;
  void set_mft_block(std::size_t block, std::size_t position, const wire::MftBlock& masks);
  std::size_t mft_positions() const { return ports.size() / wire::kMftPortsPerMask + 1; }

  wire::NodeInfo node_info{};  // node_info_at() replaces the fields about a port
  wire::NodeDescription description{};
  wire::SwitchInfo switch_info{};
  std::vector<DevicePort> ports{};

  // Returns the NodeInfo for an SMP that arrived at this port.
  wire::NodeInfo node_info_at(std::uint8_t in_port) const;

 private:
  std::vector<std::uint8_t> lft_{};   // ends after the highest block that was written
  std::vector<std::uint16_t> mft_{};  // by LID and position; empty until a block is written
};

// Sets the widths, speeds and MTU that a port supports, so that its link trains as `link` says.
void set_supported(wire::PortInfo& info, const Link& link);
// Sets the active width and speed of two ports.  Returns false if the link cannot train, because
// the ports have no width or no speed in common.
bool negotiate(wire::PortInfo& a, wire::PortInfo& b);
LinkWidth active_width(const wire::PortInfo& info);
LinkSpeed active_speed(const wire::PortInfo& info);

}  // namespace verbena::subnet
