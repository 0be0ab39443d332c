#include "sa/memberships.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sa/manual_sa_test.h"

namespace verbena::sa {
namespace {

using namespace std::chrono_literals;
using wire::McMemberRecord;
using wire::Method;
using wire::SaStatus;
namespace join_state = wire::join_state;

constexpr Gid test_mgid(unsigned last) {
  Gid gid = test_gid(last);
  gid.bytes[0] = std::byte{0xff};
  gid.bytes[1] = std::byte{0x12};
  return gid;
}

class MembershipsTest : public ManualSaTest {
 protected:
  MembershipsTest() { memberships.set_port(port, PortChange::between({}, port), now); }

  Memberships memberships{queries, Random(3)};
  static constexpr Gid kGroup = test_mgid(1);

  void change_port(const PortState& state) {
    const auto change = PortChange::between(port, state);
    port = state;
    if (change.asks_anew()) memberships.hold_new_groups(now);
    queries.set_port({}, state, now);
    memberships.set_port(state, change, now);
  }
  void take(const QueryEnd& end) override { memberships.receive(end, now); }
  void on_timer() override { memberships.on_timer(now); }
  Time deadline() override { return memberships.deadline(); }

  static McMemberRecord record_of(const Gid& mgid) {
    return {.mgid = mgid,
            .port_gid = test_gid(5),
            .qkey = {0xb1b},
            .mlid = {0xc001},
            .mtu = 4,
            .pkey = wire::kDefaultPkey,
            .rate = 3,
            .scope = 2};
  }
  MemberId join(std::uint8_t state = join_state::kFullMember, std::uint64_t cookie = 0,
                const Gid& mgid = kGroup) {
    return *memberships.join({.mgid = mgid, .join_state = state}, cookie, now);
  }
  // Makes a user a member, by an answer of the SA.
  MemberId become_member(std::uint8_t state = join_state::kFullMember, const Gid& mgid = kGroup) {
    const MemberId id = join(state, 0, mgid);
    answer(request(), record_of(mgid));
    EXPECT_EQ(events(), "joined ");
    return id;
  }
  std::string events() {
    std::string text;
    while (const auto event = memberships.next_event()) {
      switch (event->what) {
        case MemberEvent::What::kJoined: text += "joined "; break;
        case MemberEvent::What::kChanged: text += "changed "; break;
        case MemberEvent::What::kFailed: text += "failed "; break;
      }
    }
    return text;
  }
  // Describes a request: its method and join state.
  static std::string text_of(const mad::SendMad& packet) {
    const auto method = header_in(packet).mad.method;
    return std::string(method == Method::kSet      ? "join "
                       : method == Method::kDelete ? "leave "
                                                   : "? ") +
           std::to_string(record_in<McMemberRecord>(packet).join_state);
  }
  std::string sent_text() {
    std::string text;
    for (const auto& packet : sent()) text += text_of(packet) + "; ";
    return text;
  }
};

// SA-10.
TEST_F(MembershipsTest, UsersOfAGroupShareOneMembership) {
  const MemberId a = become_member();
  const MemberId b = join();
  EXPECT_EQ(sent_text(), "");
  EXPECT_EQ(events(), "joined ");
  EXPECT_TRUE(memberships.leave(a, now));
  EXPECT_EQ(sent_text(), "");
  EXPECT_TRUE(memberships.leave(b, now));
  EXPECT_FALSE(memberships.leave(b, now));
  const auto last = request();
  EXPECT_EQ(text_of(last), "leave 1");
  answer(last, record_of(kGroup));
  EXPECT_EQ(memberships.groups(), 0U);
  EXPECT_EQ(events(), "");
}

TEST_F(MembershipsTest, RequestNamesThePortAndTheWantedParameters) {
  ASSERT_TRUE(memberships.join(
      {.mgid = kGroup, .qkey = Qkey{7}, .pkey = wire::kDefaultPkey, .service_level = 2}, 0, now));
  const auto sent_join = request();
  using Mask = McMemberRecord::Mask;
  EXPECT_EQ(header_in(sent_join).component_mask, Mask::kMgid | Mask::kPortGid | Mask::kJoinState |
                                                     Mask::kQkey | Mask::kPkey |
                                                     Mask::kServiceLevel);
  const auto record = record_in<McMemberRecord>(sent_join);
  EXPECT_EQ(record.port_gid, test_gid(5));
  EXPECT_EQ(record.qkey, Qkey{7});
  EXPECT_EQ(record.service_level, 2);
}

TEST_F(MembershipsTest, JoinStatesAreMergedAndLeftOneByOne) {
  const MemberId full = become_member(join_state::kFullMember);
  const MemberId non = join(join_state::kNonMember);
  const auto second = request();
  EXPECT_EQ(text_of(second), "join 2");
  answer(second, record_of(kGroup));
  const MemberId both = join(join_state::kFullMember | join_state::kNonMember);
  EXPECT_EQ(sent_text(), "");
  EXPECT_EQ(events(), "joined joined ");
  memberships.leave(full, now);
  memberships.leave(non, now);
  EXPECT_EQ(sent_text(), "");
  memberships.leave(both, now);
  EXPECT_EQ(sent_text(), "leave 3; ");
}

// OpenSM 3.3.23 forgets both if the port has been the only full member.
TEST_F(MembershipsTest, RestOfAMembershipIsConfirmedAfterTheFullMemberHasLeft) {
  const MemberId full = become_member(join_state::kFullMember);
  join(join_state::kSendOnlyFullMember);
  answer(request(), record_of(kGroup));
  events();
  memberships.leave(full, now);
  const auto left = request();
  EXPECT_EQ(text_of(left), "leave 1");
  answer(left, record_of(kGroup));
  const auto rest = request();
  EXPECT_EQ(text_of(rest), "join 8");
  EXPECT_EQ(record_in<McMemberRecord>(rest).mlid, record_of(kGroup).mlid);
  answer(rest, record_of(kGroup));
  EXPECT_EQ(sent_text() + events(), "");
}

TEST_F(MembershipsTest, RestOfAMembershipNeedsNoConfirmationIfItIsTheFullMember) {
  become_member(join_state::kFullMember);
  const MemberId sender = join(join_state::kSendOnlyFullMember);
  answer(request(), record_of(kGroup));
  memberships.leave(sender, now);
  const auto left = request();
  EXPECT_EQ(text_of(left), "leave 8");
  answer(left, record_of(kGroup));
  EXPECT_EQ(sent_text(), "");
}

TEST_F(MembershipsTest, RequestsOfAGroupAreSerialAndGroupsAreIndependent) {
  join(join_state::kFullMember);
  join(join_state::kNonMember);
  join(join_state::kFullMember, 0, test_mgid(2));
  const auto first = sent();
  ASSERT_EQ(first.size(), 2U) << "one for each group";
  EXPECT_EQ(text_of(first[0]), "join 1");
  answer(first[0], record_of(kGroup));
  EXPECT_EQ(sent_text(), "join 2; ");
}

// SA-13.
TEST_F(MembershipsTest, UserThatLeavesBeforeItsJoinEndsLeavesNothingBehind) {
  const MemberId id = join();
  const auto sent_join = request();
  EXPECT_TRUE(memberships.leave(id, now));
  EXPECT_EQ(sent_text(), "") << "the leave must not overtake the join";
  answer(sent_join, record_of(kGroup));
  const auto left = request();
  EXPECT_EQ(text_of(left), "leave 1");
  answer(left, record_of(kGroup));
  EXPECT_EQ(events(), "");
  EXPECT_EQ(memberships.groups(), 0U);
}

TEST_F(MembershipsTest, JoinDuringALeaveFollowsIt) {
  const MemberId id = become_member();
  memberships.leave(id, now);
  const auto left = request();
  join();
  EXPECT_EQ(sent_text(), "");
  EXPECT_EQ(events(), "");
  answer(left, record_of(kGroup));
  const auto again = request();
  EXPECT_EQ(text_of(again), "join 1");
  answer(again, record_of(kGroup));
  EXPECT_EQ(events(), "joined ");
}

TEST_F(MembershipsTest, RefusedJoinFailsItsUserOnly) {
  become_member();
  join(join_state::kSendOnlyFullMember);
  refuse(request(), SaStatus::kRequestDenied);
  const auto event = memberships.next_event();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->what, MemberEvent::What::kFailed);
  EXPECT_EQ(event->error->code, Errc::kRejected);
  EXPECT_EQ(sent_text(), "");
  EXPECT_EQ(memberships.members(), 1U);
}

TEST_F(MembershipsTest, JoinWithoutAnswerFailsAndIsUndone) {
  ASSERT_TRUE(memberships.join({.mgid = kGroup, .give_up_after = 5s}, 9, now));
  const auto all = run_for(5s);
  const auto event = memberships.next_event();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->cookie, 9U);
  EXPECT_EQ(event->error->code, Errc::kTimedOut);
  // The SA may have heard the join.
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(text_of(all.back()), "leave 1");
}

