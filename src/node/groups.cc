// Decides which sockets are members of which multicast groups, and joins groups of InfiniBand
// subnets for programs.  The kernel, or the fabric of virtual hosts, copies the packets.  The
// programs' multicast packets do not pass through the node.

#include <algorithm>
#include <utility>

#include "node/node.h"
#include "wire/ip.h"

namespace verbena::node {

bool Node::Interfaces::set(std::uint32_t interface, bool is_member) {
  if (interface == 0) return std::exchange(all_interfaces, is_member) != is_member;
  return is_member ? indexes.insert(interface).second : indexes.erase(interface) != 0;
}

std::size_t Node::count_groups_of(ClientId client) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      groups_, [&](const auto& entry) { return has_range(client, entry.first.first); }));
}

// On InfiniBand, the interfaces are the ports, which need no address for a group.
void Node::add_all_interfaces(const Gid& group, std::set<std::uint32_t>& interfaces) const {
  for (const auto& [port, ignored] : infiniband_) interfaces.insert(port.number);
  if (!infiniband_.empty()) return;
  for (const ipc::GidEntry& entry : ports_.gids()) {
    if (wire::is_ipv4(entry.gid) == wire::is_ipv4(group)) interfaces.insert(entry.interface);
  }
}

// Reports to the owner on which interfaces the sockets of the range must be members of the group.
void Node::output_membership(const GroupOfRange& group_of_range, std::uint64_t token) {
  const auto& [range, group] = group_of_range;
  std::set<std::uint32_t> interfaces;
  if (const auto found = groups_.find(group_of_range); found != groups_.end()) {
    interfaces = found->second.indexes;
    if (found->second.all_interfaces) add_all_interfaces(group, interfaces);
  }
  outputs_.emplace_back(Membership{.token = token,
                                   .range = range,
                                   .group = group,
                                   .interfaces = {interfaces.begin(), interfaces.end()}});
}

void Node::drop_membership(const GroupOfRange& group_of_range, std::uint32_t interface) {
  const auto found = groups_.find(group_of_range);
  if (found == groups_.end() || !found->second.set(interface, false)) return;
  if (found->second.empty()) groups_.erase(found);
  output_membership(group_of_range);
}

void Node::leave_groups(std::uint16_t range) {
  const auto first = groups_.lower_bound({range, Gid{}});
  auto last = first;
  std::vector<GroupOfRange> groups;
  for (; last != groups_.end() && last->first.first == range; ++last) groups.push_back(last->first);
  groups_.erase(first, last);
  for (const GroupOfRange& group_of_range : groups) output_membership(group_of_range);
}

Result<bool> Node::on(ClientId client, std::uint64_t request, const ipc::JoinGroup& m, Time) {
  if (!has_range(client, m.range)) {
    return fail(Errc::kInvalidArgument, "not a range of this program");
  }
  if (!wire::is_multicast(m.group)) {
    return fail(Errc::kInvalidArgument, "not the address of a multicast group");
  }
  const GroupOfRange group_of_range{m.range, m.group};
  if (!groups_.contains(group_of_range) &&
      count_groups_of(client) >= config_.groups_per_client_max) {
    ++joins_over_client_limit_;
    return fail(Errc::kNoResources,
                "the limit of multicast groups (groups_per_client_max) is reached");
  }
  const bool is_new = groups_[group_of_range].set(m.interface, true);
  const std::uint64_t token = next_token_++;
  join_requests_[token] = {client, request, group_of_range, m.interface, is_new};
  output_membership(group_of_range, token);
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
  const auto group_count = std::ranges::count_if(
      subnet_groups_, [&](const auto& entry) { return entry.second.client == client; });
  if (static_cast<std::size_t>(group_count) >= config_.groups_per_client_max) {
    ++joins_over_client_limit_;
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

void Node::report_joined(const InfinibandPort::GroupJoined& joined) {
  const auto found = subnet_groups_.find(joined.token);
  if (found == subnet_groups_.end()) return;
  const auto [client, port, request] = found->second;
  if (!joined.group) {
    subnet_groups_.erase(found);
    return send_to(client, ipc::encode(request, ipc::refusal(joined.group.error())));
  }
  const wire::McMemberRecord& group = *joined.group;
  send_to(client, ipc::encode(request, ipc::MulticastJoined{.membership = joined.token,
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

void Node::on_membership(std::uint64_t token, const Result<void>& result) {
  const auto pending = join_requests_.extract(token);
  if (!pending) return;
  const JoinRequest& join = pending.mapped();
  if (!result) {
    if (result.error().code == Errc::kNoResources) ++joins_over_host_limit_;
    if (join.is_new) drop_membership(join.group_of_range, join.interface);
  }
  send_to(join.client,
          ipc::encode(join.request, result ? ipc::Done{} : ipc::refusal(result.error())));
}

}  // namespace verbena::node
