#include "process/process.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "hca/pkey_table.h"
#include "ipc/lane_messages.h"
#include "process/ask.h"
#include "process/async_type.h"
#include "wire/ip.h"
#include "wire/source_port.h"

namespace verbena::process {

Process::Process(const Config& config, Random random)
    : config_(config),
      leases_(engine_, requests_, random.fork()),
      engine_(config.limits, random.fork(), config.personality),
      memberships_(engine_, requests_),
      group_joins_(requests_),
      lanes_(engine_),
      connections_(config.ids_max) {
  if (config.lanes) lanes_.enable();
}

StatusTable::Counts Process::counts() const {
  return {.ids_refused = connections_.refused(),
          .qpns_refused = leases_.refused(),
          .messages_refused = messages_refused_,
          .joins_refused = group_joins_.refused(),
          .lanes = lanes_.size(),
          .lane = lanes_.counters()};
}

// ---- the agent ----------------------------------------------------------------------------------

Started<ipc::Welcome> Process::hello(Completion<ipc::Welcome> done) {
  VB_CHECK(!connected());
  requests_.drop_unsent();
  return requests_.ask<ipc::Welcome>(
      ipc::Hello{.build = config_.build,
                 .pid = config_.pid,
                 .capture = config_.capture,
                 .lanes = config_.lanes},
      Completion<ipc::Welcome>(
          [this, done = std::move(done)](Result<ipc::Welcome> welcome) mutable {
            if (welcome && welcome->refusal.empty()) {
              if (auto result = on_devices(std::move(welcome->devices)); !result) {
                return done(std::unexpected(result.error()));
              }
              requests_.open();
              hand_over();
            }
            done(std::move(welcome));
          }));
}

// Reports the connections and QPN ranges of dead agents to the new agent.  Sends one message at a
// time, and removes the connections of a message from pending_disconnects_ when the agent has
// replied.  If the agent dies before its reply, the next agent gets the same connections.
void Process::hand_over() {
  const std::size_t count =
      std::min(pending_disconnects_.size(), ipc::UnfinishedWork::kDisconnectsMax);
  ipc::UnfinishedWork message{.ranges = ranges_in_use()};
  if (count == 0 && message.ranges.empty()) return;
  message.disconnects.assign(pending_disconnects_.begin(),
                             pending_disconnects_.begin() + static_cast<std::ptrdiff_t>(count));
  hand_over_request_ = requests_.ask<ipc::Done>(
      std::move(message), Completion<ipc::Done>([this, count](const Result<ipc::Done>& reply) {
        if (!reply && reply.error().code == Errc::kDeviceFatal) return;
        pending_disconnects_.erase(
            pending_disconnects_.begin(),
            pending_disconnects_.begin() + static_cast<std::ptrdiff_t>(count));
        if (!pending_disconnects_.empty()) hand_over();
      }));
}

std::vector<std::uint16_t> Process::ranges_in_use() const {
  std::vector<hca::QpRow> rows(engine_.qp_count());
  rows.resize(engine_.rows(rows));
  std::set<std::uint16_t> ranges;
  for (const hca::QpRow& row : rows) {
    if (ranges.size() == ipc::UnfinishedWork::kRangesMax) break;
    ranges.insert(static_cast<std::uint16_t>(row.qpn / ipc::kLeaseQpns));
  }
  return {ranges.begin(), ranges.end()};
}

Result<void> Process::on_message(std::span<const std::byte> message, Time now,
                                 bool has_descriptors) {
  const ipc::Envelope envelope = VB_TRY(ipc::open(message));
  message_time_ = now;
  if (envelope.request != 0) return on_reply(envelope, has_descriptors);
  switch (envelope.type) {
    case ipc::Type::kCmEvent:
      on_event(VB_TRY(ipc::decode<ipc::CmEvent>(envelope)).event, now);
      return {};
    case ipc::Type::kRefused:
      on_refused(VB_TRY(ipc::decode<ipc::Refused>(envelope)), now);
      return {};
    case ipc::Type::kDevicesChanged:
      return on_devices(std::move(VB_TRY(ipc::decode<ipc::DevicesChanged>(envelope)).devices));
    case ipc::Type::kLane: lanes_.on(VB_TRY(ipc::decode<ipc::Lane>(envelope))); return {};
    case ipc::Type::kLaneRange: lanes_.on(VB_TRY(ipc::decode<ipc::LaneRange>(envelope))); return {};
    case ipc::Type::kLaneClosed:
      lanes_.on(VB_TRY(ipc::decode<ipc::LaneClosed>(envelope)),
                [&](const auto& record) { engine_.receive(record, now); });
      table_.mark_outdated();
      drain_engine(now);
      return {};
    case ipc::Type::kMulticastLost:
      on_multicast_lost(VB_TRY(ipc::decode<ipc::MulticastLost>(envelope)));
      return {};
    case ipc::Type::kNoLane: lanes_.on(VB_TRY(ipc::decode<ipc::NoLane>(envelope))); return {};
    default: return fail(Errc::kMalformed, "ipc: not an event");
  }
}

// Stores a new description of the devices.  Notices report the changes since the last description.
// The first description of an agent raises no notices.
Result<void> Process::on_devices(std::vector<ipc::Device> devices) {
  VB_TRY_VOID(ipc::check_devices(devices));
  const std::vector<ipc::Device> old_devices = std::exchange(devices_, std::move(devices));
  lanes_.on_devices(devices_);
  for (std::size_t device = 0; device < devices_.size(); ++device) {
    for (std::size_t number = 1; number <= devices_[device].ports.size(); ++number) {
      const PortId port{static_cast<std::uint8_t>(device), static_cast<std::uint8_t>(number)};
      const ipc::Port& new_port = *find_port(port);
      const ipc::Port* const old_port = ipc::find_port(old_devices, port);
      static_assert(ipc::Port::kPkeysMax == hca::PkeyTable::kEntriesMax);
      if (old_port == nullptr || old_port->pkeys != new_port.pkeys) {
        VB_CHECK(engine_.set_pkeys(new_port.pkeys, port).has_value());
      }
      VB_CHECK(engine_.set_lmc(port, new_port.lmc).has_value());
      if (old_port != nullptr) report_port_changes(port, *old_port, new_port);
    }
  }
  return {};
}

void Process::report_port_changes(PortId port, const ipc::Port& old_port,
                                  const ipc::Port& new_port) {
  const auto report = [&](AsyncType type) {
    notices_.push_back(AsyncNotice{.type = std::to_underlying(type), .port = port});
  };
  if (old_port.pkeys != new_port.pkeys) report(AsyncType::kPkeyChange);
  if (old_port.active != new_port.active) {
    report(old_port.active ? AsyncType::kPortError : AsyncType::kPortActive);
  }
  if (old_port.lid != new_port.lid || old_port.lmc != new_port.lmc) report(AsyncType::kLidChange);
  if (old_port.sm_lid != new_port.sm_lid || old_port.sm_sl != new_port.sm_sl)
    report(AsyncType::kSmChange);
  if (old_port.link.reregistrations != new_port.link.reregistrations)
    report(AsyncType::kClientReregister);
  const bool same_gids = std::ranges::equal(
      old_port.gids, new_port.gids, [](const ipc::GidEntry& a, const ipc::GidEntry& b) {
        return a.gid == b.gid && a.interface == b.interface && a.index == b.index;
      });
  if (!same_gids) report(AsyncType::kGidChange);
}

bool Process::is_of_this_host(const Gid& gid) const {
  return std::ranges::any_of(devices_, [&](const ipc::Device& device) {
    return std::ranges::any_of(device.ports, [&](const ipc::Port& port) {
      return std::ranges::find(port.gids, gid, &ipc::GidEntry::gid) != port.gids.end();
    });
  });
}

// Returns the index of the path's P_Key in its port's table, or 0 if the table does not have it.
// The membership bits may differ, because limited members communicate with full members
// (vol1 10.9.3).
std::uint16_t Process::pkey_index_of(const rdmacm::PathInfo& path) const {
  const ipc::Port* const port = find_port(path.address.port);
  if (port == nullptr) return 0;
  const auto found = std::ranges::find_if(
      port->pkeys, [&](Pkey entry) { return wire::pkeys_match(entry, {path.pkey}); });
  return found == port->pkeys.end() ? std::uint16_t{0}
                                    : static_cast<std::uint16_t>(found - port->pkeys.begin());
}

Result<void> Process::on_reply(const ipc::Envelope& envelope, bool has_descriptors) {
  const auto leased = ipc::decode<ipc::Leased>(envelope);
  if (leased && !has_descriptors) {
    requests_.send(ipc::ReturnRange{leased->range});
    return requests_.fail_request(envelope.request,
                                  "no descriptor is free for the data sockets (see 'ulimit -n')");
  }
  requests_.on_reply(envelope);
  return {};
}

Result<void> Process::on_message_refused(const ToAgent& message) {
  const ipc::Envelope envelope = VB_TRY(ipc::open(message.message));
  return requests_.fail_request(
      envelope.request,
      "too many descriptors of this user are on their way to other processes, for this "
      "program's limit (see 'ulimit -n')");
}

// If this function throws std::bad_alloc, the owner calls it again.  The last action of each step
// records that the step is done, so that it is not repeated.
void Process::on_agent_died(Time now) {
  leases_.numbers().clear();
  requests_.drop_unsent();
  lanes_.on_agent_died();
  const bool was_connected = connected();
  if (was_connected) {
    move_all_to_error(now);
    connections_.forget_agent_ids();
    memberships_.clear();
    group_joins_.clear();
    connections_.for_each([&](ConnectionHandle handle, Connection& connection) {
      if (!connection.agent_id) return;
      if (connection.peer_may_be_connected)
        pending_disconnects_.push_back(connection.pending_disconnect);
      connection.peer_may_be_connected = false;
      for (auto& [cookie, group] : connection.groups) group.membership = 0;
      rdmacm::Event event{.kind = rdmacm::EventKind::kDeviceRemoval};
      notices_.push_back(CmNotice{.id = handle,
                                  .cookie = connection.cookie,
                                  .unanswered = connection.unanswered,
                                  .event = event});
      connection.agent_id = {};
    });
    notices_.push_back(AsyncNotice{.type = std::to_underlying(AsyncType::kDeviceFatal)});
    requests_.close();
    devices_.clear();
  }
  requests_.fail_all();
  if (was_connected) drain_engine(now);
}

// ---- queue pairs --------------------------------------------------------------------------------

void Process::move_all_to_error(Time now) {
  std::vector<hca::QpRow> rows(engine_.qp_count());
  rows.resize(engine_.rows(rows));
  for (const hca::QpRow& row : rows) {
    const auto qp = engine_.find_qp({row.qpn});
    if (!qp) continue;
    (void)engine_.modify_qp(*qp, {.state = hca::QpState::kError}, hca::attribute::kState, now)
        .has_value();
  }
  table_.mark_outdated();
}

// Refuses a QP of a dead agent, because the QP receives no more packets.
Result<void> Process::check_alive(hca::QpHandle qp) const {
  const auto info = VB_TRY(engine_.query_qp(qp));
  if (leases_.numbers().has_leased(info.qpn)) return {};
  return fail(Errc::kDeviceFatal, "the agent of this QP has ended: create a new QP");
}

Result<void> Process::modify_qp(hca::QpHandle qp, const hca::QpAttributes& attributes,
                                std::uint32_t mask, Time now) {
  const bool to_error =
      (mask & hca::attribute::kState) != 0 && attributes.state == hca::QpState::kError;
  if (!to_error) VB_TRY_VOID(check_alive(qp));
  VB_TRY_VOID(move_qp(qp, attributes, mask, now));
  table_.mark_outdated();
  return {};
}

// Every change that gives a QP its peer, or lets it receive from any host, goes through here.
Result<void> Process::move_qp(hca::QpHandle qp, const hca::QpAttributes& attributes,
                              std::uint32_t mask, Time now) {
  const auto is_remote = [&](const hca::Path& path) {
    return path.address.is_infiniband() || !is_of_this_host(path.address.destination);
  };
  using namespace hca::attribute;
  if (((mask & kPath) != 0 && is_remote(attributes.path)) ||
      ((mask & kAlternatePath) != 0 && is_remote(attributes.alternate_path))) {
    may_hear_other_hosts_ = true;
  }
  if ((mask & kPath) != 0) lanes_.on_new_peer();
  // A UD QP can receive from RTR on.  Its creation alone does not count: libfabric creates and
  // destroys one to find out what the device supports.
  if ((mask & kState) != 0 && attributes.state == hca::QpState::kRtr &&
      VB_TRY(engine_.query_qp(qp)).init.type == hca::QpType::kUd) {
    may_hear_other_hosts_ = true;
  }
  if ((mask & kDestinationQpn) != 0)
    leases_.numbers().mark_known_to_peer(VB_TRY(engine_.query_qp(qp)).qpn);
  return engine_.modify_qp(qp, attributes, mask, now);
}

Result<void> Process::destroy_qp(hca::QpHandle qp, Time now) {
  const auto info = VB_TRY(engine_.query_qp(qp));
  VB_TRY_VOID(engine_.destroy_qp(qp));
  leases_.numbers().release(info.qpn, now);
  table_.mark_outdated();
  if (Connection* const connection = connections_.find_by_qpn(info.qpn)) {
    connections_.remove_qp(*connection);
  }
  return {};
}

namespace {

Result<hca::Path> ethernet_path(const ipc::GidEntry& entry, link::Address to) {
  // Packets cannot go from one address family to the other; usually the GID index is wrong.  Linux
  // refuses this too (rdma_resolve_ip()), and does not check multicast groups.
  const Gid& destination = to.destination;
  const bool from_ipv4 = wire::is_ipv4(entry.gid);
  if (from_ipv4 != wire::is_ipv4(destination) && !wire::is_multicast(destination)) {
    return fail(Errc::kInvalidArgument,
                from_ipv4 ? "the GID at sgid_index is an IPv4 address and the destination's IPv6: "
                            "another GID index is needed (see ibv_devinfo -v)"
                          : "the GID at sgid_index is an IPv6 address and the destination's IPv4: "
                            "another GID index is needed (see ibv_devinfo -v)");
  }
  const bool needs_interface = wire::is_link_local(entry.gid) || wire::is_link_local(destination) ||
                               (wire::is_multicast(destination) && !wire::is_ipv4(destination));
  to.source = entry.gid;
  to.interface = needs_interface ? entry.interface : 0;
  to.source_port = wire::source_port(to.flow_label);
  return hca::Path{.address = to, .sgid_index = static_cast<std::uint8_t>(entry.index)};
}

// Replaces the path bits by the LID of the port that they choose (vol1 4.1.3, 11.2.2.1).
Result<link::Address> infiniband_address(const ipc::Port& port, link::Address to) {
  constexpr std::uint8_t kServiceLevelMax = 15;
  if (to.source_lid.value >= 1u << port.lmc) {
    return fail(Errc::kInvalidArgument,
                "src_path_bits is too large for the port's LMC (see ibv_devinfo)");
  }
  if (to.destination_lid.value == 0) {
    return fail(Errc::kInvalidArgument, "an InfiniBand port needs the peer's LID (dlid)");
  }
  if (to.service_level > kServiceLevelMax) {
    return fail(Errc::kInvalidArgument, "the service level (sl) is above 15");
  }
  to.source_lid.value = static_cast<std::uint16_t>(port.lid.value + to.source_lid.value);
  return to;
}

}  // namespace

Result<hca::Path> Process::path(std::uint32_t sgid_index, link::Address to) const {
  if (!connected()) return fail(Errc::kDeviceFatal, kNoAgentText);
  const ipc::Port* const port = find_port(to.port);
  if (port == nullptr)
    return fail(Errc::kInvalidArgument, "the device has no port with this number");
  to.link_layer = port->link_layer;
  hca::Path path{.source_path_bits = static_cast<std::uint8_t>(to.source_lid.value)};
  if (to.is_infiniband()) to = VB_TRY(infiniband_address(*port, to));
  if (!to.is_infiniband() && !to.has_grh) {
    return fail(Errc::kInvalidArgument,
                "an Ethernet port needs a global address (is_global, a GID index)");
  }
  path.address = to;
  if (!to.has_grh) return path;
  const auto entry = std::ranges::find(port->gids, sgid_index, &ipc::GidEntry::index);
  if (entry == port->gids.end()) {
    return fail(Errc::kInvalidArgument, "no GID at this index (see ibv_devinfo -v)");
  }
  if (to.hop_limit == 0) to.hop_limit = link::Address{}.hop_limit;
  if (!to.is_infiniband()) {
    to.has_grh = false;  // link::Address uses has_grh only on InfiniBand
    return ethernet_path(*entry, to);
  }
  to.source = entry->gid;
  path.address = to;
  path.sgid_index = static_cast<std::uint8_t>(sgid_index);
  return path;
}

// ---- packets and time ---------------------------------------------------------------------------

void Process::receive(const link::Arrival& arrival, Time now) {
  engine_.receive(arrival, now);
  table_.mark_outdated();
  drain_engine(now);
}

bool Process::receive_lanes(Time now) {
  if (lanes_.empty()) return false;
  bool has_records = false;
  const bool has_packets = lanes_.receive([&](const auto& record) {
    engine_.receive(record, now);
    has_records = true;
  });
  if (has_records) {
    table_.mark_outdated();
    drain_engine(now);
  }
  return has_packets;
}

bool Process::transmit(link::Burst& burst, Time now) {
  const bool more = engine_.transmit(burst, now);
  if (!burst.empty()) table_.mark_outdated();
  lanes_.flush();
  while (const auto request = lanes_.poll_request(leases_.numbers().ranges())) {
    requests_.send(*request);
  }
  while (const auto request = lanes_.poll_close_request()) requests_.send(*request);
  drain_engine(now);
  return more;
}

void Process::deliver(Time now) {
  engine_.publish();
  drain_engine(now);
}

void Process::on_timer(Time now) {
  engine_.on_timer(now);
  drain_engine(now);
}

Time Process::deadline() const { return std::min(engine_.deadline(), table_.deadline()); }

std::optional<Notice> Process::poll_notice() {
  if (notices_.empty()) return std::nullopt;
  std::optional<Notice> first = std::move(notices_.front());
  notices_.pop_front();
  return first;
}

void Process::drain_engine(Time now) {
  while (auto event = engine_.poll_event()) {
    if (const auto* notify = std::get_if<hca::CqNotify>(&*event)) {
      notices_.push_back(CqNotice{notify->cookie});
    } else if (const auto* error = std::get_if<hca::CqError>(&*event)) {
      notices_.push_back(
          AsyncNotice{.type = std::to_underlying(AsyncType::kCqError), .cookie = error->cookie});
    } else if (const auto* srq = std::get_if<hca::SrqLimitReached>(&*event)) {
      notices_.push_back(AsyncNotice{.type = std::to_underlying(AsyncType::kSrqLimitReached),
                                     .cookie = srq->cookie});
    } else {
      on_qp_event(std::get<hca::QpEvent>(*event));
    }
  }
  if (table_.mark_outdated_and_check_due(now)) table_.update(engine_, counts(), now);
}

// Notifies the agent of the peer's first packet, and the program of all events except kFirstPacket.
void Process::on_qp_event(const hca::QpEvent& event) {
  using Kind = hca::QpEvent::Kind;
  table_.mark_outdated();
  if (event.kind == Kind::kCommEst || event.kind == Kind::kFirstPacket)
    requests_.send(ipc::Notify{event.qpn});
  if (event.kind == Kind::kFirstPacket) return;
  if (event.kind == Kind::kPathMigrated) on_migrated(event.qpn);
  notices_.push_back(AsyncNotice{.type = std::to_underlying(event.kind), .cookie = event.cookie});
}

}  // namespace verbena::process
