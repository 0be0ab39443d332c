#include "umad/node.h"

#include <endian.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace verbena::umad {

using ipc::umad::Reply;
using ipc::umad::UserMad;

namespace {

constexpr const char* kFirmware = "1.0.0";
constexpr const char* kHardware = "0";
constexpr const char* kDeviceType = "Verbena";
// Timeouts are cut to this value.  Programs pass -1, which is a larger number, for "no timeout".
constexpr std::uint32_t kUnlimitedMs = 0x80000000;

// Returns the errno that Linux's ib_umad gives for the error.
Reply refusal(const Error& error) {
  return {.error = error.code == Errc::kNoResources ? ENOMEM : EINVAL, .text = error.context};
}

// Returns the rate of one lane, in units of 0.1 Gbit/s.
unsigned lane_rate(subnet::LinkSpeed speed) {
  switch (speed) {
    case subnet::LinkSpeed::kSdr: return 25;
    case subnet::LinkSpeed::kDdr: return 50;
    case subnet::LinkSpeed::kQdr:
    case subnet::LinkSpeed::kFdr10: return 100;
    case subnet::LinkSpeed::kFdr: return 140;
    case subnet::LinkSpeed::kEdr: return 250;
    case subnet::LinkSpeed::kHdr: return 500;
    case subnet::LinkSpeed::kNdr: return 1000;
    case subnet::LinkSpeed::kXdr: return 2000;
  }
  return 25;
}

unsigned lane_count(subnet::LinkWidth width) {
  switch (width) {
    case subnet::LinkWidth::k1x: return 1;
    case subnet::LinkWidth::k2x: return 2;
    case subnet::LinkWidth::k4x: return 4;
    case subnet::LinkWidth::k8x: return 8;
    case subnet::LinkWidth::k12x: return 12;
  }
  return 1;
}

}  // namespace

std::uint32_t rate_of(subnet::LinkWidth width, subnet::LinkSpeed speed) {
  return lane_count(width) * lane_rate(speed) / 10;
}

Node::Node(subnet::Subnet& subnet, std::uint32_t hca, std::string device)
    : subnet_(subnet),
      hca_(hca),
      device_(std::move(device)),
      ports_(subnet.topology().nodes[hca].ports) {}

ipc::umad::Device Node::describe() const {
  const subnet::Node& hca = subnet_.topology().nodes[hca_];
  ipc::umad::Device device{.name = device_,
                           .node_type = static_cast<std::uint8_t>(hca.type),
                           .firmware = kFirmware,
                           .hardware = kHardware,
                           .type = kDeviceType,
                           .node_guid = hca.node_guid.value,
                           .system_guid = hca.system_guid.value};
  const auto ports = static_cast<std::uint8_t>(ports_.size());
  for (std::uint8_t number = 1; number <= ports; ++number) {
    const subnet::PortStatus status = subnet_.status(ref(number));
    ipc::umad::Port port{.number = number,
                         .lid = status.lid.value,
                         .lmc = status.lmc,
                         .sm_lid = status.sm_lid.value,
                         .sm_sl = status.sm_sl,
                         .state = static_cast<std::uint8_t>(status.state),
                         .physical_state = static_cast<std::uint8_t>(status.physical_state),
                         .rate = rate_of(status.width_active, status.speed_active),
                         .capability_mask = status.capability_mask,
                         .gid_prefix = status.gid_prefix,
                         .guid = hca.port_guid(number).value};
    for (const Pkey pkey : status.pkeys) port.pkeys.push_back(pkey.value);
    device.ports.push_back(std::move(port));
  }
  return device;
}

bool Node::has_port(const std::string& device, std::uint8_t port) const {
  return device == device_ && port >= 1 && port <= ports_.size();
}

Result<void> Node::open(SessionId session, const std::string& device, std::uint8_t port) {
  if (!has_port(device, port)) return fail(Errc::kInvalidArgument, "no such device or port");
  if (sessions_.size() >= kSessionsMax)
    return fail(Errc::kNoResources, "too many open ports of a device");
  sessions_.emplace(session, Session{.port = port});
  return {};
}

