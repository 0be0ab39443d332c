#include "process/process.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <set>
#include <string>
#include <utility>

#include "process/ask.h"
#include "wire/drop.h"
#include "wire/ip.h"
#include "wire/source_port.h"

namespace verbena::process {
namespace {

constexpr Duration kShowEvery = std::chrono::milliseconds(100);
constexpr std::uint32_t kDeviceFatal = 8;       // IBV_EVENT_DEVICE_FATAL
constexpr std::uint32_t kCqErr = 0;             // IBV_EVENT_CQ_ERR
constexpr std::uint32_t kPortActive = 9;        // IBV_EVENT_PORT_ACTIVE
constexpr std::uint32_t kPortError = 10;        // IBV_EVENT_PORT_ERR
constexpr std::uint32_t kSrqLimitReached = 15;  // IBV_EVENT_SRQ_LIMIT_REACHED
constexpr std::uint32_t kPkeyChange = 12;       // IBV_EVENT_PKEY_CHANGE
constexpr std::uint32_t kGidChange = 18;        // IBV_EVENT_GID_CHANGE

// These are the reasons to drop a packet whose ICRC is good.
constexpr std::array kMalformed{wire::Drop::kTooShort,      wire::Drop::kNotWords,
                                wire::Drop::kUnknownOpcode, wire::Drop::kTransportVersion,
                                wire::Drop::kPadTooLong,    wire::Drop::kPayloadNotAllowed};

ipc::QpTableRow table_row(const hca::QpRow& row) {
  return {.qpn = row.qpn,
          .destination_qpn = row.destination_qpn,
          .type = std::to_underlying(row.type),
          .state = std::to_underlying(row.state),
          .path_mtu = std::to_underlying(row.path_mtu),
          .link_layer = row.link_layer,
          .send_psn = row.send_psn,
          .acked_psn = row.acked_psn,
          .expected_psn = row.expected_psn,
          .send_queued = row.send_queued,
          .recv_queued = row.recv_queued,
          .source = row.source,
          .destination = row.destination,
          .source_lid = row.source_lid,
          .destination_lid = row.destination_lid,
          .packets_in = row.packets_in,
          .packets_out = row.packets_out,
          .bytes_in = row.bytes_in,
          .bytes_out = row.bytes_out,
          .retransmissions = row.retransmissions,
          .timeouts = row.timeouts,
          .rnr_naks_in = row.rnr_naks_in,
          .rnr_naks_out = row.rnr_naks_out};
}

}  // namespace

Process::Process(const Config& config, Random random)
    : config_(config),
      random_(random.fork()),
      engine_(config.limits, random.fork(), config.personality),
      lanes_(engine_),
      connections_(config.ids_max) {
  if (config.lanes) lanes_.enable();
}

void Process::set_qp_table(std::span<std::byte> memory) {
  table_.emplace(memory);
  rows_.resize(ipc::QpTable::kRows);
  counters_.clear();
  const auto add = [this](const std::string& words) {
    counters_.push_back(table_->add_counter(ipc::counter_name(words)));
  };
  for (std::size_t i = 0; i < hca::Counters{}.values.size(); ++i) {
    add(hca::to_string(static_cast<hca::Counter>(i)));
  }
  for (const wire::Drop reason : kMalformed) add(std::string("drop_") + wire::to_string(reason));
  for (const char* limit : {"limit_ids", "limit_qpns", "limit_unread"}) add(limit);
  for (const char* lane : {"lanes", "lane_packets_in", "lanes_broken", "lanes_refused"}) add(lane);
}

void Process::show_counters() {
  const hca::Counters engine = engine_.counters();
  auto at = counters_.begin();
  const auto show = [&](std::uint64_t value) { table_->set_counter(*at++, value); };
  for (const std::uint64_t value : engine.values) show(value);
  for (const wire::Drop reason : kMalformed) show(engine.malformed[std::to_underlying(reason)]);
  show(ids_refused_);
  show(qpns_refused_);
  show(messages_refused_);
  show(lanes_.size());
  show(lanes_.counters().packets_in);
  show(lanes_.counters().broken);
  show(lanes_.counters().refused);
}

// ---- the agent ----------------------------------------------------------------------------------

Started<ipc::Welcome> Process::hello(Completion<ipc::Welcome> done) {
  VB_CHECK(!connected());
  to_agent_.clear();
  return ask<ipc::Welcome>(
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
  handing_over_ = ask<ipc::Done>(
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
    case ipc::Type::kLaneRange:
      lanes_.on(VB_TRY(ipc::decode<ipc::LaneRange>(envelope)));
      return {};
    case ipc::Type::kLaneClosed:
      lanes_.on(VB_TRY(ipc::decode<ipc::LaneClosed>(envelope)));
      return {};
    case ipc::Type::kNoLane: lanes_.on(VB_TRY(ipc::decode<ipc::NoLane>(envelope))); return {};
    default: return fail(Errc::kMalformed, "ipc: an event that is none");
  }
}

void Process::on_device(ipc::Device device) {
  const ipc::Device before = std::exchange(device_, std::move(device)).value_or(ipc::Device{});
  if (device_->pkeys != before.pkeys && engine_.set_pkeys(device_->pkeys)) {
    notices_.push_back(AsyncNotice{.type = kPkeyChange});
  }
  lanes_.on_device(*device_);
  if (device_->port_active != before.port_active) {
    notices_.push_back(AsyncNotice{.type = before.port_active ? kPortError : kPortActive});
  }
  const bool same = std::ranges::equal(
      before.gids, device_->gids, [](const ipc::GidEntry& a, const ipc::GidEntry& b) {
        return a.gid == b.gid && a.interface == b.interface && a.index == b.index;
      });
  if (!same) notices_.push_back(AsyncNotice{.type = kGidChange});
}

Result<void> Process::on_reply(const ipc::Envelope& envelope, bool complete) {
  const auto leased = ipc::decode<ipc::Leased>(envelope);
  if (leased && !complete) {
    say(ipc::ReturnRange{leased->range});
    return refuse(envelope.request, "no descriptor is free for the data sockets (see 'ulimit -n')");
  }
  if (auto found = reply_handlers_.extract(envelope.request)) found.mapped()(&envelope);
  return {};
}

// Fails the request as if the agent had refused it.
Result<void> Process::refuse(std::uint64_t request, std::string text) {
  auto found = reply_handlers_.extract(request);
  if (!found) return {};
  const auto reply = ipc::encode(
      request,
      ipc::Done{.failed = true, .code = Errc::kSystem, .detail = EMFILE, .text = std::move(text)});
  const ipc::Envelope refusal = VB_TRY(ipc::open(reply));
  found.mapped()(&refusal);
  return {};
}

Result<void> Process::on_unsent(const ToAgent& message) {
  const ipc::Envelope envelope = VB_TRY(ipc::open(message.message));
  return refuse(envelope.request,
                "too many descriptors of this user are on their way to other processes, for this "
                "program's limit (see 'ulimit -n')");
}

std::optional<Process::ToAgent> Process::poll_message() {
  if (to_agent_.empty()) return std::nullopt;
  std::optional<ToAgent> first = std::move(to_agent_.front());
  to_agent_.pop_front();
  if (to_agent_.empty()) urgent_ = false;
  return first;
}

bool Process::poll_another(ToAgent& message) {
  if (message.wants_reply || to_agent_.empty()) return false;
  const ToAgent& next = to_agent_.front();
  const std::size_t together = message.message.size() + next.message.size();
  if (next.hello || next.qp_table || together > ipc::kJoinedBytesMax) return false;
  message.message.insert(message.message.end(), next.message.begin(), next.message.end());
  message.wants_reply = next.wants_reply;
  to_agent_.pop_front();
  if (to_agent_.empty()) urgent_ = false;
  return true;
}

// If this throws std::bad_alloc, the owner calls it again.  Each step records last that it is done,
// so that it is not repeated.
void Process::on_agent_gone(Time now) {
  numbers_.clear();
  to_agent_.clear();
  urgent_ = false;
  lanes_.on_agent_gone();
  const bool was_connected = device_.has_value();
  if (was_connected) {
    all_to_error(now);
    by_agent_id_.clear();
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
    notices_.push_back(AsyncNotice{.type = kDeviceFatal});
    device_.reset();
  }
  // Extracts one request at a time: a completion may drop others, whose completions must not run.
  const std::uint64_t asked = next_request_;
  while (!reply_handlers_.empty() && reply_handlers_.begin()->first < asked) {
    reply_handlers_.extract(reply_handlers_.begin()).mapped()(nullptr);
  }
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
  table_outdated_ = true;
}

void Process::add_range(std::uint16_t range) {
  numbers_.add_range(range, random_);
  lanes_.add_own_range(range);
}

Started<hca::QpHandle> Process::create_qp(const hca::QpInit& init, Time now,
                                          Completion<hca::QpHandle> done) {
  if (const auto qpn = numbers_.take(now, in_use())) return engine_.create_qp(init, *qpn);
  if (!device_) return Result<hca::QpHandle>(fail(Errc::kDeviceFatal, kAgentGone));
  const std::uint64_t number = next_wanted_++;
  qps_wanted_.emplace(number, QpWanted{init, std::move(done)});
  if (!leasing_) lease();
  return Pending([this, number] { qps_wanted_.erase(number); });
}

void Process::lease() {
  leasing_ = true;
  lease_ = ask<ipc::Leased>(
      ipc::Lease{},
      Completion<ipc::Leased>([this](const Result<ipc::Leased>& leased) { on_leased(leased); }),
      table_.has_value());
}

// Keeps the range even if all requests for QPs were dropped: the next QP will use it.
void Process::on_leased(const Result<ipc::Leased>& leased) {
  leasing_ = false;
  if (leased) add_range(leased->range);
  // A request from inside a completion waits for the next lease.
  const std::uint64_t asked = next_wanted_;
  while (!qps_wanted_.empty() && qps_wanted_.begin()->first < asked) {
    const auto qpn = leased ? numbers_.take(Time{}, in_use()) : numbers_.take_quarantined(in_use());
    if (leased && !qpn) return leasing_ ? void() : lease();
    QpWanted wanted = std::move(qps_wanted_.extract(qps_wanted_.begin()).mapped());
    if (qpn) {
      wanted.done(engine_.create_qp(wanted.init, *qpn));
    } else {
      ++qpns_refused_;
      wanted.done(std::unexpected(leased.error()));
    }
  }
}

// Refuses QPs of a dead agent: they get no more packets.
Result<void> Process::check_alive(hca::QpHandle qp) const {
  const auto info = VB_TRY(engine_.query_qp(qp));
  if (numbers_.has_leased(info.qpn)) return {};
  return fail(Errc::kDeviceFatal, "the agent of this QP is gone: make a new one");
}

Result<void> Process::modify_qp(hca::QpHandle qp, const hca::QpAttributes& attributes,
                                std::uint32_t mask, Time now) {
  const bool to_error =
      (mask & hca::attribute::kState) != 0 && attributes.state == hca::QpState::kError;
  if (!to_error) VB_TRY_VOID(check_alive(qp));
  VB_TRY_VOID(move_qp(qp, attributes, mask, now));
  table_outdated_ = true;
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
  if ((mask & kDestinationQpn) != 0) numbers_.mark_known(VB_TRY(engine_.query_qp(qp)).qpn);
  return engine_.modify_qp(qp, attributes, mask, now);
}

Result<void> Process::destroy_qp(hca::QpHandle qp, Time now) {
  const auto info = VB_TRY(engine_.query_qp(qp));
  VB_TRY_VOID(engine_.destroy_qp(qp));
  numbers_.give_back(info.qpn, now);
  table_outdated_ = true;
  if (const auto user = by_qpn_.find(info.qpn.value); user != by_qpn_.end()) {
    take_qp_from(*connections_.find(user->second));
  }
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
  table_outdated_ = true;
  drain_engine(now);
}

bool Process::receive_lanes(Time now) {
  if (lanes_.empty()) return false;
  const bool some = lanes_.receive([&](const link::Arrival& arrival) {
    engine_.receive(arrival, now);
  });
  if (some) {
    table_outdated_ = true;
    drain_engine(now);
  }
  return some;
}

bool Process::transmit(link::Burst& burst, Time now) {
  const bool more = engine_.transmit(burst, now);
  if (!burst.empty()) table_outdated_ = true;
  lanes_.flush();
  while (const auto request = lanes_.poll_request()) say(*request, Urgency::kUrgent);
  while (const auto request = lanes_.poll_close_request()) say(*request, Urgency::kUrgent);
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

Time Process::deadline() const {
  const bool to_show = table_outdated_ && table_;
  return to_show ? std::min(engine_.deadline(), shown_ + kShowEvery) : engine_.deadline();
}

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
      notices_.push_back(AsyncNotice{.type = kCqErr, .cookie = error->cookie});
    } else if (const auto* srq = std::get_if<hca::SrqLimitReached>(&*event)) {
      notices_.push_back(AsyncNotice{.type = kSrqLimitReached, .cookie = srq->cookie});
    } else {
      on_qp_event(std::get<hca::QpEvent>(*event));
    }
  }
  show_qps(now);
}

