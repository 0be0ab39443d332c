#include "ethernet/link_faults.h"

namespace verbena::ethernet {
namespace {

// Inserts an element into a set or erases it from the set.
template <class Element>
void set_presence(std::set<Element>& elements, const Element& element, bool is_present) {
  if (is_present) {
    elements.insert(element);
  } else {
    elements.erase(element);
  }
}

}  // namespace

void LinkFaults::set_link(RailId rail, bool up) { set_presence(pulled_links_, rail, !up); }

void LinkFaults::set_host(HostIndex host, bool on) { set_presence(hosts_off_, host, !on); }

void LinkFaults::set_paused(HostIndex host, bool paused) {
  set_presence(paused_hosts_, host, paused);
}

void LinkFaults::set_loss(RailId rail, const Loss& loss) {
  if (loss.per_million == 0) {
    lossy_links_.erase(rail);
  } else {
    lossy_links_.insert_or_assign(rail, faults::LossyLink(loss));
  }
}

Loss LinkFaults::loss(RailId rail) const {
  const auto found = lossy_links_.find(rail);
  return found == lossy_links_.end() ? Loss{} : found->second.loss();
}

bool LinkFaults::should_drop_next(RailId rail) {
  const auto found = lossy_links_.find(rail);
  return found != lossy_links_.end() && found->second.should_drop_next();
}

void LinkFaults::set_delay(RailId rail, Duration delay) {
  if (delay == Duration{}) {
    delays_.erase(rail);
  } else {
    delays_[rail] = delay;
  }
}

Duration LinkFaults::delay(RailId rail) const {
  const auto found = delays_.find(rail);
  return found == delays_.end() ? Duration{} : found->second;
}

void LinkFaults::set_mtu(RailId rail, std::optional<std::uint32_t> mtu_bytes) {
  if (mtu_bytes) {
    mtus_[rail] = *mtu_bytes;
  } else {
    mtus_.erase(rail);
  }
}

std::optional<std::uint32_t> LinkFaults::mtu_bytes(RailId rail) const {
  const auto found = mtus_.find(rail);
  if (found == mtus_.end()) return std::nullopt;
  return found->second;
}

const std::vector<Pkey>* LinkFaults::pkeys(RailId rail) const {
  const auto found = pkeys_.find(rail);
  return found == pkeys_.end() ? nullptr : &found->second;
}

}  // namespace verbena::ethernet
