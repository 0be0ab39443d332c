// Runs many threads in parallel with one driver, so that ThreadSanitizer can check their accesses.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "hca/test_pair.h"

namespace verbena::hca {
namespace {

using namespace testing;

constexpr std::uint64_t kMessages = 2000;  // messages of each posting thread
constexpr std::size_t kBytes = 300;

// Moves packets between the two engines until `stop` is set.  This thread drives both engines.
void drive(Host& a, Host& b, const std::atomic<bool>& stop, std::atomic<unsigned>& notifications) {
  link::Burst burst;
  Time now{};
  while (!stop.load()) {
    now += std::chrono::microseconds(1);
    for (auto [from, to] : {std::pair(&a, &b), std::pair(&b, &a)}) {
      from->engine.on_timer(now);
      from->engine.transmit(burst, now);
      for (const auto& packet : burst.packets()) {
        to->engine.receive({packet.address, burst.transport(packet)}, now);
      }
      burst.clear();
      while (const auto event = from->engine.poll_event()) {
        if (std::holds_alternative<CqNotify>(*event)) ++notifications;
      }
    }
    if (!a.engine.has_work() && !b.engine.has_work()) std::this_thread::yield();
  }
}

TEST(Threads, PostersAndPollersRunBesideTheDriver) {
  Pair p({.min_rnr_timer = 1,
          .caps = {.max_send_wr = 32, .max_recv_wr = 32, .max_send_sge = 1, .max_recv_sge = 1}});
  p.a.fill(0, kBytes, 1);
  std::atomic<bool> stop = false;
  std::atomic<unsigned> notifications = 0;
  std::atomic<std::uint64_t> posted = 0, sent = 0, received = 0;
  const std::uint64_t total = 2 * kMessages;
  // All unpolled completions must fit in the CQ, even if the pollers rarely get a CPU.
  const std::uint64_t outstanding_max = p.a.engine.cq_capacity(p.a.cq).value() / 2;
  const auto has_no_failure = [] { return !::testing::Test::HasFailure(); };

  std::thread driver([&] { drive(p.a, p.b, stop, notifications); });
  // Two threads post to one send queue.
  const auto post = [&](std::uint64_t base) {
    for (std::uint64_t i = 0; i < kMessages && has_no_failure(); ++i) {
      while (posted - sent >= outstanding_max && has_no_failure()) std::this_thread::yield();
      ++posted;
      while (!p.send(base + i, 0, kBytes)) std::this_thread::yield();
    }
  };
  // Two threads poll each CQ.  The threads of the receiving side also post receives.
  const auto poll_sends = [&] {
    std::array<WorkCompletion, 4> out;
    while (sent < total && has_no_failure()) {
      const unsigned count = p.a.engine.poll_cq(p.a.cq, out).value();
      for (unsigned i = 0; i < count; ++i) ASSERT_EQ(out[i].status, WcStatus::kSuccess);
      sent += count;
      if (count == 0) std::this_thread::yield();
    }
  };
  const auto poll_receives = [&](std::size_t area) {
    std::array<WorkCompletion, 4> out;
    std::uint64_t slot = 0;
    while (received < total && has_no_failure()) {
      if (p.receive(area, area + (slot % 64) * kBytes, kBytes)) ++slot;
      ASSERT_TRUE(p.b.engine.arm_cq(p.b.cq, false));
      const unsigned count = p.b.engine.poll_cq(p.b.cq, out).value();
      for (unsigned i = 0; i < count; ++i) ASSERT_EQ(out[i].byte_len, kBytes);
      received += count;
      if (count == 0) std::this_thread::yield();
    }
  };
  std::vector<std::thread> threads;
  threads.emplace_back(post, 0);
  threads.emplace_back(post, kMessages);
  threads.emplace_back(poll_sends);
  threads.emplace_back(poll_sends);
  threads.emplace_back(poll_receives, 0);
  threads.emplace_back(poll_receives, 1 << 20);
  for (auto& thread : threads) thread.join();
  stop = true;
  driver.join();
  EXPECT_EQ(sent, total);
  EXPECT_EQ(received, total);
  EXPECT_GT(notifications, 0u);
  EXPECT_TRUE(p.same(0, 0, kBytes));
}

// Two threads post to one SRQ and poll, while the driver takes receives from it for two QPs.
TEST(Threads, PostersToASharedReceiveQueueRunInParallelWithTheDriver) {
  constexpr std::uint64_t kMessagesPerQp = 1000;
  const Options o{.min_rnr_timer = 1};
  Host a{1}, b{2};
  const SrqHandle srq = b.engine.create_srq(b.pd, {.max_wr = 64, .max_sge = 1}, 0).value();
  std::vector<QpHandle> senders;
  for (std::uint32_t i = 0; i < 2; ++i) {
    const Qpn na{0x11 + i}, nb{0x21 + i};
    senders.push_back(create_connected_qp(a, o, na));
    const QpInit init{.pd = b.pd, .send_cq = b.cq, .recv_cq = b.cq, .srq = srq};
    const QpHandle receiver = b.engine.create_qp(init, nb).value();
    bring_to_state(a, senders[i], attributes_for(a, b, o, nb, o.psn_a, o.psn_b), QpState::kRts);
    bring_to_state(b, receiver, attributes_for(b, a, o, na, o.psn_b, o.psn_a), QpState::kRts);
  }
  std::atomic<bool> stop = false;
  std::atomic<unsigned> notifications = 0;
  std::atomic<std::uint64_t> received = 0;
  const auto has_no_failure = [] { return !::testing::Test::HasFailure(); };
  std::thread driver([&] { drive(a, b, stop, notifications); });
  const auto send = [&](QpHandle qp) {
    std::array<WorkCompletion, 16> out;
    const Sge sge = a.sge(0, kBytes);
    for (std::uint64_t i = 0; i < kMessagesPerQp && has_no_failure(); ++i) {
      while (!a.engine.post_send(qp, {.flags = send_flag::kSignaled, .sges = {&sge, 1}}) &&
             has_no_failure()) {
        a.engine.poll_cq(a.cq, out).value();
        std::this_thread::yield();
      }
    }
  };
  const auto receive = [&](std::size_t area) {
    std::array<WorkCompletion, 4> out;
    const Sge sge = b.sge(area, kBytes);
    while (received < 2 * kMessagesPerQp && has_no_failure()) {
      (void)b.engine.post_srq_recv(srq, {.sges = {&sge, 1}});
      const unsigned count = b.engine.poll_cq(b.cq, out).value();
      for (unsigned i = 0; i < count; ++i) ASSERT_EQ(out[i].byte_len, kBytes);
      received += count;
      if (count == 0) std::this_thread::yield();
    }
  };
  std::vector<std::thread> threads;
  for (const QpHandle qp : senders) threads.emplace_back(send, qp);
  for (const std::size_t area : {0, 4096}) threads.emplace_back(receive, area);
  for (auto& thread : threads) thread.join();
  stop = true;
  driver.join();
  EXPECT_EQ(received, 2 * kMessagesPerQp);
}

// A QP fails while other threads post.  Every request must complete.
TEST(Threads, RequestsPostedWhileAQpFailsAreFlushed) {
  for (int round = 0; round < 20; ++round) {
    Pair p;
    std::atomic<bool> stop = false;
    std::atomic<unsigned> notifications = 0;
    std::atomic<std::uint64_t> posted = 0;
    std::thread driver([&] { drive(p.a, p.b, stop, notifications); });
    const auto post = [&] {
      for (int i = 0; i < 40; ++i) {
        // One request of each thread is invalid: a WRITE with a bad key.
        const Sge sge = p.a.sge(0, 8);
        const SendRequest request{.wr_id = 1,
                                  .opcode = WrOpcode::kWrite,
                                  .flags = send_flag::kSignaled,
                                  .sges = {&sge, 1},
                                  .remote_address = p.b.address(0),
                                  .r_key = i == 5 ? 0 : p.b.mr.rkey};
        posted += p.a.engine.post_send(p.qa, request).has_value() ? 1 : 0;
        posted += p.a.engine.post_recv(p.qa, {.wr_id = 2}).has_value() ? 1 : 0;
      }
    };
    std::thread first_poster(post), second_poster(post);
    first_poster.join();
    second_poster.join();
    std::uint64_t completed = 0;
    std::array<WorkCompletion, 8> out;
    while (completed < posted) {
      const unsigned count = p.a.engine.poll_cq(p.a.cq, out).value();
      completed += count;
      if (count == 0) std::this_thread::yield();
    }
    stop = true;
    driver.join();
    EXPECT_EQ(completed, posted);
    EXPECT_EQ(p.state_a(), QpState::kError);
  }
}

// Posts receives while a QP goes to the error state.  A receive that is posted before the change
// needs no work of the driver.  The driver must flush a receive that is posted after the change.
TEST(Threads, ReceivesPostedDuringTheErrorTransitionAreFlushed) {
  Pair p;
  QpAttributes error;
  error.state = QpState::kError;
  QpAttributes new_connection = attributes_for(p.a, p.b, p.o, Qpn{0x22}, p.o.psn_a, p.o.psn_b);
  link::Burst burst;
  for (int round = 0; round < 300; ++round) {
    std::atomic<bool> started = false;
    std::uint64_t posted = 0;
    std::thread poster([&] {
      started = true;
      for (int i = 0; i < 60; ++i) posted += p.a.engine.post_recv(p.qa, {}).has_value() ? 1 : 0;
    });
    while (!started) {
    }
    for (int i = 0; i < round % 50; ++i) p.a.engine.deadline();  // spends some time
    ASSERT_TRUE(p.a.engine.modify_qp(p.qa, error, attribute::kState, {}));
    poster.join();
    while (p.a.engine.transmit(burst, {})) burst.clear();
    ASSERT_EQ(p.a.poll().size(), posted);
    error.state = QpState::kReset;
    ASSERT_TRUE(p.a.engine.modify_qp(p.qa, error, attribute::kState, {}));
    error.state = QpState::kError;
    bring_to_state(p.a, p.qa, new_connection, QpState::kRts);
  }
}

}  // namespace
}  // namespace verbena::hca