// The agent is notified first, then the program, which does not get every event.
void Process::on_qp_event(const hca::QpEvent& event) {
  using Kind = hca::QpEvent::Kind;
  table_outdated_ = true;
  if (event.kind == Kind::kCommEst || event.kind == Kind::kFirstPacket) say(ipc::Notify{event.qpn});
  if (event.kind == Kind::kFirstPacket) return;
  if (event.kind == Kind::kPathMigrated) on_migrated(event.qpn);
  notices_.push_back(AsyncNotice{.type = std::to_underlying(event.kind), .cookie = event.cookie});
}

void Process::show_now(Time now) {
  shown_ = now - kShowEvery;
  show_qps(now);
}

// Updates the table at most every kShowEvery: only people read it.
void Process::show_qps(Time now) {
  if (!table_) return;
  if (now < shown_ + kShowEvery) {
    table_outdated_ = true;  // nothing else may happen for long, so the timer updates the table
    return;
  }
  shown_ = now;
  table_outdated_ = false;
  const std::size_t count = engine_.rows(rows_);
  for (std::size_t i = 0; i < count; ++i) {
    table_->write(static_cast<std::uint32_t>(i), table_row(rows_[i]));
  }
  for (std::size_t i = count; i < rows_shown_; ++i)
    table_->write(static_cast<std::uint32_t>(i), {});
  rows_shown_ = count;
  table_->set_count(static_cast<std::uint32_t>(engine_.qp_count()));
  show_counters();
}

}  // namespace verbena::process
