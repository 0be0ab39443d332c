#pragma once

#include <cstdint>

#include "base/strong.h"
#include "wire/smp.h"

namespace verbena::subnet {

// Describes the node where an SMP with a directed route is.
struct RoutePoint {
  bool is_switch = false;
  std::uint8_t ports = 1;    // the number of external ports
  std::uint8_t in_port = 0;  // the port where the SMP arrived, or from which the HCA sends it
  // True if the directed part of the route begins at this node.  Either this node sends the SMP, or
  // the SMP came to this node by LID.
  bool begins_here = false;
};

// Tells what a node does with an SMP that has a directed route.
struct RouteStep {
  enum class Kind : std::uint8_t {
    kDiscard,
    kForward,  // the SMP leaves by `port`
    kLocal,    // the SMP is for this node's SMA or manager
    kToLid,    // the directed part has ended, and the SMP continues to `lid`
  };
  Kind kind = Kind::kDiscard;
  std::uint8_t port = 0;
  Lid lid{};
};

// Decides the next step of a directed route, and updates the hop pointer and return path of the SMP
// (vol1 14.2.2).
RouteStep directed_route_step(wire::Smp& smp, const RoutePoint& node);

}  // namespace verbena::subnet
