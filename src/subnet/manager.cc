#include "subnet/manager.h"

#include <algorithm>
#include <utility>

#include "subnet/device.h"
#include "wire/infiniband.h"
#include "wire/notice.h"

namespace verbena::subnet {
namespace {

using wire::Method;
using wire::PortState;
using wire::Smp;
using wire::SmpAttribute;

constexpr std::uint8_t kSubnetTimeoutCode = 18;
constexpr std::size_t kOwnNode = 0;

mad::SendMad directed_mad(const Smp& smp) {
  return {.to = {.path = {.link_layer = LinkLayer::kInfiniband,
                          .source_lid = wire::kPermissiveLid,
                          .destination_lid = wire::kPermissiveLid},
                 .remote_qpn = wire::kSmiQpn},
          .mad = wire::encode(smp)};
}

}  // namespace

void Manager::begin_sweep(Time now) {
  has_started_ = true;
  needs_sweep_ = false;
  ++sweeps_;
  next_sweep_ = now + config_.sweep_interval;
  queued_.clear();
  pending_.clear();
  fabric_.clear();
  phase_ = Phase::kDiscover;
  // The first request goes to the manager's own node, by a path without hops.
  queue_request({.smp = {.header = {.method = Method::kGet,
                                    .attribute_id = std::to_underlying(SmpAttribute::kNodeInfo)}}});
}

void Manager::end_phase(Time now) {
  switch (phase_) {
    case Phase::kIdle: return;
    case Phase::kDiscover: return begin_phase(Phase::kConfigure);
    case Phase::kConfigure: return begin_phase(Phase::kRoute);
    case Phase::kRoute: return begin_phase(Phase::kArm);
    case Phase::kArm: return begin_phase(Phase::kActivate);
    case Phase::kActivate:
      phase_ = Phase::kIdle;
      if (needs_sweep_) begin_sweep(now);
  }
}

void Manager::begin_phase(Phase phase) {
  phase_ = phase;
  switch (phase) {
    case Phase::kConfigure: return configure();
    case Phase::kRoute: return route();
    case Phase::kArm: return change_states(PortState::kInit, PortState::kArmed);
    case Phase::kActivate: return change_states(PortState::kArmed, PortState::kActive);
    case Phase::kIdle:
    case Phase::kDiscover: return;
  }
}

// Ends a sweep that has failed, because a node did not respond or has refused a request.  The next
// sweep begins after response_timeout, or at the next trap.
void Manager::give_up(Time now) {
  queued_.clear();
  pending_.clear();
  phase_ = Phase::kIdle;
  needs_sweep_ = true;
  next_sweep_ = now + config_.response_timeout;
}

void Manager::request_attribute(std::size_t node, Method method, SmpAttribute attribute,
                                std::uint32_t modifier, std::uint8_t port,
                                const wire::SmpData& data) {
  Request request{.smp = {.header = {.method = method,
                                     .attribute_id = std::to_underlying(attribute),
                                     .attribute_modifier = modifier},
                          .data = data},
                  .node = node,
                  .port = port};
  const auto& path = fabric_[node].path;
  request.smp.set_hop_count(static_cast<std::uint8_t>(path.size()));
  for (std::size_t i = 0; i < path.size(); ++i) {
    request.smp.initial_path[i + 1] = static_cast<std::byte>(path[i]);
  }
  queue_request(std::move(request));
}

// Requests the NodeInfo of the node at the other end of a port's link.
void Manager::probe(std::size_t node, std::uint8_t port) {
  if (fabric_[node].path.size() >= wire::kSmpHopsMax) return;
  request_attribute(node, Method::kGet, SmpAttribute::kNodeInfo, 0, port);
  wire::Smp& smp = queued_.back().smp;
  smp.set_hop_count(static_cast<std::uint8_t>(smp.hop_count() + 1));
  smp.initial_path[smp.hop_count()] = static_cast<std::byte>(port);
}

void Manager::queue_request(Request request) {
  request.smp.header.mgmt_class = wire::MgmtClass::kSubnetManagementDirected;
  request.smp.header.class_version = 1;
  request.smp.dr_source = request.smp.dr_destination = wire::kPermissiveLid;
  queued_.push_back(std::move(request));
}

void Manager::send(std::uint64_t transaction_id, Request& request, Time now) {
  ++request.tries;
  request.deadline = now + config_.response_timeout;
  request.smp.header.transaction_id = transaction_id;
  sends_.push_back(directed_mad(request.smp));
}

void Manager::send_queued(Time now) {
  while (!queued_.empty() && pending_.size() < config_.requests_max) {
    const std::uint64_t id = next_transaction_id_++;
    const auto [entry, is_new] = pending_.emplace(id, std::move(queued_.front()));
    queued_.pop_front();
    send(id, entry->second, now);
  }
}

std::optional<mad::SendMad> Manager::next_send() {
  if (sends_.empty()) return std::nullopt;
  mad::SendMad mad = std::move(sends_.front());
  sends_.pop_front();
  return mad;
}

Time Manager::next_deadline() const {
  if (!has_started_) return Time{};
  if (phase_ == Phase::kIdle) return next_sweep_;
  Time deadline = kNever;
  for (const auto& [id, request] : pending_) deadline = std::min(deadline, request.deadline);
  return deadline;
}

void Manager::advance(Time now) {
  if (!has_started_ || (phase_ == Phase::kIdle && now >= next_sweep_)) begin_sweep(now);
  for (auto& [id, request] : pending_) {
    if (request.deadline > now) continue;
    if (request.tries >= config_.tries) return give_up(now);
    send(id, request, now);
  }
  send_queued(now);
}

void Manager::receive(const mad::Address& from, const mad::Mad& mad, Time now) {
  const Smp smp = wire::decode_exact<Smp>(mad);
  if (!smp.header.response && smp.header.method == Method::kTrap) {
    receive_trap(from, smp);
    if (phase_ == Phase::kIdle && needs_sweep_) begin_sweep(now);
  } else if (smp.header.response) {
    const auto found = pending_.find(smp.header.transaction_id);
    if (found == pending_.end()) return;
    const Request request = std::move(found->second);
    pending_.erase(found);
    if ((smp.header.status & ~wire::kSmpReturning) != 0) return give_up(now);
    receive_answer(request, smp);
  }
  while (queued_.empty() && pending_.empty() && phase_ != Phase::kIdle) end_phase(now);
  send_queued(now);
}

void Manager::receive_trap(const mad::Address& from, Smp smp) {
  const auto notice = wire::from_smp_data<wire::Notice>(smp.data);
  if (notice.trap_number == wire::TrapNumber::kLinkStateChange ||
      notice.trap_number == wire::TrapNumber::kLocalChange) {
    needs_sweep_ = true;
  }
  smp.header.method = Method::kTrapRepress;
  sends_.push_back({.to = from, .mad = wire::encode(smp)});
}

void Manager::receive_answer(const Request& request, const Smp& answer) {
  switch (SmpAttribute{answer.header.attribute_id}) {
    case SmpAttribute::kNodeInfo:
      return receive_node_info(request, wire::from_smp_data<wire::NodeInfo>(answer.data));
    case SmpAttribute::kPortInfo:
      return receive_port_info(request, wire::from_smp_data<wire::PortInfo>(answer.data));
    default: return;
  }
}

void Manager::receive_node_info(const Request& request, const wire::NodeInfo& info) {
  const bool is_own = fabric_.size() == 0;
  std::vector<std::uint8_t> path;
  if (!is_own) {
    path = fabric_[request.node].path;
    path.push_back(request.port);
  }
  const auto [node, is_new] = fabric_.add(info, path);
  if (!is_own) fabric_.connect(request.node, request.port, node, info.local_port_num);
  if (!is_new) return;
  if (!fabric_[node].is_switch) {
    return request_attribute(node, Method::kGet, SmpAttribute::kPortInfo, info.local_port_num,
                             info.local_port_num);
  }
  for (unsigned port = 0; port <= info.num_ports; ++port) {
    request_attribute(node, Method::kGet, SmpAttribute::kPortInfo, port,
                      static_cast<std::uint8_t>(port));
  }
}

void Manager::receive_port_info(const Request& request, const wire::PortInfo& info) {
  ManagedFabric::Port& port = fabric_[request.node].ports[request.port];
  port.info = info;
  const bool has_link = request.port != 0 && info.port_state != PortState::kDown;
  if (phase_ == Phase::kDiscover && has_link && !port.neighbor) probe(request.node, request.port);
}

Lid Manager::lid_for(Guid port_guid) {
  const auto next_lid = static_cast<std::uint16_t>(lids_.size() + 1);
  return lids_.emplace(port_guid.value, Lid{next_lid}).first->second;
}

void Manager::configure() {
  for (std::size_t i = 0; i < fabric_.size(); ++i) {
    fabric_[i].lid = lid_for(fabric_[i].port_guid);
  }
  const Lid own_lid = fabric_[kOwnNode].lid;
  for (std::size_t i = 0; i < fabric_.size(); ++i) {
    const ManagedFabric::Node& node = fabric_[i];
    for (const auto& [number, port] : node.ports) {
      if (!port.neighbor && number != 0) continue;
      wire::PortInfo info = port.info;
      info.port_state = PortState::kNop;
      info.port_physical_state = wire::PortPhysicalState::kNop;
      if (number == node.own_port) {
        info.lid = node.lid;
        info.lmc = 0;
        info.master_sm_lid = own_lid;
        info.gid_prefix = kDefaultGidPrefix;
        info.subnet_timeout = kSubnetTimeoutCode;
      }
      if (port.neighbor) {
        const auto& other = fabric_[port.neighbor->node].ports[port.neighbor->port].info;
        info.neighbor_mtu = std::min(info.mtu_cap, other.mtu_cap);
        info.operational_vls = std::min(info.vl_cap, other.vl_cap);
      }
      request_attribute(i, Method::kSet, SmpAttribute::kPortInfo, number, number,
                        wire::smp_data(info));
    }
  }
}

void Manager::route() {
  fabric_.count_hops();
  for (std::size_t i = 0; i < fabric_.size(); ++i) {
    if (!fabric_[i].is_switch) continue;
    std::vector<std::uint8_t> table = fabric_.forwarding_table(i);
    const auto top = static_cast<std::uint16_t>(table.size() - 1);
    request_attribute(
        i, Method::kSet, SmpAttribute::kSwitchInfo, 0, 0,
        wire::smp_data(wire::SwitchInfo{.linear_fdb_top = top, .port_state_change = true}));
    const std::size_t blocks =
        (table.size() + wire::kLftPortsPerBlock - 1) / wire::kLftPortsPerBlock;
    table.resize(blocks * wire::kLftPortsPerBlock, wire::kLftNoPort);
    for (std::size_t block = 0; block < blocks; ++block) {
      wire::LftBlock ports;
      std::copy_n(table.begin() + static_cast<std::ptrdiff_t>(block * ports.size()), ports.size(),
                  ports.begin());
      request_attribute(i, Method::kSet, SmpAttribute::kLinearForwardingTable,
                        static_cast<std::uint32_t>(block), 0, wire::encode_lft(ports));
    }
  }
}

// Changes the ports that have a known neighbor from one state to the next.
void Manager::change_states(PortState from, PortState to) {
  for (std::size_t i = 0; i < fabric_.size(); ++i) {
    for (const auto& [number, port] : fabric_[i].ports) {
      if (number == 0 || !port.neighbor || port.info.port_state != from) continue;
      wire::PortInfo info = port.info;
      info.port_state = to;
      info.port_physical_state = wire::PortPhysicalState::kNop;
      request_attribute(i, Method::kSet, SmpAttribute::kPortInfo, number, number,
                        wire::smp_data(info));
    }
  }
}

}  // namespace verbena::subnet
