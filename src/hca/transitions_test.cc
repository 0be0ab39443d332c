#include "hca/transitions.h"

#include <gtest/gtest.h>

#include "hca/test_pair.h"

namespace verbena::hca {
namespace {

using namespace testing;
using enum QpState;

constexpr QpState kStates[] = {kReset, kInit, kRtr, kRts, kSqd, kSqe, kError};

constexpr Errc kAllowed{255};  // no error

// Returns kAllowed, or the error of this transition.
Errc outcome(QpType type, QpState from, QpState to, std::uint32_t mask) {
  QpAttributes current, target;
  current.state = from;
  target.state = to;
  target.destination_qpn = Qpn{1};
  const auto result = check_transition(type, current, target, mask, {}, {});
  return result ? kAllowed : result.error().code;
}

TEST(Transitions, ExactlyTheTransitionsOfTheSpecificationAreAllowed) {
  const std::uint32_t rts_ud = attribute::kState | attribute::kSqPsn;
  const std::uint32_t init_ud =
      attribute::kState | attribute::kPkeyIndex | attribute::kPort | attribute::kQkey;
  for (const QpType type : {QpType::kRc, QpType::kUc, QpType::kUd}) {
    const bool rc = type == QpType::kRc, ud = type == QpType::kUd;
    const std::uint32_t omitted = rc ? 0 : kReliableAttributes;
    for (const QpState from : kStates) {
      for (const QpState to : kStates) {
        std::uint32_t mask = attribute::kState;
        bool allowed = to == kReset || to == kError;
        if (from == kReset && to == kInit) mask = ud ? init_ud : kToInit, allowed = true;
        if (from == kInit && to == kRtr) mask = ud ? mask : kToRtr & ~omitted, allowed = true;
        if (from == kRtr && to == kRts) mask = ud ? rts_ud : kToRts & ~omitted, allowed = true;
        if (from == to && (from == kInit || from == kRts || from == kSqd)) allowed = true;
        if ((from == kRts && to == kSqd) || (from == kSqd && to == kRts)) allowed = true;
        if (from == kSqe && to == kRts && !rc) allowed = true;
        EXPECT_EQ(outcome(type, from, to, mask), allowed ? kAllowed : Errc::kInvalidArgument)
            << to_string(type) << " " << to_string(from) << " to " << to_string(to);
      }
    }
  }
}

TEST(Transitions, EveryRequiredAttributeIsNecessaryAndOtherAttributesAreRefused) {
  using namespace attribute;
  struct Row {
    QpType type;
    QpState from, to;
    std::uint32_t required, optional;
  };
  constexpr std::uint32_t kSendingOptional = kAccessFlags | kMigrationState | kAlternatePath;
  constexpr std::uint32_t kReceivingOptional = kAccessFlags | kPkeyIndex | kAlternatePath;
  const Row rows[] = {
      {QpType::kRc, kReset, kInit, kToInit, 0},
      {QpType::kRc, kInit, kRtr, kToRtr, kReceivingOptional},
      {QpType::kRc, kRtr, kRts, kToRts, kSendingOptional | kMinRnrTimer},
      {QpType::kUc, kReset, kInit, kToInit, 0},
      {QpType::kUc, kInit, kInit, kState, kToInit & ~kState},
      {QpType::kUc, kInit, kRtr, kToRtr & ~kReliableAttributes, kReceivingOptional},
      {QpType::kUc, kRtr, kRts, kToRts & ~kReliableAttributes, kSendingOptional},
      {QpType::kUc, kRts, kRts, kState, kSendingOptional},
      {QpType::kUc, kRts, kSqd, kState, kSqdNotify},
      {QpType::kUc, kSqd, kRts, kState, kSendingOptional},
      {QpType::kUc, kSqd, kSqd, kState, kSendingOptional | kPath | kPort | kPkeyIndex},
      {QpType::kUc, kSqe, kRts, kState, kAccessFlags}};
  for (const auto& [type, from, to, required, optional] : rows) {
    for (unsigned bit = 1; bit <= 20; ++bit) {
      const std::uint32_t attribute_bit = 1u << bit;
      if (attribute_bit == kCaps || attribute_bit == kCurrentState) continue;
      if ((required & attribute_bit) != 0) {
        EXPECT_EQ(outcome(type, from, to, required & ~attribute_bit), Errc::kInvalidArgument);
      } else {
        EXPECT_EQ(outcome(type, from, to, required | attribute_bit),
                  (optional & attribute_bit) != 0 ? kAllowed : Errc::kInvalidArgument)
            << to_string(type) << " " << to_string(from) << " to " << to_string(to) << " bit "
            << bit;
      }
    }
  }
}

TEST(Transitions, InvalidAttributeValuesAreRefused) {
  QpAttributes current;
  current.state = kInit;
  const auto refuses = [&](const std::function<void(QpAttributes&)>& make_invalid,
                           std::uint32_t mask) {
    QpAttributes target;
    target.destination_qpn = Qpn{1};
    target.state = current.state == kInit ? kRtr : kRts;
    EXPECT_TRUE(check_transition(QpType::kRc, current, target, mask, {}, {}));
    make_invalid(target);
    const auto result = check_transition(QpType::kRc, current, target, mask, {}, {});
    return !result && result.error().code == Errc::kInvalidArgument;
  };
  EXPECT_TRUE(refuses([](QpAttributes& a) { a.path_mtu = Mtu{0}; }, kToRtr));
  EXPECT_TRUE(refuses([](QpAttributes& a) { a.path_mtu = Mtu{6}; }, kToRtr));
  EXPECT_TRUE(refuses([](QpAttributes& a) { a.rq_psn = Psn{0x1000000}; }, kToRtr));
  EXPECT_TRUE(refuses([](QpAttributes& a) { a.destination_qpn = Qpn{0}; }, kToRtr));
  EXPECT_TRUE(refuses([](QpAttributes& a) { a.destination_qpn = Qpn{0xffffff}; }, kToRtr));
  EXPECT_TRUE(refuses([](QpAttributes& a) { a.max_dest_rd_atomic = 17; }, kToRtr));
  EXPECT_TRUE(refuses([](QpAttributes& a) { a.min_rnr_timer = 32; }, kToRtr));
  current.state = kRtr;
  EXPECT_TRUE(refuses([](QpAttributes& a) { a.sq_psn = Psn{0x1000000}; }, kToRts));
  EXPECT_TRUE(refuses([](QpAttributes& a) { a.timeout = 32; }, kToRts));
  EXPECT_TRUE(refuses([](QpAttributes& a) { a.retry_count = 8; }, kToRts));
  EXPECT_TRUE(refuses([](QpAttributes& a) { a.rnr_retry = 8; }, kToRts));
  EXPECT_TRUE(refuses([](QpAttributes& a) { a.max_rd_atomic = 17; }, kToRts));
  EXPECT_TRUE(refuses(
      [](QpAttributes& a) {
        a.current_state = kRts;
        a.state = kRtr;
      },
      kToRts));
}

TEST(Transitions, ARefusedModifyChangesNothing) {
  Host h(1);
  const QpHandle qp = create_connected_qp(h, {}, Qpn{0x11});
  const auto before = h.engine.query_qp(qp).value().attributes;
  QpAttributes a;
  a.state = kInit;
  a.access_flags = access::kRemoteRead;
  a.port = 2;
  EXPECT_EQ(h.engine.modify_qp(qp, a, kToInit, {}).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(h.engine.query_qp(qp).value().attributes, before);
}

TEST(Transitions, TheStateDecidesWhichPostsAreAccepted) {
  Pair p;
  for (const QpState state : {kReset, kInit, kRtr, kRts, kError}) {
    SCOPED_TRACE(to_string(state));
    Host h(3);
    const QpHandle qp = create_connected_qp(h, {}, Qpn{0x11});
    QpAttributes a = attributes_for(h, p.b, {}, Qpn{0x22}, Psn{1}, Psn{2});
    bring_to_state(h, qp, a, std::min(state, kRts), {});
    a.state = kError;
    if (state == kError) {
      ASSERT_TRUE(h.engine.modify_qp(qp, a, attribute::kState, {}));
    }
    const auto sent = h.engine.post_send(qp, {});
    const auto received = h.engine.post_recv(qp, {});
    EXPECT_EQ(sent.has_value(), state >= kRts);
    EXPECT_EQ(received.has_value(), state != kReset);
    if (!sent) {
      EXPECT_EQ(sent.error().code, Errc::kBadState);
    }
  }
}

TEST(Transitions, PostsToFullQueuesFailAndAreCounted) {
  HostUnderTest s;
  for (int i = 0; i < 64; ++i) {
    s.post(WrOpcode::kSend, 1, 1);
    s.receive(1, 1);
  }
  const auto sent = s.host.engine.post_send(s.qp, {});
  const auto received = s.host.engine.post_recv(s.qp, {});
  EXPECT_EQ(sent.error().code, Errc::kNoResources);
  EXPECT_EQ(received.error().code, Errc::kNoResources);
  EXPECT_EQ(s.host.engine.counters()[Counter::kLimitSendQueue], 1u);
  EXPECT_EQ(s.host.engine.counters()[Counter::kLimitRecvQueue], 1u);
  const std::vector<Sge> five(5);
  EXPECT_EQ(s.host.engine.post_send(s.qp, {.sges = five}).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(s.host.engine.post_recv(s.qp, {.sges = five}).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(s.host.engine.post_send(s.qp, {.opcode = WrOpcode{10}}).error().code,
            Errc::kNotSupported);
}

}  // namespace
}  // namespace verbena::hca