void Node::close(SessionId session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  Port& port = this->port(found->second.port);
  for (const mad::AgentNumber agent : found->second.agents) {
    if (agent == mad::AgentNumber{}) continue;
    port.mads.remove_agent(agent);
    port.owners.erase(agent);
  }
  sessions_.erase(found);
  std::erase_if(outputs_, [&](const Output& output) { return output.session == session; });
}

Reply Node::add_agent(SessionId session, const ipc::umad::Register& request) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return {.error = EINVAL, .text = "the port is not open"};
  auto& agents = found->second.agents;
  const auto slot = std::ranges::find(agents, mad::AgentNumber{});
  if (slot == agents.end()) return {.error = ENOMEM, .text = "an open port has at most 32 agents"};
  Port& port = this->port(found->second.port);
  const auto new_agent = port.mads.add_agent({.qpn = Qpn{request.qpn},
                                              .mgmt_class = request.mgmt_class,
                                              .class_version = request.class_version,
                                              .oui = request.oui,
                                              .methods = request.methods,
                                              .rmpp_version = request.rmpp_version,
                                              .rmpp_by_agent = request.rmpp_by_agent});
  if (!new_agent) return refusal(new_agent.error());
  *slot = *new_agent;
  const auto id = static_cast<std::uint32_t>(slot - agents.begin());
  port.owners.emplace(*new_agent, AgentOwner{.session = session, .id = id});
  return {.value = id};
}

Reply Node::remove_agent(SessionId session, const ipc::umad::Unregister& request) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end() || request.agent >= kAgentsPerSession ||
      found->second.agents[request.agent] == mad::AgentNumber{}) {
    return {.error = EINVAL, .text = "no such agent"};
  }
  Port& port = this->port(found->second.port);
  const auto agent = std::exchange(found->second.agents[request.agent], mad::AgentNumber{});
  port.mads.remove_agent(agent);
  port.owners.erase(agent);
  return {};
}

Result<mad::Address> Node::address_of(std::uint8_t port, const subnet::PortStatus& status,
                                      const UserMad& header) {
  mad::Address to{.remote_qpn = Qpn{be32toh(header.qpn_be)}, .pkey_index = header.pkey_index};
  to.path.link_layer = LinkLayer::kInfiniband;
  to.path.destination_lid = Lid{be16toh(header.lid_be)};
  const unsigned path_bits = header.path_bits & ((1U << status.lmc) - 1);
  to.path.source_lid = Lid{static_cast<std::uint16_t>(status.lid.value | path_bits)};
  to.path.service_level = header.sl & 0xf;
  to.path.port.number = port;
  if (header.grh_present == 0) return to;
  if (header.gid_index >= status.guids.size()) {
    return fail(Errc::kInvalidArgument, "no such entry in the GID table");
  }
  to.path.has_grh = true;
  to.path.source = status.gid(header.gid_index);
  to.path.destination.bytes = header.gid;
  to.path.flow_label = be32toh(header.flow_label_be) & 0xfffff;
  to.path.hop_limit = header.hop_limit;
  to.path.traffic_class = header.traffic_class;
  return to;
}

UserMad Node::header_of(std::uint8_t port, const mad::Address& from) const {
  const subnet::PortStatus status = subnet_.status(ref(port));
  UserMad header{.qpn_be = htobe32(from.remote_qpn.value),
                 .lid_be = htobe16(from.path.destination_lid.value),
                 .sl = from.path.service_level,
                 .pkey_index = from.pkey_index};
  header.path_bits =
      static_cast<std::uint8_t>(from.path.source_lid.value & ((1U << status.lmc) - 1));
  if (!from.path.has_grh) return header;
  header.grh_present = 1;
  for (std::size_t i = 0; i < status.guids.size() && i < 256; ++i) {
    if (status.gid(i) == from.path.source) {
      header.gid_index = static_cast<std::uint8_t>(i);
      break;
    }
  }
  header.hop_limit = from.path.hop_limit;
  header.traffic_class = from.path.traffic_class;
  header.gid = from.path.destination.bytes;
  header.flow_label_be = htobe32(from.path.flow_label);
  return header;
}

