#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

namespace verbena::wire_bench {

// The frames of a classic little-endian Ethernet capture (tests/captures); none of any other file.
std::vector<std::vector<std::byte>> read_pcap(const std::filesystem::path& path);

}  // namespace verbena::wire_bench
