#include "pcap.h"

#include <array>
#include <cstdint>

namespace verbena::wire_bench {
namespace {

constexpr std::uint32_t kMagicNanoseconds = 0xa1b23c4d;
constexpr std::uint32_t kFrameBytesMax = 65'536;
constexpr std::uint32_t kEthernet = 1;

}  // namespace

std::unique_ptr<Pcap> Pcap::create(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "wbe");
  if (file == nullptr) return nullptr;
  std::unique_ptr<Pcap> pcap(new Pcap(file));
  const std::array<std::uint32_t, 6> header{kMagicNanoseconds, 2 | 4 << 16, 0, 0,
                                            kFrameBytesMax,    kEthernet};
  if (std::fwrite(header.data(), sizeof header, 1, file) != 1) return nullptr;
  return pcap;
}

void Pcap::write(std::span<const std::byte> frame, Time now) {
  const auto time = now.time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  const auto bytes = static_cast<std::uint32_t>(frame.size());
  const std::array<std::uint32_t, 4> header{static_cast<std::uint32_t>(seconds.count()),
                                            static_cast<std::uint32_t>((time - seconds).count()),
                                            bytes, bytes};
  std::fwrite(header.data(), sizeof header, 1, file_.get());
  std::fwrite(frame.data(), frame.size(), 1, file_.get());
}

}  // namespace verbena::wire_bench
