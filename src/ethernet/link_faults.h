#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <set>

#include "base/strong.h"

namespace verbena::ethernet {

using HostIndex = std::uint32_t;  // the place of a host in plan::Fabric::hosts

// Names a rail of a host: the device by its place in the host's list.
struct RailId {
  HostIndex host = 0;
  std::uint8_t device = 0;
  friend constexpr auto operator<=>(const RailId&, const RailId&) = default;
};

// Says which packets a lossy link loses.
struct Loss {
  static constexpr std::uint32_t kAll = 1'000'000;
  std::uint32_t per_million = 0;
  std::uint64_t seed = 0;
  friend constexpr auto operator<=>(const Loss&, const Loss&) = default;
};

// Returns true if the link loses its packet with this number.  The result depends on nothing else,
// so a run with the same packets and the same seed loses the same ones.
bool is_lost(const Loss& loss, std::uint64_t packet);

// Holds what a user has broken in a fabric: each rail is a link between its host and its network.
class LinkFaults {
 public:
  void set_link(RailId rail, bool up);
  // Cuts a host off from all of its networks, whatever the state of its links is.
  void set_host(HostIndex host, bool on);
  // A loss of 0 ends it.  The packets of the link are counted from 0 again.
  void set_loss(RailId rail, const Loss& loss);

  bool link_is_pulled(RailId rail) const { return pulled_.contains(rail); }
  bool is_off(HostIndex host) const { return off_.contains(host); }
  // Returns false if the link is pulled or the host is off.
  bool is_up(RailId rail) const { return !link_is_pulled(rail) && !is_off(rail.host); }
  Loss loss(RailId rail) const;
  // Counts a packet of the link.  Returns true if it is lost.
  bool loses_next(RailId rail);

 private:
  struct Lossy {
    Loss loss{};
    std::uint64_t packets = 0;
  };
  std::set<RailId> pulled_{};
  std::set<HostIndex> off_{};
  std::map<RailId, Lossy> lossy_{};
};

}  // namespace verbena::ethernet
