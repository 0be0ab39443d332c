#include "broker/broker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace verbena::broker {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr Time kNow{std::chrono::seconds(100)};

Connection connection(std::uint16_t from, std::uint16_t to) {
  Connection c;
  c.local.port = from;
  c.peer.port = to;
  return c;
}

class BrokerTest : public testing::Test {
 protected:
  void report(ProgramId program, std::uint64_t cookie, const Connection& of_socket,
              std::uint32_t number = 7, std::uint32_t continues = 0) {
    broker.report(
        program,
        {.number = number, .cookie = cookie, .connection = of_socket, .continues = continues});
  }
  template <class O>
  std::vector<O> outputs() {
    std::vector<O> found;
    while (const auto output = broker.poll()) {
      if (const auto* match = std::get_if<O>(&*output)) found.push_back(*match);
    }
    return found;
  }
  // Makes the programs 1 and 2 report the ends 10 and 20 of one connection.
  void make_pair() {
    report(1, 10, connection(5000, 80));
    report(2, 20, connection(80, 5000));
    const auto wanted = outputs<Broker::MakeMemory>();
    ASSERT_EQ(wanted.size(), 1U);
    broker.memory_made(wanted[0].pair, true);
  }

  void connect_again(bool has_ended);

  Broker broker{};
};

// Connects the socket of end 10 to another peer.  If `has_ended` is true, the owner first reports
// that the socket of the first connection does not exist any more.
void BrokerTest::connect_again(bool has_ended) {
  make_pair();
  const auto old_messages = outputs<Broker::SendMemory>();
  broker.forget(1, {.reason = 0, .cookie = 10}, kNow);
  if (has_ended) broker.socket_checked(10, false, kNow);
  report(1, 10, connection(5000, 81), 8);
  report(3, 30, connection(81, 5000));
  const auto requests = outputs<Broker::MakeMemory>();
  ASSERT_EQ(requests.size(), 1U);
  broker.memory_made(requests[0].pair, true);
  const auto messages = outputs<Broker::SendMemory>();
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_NE(messages[0].pair, old_messages[0].pair);
  broker.program_ended(2, kNow);
  broker.socket_checked(20, false, kNow);
  const auto releases = outputs<Broker::Release>();
  ASSERT_EQ(releases.size(), 1U);
  EXPECT_EQ(releases[0].pair, old_messages[0].pair);
}

TEST_F(BrokerTest, ASocketWithAnotherConnectionGetsAnotherPair) { connect_again(false); }

TEST_F(BrokerTest, ASocketWhoseConnectionHasEndedGetsAnotherPair) { connect_again(true); }

TEST_F(BrokerTest, BothEndsOfAConnectionGetOneMemoryAndDifferentSides) {
  make_pair();
  const auto messages = outputs<Broker::SendMemory>();
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_EQ(messages[0].program, 1U);
  EXPECT_EQ(messages[1].program, 2U);
  EXPECT_EQ(messages[0].pair, messages[1].pair);
  EXPECT_EQ(messages[0].message.cookie, 10U);
  EXPECT_EQ(messages[0].message.side, 0U);
  EXPECT_EQ(messages[1].message.side, 1U);
  EXPECT_EQ(messages[1].message.number, 7U);
}

TEST_F(BrokerTest, EndsOfDifferentConnectionsAreNotIntroduced) {
  report(1, 10, connection(5000, 80));
  report(2, 20, connection(80, 5001));
  report(3, 30, connection(5000, 80));
  EXPECT_THAT(outputs<Broker::MakeMemory>(), IsEmpty());
}

TEST_F(BrokerTest, SocketThatIsConnectedToItselfIsNotIntroducedToItself) {
  report(1, 10, connection(5000, 5000));
  report(1, 10, connection(5000, 5000));
  EXPECT_THAT(outputs<Broker::MakeMemory>(), IsEmpty());
}

TEST_F(BrokerTest, ANewSocketReplacesAClosedSocketWithTheSameAddresses) {
  report(1, 10, connection(5000, 80));
  report(1, 11, connection(5000, 80));
  broker.forget(1, {.cookie = 10}, kNow);
  report(2, 20, connection(80, 5000));
  broker.memory_made(outputs<Broker::MakeMemory>().at(0).pair, true);
  EXPECT_EQ(outputs<Broker::SendMemory>().at(0).message.cookie, 11U);
}

TEST_F(BrokerTest, ProcessThatReportsLaterGetsTheSameMemory) {
  make_pair();
  outputs<Broker::SendMemory>();
  report(3, 20, connection(80, 5000), 1);
  const auto messages = outputs<Broker::SendMemory>();
  ASSERT_EQ(messages.size(), 1U);
  EXPECT_EQ(messages[0].program, 3U);
  EXPECT_EQ(messages[0].message.side, 1U);
}

TEST_F(BrokerTest, ProcessAfterExecFindsThePairWhileTheSocketExists) {
  make_pair();
  outputs<Broker::SendMemory>();
  broker.program_ended(1, kNow);
  const auto checks = outputs<Broker::CheckSocket>();
  ASSERT_EQ(checks.size(), 1U);
  EXPECT_EQ(checks[0].cookie, 10U);
  broker.socket_checked(10, true, kNow);
  report(4, 10, connection(5000, 80));
  EXPECT_EQ(outputs<Broker::SendMemory>().at(0).program, 4U);
}

