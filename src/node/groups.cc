// Decides which sockets are members of which multicast groups.  The kernel copies the packets; no
// multicast data passes through the node.

#include <algorithm>
#include <utility>

#include "node/node.h"
#include "wire/ip.h"

namespace verbena::node {

// Returns true if this has changed anything.
bool Node::Interfaces::set(std::uint32_t interface, bool wanted) {
  if (interface == 0) return std::exchange(all, wanted) != wanted;
  return wanted ? named.insert(interface).second : named.erase(interface) != 0;
}

std::size_t Node::groups_of(ClientId client) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      groups_, [&](const auto& one) { return has_range(client, one.first.first); }));
}

// Tells the owner on which interfaces the range's sockets shall now be members.
void Node::output_membership(const GroupOfRange& what, std::uint64_t token) {
  const auto& [range, group] = what;
  std::set<std::uint32_t> on;
  if (const auto found = groups_.find(what); found != groups_.end()) {
    on = found->second.named;
    for (const ipc::GidEntry& entry : ports_.gids()) {
      const bool same_family = wire::is_ipv4(entry.gid) == wire::is_ipv4(group);
      if (found->second.all && same_family) on.insert(entry.interface);
    }
  }
  outputs_.emplace_back(Membership{
      .token = token, .range = range, .group = group, .interfaces = {on.begin(), on.end()}});
}

void Node::drop_membership(const GroupOfRange& what, std::uint32_t interface) {
  const auto found = groups_.find(what);
  if (found == groups_.end() || !found->second.set(interface, false)) return;
  if (found->second.empty()) groups_.erase(found);
  output_membership(what);
}

void Node::leave_groups(std::uint16_t range) {
  const auto first = groups_.lower_bound({range, Gid{}});
  auto last = first;
  std::vector<GroupOfRange> left;
  for (; last != groups_.end() && last->first.first == range; ++last) left.push_back(last->first);
  groups_.erase(first, last);
  for (const GroupOfRange& what : left) output_membership(what);
}

Result<bool> Node::on(ClientId client, std::uint64_t request, const ipc::JoinGroup& m, Time) {
  if (!has_range(client, m.range)) {
    return fail(Errc::kInvalidArgument, "not a range of this program");
  }
  if (!wire::is_multicast(m.group)) {
    return fail(Errc::kInvalidArgument, "not the address of a multicast group");
  }
  const GroupOfRange what{m.range, m.group};
  if (!groups_.contains(what) && groups_of(client) >= config_.groups_per_client_max) {
    ++joins_over_limit_;
    return fail(Errc::kNoResources,
                "the limit of multicast groups (groups_per_client_max) is reached");
  }
  groups_[what].set(m.interface, true);
  const std::uint64_t token = next_token_++;
  join_requests_[token] = {client, request, what, m.interface};
  output_membership(what, token);
  return true;
}

Result<bool> Node::on(ClientId client, std::uint64_t, const ipc::LeaveGroup& m, Time) {
  if (!has_range(client, m.range)) {
    return fail(Errc::kInvalidArgument, "not a range of this program");
  }
  drop_membership({m.range, m.group}, m.interface);
  return false;
}

void Node::joined(std::uint64_t token, const Result<void>& result) {
  const auto pending = join_requests_.extract(token);
  if (!pending) return;
  const JoinRequest& join = pending.mapped();
  if (!result) {
    if (result.error().code == Errc::kNoResources) ++joins_over_hosts_limit_;
    drop_membership(join.what, join.interface);
  }
  tell(join.client, ipc::encode(join.request, result ? ipc::Done{} : ipc::refusal(result.error())));
}

}  // namespace verbena::node
