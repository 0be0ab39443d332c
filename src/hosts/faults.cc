#include "hosts/faults.h"

#include <fmt/format.h>

#include <utility>

#include "subnet/find_link.h"

namespace verbena::hosts {
namespace {

using Set = std::expected<std::string, std::string>;

constexpr const char* kUnknownFault = "not a fault that this fabric knows";

std::string loss_text(const ethernet::Loss& loss) {
  return fmt::format("loses {} % of its packets (seed {})", loss.per_million / 10'000.0, loss.seed);
}

}  // namespace

// ---- InfiniBand ---------------------------------------------------------------------------------

Set SubnetFaults::set(const ipc::SetFault& wanted) {
  switch (wanted.fault) {
    case ipc::Fault::kLinkDown:
    case ipc::Fault::kLinkUp: return set_link(wanted);
    case ipc::Fault::kNodeOff:
    case ipc::Fault::kNodeOn: return set_node(wanted);
    case ipc::Fault::kLinkLossy:
      return std::unexpected("only links of Ethernet fabrics can be lossy, not those of a subnet");
  }
  return std::unexpected(kUnknownFault);
}

Set SubnetFaults::set_link(const ipc::SetFault& wanted) {
  const subnet::Topology& topology = nodes_.subnet().topology();
  const auto link = subnet::find_link(topology, wanted.a, wanted.b);
  if (!link) return std::unexpected(link.error());
  const bool up = wanted.fault == ipc::Fault::kLinkUp;
  if (up) {
    pulled_.erase(*link);
  } else {
    pulled_.insert(*link);
  }
  nodes_.set_link(*link, up);
  const std::string text = "link " + subnet::link_text(topology, *link);
  if (!up) return text + " is down";
  if (nodes_.subnet().link_is_up(*link)) return text + " is up";
  return text + " is plugged, but does not train: a node is off, or a port is disabled";
}

Set SubnetFaults::set_node(const ipc::SetFault& wanted) {
  const auto node = subnet::find_node(nodes_.subnet().topology(), wanted.a);
  if (!node) return std::unexpected(node.error());
  const bool on = wanted.fault == ipc::Fault::kNodeOn;
  if (on) {
    off_.erase(*node);
  } else {
    off_.insert(*node);
  }
  nodes_.set_power(*node, on);
  return fmt::format("node {} is {}", wanted.a, on ? "on" : "off");
}

std::vector<ipc::FaultStatus> SubnetFaults::status() const {
  const subnet::Topology& topology = nodes_.subnet().topology();
  std::vector<ipc::FaultStatus> all;
  for (const std::uint32_t node : off_) {
    all.push_back({.what = "node " + topology.nodes[node].name, .state = "is off"});
  }
  for (const std::size_t link : pulled_) {
    all.push_back({.what = "link " + subnet::link_text(topology, link), .state = "is down"});
  }
  return all;
}

// ---- Ethernet -----------------------------------------------------------------------------------

Set HostFaults::set(const ipc::SetFault& wanted) {
  switch (wanted.fault) {
    case ipc::Fault::kLinkDown:
    case ipc::Fault::kLinkUp:
    case ipc::Fault::kLinkLossy: return set_link(wanted);
    case ipc::Fault::kNodeOff:
    case ipc::Fault::kNodeOn: return set_host(wanted);
  }
  return std::unexpected(kUnknownFault);
}

Set HostFaults::set_link(const ipc::SetFault& wanted) {
  // The order of the two ends does not matter.
  auto rail = network_.find_rail(wanted.a, wanted.b);
  if (!rail) {
    const auto other_way = network_.find_rail(wanted.b, wanted.a);
    if (!other_way) return std::unexpected(rail.error());
    rail = other_way;
  }
  ethernet::LinkFaults& faults = network_.faults();
  const std::string text = "link " + network_.link_text(*rail);
  if (wanted.fault == ipc::Fault::kLinkLossy) {
    if (wanted.lost_per_million > ethernet::Loss::kAll) {
      return std::unexpected("a link loses 0 to 100 percent of its packets");
    }
    const ethernet::Loss loss{.per_million = wanted.lost_per_million, .seed = wanted.seed};
    faults.set_loss(*rail, loss);
    return text + " " + (loss.per_million == 0 ? "loses nothing" : loss_text(loss));
  }
  const bool up = wanted.fault == ipc::Fault::kLinkUp;
  faults.set_link(*rail, up);
  changed_(rail->host);
  if (!up) return text + " is down";
  return text + (faults.is_up(*rail) ? " is up" : " is plugged, but its host is off");
}

Set HostFaults::set_host(const ipc::SetFault& wanted) {
  const auto host = network_.find_host(wanted.a);
  if (!host) return std::unexpected(fmt::format("there is no host '{}'", wanted.a));
  const bool on = wanted.fault == ipc::Fault::kNodeOn;
  network_.faults().set_host(*host, on);
  changed_(*host);
  return fmt::format("node {} is {}", wanted.a, on ? "on" : "off: cut off from its networks");
}

std::vector<ipc::FaultStatus> HostFaults::status() const {
  const ethernet::LinkFaults& faults = network_.faults();
  std::vector<ipc::FaultStatus> all;
  const auto& hosts = network_.fabric().hosts;
  for (ethernet::HostIndex host = 0; host < hosts.size(); ++host) {
    if (faults.is_off(host)) all.push_back({.what = "node " + hosts[host].name, .state = "is off"});
    const auto devices = static_cast<std::uint8_t>(hosts[host].rails.size());
    for (std::uint8_t device = 0; device < devices; ++device) {
      const ethernet::RailId rail{.host = host, .device = device};
      const std::string what = "link " + network_.link_text(rail);
      if (faults.link_is_pulled(rail)) all.push_back({.what = what, .state = "is down"});
      const ethernet::Loss loss = faults.loss(rail);
      if (loss.per_million != 0) all.push_back({.what = what, .state = loss_text(loss)});
    }
  }
  return all;
}

}  // namespace verbena::hosts
