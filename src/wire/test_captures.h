#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

// Reads the captures in tests/captures, which contain packets of other implementations.
namespace verbena::wire::testing {

// Returns the directory of the captures in the source tree.  The environment variable VB_SOURCE
// names the source tree; ctest sets it.  Without it, the source tree must contain the current
// directory.  The compiler does not know the source tree, so that checkouts can share compiled
// files.
inline std::filesystem::path captures() {
  const std::filesystem::path relative_path = "tests/captures";
  if (const char* source = std::getenv("VB_SOURCE")) return source / relative_path;
  std::filesystem::path directory = std::filesystem::current_path();
  while (!std::filesystem::is_directory(directory / relative_path) &&
         directory.has_relative_path()) {
    directory = directory.parent_path();
  }
  return directory / relative_path;
}

// Returns the frames of a classic pcap file that is little-endian, with times in microseconds and
// Ethernet frames.  Stops at a truncated frame.  Returns no frames for other files.
inline std::vector<std::vector<std::byte>> read_pcap(const std::filesystem::path& path) {
  constexpr std::uint32_t kMagic = 0xa1b2c3d4;
  constexpr std::uint32_t kEthernet = 1;
  const auto little32 = [](std::span<const std::byte> at) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < 4; ++i) value |= std::to_integer<std::uint32_t>(at[i]) << 8 * i;
    return value;
  };
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::span<const std::byte> rest = std::as_bytes(std::span(text));
  std::vector<std::vector<std::byte>> frames;
  if (rest.size() < 24 || little32(rest) != kMagic || little32(rest.subspan(20)) != kEthernet) {
    return frames;
  }
  rest = rest.subspan(24);
  while (rest.size() >= 16) {
    const std::uint32_t captured_bytes = little32(rest.subspan(8));
    const bool is_complete = captured_bytes == little32(rest.subspan(12));
    rest = rest.subspan(16);
    if (!is_complete || captured_bytes > rest.size()) break;
    frames.emplace_back(rest.begin(), rest.begin() + captured_bytes);
    rest = rest.subspan(captured_bytes);
  }
  return frames;
}

}  // namespace verbena::wire::testing
