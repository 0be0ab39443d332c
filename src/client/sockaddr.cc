#include "client/sockaddr.h"

#include <endian.h>
#include <infiniband/ib.h>
#include <netinet/in.h>

#include <bit>
#include <cstring>

#include "wire/ip.h"

namespace verbena::client {
namespace {

constexpr std::uint16_t kPkeyNumber = 0x7fff;  // all bits but the membership bit

}  // namespace

Result<rdmacm::SocketAddress> from_sockaddr(const sockaddr* address) {
  if (address == nullptr) return fail(Errc::kInvalidArgument, "no address");
  if (address->sa_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, address, sizeof in);
    return rdmacm::SocketAddress{
        .ip = wire::ipv4_gid(ntohl(in.sin_addr.s_addr)), .port = ntohs(in.sin_port), .family = 4};
  }
  if (address->sa_family == AF_INET6) {
    sockaddr_in6 in6{};
    std::memcpy(&in6, address, sizeof in6);
    rdmacm::SocketAddress out{
        .port = ntohs(in6.sin6_port), .scope = in6.sin6_scope_id, .family = 6};
    std::memcpy(out.ip.bytes.data(), &in6.sin6_addr, out.ip.bytes.size());
    return out;
  }
  if (address->sa_family == AF_IB) {
    sockaddr_ib ib{};
    std::memcpy(&ib, address, sizeof ib);
    const std::uint16_t pkey = ntohs(ib.sib_pkey);
    if (pkey != 0 && (pkey & kPkeyNumber) != kPkeyNumber) {
      return fail(Errc::kAddressNotFound, "RoCE has only the default P_Key");
    }
    rdmacm::SocketAddress out{.scope = static_cast<std::uint32_t>(ib.sib_scope_id),
                              .family = 6,
                              .by_gid = true,
                              .service = {be64toh(ib.sib_sid)}};
    out.port = static_cast<std::uint16_t>(out.service.value & be64toh(ib.sib_sid_mask));
    std::memcpy(out.ip.bytes.data(), &ib.sib_addr, out.ip.bytes.size());
    return out;
  }
  return fail(Errc::kNotSupported, "the address family is not IPv4, IPv6 or AF_IB");
}

Result<rdmacm::SocketAddress> source_from_sockaddr(const sockaddr* address) {
  auto source = from_sockaddr(address);
  if (source && source->by_gid) {
    sockaddr_ib ib{};
    std::memcpy(&ib, address, sizeof ib);
    source->service.value &= be64toh(ib.sib_sid_mask);
  }
  return source;
}

Result<rdmacm::SocketAddress> group_from_sockaddr(const sockaddr* address) {
  if (address == nullptr || address->sa_family != AF_IB) return from_sockaddr(address);
  sockaddr_ib ib{};
  std::memcpy(&ib, address, sizeof ib);
  ib.sib_pkey = 0;
  return from_sockaddr(reinterpret_cast<const sockaddr*>(&ib));
}

sockaddr_storage to_sockaddr(const rdmacm::SocketAddress& address) {
  sockaddr_storage out{};
  if (address.by_gid) {
    sockaddr_ib ib{};
    ib.sib_family = AF_IB;
    ib.sib_pkey = htons(0xffff);
    std::memcpy(&ib.sib_addr, address.ip.bytes.data(), address.ip.bytes.size());
    ib.sib_sid = htobe64(address.service.value);
    ib.sib_sid_mask = address.service.value != 0 ? ~__be64{0} : 0;
    ib.sib_scope_id = address.scope;
    std::memcpy(&out, &ib, sizeof ib);
  } else if (address.family == 4) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(address.port);
    in.sin_addr.s_addr = htonl(wire::ipv4_address(address.ip));
    std::memcpy(&out, &in, sizeof in);
  } else if (address.family == 6) {
    sockaddr_in6 in6{};
    in6.sin6_family = AF_INET6;
    in6.sin6_port = htons(address.port);
    in6.sin6_scope_id = address.scope;
    std::memcpy(&in6.sin6_addr, address.ip.bytes.data(), address.ip.bytes.size());
    std::memcpy(&out, &in6, sizeof in6);
  }
  return out;
}

}  // namespace verbena::client
