#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "sa/members_test.h"

// Tests memberships when the port, the manager or a group changes.
namespace verbena::sa {
namespace {

using namespace std::chrono_literals;
using wire::McMemberRecord;
using wire::SaStatus;
namespace join_state = wire::join_state;

// On Linux, each user must join again by itself.
TEST_F(MembershipsTest, NewManagerGetsTheUnionAgainAndUsersGetNoEvent) {
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

// A restarted OpenSM gives MLIDs to groups in the order of the joins.  If groups got each other's
// MLIDs, their members would have to join again.
TEST_F(MembershipsTest, RejoinAsksForTheFormerMlidOfTheGroup) {
  join();
  const auto first = request();
  EXPECT_EQ(record_in<McMemberRecord>(first).mlid, Lid{});
  answer(first, record_of(kGroup));
  memberships.reregister(now);
  const auto again = request();
  EXPECT_EQ(record_in<McMemberRecord>(again).mlid, record_of(kGroup).mlid);
  EXPECT_EQ(header_in(again).component_mask & McMemberRecord::Mask::kMlid, 0U);
}

// If the parameters were forgotten, the group could get another MLID, and members would get no
// event.
TEST_F(MembershipsTest, GroupKeepsItsParametersIfALeaveReachesTheNewManagerFirst) {
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
  refuse(request(), SaStatus::kRequestInvalid);  // the new manager refuses the leave
  const auto rejoin = request();
  EXPECT_EQ(text_of(rejoin), "join 1");
  EXPECT_EQ(record_in<McMemberRecord>(rejoin).mlid, Lid{0xc006});
  record.mlid = {0xc002};
  answer(rejoin, record);
  EXPECT_EQ(events(), "changed ");
}

// If a new group joined first, it could get the MLID of a group that rejoins.
TEST_F(MembershipsTest, NewManagerGetsRejoinsBeforeJoinsOfNewGroups) {
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
  EXPECT_EQ(run_for(Memberships::kNewGroupDelay - 1ns).size(), 0U);
  const auto last = run_for(1ns);
  ASSERT_EQ(last.size(), 2U);
  EXPECT_EQ(text_of(last[0]) + ", " + text_of(last[1]), "join 8, join 2");
  answer(last[0], record_of(test_mgid(2)));
  answer(last[1], record_of(test_mgid(3)));
  EXPECT_EQ(events(), "joined joined ");
}

TEST_F(MembershipsTest, JoinOfANewGroupIsSentAtOnceIfNoGroupRejoins) {
  join();
  request();
  PortState other = port;
  other.sm_lid = {2};
  change_port(other);
  EXPECT_EQ(text_of(request()), "join 1");
}

TEST_F(MembershipsTest, SaGetsALeaveIfTheUserOfANewGroupLeavesDuringTheDelay) {
  become_member();
  const MemberId id = join(join_state::kFullMember, 0, test_mgid(2));
  request();
  memberships.reregister(now);
  answer(request(), record_of(kGroup));
  EXPECT_TRUE(memberships.leave(id, now));
  const auto last = run_for(Memberships::kNewGroupDelay).at(0);
  EXPECT_EQ(text_of(last), "leave 1");
  EXPECT_EQ(record_in<McMemberRecord>(last).mgid, test_mgid(2));
  answer(last, record_of(test_mgid(2)));
  const auto after_strays = run_for(Memberships::kStrayTime - Memberships::kNewGroupDelay);
  ASSERT_EQ(after_strays.size(), 1U);
  EXPECT_EQ(text_of(after_strays[0]), "leave 1");
  answer(after_strays[0], record_of(test_mgid(2)));
  EXPECT_EQ(memberships.groups(), 1U);
}

TEST_F(MembershipsTest, UsersGetAnEventWithTheNewParameters) {
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

TEST_F(MembershipsTest, UserThatJoinsWithTheNewParametersGetsOnlyOneEvent) {
  const MemberId first = become_member();
  const MemberId second = join(join_state::kNonMember);
  McMemberRecord other = record_of(kGroup);
  other.mlid = {0xc002};
  answer(request(), other);
  std::map<MemberId, MemberEvent::What> whats;
  while (const auto event = memberships.next_event()) {
    EXPECT_TRUE(whats.emplace(event->member, event->what).second) << "a user gets one event";
    EXPECT_EQ(event->group.mlid, Lid{0xc002});
  }
  EXPECT_EQ(whats, (std::map<MemberId, MemberEvent::What>{{first, MemberEvent::What::kChanged},
                                                          {second, MemberEvent::What::kJoined}}));
}

TEST_F(MembershipsTest, UserFailsIfTheNewParametersDoNotMatchItsRequest) {
  ASSERT_TRUE(memberships.join({.mgid = kGroup, .qkey = Qkey{0xb1b}}, 0, now));
  answer(request(), record_of(kGroup));
  events();
  memberships.reregister(now);
  McMemberRecord other = record_of(kGroup);
  other.qkey = {1};
  answer(request(), other);
  EXPECT_EQ(events(), "failed ");
}

// Linux does not handle some of these cases, for example a new manager.
TEST_F(MembershipsTest, EachLossOfTheMembershipLeadsToARejoin) {
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
  rejoined("P_Key at another index");
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

// The pending join is sent again, but names the old GID.
TEST_F(MembershipsTest, JoinWithAFormerGidOfThePortIsRepeated) {
  join();
  request();
  PortState state = port;
  state.sm_lid = {2};
  state.gids = {test_gid(6)};
  change_port(state);
  const auto with_old_gid = request();
  EXPECT_EQ(record_in<McMemberRecord>(with_old_gid).port_gid, test_gid(5));
  answer(with_old_gid, record_of(kGroup));
  EXPECT_EQ(events(), "joined ");
  const auto again = request();
  EXPECT_EQ(text_of(again), "join 1");
  EXPECT_EQ(record_in<McMemberRecord>(again).port_gid, test_gid(6));
}

TEST_F(MembershipsTest, RejoinContinuesWhileTheManagerIsSilentAndEndsWhenItRefuses) {
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

TEST_F(MembershipsTest, RejoinCarriesTheParametersThatCreateTheGroup) {
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

// Linux also asks the SA for its capabilities, and refuses the join with EOPNOTSUPP.
TEST_F(MembershipsTest, SendOnlyFullMemberFailsAtOnceIfTheManagerSupportsNone) {
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

// After a reregistration, Linux refuses such joins until the SA has reported its capabilities
// again.
TEST_F(MembershipsTest, SendOnlyJoinIsSentToAManagerOfUnknownCapabilities) {
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
  const MemberId waiting_member = join(join_state::kNonMember);
  const MemberId waiting_sender = join(join_state::kSendOnlyFullMember);
  EXPECT_EQ(events(), "joined ");
  const auto pending_join = request();
  memberships.set_send_only_full_members(false, now);
  const auto first = memberships.next_event();
  const auto second = memberships.next_event();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->member, sender);
  EXPECT_EQ(first->error->code, Errc::kNotSupported);
  EXPECT_EQ(second->member, waiting_sender);
  EXPECT_EQ(second->error->code, Errc::kNotSupported);
  answer(pending_join, record_of(kGroup));
  EXPECT_EQ(memberships.next_event()->member, waiting_member);
  EXPECT_EQ(events(), "");
  EXPECT_EQ(sent_text(), "leave 8; ");
  memberships.set_send_only_full_members(false, now);
  EXPECT_EQ(events(), "");
}

// The SA itself decides about a join that was sent.
TEST_F(MembershipsTest, PendingJoinIsNotEndedByTheManagersCapabilities) {
  join(join_state::kSendOnlyFullMember);
  const auto pending_join = request();
  memberships.set_send_only_full_members(false, now);
  EXPECT_EQ(events(), "");
  refuse(pending_join, SaStatus::kRequestInvalid);
  EXPECT_EQ(events(), "failed ");
}

}  // namespace
}  // namespace verbena::sa
