#include <infiniband/ib.h>
#include <netdb.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "abi/abi.h"
#include "abi/cm/cm.h"

// Implements rdma_getaddrinfo(), which is getaddrinfo() with the structures of RDMA.

namespace verbena::abi {
namespace {

struct FreeRai {
  void operator()(rdma_addrinfo* rai) const { rdma_freeaddrinfo(rai); }
};
struct FreeAi {
  void operator()(addrinfo* ai) const { freeaddrinfo(ai); }
};

addrinfo to_socket_hints(const rdma_addrinfo& hints) {
  addrinfo ai{};
  if ((hints.ai_flags & RAI_PASSIVE) != 0) ai.ai_flags |= AI_PASSIVE;
  if ((hints.ai_flags & RAI_NUMERICHOST) != 0) ai.ai_flags |= AI_NUMERICHOST;
  if (hints.ai_family != AF_IB) ai.ai_family = hints.ai_family;
  switch (hints.ai_qp_type) {
    case IBV_QPT_RC:
    case IBV_QPT_UC:
    case IBV_QPT_XRC_SEND:
    case IBV_QPT_XRC_RECV: ai.ai_socktype = SOCK_STREAM; break;
    case IBV_QPT_UD: ai.ai_socktype = SOCK_DGRAM; break;
    default: break;
  }
  switch (hints.ai_port_space) {
    case RDMA_PS_TCP: ai.ai_protocol = IPPROTO_TCP; break;
    case RDMA_PS_IPOIB:
    case RDMA_PS_UDP: ai.ai_protocol = IPPROTO_UDP; break;
    case RDMA_PS_IB:
      if (ai.ai_socktype == SOCK_STREAM) ai.ai_protocol = IPPROTO_TCP;
      if (ai.ai_socktype == SOCK_DGRAM) ai.ai_protocol = IPPROTO_UDP;
      break;
    default: break;
  }
  return ai;
}

// Returns 0 or EAI_MEMORY.
int copy_address(const void* from, socklen_t bytes, sockaddr*& to, socklen_t& to_bytes) {
  if (bytes == 0) return 0;
  to = static_cast<sockaddr*>(std::malloc(bytes));
  if (to == nullptr) return EAI_MEMORY;
  std::memcpy(to, from, bytes);
  to_bytes = bytes;
  return 0;
}

// Converts an IPv6 socket address, which holds a GID and a port, to the AF_IB address of a service.
sockaddr_ib to_ib(const sockaddr_in6& from, int port_space) {
  sockaddr_ib ib{};
  ib.sib_family = AF_IB;
  ib.sib_pkey = htobe16(0xffff);
  ib.sib_flowinfo = from.sin6_flowinfo;
  std::memcpy(ib.sib_addr.sib_raw, &from.sin6_addr, sizeof from.sin6_addr);
  const std::uint16_t port = be16toh(from.sin6_port);
  std::uint64_t mask = 0;
  if (port_space != 0) mask |= RDMA_IB_IP_PS_MASK;
  if (port != 0) mask |= RDMA_IB_IP_PORT_MASK;
  ib.sib_sid = htobe64((static_cast<std::uint64_t>(port_space) << 16) + port);
  ib.sib_sid_mask = htobe64(mask);
  ib.sib_scope_id = from.sin6_scope_id;
  return ib;
}

int fill(const rdma_addrinfo& hints, const addrinfo& found, rdma_addrinfo& rai) {
  rai.ai_qp_type = hints.ai_qp_type;
  if (rai.ai_qp_type == 0) {
    rai.ai_qp_type = found.ai_socktype == SOCK_DGRAM ? IBV_QPT_UD : IBV_QPT_RC;
  }
  rai.ai_port_space = hints.ai_port_space;
  if (rai.ai_port_space == 0) {
    rai.ai_port_space = found.ai_protocol == IPPROTO_UDP ? RDMA_PS_UDP : RDMA_PS_TCP;
  }
  const bool is_passive = (hints.ai_flags & RAI_PASSIVE) != 0;
  if (is_passive) rai.ai_flags = RAI_PASSIVE;
  sockaddr*& addr = is_passive ? rai.ai_src_addr : rai.ai_dst_addr;
  socklen_t& addr_bytes = is_passive ? rai.ai_src_len : rai.ai_dst_len;
  if (found.ai_canonname != nullptr) {
    (is_passive ? rai.ai_src_canonname : rai.ai_dst_canonname) = strdup(found.ai_canonname);
  }

  constexpr int kGidLiteral = RAI_FAMILY | RAI_NUMERICHOST;
  if (hints.ai_family == AF_IB && (hints.ai_flags & kGidLiteral) == kGidLiteral) {
    if (found.ai_addrlen != sizeof(sockaddr_in6)) return EAI_ADDRFAMILY;
    sockaddr_in6 from{};
    std::memcpy(&from, found.ai_addr, sizeof from);
    const sockaddr_ib ib = to_ib(from, rai.ai_port_space);
    rai.ai_family = AF_IB;
    return copy_address(&ib, sizeof ib, addr, addr_bytes);
  }
  rai.ai_family = found.ai_family;
  return copy_address(found.ai_addr, found.ai_addrlen, addr, addr_bytes);
}

int look_up(const char* node, const char* service, const rdma_addrinfo& hints, rdma_addrinfo& rai) {
  const addrinfo socket_hints = to_socket_hints(hints);
  addrinfo* found = nullptr;
  if (int error = getaddrinfo(node, service, &socket_hints, &found)) return error;
  const std::unique_ptr<addrinfo, FreeAi> owned(found);
  return fill(hints, *found, rai);
}

}  // namespace
}  // namespace verbena::abi

