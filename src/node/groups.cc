// Decides which sockets are members of which multicast groups.  The kernel copies the packets; no
// multicast data passes through the node.

#include <algorithm>
#include <utility>

#include "node/node.h"
#include "wire/ip.h"

namespace verbena::node {

// Returns true if the call has changed the set of interfaces.
bool Node::Interfaces::set(std::uint32_t interface, bool wanted) {
  if (interface == 0) return std::exchange(all, wanted) != wanted;
  return wanted ? named.insert(interface).second : named.erase(interface) != 0;
}

std::size_t Node::groups_of(ClientId client) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      groups_, [&](const auto& one) { return has_range(client, one.first.first); }));
}

// Tells the owner on which interfaces the sockets of the range must be members of the group now.
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

// ---- groups of an InfiniBand subnet -------------------------------------------------------------

Result<bool> Node::on(ClientId client, std::uint64_t request, const ipc::JoinMulticast& m,
                      Time now) {
  const auto port = infiniband_.find(m.port);
  if (port == infiniband_.end()) {
    return fail(Errc::kInvalidArgument, "not an InfiniBand port of this host");
  }
  if ((m.join_state & ~wire::join_state::kAll) != 0 || m.join_state == 0) {
    return fail(Errc::kInvalidArgument, "not a join state");
  }
  const auto its = std::ranges::count_if(
      subnet_groups_, [&](const auto& one) { return one.second.client == client; });
  if (static_cast<std::size_t>(its) >= config_.groups_per_client_max) {
    ++joins_over_limit_;
    return fail(Errc::kNoResources,
                "the limit of multicast groups (groups_per_client_max) is reached");
  }
  const std::uint64_t token = next_token_++;
  subnet_groups_[token] = {.client = client, .port = m.port, .request = request};
  port->second.join({.token = token,
                     .port_space = m.port_space,
                     .pkey = m.pkey,
                     .group = m.group,
                     .is_mgid = m.is_mgid,
                     .join_state = m.join_state},
                    now);
  return true;
}

Result<bool> Node::on(ClientId client, std::uint64_t, const ipc::LeaveMulticast& m, Time now) {
  const auto found = subnet_groups_.find(m.membership);
  if (found == subnet_groups_.end() || found->second.client != client) {
    return fail(Errc::kInvalidArgument, "not a membership of this program");
  }
  infiniband_.at(found->second.port).leave(m.membership, now);
  subnet_groups_.erase(found);
  return false;
}

void Node::tell_joined(const InfinibandPort::GroupJoined& joined) {
  const auto found = subnet_groups_.find(joined.token);
  if (found == subnet_groups_.end()) return;
  const auto [client, port, request] = found->second;
  if (!joined.group) {
    subnet_groups_.erase(found);
    return tell(client, ipc::encode(request, ipc::refusal(joined.group.error())));
  }
  const wire::McMemberRecord& group = *joined.group;
  tell(client, ipc::encode(request, ipc::MulticastJoined{.membership = joined.token,
                                                         .mgid = group.mgid,
                                                         .mlid = group.mlid,
                                                         .qkey = group.qkey,
                                                         .pkey = group.pkey,
                                                         .mtu = group.mtu,
                                                         .rate = group.rate,
                                                         .service_level = group.service_level,
                                                         .traffic_class = group.traffic_class,
                                                         .hop_limit = group.hop_limit,
                                                         .flow_label = group.flow_label}));
}

void Node::leave_subnet_groups(ClientId client, Time now) {
  for (auto it = subnet_groups_.begin(); it != subnet_groups_.end();) {
    if (it->second.client != client) {
      ++it;
      continue;
    }
    infiniband_.at(it->second.port).leave(it->first, now);
    it = subnet_groups_.erase(it);
  }
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
