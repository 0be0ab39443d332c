#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "rdmacm/types.h"

// Holds the rules for ids.  They are checked twice: in the program (process), so that a wrong call
// fails at once, and in the host (Manager), which trusts no program.
namespace verbena::rdmacm {

constexpr bool is_datagram(std::uint32_t qp_type) { return qp_type == kQpTypeUd; }

// Returns true if requests of the id carry the header of annex A11, with the addresses.
constexpr bool has_header(const SocketAddress& source) { return !source.by_gid; }

// Checks the port space and the QP type of an id.  kNotSupported: there is no such port space, or
// its ids have no QPs of this type.
Result<void> check_port_space(std::uint32_t port_space, std::uint32_t qp_type);

// Returns the Q_Key of a datagram id; 0: the id gets the Q_Key of IPoIB when it joins a multicast
// group.
constexpr Qkey default_qkey(std::uint32_t port_space) {
  return {port_space == kPortSpaceIpoib ? 0 : kDatagramQkey};
}

// Checks the reason that a program gives for a REJ.  kInvalidArgument: programs may not use it.
Result<void> check_reason(std::uint32_t port_space, std::uint16_t reason);

// Returns how much private data a program may give to connect().
constexpr std::size_t connect_private_bytes(std::uint32_t qp_type, const SocketAddress& source) {
  if (is_datagram(qp_type)) {
    return has_header(source) ? kConnectDatagramPrivateBytes : kConnectDatagramByGidPrivateBytes;
  }
  return has_header(source) ? kConnectPrivateBytes : kConnectByGidPrivateBytes;
}

// Checks the size of private data, for a message that carries up to `bytes_max`.  kInvalidArgument:
// the size is larger.
inline Result<void> check_private_data(std::size_t bytes, std::size_t bytes_max) {
  if (bytes <= bytes_max) return {};
  return fail(Errc::kInvalidArgument, "the private data is longer than the message allows");
}

// Lowers the resources that the peer has asked for to the number that the program accepts.  0xff
// accepts all of them (rdma_accept(3)).
inline void accept_resources(QpTransition& qp, const ConnParam& param) {
  qp.responder_resources = std::min(qp.responder_resources, param.responder_resources);
  qp.initiator_depth = std::min(qp.initiator_depth, param.initiator_depth);
}

}  // namespace verbena::rdmacm
