#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>

namespace verbena {

// Gives a number a meaning: a Qpn does not convert to a Psn, and neither converts to an int.
template <class Tag, class Rep>
struct Strong {
  using Representation = Rep;
  Rep value{};
  friend constexpr auto operator<=>(const Strong&, const Strong&) = default;
};

using Qpn = Strong<struct QpnTag, std::uint32_t>;        // 24 bits (vol1 3.5.3)
using CommId = Strong<struct CommIdTag, std::uint32_t>;  // communication id (vol1 12.6)
using ServiceId = Strong<struct ServiceIdTag, std::uint64_t>;
using Guid = Strong<struct GuidTag, std::uint64_t>;  // EUI-64
using Pkey = Strong<struct PkeyTag, std::uint16_t>;
using Qkey = Strong<struct QkeyTag, std::uint32_t>;
using Lid = Strong<struct LidTag, std::uint16_t>;  // local identifier (vol1 4.1.3)

inline constexpr std::uint32_t kMask24 = 0xffffff;

// Represents a packet sequence number of 24 bits, which wraps (vol1 9.7.1).  Only this type
// compares PSNs.  Their order is that of serial numbers: it is defined only for PSNs that are less
// than 2^23 apart.
struct Psn {
  using Representation = std::uint32_t;
  std::uint32_t value{};

  friend constexpr bool operator==(const Psn&, const Psn&) = default;
  constexpr Psn operator+(std::uint32_t n) const { return {(value + n) & kMask24}; }
  constexpr Psn operator-(std::uint32_t n) const { return {(value - n) & kMask24}; }
  // Returns the distance from `other` to this number, from -2^23 to 2^23 - 1.
  constexpr std::int32_t since(Psn other) const {
    return static_cast<std::int32_t>((value - other.value) << 8) >> 8;
  }
  constexpr bool before(Psn other) const { return since(other) < 0; }
};

// Represents a global identifier (vol1 4.1.1).  On RoCEv2 it is an IPv6 address, or an IPv4 address
// as ::ffff:a.b.c.d.
struct Gid {
  std::array<std::byte, 16> bytes{};
  friend constexpr auto operator<=>(const Gid&, const Gid&) = default;
  // Compares eight bytes at a time, because each packet's addresses are compared.
  friend constexpr bool operator==(const Gid& a, const Gid& b) {
    using Halves = std::array<std::uint64_t, 2>;
    return std::bit_cast<Halves>(a.bytes) == std::bit_cast<Halves>(b.bytes);
  }
};

}  // namespace verbena
