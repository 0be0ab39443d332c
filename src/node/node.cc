#include "node/node.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "ipc/tool_messages.h"

namespace verbena::node {
namespace {

std::vector<DeviceConfig> devices_of(const Node::Config& config) {
  if (!config.devices.empty()) return config.devices;
  return {DeviceConfig{.guid = config.node_guid}};
}

}  // namespace

Node::Node(const Config& config, Random random)
    : config_(config),
      qp1_(random.fork()),
      rdmacm_({.cm = {.ca_guid = config.node_guid, .trace = config.trace},
               .ids_per_user_max = config.ids_per_user_max},
              random.fork()),
      ports_(devices_of(config)) {
  const std::vector<DeviceConfig> devices = devices_of(config);
  for (std::size_t device = 0; device < devices.size(); ++device) {
    std::uint8_t number = 0;
    for (const PortConfig& port : devices[device].ports) {
      const PortId id{static_cast<std::uint8_t>(device), ++number};
      if (port.link_layer != LinkLayer::kInfiniband) continue;
      infiniband_.try_emplace(id, id, config.sa, random.fork());
    }
  }
  apply_ports(Time{});
}

// ---- the host -----------------------------------------------------------------------------------

void Node::on_addresses(const std::vector<HostAddress>& addresses, Time now) {
  ports_.set_addresses(addresses);
  apply_ports(now);
  for (auto& [id, port] : infiniband_) {
    std::vector<ipoib::OwnAddress> own_addresses;
    for (const HostAddress& address : addresses) {
      if (address.port == id) own_addresses.push_back({address.gid, address.prefix_bits});
    }
    port.set_addresses(std::move(own_addresses), now);
  }
  report_devices();
  for (const auto& [group_of_range, interfaces] : groups_) {
    if (interfaces.all_interfaces) output_membership(group_of_range);
  }
  run(now);
}

void Node::set_port(std::optional<std::string> down_reason, Time /*now*/, const ipc::Reach& reach) {
  ports_.set_reach(reach);
  ports_.set_all_down_reason(std::move(down_reason));
  report_devices();
}

Result<void> Node::set_port_state(PortId port, const PortState& state, Time now) {
  VB_TRY_VOID(ports_.set_state(port, state));
  apply_ports(now);
  report_devices();
  if (const auto found = infiniband_.find(port); found != infiniband_.end()) {
    found->second.set_state(state, now);
    run(now);
  }
  return {};
}

// Passes the addresses and P_Keys of the ports to the RDMA CM, and the P_Keys to QP1.
void Node::apply_ports(Time now) {
  rdmacm_.on_interfaces(ports_.interfaces(), now);
  ports_.for_each_pkey_table([this](PortId port, const std::vector<Pkey>& pkeys) {
    rdmacm_.set_pkeys(port, pkeys);
    qp1_.set_pkeys(port, pkeys);
  });
}

ipc::Welcome Node::welcome() const {
  return {.agent_pid = config_.pid, .build = config_.build, .devices = devices()};
}

void Node::report_devices() {
  const std::vector<ipc::Device> devices = this->devices();
  for (const auto& [client, state] : clients_) {
    send_to(client, ipc::encode(0, ipc::DevicesChanged{devices}));
  }
}

// ---- programs -----------------------------------------------------------------------------------

ClientId Node::add_program(Time /*now*/, const Program& program) {
  const ClientId client = next_client_++;
  clients_[client].program = program;
  if (program.user != config_.own_user) rdmacm_.set_user(client, program.user);
  return client;
}

void Node::remove_program(ClientId client, Time now) {
  const auto removed = clients_.extract(client);
  if (!removed) return;
  for (const std::uint16_t range : removed.mapped().ranges) {
    leave_groups(range);
    quiescing_.push_back({now + config_.range_quiesce_time, range, client});
  }
  std::erase_if(leases_waiting_, [&](const auto& entry) { return entry.client == client; });
  std::erase_if(lease_requests_, [&](const auto& entry) { return entry.second.client == client; });
  std::erase_if(join_requests_, [&](const auto& entry) { return entry.second.client == client; });
  close_lanes(client);
  leave_subnet_groups(client, now);
  services_.remove_client(client, now);
  rdmacm_.remove_client(client, now);
  run(now);
  std::erase_if(outputs_, [&](const Output& output) {
    const auto* message = std::get_if<ToClient>(&output);
    return message != nullptr && message->client == client;
  });
}

bool Node::flush_disconnects(Time now) {
  const bool has_sent = rdmacm_.flush_disconnects(now);
  run(now);
  return has_sent;
}

void Node::on_lease(std::uint64_t token, const Result<std::uint16_t>& range, Time now) {
  const auto pending = lease_requests_.extract(token);
  if (!pending) {  // the program has died in the meantime
    if (range) quiescing_.push_back({now + config_.range_quiesce_time, *range, 0});
    return;
  }
  const auto [client, request, sockets] = pending.mapped();
  if (!range) {
    const bool all_in_use = range.error().code == Errc::kNoResources;
    if (all_in_use && !quiescing_.empty()) {
      ++leases_delayed_;
      leases_waiting_.push_back({client, request, sockets});
      return;
    }
    if (all_in_use) ++leases_over_host_limit_;
    send_to(client, ipc::encode(request, ipc::refusal(range.error())));
    return;
  }
  clients_[client].ranges.push_back(*range);
  send_to(client, ipc::encode(request, ipc::Leased{*range}),
          sockets ? std::optional(*range) : std::nullopt);
  report_lane_range(client, *range, true);
}

void Node::on_route(std::uint64_t token, const Result<HostRoute>& route, Time now) {
  Result<rdmacm::Route> answer =
      fail(Errc::kAddressNotFound, "no port has the source address of the route", ENODEV);
  if (!route) {
    answer = std::unexpected(route.error());
  } else if (const auto source = ports_.find(route->source, route->interface)) {
    answer = rdmacm::Route{
        .source = route->source,
        .address = {.source = route->source, .interface = route->interface, .port = source->port},
        .sgid_index = source->gid_index,
        .pkey = source->pkey.value,
        .mtu = rdma_mtu(route->mtu_bytes),
        .is_loopback = route->loopback};
  }
  rdmacm_.on_route(token, answer, now);
  run(now);
}

// ---- packets and time ---------------------------------------------------------------------------

void Node::receive(const link::Arrival& arrival, Time now) {
  if (const auto port = infiniband_.find(arrival.address.port); port != infiniband_.end()) {
    port->second.receive(arrival, now);
    run(now);
  }
  if (const auto mad = qp1_.receive(arrival, now)) deliver(arrival, *mad, now);
}

namespace {

// Returns the path for an answer to a MAD.  The hop limit and the UDP port of the arrival do not
// apply to the way back.
link::Address answer_path(const link::Address& arrival) {
  link::Address back = arrival.reversed();
  back.source_port = 0;
  back.hop_limit = link::Address{}.hop_limit;
  return back;
}

bool is_for_sa_client(std::span<const std::byte> mad) {
  if (mad.size() < wire::kMadHeaderBytes) return false;
  const auto header = wire::decode_exact<wire::MadHeader>(mad.first<wire::kMadHeaderBytes>());
  return header.mgmt_class == wire::MgmtClass::kSubnetAdministration;
}

}  // namespace

void Node::deliver(const link::Arrival& arrival, std::span<const std::byte> mad, Time now) {
  const mad::Address from{.path = answer_path(arrival.address)};
  const auto port = infiniband_.find(arrival.address.port);
  if (port != infiniband_.end() && is_for_sa_client(mad)) {
    port->second.receive_mad(from, mad, now);
    return run(now);
  }
  const mad::Received received = mads_.receive(from, mad);
  if (const auto* answer = std::get_if<mad::SendMad>(&received)) {
    qp1_.send(*answer, now);
  } else if (const auto* delivered = std::get_if<mad::Delivered>(&received)) {
    rdmacm_.receive(*delivered, now);
    run(now);
  }
}

void Node::on_timer(Time now) {
  rdmacm_.on_timer(now);
  for (auto& [id, port] : infiniband_) port.on_timer(now);
  bool has_free_range = false;
  while (!quiescing_.empty() && quiescing_.front().until <= now) {
    outputs_.emplace_back(RangeReleased{quiescing_.front().range});
    quiescing_.pop_front();
    has_free_range = true;
  }
  if (has_free_range) retry_leases();
  run(now);
}

Time Node::deadline() const {
  const Time quiesced = quiescing_.empty() ? kNever : quiescing_.front().until;
  Time next = std::min(quiesced, rdmacm_.deadline());
  for (const auto& [id, port] : infiniband_) next = std::min(next, port.deadline());
  return next;
}

bool Node::transmit(link::Burst& burst, Time now) {
  bool more = qp1_.transmit(burst, now);
  for (auto& [id, port] : infiniband_) more = port.transmit(burst) || more;
  return more;
}

// Carries out the outputs of the InfiniBand ports and of the connection managers until there are no
// more.
void Node::run(Time now) {
  run_infiniband(now);
  while (auto output = rdmacm_.poll()) {
    if (const auto* mad = std::get_if<mad::SendMad>(&*output)) {
      qp1_.send(*mad, now);
    } else if (auto* event = std::get_if<rdmacm::Event>(&*output)) {
      carry_out(std::move(*event));
    } else if (const auto* changed = std::get_if<cm::StateChanged>(&*output)) {
      outputs_.emplace_back(*changed);
    } else if (const auto& query = std::get<rdmacm::RouteQuery>(*output); infiniband_.empty()) {
      carry_out(query);
    } else {
      find_route(query, now);
      run_infiniband(now);
    }
  }
}

void Node::run_infiniband(Time now) {
  for (auto& [id, port] : infiniband_) {
    while (auto output = port.poll()) carry_out(id, std::move(*output), now);
  }
}

void Node::carry_out(PortId port, InfinibandPort::Output output, Time now) {
  if (const auto* mad = std::get_if<mad::SendMad>(&output)) {
    qp1_.send(*mad, now);
  } else if (const auto* found = std::get_if<InfinibandPort::RouteFound>(&output)) {
    rdmacm_.on_route(found->token, found->route, now);
  } else if (const auto* changed = std::get_if<InfinibandPort::GroupChanged>(&output)) {
    // Several ports of a device may be in the group, so the membership names all of them.
    std::vector<std::uint32_t> interfaces;
    for (const auto& [id, other] : infiniband_) {
      if (id.device == port.device && other.is_member(changed->mgid))
        interfaces.push_back(id.number);
    }
    outputs_.emplace_back(Membership{
        .range = kOwnRange, .group = changed->mgid, .interfaces = std::move(interfaces)});
  } else if (const auto* joined = std::get_if<InfinibandPort::GroupJoined>(&output)) {
    report_joined(*joined);
  } else if (const auto* service = std::get_if<sa::ServiceEvent>(&output)) {
    if (auto reply = services_.on(*service)) send_to(reply->client, std::move(reply->message));
  } else if (const auto* lost = std::get_if<InfinibandPort::GroupLost>(&output)) {
    const auto lost_group = subnet_groups_.extract(lost->token);
    if (!lost_group) return;
    send_to(lost_group.mapped().client,
            ipc::encode(0, ipc::MulticastLost{.membership = lost->token, .error = ENETRESET}));
  }
}

// Asks one port for the route: the port of the query's source.  If the query has no source, this is
// the first port whose link has the destination IP address, or for a GID the first active port.
void Node::find_route(const rdmacm::RouteQuery& query, Time now) {
  const bool by_gid = query.destination.by_gid;
  const bool has_source = query.source.family != 0 && !rdmacm::is_wildcard(query.source);
  for (auto& [id, port] : infiniband_) {
    Gid source;
    if (has_source) {
      const auto source_port = ports_.find_port(query.source.ip, by_gid);
      if (!source_port || *source_port != id) continue;
      source = query.source.ip;
    } else if (const auto chosen = by_gid ? port.gid() : port.source_for(query.destination.ip)) {
      source = *chosen;
    } else {
      continue;
    }
    return port.find_route({.token = query.token,
                            .destination = query.destination.ip,
                            .by_gid = by_gid,
                            .source = source},
                           now);
  }
  rdmacm_.on_route(
      query.token,
      fail(Errc::kUnreachable,
           "no active InfiniBand port of this node is on the subnet of this address", ENETUNREACH),
      now);
}

void Node::carry_out(rdmacm::Event event) {
  event.id = name_of(event.id);
  event.listen_id = name_of(event.listen_id);
  const rdmacm::Owner owner = event.owner;
  send_to(owner, ipc::encode(0, ipc::CmEvent{std::move(event)}));
}

// Returns the name that the program has given the id, or the id itself.
rdmacm::IdHandle Node::name_of(rdmacm::IdHandle id) const {
  const std::uint64_t name = rdmacm_.name(id);
  return name == 0 ? id : rdmacm::IdHandle{name};
}

// Returns the id to which the program has given this name.  If `name` is not a name but a handle of
// the RDMA CM, returns the handle.
Result<rdmacm::IdHandle> Node::find_named(ClientId client, rdmacm::IdHandle name) const {
  if (!ipc::is_name(name)) return name;
  const Client& program = clients_.at(client);
  if (const auto failed_id = program.failed_ids.find(name); failed_id != program.failed_ids.end()) {
    return std::unexpected(failed_id->second);
  }
  const std::uint32_t index = ipc::index_of_name(name);
  if (index < program.ids_by_index.size() &&
      rdmacm_.name(program.ids_by_index[index]) == name.value) {
    return program.ids_by_index[index];
  }
  return fail(Errc::kBadHandle, "no such id");
}

void Node::carry_out(const rdmacm::RouteQuery& query) {
  RouteRequest wanted{.token = query.token,
                      .client = query.owner,
                      .destination = query.destination.ip,
                      .scope = query.destination.scope};
  if (query.source.family != 0 && !rdmacm::is_wildcard(query.source)) {
    wanted.source = query.source.ip;
  }
  outputs_.emplace_back(wanted);
}

void Node::send_to(ClientId client, ipc::Bytes message, std::optional<std::uint16_t> sockets) {
  if (!clients_.contains(client)) return;
  outputs_.emplace_back(
      ToClient{.client = client, .message = std::move(message), .sockets = sockets});
}

std::optional<Node::Output> Node::poll() {
  if (outputs_.empty()) return std::nullopt;
  std::optional<Output> first = std::move(outputs_.front());
  outputs_.pop_front();
  return first;
}

// ---- for `verbena ps` and `agent status` --------------------------------------------------------

std::vector<std::uint16_t> Node::ranges_of(ClientId client) const {
  const auto found = clients_.find(client);
  return found == clients_.end() ? std::vector<std::uint16_t>{} : found->second.ranges;
}

std::vector<std::pair<ClientId, ipc::ConnectionInfo>> Node::connections() const {
  std::vector<std::pair<ClientId, ipc::ConnectionInfo>> all;
  rdmacm_.visit([&](const rdmacm::Row& row) {
    all.emplace_back(row.owner, ipc::ConnectionInfo{.number = row.id.value & 0xffffffff,
                                                    .state = row.state,
                                                    .source = row.source,
                                                    .destination = row.destination,
                                                    .qpn = {row.qpn},
                                                    .remote_qpn = {row.remote_qpn},
                                                    .tries = row.tries});
  });
  return all;
}

std::size_t Node::ids() const { return rdmacm_.ids(); }

bool Node::is_idle() const {
  return clients_.empty() && quiescing_.empty() && !rdmacm_.has_orphans();
}

}  // namespace verbena::node
