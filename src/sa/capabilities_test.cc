#include "sa/capabilities.h"

#include <gtest/gtest.h>

#include "sa/manual_sa_test.h"

namespace verbena::sa {
namespace {

using namespace std::chrono_literals;
using wire::ClassPortInfo;

class CapabilitiesTest : public ManualSaTest {
 protected:
  CapabilitiesTest() { set_port(port); }
  void on_query_result(const QueryResult& result) override { capabilities.receive(result, now); }
  void on_timer() override { capabilities.on_timer(now); }
  Time deadline() override { return capabilities.deadline(); }

  void set_port(const PortState& state) {
    const PortChange change = PortChange::between(state_, state);
    state_ = state;
    queries.set_port({}, state, now);
    capabilities.set_port(state, change, now);
  }
  static ClassPortInfo info(bool has_send_only) {
    return {.class_version = 2, .capability_mask2 = has_send_only ? 0x1000U : 0x7ffefffU};
  }

  Capabilities capabilities{queries, Random(8)};

 private:
  PortState state_{};
};

TEST_F(CapabilitiesTest, ManagerIsAskedOnceAndItsAnswerIsStored) {
  const auto packet = request();
  EXPECT_EQ(header_in(packet).mad.method, wire::Method::kGet);
  EXPECT_EQ(header_in(packet).mad.attribute_id, wire::kAttributeClassPortInfo);
  EXPECT_FALSE(capabilities.has_send_only_full_members().has_value());
  answer(packet, info(true));
  EXPECT_EQ(capabilities.has_send_only_full_members(), true);
  PortState moved = port;
  moved.lid = {6};
  set_port(moved);
  EXPECT_TRUE(run_for(1h).empty()) << "the manager is the same";
  EXPECT_EQ(capabilities.has_send_only_full_members(), true);
}

TEST_F(CapabilitiesTest, CapabilitiesAreQueriedAgainAfterANewManagerOrAReregistration) {
  answer(request(), info(true));
  PortState other = port;
  other.sm_lid = {2};
  set_port(other);
  EXPECT_FALSE(capabilities.has_send_only_full_members().has_value())
      << "another manager sent the answer";
  answer(request(), info(false));
  EXPECT_EQ(capabilities.has_send_only_full_members(), false);
  capabilities.reregister(now);
  EXPECT_FALSE(capabilities.has_send_only_full_members().has_value());
  answer(request(), info(true));
  EXPECT_EQ(capabilities.has_send_only_full_members(), true);
}

TEST_F(CapabilitiesTest, QueryIsSentAgainIfAReregistrationCameBeforeItsAnswer) {
  const auto first_request = request();
  capabilities.reregister(now);
  EXPECT_TRUE(sent().empty()) << "only one query is pending at a time";
  answer(first_request, info(true));
  EXPECT_FALSE(capabilities.has_send_only_full_members().has_value());
  answer(request(), info(false));
  EXPECT_EQ(capabilities.has_send_only_full_members(), false);
}

TEST_F(CapabilitiesTest, PendingQueryIsSentToTheNewManager) {
  const auto old_request = request();
  PortState other = port;
  other.sm_lid = {2};
  set_port(other);
  answer(old_request, info(true));
  EXPECT_FALSE(capabilities.has_send_only_full_members().has_value());
  answer(request(), info(false));
  EXPECT_EQ(capabilities.has_send_only_full_members(), false);
  EXPECT_TRUE(run_for(1h).empty());
}

TEST_F(CapabilitiesTest, RefusedQueryIsRepeatedLater) {
  refuse(request(), wire::SaStatus::kNoResources);
  EXPECT_TRUE(run_for(Capabilities::kRetryPause - 1ms).empty());
  const auto repeats = run_until(capabilities.deadline());
  ASSERT_EQ(repeats.size(), 1U);
  answer(repeats[0], info(true));
  EXPECT_EQ(capabilities.has_send_only_full_members(), true);
  EXPECT_EQ(capabilities.counters().failed, 1U);
}

TEST_F(CapabilitiesTest, PortThatIsDownHasNoTimer) {
  refuse(request(), wire::SaStatus::kNoResources);
  PortState down = port;
  down.active = false;
  set_port(down);
  EXPECT_TRUE(run_for(2 * Capabilities::kRetryPause).empty());
  EXPECT_EQ(capabilities.deadline(), kNever);
  set_port(port);
  answer(request(), info(true));
  EXPECT_EQ(capabilities.has_send_only_full_members(), true);
}

}  // namespace
}  // namespace verbena::sa
