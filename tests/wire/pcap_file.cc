#include "pcap_file.h"

#include <cstdint>
#include <fstream>
#include <iterator>
#include <span>
#include <string>

namespace verbena::wire_bench {
namespace {

constexpr std::size_t kFileHeader = 24, kFrameHeader = 16;
constexpr std::uint32_t kMagic = 0xa1b2c3d4, kEthernet = 1;

std::uint32_t little32(std::span<const std::byte> at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value |= std::to_integer<std::uint32_t>(at[i]) << 8 * i;
  return value;
}

}  // namespace

std::vector<std::vector<std::byte>> read_pcap(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::span<const std::byte> rest = std::as_bytes(std::span(text));
  std::vector<std::vector<std::byte>> frames;
  if (rest.size() < kFileHeader || little32(rest) != kMagic ||
      little32(rest.subspan(20)) != kEthernet) {
    return frames;
  }
  rest = rest.subspan(kFileHeader);
  while (rest.size() >= kFrameHeader) {
    const std::size_t bytes = little32(rest.subspan(8));
    rest = rest.subspan(kFrameHeader);
    if (bytes > rest.size()) break;
    frames.emplace_back(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(bytes));
    rest = rest.subspan(bytes);
  }
  return frames;
}

}  // namespace verbena::wire_bench