TEST_F(MembershipsTest, UserBehindAnotherOneHasItsOwnDeadline) {
  join();
  ASSERT_TRUE(memberships.join(
      {.mgid = kGroup, .join_state = join_state::kNonMember, .give_up_after = 2s}, 2, now));
  run_for(2s);
  const auto event = memberships.next_event();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->cookie, 2U);
  EXPECT_FALSE(memberships.next_event());
}

// SA-11: the three tries of Linux are for the lifetime of a group.
TEST_F(MembershipsTest, EachLeaveHasItsOwnTries) {
  for (int round = 0; round < 3; ++round) {
    const MemberId id = become_member();
    memberships.leave(id, now);
    std::vector<mad::SendMad> tries;
    while (tries.size() < Memberships::kLeaveTries) {
      for (const auto& packet : run_for(1s)) tries.push_back(packet);
    }
    answer(tries.back(), record_of(kGroup));
    run_for(Memberships::kStrayTime);
    EXPECT_EQ(memberships.groups(), 0U);
  }
  EXPECT_EQ(memberships.counters().leaves_given_up, 0U);
}

// Seeds 181 and 9711 of the simulation: a repeat of a request reached the manager after the next
// request of its group.
TEST_F(MembershipsTest, LateRepeatOfAJoinCannotUndoALeave) {
  const MemberId id = join();
  const auto tries = run_for(3s);
  ASSERT_GT(tries.size(), 1U);
  answer(tries[0], record_of(kGroup));
  memberships.leave(id, now);
  answer(request(), record_of(kGroup));
  const auto again = run_for(Memberships::kStrayTime);
  ASSERT_FALSE(again.empty());
  EXPECT_EQ(text_of(again[0]), "leave 1");
  refuse(again.back(), SaStatus::kRequestInvalid);
  EXPECT_EQ(memberships.counters().asserted_again, 1U);
}

