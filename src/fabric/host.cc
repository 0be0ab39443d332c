#include "fabric/host.h"

#include <algorithm>
#include <utility>

#include "fabric/network.h"
#include "ipc/counters.h"
#include "ipc/lane_messages.h"
#include "link/framing.h"
#include "wire/bth.h"
#include "wire/ip.h"

namespace verbena::fabric {
namespace {

constexpr const char* kBuild = "simulated";
constexpr std::uint64_t kGuidBase = 0x0200'0000'0000'0000;
constexpr std::uint16_t kRangeLast = 0xffe;  // ranges 0 and 0xfff are never leased

std::uint16_t range_of(Qpn qpn) { return static_cast<std::uint16_t>(qpn.value >> 12); }

}  // namespace

// ---- a process ----------------------------------------------------------------------------------

SimProcess::SimProcess(Host& host, Id id, std::string name, Random random)
    : host_(host),
      id_(id),
      name_(std::move(name)),
      process_({.build = kBuild,
                .pid = static_cast<std::uint32_t>(1000 + id),
                .lanes = host.network().config.lanes},
               random) {}

Time SimProcess::now() const { return host_.network().now(); }

void SimProcess::report_violation(const std::string& what) {
  host_.network().report_violation(name_, what);
}

void SimProcess::note(const rdmacm::Event& event) {
  host_.network().diagram.note(now(), name_ + ": " + rdmacm::to_string(event.kind));
}

Completion<ipc::Done> SimProcess::completion_for(const char* what) {
  return [this, what](Result<ipc::Done> result) {
    if (!result) add_failed_call(what, result.error());
  };
}

// ---- a host -------------------------------------------------------------------------------------

Host::Host(Network& network, const Config& config, Random random)
    : network_(network),
      config_(config),
      random_(random),
      loopback_(random_.fork(), network.config.loopback),
      guid_{kGuidBase + network.hosts().size() + 1} {
  start_agent();
}

void Host::start_agent() {
  VB_CHECK(!node_);
  node_.emplace(node::Node::Config{.node_guid = guid_, .devices = config_.devices, .build = kBuild},
                random_.fork());
  node_->on_addresses(config_.addresses, network_.now());
  node_->set_port(std::nullopt, network_.now());
  pump_node();
}

std::optional<PortId> Host::port_of(const Gid& gid) const {
  const auto found = std::ranges::find(config_.addresses, gid, &node::HostAddress::gid);
  return found == config_.addresses.end() ? std::nullopt : std::optional(found->port);
}

void Host::set_port_state(PortId port, const node::PortState& state) {
  VB_CHECK(node_->set_port_state(port, state, network_.now()).has_value());
  pump_node();
}

std::uint64_t Host::node_counter(std::string_view counter) const {
  const auto all = node_->counters();
  const auto found = std::ranges::find(all, counter, &ipc::NamedCount::name);
  VB_CHECK(found != all.end());
  return found->value;
}

// ---- programs -----------------------------------------------------------------------------------

SimProcess& Host::add_process(const std::string& name) {
  const SimProcess::Id id = next_process_++;
  auto& sim_process = sim_processes_[id];
  sim_process = std::make_unique<SimProcess>(*this, id, name, random_.fork());
  sessions_[id];
  return *sim_process;
}

void Host::send_hello(SimProcess& sim_process) {
  sim_process.track("hello", sim_process.process().hello([this, id = sim_process.id()](
                                                             const Result<ipc::Welcome>& welcome) {
    if (welcome) sim_processes_.at(id)->program()->start();
  }));
  pump(sim_process);
}

void Host::connect_to_agent(SimProcess& sim_process) {
  sessions_[sim_process.id()];
  send_hello(sim_process);
}

// Simulates the end of a process's sockets: its ranges get no more packets.
void Host::close_sockets(SimProcess::Id id) {
  std::erase_if(process_of_range_, [id](const auto& entry) { return entry.second == id; });
}

void Host::kill(SimProcess::Id id) {
  if (sim_processes_.erase(id) == 0) return;
  close_sockets(id);
  if (!sessions_.contains(id)) return;
  // Before the agent reads the end of file, it reads all messages that the program has sent.
  Session& session = sessions_.at(id);
  session.last_arrival_at_agent =
      std::max(session.last_arrival_at_agent, network_.now() + ipc_delay());
  network_.world.at(session.last_arrival_at_agent, [this, id] {
    const auto ended_session = sessions_.extract(id);
    if (!node_ || !ended_session || !ended_session.mapped().client) return;
    process_of_client_.erase(*ended_session.mapped().client);
    node_->remove_program(*ended_session.mapped().client, network_.now());
    pump_node();
  });
}

void Host::pump(SimProcess& sim_process) {
  process::Process& process = sim_process.process();
  const Time now = network_.now();
  bool has_work = true;
  while (has_work) {
    has_work = false;
    bool has_packets = true;
    while (has_packets) {
      has_packets = process.transmit(network_.burst(), now);
      network_.send(*this, sim_process.name(), network_.burst());
    }
    while (auto out = process.poll_message()) {
      ++sim_process.traffic.requests;
      send_to_agent(sim_process.id(), std::move(out->message));
    }
    while (const auto notice = process.poll_notice()) {
      sim_process.program()->on_notice(*notice);
      has_work = true;
    }
    has_work = has_work || process.engine().has_work();
  }
  pump_lanes(sim_process);
  const Time deadline = process.deadline();
  if (deadline >= sim_process.timer_deadline) return;
  sim_process.timer_deadline = deadline;
  network_.world.at(deadline, [this, id = sim_process.id(), deadline] {
    const auto found = sim_processes_.find(id);
    if (found == sim_processes_.end() || found->second->timer_deadline != deadline) return;
    SimProcess& due_process = *found->second;
    due_process.timer_deadline = kNever;
    if (due_process.process().deadline() <= network_.now())
      due_process.process().on_timer(network_.now());
    pump(due_process);
  });
}

// Wakes the programs at the other ends of lanes.  Wakes this program too if a lane has packets for
// it.
void Host::pump_lanes(SimProcess& sim_process) {
  process::LaneManager& lanes = sim_process.process().lanes();
  while (const auto lane = lanes.poll_wake()) {
    for (const auto& [id, other] : sim_processes_) {
      if (id != sim_process.id() && other->lanes.contains(*lane)) schedule_lane_receive(id);
    }
  }
  while (const auto lane = lanes.poll_closed()) sim_process.lanes.erase(*lane);
  if (!lanes.park()) schedule_lane_receive(sim_process.id());
}

// Lets a program receive the packets in its lanes after a short delay.
void Host::schedule_lane_receive(SimProcess::Id id) {
  SimProcess& sim_process = *sim_processes_.at(id);
  if (std::exchange(sim_process.lane_receive_is_scheduled, true)) return;
  network_.world.after(ipc_delay(), [this, id] {
    const auto found = sim_processes_.find(id);
    if (found == sim_processes_.end()) return;
    SimProcess& receiver = *found->second;
    receiver.lane_receive_is_scheduled = false;
    receiver.process().lanes().unpark();
    (void)receiver.process().receive_lanes(network_.now());
    pump(receiver);
  });
}

// ---- messages between programs and the agent ----------------------------------------------------

Duration Host::ipc_delay() {
  const auto spread = (network_.config.ipc_max - network_.config.ipc_min).count();
  return network_.config.ipc_min + Duration(static_cast<Duration::rep>(
                                       random_.below(static_cast<std::uint64_t>(spread) + 1)));
}

void Host::send_to_agent(SimProcess::Id id, ipc::Bytes message) {
  const auto session = sessions_.find(id);
  if (session == sessions_.end()) return;  // the agent is dead
  Time& last_arrival = session->second.last_arrival_at_agent;
  last_arrival = std::max(last_arrival, network_.now() + ipc_delay());
  network_.world.at(last_arrival,
                    [this, id, bytes = std::move(message)] { receive_at_agent(id, bytes); });
}

void Host::send_to_program(SimProcess::Id id, ipc::Bytes message, LaneMemory lane) {
  const auto session = sessions_.find(id);
  if (session == sessions_.end()) return;
  Time& last_arrival = session->second.last_arrival_at_program;
  last_arrival = std::max(last_arrival, network_.now() + ipc_delay());
  network_.world.at(last_arrival, [this, id, bytes = std::move(message), memory = std::move(lane)] {
    receive_at_program(id, bytes, memory);
  });
}

// Simulates agent::Agent, which answers a Hello itself, passes requests for the node to the node,
// and confirms all other requests.
void Host::receive_at_agent(SimProcess::Id id, const ipc::Bytes& message) {
  const auto session = sessions_.find(id);
  if (!node_ || session == sessions_.end()) return;
  const auto envelope = ipc::open(message);
  if (!envelope) return network_.report_violation(name(), "a malformed request");
  if (envelope->type == ipc::Type::kHello) {
    session->second.client = node_->add_program(network_.now(), {.lanes = network_.config.lanes});
    process_of_client_[*session->second.client] = id;
    send_to_program(id, ipc::encode(envelope->request, node_->welcome()));
  } else if (session->second.client && ipc::is_for_node(envelope->type)) {
    node_->on_message(*session->second.client, message, network_.now());
    pump_node();
  } else {
    send_to_program(id, ipc::encode(envelope->request, ipc::Done{}));
  }
}

void Host::receive_at_program(SimProcess::Id id, const ipc::Bytes& message,
                              const LaneMemory& lane) {
  const auto found = sim_processes_.find(id);
  if (found == sim_processes_.end()) return;
  SimProcess& sim_process = *found->second;
  const auto envelope = ipc::open(message);
  if (envelope && envelope->request == 0) ++sim_process.traffic.events;
  if (envelope && envelope->request != 0) ++sim_process.traffic.replies;
  // A real agent passes the sockets of the range with the message Leased.  From then on the program
  // receives the packets of the range.
  if (envelope && envelope->type == ipc::Type::kLeased) {
    if (const auto leased = ipc::decode<ipc::Leased>(*envelope))
      process_of_range_[leased->range] = id;
  }
  if (envelope && envelope->type == ipc::Type::kLane && lane) {
    if (const auto message_lane = ipc::decode<ipc::Lane>(*envelope)) {
      sim_process.lanes[message_lane->lane] = lane;
      sim_process.process().lanes().set_lane_memory(message_lane->lane, lane->bytes);
    }
  }
  if (const auto result = sim_process.process().on_message(message, network_.now()); !result) {
    sim_process.report_violation(std::string("malformed message from the agent: ") +
                                 result.error().context);
  }
  pump(sim_process);
}

// ---- the agent ----------------------------------------------------------------------------------

void Host::kill_agent() {
  node_.reset();
  node_timer_deadline_ = kNever;
  used_ranges_.clear();  // the agent's port closes with it, which frees all ranges
  members_.clear();
  process_of_client_.clear();
  for (auto& [id, session] : std::exchange(sessions_, {})) {
    const Time notice_time =
        std::max(session.last_arrival_at_program, network_.now() + ipc_delay());
    network_.world.at(notice_time, [this, id = id] {
      const auto found = sim_processes_.find(id);
      if (found == sim_processes_.end()) return;
      close_sockets(id);
      found->second->process().on_agent_died(network_.now());
      pump(*found->second);
    });
  }
}

void Host::pump_node() {
  bool has_packets = true;
  while (has_packets) {
    has_packets = node_->transmit(network_.burst(), network_.now());
    network_.send(*this, name(), network_.burst());
  }
  while (auto output = node_->poll()) {
    std::visit([this](const auto& out) { carry_out(out); }, *output);
  }
  const Time deadline = node_->deadline();
  if (deadline >= node_timer_deadline_) return;
  node_timer_deadline_ = deadline;
  network_.world.at(deadline, [this, deadline] {
    if (!node_ || node_timer_deadline_ != deadline) return;
    node_timer_deadline_ = kNever;
    node_->on_timer(network_.now());
    pump_node();
  });
}

void Host::carry_out(const node::Node::ToClient& out) {
  const auto sim_process = process_of_client_.find(out.client);
  if (sim_process == process_of_client_.end()) return;
  send_to_program(sim_process->second, out.message,
                  out.lane ? lane_memory_.at(*out.lane) : LaneMemory());
}

void Host::carry_out(const node::Node::LaneMemoryRequest& out) {
  lane_memory_[out.lane] = std::make_shared<LanePages>();
  node_->on_lane_memory(out.lane, {});
}

void Host::carry_out(const node::Node::LeaseRequest& out) {
  network_.world.after(ipc_delay(), [this, out] {
    if (node_) lease_range(out);
  });
}

void Host::lease_range(const node::Node::LeaseRequest& request) {
  std::uint16_t range = 0;
  do {
    range = static_cast<std::uint16_t>(1 + random_.below(kRangeLast));
  } while (used_ranges_.contains(range) ||
           std::ranges::find(request.avoid, range) != request.avoid.end());
  used_ranges_.insert(range);
  node_->on_lease(request.token, range, network_.now());
  pump_node();
}

void Host::carry_out(const node::Node::Membership& out) {
  if (out.interfaces.empty()) {
    members_[out.group].erase(out.range);
    if (members_[out.group].empty()) members_.erase(out.group);
  } else {
    members_[out.group].insert(out.range);
  }
  node_->on_membership(out.token, {});
}

void Host::carry_out(const node::Node::RangeReleased& out) {
  if (used_ranges_.erase(out.range) == 0)
    network_.report_violation(name(), "the node has freed a range that was not leased");
}

void Host::carry_out(const node::Node::RouteRequest& out) {
  network_.world.after(ipc_delay(), [this, out] {
    if (!node_) return;
    node_->on_route(out.token, route(out), network_.now());
    pump_node();
  });
}

// Simulates the kernel's routing table.  Packets to an address of the host use loopback.  Other
// packets use an interface that has an address of the same IP version.
Result<node::HostRoute> Host::route(const node::Node::RouteRequest& request) const {
  const auto* const own_addresses = &config_.addresses;
  const auto self = std::ranges::find(*own_addresses, request.destination, &node::HostAddress::gid);
  if (self != own_addresses->end()) {
    return node::HostRoute{.source = self->gid,
                           .interface = self->interface,
                           .mtu_bytes = self->mtu_bytes,
                           .loopback = true};
  }
  // The address that shares the most leading bytes with the destination is on the network of the
  // destination.
  const auto common_bytes = [&](const node::HostAddress& candidate) {
    return std::ranges::mismatch(candidate.gid.bytes, request.destination.bytes).in1 -
           candidate.gid.bytes.begin();
  };
  const node::HostAddress* best = nullptr;
  for (const node::HostAddress& candidate : *own_addresses) {
    const bool is_usable = !candidate.loopback &&
                           (!request.source || *request.source == candidate.gid) &&
                           wire::is_ipv4(candidate.gid) == wire::is_ipv4(request.destination);
    if (is_usable && (best == nullptr || common_bytes(candidate) > common_bytes(*best)))
      best = &candidate;
  }
  if (best == nullptr) return fail(Errc::kAddressNotFound, "no route");
  return node::HostRoute{
      .source = best->gid, .interface = best->interface, .mtu_bytes = best->mtu_bytes};
}

// ---- the port -----------------------------------------------------------------------------------

SimProcess* Host::process_of(std::uint16_t range) {
  const auto owner = process_of_range_.find(range);
  if (owner == process_of_range_.end()) return nullptr;
  return sim_processes_.at(owner->second).get();
}

std::string Host::receiver_name(Qpn qpn) const {
  if (qpn == wire::kMulticastQpn) return name() + " (members)";
  if (range_of(qpn) == 0) return name();
  const auto owner = process_of_range_.find(range_of(qpn));
  return owner == process_of_range_.end() ? name() + " (no receiver)"
                                          : sim_processes_.at(owner->second)->name();
}

void Host::receive(const link::Address& address, std::span<const std::byte> datagram) {
  const auto range = range_of(wire::decode_exact<wire::Bth>(datagram.first<12>()).destination_qpn);
  const bool is_for_node = range == 0 && node_;
  std::vector<SimProcess*> sim_processes;
  if (const auto group = members_.find(address.destination); group != members_.end()) {
    for (const std::uint16_t member : group->second) sim_processes.push_back(process_of(member));
  } else if (!is_for_node) {
    sim_processes.push_back(process_of(range));
  }
  std::erase(sim_processes, nullptr);
  if (!is_for_node && sim_processes.empty()) {
    ++counters_.without_receiver;
    return;
  }
  const auto arrival = link::open(address, datagram);
  if (!arrival) {
    ++counters_.wrong_icrc;
    return;
  }
  for (SimProcess* sim_process : sim_processes) receive(*sim_process, *arrival);
  if (!is_for_node) return;
  ++counters_.to_node;
  node_->receive(*arrival, network_.now());
  pump_node();
}

void Host::receive(SimProcess& sim_process, const link::Arrival& arrival) {
  ++counters_.to_programs;
  sim_process.process().receive(arrival, network_.now());
  pump(sim_process);
}

}  // namespace verbena::fabric