Reply Node::send(SessionId session, const UserMad& header, std::span<const std::byte> mad,
                 Time now) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end() || header.agent_id >= kAgentsPerSession ||
      found->second.agents[header.agent_id] == mad::AgentNumber{}) {
    return {.error = EINVAL, .text = "no such agent"};
  }
  const std::uint8_t number = found->second.port;
  const subnet::PortStatus status = subnet_.status(ref(number));
  auto to = address_of(number, status, header);
  if (!to) return refusal(to.error());
  if (header.pkey_index >= status.pkeys.size()) {
    return {.error = EINVAL, .text = "no such entry in the P_Key table"};
  }
  const std::uint32_t timeout_ms = std::min(header.timeout_ms, kUnlimitedMs);
  // A report of a timeout has the program's own timeout and retries, so the cookie stores them.
  const std::uint64_t cookie = std::uint64_t{header.timeout_ms} << 32 | header.retries;
  const auto sent = port(number).mads.send(found->second.agents[header.agent_id],
                                           {.to = *std::move(to),
                                            .timeout = std::chrono::milliseconds(timeout_ms),
                                            .retries = header.retries,
                                            .cookie = cookie,
                                            .mad = {mad.begin(), mad.end()}},
                                           now);
  if (!sent) return refusal(sent.error());
  pump(number, now);
  return {};
}

void Node::set_sm_file_open(std::uint8_t number, bool is_open, Time now) {
  Port& port = this->port(number);
  if (!is_open && port.open_sm_files == 0) return;
  port.open_sm_files += is_open ? 1 : -1U;
  subnet_.set_is_sm(ref(number), port.open_sm_files != 0, now);
}

void Node::receive(const subnet::MadDelivery& arrival, Time now) {
  port(arrival.port.port)
      .mads.receive(
          {.destination_qpn = arrival.destination_qpn, .from = arrival.from, .mad = arrival.mad},
          now);
  pump(arrival.port.port, now);
}

void Node::pump(std::uint8_t number, Time now) {
  Port& port = this->port(number);
  while (const auto packet = port.mads.next_packet()) {
    // send_mad() fails only if the subnet manager has removed the P_Key after the check in send().
    // Then the MAD is lost.
    (void)subnet_.send_mad(ref(number), *packet, now);
  }
  while (auto message = port.mads.next_message()) {
    const AgentOwner owner = port.owners.at(message->agent);
    UserMad header = header_of(number, message->from);
    header.agent_id = owner.id;
    header.length = static_cast<std::uint32_t>(ipc::umad::kUserMadBytes + message->mad.size());
    if (message->timed_out) {
      header.status = ETIMEDOUT;
      header.timeout_ms = static_cast<std::uint32_t>(message->cookie >> 32);
      header.retries = static_cast<std::uint32_t>(message->cookie);
    }
    outputs_.push_back(
        {.session = owner.session, .header = header, .mad = std::move(message->mad)});
  }
}

void Node::add_counters(mad::ManagementPort::Counters& sum) const {
  for (const Port& port : ports_) {
    for (const auto& [member, name] : mad::kManagementCounterNames) {
      sum.*member += port.mads.counters().*member;
    }
  }
}

Time Node::deadline() const {
  Time earliest = kNever;
  for (const Port& port : ports_) earliest = std::min(earliest, port.mads.deadline());
  return earliest;
}

void Node::on_timer(Time now) {
  const auto ports = static_cast<std::uint8_t>(ports_.size());
  for (std::uint8_t number = 1; number <= ports; ++number) {
    port(number).mads.on_timer(now);
    pump(number, now);
  }
}

std::optional<Node::Output> Node::next_output() {
  if (outputs_.empty()) return std::nullopt;
  Output output = std::move(outputs_.front());
  outputs_.pop_front();
  return output;
}

}  // namespace verbena::umad