TEST_F(MembershipsTest, LateRepeatOfALeaveCannotUndoAJoin) {
  const MemberId id = become_member();
  memberships.leave(id, now);
  const auto tries = run_for(3s);
  ASSERT_GT(tries.size(), 1U);
  answer(tries[0], record_of(kGroup));
  become_member();
  const auto again = run_for(Memberships::kStrayTime);
  ASSERT_FALSE(again.empty());
  EXPECT_EQ(text_of(again[0]), "join 1");
  answer(again[0], record_of(kGroup));
  EXPECT_EQ(events(), "") << "the user does not notice";
}

TEST_F(MembershipsTest, LeaveWithoutAnswerEndsAfterItsRounds) {
  const MemberId id = become_member();
  memberships.leave(id, now);
  const auto tries = run_for(10min);
  EXPECT_EQ(tries.size(), std::size_t{Memberships::kLeaveTries} * Memberships::kLeaveRounds);
  EXPECT_EQ(memberships.groups(), 0U);
  EXPECT_EQ(memberships.counters().leaves_given_up, 1U);
  EXPECT_EQ(memberships.deadline(), kNever);
}

TEST_F(MembershipsTest, ManagerChoosesTheMgid) {
  const MemberId id = join(join_state::kFullMember, 0, Gid{});
  join(join_state::kFullMember, 0, Gid{});
  const auto requests = sent();
  ASSERT_EQ(requests.size(), 2U) << "each user gets a group of its own";
  EXPECT_EQ(header_in(requests[0]).component_mask & McMemberRecord::Mask::kMgid, 0U);
  answer(requests[0], record_of(test_mgid(77)));
  EXPECT_EQ(memberships.next_event()->group.mgid, test_mgid(77));
  answer(requests[1], record_of(test_mgid(78)));
  EXPECT_EQ(memberships.next_event()->group.mgid, test_mgid(78));
  // Others may join it by its name.
  join(join_state::kFullMember, 0, test_mgid(77));
  EXPECT_EQ(events(), "joined ");
  memberships.leave(id, now);
  EXPECT_EQ(sent_text(), "");
}

TEST_F(MembershipsTest, MgidThatIsChosenTwiceIsOneGroup) {
  const MemberId a = join(join_state::kFullMember, 0, Gid{});
  const MemberId b = join(join_state::kFullMember, 0, Gid{});
  const auto requests = sent();
  answer(requests[0], record_of(test_mgid(77)));
  answer(requests[1], record_of(test_mgid(77)));
  EXPECT_EQ(events(), "joined joined ");
  EXPECT_EQ(memberships.groups(), 1U);
  memberships.leave(a, now);
  EXPECT_EQ(sent_text(), "");
  memberships.leave(b, now);
  EXPECT_EQ(sent_text(), "leave 1; ");
}

