#include "client/diagnostics.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "wire/ip.h"

namespace verbena::client {
namespace {

using process::Connection;
using rdmacm::EventKind;
using std::chrono::milliseconds;

rdmacm::Event event(EventKind kind, std::int32_t status) {
  return {.kind = kind,
          .status = status,
          .destination = {.ip = wire::ipv4_gid(0x0a000002), .port = 7174, .family = 4},
          .tries = 9};
}

std::string failure_text(EventKind kind, std::int32_t status, Connection::Step step,
                         milliseconds spent) {
  return text_of(event(kind, status), step, spent).value_or("nothing");
}

TEST(Diagnostics, FailuresNamePeerStepAndTime) {
  EXPECT_EQ(failure_text(EventKind::kRejected, 8, Connection::Step::kConnect, milliseconds(12)),
            "connect to 10.0.0.2:7174 failed after 12 ms: rejected, invalid service id: no program "
            "listens on it (REJ reason 8)");
  EXPECT_EQ(failure_text(EventKind::kUnreachable, -ETIMEDOUT, Connection::Step::kConnect,
                         milliseconds(30'050)),
            "connect to 10.0.0.2:7174 failed after 30.0 s: unreachable, 9 messages without an "
            "answer; is the peer running, and can UDP packets to port 4791 reach "
            "it?");
  rdmacm::Event without_messages = event(EventKind::kUnreachable, -ETIMEDOUT);
  without_messages.tries = 0;
  EXPECT_EQ(text_of(without_messages, Connection::Step::kConnect, milliseconds(2000)),
            "connect to 10.0.0.2:7174 failed after 2.0 s: too many other connections are pending, "
            "and the peer is silent or slow");
  EXPECT_EQ(failure_text(EventKind::kUnreachable, 1, Connection::Step::kConnect, milliseconds(3)),
            "connect to 10.0.0.2:7174 failed after 3 ms: refused, no program listens on the port "
            "(SIDR status 1)");
  EXPECT_EQ(
      failure_text(EventKind::kMulticastError, -ENOMEM, Connection::Step::kNone, milliseconds(0)),
      "joining the group :: failed: Cannot allocate memory");
  EXPECT_EQ(failure_text(EventKind::kAddrError, -ENETUNREACH, Connection::Step::kResolve,
                         milliseconds(0)),
            "resolving 10.0.0.2:7174 failed after 0 ms: Network is unreachable");
  EXPECT_EQ(
      failure_text(EventKind::kConnectError, -EINVAL, Connection::Step::kAccept, milliseconds(999)),
      "accept of 10.0.0.2:7174 failed after 999 ms: Invalid argument");
  EXPECT_EQ(
      failure_text(EventKind::kDisconnected, -ETIMEDOUT, Connection::Step::kNone, milliseconds(0)),
      "connection with 10.0.0.2:7174 ended: the peer does not answer");
  EXPECT_EQ(failure_text(EventKind::kPathUnanswered, -ETIMEDOUT, Connection::Step::kNone,
                         milliseconds(0)),
            "offering an alternate path to 10.0.0.2:7174 failed: 9 messages without an answer");
  rdmacm::Event by_service = event(EventKind::kRejected, 8);
  by_service.destination.by_gid = true;
  by_service.destination.service = {0x1000000000000042};
  EXPECT_EQ(text_of(by_service, Connection::Step::kConnect, milliseconds(12)),
            "connect to 10.0.0.2 service 0x1000000000000042 failed after 12 ms: rejected, invalid "
            "service id: no program listens on it (REJ reason 8)");
}

TEST(Diagnostics, SuccessfulEventsHaveNoText) {
  for (const EventKind kind :
       {EventKind::kAddrResolved, EventKind::kRouteResolved, EventKind::kConnectRequest,
        EventKind::kEstablished, EventKind::kDisconnected, EventKind::kTimewaitExit}) {
    EXPECT_FALSE(text_of(event(kind, 0), Connection::Step::kConnect, {}));
  }
}

TEST(Diagnostics, TheTextOfAnEventOutsideAnyStepNamesNoTime) {
  const auto text =
      text_of(event(EventKind::kRejected, 4), Connection::Step::kNone, std::chrono::hours(2));
  ASSERT_TRUE(text);
  EXPECT_NE(text->find("failed: rejected"), std::string::npos) << *text;
  EXPECT_EQ(text->find("after"), std::string::npos) << *text;
}

TEST(Diagnostics, ACompletionInErrorNamesBothQps) {
  hca::RequestFailure failure{.qpn = Qpn{0x123456},
                              .destination_qpn = Qpn{0xabc},
                              .destination = wire::ipv4_gid(0x0a000002),
                              .status = hca::WcStatus::kRetryExceeded,
                              .opcode = hca::WrOpcode::kWriteImm,
                              .tries = 8};
  EXPECT_EQ(text_of(failure, milliseconds(3'210)),
            "QP 0x123456 to 10.0.0.2 (QP 0x000abc): WRITE failed: retries exceeded, no answer to 8 "
            "tries in 3.2 s");
  failure.status = hca::WcStatus::kRemoteAccessError;
  failure.opcode = hca::WrOpcode::kRead;
  failure.tries = 1;
  EXPECT_EQ(
      text_of(failure, milliseconds(3)),
      "QP 0x123456 to 10.0.0.2 (QP 0x000abc): READ failed: remote access error, 1 try in 3 ms");
  failure.status = hca::WcStatus::kLocalProtectionError;
  failure.tries = 0;
  EXPECT_EQ(text_of(failure, std::chrono::hours(2)),
            "QP 0x123456 to 10.0.0.2 (QP 0x000abc): READ failed: local protection error, before "
            "anything was sent");
  failure.is_receive = true;
  failure.status = hca::WcStatus::kLocalLengthError;
  EXPECT_EQ(text_of(failure, {}),
            "QP 0x123456 to 10.0.0.2 (QP 0x000abc): RECEIVE failed: local length error");
}

TEST(Diagnostics, RnrRetriesExceededExplainsTheCause) {
  hca::RequestFailure failure{.qpn = Qpn{1},
                              .destination_qpn = Qpn{2},
                              .destination = wire::ipv4_gid(0x0a000002),
                              .status = hca::WcStatus::kRnrRetryExceeded,
                              .opcode = hca::WrOpcode::kSend,
                              .rnr_retry = 0,
                              .tries = 1};
  EXPECT_EQ(
      text_of(failure, milliseconds(3)),
      "QP 0x000001 to 10.0.0.2 (QP 0x000002): SEND failed: RNR retries exceeded, the peer had "
      "no receive posted and rnr_retry 0 asks for no retries");
  failure.rnr_retry = 3;
  failure.tries = 4;
  EXPECT_EQ(
      text_of(failure, milliseconds(500)),
      "QP 0x000001 to 10.0.0.2 (QP 0x000002): SEND failed: RNR retries exceeded, the peer had "
      "no receive posted in 4 tries in 500 ms");
}

TEST(LineBudget, AllowsABurstAndThenTenLinesPerSecond) {
  LineBudget budget;
  Time now{std::chrono::hours(1)};
  for (std::uint32_t i = 0; i < LineBudget::kLinesMax; ++i) EXPECT_TRUE(budget.take(now));
  EXPECT_FALSE(budget.take(now));
  EXPECT_FALSE(budget.take(now + LineBudget::kOneMoreEvery - Duration(1)));
  int lines = 0;
  for (int i = 0; i < 1000; ++i) {  // 10 s
    now += milliseconds(10);
    if (budget.take(now)) ++lines;
  }
  EXPECT_EQ(lines, 100);
  now += std::chrono::hours(1);
  for (std::uint32_t i = 0; i < LineBudget::kLinesMax; ++i) EXPECT_TRUE(budget.take(now));
  EXPECT_FALSE(budget.take(now));
}

TEST(RepeatFilter, LinesThatDifferOnlyInNumbersAreSuppressed) {
  RepeatFilter repeats;
  Time now{std::chrono::hours(1)};
  const auto probe = [](int bytes) {
    return "refused: ibv_create_qp(): max_inline_data is " + std::to_string(bytes) +
           ", more than 64";
  };
  EXPECT_EQ(repeats.take(probe(4096), now), probe(4096));
  for (int i = 0; i < 19; ++i) {
    now += milliseconds(1);
    EXPECT_FALSE(repeats.take(probe(4000 - i), now));
  }
  EXPECT_EQ(repeats.suppressed(), 19u);
  EXPECT_EQ(repeats.take("refused: another", now), "refused: another");
  EXPECT_EQ(repeats.omitted_note(), " (19 repeats of '" + probe(4096) + "' were left out)");
  EXPECT_EQ(repeats.omitted_note(), "");
  EXPECT_FALSE(repeats.take(probe(1), now));
  now += RepeatFilter::kWindow;
  EXPECT_EQ(repeats.take(probe(2), now), probe(2) + " (and 1 similar line since the last one)");
}

TEST(RepeatFilter, ANewKindReplacesTheOldestOne) {
  RepeatFilter repeats;
  Time now{std::chrono::hours(1)};
  for (std::size_t i = 0; i <= RepeatFilter::kKindsMax; ++i) {
    EXPECT_TRUE(repeats.take(std::string(1, static_cast<char>('a' + i)), now += milliseconds(1)));
  }
  EXPECT_TRUE(repeats.take("a", now += milliseconds(1)));
  EXPECT_FALSE(repeats.take("i", now));
}

}  // namespace
}  // namespace verbena::client
