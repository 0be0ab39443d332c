#pragma once

#include <compare>
#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>

#include "faults/fault.h"
#include "plan/plan.h"

// Finds hosts and rails by the names that a user writes.  Errors are messages for the user.
namespace verbena::plan {

using HostIndex = std::uint32_t;  // the index of a host in Fabric::hosts

// Identifies a rail by its host and by the index of its device in the host's list.
struct RailId {
  HostIndex host = 0;
  std::uint8_t device = 0;
  friend constexpr auto operator<=>(const RailId&, const RailId&) = default;
};

std::expected<HostIndex, std::string> find_host(const Fabric& fabric, std::string_view name);
// Finds the rail between a host, written as HOST or HOST:DEVICE, and a network.  DEVICE is needed
// only if several rails of the host are in the network.
std::expected<RailId, std::string> find_rail(const Fabric& fabric, std::string_view host_and_device,
                                             std::string_view network);
// Works like find_rail(), but takes the two ends in any order.
std::expected<RailId, std::string> find_link(const Fabric& fabric, std::string_view a,
                                             std::string_view b);
// Returns a text such as "a:verbena0 - red".
std::string link_text(const Fabric& fabric, RailId rail);

// Returns the reason why this fabric cannot have the fault: the fault names something that does not
// exist, or the rail cannot have the MTU.  Returns nullopt if the fabric can have the fault.
std::optional<std::string> problem_with(const Fabric& fabric, const faults::Fault& fault);

}  // namespace verbena::plan