TEST_F(MembershipsTest, AnswerForAnotherGroupFailsTheJoin) {
  join();
  answer(request(), record_of(test_mgid(9)));
  EXPECT_EQ(memberships.next_event()->error->code, Errc::kMalformed);
}

TEST_F(MembershipsTest, UserWithOtherParametersIsRefusedAtOnce) {
  become_member();
  ASSERT_TRUE(memberships.join({.mgid = kGroup, .qkey = Qkey{1}}, 0, now));
  EXPECT_EQ(sent_text(), "");
  EXPECT_EQ(memberships.next_event()->error->code, Errc::kInvalidArgument);
  ASSERT_TRUE(memberships.join(
      {.mgid = kGroup, .mtu = JoinRequest::Limit{wire::Selector::kGreater, 3}}, 0, now));
  EXPECT_EQ(events(), "joined ");
}

TEST_F(MembershipsTest, RequestsThatMakeNoSenseAreRefused) {
  EXPECT_FALSE(memberships.join({.mgid = test_gid(1)}, 0, now));
  EXPECT_FALSE(memberships.join({.mgid = kGroup, .join_state = 0}, 0, now));
  EXPECT_FALSE(memberships.join({.mgid = kGroup, .join_state = 16}, 0, now));
}

TEST_F(MembershipsTest, MembersHaveALimit) {
  become_member();
  for (std::size_t i = 1; i < Memberships::kMembersMax; ++i) join();
  EXPECT_EQ(memberships.join({.mgid = kGroup}, 0, now).error().code, Errc::kNoResources);
  EXPECT_EQ(memberships.counters().limit_members, 1U);
}

// ---- changes ------------------------------------------------------------------------------------

// SA-12: every user of Linux has to join again by itself.
TEST_F(MembershipsTest, NewManagerGetsTheUnionAgainAndUsersDoNotNotice) {
  become_member(join_state::kFullMember);
  join(join_state::kNonMember);
  answer(request(), record_of(kGroup));
  events();
  PortState other = port;
  other.sm_lid = {2};
  change_port(other);
  const auto again = request();
  EXPECT_EQ(text_of(again), "join 3");
  EXPECT_EQ(again.to.path.destination_lid, Lid{2});
  answer(again, record_of(kGroup));
  EXPECT_EQ(events(), "");
  EXPECT_EQ(memberships.counters().rejoins, 1U);
}

// OpenSM counts the LIDs of groups anew, in the order of the joins.  If it gives groups each
// other's LIDs, their members are told to join again.
TEST_F(MembershipsTest, RejoinWishesForTheLidThatTheGroupHasHad) {
  join();
  const auto first = request();
  EXPECT_EQ(record_in<McMemberRecord>(first).mlid, Lid{});
  answer(first, record_of(kGroup));
  memberships.reregister(now);
  const auto again = request();
  EXPECT_EQ(record_in<McMemberRecord>(again).mlid, record_of(kGroup).mlid);
  EXPECT_EQ(header_in(again).component_mask & McMemberRecord::Mask::kMlid, 0U);
}

// Without its parameters the group would get any LID, and its members would not hear of that.
TEST_F(MembershipsTest, ALeaveThatTheNewManagerGetsFirstDoesNotForgetTheParametersOfTheGroup) {
  become_member();
  const MemberId sender = join(join_state::kSendOnlyFullMember);
  auto record = record_of(kGroup);
  record.mlid = {0xc006};
  answer(request(), record);
  (void)events();
  memberships.leave(sender, now);
  EXPECT_EQ(text_of(request()), "leave 8");
  auto other = port;
  other.sm_lid = {2};
  change_port(other);
  refuse(request(), SaStatus::kRequestInvalid);  // the leave, which is still under way
  const auto rejoin = request();
  EXPECT_EQ(text_of(rejoin), "join 1");
  EXPECT_EQ(record_in<McMemberRecord>(rejoin).mlid, Lid{0xc006});
  record.mlid = {0xc002};
  answer(rejoin, record);
  EXPECT_EQ(events(), "changed ");
}

