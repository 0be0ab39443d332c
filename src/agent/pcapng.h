#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "link/capture.h"

// Writes the blocks of a pcapng file (draft-ietf-opsawg-pcapng), little-endian: one section, and
// interfaces with times in nanoseconds since 1970.  Each function appends one block.
namespace verbena::agent::pcapng {

using Bytes = std::vector<std::byte>;

// Appends the block that starts the file.
void section_header(Bytes& out, std::string_view application, std::string_view comment);

// Appends the description of an interface.  Interfaces count from 0, in the order of their
// descriptions.  The packets of an Ethernet interface are Ethernet frames, and those of an
// InfiniBand interface are records of erf_infiniband().  The link type for plain InfiniBand
// packets, LINKTYPE_INFINIBAND, is not used because Wireshark 4.0 does not know it.
void interface_description(Bytes& out, std::string_view name,
                           LinkLayer link_layer = LinkLayer::kEthernet);

// Appends one packet of an interface.
void enhanced_packet(Bytes& out, std::uint64_t time_ns, link::Direction direction,
                     std::span<const std::byte> frame, std::uint32_t interface = 0);

// Returns a packet from LRH to VCRC as a record of the Extensible Record Format (LINKTYPE_ERF).
Bytes erf_infiniband(std::uint64_t time_ns, std::span<const std::byte> lrh_to_vcrc);

struct Statistics {
  std::uint32_t interface = 0;
  std::uint64_t start_ns = 0;
  std::uint64_t end_ns = 0;
  std::uint64_t received = 0;  // packets in the file and dropped ones
  std::uint64_t dropped = 0;
};

// Appends the statistics of an interface, at the end of the file.  They tell how many packets are
// missing.
void interface_statistics(Bytes& out, const Statistics& statistics);

}  // namespace verbena::agent::pcapng
