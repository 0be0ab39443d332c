#include "sa/memberships.h"

#include <gtest/gtest.h>

#include <vector>

#include "sa/members_test.h"

namespace verbena::sa {
namespace {

using namespace std::chrono_literals;
using wire::McMemberRecord;
using wire::SaStatus;
namespace join_state = wire::join_state;

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

TEST_F(MembershipsTest, JoinStatesAreMergedAndEndWithTheirLastUsers) {
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

// OpenSM 3.3.23 removes both memberships if the port was the only full member.
TEST_F(MembershipsTest, OtherJoinStatesAreConfirmedAfterTheFullMemberHasLeft) {
  const MemberId full = become_member(join_state::kFullMember);
  join(join_state::kSendOnlyFullMember);
  answer(request(), record_of(kGroup));
  events();
  memberships.leave(full, now);
  const auto leave_request = request();
  EXPECT_EQ(text_of(leave_request), "leave 1");
  answer(leave_request, record_of(kGroup));
  const auto rejoin = request();
  EXPECT_EQ(text_of(rejoin), "join 8");
  EXPECT_EQ(record_in<McMemberRecord>(rejoin).mlid, record_of(kGroup).mlid);
  answer(rejoin, record_of(kGroup));
  EXPECT_EQ(sent_text() + events(), "");
}

TEST_F(MembershipsTest, FullMemberNeedsNoConfirmationAfterASenderHasLeft) {
  become_member(join_state::kFullMember);
  const MemberId sender = join(join_state::kSendOnlyFullMember);
  answer(request(), record_of(kGroup));
  memberships.leave(sender, now);
  const auto leave_request = request();
  EXPECT_EQ(text_of(leave_request), "leave 8");
  answer(leave_request, record_of(kGroup));
  EXPECT_EQ(sent_text(), "");
}

TEST_F(MembershipsTest, RequestsOfAGroupAreSerialAndGroupsAreIndependent) {
  join(join_state::kFullMember);
  join(join_state::kNonMember);
  join(join_state::kFullMember, 0, test_mgid(2));
  const auto first = sent();
  ASSERT_EQ(first.size(), 2U) << "each group has one pending request";
  EXPECT_EQ(text_of(first[0]), "join 1");
  answer(first[0], record_of(kGroup));
  EXPECT_EQ(sent_text(), "join 2; ");
}

TEST_F(MembershipsTest, MembershipEndsIfItsUserLeavesBeforeTheJoinEnds) {
  const MemberId id = join();
  const auto sent_join = request();
  EXPECT_TRUE(memberships.leave(id, now));
  EXPECT_EQ(sent_text(), "") << "the leave must not overtake the join";
  answer(sent_join, record_of(kGroup));
  const auto leave_request = request();
  EXPECT_EQ(text_of(leave_request), "leave 1");
  answer(leave_request, record_of(kGroup));
  EXPECT_EQ(events(), "");
  EXPECT_EQ(memberships.groups(), 0U);
}

TEST_F(MembershipsTest, JoinDuringALeaveIsSentAfterTheLeave) {
  const MemberId id = become_member();
  memberships.leave(id, now);
  const auto leave_request = request();
  join();
  EXPECT_EQ(sent_text(), "");
  EXPECT_EQ(events(), "");
  answer(leave_request, record_of(kGroup));
  const auto again = request();
  EXPECT_EQ(text_of(again), "join 1");
  answer(again, record_of(kGroup));
  EXPECT_EQ(events(), "joined ");
}

TEST_F(MembershipsTest, RefusedJoinFailsOnlyItsUser) {
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
  // The SA may have received the join, so a leave follows.
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(text_of(all.back()), "leave 1");
}

TEST_F(MembershipsTest, UserThatWaitsForTheJoinOfAnotherUserHasItsOwnDeadline) {
  join();
  ASSERT_TRUE(memberships.join(
      {.mgid = kGroup, .join_state = join_state::kNonMember, .give_up_after = 2s}, 2, now));
  run_for(2s);
  const auto event = memberships.next_event();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->cookie, 2U);
  EXPECT_FALSE(memberships.next_event());
}

// On Linux, all leaves in the lifetime of a group share three tries.
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

// The simulation found this case (seeds 181 and 9711): a repeat of a request reached the manager
// after the next request of its group.
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
  EXPECT_EQ(memberships.counters().repeated_after_strays, 1U);
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
  EXPECT_EQ(events(), "") << "the user gets no event";
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
  // Other users may join the chosen group by its MGID.
  join(join_state::kFullMember, 0, test_mgid(77));
  EXPECT_EQ(events(), "joined ");
  memberships.leave(id, now);
  EXPECT_EQ(sent_text(), "");
}

TEST_F(MembershipsTest, UsersThatGetTheSameMgidShareOneGroup) {
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

TEST_F(MembershipsTest, InvalidRequestsAreRefused) {
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

}  // namespace
}  // namespace verbena::sa
