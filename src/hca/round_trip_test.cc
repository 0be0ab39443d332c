#include "hca/round_trip.h"

#include <gtest/gtest.h>

#include "hca/test_pair.h"

namespace verbena::hca {
namespace {

using namespace testing;
using Lines = std::vector<std::string>;
using std::chrono::milliseconds;

TEST(RoundTrip, ProbesASilenceAtNoCostInRetries) {
  Scripted s({.timeout = 14, .retry_count = 0});
  const Time begun = s.now;
  s.post(WrOpcode::kSend, 1, 10);
  s.out();
  s.wait_for_timer();
  EXPECT_EQ(s.now, begun + std::chrono::milliseconds(50));  // nothing was measured yet
  EXPECT_EQ(s.out(), Lines{"SEND_ONLY 1000 10 A"});
  s.wait_for_timer();
  EXPECT_EQ(s.now, begun + timeout_of_code(14));
  EXPECT_EQ(text(s.host.poll()), "1:retries exceeded");
}

// How long it takes until something goes out again.
Duration silence(Scripted& s) {
  const Time begun = s.now;
  do s.wait_for_timer();
  while (s.out().empty());
  return s.now - begun;
}

TEST(RoundTrip, ASilenceIsAsLongAsTheRoundTripMakesIt) {
  Scripted s({.timeout = 18});  // 1 s
  const auto round_trip = [&](std::uint32_t psn, Duration time) {
    s.post(WrOpcode::kSend, 1, 10);
    s.out();
    s.now += time;
    s.answer(psn, wire::ack(1));
    s.host.poll();
  };
  round_trip(1000, milliseconds(40));
  s.post(WrOpcode::kSend, 2, 10);
  s.out();
  EXPECT_EQ(silence(s), milliseconds(40 + 4 * 20));
  EXPECT_EQ(silence(s), milliseconds(240));
  s.now += milliseconds(40);
  s.answer(1001, wire::ack(2));  // of which of the three? It says nothing of the round trip
  s.post(WrOpcode::kSend, 3, 10);
  s.out();
  EXPECT_EQ(silence(s), milliseconds(120));  // but something has moved
  s.answer(1002, wire::ack(3));              // and this is to the first: that takes 120 ms
  s.post(WrOpcode::kSend, 4, 10);
  s.out();
  EXPECT_GT(silence(s), milliseconds(120));
  s.now += milliseconds(300);
  s.answer(1003, wire::ack(4));
  for (std::uint32_t psn = 1004; psn < 1200; ++psn) round_trip(psn, milliseconds(1));
  s.post(WrOpcode::kSend, 5, 10);
  s.out();
  EXPECT_EQ(silence(s), std::chrono::microseconds(2500));  // something was lost twice, and once not
}

TEST(RoundTrip, ALineThatLosesIsGivenLessPatience) {
  Scripted s({.timeout = 18});
  const Duration round_trip = std::chrono::microseconds(20);
  std::uint32_t psn = 1000;
  const auto exchange = [&] {
    s.post(WrOpcode::kSend, 1, 10);
    s.out();
    s.now += round_trip;
    s.answer(psn++, wire::ack(1));
    s.host.poll();
  };
  const auto probed_after = [&](bool lost) {
    for (int i = 0; i < 40; ++i) exchange();
    s.post(WrOpcode::kSend, 1, 10);
    s.out();
    const Duration time = silence(s);
    if (lost) s.now += round_trip;  // an answer to what has just been sent; else to what was first
    s.answer(psn++, wire::ack(1));
    s.host.poll();
    return time;
  };
  EXPECT_EQ(probed_after(true), milliseconds(5));
  EXPECT_EQ(probed_after(true), std::chrono::microseconds(2500));
  for (int i = 0; i < 10; ++i) probed_after(true);
  EXPECT_EQ(probed_after(true), std::chrono::microseconds(200));  // not less
  for (int i = 0; i < 10; ++i) probed_after(false);
  EXPECT_GE(probed_after(false), milliseconds(5));  // it loses nothing any more, it is slow
}

TEST(RoundTrip, ALineThatIsBackAfterLongIsFoundWithinASecond) {
  Scripted s({.timeout = 21});  // 8.6 s
  s.post(WrOpcode::kSend, 1, 10);
  s.out();
  Duration longest{};
  while (s.now - Time{} < std::chrono::seconds(60)) longest = std::max(longest, silence(s));
  EXPECT_EQ(longest, std::chrono::seconds(1));
}

TEST(RoundTrip, ARoundTripIsNotMeasuredAcrossAnRnrWait) {
  Scripted s({.timeout = 18});
  s.post(WrOpcode::kSend, 1, 10);
  s.out();
  s.answer(1000, wire::rnr_nak(0, 0));
  EXPECT_GT(silence(s), milliseconds(600));
  s.answer(1000, wire::ack(1));
  s.post(WrOpcode::kSend, 2, 10);
  s.out();
  EXPECT_EQ(silence(s), milliseconds(50));  // as long as none is known
}

TEST(RoundTrip, APeerThatWasOnlySlowKeepsItsWindow) {
  Scripted s({.timeout = 18});
  const auto window = [&] {
    QpRow row;
    EXPECT_EQ(s.host.engine.rows({&row, 1}), 1u);
    return row.window_packets;
  };
  s.post(WrOpcode::kSend, 1, 10 * 1024);
  s.out();
  const std::uint32_t before = window();
  s.wait_for_timer();
  EXPECT_EQ(s.out().size(), 2u);
  s.answer(1009, wire::ack(1));  // all ten were there
  EXPECT_GE(window(), before);
  EXPECT_EQ(text(s.host.poll()), "1");

  s.post(WrOpcode::kSend, 2, 10 * 1024);
  s.out();
  silence(s);
  s.answer(1011, wire::ack(1));  // just the two that went out again
  EXPECT_LT(window(), before);
}

}  // namespace
}  // namespace verbena::hca
