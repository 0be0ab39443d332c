#include "sa/memberships.h"

#include <algorithm>
#include <bit>

namespace verbena::sa {

using wire::McMemberRecord;

namespace {

constexpr std::byte kMulticastPrefix{0xff};  // vol1 4.1.1

Error timed_out(std::uint32_t tries) {
  return QueryResult{.outcome = QueryResult::Outcome::kTimedOut, .tries = tries}.error();
}

constexpr Error kNoSendOnlyFullMembers{
    .code = Errc::kNotSupported,
    .context = "the subnet manager does not support send-only full members"};

bool is_send_only_full(const JoinRequest& request) {
  return (request.join_state & wire::join_state::kSendOnlyFullMember) != 0;
}

}  // namespace

// ---- users --------------------------------------------------------------------------------------

Result<MemberId> Memberships::join(const JoinRequest& request, std::uint64_t cookie, Time now) {
  if (request.mgid != Gid{} && request.mgid.bytes[0] != kMulticastPrefix) {
    return fail(Errc::kInvalidArgument, "the GID is not a multicast GID");
  }
  if (request.join_state == 0 || (request.join_state & ~wire::join_state::kAll) != 0) {
    return fail(Errc::kInvalidArgument, "the join state is unknown");
  }
  if (lacks_send_only_full_ && is_send_only_full(request)) {
    ++counters_.unsupported;
    return std::unexpected(kNoSendOnlyFullMembers);
  }
  if (members_.size() >= kMembersMax) {
    ++counters_.limit_members;
    return fail(Errc::kNoResources, "too many members of multicast groups");
  }
  GroupKey key = 0;
  if (const auto existing = by_mgid_.find(request.mgid); existing != by_mgid_.end())
    key = existing->second;
  if (key == 0) {
    key = ++last_group_;
    groups_.emplace(key, Group{.mgid = request.mgid});
    if (request.mgid != Gid{}) by_mgid_.emplace(request.mgid, key);
  }
  const MemberId id{++last_member_};
  const Time until = now + request.give_up_after;
  members_.emplace(id, Member{.request = request, .cookie = cookie, .group = key, .until = until});
  joins_due_.emplace(until, id);
  const auto found = groups_.find(key);
  found->second.waiting.insert(id);
  send_next_request(found, now);
  return id;
}

bool Memberships::leave(MemberId id, Time now) {
  std::erase_if(events_, [&](const MemberEvent& event) { return event.member == id; });
  const auto found = members_.find(id);
  if (found == members_.end()) return false;
  const GroupKey key = found->second.group;
  ++counters_.left;
  remove_member(id);
  send_next_request(groups_.find(key), now);
  return true;
}

void Memberships::remove_member(MemberId id) {
  const auto found = members_.find(id);
  joins_due_.erase({found->second.until, id});
  Group& group = groups_.at(found->second.group);
  group.waiting.erase(id);
  if (group.joined.erase(id) != 0) group.add_users(found->second.request.join_state, ~0U);
  members_.erase(found);
}

void Memberships::report(MemberId id, MemberEvent event) {
  event.member = id;
  event.cookie = members_.at(id).cookie;
  events_.push_back(std::move(event));
}

void Memberships::fail_member(MemberId id, const Error& error) {
  ++counters_.failed;
  report(id, {.what = MemberEvent::What::kFailed, .error = error});
  remove_member(id);
}

std::optional<MemberEvent> Memberships::next_event() {
  if (events_.empty()) return std::nullopt;
  MemberEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

// ---- groups -------------------------------------------------------------------------------------

std::uint8_t Memberships::Group::wanted() const {
  unsigned bits = 0;
  for (std::size_t i = 0; i < users.size(); ++i) {
    if (users[i] != 0) bits |= 1U << i;
  }
  return static_cast<std::uint8_t>(bits);
}

void Memberships::Group::add_users(std::uint8_t join_state, std::uint32_t difference) {
  for (std::size_t i = 0; i < users.size(); ++i) {
    if ((join_state >> i & 1) != 0) users[i] += difference;
  }
}

void Memberships::complete_join(Group& group, MemberId id, const McMemberRecord& record) {
  const Member& member = members_.at(id);
  joins_due_.erase({member.until, id});
  group.waiting.erase(id);
  group.joined.insert(id);
  group.add_users(member.request.join_state, 1);
  ++counters_.joined;
  report(id, {.what = MemberEvent::What::kJoined, .group = record});
}

void Memberships::send_next_request(Groups::iterator found, Time now) {
  const GroupKey key = found->first;
  Group& group = found->second;
  while (group.request == Request::kNone) {
    const std::uint8_t users = group.wanted();
    if ((users & ~group.confirmed) != 0) {
      if (now < group.not_before) return set_timer(key, group, group.not_before);
      if (!port_.is_ready()) return;
      ++counters_.rejoins;
      return send_join(found, Request::kRejoin, rejoin_parameters(group), users,
                       Query::kGiveUpAfterDefault, now);
    }
    if (!group.waiting.empty()) {
      const MemberId first_waiting = *group.waiting.begin();
      if (finish_join_without_request(group, first_waiting)) continue;
      if (!group.record && now < new_groups_allowed_at_)
        return set_timer(key, group, new_groups_allowed_at_);
      const Member& member = members_.at(first_waiting);
      group.joining_member = first_waiting;
      return send_join(found, Request::kJoin, member.request, member.request.join_state,
                       member.until - now, now);
    }
    const auto surplus = static_cast<std::uint8_t>(group.possible & ~users);
    if (surplus == 0 || group.mgid == Gid{}) break;
    if (now < group.not_before) return set_timer(key, group, group.not_before);
    return send_leave(found, surplus, now);
  }
  if (group.request != Request::kNone || !group.is_empty() || group.is_repeat_due) return;
  // Keeps the group while a stray leave may arrive, because such a leave could undo the next join.
  // Then the group must repeat the join.
  if (now < group.stray_until) return set_timer(key, group, group.stray_until);
  if (group.mgid != Gid{}) by_mgid_.erase(group.mgid);
  set_timer(key, group, kNever);
  groups_.erase(found);
}

void Memberships::set_timer(GroupKey key, Group& group, Time until) {
  timers_.erase({group.not_before, key});
  group.not_before = until == kNever ? Time{} : until;
  if (until != kNever) timers_.emplace(until, key);
}

bool Memberships::finish_join_without_request(Group& group, MemberId id) {
  const Member& member = members_.at(id);
  if (group.confirmed == 0 || !group.record) return false;
  if (!satisfies(*group.record, member.request)) {
    fail_member(id, {.code = Errc::kInvalidArgument,
                     .context = "the multicast group's parameters do not match the request"});
    return true;
  }
  if ((member.request.join_state & ~group.confirmed) != 0) return false;
  complete_join(group, id, *group.record);
  return true;
}

void Memberships::send_join(Groups::iterator found, Request request, const JoinRequest& parameters,
                            std::uint8_t bits, Duration give_up_after, Time now) {
  ++counters_.joins_sent;
  const Group& group = found->second;
  const Gid source = port_.gids.empty() ? Gid{} : port_.gids.front();
  const Lid known_mlid = group.record ? group.record->mlid : Lid{};
  Query query = join_query(parameters, group.mgid, known_mlid, source, bits);
  query.give_up_after = give_up_after;
  ask(found, request, query, bits, now);
}

void Memberships::send_leave(Groups::iterator found, std::uint8_t bits, Time now) {
  ++counters_.leaves_sent;
  Group& group = found->second;
  group.confirmed = static_cast<std::uint8_t>(group.confirmed & ~bits);
  const Gid source = port_.gids.empty() ? Gid{} : port_.gids.front();
  Query query = leave_query(group.mgid, source, bits);
  query.tries_max = kLeaveTries;
  query.give_up_after = std::chrono::minutes(2);
  ask(found, Request::kLeave, query, bits, now);
}

void Memberships::ask(Groups::iterator found, Request request, const Query& query,
                      std::uint8_t bits, Time now) {
  Group& group = found->second;
  const auto query_id = queries_.ask(query, QueryOwner::kMemberships, found->first, now);
  if (!query_id) {
    // Too many queries wait.  A user's join fails, but other requests are tried again.
    if (request == Request::kJoin) {
      fail_member(group.joining_member, query_id.error());
      return send_next_request(found, now);
    }
    return set_timer(found->first, group, now + kRejoinPauseMin);
  }
  set_timer(found->first, group, kNever);
  group.request = request;
  group.request_join_state = bits;
  group.query = *query_id;
  group.may_be_lost = false;
  by_query_.emplace(*query_id, found->first);
  schedule_repeat_after_strays(found->first, group, now);
}

void Memberships::record_strays(Group& group, const QueryResult& result, Time now) {
  if (result.tries <= 1 && result.outcome != QueryResult::Outcome::kTimedOut) return;
  auto& strays = group.request == Request::kLeave ? group.stray_leaves : group.stray_joins;
  strays |= group.request_join_state;
  group.stray_until = now + kStrayTime;
}

void Memberships::schedule_repeat_after_strays(GroupKey key, Group& group, Time now) {
  if (group.is_repeat_due) return;
  if (now >= group.stray_until) group.stray_joins = group.stray_leaves = 0;
  const bool is_leave = group.request == Request::kLeave;
  if ((group.request_join_state & (is_leave ? group.stray_joins : group.stray_leaves)) == 0) return;
  group.is_repeat_due = true;
  repeats_due_.emplace(group.stray_until, key);
}

// Repeats the last request, because strays of earlier requests may have undone it.
void Memberships::repeat_last_request(Groups::iterator found, Time now) {
  Group& group = found->second;
  ++counters_.repeated_after_strays;
  group.may_be_lost = true;
  group.possible |= group.stray_joins;
  group.confirmed = static_cast<std::uint8_t>(group.confirmed & ~group.stray_leaves);
  // Later strays may have extended stray_until since the repeat was scheduled.
  group.is_repeat_due = now < group.stray_until;
  if (group.is_repeat_due) {
    repeats_due_.emplace(group.stray_until, found->first);
  } else {
    group.stray_joins = group.stray_leaves = 0;
  }
  send_next_request(found, now);
}

// Returns the request with the most parameters, because the rejoin may have to create the group.
const JoinRequest& Memberships::rejoin_parameters(const Group& group) const {
  const auto most_specific = std::ranges::max_element(
      group.joined, {}, [&](MemberId id) { return count_fields(members_.at(id).request); });
  return members_.at(*most_specific).request;
}

// ---- answers ------------------------------------------------------------------------------------

void Memberships::receive(const QueryResult& result, Time now) {
  const auto pending = by_query_.find(result.id);
  if (pending == by_query_.end()) return;
  const auto found = groups_.find(pending->second);
  by_query_.erase(pending);
  record_strays(found->second, result, now);
  if (found->second.request == Request::kLeave) return receive_leave(found, result, now);
  receive_join(found, result, now);
}

void Memberships::receive_join(Groups::iterator found, const QueryResult& result, Time now) {
  if (result.outcome != QueryResult::Outcome::kAnswered) {
    return handle_failed_join(found, result.error(),
                              result.outcome == QueryResult::Outcome::kTimedOut, now);
  }
  const auto records = result.records<McMemberRecord>(1);
  const Gid mgid = found->second.mgid;
  if (!records || records->empty() || records->front().mgid.bytes[0] != kMulticastPrefix ||
      (mgid != Gid{} && records->front().mgid != mgid)) {
    return handle_failed_join(
        found,
        {.code = Errc::kMalformed,
         .context = "the subnet manager answered for another multicast group"},
        true, now);
  }
  const std::uint8_t bits = found->second.request_join_state;
  const MemberId joining_member = found->second.joining_member;
  const Request request = std::exchange(found->second.request, Request::kNone);
  const bool may_be_lost = found->second.may_be_lost;
  const bool is_merged = mgid == Gid{} && by_mgid_.contains(records->front().mgid);
  if (mgid == Gid{}) found = set_mgid(found, records->front().mgid);
  Group& group = found->second;
  group.possible |= bits;
  // A join that was merged into another group may have reached the SA before a leave of that group,
  // so its bits are not certain.
  if (!may_be_lost && !is_merged) group.confirmed |= bits;
  group.rejoin_refusals = 0;
  // This precedes complete_join(), because the user that joins needs no kChanged.
  set_record(group, records->front());
  if (request == Request::kJoin) {
    if (const auto member = members_.find(joining_member);
        member != members_.end() && member->second.group == found->first) {
      complete_join(group, joining_member, records->front());
    }
  }
  send_next_request(found, now);
}

// Stores the parameters of a group, and reports changes to its members.
void Memberships::set_record(Group& group, const McMemberRecord& record) {
  const auto old_record = std::exchange(group.record, record);
  const bool is_changed = old_record && differ_for_members(*old_record, record);
  if (!is_changed) return;
  ++counters_.changed;
  const auto members = group.joined;
  for (const MemberId id : members) {
    const Member& member = members_.at(id);
    if (!satisfies(record, member.request)) {
      fail_member(id, {.code = Errc::kRejected,
                       .context = "the multicast group's new parameters do not match the request"});
    } else {
      report(id, {.what = MemberEvent::What::kChanged, .group = record});
    }
  }
}

Memberships::Groups::iterator Memberships::set_mgid(Groups::iterator found, const Gid& mgid) {
  const auto [existing, is_new] = by_mgid_.emplace(mgid, found->first);
  if (is_new) {
    found->second.mgid = mgid;
    return found;
  }
  // The SA has chosen the MGID of a group that has users already.
  const auto target = groups_.find(existing->second);
  VB_CHECK(found->second.joined.empty());
  for (const MemberId id : found->second.waiting) {
    members_.at(id).group = target->first;
    target->second.waiting.insert(id);
  }
  groups_.erase(found);
  return target;
}

void Memberships::handle_failed_join(Groups::iterator found, const Error& error, bool may_be_at_sa,
                                     Time now) {
  Group& group = found->second;
  const Request request = std::exchange(group.request, Request::kNone);
  if (may_be_at_sa) group.possible |= group.request_join_state;
  if (request == Request::kJoin) {
    if (members_.contains(group.joining_member)) fail_member(group.joining_member, error);
    return send_next_request(found, now);
  }
  const bool is_refused = error.code != Errc::kTimedOut;
  if (is_refused && ++group.rejoin_refusals >= kRejoinRefusalsMax) {
    const auto members = group.joined;
    for (const MemberId id : members) fail_member(id, error);
    group.rejoin_refusals = 0;
    group.record.reset();
    return send_next_request(found, now);
  }
  const Duration pause = std::min<Duration>(
      kRejoinPauseMax, kRejoinPauseMin * (1 << std::min(group.rejoin_refusals, 8U)) / 2);
  const auto jitter = random_.below(static_cast<std::uint64_t>(pause.count() / 2));
  set_timer(found->first, group, now + pause + Duration(static_cast<std::int64_t>(jitter)));
}

void Memberships::receive_leave(Groups::iterator found, const QueryResult& result, Time now) {
  Group& group = found->second;
  group.request = Request::kNone;
  if (result.outcome == QueryResult::Outcome::kTimedOut && ++group.leave_rounds < kLeaveRounds) {
    // Users that need the group do not wait for the pause.
    const bool is_wanted = !group.waiting.empty() || (group.wanted() & ~group.confirmed) != 0;
    set_timer(found->first, group, is_wanted ? kNever : now + kLeavePause);
    return send_next_request(found, now);
  }
  if (result.outcome == QueryResult::Outcome::kTimedOut) ++counters_.leaves_given_up;
  group.leave_rounds = 0;
  group.possible = static_cast<std::uint8_t>(group.possible & ~group.request_join_state);
  // OpenSM 3.3.23 removes the port entirely if it was the last full member, so a join confirms the
  // other bits again.  The record is kept if there are members, because they still use its
  // parameters.
  const bool keeps_record = group.confirmed != 0 || !group.joined.empty();
  if ((group.request_join_state & wire::join_state::kFullMember) != 0) group.confirmed = 0;
  if (!keeps_record) group.record.reset();
  send_next_request(found, now);
}

// ---- changes and time ---------------------------------------------------------------------------

void Memberships::mark_as_lost(Groups::iterator found, Time now) {
  Group& group = found->second;
  group.confirmed = 0;
  group.may_be_lost = true;
  group.rejoin_refusals = 0;
  if (group.request == Request::kNone) set_timer(found->first, group, kNever);
  send_next_request(found, now);
}

void Memberships::mark_all_as_lost(Time now) {
  for (auto found = groups_.begin(); found != groups_.end();) mark_as_lost(found++, now);
}

void Memberships::delay_new_groups(Time now) {
  if (std::ranges::none_of(groups_,
                           [](const auto& entry) { return entry.second.record.has_value(); }))
    return;
  new_groups_allowed_at_ = now + kNewGroupDelay;
  for (auto& [key, group] : groups_) {
    if (group.record || group.request != Request::kJoin) continue;
    by_query_.erase(group.query);
    queries_.cancel(group.query, now);
    group.request = Request::kNone;
    // The manager may have received the cancelled join, or may still receive it.
    group.possible |= group.request_join_state;
    group.stray_joins |= group.request_join_state;
    group.stray_until = now + kStrayTime;
    set_timer(key, group, new_groups_allowed_at_);
  }
}

void Memberships::set_port(const PortState& state, const PortChange& change, Time now) {
  const PortState old_port = std::exchange(port_, state);
  if (change.resends_queries() || change.gids_changed) {
    mark_all_as_lost(now);
    // The effect of a pending request is not lost if Queries sends the request again.  But the
    // request still names the old GID of the port.
    if (!change.resends_queries() || change.gids_changed) return;
    for (auto& [key, group] : groups_) group.may_be_lost = false;
    return;
  }
  if (!change.pkeys_changed) return;
  for (auto found = groups_.begin(); found != groups_.end();) {
    const auto current = found++;
    const auto& record = current->second.record;
    if (!record || old_port.pkey_index(record->pkey) == state.pkey_index(record->pkey)) continue;
    mark_as_lost(current, now);
  }
}

void Memberships::set_send_only_full_members(std::optional<bool> are_supported, Time now) {
  const bool are_unsupported = are_supported.has_value() && !*are_supported;
  const bool were_unsupported = std::exchange(lacks_send_only_full_, are_unsupported);
  if (!are_unsupported || were_unsupported) return;
  std::set<GroupKey> changed_groups;
  for (auto it = members_.begin(); it != members_.end();) {
    const auto& [id, member] = *it++;
    const Group& group = groups_.at(member.group);
    // A join that was sent does not fail here, because the SA will answer it.
    const bool is_pending = group.request == Request::kJoin && group.joining_member == id;
    if (!is_send_only_full(member.request) || is_pending) continue;
    ++counters_.unsupported;
    changed_groups.insert(member.group);
    fail_member(id, kNoSendOnlyFullMembers);
  }
  for (const GroupKey key : changed_groups) send_next_request(groups_.find(key), now);
}

void Memberships::reregister(Time now) {
  delay_new_groups(now);
  mark_all_as_lost(now);
}

void Memberships::group_deleted(const Gid& mgid, Time now) {
  const auto existing = by_mgid_.find(mgid);
  if (existing != by_mgid_.end()) mark_as_lost(groups_.find(existing->second), now);
}

void Memberships::on_timer(Time now) {
  while (!joins_due_.empty() && joins_due_.begin()->first <= now) {
    const MemberId id = joins_due_.begin()->second;
    const GroupKey key = members_.at(id).group;
    const Group& group = groups_.at(key);
    const bool is_pending = group.request == Request::kJoin && group.joining_member == id;
    fail_member(id, timed_out(is_pending ? queries_.tries(group.query) : 0));
    send_next_request(groups_.find(key), now);
  }
  while (!repeats_due_.empty() && repeats_due_.begin()->first <= now) {
    const GroupKey key = repeats_due_.begin()->second;
    repeats_due_.erase(repeats_due_.begin());
    repeat_last_request(groups_.find(key), now);
  }
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const GroupKey key = timers_.begin()->second;
    timers_.erase(timers_.begin());
    send_next_request(groups_.find(key), now);
  }
}

Time Memberships::deadline() const {
  Time earliest = kNever;
  if (!joins_due_.empty()) earliest = joins_due_.begin()->first;
  if (!timers_.empty()) earliest = std::min(earliest, timers_.begin()->first);
  if (!repeats_due_.empty()) earliest = std::min(earliest, repeats_due_.begin()->first);
  return earliest;
}

void Memberships::visit(const std::function<void(const View&)>& f) const {
  for (const auto& [key, group] : groups_) {
    f({.mgid = group.mgid,
       .join_state = group.confirmed,
       .wanted = group.wanted(),
       .members = group.joined.size() + group.waiting.size(),
       .record = group.record,
       .has_request = group.request != Request::kNone});
  }
}

}  // namespace verbena::sa
