#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <tuple>

#include "agent/uplinks.h"
#include "base/strong.h"

namespace verbena::hosts {

using agent::HostIndex;

// Records the members of multicast groups at each port.  A member is a range of QP numbers, for
// which an HCA makes a copy of each packet to the group (vol1 10.5.2).
class SubnetGroups {
 public:
  static constexpr std::size_t kMembersMax = 65536;

  // Makes the range a member of the group at exactly these ports of the HCA.  Changes nothing and
  // returns false if there would be more than kMembersMax members.
  bool set(HostIndex hca, std::uint16_t range, const Gid& group,
           std::span<const std::uint32_t> ports) {
    const Key key{hca, group, range, 0};
    const auto begin = members_.lower_bound(key);
    auto end = begin;
    while (end != members_.end() && are_equal_except_port(*end, key)) ++end;
    const auto old_count = static_cast<std::size_t>(std::distance(begin, end));
    if (members_.size() - old_count + ports.size() > kMembersMax) return false;
    members_.erase(begin, end);
    for (const std::uint32_t port : ports) {
      members_.insert({hca, group, range, static_cast<std::uint8_t>(port)});
    }
    return true;
  }

  // Calls visit_range(range) for each range that is a member of the group at this port.
  void visit(HostIndex hca, std::uint8_t port, const Gid& group, auto&& visit_range) const {
    for (auto at = members_.lower_bound({hca, group, 0, 0});
         at != members_.end() && std::get<0>(*at) == hca && std::get<1>(*at) == group; ++at) {
      if (std::get<3>(*at) == port) visit_range(std::get<2>(*at));
    }
  }

  // Returns true if the range is a member of any group at this port.
  bool is_in_a_group(HostIndex hca, std::uint8_t port, std::uint16_t range) const {
    for (auto at = members_.lower_bound({hca, Gid{}, 0, 0});
         at != members_.end() && std::get<0>(*at) == hca; ++at) {
      if (std::get<2>(*at) == range && std::get<3>(*at) == port) return true;
    }
    return false;
  }

  std::size_t size() const { return members_.size(); }

 private:
  // A key contains the HCA, group, range and port of a membership.
  using Key = std::tuple<HostIndex, Gid, std::uint16_t, std::uint8_t>;
  static bool are_equal_except_port(const Key& a, const Key& b) {
    return std::tie(std::get<0>(a), std::get<1>(a), std::get<2>(a)) ==
           std::tie(std::get<0>(b), std::get<1>(b), std::get<2>(b));
  }

  std::set<Key> members_{};
};

}  // namespace verbena::hosts
