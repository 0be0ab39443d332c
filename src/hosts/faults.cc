#include "hosts/faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "os/clock.h"

namespace verbena::hosts {
namespace {

using faults::Fault;
using faults::Kind;

std::string loss_text(const faults::Loss& loss) {
  if (loss.per_million == 0) return "loses nothing";
  return fmt::format("loses {} % of its packets (seed {})", loss.per_million / 10'000.0, loss.seed);
}

std::string delay_text(Duration delay) {
  if (delay == Duration{}) return "is not slow";
  return "delays packets by " + faults::duration_text(delay);
}

std::string flaps_text(const faults::Periods& periods) {
  const std::string text = fmt::format("flaps: {} down, {} up", faults::duration_text(periods.down),
                                       faults::duration_text(periods.up));
  return periods.seed ? fmt::format("{}, at random (seed {})", text, *periods.seed) : text;
}

std::string mtu_text(std::uint32_t bytes) {
  return bytes == 0 ? "has its default MTU" : fmt::format("has an MTU of {} bytes", bytes);
}

std::string pkey_text(Pkey pkey, bool present) {
  return fmt::format("{} P_Key 0x{:04x}", present ? "has got" : "has lost", pkey.value);
}

}  // namespace

Faults::Faults(asio::io_context& loop, Breakable& fabric)
    : fabric_(fabric), flap_timer_(loop, [this] { flap_due_links(); }) {}

Faults::SetResult Faults::set(const Fault& fault) {
  if (auto problem = fabric_.problem_with(fault)) return std::unexpected(std::move(*problem));
  if (!faults::is_link_fault(fault.kind)) return set_node(fabric_.find_node(fault.a), fault);
  return set_link(fabric_.find_link(fault.a, fault.b), fault);
}

// ---- links --------------------------------------------------------------------------------------

std::string Faults::set_link(Breakable::Link link, const Fault& fault) {
  const std::string text = "link " + fabric_.link_text(link) + " ";
  switch (fault.kind) {
    case Kind::kLinkDown:
    case Kind::kLinkUp: return text + set_cable(link, fault.kind == Kind::kLinkUp);
    case Kind::kLinkFlapping:
      return text + start_flapping(
                        link, {.down = fault.down,
                               .up = fault.up,
                               .seed = fault.has_seed ? std::optional(fault.seed) : std::nullopt});
    case Kind::kLinkLossy: {
      const faults::Loss loss{.per_million = fault.lost_per_million, .seed = fault.seed};
      links_[link].loss = loss;
      fabric_.set_loss(link, loss);
      return text + loss_text(loss);
    }
    case Kind::kLinkSlow:
      links_[link].delay = fault.delay;
      fabric_.set_delay(link, fault.delay);
      return text + delay_text(fault.delay);
    case Kind::kLinkMtu:
      links_[link].mtu_bytes = fault.mtu_bytes;
      fabric_.set_mtu(link, fault.mtu_bytes);
      return text + mtu_text(fault.mtu_bytes);
    default: return "";  // set_node() carries out the other faults
  }
}

std::string Faults::set_cable(Breakable::Link link, bool plugged) {
  LinkState& state = links_[link];
  state.flaps.reset();
  state.cable_pulled = !plugged;
  set_timer();
  fabric_.set_link(link, plugged);
  return plugged ? fabric_.up_text(link) : "is down";
}

std::string Faults::start_flapping(Breakable::Link link, const faults::Periods& periods) {
  LinkState& state = links_[link];
  state.flaps.emplace(periods, os::now());
  state.cable_pulled = false;
  set_timer();
  fabric_.set_link(link, false);
  return flaps_text(periods);
}

void Faults::flap_due_links() {
  const Time now = os::now();
  for (auto& [link, state] : links_) {
    if (state.flaps && state.flaps->advance(now)) fabric_.set_link(link, state.flaps->is_up());
  }
  set_timer();
}

void Faults::set_timer() {
  Time next_flap = kNever;
  for (const auto& [link, state] : links_) {
    if (state.flaps) next_flap = std::min(next_flap, state.flaps->next_deadline());
  }
  flap_timer_.at(next_flap);
}

// ---- nodes --------------------------------------------------------------------------------------

Faults::SetResult Faults::set_node(Breakable::Node node, const Fault& fault) {
  switch (fault.kind) {
    case Kind::kPkeyRemoved:
    case Kind::kPkeyAdded: return set_pkey(node, fault.pkey, fault.kind == Kind::kPkeyAdded);
    default: return set_power(node, fault.kind);
  }
}

Faults::SetResult Faults::set_power(Breakable::Node node, Kind kind) {
  const std::string name = "node " + fabric_.node_name(node) + " ";
  NodeState& state = nodes_[node];
  const bool off = kind == Kind::kNodeOff;
  const bool paused = kind == Kind::kNodePaused;
  if (paused && state.off) return std::unexpected(name + "is off, so it cannot be paused");
  if (state.paused != paused) fabric_.set_paused(node, paused);
  if (!paused) fabric_.set_power(node, !off);
  state.off = off;
  state.paused = paused;
  if (paused) return name + "is paused";
  return name + (off ? fabric_.off_text() : "is on");
}

Faults::SetResult Faults::set_pkey(Breakable::Node node, Pkey pkey, bool present) {
  const auto result = fabric_.set_pkey(node, pkey, present);
  if (!result) return std::unexpected(result.error());
  nodes_[node].pkeys[pkey] = present;
  return "node " + fabric_.node_name(node) + " " + pkey_text(pkey, present);
}

// ---- active faults ------------------------------------------------------------------------------

std::vector<ipc::FaultStatus> Faults::status() const {
  std::vector<ipc::FaultStatus> all;
  const auto add = [&](const std::string& what, std::string state) {
    all.push_back({.what = what, .state = std::move(state)});
  };
  for (const auto& [node, state] : nodes_) {
    const std::string what = "node " + fabric_.node_name(node);
    if (state.off) add(what, "is off");
    if (state.paused) add(what, "is paused");
    for (const auto& [pkey, present] : state.pkeys) {
      // Reports the fault only while the table confirms it: the subnet manager may have written the
      // table after the fault.
      if (fabric_.has_pkey(node, pkey) == present) add(what, pkey_text(pkey, present));
    }
  }
  for (const auto& [link, state] : links_) {
    const std::string what = "link " + fabric_.link_text(link);
    if (state.cable_pulled) add(what, "is down");
    if (state.flaps) add(what, flaps_text(state.flaps->periods()));
    if (state.loss.per_million != 0) add(what, loss_text(state.loss));
    if (state.delay != Duration{}) add(what, delay_text(state.delay));
    if (state.mtu_bytes != 0) add(what, mtu_text(state.mtu_bytes));
  }
  return all;
}

}  // namespace verbena::hosts
