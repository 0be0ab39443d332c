#include "node/infiniband_port.h"

#include <algorithm>
#include <utility>

#include "link/path_address.h"
#include "wire/bth.h"
#include "wire/headers.h"
#include "wire/ip.h"
#include "wire/loopback.h"
#include "wire/mgid.h"

namespace verbena::node {
namespace {

constexpr std::uint32_t kPsnMask = 0xffffff;

sa::PortState sa_state_of(const PortState& state) {
  return {.active = !state.down_reason.has_value(),
          .lid = state.lid,
          .lmc = state.lmc,
          .sm_lid = state.sm_lid,
          .sm_sl = state.sm_sl,
          .gids = state.gids,
          .pkeys = state.pkeys};
}

// Returns true if the SA client sends all requests again because of this change.  A new manager
// also asks for a reregistration in the same PortInfo.  Then the requests must not be sent twice.
bool resends_queries(const PortState& old_state, const PortState& state) {
  return sa::PortChange::between(sa_state_of(old_state), sa_state_of(state)).resends_queries();
}

// Returns a path that differs from `path` in a LID, because such a path may use other switches.
std::optional<wire::PathRecord> find_alternate(const wire::PathRecord& path,
                                               std::span<const wire::PathRecord> all) {
  const auto found = std::ranges::find_if(all, [&](const wire::PathRecord& candidate) {
    return candidate.source_lid != path.source_lid ||
           candidate.destination_lid != path.destination_lid;
  });
  return found == all.end() ? std::nullopt : std::optional(*found);
}

}  // namespace

InfinibandPort::InfinibandPort(PortId port, const sa::Client::Config& config, Random random)
    : port_(port),
      client_(sa::Client::create(port, config, random, Time{})),
      neighbours_(interface()) {
  // The call cannot fail, because there are far fewer subscribers than the limit.
  VB_CHECK(client_->subscriptions().subscribe(wire::TrapNumber::kGidOutOfService, 0, Time{}));
}

// ---- the port -----------------------------------------------------------------------------------

ipoib::Interface InfinibandPort::interface() const {
  return {.port = port_,
          .pkey = pkey_,
          .link_address = {.gid = first_gid(), .qpn = kIpoibQpn},
          .addresses = addresses_};
}

void InfinibandPort::set_state(const PortState& state, Time now) {
  const PortState old_state = std::exchange(state_, state);
  const Pkey old_pkey = std::exchange(pkey_, connection_pkey(state));
  client_->set_port(sa_state_of(state), now);
  if (old_state.link.reregistrations != state.link.reregistrations &&
      !resends_queries(old_state, state)) {
    client_->reregister(now);
  }
  if (old_state.lid != state.lid || old_state.sm_lid != state.sm_lid ||
      old_state.down_reason != state.down_reason) {
    neighbours_.flush();
  }
  if (old_pkey != pkey_ || old_state.gids != state.gids) leave_broadcast_group(now);
  neighbours_.set_interface(interface(), now);
  if (!state.down_reason && !broadcast_member_) join_broadcast_group(now);
  run(now);
}

void InfinibandPort::set_addresses(std::vector<ipoib::OwnAddress> addresses, Time now) {
  addresses_ = std::move(addresses);
  neighbours_.set_interface(interface(), now);
  run(now);
}

// ---- the broadcast group ------------------------------------------------------------------------

void InfinibandPort::join_broadcast_group(Time now) {
  join_retry_at_ = kNever;
  if (pkey_ == Pkey{} || first_gid() == Gid{}) return;
  const auto member = client_->memberships().join(
      {.mgid = wire::broadcast_mgid(pkey_), .pkey = Pkey(pkey_.value | wire::kFullMember)}, 0, now);
  if (member) {
    broadcast_member_ = *member;
  } else {
    join_retry_at_ = now + join_backoff_;
  }
}

void InfinibandPort::leave_broadcast_group(Time now) {
  join_retry_at_ = kNever;
  if (const auto member = std::exchange(broadcast_member_, std::nullopt)) {
    client_->memberships().leave(*member, now);
  }
  if (const auto group = std::exchange(broadcast_group_, std::nullopt)) {
    outputs_.emplace_back(GroupChanged{group->mgid});
    neighbours_.set_joined(false, now);
  }
}

void InfinibandPort::on_broadcast_group(const sa::MemberEvent& event, Time now) {
  if (event.what == sa::MemberEvent::What::kFailed) {
    broadcast_member_.reset();
    leave_broadcast_group(now);
    join_retry_at_ = now + join_backoff_;
    join_backoff_ = std::min(2 * join_backoff_, kJoinBackoffMax);
    return;
  }
  join_backoff_ = kJoinBackoffMin;
  const bool is_new = !broadcast_group_;
  broadcast_group_ = event.group;
  if (!is_new) return;
  outputs_.emplace_back(GroupChanged{broadcast_group_->mgid});
  neighbours_.set_joined(true, now);
  for (const auto& [token, join] : std::exchange(waiting_joins_, {})) join_at_sa(join.request, now);
}

// ---- multicast groups of programs ---------------------------------------------------------------

void InfinibandPort::join(const GroupRequest& request, Time now) {
  if (waiting_joins_.size() + groups_.size() >= kJoinsMax) {
    ++counters_.limit_joins;
    return fail_join(request.token, {Errc::kNoResources, 0, "too many joins (kJoinsMax)"});
  }
  if (broadcast_group_) {
    join_at_sa(request, now);
  } else {
    waiting_joins_[request.token] = {.request = request, .until = now + kGroupTimeout};
  }
  run(now);
}

void InfinibandPort::leave(std::uint64_t token, Time now) {
  waiting_joins_.erase(token);
  const auto group = groups_.extract(token);
  if (!group) return;
  token_of_member_.erase(group.mapped().member);
  client_->memberships().leave(group.mapped().member, now);
  run(now);
}

// Uses the values of Linux's RDMA CM (cma_join_ib_multicast()), so that members on Linux hosts and
// Verbena hosts agree about the group.
void InfinibandPort::join_at_sa(const GroupRequest& request, Time now) {
  if (((request.pkey.value ^ broadcast_group_->pkey.value) & ~wire::kFullMember) != 0) {
    return fail_join(request.token,
                     {Errc::kInvalidArgument, 0, "the P_Key is not that of the IPoIB interface"});
  }
  const bool is_ipoib = request.port_space == rdmacm::kPortSpaceIpoib;
  const auto user = is_ipoib ? wire::MgidUser::kRdmaCmIpoib : wire::MgidUser::kRdmaCm;
  sa::JoinRequest sa_join{
      .mgid = request.is_mgid ? request.group
                              : wire::multicast_mgid(request.group, user, broadcast_group_->pkey),
      .join_state = request.join_state,
      .qkey = is_ipoib ? broadcast_group_->qkey : Qkey{rdmacm::kDatagramQkey},
      .pkey = broadcast_group_->pkey,
      .traffic_class = broadcast_group_->traffic_class,
      .service_level = broadcast_group_->service_level,
      .flow_label = broadcast_group_->flow_label};
  if (is_ipoib) {
    sa_join.mtu = {.selector = wire::Selector::kExactly, .value = broadcast_group_->mtu};
    sa_join.rate = {.selector = wire::Selector::kExactly, .value = broadcast_group_->rate};
    sa_join.hop_limit = broadcast_group_->hop_limit;
  }
  const auto member = client_->memberships().join(sa_join, 0, now);
  if (!member) return fail_join(request.token, member.error());
  groups_[request.token] = {.member = *member};
  token_of_member_[*member] = request.token;
}

void InfinibandPort::fail_join(std::uint64_t token, const Error& error) {
  outputs_.emplace_back(GroupJoined{token, std::unexpected(error)});
}

void InfinibandPort::expire_joins(Time now) {
  while (!waiting_joins_.empty() && waiting_joins_.begin()->second.until <= now) {
    fail_join(waiting_joins_.begin()->first,
              {Errc::kTimedOut, 0,
               "the port has not joined the broadcast group of its partition, which other groups "
               "need"});
    waiting_joins_.erase(waiting_joins_.begin());
  }
}

void InfinibandPort::on(const sa::MemberEvent& event, Time now) {
  if (broadcast_member_ && event.member == *broadcast_member_)
    return on_broadcast_group(event, now);
  const auto found = token_of_member_.find(event.member);
  if (found == token_of_member_.end()) return;
  const std::uint64_t token = found->second;
  if (event.what == sa::MemberEvent::What::kJoined) {
    groups_.at(token).joined = true;
    outputs_.emplace_back(GroupJoined{token, event.group});
    return;
  }
  token_of_member_.erase(found);
  if (event.what == sa::MemberEvent::What::kChanged) {
    client_->memberships().leave(event.member, now);
  }
  if (groups_.extract(token).mapped().joined) {
    outputs_.emplace_back(GroupLost{token});
  } else {
    fail_join(token, event.error.value_or(Error{Errc::kUnreachable, 0, "the group has changed"}));
  }
}

// ---- routes -------------------------------------------------------------------------------------

bool InfinibandPort::is_own(const Gid& gid) const {
  return std::ranges::find(state_.gids, gid) != state_.gids.end();
}

std::optional<Gid> InfinibandPort::source_for(const Gid& ip) const {
  if (!gid()) return std::nullopt;
  if (wire::is_loopback(ip)) return ip;
  if (!wire::is_multicast(ip)) return neighbours_.interface().source_for(ip);
  for (const ipoib::OwnAddress& own : addresses_) {
    if (wire::is_ipv4(own.ip) == wire::is_ipv4(ip)) return own.ip;
  }
  return std::nullopt;
}

void InfinibandPort::find_route(const PendingRoute& request, Time now) {
  const auto refuse = [&](Error error) {
    outputs_.emplace_back(RouteFound{request.token, std::unexpected(std::move(error))});
  };
  if (state_.down_reason) return refuse({Errc::kUnreachable, 0, "the port is down"});
  if (!request.by_gid && wire::is_loopback(request.destination)) {
    outputs_.emplace_back(RouteFound{request.token, loopback_route(request)});
    return;
  }
  if (!request.by_gid && wire::is_multicast(request.destination)) {
    // No request is needed, because a program learns the group's LID from the SA when it joins.
    rdmacm::Route route = loopback_route(request);
    route.address.destination =
        wire::multicast_mgid(request.destination, wire::MgidUser::kIpoib, pkey_);
    route.address.destination_lid = {};
    route.is_loopback = false;
    outputs_.emplace_back(RouteFound{request.token, route});
    return;
  }
  if (routes_.size() >= kRoutesMax) {
    ++counters_.limit_routes;
    return refuse({Errc::kNoResources, 0, "too many routes are being resolved (kRoutesMax)"});
  }
  const auto added = routes_.emplace(
      request.token, Route{.request = request, .ticket = {}, .until = now + kRouteTimeout});
  Route& route = added.first->second;
  if (request.by_gid) {
    find_path(route, request.destination, now);
    return run(now);
  }
  const auto neighbour = neighbours_.resolve(request.destination, request.token, now);
  if (!neighbour) {
    end_route(request.token, std::unexpected(neighbour.error()));
  } else if (*neighbour) {
    find_path(route, (*neighbour)->gid, now);
  }
  run(now);
}

void InfinibandPort::carry_out(const ipoib::Resolved& resolved, Time now) {
  const auto found = routes_.find(resolved.cookie);
  if (found == routes_.end()) return;
  if (!resolved.neighbour)
    return end_route(found->first, std::unexpected(resolved.neighbour.error()));
  find_path(found->second, resolved.neighbour->gid, now);
}

void InfinibandPort::find_path(Route& route, const Gid& destination, Time now) {
  const std::uint64_t token = route.request.token;
  if (is_own(destination)) {
    outputs_.emplace_back(RouteFound{token, loopback_route(route.request)});
    routes_.erase(token);
    return;
  }
  const auto lookup = client_->paths().find_for_connection(
      {.destination = destination,
       .source = first_gid(),
       .pkey = pkey_,
       .numb_path = state_.lmc == 0 ? std::uint8_t{1} : kPathsPerRoute},
      token, route.until - now, now);
  if (!lookup) return end_route(token, std::unexpected(lookup.error()));
  if (const auto* known_paths = std::get_if<sa::KnownPaths>(&*lookup))
    return end_route(token, PathsOfRoute{known_paths->path,
                                         find_alternate(known_paths->path, known_paths->all)});
  route.ticket = std::get<sa::PathTicket>(*lookup);
}

void InfinibandPort::on(const sa::PathEvent& event) {
  const auto found = routes_.find(event.cookie);
  if (found == routes_.end() || found->second.ticket != event.ticket) return;
  if (event.error) return end_route(event.cookie, std::unexpected(*event.error));
  const wire::PathRecord& first = event.paths.front();
  end_route(event.cookie, PathsOfRoute{first, find_alternate(first, event.paths)});
}

void InfinibandPort::end_route(std::uint64_t token, const Result<PathsOfRoute>& paths) {
  const auto pending = routes_.extract(token);
  if (!paths) {
    outputs_.emplace_back(RouteFound{token, std::unexpected(paths.error())});
    return;
  }
  rdmacm::Route route = route_of(pending.mapped().request, paths->path);
  if (paths->alternate) route.alternate = link::address_of(*paths->alternate, port_);
  outputs_.emplace_back(RouteFound{token, std::move(route)});
}

rdmacm::Route InfinibandPort::route_of(const PendingRoute& request,
                                       const wire::PathRecord& path) const {
  return {.source = request.source,
          .address = link::address_of(path, port_),
          .pkey = pkey_.value,
          .mtu = path.mtu,
          .packet_life_time = path.packet_life};
}

// Returns a route from the port to itself, which needs no path record.
rdmacm::Route InfinibandPort::loopback_route(const PendingRoute& request) const {
  return {.source = request.source,
          .address = {.link_layer = LinkLayer::kInfiniband,
                      .source = first_gid(),
                      .destination = first_gid(),
                      .hop_limit = 0,
                      .source_lid = state_.lid,
                      .destination_lid = state_.lid,
                      .port = port_},
          .pkey = pkey_.value,
          .mtu = state_.active_mtu,
          .is_loopback = true};
}

InfinibandPort::FlushCounts InfinibandPort::flush(Time now) {
  const auto counts = [this] {
    return FlushCounts{.paths = client_->paths().counters().flushed,
                       .addresses = neighbours_.counters().forgotten};
  };
  const FlushCounts before = counts();
  client_->paths().flush(now);
  neighbours_.flush();
  const FlushCounts after = counts();
  run(now);
  return {.paths = after.paths - before.paths, .addresses = after.addresses - before.addresses};
}

// Removes the addresses of a port that has left the subnet, because the port may come back with
// another QPN.
void InfinibandPort::on(const sa::NoticeEvent& event) {
  const auto& details = event.notice.notice.details;
  neighbours_.forget(wire::decode_exact<wire::GidChange>(details).gid);
}

// ---- packets and time ---------------------------------------------------------------------------

void InfinibandPort::receive_mad(const mad::Address& from, std::span<const std::byte> mad,
                                 Time now) {
  if (mad.size() != wire::kMadBytes) return;
  client_->receive(
      {.destination_qpn = wire::kGsiQpn, .from = from, .mad = mad.first<wire::kMadBytes>()}, now);
  run(now);
}

void InfinibandPort::receive(const link::Arrival& arrival, Time now) {
  const auto packet = wire::parse_transport(arrival.transport, arrival.headers);
  if (!packet || packet->bth.opcode != wire::Opcode::kUdSendOnly || !broadcast_group_) return;
  const bool is_group = packet->bth.destination_qpn == wire::kMulticastQpn;
  if (!is_group && packet->bth.destination_qpn != kIpoibQpn) return;
  if (packet->deth.qkey != broadcast_group_->qkey) return;
  neighbours_.receive(arrival.address, packet->deth.source_qpn, packet->payload, now);
  run(now);
}

// Returns the link address for a frame of the interface; nothing if the path is not known yet.
// Without an address, the frame is dropped.  The object neighbours_ repeats its request later, and
// then sends the request to the group.
std::optional<link::Address> InfinibandPort::address_to(const ipoib::SendFrame& frame, Time now) {
  if (frame.is_multicast()) {
    // Frames for all groups go to the broadcast group, because no host joins solicited-node groups.
    // Members of the broadcast group check the IP address in the frame.
    return link::Address{.link_layer = LinkLayer::kInfiniband,
                         .source = first_gid(),
                         .destination = broadcast_group_->mgid,
                         .flow_label = broadcast_group_->flow_label,
                         .traffic_class = broadcast_group_->traffic_class,
                         .hop_limit = broadcast_group_->hop_limit,
                         .source_lid = state_.lid,
                         .destination_lid = broadcast_group_->mlid,
                         .service_level = broadcast_group_->service_level,
                         .has_grh = true,
                         .port = port_};
  }
  if (frame.reply_path) {
    link::Address back = *frame.reply_path;
    back.source_lid = state_.lid;
    back.source = first_gid();
    back.destination = frame.to.gid;
    back.has_grh = true;
    back.port = port_;
    return back;
  }
  const auto lookup =
      client_->paths().find({.destination = frame.to.gid, .source = first_gid(), .pkey = pkey_}, 0,
                            ipoib::kRequestInterval, now);
  if (!lookup) return std::nullopt;
  const auto* known_paths = std::get_if<sa::KnownPaths>(&*lookup);
  if (known_paths == nullptr) return std::nullopt;
  link::Address address = route_of({}, known_paths->path).address;
  address.has_grh = true;
  return address;
}

void InfinibandPort::carry_out(const ipoib::SendFrame& frame, Time now) {
  if (!broadcast_group_) return;
  const auto address = address_to(frame, now);
  if (!address || frames_.size() >= kFramesMax) {
    ++counters_.frames_dropped;
    return;
  }
  frames_.push_back({.address = *address, .qpn = frame.to.qpn, .bytes = frame.frame});
}

bool InfinibandPort::transmit(link::Burst& burst) {
  while (!frames_.empty() && !burst.full() && broadcast_group_) {
    const Frame& frame = frames_.front();
    const std::size_t headers = wire::header_bytes(wire::Opcode::kUdSendOnly);
    const std::uint8_t pad = wire::pad_count(frame.bytes.size());
    const auto out = burst.prepare();
    wire::write_headers(out, {.bth = {.opcode = wire::Opcode::kUdSendOnly,
                                      .pad_count = pad,
                                      .pkey = pkey_,
                                      .destination_qpn = frame.qpn,
                                      .psn = {psn_++ & kPsnMask}},
                              .deth = {.qkey = broadcast_group_->qkey, .source_qpn = kIpoibQpn}});
    const auto payload = out.subspan(headers);
    std::ranges::copy(frame.bytes, payload.begin());
    std::ranges::fill(payload.subspan(frame.bytes.size(), pad), std::byte{0});
    burst.commit(frame.address, headers + frame.bytes.size() + pad);
    frames_.pop_front();
    ++counters_.frames_sent;
  }
  if (!broadcast_group_) frames_.clear();
  return !frames_.empty();
}

void InfinibandPort::on_timer(Time now) {
  client_->on_timer(now);
  neighbours_.on_timer(now);
  if (join_retry_at_ <= now) join_broadcast_group(now);
  expire_joins(now);
  run(now);
}

Time InfinibandPort::deadline() const {
  const Time waiting = waiting_joins_.empty() ? kNever : waiting_joins_.begin()->second.until;
  return std::min({client_->deadline(), neighbours_.deadline(), join_retry_at_, waiting});
}

// Carries out the outputs of the SA client, the caches and the interface until there are no more.
void InfinibandPort::run(Time now) {
  for (bool has_output = true; has_output;) {
    has_output = false;
    while (const auto event = client_->next_event()) {
      has_output = true;
      if (const auto* path = std::get_if<sa::PathEvent>(&*event)) on(*path);
      if (const auto* member = std::get_if<sa::MemberEvent>(&*event)) on(*member, now);
      if (const auto* notice = std::get_if<sa::NoticeEvent>(&*event)) on(*notice);
      if (const auto* service = std::get_if<sa::ServiceEvent>(&*event))
        outputs_.emplace_back(*service);
    }
    while (const auto output = neighbours_.poll()) {
      has_output = true;
      std::visit([&](const auto& item) { carry_out(item, now); }, *output);
    }
  }
  while (const auto packet = client_->next_packet()) outputs_.emplace_back(*packet);
}

std::optional<InfinibandPort::Output> InfinibandPort::poll() {
  if (outputs_.empty()) return std::nullopt;
  std::optional<Output> first = std::move(outputs_.front());
  outputs_.pop_front();
  return first;
}

}  // namespace verbena::node
