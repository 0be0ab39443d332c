#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/strong.h"
#include "subnet/topology.h"

// Translates between the words of a netlist and the values of a topology.
namespace verbena::subnet {

std::optional<LinkWidth> width_of_lanes(std::uint64_t lanes);
unsigned lanes_of(LinkWidth width);
// Returns the widest width in a mask of PortInfo.LinkWidthEnabled; nothing for other bits.
std::optional<LinkWidth> widest(std::uint64_t mask);

// Returns the speed with this name, as ibnetdiscover prints it: SDR to XDR, or FDR10.
std::optional<LinkSpeed> speed_named(std::string_view name);
std::string_view name_of(LinkSpeed speed);
// Returns true for a word that looks like the name of a speed, such as "GDR".
bool looks_like_speed(std::string_view word);
// Returns the fastest speed in a mask of PortInfo.LinkSpeedEnabled, or of LinkSpeedExtEnabled;
// nothing for other bits.
std::optional<LinkSpeed> fastest(std::uint64_t mask);
std::optional<LinkSpeed> fastest_extended(std::uint64_t mask);

// Returns the GUID in an ID that ibnetdiscover makes, such as "H-0002c90300000001".
std::optional<Guid> guid_in_id(std::string_view id);
// Returns the GUID in a text that a user writes: such an ID, or "0x" and up to 16 digits.
std::optional<Guid> parse_guid(std::string_view text);
// Makes such an ID.
std::string id_of(NodeType type, Guid guid);

// Returns true if a line is no part of the topology: a heading of `ibnetdiscover -g`, or a line
// that a program wrote to stderr, such as "src/query_smp.c:228; ..." or "ibwarn: [7] ...".
bool is_remark(std::string_view line);

}  // namespace verbena::subnet
