#include "subnet/directed_route.h"

#include "wire/infiniband.h"

namespace verbena::subnet {
namespace {

using Kind = RouteStep::Kind;

// Returns the step to the port of a path entry; kDiscard if the SMP cannot leave by this port.  An
// HCA does not forward between its ports, so the SMP must leave by the port where it arrived.
RouteStep leave_by(std::byte path_entry, const RoutePoint& node) {
  const auto port = std::to_integer<std::uint8_t>(path_entry);
  const bool has_port = node.is_switch ? port >= 1 && port <= node.ports : port == node.in_port;
  return has_port ? RouteStep{.kind = Kind::kForward, .port = port} : RouteStep{};
}

RouteStep end_of_directed_part(Lid next_lid) {
  if (next_lid == wire::kPermissiveLid) return {.kind = Kind::kLocal};
  return {.kind = Kind::kToLid, .lid = next_lid};
}

void set_pointer(wire::Smp& smp, unsigned pointer) {
  smp.set_hop_pointer(static_cast<std::uint8_t>(pointer));
}

RouteStep step_outgoing(wire::Smp& smp, const RoutePoint& node) {
  const unsigned pointer = smp.hop_pointer(), count = smp.hop_count();
  if (pointer == 0 && count != 0) {  // C14-9:1
    if (!node.begins_here) return {};
    set_pointer(smp, 1);
    return leave_by(smp.initial_path[1], node);
  }
  if (pointer < count) {  // C14-9:2
    if (!node.is_switch) return {};
    smp.return_path[pointer] = static_cast<std::byte>(node.in_port);
    set_pointer(smp, pointer + 1);
    return leave_by(smp.initial_path[pointer + 1], node);
  }
  if (pointer == count) {  // C14-9:3
    if (count != 0) smp.return_path[pointer] = static_cast<std::byte>(node.in_port);
    set_pointer(smp, pointer + 1);
    return end_of_directed_part(smp.dr_destination);
  }
  if (pointer == count + 1) return {.kind = Kind::kLocal};  // C14-9:4
  return {};
}

RouteStep step_returning(wire::Smp& smp, const RoutePoint& node) {
  const unsigned pointer = smp.hop_pointer(), count = smp.hop_count();
  if (count != 0 && pointer == count + 1) {  // C14-13:1
    if (!node.begins_here) return {};
    set_pointer(smp, count);
    return leave_by(smp.return_path[count], node);
  }
  if (pointer >= 2 && pointer <= count) {  // C14-13:2
    if (!node.is_switch) return {};
    set_pointer(smp, pointer - 1);
    return leave_by(smp.return_path[pointer - 1], node);
  }
  if (pointer == 1) {  // C14-13:3
    set_pointer(smp, 0);
    return end_of_directed_part(smp.dr_source);
  }
  if (pointer == 0) return {.kind = Kind::kLocal};  // C14-13:4
  return {};
}

}  // namespace

RouteStep directed_route_step(wire::Smp& smp, const RoutePoint& node) {
  if (smp.hop_count() > wire::kSmpHopsMax) return {};
  return smp.is_returning() ? step_returning(smp, node) : step_outgoing(smp, node);
}

}  // namespace verbena::subnet
