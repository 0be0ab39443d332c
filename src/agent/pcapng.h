#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "link/capture.h"

// Writes the blocks of a pcapng file (draft-ietf-opsawg-pcapng), little-endian: one section, one
// Ethernet interface, times in nanoseconds since 1970.  Each function appends one block.
namespace verbena::agent::pcapng {

using Bytes = std::vector<std::byte>;

// Appends the block that starts the file.
void section_header(Bytes& out, std::string_view application, std::string_view comment);

// Appends the description of the interface, which follows the section header.
void interface_description(Bytes& out, std::string_view name);

// Appends one packet.  `frame` is a complete Ethernet frame.
void enhanced_packet(Bytes& out, std::uint64_t time_ns, link::Direction direction,
                     std::span<const std::byte> frame);

struct Statistics {
  std::uint64_t start_ns = 0;
  std::uint64_t end_ns = 0;
  std::uint64_t received = 0;  // packets in the file and dropped ones
  std::uint64_t dropped = 0;
};

// Appends the interface's statistics as the last block.  They tell how many packets are missing.
void interface_statistics(Bytes& out, const Statistics& statistics);

}  // namespace verbena::agent::pcapng
