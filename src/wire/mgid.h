#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/strong.h"
#include "wire/ip.h"

// Computes the GIDs of multicast groups on an InfiniBand subnet (MGIDs) from IP addresses.  On RoCE
// the MGID is the IP address itself.
//
//   byte 0   1      2-3        4-5    6-15
//   ff       1S     signature  P_Key  IPv4: zeros and the last 28 bits of the group
//                                     IPv6: the last 80 bits of the group
//
// S is the scope.  RFC 4391 section 4 defines the form and the signatures of IPoIB.  The RDMA CM
// has signatures of its own.  So a group of RDMA_PS_UDP differs from IPoIB's group of the same IP
// address, and has another Q_Key.
namespace verbena::wire {

enum class MgidSignature : std::uint16_t {
  kIpoibIpv4 = 0x401b,
  kIpoibIpv6 = 0x601b,
  kRdmaCmIpv4 = 0x4001,
  kRdmaCmIpv6 = 0x6001,
  kSaAssigned = 0xa01b,  // the SA chooses such an MGID for a join that names none
};

// Tells the kind of a group: one of IPoIB, which RDMA_PS_IPOIB uses too, or one of RDMA_PS_UDP.
enum class MgidUser : std::uint8_t { kIpoib, kRdmaCm };

inline constexpr std::uint8_t kMgidScopeLinkLocal = 2;
inline constexpr std::uint16_t kFullMember = 0x8000;  // bit of a P_Key

namespace mgid {
constexpr Gid prefix(MgidSignature signature, Pkey pkey, std::uint8_t scope) {
  const auto number = std::to_underlying(signature);
  const auto partition = static_cast<std::uint16_t>(pkey.value | kFullMember);
  Gid gid;
  gid.bytes[0] = std::byte{0xff};
  gid.bytes[1] = static_cast<std::byte>(0x10 | (scope & 0xf));
  gid.bytes[2] = static_cast<std::byte>(number >> 8);
  gid.bytes[3] = static_cast<std::byte>(number & 0xff);
  gid.bytes[4] = static_cast<std::byte>(partition >> 8);
  gid.bytes[5] = static_cast<std::byte>(partition & 0xff);
  return gid;
}
}  // namespace mgid

// Returns the MGID of the group that all IPoIB interfaces of a partition join.  Its parameters
// (Q_Key, MTU, rate, SL) are those of the whole partition.
constexpr Gid broadcast_mgid(Pkey pkey, std::uint8_t scope = kMgidScopeLinkLocal) {
  Gid gid = mgid::prefix(MgidSignature::kIpoibIpv4, pkey, scope);
  std::fill(gid.bytes.begin() + 12, gid.bytes.end(), std::byte{0xff});
  return gid;
}

// Returns true for an IPv6 address that is an MGID which the SA has chosen: ff1S:a01b::/32.
constexpr bool is_sa_assigned(const Gid& gid) {
  return gid.bytes[0] == std::byte{0xff} && (gid.bytes[1] & std::byte{0xf0}) == std::byte{0x10} &&
         gid.bytes[2] == std::byte{0xa0} && gid.bytes[3] == std::byte{0x1b};
}

// Returns the MGID for the address of a group.  `pkey` and `scope` are those of the partition's
// broadcast group; limited membership has the MGID of full membership.  As in Linux
// (cma_set_mgid()), these groups are special:
//  * A wildcard address gives MGID 0.  A join with MGID 0 lets the SA choose the MGID.
//  * An MGID that the SA has chosen is returned unchanged, for MgidUser::kRdmaCm only.
//  * 255.255.255.255 gives an MGID that ends with the last bits of the broadcast group's MGID.
constexpr Gid multicast_mgid(const Gid& group, MgidUser user, Pkey pkey,
                             std::uint8_t scope = kMgidScopeLinkLocal) {
  const bool ipv4 = is_ipv4(group);
  const bool rdma_cm = user == MgidUser::kRdmaCm;
  if (group == Gid{} || group == ipv4_gid(0)) return {};
  if (rdma_cm && is_sa_assigned(group)) return group;
  if (group == ipv4_gid(0xffffffff)) {
    Gid gid = broadcast_mgid(pkey, scope);
    if (rdma_cm) gid.bytes[3] = std::byte{0x01};
    return gid;
  }
  Gid gid = mgid::prefix(ipv4 ? (rdma_cm ? MgidSignature::kRdmaCmIpv4 : MgidSignature::kIpoibIpv4)
                              : (rdma_cm ? MgidSignature::kRdmaCmIpv6 : MgidSignature::kIpoibIpv6),
                         pkey, scope);
  const std::size_t first = ipv4 ? 12 : 6;
  std::copy(group.bytes.begin() + static_cast<std::ptrdiff_t>(first), group.bytes.end(),
            gid.bytes.begin() + static_cast<std::ptrdiff_t>(first));
  if (ipv4) gid.bytes[12] &= std::byte{0x0f};
  return gid;
}

}  // namespace verbena::wire
