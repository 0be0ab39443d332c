#pragma once

#include <algorithm>
#include <optional>
#include <span>

#include "base/strong.h"
#include "wire/cm.h"
#include "wire/layout.h"

namespace verbena::cm {

// Describes the additional reject information of reason 4: the CA GUID of the sender (vol1
// 12.6.7.2).
struct CaGuidInfo {
  Guid ca_guid{};

  static consteval auto layout() {
    return wire::layout<8>(wire::field<&CaGuidInfo::ca_guid>({.byte = 0, .bits = 64}));
  }
};

// Describes the additional reject information of reason 12: a GID that is acceptable.
struct GidInfo {
  Gid gid{};

  static consteval auto layout() {
    return wire::layout<16>(wire::field<&GidInfo::gid>({.byte = 0, .bits = 128}));
  }
};

inline void set_reject_info(wire::cm::Rej& rej, std::span<const std::byte> info) {
  std::ranges::copy(info, rej.additional_reject_info.begin());
  rej.reject_info_length_bytes = static_cast<std::uint8_t>(info.size());
}

// Returns the CA GUID of a REJ with reason 4; nullopt for other reasons, or if the REJ does not
// have it.
inline std::optional<Guid> timeout_ca_guid(const wire::cm::Rej& rej) {
  if (rej.reason != wire::cm::RejReason::kTimeout) return std::nullopt;
  const auto info = wire::decode<CaGuidInfo>(wire::cm::reject_info(rej));
  if (!info) return std::nullopt;
  return info->ca_guid;
}

}  // namespace verbena::cm
