#include "process/process.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

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
      lanes_(engine_),
      connections_(config.ids_max) {
  if (config.lanes) lanes_.enable();
}

StatusTable::Counts Process::counts() const {
  return {.ids_refused = connections_.refused(),
          .qpns_refused = leases_.refused(),
          .messages_refused = messages_refused_,
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
              device_ = welcome->device;
              (void)engine_.set_pkeys(device_->pkeys);  // an impossible table keeps the old one
              lanes_.on_device(*device_);
              requests_.open();
              hand_over();
            }
            done(std::move(welcome));
          }));
}

// Sends one message at a time, and forgets its contents when the agent has replied.  If the agent
// dies before, the next agent gets them.
void Process::hand_over() {
  const std::size_t count = std::min(pending_disconnects_.size(), ipc::HandOver::kDisconnectsMax);
  ipc::HandOver message{.ranges = ranges_in_use()};
  if (count == 0 && message.ranges.empty()) return;
  message.disconnects.assign(pending_disconnects_.begin(),
                             pending_disconnects_.begin() + static_cast<std::ptrdiff_t>(count));
  handing_over_ = requests_.ask<ipc::Done>(
      std::move(message), Completion<ipc::Done>([this, count](const Result<ipc::Done>& taken) {
        if (!taken && taken.error().code == Errc::kDeviceFatal) return;
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
    if (ranges.size() == ipc::HandOver::kRangesMax) break;
    ranges.insert(static_cast<std::uint16_t>(row.qpn / ipc::kLeaseQpns));
  }
  return {ranges.begin(), ranges.end()};
}

Result<void> Process::on_message(std::span<const std::byte> message, Time now, bool complete) {
  const ipc::Envelope envelope = VB_TRY(ipc::open(message));
  if (envelope.request != 0) return on_reply(envelope, complete);
  switch (envelope.type) {
    case ipc::Type::kCmEvent:
      on_event(VB_TRY(ipc::decode<ipc::CmEvent>(envelope)).event, now);
      return {};
    case ipc::Type::kRefused:
      on_refused(VB_TRY(ipc::decode<ipc::Refused>(envelope)), now);
      return {};
    case ipc::Type::kDeviceChanged:
      on_device(VB_TRY(ipc::decode<ipc::DeviceChanged>(envelope)).device);
      return {};
    case ipc::Type::kLane: lanes_.on(VB_TRY(ipc::decode<ipc::Lane>(envelope))); return {};
    case ipc::Type::kLaneRange: lanes_.on(VB_TRY(ipc::decode<ipc::LaneRange>(envelope))); return {};
    case ipc::Type::kLaneClosed:
      lanes_.on(VB_TRY(ipc::decode<ipc::LaneClosed>(envelope)),
                [&](const link::Arrival& arrival) { engine_.receive(arrival, now); });
      table_.mark_outdated();
      drain_engine(now);
      return {};
    case ipc::Type::kNoLane: lanes_.on(VB_TRY(ipc::decode<ipc::NoLane>(envelope))); return {};
    default: return fail(Errc::kMalformed, "ipc: an event that is none");
  }
}

void Process::on_device(ipc::Device device) {
  const ipc::Device before = std::exchange(device_, std::move(device)).value_or(ipc::Device{});
  if (device_->pkeys != before.pkeys && engine_.set_pkeys(device_->pkeys)) {
    notices_.push_back(AsyncNotice{.type = std::to_underlying(AsyncType::kPkeyChange)});
  }
  lanes_.on_device(*device_);
  if (device_->port_active != before.port_active) {
    notices_.push_back(
        AsyncNotice{.type = std::to_underlying(before.port_active ? AsyncType::kPortError
                                                                  : AsyncType::kPortActive)});
  }
  const bool same = std::ranges::equal(
      before.gids, device_->gids, [](const ipc::GidEntry& a, const ipc::GidEntry& b) {
        return a.gid == b.gid && a.interface == b.interface && a.index == b.index;
      });
  if (!same) notices_.push_back(AsyncNotice{.type = std::to_underlying(AsyncType::kGidChange)});
}

Result<void> Process::on_reply(const ipc::Envelope& envelope, bool complete) {
  const auto leased = ipc::decode<ipc::Leased>(envelope);
  if (leased && !complete) {
    requests_.say(ipc::ReturnRange{leased->range});
    return requests_.refuse(envelope.request,
                            "no descriptor is free for the data sockets (see 'ulimit -n')");
  }
  requests_.on_reply(envelope);
  return {};
}

Result<void> Process::on_unsent(const ToAgent& message) {
  const ipc::Envelope envelope = VB_TRY(ipc::open(message.message));
  return requests_.refuse(
      envelope.request,
      "too many descriptors of this user are on their way to other processes, for this "
      "program's limit (see 'ulimit -n')");
}

// If this throws std::bad_alloc, the owner calls it again.  Each step records last that it is done,
// so that it is not repeated.
void Process::on_agent_gone(Time now) {
  leases_.numbers().clear();
  requests_.drop_unsent();
  lanes_.on_agent_gone();
  const bool was_connected = device_.has_value();
  if (was_connected) {
    all_to_error(now);
    connections_.forget_agent_ids();
    memberships_.clear();
    connections_.for_each([&](ConnectionHandle handle, Connection& connection) {
      if (!connection.agent_id) return;
      if (connection.peer_may_be_connected)
        pending_disconnects_.push_back(connection.pending_disconnect);
      connection.peer_may_be_connected = false;
      rdmacm::Event event{.kind = rdmacm::EventKind::kDeviceRemoval};
      notices_.push_back(CmNotice{.id = handle,
                                  .cookie = connection.cookie,
                                  .unanswered = connection.unanswered,
                                  .event = event});
      connection.agent_id = {};
    });
    notices_.push_back(AsyncNotice{.type = std::to_underlying(AsyncType::kDeviceFatal)});
    requests_.close();
    device_.reset();
  }
  requests_.fail_all();
  if (was_connected) drain_engine(now);
}

// ---- queue pairs --------------------------------------------------------------------------------

void Process::all_to_error(Time now) {
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

// Refuses QPs of a dead agent: they get no more packets.
Result<void> Process::check_alive(hca::QpHandle qp) const {
  const auto info = VB_TRY(engine_.query_qp(qp));
  if (leases_.numbers().has_leased(info.qpn)) return {};
  return fail(Errc::kDeviceFatal, "the agent of this QP is gone: make a new one");
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
    const Gid& peer = path.address.destination;
    return !device_ ||
           std::ranges::find(device_->gids, peer, &ipc::GidEntry::gid) == device_->gids.end();
  };
  using namespace hca::attribute;
  if (((mask & kPath) != 0 && is_remote(attributes.path)) ||
      ((mask & kAlternatePath) != 0 && is_remote(attributes.alternate_path))) {
    hears_others_ = true;
  }
  if ((mask & kPath) != 0) lanes_.on_new_peer();
  // A UD QP can receive from RTR on.  Its creation alone does not count: libfabric creates and
  // destroys one to find out what the device supports.
  if ((mask & kState) != 0 && attributes.state == hca::QpState::kRtr &&
      VB_TRY(engine_.query_qp(qp)).init.type == hca::QpType::kUd) {
    hears_others_ = true;
  }
  if ((mask & kDestinationQpn) != 0) leases_.numbers().mark_known(VB_TRY(engine_.query_qp(qp)).qpn);
  return engine_.modify_qp(qp, attributes, mask, now);
}

Result<void> Process::destroy_qp(hca::QpHandle qp, Time now) {
  const auto info = VB_TRY(engine_.query_qp(qp));
  VB_TRY_VOID(engine_.destroy_qp(qp));
  leases_.numbers().give_back(info.qpn, now);
  table_.mark_outdated();
  if (Connection* const user = connections_.find_by_qpn(info.qpn)) connections_.take_qp_from(*user);
  return {};
}

Result<hca::Path> Process::path(std::uint32_t sgid_index, link::Address to) const {
  if (!device_) return fail(Errc::kDeviceFatal, kAgentGone);
  const auto entry = std::ranges::find(device_->gids, sgid_index, &ipc::GidEntry::index);
  if (entry == device_->gids.end()) {
    return fail(Errc::kInvalidArgument, "no GID at this index (see ibv_devinfo -v)");
  }
  // Packets cannot go from one address family to the other; usually the GID index is wrong.  Linux
  // refuses this too (rdma_resolve_ip()), and does not check multicast groups.
  const Gid& destination = to.destination;
  const bool from_ipv4 = wire::is_ipv4(entry->gid);
  if (from_ipv4 != wire::is_ipv4(destination) && !wire::is_multicast(destination)) {
    return fail(Errc::kInvalidArgument,
                from_ipv4 ? "the GID at sgid_index is an IPv4 address and the destination's IPv6: "
                            "another GID index is needed (see ibv_devinfo -v)"
                          : "the GID at sgid_index is an IPv6 address and the destination's IPv4: "
                            "another GID index is needed (see ibv_devinfo -v)");
  }
  const bool scoped = wire::is_link_local(entry->gid) || wire::is_link_local(destination) ||
                      (wire::is_multicast(destination) && !wire::is_ipv4(destination));
  to.source = entry->gid;
  to.interface = scoped ? entry->interface : 0;
  to.source_port = wire::source_port(to.flow_label);
  if (to.hop_limit == 0) to.hop_limit = link::Address{}.hop_limit;
  return hca::Path{.address = to, .sgid_index = static_cast<std::uint8_t>(sgid_index)};
}

// ---- packets and time ---------------------------------------------------------------------------

void Process::receive(const link::Arrival& arrival, Time now) {
  engine_.receive(arrival, now);
  table_.mark_outdated();
  drain_engine(now);
}

bool Process::receive_lanes(Time now) {
  if (lanes_.empty()) return false;
  const bool some =
      lanes_.receive([&](const link::Arrival& arrival) { engine_.receive(arrival, now); });
  if (some) {
    table_.mark_outdated();
    drain_engine(now);
  }
  return some;
}

bool Process::transmit(link::Burst& burst, Time now) {
  const bool more = engine_.transmit(burst, now);
  const bool by_lanes = lanes_.flush();
  if (by_lanes || !burst.empty()) table_.mark_outdated();
  while (const auto request = lanes_.poll_request(leases_.numbers().ranges())) {
    requests_.say(*request);
  }
  while (const auto request = lanes_.poll_close_request()) requests_.say(*request);
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
  table_.update(engine_, counts(), now);
}

// The agent is notified first, then the program, which does not get every event.
void Process::on_qp_event(const hca::QpEvent& event) {
  using Kind = hca::QpEvent::Kind;
  table_.mark_outdated();
  if (event.kind == Kind::kCommEst || event.kind == Kind::kFirstPacket)
    requests_.say(ipc::Notify{event.qpn});
  if (event.kind == Kind::kFirstPacket) return;
  if (event.kind == Kind::kPathMigrated) on_migrated(event.qpn);
  notices_.push_back(AsyncNotice{.type = std::to_underlying(event.kind), .cookie = event.cookie});
}

}  // namespace verbena::process