// Otherwise the new group could get the LID of the one that is joined again.
TEST_F(MembershipsTest, NewManagerHearsOfNewGroupsLast) {
  become_member();
  join(join_state::kSendOnlyFullMember, 0, test_mgid(2));
  EXPECT_EQ(sent_text(), "join 8; ");
  PortState other = port;
  other.sm_lid = {2};
  change_port(other);
  join(join_state::kNonMember, 0, test_mgid(3));
  const auto again = request();
  EXPECT_EQ(record_in<McMemberRecord>(again).mgid, kGroup);
  answer(again, record_of(kGroup));
  EXPECT_EQ(run_for(Memberships::kRejoinsFirst - 1ns).size(), 0U);
  const auto last = run_for(1ns);
  ASSERT_EQ(last.size(), 2U);
  EXPECT_EQ(text_of(last[0]) + ", " + text_of(last[1]), "join 8, join 2");
  answer(last[0], record_of(test_mgid(2)));
  answer(last[1], record_of(test_mgid(3)));
  EXPECT_EQ(events(), "joined joined ");
}

TEST_F(MembershipsTest, FirstManagerHearsOfNewGroupsAtOnce) {
  join();
  request();
  PortState other = port;
  other.sm_lid = {2};
  change_port(other);
  EXPECT_EQ(text_of(request()), "join 1");
}

TEST_F(MembershipsTest, UserOfANewGroupThatLeavesMeanwhileLeavesNothingBehind) {
  become_member();
  const MemberId id = join(join_state::kFullMember, 0, test_mgid(2));
  request();
  memberships.reregister(now);
  answer(request(), record_of(kGroup));
  EXPECT_TRUE(memberships.leave(id, now));
  const auto last = run_for(Memberships::kRejoinsFirst).at(0);
  EXPECT_EQ(text_of(last), "leave 1");
  EXPECT_EQ(record_in<McMemberRecord>(last).mgid, test_mgid(2));
  answer(last, record_of(test_mgid(2)));
  const auto after_strays = run_for(Memberships::kStrayTime - Memberships::kRejoinsFirst);
  ASSERT_EQ(after_strays.size(), 1U);
  EXPECT_EQ(text_of(after_strays[0]), "leave 1");
  answer(after_strays[0], record_of(test_mgid(2)));
  EXPECT_EQ(memberships.groups(), 1U);
}

TEST_F(MembershipsTest, UsersHearOfNewParameters) {
  const MemberId id = become_member();
  memberships.reregister(now);
  McMemberRecord other = record_of(kGroup);
  other.mlid = {0xc002};
  answer(request(), other);
  const auto event = memberships.next_event();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->member, id);
  EXPECT_EQ(event->what, MemberEvent::What::kChanged);
  EXPECT_EQ(event->group.mlid, Lid{0xc002});
}

TEST_F(MembershipsTest, UserWhoseParametersAreGoneFails) {
  ASSERT_TRUE(memberships.join({.mgid = kGroup, .qkey = Qkey{0xb1b}}, 0, now));
  answer(request(), record_of(kGroup));
  events();
  memberships.reregister(now);
  McMemberRecord other = record_of(kGroup);
  other.qkey = {1};
  answer(request(), other);
  EXPECT_EQ(events(), "failed ");
}

// SA-11: Linux has no case for a new manager, among others.
TEST_F(MembershipsTest, EachLossLeadsToANewJoin) {
  become_member();
  const auto rejoined = [&](const char* cause) {
    const auto again = sent();
    EXPECT_EQ(again.size(), 1U) << cause;
    if (again.empty()) return;
    EXPECT_EQ(text_of(again[0]), "join 1") << cause;
    answer(again[0], record_of(kGroup));
    EXPECT_EQ(events(), "") << cause;
  };
  memberships.group_deleted(kGroup, now);
  rejoined("group deleted");
  memberships.reregister(now);
  rejoined("reregister");
  PortState state = port;
  state.lid = {6};
  change_port(state);
  rejoined("LID");
  state.pkeys = {wire::kDefaultPkey};
  change_port(state);
  rejoined("P_Key at another place");
  state.active = false;
  change_port(state);
  EXPECT_EQ(sent_text(), "");
  state.active = true;
  change_port(state);
  rejoined("port down and up");
}

TEST_F(MembershipsTest, PkeyChangeOfAnotherPartitionChangesNothing) {
  become_member();
  PortState state = port;
  state.pkeys[0] = Pkey{0x8002};
  change_port(state);
  EXPECT_EQ(sent_text(), "");
}

