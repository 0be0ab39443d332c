#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/counter_names.h"
#include "base/error.h"
#include "base/random.h"
#include "base/strong.h"
#include "base/time.h"
#include "sa/join_request.h"
#include "sa/queries.h"
#include "sa/types.h"
#include "wire/sa.h"

namespace verbena::sa {

// Identifies one user's membership of a group.  No number is used twice.
using MemberId = Strong<struct MemberIdTag, std::uint64_t>;

struct MemberEvent {
  enum class What : std::uint8_t {
    kJoined,
    kChanged,  // the group has other parameters now; the membership continues
    kFailed,   // the membership has ended, or the join was refused
  };
  MemberId member{};
  std::uint64_t cookie = 0;
  What what{};
  wire::McMemberRecord group{};  // zeros with kFailed
  std::optional<Error> error{};  // only with kFailed
};

struct MembershipCounters {
  std::uint64_t joins_sent = 0;
  std::uint64_t leaves_sent = 0;
  std::uint64_t joined = 0;  // users that have joined
  std::uint64_t failed = 0;  // users that got kFailed
  std::uint64_t left = 0;    // users that have left
  std::uint64_t rejoins = 0;
  std::uint64_t repeated_after_strays = 0;
  std::uint64_t changed = 0;
  std::uint64_t leaves_given_up = 0;
  std::uint64_t unsupported = 0;  // users whose join state the SA does not support
  std::uint64_t limit_members = 0;
  friend bool operator==(const MembershipCounters&, const MembershipCounters&) = default;
};

// Keeps the port a member of a multicast group as long as one of its users needs it.  The SA does
// not count users.  It stores a port's membership of a group as four bits, the join state (vol1
// 15.2.5.17).
//
//   wanted:     the union of the join states of all users that have joined
//   confirmed:  the bits that the SA certainly has
//   possible:   the confirmed bits, and those that the SA may have because an answer was lost
//
//   wanted has bits that confirmed lacks  -->  rejoin, because the SA may have lost the membership
//   a user waits                          -->  join, if confirmed lacks bits of its join state
//   possible has bits that wanted lacks   -->  leave with these bits
//
// Each group has at most one pending request, so the SA cannot get requests in another order.
// Groups do not wait for one another, except for kNewGroupDelay.  If a user leaves before its join
// ends, the join continues, and a leave follows.
//
// Invariants:
//  * Each user gets kFailed, or kJoined, any number of kChanged, and at most one kFailed.
//  * A user gets no event after it has left.
class Memberships {
 public:
  // Limits the members, and with them the groups that have members.  Groups that the port is
  // leaving are not limited.
  static constexpr std::size_t kMembersMax = 65536;
  static constexpr std::uint32_t kLeaveTries = 6;  // in each of kLeaveRounds rounds
  // A leave that got no answer is tried again after this time, because the manager may have been
  // unreachable.  Without this leave, the manager would keep the membership.
  static constexpr Duration kLeavePause = std::chrono::seconds(60);
  static constexpr unsigned kLeaveRounds = 3;
  // A stray is a repeated request that reaches the SA after the answer, at most this much later.  A
  // stray may undo the next request, so that request is sent again after this time.
  static constexpr Duration kStrayTime = std::chrono::seconds(10);
  // A manager that has just started may refuse rejoins for a while.  After this many refusals in a
  // row, the users of the group get kFailed.
  static constexpr unsigned kRejoinRefusalsMax = 6;
  static constexpr Duration kRejoinPauseMin = std::chrono::seconds(1);
  static constexpr Duration kRejoinPauseMax = std::chrono::seconds(16);

  // A new manager gives MLIDs to groups in the order of the joins.  Joins of new groups wait this
  // long, so that rejoins and their first repeats come first and get their former MLIDs.
  static constexpr Duration kNewGroupDelay = std::chrono::seconds(2);

  Memberships(Queries& queries, Random random) : queries_(queries), random_(random) {}

