#pragma once

#include <cstdint>

#include "base/strong.h"

// Computes the UDP source port of a RoCEv2 packet (annex A17.3.2) from its flow label.  A network
// that distributes flows by port then sends all packets of a connection over the same path.  The 20
// bits of the flow label are folded into the range 0xc000 to 0xffff.
namespace verbena::wire {

inline constexpr std::uint32_t kFlowLabelMask = 0xfffff;

constexpr std::uint16_t source_port(std::uint32_t flow_label) {
  const std::uint32_t label = flow_label & kFlowLabelMask;
  return static_cast<std::uint16_t>(0xc000 | ((label & 0x3fff) ^ label >> 14));
}

// Returns the flow label for a QP whose address vector has none.  Both ends compute the same label.
constexpr std::uint32_t default_flow_label(Qpn local, Qpn remote) {
  std::uint64_t v = std::uint64_t{local.value} * remote.value;
  v ^= v >> 20;
  v ^= v >> 40;
  return static_cast<std::uint32_t>(v) & kFlowLabelMask;
}

// Returns the flow label that Linux's RDMA CM puts in a REQ: a hash of the two port numbers of the
// connection.
constexpr std::uint32_t connection_flow_label(std::uint16_t source_port,
                                              std::uint16_t destination_port) {
  return (source_port * 31u + destination_port) & kFlowLabelMask;
}

}  // namespace verbena::wire
