#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/strong.h"
#include "base/time.h"
#include "faults/loss.h"
#include "plan/find_rail.h"

namespace verbena::ethernet {

using faults::Loss;

using plan::HostIndex;
using plan::RailId;

// Holds the faults that a user has set in a fabric.  Each rail is a link between its host and its
// network.
class LinkFaults {
 public:
  // Pulls the cable of a link if `up` is false, and plugs the cable in if `up` is true.
  void set_link(RailId rail, bool up);
  // Cuts a host off from all of its networks if `on` is false, and reconnects it if `on` is true.
  // Does not change the states of its links.
  void set_host(HostIndex host, bool on);
  // Pauses a host, or ends its pause.  A paused host neither receives nor sends packets.
  void set_paused(HostIndex host, bool paused);
  // Sets the loss of a link; a loss of 0 ends the fault.  Resets the packet count of the link.
  void set_loss(RailId rail, const Loss& loss);
  // Delays each packet on the link by this time, in both directions.  A delay of 0 ends the fault.
  void set_delay(RailId rail, Duration delay);
  // Replaces the MTU that the fabric's file gives to the rail.  Without a value, restores that MTU.
  void set_mtu(RailId rail, std::optional<std::uint32_t> mtu_bytes);
  // Replaces the table of P_Keys that the fabric's file gives to the rail.
  void set_pkeys(RailId rail, std::vector<Pkey> pkeys) { pkeys_[rail] = std::move(pkeys); }

  bool link_is_pulled(RailId rail) const { return pulled_links_.contains(rail); }
  bool is_off(HostIndex host) const { return hosts_off_.contains(host); }
  // Returns false if the cable of the link is pulled, or if the host is off.
  bool is_up(RailId rail) const { return !link_is_pulled(rail) && !is_off(rail.host); }
  // Returns true if a fault can delay packets: a host is paused, or a link has a delay.
  bool may_delay_packets() const { return !paused_hosts_.empty() || !delays_.empty(); }
  bool is_paused(HostIndex host) const { return paused_hosts_.contains(host); }
  Loss loss(RailId rail) const;
  Duration delay(RailId rail) const;
  // mtu_bytes() and pkeys() return the value that a fault has set.  Without such a fault they
  // return nullopt and null, and the value of the fabric's file applies.
  std::optional<std::uint32_t> mtu_bytes(RailId rail) const;
  const std::vector<Pkey>* pkeys(RailId rail) const;
  // Counts a packet of the link.  Returns true if the packet is lost.
  bool should_drop_next(RailId rail);

 private:
  std::set<RailId> pulled_links_{};
  std::set<HostIndex> hosts_off_{};
  std::set<HostIndex> paused_hosts_{};
  std::map<RailId, faults::LossyLink> lossy_links_{};
  std::map<RailId, Duration> delays_{};
  std::map<RailId, std::uint32_t> mtus_{};
  std::map<RailId, std::vector<Pkey>> pkeys_{};
};

}  // namespace verbena::ethernet
