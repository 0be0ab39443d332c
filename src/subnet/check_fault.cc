#include "subnet/check_fault.h"

#include "subnet/find_link.h"

namespace verbena::subnet {

std::optional<Mtu> mtu_of_bytes(std::size_t bytes) {
  for (const Mtu mtu : {Mtu::k256, Mtu::k512, Mtu::k1024, Mtu::k2048, Mtu::k4096}) {
    if (mtu_bytes(mtu) == bytes) return mtu;
  }
  return std::nullopt;
}

std::optional<std::string> problem_with(const Topology& topology, const faults::Fault& fault) {
  if (faults::is_link_fault(fault.kind)) {
    const auto link = find_link(topology, fault.a, fault.b);
    if (!link) return link.error();
    if (fault.mtu_bytes == 0 || mtu_of_bytes(fault.mtu_bytes)) return std::nullopt;
    return "the MTU of a subnet's link must be 256, 512, 1024, 2048 or 4096";
  }
  const auto node = find_node(topology, fault.a);
  if (!node) return node.error();
  const bool changes_pkeys =
      fault.kind == faults::Kind::kPkeyAdded || fault.kind == faults::Kind::kPkeyRemoved;
  if (!changes_pkeys || topology.nodes[*node].is_hca()) return std::nullopt;
  return fault.a + (topology.nodes[*node].is_switch() ? " is a switch" : " is a router") +
         ", and P_Keys can be changed only at HCAs";
}

}  // namespace verbena::subnet