using namespace verbena::abi;

// Returns 0, a code EAI_*, or -1 with errno.  If getaddrinfo() fails, returns its code, as Debian's
// library does (its examples print gai_strerror() of the code).  EAI_ADDRFAMILY: the address that
// getaddrinfo() found is not of IPv6, although the program wants a GID.  EAI_MEMORY: no memory for
// that address.  With RAI_SA, EAI_SERVICE: `service` is neither a name nor a number.  EAI_NONAME:
// no subnet has such a service.  All other errors are -1.  ai_route is always empty, because
// rdma_resolve_route() resolves routes.
VB_EXPORT int rdma_getaddrinfo(const char* node, const char* service, const rdma_addrinfo* hints,
                               rdma_addrinfo** res) {
  if (node == nullptr && service == nullptr && hints == nullptr) return failed(EINVAL);
  const rdma_addrinfo no_hints{};
  if (hints == nullptr) hints = &no_hints;
  if ((hints->ai_flags & kResolveBySa) != 0) {
    return node == nullptr ? find_services(service, *hints, *res) : failed(EOPNOTSUPP);
  }

  std::unique_ptr<rdma_addrinfo, FreeRai> owner(
      static_cast<rdma_addrinfo*>(std::calloc(1, sizeof(rdma_addrinfo))));
  if (!owner) return failed(ENOMEM);
  auto& rai = *owner;
  if (node != nullptr || service != nullptr) {
    if (int error = look_up(node, service, *hints, rai)) return error;
  } else {
    rai.ai_flags = hints->ai_flags;
    rai.ai_family = hints->ai_family;
    rai.ai_qp_type = hints->ai_qp_type;
    rai.ai_port_space = hints->ai_port_space;
    if (copy_address(hints->ai_dst_addr, hints->ai_dst_len, rai.ai_dst_addr, rai.ai_dst_len)) {
      return failed(ENOMEM);
    }
  }
  if (rai.ai_src_len == 0 &&
      copy_address(hints->ai_src_addr, hints->ai_src_len, rai.ai_src_addr, rai.ai_src_len)) {
    return failed(ENOMEM);
  }
  *res = owner.release();
  return 0;
}

VB_EXPORT void rdma_freeaddrinfo(rdma_addrinfo* res) {
  while (res != nullptr) {
    rdma_addrinfo* next = res->ai_next;
    std::free(res->ai_connect);
    std::free(res->ai_route);
    std::free(res->ai_src_addr);
    std::free(res->ai_src_canonname);
    std::free(res->ai_dst_addr);
    std::free(res->ai_dst_canonname);
    std::free(res);
    res = next;
  }
}