TEST_F(BrokerTest, ReportThatContinuesAStreamGetsItsMemory) {
  make_pair();
  outputs<Broker::SendMemory>();
  report(3, 10, connection(5000, 80), 9, 1);
  const auto messages = outputs<Broker::SendMemory>();
  ASSERT_EQ(messages.size(), 1U);
  EXPECT_EQ(messages[0].program, 3U);
  EXPECT_EQ(messages[0].message.number, 9U);
  EXPECT_EQ(messages[0].message.side, 0U);
  EXPECT_EQ(broker.end(10)->holders.size(), 2U);
}

TEST_F(BrokerTest, ReportThatContinuesAnUnknownStreamIsAnsweredAndNotStored) {
  report(1, 10, connection(5000, 80), 9, 1);
  const auto answers = outputs<Broker::SendUnknown>();
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].program, 1U);
  EXPECT_EQ(answers[0].message.number, 9U);
  EXPECT_EQ(answers[0].message.cookie, 10U);
  EXPECT_TRUE(broker.is_idle());
  // An end that waits for its peer has no stream yet.
  report(1, 10, connection(5000, 80));
  report(2, 10, connection(5000, 80), 8, 1);
  EXPECT_EQ(outputs<Broker::SendUnknown>().size(), 1U);
  EXPECT_THAT(broker.end(10)->holders, ElementsAre(1U));
}

TEST_F(BrokerTest, SocketWithoutHolderIsCheckedWhileItExists) {
  make_pair();
  broker.program_ended(1, kNow);
  outputs<Broker::CheckSocket>();
  broker.socket_checked(10, true, kNow);
  EXPECT_EQ(broker.deadline(), kNow + Broker::kCheckInterval);
  broker.on_timer(kNow + Broker::kCheckInterval);
  EXPECT_EQ(outputs<Broker::CheckSocket>().size(), 1U);
  broker.socket_checked(10, false, kNow + Broker::kCheckInterval);
  EXPECT_EQ(broker.deadline(), kNever);
}

TEST_F(BrokerTest, PairIsReleasedWhenBothSocketsAreClosed) {
  make_pair();
  broker.program_ended(1, kNow);
  broker.socket_checked(10, false, kNow);
  EXPECT_THAT(outputs<Broker::Release>(), IsEmpty());
  broker.forget(2, {.cookie = 20}, kNow);
  broker.socket_checked(20, false, kNow);
  EXPECT_EQ(outputs<Broker::Release>().size(), 1U);
  EXPECT_TRUE(broker.is_idle());
  EXPECT_EQ(broker.pairs(), 0U);
}

TEST_F(BrokerTest, EndWithoutPeerIsRemovedWhenItsProgramEnds) {
  report(1, 10, connection(5000, 80));
  broker.program_ended(1, kNow);
  EXPECT_TRUE(broker.is_idle());
  report(2, 20, connection(80, 5000));
  EXPECT_THAT(outputs<Broker::MakeMemory>(), IsEmpty());
}

TEST_F(BrokerTest, EndsBeyondTheLimitOfAProgramGetNoPair) {
  broker = Broker({.ends_per_program = 1, .pairs = 10});
  report(1, 10, connection(5000, 80));
  report(1, 11, connection(5001, 80));
  report(2, 21, connection(80, 5001));
  EXPECT_THAT(outputs<Broker::MakeMemory>(), IsEmpty());
  EXPECT_EQ(broker.counters().limit_refusals, 1U);
}

TEST_F(BrokerTest, ReportThatContinuesAStreamBeyondTheLimitOfAProgramIsAnswered) {
  broker = Broker({.ends_per_program = 1, .pairs = 10});
  make_pair();
  report(3, 30, connection(5001, 80));
  report(3, 10, connection(5000, 80), 9, 1);
  const auto answers = outputs<Broker::SendUnknown>();
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].program, 3U);
  EXPECT_EQ(answers[0].message.number, 9U);
  EXPECT_EQ(answers[0].message.cookie, 10U);
  EXPECT_EQ(broker.counters().limit_refusals, 1U);
  EXPECT_THAT(broker.end(10)->holders, ElementsAre(1U));
}

TEST_F(BrokerTest, ConnectionsBeyondTheLimitOfPairsGetNoMemory) {
  broker = Broker({.ends_per_program = 10, .pairs = 1});
  make_pair();
  report(1, 11, connection(5001, 80));
  report(2, 21, connection(80, 5001));
  EXPECT_THAT(outputs<Broker::MakeMemory>(), IsEmpty());
  EXPECT_EQ(broker.counters().limit_refusals, 1U);
}

TEST_F(BrokerTest, IfTheMemoryCannotBeMadeNoEndGetsAMessage) {
  report(1, 10, connection(5000, 80));
  report(2, 20, connection(80, 5000));
  broker.memory_made(outputs<Broker::MakeMemory>().at(0).pair, false);
  EXPECT_THAT(outputs<Broker::SendMemory>(), IsEmpty());
}

TEST(Messages, MessageOfAnotherSizeOrTypeIsNotDecoded) {
  const Forget forget{.cookie = 5};
  const auto bytes = bytes_of(forget);
  EXPECT_EQ(decode<Forget>(bytes)->cookie, 5U);
  EXPECT_FALSE(decode<Forget>(bytes.first(bytes.size() - 1)));
  EXPECT_FALSE(decode<Report>(bytes));
  EXPECT_FALSE(type_of(bytes.first(3)));
}

}  // namespace
}  // namespace verbena::broker