TEST_F(MembershipsTest, JoinThatTheManagerMayHaveForgottenIsRepeated) {
  join();
  const auto before = request();
  memberships.reregister(now);
  answer(before, record_of(kGroup));
  EXPECT_EQ(events(), "joined ");
  EXPECT_EQ(sent_text(), "join 1; ");
}

TEST_F(MembershipsTest, RejoinGoesOnWhileTheManagerIsSilentAndEndsWhenItRefuses) {
  become_member();
  memberships.reregister(now);
  const auto tries = run_for(5min);
  EXPECT_GT(tries.size(), 20U);
  EXPECT_EQ(events(), "");
  unsigned refusals = 0;
  mad::SendMad last = tries.back();
  while (memberships.members() != 0) {
    refuse(last, SaStatus::kRequestInvalid);
    ++refusals;
    const auto next = run_for(30s);
    if (next.empty()) break;
    last = next.front();
  }
  EXPECT_EQ(refusals, Memberships::kRejoinRefusalsMax);
  EXPECT_EQ(events(), "failed ");
}

TEST_F(MembershipsTest, RejoinCarriesTheParametersThatMakeTheGroup) {
  become_member();
  ASSERT_TRUE(memberships.join({.mgid = kGroup,
                                .join_state = join_state::kNonMember,
                                .qkey = Qkey{0xb1b},
                                .pkey = wire::kDefaultPkey},
                               0, now));
  answer(request(), record_of(kGroup));
  memberships.reregister(now);
  const auto again = request();
  EXPECT_EQ(record_in<McMemberRecord>(again).qkey, Qkey{0xb1b});
  EXPECT_EQ(text_of(again), "join 3");
}

// Linux asks the SA about this as well, and refuses the join with EOPNOTSUPP.
TEST_F(MembershipsTest, SendOnlyFullMemberFailsAtOnceIfTheManagerHasNone) {
  memberships.set_send_only_full_members(false, now);
  const auto refused =
      memberships.join({.mgid = kGroup, .join_state = join_state::kSendOnlyFullMember}, 0, now);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kNotSupported);
  EXPECT_TRUE(sent().empty());
  EXPECT_EQ(memberships.counters().unsupported, 1U);
  become_member();
  memberships.set_send_only_full_members(true, now);
  become_member(join_state::kSendOnlyFullMember);
}

// Linux refuses such joins from a reregistration until the SA has told again what it can do.
TEST_F(MembershipsTest, SendOnlyFullMemberIsSentToAManagerThatHasNotToldWhatItCanDo) {
  memberships.set_send_only_full_members(false, now);
  memberships.set_send_only_full_members(std::nullopt, now);
  become_member(join_state::kSendOnlyFullMember);
  join(join_state::kSendOnlyFullMember, 0, test_mgid(2));
  refuse(request(), SaStatus::kRequestInvalid);
  EXPECT_EQ(events(), "failed ");
}

TEST_F(MembershipsTest, ManagerWithoutSendOnlyFullMembersEndsOnlyThoseMemberships) {
  become_member();
  const MemberId sender = join(join_state::kSendOnlyFullMember);
  answer(request(), record_of(kGroup));
  const MemberId waits = join(join_state::kNonMember);
  const MemberId waits_too = join(join_state::kSendOnlyFullMember);
  EXPECT_EQ(events(), "joined ");
  const auto under_way = request();
  memberships.set_send_only_full_members(false, now);
  const auto first = memberships.next_event();
  const auto second = memberships.next_event();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->member, sender);
  EXPECT_EQ(first->error->code, Errc::kNotSupported);
  EXPECT_EQ(second->member, waits_too);
  EXPECT_EQ(second->error->code, Errc::kNotSupported);
  answer(under_way, record_of(kGroup));
  EXPECT_EQ(memberships.next_event()->member, waits);
  EXPECT_EQ(events(), "");
  EXPECT_EQ(sent_text(), "leave 8; ");
  memberships.set_send_only_full_members(false, now);
  EXPECT_EQ(events(), "");
}

// The SA decides about a join that it has got already.
TEST_F(MembershipsTest, JoinUnderWayIsNotEndedByWhatTheManagerTellsMeanwhile) {
  join(join_state::kSendOnlyFullMember);
  const auto under_way = request();
  memberships.set_send_only_full_members(false, now);
  EXPECT_EQ(events(), "");
  refuse(under_way, SaStatus::kRequestInvalid);
  EXPECT_EQ(events(), "failed ");
}

}  // namespace
}  // namespace verbena::sa
