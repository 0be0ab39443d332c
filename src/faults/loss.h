#pragma once

#include <compare>
#include <cstdint>

namespace verbena::faults {

// Determines which packets a lossy link loses.
struct Loss {
  static constexpr std::uint32_t kAll = 1'000'000;  // per_million of a link that loses all packets
  std::uint32_t per_million = 0;                    // lost packets per million
  std::uint64_t seed = 0;
  friend constexpr auto operator<=>(const Loss&, const Loss&) = default;
};

// Returns true if the link loses the packet with this number.  The result depends only on the
// arguments, so a run with the same packets and the same seed loses the same packets.
bool is_lost(const Loss& loss, std::uint64_t packet_number);

// Counts the packets of a lossy link, and determines which of them are lost.
class LossyLink {
 public:
  LossyLink() = default;
  explicit LossyLink(const Loss& loss) : loss_(loss) {}

  const Loss& loss() const { return loss_; }
  // Counts a packet.  Returns true if the packet is lost.
  bool should_drop_next() { return is_lost(loss_, packet_count_++); }

 private:
  Loss loss_{};
  std::uint64_t packet_count_ = 0;
};

}  // namespace verbena::faults