  // Begins a membership.  A MemberEvent follows.  Fails with kInvalidArgument: the MGID or the join
  // state is invalid; kNotSupported: the SA has no send-only full members; kNoResources:
  // kMembersMax.
  Result<MemberId> join(const JoinRequest& request, std::uint64_t cookie, Time now);
  // Ends a membership in any state.  Returns false if the membership has already ended.
  bool leave(MemberId member, Time now);
  std::optional<MemberEvent> next_event();

  // Delays joins of new groups by kNewGroupDelay, if other groups must rejoin.  REQUIRES: if the
  // port changes, Queries::set_port() was not called yet, because it would send pending joins to
  // the new manager.
  void delay_new_groups(Time now);
  // Reports changes of the port.  REQUIRES: Queries::set_port() was called before.
  void set_port(const PortState& state, const PortChange& change, Time now);
  // Sets whether the SA supports send-only full members.  If this is unknown (no value), joins are
  // sent, and the SA decides.  If the SA does not support them, users with this join state
  // get kFailed, except a user whose join is pending.
  void set_send_only_full_members(std::optional<bool> are_supported, Time now);
  // Reports that the SA has forgotten all memberships of the port.
  void reregister(Time now);
  // Reports that the SA has deleted the group.
  void group_deleted(const Gid& mgid, Time now);

  void receive(const QueryResult& result, Time now);
  void on_timer(Time now);
  Time deadline() const;

  // Describes a group for display.
  struct View {
    Gid mgid{};
    std::uint8_t join_state = 0;  // the state that the SA has confirmed
    std::uint8_t wanted = 0;
    std::size_t members = 0;  // including users that wait
    std::optional<wire::McMemberRecord> record{};
    bool has_request = false;
  };
  void visit(const std::function<void(const View&)>& f) const;
  std::size_t groups() const { return groups_.size(); }
  std::size_t members() const { return members_.size(); }
  const MembershipCounters& counters() const { return counters_; }

 private:
  using GroupKey = std::uint64_t;
  struct Member {
    JoinRequest request{};
    std::uint64_t cookie = 0;
    GroupKey group = 0;
    Time until{};  // the join fails at this time
  };
  enum class Request : std::uint8_t { kNone, kJoin, kRejoin, kLeave };
  struct Group {
    Gid mgid{};  // 0: the SA has not chosen it yet
    std::optional<wire::McMemberRecord> record{};
    std::set<MemberId> joined{};           // users that have joined
    std::set<MemberId> waiting{};          // users that wait, in the order of their joins
    std::array<std::uint32_t, 4> users{};  // number of joined users for each join state bit
    std::uint8_t confirmed = 0;
    std::uint8_t possible = 0;
    Request request = Request::kNone;
    QueryId query{};
    std::uint8_t request_join_state = 0;  // sent in the request
    MemberId joining_member{};            // the user for whom kJoin was sent
    bool may_be_lost = false;             // the SA may have lost the effect of the request
    Time not_before{};                    // the earliest time of the next rejoin or leave
    unsigned rejoin_refusals = 0;
    unsigned leave_rounds = 0;
    // Bits of joins and leaves that were repeated, or had no answer.  Strays may still arrive.
    std::uint8_t stray_joins = 0;
    std::uint8_t stray_leaves = 0;
    Time stray_until{};
    bool is_repeat_due = false;  // repeat_last_request() is due at stray_until

    // Returns the union of the join states of all users that have joined.
    std::uint8_t wanted() const;
    // Adds `difference`, which is 1 or -1 (~0U), to the users of each bit of the join state.
    void add_users(std::uint8_t join_state, std::uint32_t difference);
    bool is_empty() const { return joined.empty() && waiting.empty(); }
  };
  using Groups = std::map<GroupKey, Group>;

