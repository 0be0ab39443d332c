#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/strong.h"
#include "wire/ip.h"

// Computes the GIDs of multicast groups (MGIDs) on an InfiniBand subnet from IP addresses.  On
// RoCE, the MGID is the IP address itself.
//
//   byte 0   1      2-3        4-5    6-15
//   ff       1S     signature  P_Key  IPv4: zeros and the last 28 bits of the group
//                                     IPv6: the last 80 bits of the group
//
// S is the scope.  RFC 4391 section 4 defines the form and the signatures of IPoIB.  The RDMA CM
// has other signatures.  So for the same IP address, RDMA_PS_UDP and IPoIB use different groups,
// with different Q_Keys.
namespace verbena::wire {

enum class MgidSignature : std::uint16_t {
  kIpoibIpv4 = 0x401b,
  kIpoibIpv6 = 0x601b,
  kRdmaCmIpv4 = 0x4001,
  kRdmaCmIpv6 = 0x6001,
  kSaAssigned = 0xa01b,  // the SA assigns such an MGID if a join request contains none
};

// Names the user of a group: IPoIB itself, or a program that uses the RDMA CM.
enum class MgidUser : std::uint8_t {
  kIpoib,
  kRdmaCmIpoib,  // RDMA_PS_IPOIB, which uses the groups of IPoIB
  kRdmaCm,       // RDMA_PS_UDP
};

inline constexpr std::uint8_t kMgidScopeLinkLocal = 2;
inline constexpr std::uint16_t kFullMember = 0x8000;  // this bit of a P_Key marks a full member

namespace mgid {
// Returns an MGID in which the bits of the IP address are zero.
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

// Returns the MGID of the group that all IPoIB interfaces of a partition join.  The parameters of
// this group (Q_Key, MTU, rate, SL) apply to the whole partition.
constexpr Gid broadcast_mgid(Pkey pkey, std::uint8_t scope = kMgidScopeLinkLocal) {
  Gid gid = mgid::prefix(MgidSignature::kIpoibIpv4, pkey, scope);
  std::fill(gid.bytes.begin() + 12, gid.bytes.end(), std::byte{0xff});
  return gid;
}

// Returns true for MGIDs that the SA has assigned: ff1S:a01b::/32.
constexpr bool is_sa_assigned(const Gid& gid) {
  return gid.bytes[0] == std::byte{0xff} && (gid.bytes[1] & std::byte{0xf0}) == std::byte{0x10} &&
         gid.bytes[2] == std::byte{0xa0} && gid.bytes[3] == std::byte{0x1b};
}

// Returns the MGID for the IP address of a group.  `pkey` and `scope` are the values of the
// partition's broadcast group.  Full and limited members get the same MGID.  Some addresses are
// special:
//  * A wildcard address gives MGID 0, as in Linux (cma_set_mgid()).  When a program joins MGID 0,
//    the SA assigns an MGID.
//  * The RDMA CM returns an MGID that the SA has assigned unchanged, as in Linux.
//  * For MgidUser::kIpoib, 255.255.255.255 gives the MGID of the broadcast group.  The RDMA CM
//    treats this address like any other, as in Linux.
constexpr Gid multicast_mgid(const Gid& group, MgidUser user, Pkey pkey,
                             std::uint8_t scope = kMgidScopeLinkLocal) {
  const bool is_v4 = is_ipv4(group);
  if (group == Gid{} || group == ipv4_gid(0)) return {};
  if (user == MgidUser::kIpoib) {
    if (group == ipv4_gid(0xffffffff)) return broadcast_mgid(pkey, scope);
  } else if (is_sa_assigned(group)) {
    return group;
  }
  const bool is_udp = user == MgidUser::kRdmaCm;
  Gid gid = mgid::prefix(is_v4 ? (is_udp ? MgidSignature::kRdmaCmIpv4 : MgidSignature::kIpoibIpv4)
                               : (is_udp ? MgidSignature::kRdmaCmIpv6 : MgidSignature::kIpoibIpv6),
                         pkey, scope);
  const std::size_t first_byte = is_v4 ? 12 : 6;
  std::copy(group.bytes.begin() + static_cast<std::ptrdiff_t>(first_byte), group.bytes.end(),
            gid.bytes.begin() + static_cast<std::ptrdiff_t>(first_byte));
  if (is_v4) gid.bytes[12] &= std::byte{0x0f};
  return gid;
}

}  // namespace verbena::wire
