#pragma once

#include <cstdint>

#include "base/strong.h"

// Where the UDP source port of a RoCEv2 packet comes from (annex A17.3.2): packets of one
// connection take one path through a network that spreads flows by port.  The port carries the 20
// bits of the flow label, folded, in 0xc000..0xffff.
namespace verbena::wire {

inline constexpr std::uint32_t kFlowLabelMask = 0xfffff;

constexpr std::uint16_t source_port(std::uint32_t flow_label) {
  const std::uint32_t label = flow_label & kFlowLabelMask;
  return static_cast<std::uint16_t>(0xc000 | ((label & 0x3fff) ^ label >> 14));
}

// For a QP whose address vector has no flow label: the same from either end.
constexpr std::uint32_t default_flow_label(Qpn local, Qpn remote) {
  std::uint64_t v = std::uint64_t{local.value} * remote.value;
  v ^= v >> 20;
  v ^= v >> 40;
  return static_cast<std::uint32_t>(v) & kFlowLabelMask;
}

// What Linux's RDMA CM puts into a REQ: a hash of the TCP-like ports of the connection.
constexpr std::uint32_t connection_flow_label(std::uint16_t source_port,
                                              std::uint16_t destination_port) {
  return (source_port * 31u + destination_port) & kFlowLabelMask;
}

}  // namespace verbena::wire
