#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hca/test_pair.h"

// Tests the behaviour that differs between adapters: the times at which completions become visible
// and requests are flushed.

namespace verbena::hca {
namespace {

using namespace testing;
using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::size_t notification_count(Host& host) {
  std::size_t count = 0;
  for (const Event& event : host.events()) count += std::holds_alternative<CqNotify>(event) ? 1 : 0;
  return count;
}

struct PairWithPersonality : Pair {
  explicit PairWithPersonality(const Personality& personality)
      : Pair({.signal_all = true}, personality) {}

  // Posts receives and sends.  Host b receives all packets before its driver calls transmit().
  void exchange(std::size_t messages) {
    for (std::uint64_t id = 1; id <= messages; ++id) {
      receive(id, id * 64, 64).value();
      send(id, 0, 64).value();
    }
    wire.run();
  }
};

TEST(Personality, ConnectXNotifiesForEachCompletionAtOnce) {
  PairWithPersonality pair(kConnectX);
  pair.b.engine.arm_cq(pair.b.cq, false).value();
  pair.receive(1, 0, 64).value();
  pair.send(1, 0, 64).value();
  std::size_t seen = 0;
  pair.wire.on_arrival = [&](Host& host) {
    if (&host == &pair.b) seen += pair.b.poll().size();
  };
  pair.wire.run();
  EXPECT_EQ(seen, 1u);  // the completion was visible before the driver of b called transmit()
  EXPECT_EQ(notification_count(pair.b), 1u);
}

TEST(Personality, RxeNotifiesOnceForACompletionBatch) {
  PairWithPersonality pair(kRxe);
  pair.b.engine.arm_cq(pair.b.cq, false).value();
  std::size_t early = 0;
  pair.wire.on_arrival = [&](Host& host) { early += host.poll().size(); };
  pair.exchange(5);
  EXPECT_EQ(early, 0u);
  EXPECT_EQ(notification_count(pair.b), 1u);
  const auto received = pair.b.poll();
  ASSERT_THAT(received, SizeIs(5));
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(received[i].wr_id, i + 1);
  EXPECT_THAT(pair.a.poll(), SizeIs(5));
}

TEST(Personality, ConnectXFlushesAtOnce) {
  PairWithPersonality pair(kConnectX);
  pair.receive(1, 0, 64).value();
  pair.b.engine.modify_qp(pair.qb, {.state = QpState::kError}, attribute::kState, pair.wire.now)
      .value();
  const auto flushed = pair.b.poll();
  ASSERT_THAT(flushed, SizeIs(1));
  EXPECT_EQ(flushed[0].status, WcStatus::kFlushed);
}

TEST(Personality, RxeFlushesLateAndInOrder) {
  PairWithPersonality pair(kRxe);
  pair.receive(1, 0, 64).value();
  pair.receive(2, 0, 64).value();
  const Time begun = pair.wire.now;
  const auto to_error = [&] {
    pair.b.engine.modify_qp(pair.qb, {.state = QpState::kError}, attribute::kState, pair.wire.now)
        .value();
  };
  to_error();
  pair.receive(3, 0, 64).value();  // posted before the flush
  pair.wire.run_until(begun + kRxe.flush_delay - 1us);
  EXPECT_THAT(pair.b.poll(), IsEmpty());
  to_error();  // a second request does not restart the delay
  pair.wire.run_until(begun + kRxe.flush_delay);
  std::vector<std::uint64_t> ids;
  for (const WorkCompletion& done : pair.b.poll()) {
    EXPECT_EQ(done.status, WcStatus::kFlushed);
    ids.push_back(done.wr_id);
  }
  EXPECT_THAT(ids, ElementsAre(1, 2, 3));
  pair.receive(4, 0, 64).value();  // the request is flushed at once
  pair.wire.run_until(pair.wire.now);
  EXPECT_THAT(pair.b.poll(), SizeIs(1));
  EXPECT_EQ(pair.b.engine.deadline(), kNever);
}

TEST(Personality, TheFailedRequestCompletesBeforeTheFlushedOnes) {
  PairWithPersonality pair(kRxe);
  const Sge bad{.address = 1, .length = 8, .lkey = 0xbad};
  pair.a.engine.post_send(pair.qa, {.wr_id = 1, .sges = {&bad, 1}}).value();
  pair.send(2, 0, 8).value();
  pair.wire.run_until(pair.wire.now + 1ms);
  const auto failed = pair.a.poll();
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].status, WcStatus::kLocalProtectionError);
  pair.wire.run();
  EXPECT_THAT(pair.a.poll(), SizeIs(1));
}

TEST(Personality, AResetOrDestroyedQpDoesNotFlushLater) {
  PairWithPersonality pair(kRxe);
  pair.receive(1, 0, 64).value();
  pair.send(1, 0, 64).value();
  for (const auto& [host, qp] : {std::pair(&pair.a, pair.qa), std::pair(&pair.b, pair.qb)}) {
    host->engine.modify_qp(qp, {.state = QpState::kError}, attribute::kState, pair.wire.now)
        .value();
  }
  pair.a.engine.modify_qp(pair.qa, {.state = QpState::kReset}, attribute::kState, pair.wire.now)
      .value();
  pair.b.engine.destroy_qp(pair.qb).value();
  pair.wire.run();
  EXPECT_THAT(pair.a.poll(), IsEmpty());
  EXPECT_THAT(pair.b.poll(), IsEmpty());
  EXPECT_EQ(pair.a.engine.deadline(), kNever);
}

}  // namespace
}  // namespace verbena::hca
