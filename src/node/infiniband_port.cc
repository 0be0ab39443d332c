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

sa::PortState for_sa(const PortState& state) {
  return {.active = !state.why_down.has_value(),
          .lid = state.lid,
          .lmc = state.lmc,
          .sm_lid = state.sm_lid,
          .sm_sl = state.sm_sl,
          .gids = state.gids,
          .pkeys = state.pkeys};
}

// Returns true if the client sends all requests again because of this change.  A reregistration in
// the same PortInfo, as a new manager sends it, must then not send them twice.
bool asks_anew(const PortState& old, const PortState& state) {
  return sa::PortChange::between(for_sa(old), for_sa(state)).asks_anew();
}

// Returns a path that differs from `path` in a LID, because it may lead over other switches.
std::optional<wire::PathRecord> other_than(const wire::PathRecord& path,
                                           std::span<const wire::PathRecord> all) {
  const auto found = std::ranges::find_if(all, [&](const wire::PathRecord& one) {
    return one.source_lid != path.source_lid || one.destination_lid != path.destination_lid;
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
  const PortState old = std::exchange(state_, state);
  const Pkey old_pkey = std::exchange(pkey_, connection_pkey(state));
  client_->set_port(for_sa(state), now);
  if (old.link.reregistrations != state.link.reregistrations && !asks_anew(old, state)) {
    client_->reregister(now);
  }
  if (old.lid != state.lid || old.sm_lid != state.sm_lid || old.why_down != state.why_down) {
    neighbours_.forget_all();
  }
  if (old_pkey != pkey_ || old.gids != state.gids) leave_broadcast_group(now);
  neighbours_.set_interface(interface(), now);
  if (!state.why_down && !broadcast_) join_broadcast_group(now);
  run(now);
}

void InfinibandPort::set_addresses(std::vector<ipoib::OwnAddress> addresses, Time now) {
  addresses_ = std::move(addresses);
  neighbours_.set_interface(interface(), now);
  run(now);
}

// ---- the broadcast group ------------------------------------------------------------------------

void InfinibandPort::join_broadcast_group(Time now) {
  join_again_ = kNever;
  if (pkey_ == Pkey{} || first_gid() == Gid{}) return;
  const auto member = client_->memberships().join(
      {.mgid = wire::broadcast_mgid(pkey_), .pkey = Pkey(pkey_.value | wire::kFullMember)}, 0, now);
  if (member) {
    broadcast_ = *member;
  } else {
    join_again_ = now + join_pause_;
  }
}

void InfinibandPort::leave_broadcast_group(Time now) {
  join_again_ = kNever;
  if (const auto member = std::exchange(broadcast_, std::nullopt)) {
    client_->memberships().leave(*member, now);
  }
  if (const auto group = std::exchange(group_, std::nullopt)) {
    outputs_.emplace_back(GroupChanged{group->mgid});
    neighbours_.set_joined(false, now);
  }
}

void InfinibandPort::on_broadcast_group(const sa::MemberEvent& event, Time now) {
  if (event.what == sa::MemberEvent::What::kFailed) {
    broadcast_.reset();
    leave_broadcast_group(now);
    join_again_ = now + join_pause_;
    join_pause_ = std::min(2 * join_pause_, kJoinPauseMax);
    return;
  }
  join_pause_ = kJoinPauseMin;
  const bool is_new = !group_;
  group_ = event.group;
  if (!is_new) return;
  outputs_.emplace_back(GroupChanged{group_->mgid});
  neighbours_.set_joined(true, now);
  for (const auto& [token, join] : std::exchange(waiting_joins_, {})) join_at_sa(join.wanted, now);
}

// ---- multicast groups of programs ---------------------------------------------------------------

void InfinibandPort::join(const GroupWanted& wanted, Time now) {
  if (waiting_joins_.size() + groups_.size() >= kJoinsMax) {
    ++counters_.limit_joins;
    return fail_join(wanted.token, {Errc::kNoResources, 0, "too many joins (kJoinsMax)"});
  }
  if (group_) {
    join_at_sa(wanted, now);
  } else {
    waiting_joins_[wanted.token] = {.wanted = wanted, .until = now + kGroupTimeout};
  }
  run(now);
}

void InfinibandPort::leave(std::uint64_t token, Time now) {
  waiting_joins_.erase(token);
  const auto left = groups_.extract(token);
  if (!left) return;
  token_of_member_.erase(left.mapped().member);
  client_->memberships().leave(left.mapped().member, now);
  run(now);
}

// Uses the values of Linux's RDMA CM (cma_join_ib_multicast()), so that members on Linux hosts and
// Verbena hosts agree about the group.
void InfinibandPort::join_at_sa(const GroupWanted& wanted, Time now) {
  if (((wanted.pkey.value ^ group_->pkey.value) & ~wire::kFullMember) != 0) {
    return fail_join(wanted.token,
                     {Errc::kInvalidArgument, 0, "the P_Key is not that of the IPoIB interface"});
  }
  const bool is_ipoib = wanted.port_space == rdmacm::kPortSpaceIpoib;
  const auto user = is_ipoib ? wire::MgidUser::kIpoib : wire::MgidUser::kRdmaCm;
  sa::JoinRequest request{.mgid = wanted.is_mgid
                                      ? wanted.group
                                      : wire::multicast_mgid(wanted.group, user, group_->pkey),
                          .join_state = wanted.join_state,
                          .qkey = is_ipoib ? group_->qkey : Qkey{rdmacm::kDatagramQkey},
                          .pkey = group_->pkey,
                          .traffic_class = group_->traffic_class,
                          .service_level = group_->service_level,
                          .flow_label = group_->flow_label};
  if (is_ipoib) {
    request.mtu = {.selector = wire::Selector::kExactly, .value = group_->mtu};
    request.rate = {.selector = wire::Selector::kExactly, .value = group_->rate};
    request.hop_limit = group_->hop_limit;
  }
  const auto member = client_->memberships().join(request, 0, now);
  if (!member) return fail_join(wanted.token, member.error());
  groups_[wanted.token] = {.member = *member};
  token_of_member_[*member] = wanted.token;
}

void InfinibandPort::fail_join(std::uint64_t token, const Error& error) {
  outputs_.emplace_back(GroupJoined{token, std::unexpected(error)});
}

void InfinibandPort::expire_joins(Time now) {
  while (!waiting_joins_.empty() && waiting_joins_.begin()->second.until <= now) {
    fail_join(waiting_joins_.begin()->first,
              {Errc::kTimedOut, 0,
               "the port is not in the broadcast group of its partition, whose parameters other "
               "groups need"});
    waiting_joins_.erase(waiting_joins_.begin());
  }
}

void InfinibandPort::on(const sa::MemberEvent& event, Time now) {
  if (broadcast_ && event.member == *broadcast_) return on_broadcast_group(event, now);
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

void InfinibandPort::find_route(const Wanted& wanted, Time now) {
  const auto refuse = [&](Error error) {
    outputs_.emplace_back(RouteFound{wanted.token, std::unexpected(std::move(error))});
  };
  if (state_.why_down) return refuse({Errc::kUnreachable, 0, "the port is down"});
  if (!wanted.by_gid && wire::is_loopback(wanted.destination)) {
    outputs_.emplace_back(RouteFound{wanted.token, loopback_route(wanted)});
    return;
  }
  if (!wanted.by_gid && wire::is_multicast(wanted.destination)) {
    // No request is needed, because a program learns the group's LID from the SA when it joins.
    rdmacm::Route route = loopback_route(wanted);
    route.address.destination =
        wire::multicast_mgid(wanted.destination, wire::MgidUser::kIpoib, pkey_);
    route.address.destination_lid = {};
    route.is_loopback = false;
    outputs_.emplace_back(RouteFound{wanted.token, route});
    return;
  }
  if (routes_.size() >= kRoutesMax) {
    ++counters_.limit_routes;
    return refuse({Errc::kNoResources, 0, "too many routes are being resolved (kRoutesMax)"});
  }
  const auto added = routes_.emplace(
      wanted.token, Route{.wanted = wanted, .ticket = {}, .until = now + kRouteTimeout});
  Route& route = added.first->second;
  if (wanted.by_gid) {
    find_path(route, wanted.destination, now);
    return run(now);
  }
  const auto neighbour = neighbours_.resolve(wanted.destination, wanted.token, now);
  if (!neighbour) {
    end_route(wanted.token, std::unexpected(neighbour.error()));
  } else if (*neighbour) {
    find_path(route, (*neighbour)->gid, now);
  }
  run(now);
}

void InfinibandPort::act(const ipoib::Resolved& resolved, Time now) {
  const auto found = routes_.find(resolved.cookie);
  if (found == routes_.end()) return;
  if (!resolved.neighbour)
    return end_route(found->first, std::unexpected(resolved.neighbour.error()));
  find_path(found->second, resolved.neighbour->gid, now);
}

void InfinibandPort::find_path(Route& route, const Gid& destination, Time now) {
  const std::uint64_t token = route.wanted.token;
  if (is_own(destination)) {
    outputs_.emplace_back(RouteFound{token, loopback_route(route.wanted)});
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
  if (const auto* known = std::get_if<sa::KnownPaths>(&*lookup))
    return end_route(token, PathsOfRoute{known->path, other_than(known->path, known->all)});
  route.ticket = std::get<sa::PathTicket>(*lookup);
}

void InfinibandPort::on(const sa::PathEvent& event) {
  const auto found = routes_.find(event.cookie);
  if (found == routes_.end() || found->second.ticket != event.ticket) return;
  if (event.error) return end_route(event.cookie, std::unexpected(*event.error));
  const wire::PathRecord& first = event.paths.front();
  end_route(event.cookie, PathsOfRoute{first, other_than(first, event.paths)});
}

void InfinibandPort::end_route(std::uint64_t token, const Result<PathsOfRoute>& paths) {
  const auto ended = routes_.extract(token);
  if (!paths) {
    outputs_.emplace_back(RouteFound{token, std::unexpected(paths.error())});
    return;
  }
  rdmacm::Route route = route_of(ended.mapped().wanted, paths->path);
  if (paths->alternate) route.alternate = link::address_of(*paths->alternate, port_);
  outputs_.emplace_back(RouteFound{token, std::move(route)});
}

rdmacm::Route InfinibandPort::route_of(const Wanted& wanted, const wire::PathRecord& path) const {
  return {.source = wanted.source,
          .address = link::address_of(path, port_),
          .pkey = pkey_.value,
          .mtu = path.mtu,
          .packet_life_time = path.packet_life};
}

// Returns a route from the port to itself, which needs no path record.
rdmacm::Route InfinibandPort::loopback_route(const Wanted& wanted) const {
  return {.source = wanted.source,
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

InfinibandPort::Flushed InfinibandPort::flush(Time now) {
  const auto forgotten = [this] {
    return Flushed{.paths = client_->paths().counters().flushed,
                   .addresses = neighbours_.counters().forgotten};
  };
  const Flushed before = forgotten();
  client_->paths().flush(now);
  neighbours_.forget_all();
  const Flushed after = forgotten();
  run(now);
  return {.paths = after.paths - before.paths, .addresses = after.addresses - before.addresses};
}

// Forgets the addresses of a port that has left the subnet, because it may come back with another
// QPN.
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
  if (!packet || packet->bth.opcode != wire::Opcode::kUdSendOnly || !group_) return;
  const bool is_group = packet->bth.destination_qpn == wire::kMulticastQpn;
  if (!is_group && packet->bth.destination_qpn != kIpoibQpn) return;
  if (packet->deth.qkey != group_->qkey) return;
  neighbours_.receive(arrival.address, packet->deth.source_qpn, packet->payload, now);
  run(now);
}

// Returns the link address for a frame of the interface; nothing if the path is not known yet.  The
// frame is lost then, but Neighbours repeats the request, and the repeats go to the group.
std::optional<link::Address> InfinibandPort::address_to(const ipoib::SendFrame& frame, Time now) {
  if (frame.is_multicast()) {
    // All groups use the broadcast group, because no host joins solicited-node groups.  Its members
    // check the IP address in the frame.
    return link::Address{.link_layer = LinkLayer::kInfiniband,
                         .source = first_gid(),
                         .destination = group_->mgid,
                         .flow_label = group_->flow_label,
                         .traffic_class = group_->traffic_class,
                         .hop_limit = group_->hop_limit,
                         .source_lid = state_.lid,
                         .destination_lid = group_->mlid,
                         .service_level = group_->service_level,
                         .has_grh = true,
                         .port = port_};
  }
  if (frame.way_back) {
    link::Address back = *frame.way_back;
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
  const auto* known = std::get_if<sa::KnownPaths>(&*lookup);
  if (known == nullptr) return std::nullopt;
  link::Address address = route_of({}, known->path).address;
  address.has_grh = true;
  return address;
}

void InfinibandPort::act(const ipoib::SendFrame& frame, Time now) {
  if (!group_) return;
  const auto address = address_to(frame, now);
  if (!address || frames_.size() >= kFramesMax) {
    ++counters_.frames_dropped;
    return;
  }
  frames_.push_back({.address = *address, .qpn = frame.to.qpn, .bytes = frame.frame});
}

bool InfinibandPort::transmit(link::Burst& burst) {
  while (!frames_.empty() && !burst.full() && group_) {
    const Frame& frame = frames_.front();
    const std::size_t headers = wire::header_bytes(wire::Opcode::kUdSendOnly);
    const std::uint8_t pad = wire::pad_count(frame.bytes.size());
    const auto out = burst.prepare();
    wire::write_headers(out, {.bth = {.opcode = wire::Opcode::kUdSendOnly,
                                      .pad_count = pad,
                                      .pkey = pkey_,
                                      .destination_qpn = frame.qpn,
                                      .psn = {psn_++ & kPsnMask}},
                              .deth = {.qkey = group_->qkey, .source_qpn = kIpoibQpn}});
    const auto payload = out.subspan(headers);
    std::ranges::copy(frame.bytes, payload.begin());
    std::ranges::fill(payload.subspan(frame.bytes.size(), pad), std::byte{0});
    burst.commit(frame.address, headers + frame.bytes.size() + pad);
    frames_.pop_front();
    ++counters_.frames_sent;
  }
  if (!group_) frames_.clear();
  return !frames_.empty();
}

void InfinibandPort::on_timer(Time now) {
  client_->on_timer(now);
  neighbours_.on_timer(now);
  if (join_again_ <= now) join_broadcast_group(now);
  expire_joins(now);
  run(now);
}

Time InfinibandPort::deadline() const {
  const Time waiting = waiting_joins_.empty() ? kNever : waiting_joins_.begin()->second.until;
  return std::min({client_->deadline(), neighbours_.deadline(), join_again_, waiting});
}

// Carries out the outputs of the SA client, the caches and the interface until there are no more.
void InfinibandPort::run(Time now) {
  for (bool some = true; some;) {
    some = false;
    while (const auto event = client_->next_event()) {
      some = true;
      if (const auto* path = std::get_if<sa::PathEvent>(&*event)) on(*path);
      if (const auto* member = std::get_if<sa::MemberEvent>(&*event)) on(*member, now);
      if (const auto* notice = std::get_if<sa::NoticeEvent>(&*event)) on(*notice);
      if (const auto* service = std::get_if<sa::ServiceEvent>(&*event))
        outputs_.emplace_back(*service);
    }
    while (const auto output = neighbours_.poll()) {
      some = true;
      std::visit([&](const auto& what) { act(what, now); }, *output);
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