  // Sends the next request of a group if one is needed.  Erases a group without users.
  void send_next_request(Groups::iterator found, Time now);
  // Ends the join of a user if no request is needed.  Returns false if a request is needed.
  bool finish_join_without_request(Group& group, MemberId member);
  // Moves a user from `waiting` to `joined`, and reports kJoined.
  void complete_join(Group& group, MemberId id, const wire::McMemberRecord& record);
  void send_join(Groups::iterator found, Request request, const JoinRequest& parameters,
                 std::uint8_t bits, Duration give_up_after, Time now);
  void send_leave(Groups::iterator found, std::uint8_t bits, Time now);
  void ask(Groups::iterator found, Request request, const Query& query, std::uint8_t bits,
           Time now);
  // Sets the earliest time of the next request of the group.  kNever: the request is not delayed.
  void set_timer(GroupKey key, Group& group, Time until);

  void receive_join(Groups::iterator found, const QueryResult& result, Time now);
  void receive_leave(Groups::iterator found, const QueryResult& result, Time now);
  // Records that repeats of a request that has ended may still arrive at the SA.
  void record_strays(Group& group, const QueryResult& result, Time now);
  // Schedules a repeat of the new request if strays may undo it.
  void schedule_repeat_after_strays(GroupKey key, Group& group, Time now);
  void repeat_last_request(Groups::iterator found, Time now);
  void handle_failed_join(Groups::iterator found, const Error& error, bool may_be_at_sa, Time now);
  // Gives the group the MGID that the SA has chosen.  If another group has this MGID, moves the
  // users to it.  Returns the group with the MGID.
  Groups::iterator set_mgid(Groups::iterator found, const Gid& mgid);
  void set_record(Group& group, const wire::McMemberRecord& record);
  const JoinRequest& rejoin_parameters(const Group& group) const;
  // Records that the SA has lost the membership, and begins a rejoin if users need the group.
  void mark_as_lost(Groups::iterator found, Time now);
  void mark_all_as_lost(Time now);

  void report(MemberId member, MemberEvent event);
  void fail_member(MemberId member, const Error& error);
  void remove_member(MemberId member);

  Queries& queries_;
  Random random_;
  PortState port_{};
  Groups groups_{};
  std::map<Gid, GroupKey> by_mgid_{};
  std::map<MemberId, Member> members_{};
  std::map<QueryId, GroupKey> by_query_{};
  std::set<std::pair<Time, MemberId>> joins_due_{};  // when joins of waiting users time out
  std::set<std::pair<Time, GroupKey>> timers_{};
  std::set<std::pair<Time, GroupKey>> repeats_due_{};  // when repeat_last_request() is due
  Time new_groups_allowed_at_{};                       // joins of new groups wait for this time
  bool lacks_send_only_full_ = false;  // the SA does not support send-only full members
  GroupKey last_group_ = 0;
  std::uint64_t last_member_ = 0;
  std::deque<MemberEvent> events_{};
  MembershipCounters counters_{};
};

inline constexpr auto kMembershipCounterNames = std::to_array<MemberName<MembershipCounters>>({
    {&MembershipCounters::joins_sent, "sa_joins_sent"},
    {&MembershipCounters::leaves_sent, "sa_leaves_sent"},
    {&MembershipCounters::joined, "sa_members_joined"},
    {&MembershipCounters::failed, "sa_members_failed"},
    {&MembershipCounters::left, "sa_members_left"},
    {&MembershipCounters::rejoins, "sa_rejoins"},
    {&MembershipCounters::repeated_after_strays, "sa_requests_repeated_after_strays"},
    {&MembershipCounters::changed, "sa_groups_changed"},
    {&MembershipCounters::leaves_given_up, "sa_leaves_given_up"},
    {&MembershipCounters::unsupported, "sa_joins_unsupported"},
    {&MembershipCounters::limit_members, "limit_sa_members"},
});
static_assert(names_every_counter(kMembershipCounterNames));

}  // namespace verbena::sa
