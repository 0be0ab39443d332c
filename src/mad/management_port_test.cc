#include "mad/management_port.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>

#include "base/random.h"
#include "sim/seeds.h"
#include "wire/rmpp.h"

namespace verbena::mad {
namespace {

using namespace std::chrono_literals;
using wire::MadHeader;
using wire::Method;
using wire::MgmtClass;

constexpr Registration kPerformanceClient{.mgmt_class = 4};
constexpr Registration kPerformanceServer{.mgmt_class = 4, .methods = {0b110, 0}};  // Get and Set
constexpr std::uint64_t kGetTableBit = std::uint64_t{1} << 0x12;
constexpr Registration kSaServer{
    .mgmt_class = 3, .class_version = 2, .methods = {kGetTableBit, 0}, .rmpp_version = 1};
constexpr Registration kSaClient{.mgmt_class = 3, .class_version = 2, .rmpp_version = 1};

std::vector<std::byte> mad_of(const MadHeader& header, std::size_t bytes = wire::kMadBytes) {
  std::vector<std::byte> mad(bytes);
  wire::encode_to(std::span(mad).first<wire::kMadHeaderBytes>(), header);
  return mad;
}

MadHeader header_in(std::span<const std::byte> mad) {
  return wire::decode_exact<MadHeader>(mad.first<wire::kMadHeaderBytes>());
}

wire::RmppHeader rmpp_in(std::span<const std::byte> mad) {
  return wire::decode_exact<wire::RmppHeader>(
      mad.subspan<wire::kMadHeaderBytes, wire::kRmppHeaderBytes>());
}

// Returns an address whose local port has the LID `from`, and whose remote port has the LID `to`.
Address lid_address(std::uint16_t from, std::uint16_t to, Qpn qpn = wire::kGsiQpn) {
  Address address{.remote_qpn = qpn};
  address.path.link_layer = LinkLayer::kInfiniband;
  address.path.source_lid = Lid{from};
  address.path.destination_lid = Lid{to};
  return address;
}

// Connects two ports, with the LIDs 1 and 2, by a network that may lose MADs.
class TwoPorts {
 public:
  ManagementPort& port(unsigned lid) { return ports_.at(lid - 1); }
  Time now{1s};
  Ratio loss{};
  Random random{1};

  // Delivers MADs until none is under way.
  void deliver_all() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::uint16_t lid = 1; lid <= 2; ++lid) {
        while (const auto packet = port(lid).next_packet()) {
          moved = true;
          ++packets;
          if (random.chance(loss)) continue;
          const auto other = static_cast<std::uint16_t>(3 - lid);
          port(other).receive({.destination_qpn = packet->to.remote_qpn,
                               .from = lid_address(other, lid, packet->to.remote_qpn),
                               .mad = packet->mad},
                              now);
        }
      }
    }
  }
  // Advances the time to the next deadline.  Returns false if there is none.
  bool advance() {
    const Time next = std::min(ports_[0].deadline(), ports_[1].deadline());
    if (next == kNever) return false;
    now = std::max(now, next);
    for (auto& one_port : ports_) one_port.on_timer(now);
    deliver_all();
    return true;
  }

  std::uint64_t packets = 0;

 private:
  std::array<ManagementPort, 2> ports_{};
};

class ManagementPortTest : public testing::Test {
 protected:
  TwoPorts net;
  // This is the header of a Get request.
  MadHeader get{.mgmt_class = MgmtClass::kPerformance,
                .class_version = 1,
                .method = Method::kGet,
                .transaction_id = 0xdeadbeef'00000007,
                .attribute_id = 0x12};
};

TEST_F(ManagementPortTest, ResponseReachesTheAgentOfTheRequestAndEndsItsTimer) {
  const auto client = net.port(1).add_agent(kPerformanceClient);
  const auto server = net.port(2).add_agent(kPerformanceServer);
  ASSERT_TRUE(net.port(1).send(
      *client, {.to = lid_address(1, 2), .timeout = 1s, .mad = mad_of(get)}, net.now));
  net.deliver_all();
  const auto request = net.port(2).next_message();
  ASSERT_TRUE(request);
  EXPECT_EQ(request->agent, *server);
  // The upper half of the id is the agent's number, although the program has set another value.
  const MadHeader arrived_header = header_in(request->mad);
  EXPECT_EQ(arrived_header.transaction_id, std::uint64_t{client->value} << 32 | 7);
  MadHeader answer = arrived_header;
  answer.response = true;
  ASSERT_TRUE(net.port(2).send(*server, {.to = request->from, .mad = mad_of(answer)}, net.now));
  net.deliver_all();
  const auto response = net.port(1).next_message();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->agent, *client);
  EXPECT_FALSE(response->timed_out);
  EXPECT_EQ(response->mad.size(), wire::kMadBytes);
  EXPECT_EQ(net.port(1).deadline(), kNever);
}

TEST_F(ManagementPortTest, RequestIsRepeatedAndThenReportedAsTimedOut) {
  const auto client = net.port(1).add_agent(kPerformanceClient);
  net.loss = {1, 1};
  ASSERT_TRUE(net.port(1).send(
      *client,
      {.to = lid_address(1, 2), .timeout = 100ms, .retries = 2, .cookie = 99, .mad = mad_of(get)},
      net.now));
  net.deliver_all();
  const Time began = net.now;
  while (net.advance()) {
  }
  EXPECT_EQ(net.now - began, 300ms);
  EXPECT_EQ(net.packets, 3U);
  const auto timeout = net.port(1).next_message();
  ASSERT_TRUE(timeout);
  EXPECT_TRUE(timeout->timed_out);
  EXPECT_EQ(timeout->cookie, 99U);
  EXPECT_EQ(timeout->mad.size(), wire::kMadHeaderBytes);
  EXPECT_EQ(header_in(timeout->mad).attribute_id, 0x12);
  EXPECT_FALSE(net.port(1).next_message());
}

TEST_F(ManagementPortTest, SecondRequestWithAnIdInUseIsRefused) {
  const auto client = net.port(1).add_agent(kPerformanceClient);
  const ManagementPort::Request request{.to = lid_address(1, 2), .timeout = 1s, .mad = mad_of(get)};
  ASSERT_TRUE(net.port(1).send(*client, request, net.now));
  EXPECT_EQ(net.port(1).send(*client, request, net.now).error().code, Errc::kBusy);
}

TEST_F(ManagementPortTest, ResponseWithoutRequestIsDropped) {
  const auto client = net.port(1).add_agent(kPerformanceClient);
  MadHeader stray = get;
  stray.response = true;
  stray.transaction_id = std::uint64_t{client->value} << 32 | 1;
  const auto mad = mad_of(stray);
  net.port(1).receive({.destination_qpn = wire::kGsiQpn,
                       .from = lid_address(1, 2),
                       .mad = std::span(mad).first<wire::kMadBytes>()},
                      net.now);
  EXPECT_FALSE(net.port(1).next_message());
  EXPECT_EQ(net.port(1).counters().without_request, 1U);
}

TEST_F(ManagementPortTest, RequestThatNoAgentWantsGetsAnErrorStatus) {
  const auto client = net.port(1).add_agent(kPerformanceClient);
  ASSERT_TRUE(net.port(1).send(
      *client, {.to = lid_address(1, 2), .timeout = 1s, .mad = mad_of(get)}, net.now));
  net.deliver_all();
  const auto response = net.port(1).next_message();
  ASSERT_TRUE(response);
  EXPECT_EQ(header_in(response->mad).status, wire::mad_status::kMethodAttributeNotSupported);
}

TEST_F(ManagementPortTest, RemovedAgentGetsNothingMore) {
  const auto client = net.port(1).add_agent(kPerformanceClient);
  ASSERT_TRUE(net.port(1).send(
      *client, {.to = lid_address(1, 2), .timeout = 1s, .mad = mad_of(get)}, net.now));
  EXPECT_TRUE(net.port(1).remove_agent(*client));
  EXPECT_FALSE(net.port(1).remove_agent(*client));
  EXPECT_EQ(net.port(1).deadline(), kNever);
  net.deliver_all();
  EXPECT_FALSE(net.port(1).next_message());
  EXPECT_EQ(net.port(1).send(*client, {.mad = mad_of(get)}, net.now).error().code,
            Errc::kBadHandle);
}

TEST_F(ManagementPortTest, CancelledRequestIsNotRepeatedAndItsResponseIsDropped) {
  const auto client = net.port(1).add_agent(kPerformanceClient);
  const auto server = net.port(2).add_agent(kPerformanceServer);
  const ManagementPort::Request request{
      .to = lid_address(1, 2), .timeout = 1s, .retries = 3, .mad = mad_of(get)};
  ASSERT_TRUE(net.port(1).send(*client, request, net.now));
  net.deliver_all();
  EXPECT_TRUE(net.port(1).cancel(*client, MgmtClass::kPerformance, 7));
  EXPECT_FALSE(net.port(1).cancel(*client, MgmtClass::kPerformance, 7));
  EXPECT_EQ(net.port(1).deadline(), kNever);
  const auto arrived = net.port(2).next_message();
  MadHeader answer = header_in(arrived->mad);
  answer.response = true;
  ASSERT_TRUE(net.port(2).send(*server, {.to = arrived->from, .mad = mad_of(answer)}, net.now));
  net.deliver_all();
  EXPECT_FALSE(net.port(1).next_message());
  EXPECT_EQ(net.port(1).counters().cancelled, 1U);
  // The transaction id may be used again at once.
  EXPECT_TRUE(net.port(1).send(*client, request, net.now));
}

TEST_F(ManagementPortTest, CancelDropsOnlyMessagesOfTheCancelledRequest) {
  const auto client = net.port(1).add_agent(kPerformanceClient);
  for (std::uint32_t id = 7; id <= 8; ++id) {
    get.transaction_id = id;
    ASSERT_TRUE(net.port(1).send(
        *client, {.to = lid_address(1, 2), .timeout = 1s, .cookie = id, .mad = mad_of(get)},
        net.now));
  }
  while (net.advance()) {
  }
  EXPECT_TRUE(net.port(1).cancel(*client, MgmtClass::kPerformance, 7));
  const auto other = net.port(1).next_message();
  ASSERT_TRUE(other);
  EXPECT_EQ(other->cookie, 8U);
  EXPECT_FALSE(net.port(1).next_message());
}

TEST_F(ManagementPortTest, AgentNumbersBeginAfterTheNumberThatTheConstructorGets) {
  ManagementPort port(AgentNumber{0x9000});
  EXPECT_EQ(*port.add_agent(kPerformanceClient), AgentNumber{0x9001});
}

// A registration is refused if one of its values is invalid, or if another agent has the method.
// Vendor classes with different OUIs do not conflict.
TEST_F(ManagementPortTest, InvalidRegistrationsAreRefused) {
  auto& port = net.port(1);
  const auto is_refused = [&](Registration registration) {
    const auto added = port.add_agent(registration);
    return !added && added.error().code == Errc::kInvalidArgument;
  };
  EXPECT_TRUE(is_refused({.qpn = {2}, .mgmt_class = 4}));
  EXPECT_TRUE(is_refused({.qpn = {0}, .mgmt_class = 4}));
  EXPECT_TRUE(is_refused({.qpn = {1}, .mgmt_class = 0x81}));
  EXPECT_TRUE(is_refused({.mgmt_class = 4, .rmpp_version = 1}));
  EXPECT_TRUE(is_refused({.mgmt_class = 3, .class_version = 2, .rmpp_version = 2}));
  EXPECT_TRUE(is_refused({.mgmt_class = 0x32}));
  EXPECT_TRUE(is_refused({.mgmt_class = 0x50}));
  EXPECT_TRUE(is_refused({.mgmt_class = 4, .class_version = 8}));
  ASSERT_TRUE(port.add_agent(kPerformanceServer));
  EXPECT_EQ(port.add_agent(kPerformanceServer).error().code, Errc::kAddressInUse);
  EXPECT_TRUE(port.add_agent({.mgmt_class = 0x32, .oui = 1, .methods = {2, 0}}));
  EXPECT_TRUE(port.add_agent({.mgmt_class = 0x32, .oui = 2, .methods = {2, 0}}));
}

TEST_F(ManagementPortTest, InvalidLengthsAreRefused) {
  const auto agent = net.port(1).add_agent(kPerformanceClient);
  const auto is_refused = [&](std::size_t bytes) {
    return !net.port(1).send(*agent, {.mad = mad_of(get, bytes)}, net.now);
  };
  EXPECT_TRUE(is_refused(35));
  EXPECT_FALSE(is_refused(36));
  EXPECT_FALSE(is_refused(256));
  EXPECT_TRUE(is_refused(257));
}

// Sends tables from the server at LID 2 to the client at LID 1.
class RmppTest : public ManagementPortTest {
 protected:
  RmppTest() {
    client = *net.port(1).add_agent(kSaClient);
    server = *net.port(2).add_agent(kSaServer);
  }
  // This is the header of a GetTable request.
  MadHeader get_table{.mgmt_class = MgmtClass::kSubnetAdministration,
                      .class_version = 2,
                      .method = Method::kGetTable,
                      .transaction_id = 5,
                      .attribute_id = 0x11};

  void request_table() {
    ASSERT_TRUE(net.port(1).send(
        client, {.to = lid_address(1, 2), .timeout = 1s, .retries = 20, .mad = mad_of(get_table)},
        net.now));
    net.deliver_all();
  }
  std::vector<std::byte> table(const MadHeader& request, std::size_t data_bytes) {
    MadHeader header = request;
    header.response = true;
    auto mad = mad_of(header, 56 + data_bytes);
    wire::encode_to(std::span(mad).subspan<wire::kMadHeaderBytes, wire::kRmppHeaderBytes>(),
                    wire::RmppHeader{.version = 0, .active = true});  // as OpenSM does
    for (std::size_t i = 0; i < data_bytes; ++i)
      mad[56 + i] = static_cast<std::byte>(i * 7 + i / 251);
    return mad;
  }
  // Answers all requests that have arrived, with tables of this length.
  void answer(std::size_t data_bytes) {
    while (const auto request = net.port(2).next_message()) {
      if (request->timed_out) continue;
      auto mad = table(header_in(request->mad), data_bytes);
      (void)net.port(2).send(server, {.to = request->from, .retries = 20, .mad = std::move(mad)},
                             net.now);
    }
    net.deliver_all();
  }
  AgentNumber client;
  AgentNumber server;
};

TEST_F(RmppTest, TableOfAnyLengthArrivesComplete) {
  for (const std::size_t bytes : {0U, 1U, 199U, 200U, 201U, 400U, 12'999U, 13'000U, 500'000U}) {
    ++get_table.transaction_id;
    request_table();
    answer(bytes);
    const auto message = net.port(1).next_message();
    ASSERT_TRUE(message) << bytes;
    ASSERT_FALSE(message->timed_out) << bytes;
    auto expected = table(header_in(message->mad), bytes);
    ASSERT_EQ(message->mad.size(), expected.size()) << bytes;
    EXPECT_TRUE(std::equal(expected.begin() + 56, expected.end(), message->mad.begin() + 56))
        << bytes;
  }
}

TEST_F(RmppTest, FirstSegmentTellsTheLengthOfTheMessage) {
  request_table();
  const auto request = net.port(2).next_message();
  ASSERT_TRUE(net.port(2).send(
      server, {.to = request->from, .mad = table(header_in(request->mad), 401)}, net.now));
  const auto first = net.port(2).next_packet();
  ASSERT_TRUE(first);
  // The length includes the 20 bytes of the SA's header (vol1 15.2.1.1), once for each of the three
  // segments, and 401 bytes of data.
  EXPECT_EQ(rmpp_in(first->mad).length_or_window, 3U * 20 + 401);
  EXPECT_TRUE(rmpp_in(first->mad).first);
  EXPECT_FALSE(net.port(2).next_packet()) << "only one segment before the first ACK";
}

TEST_F(RmppTest, LossDelaysATableAndDamagesNothing) {
  for (const std::uint64_t seed : sim::seeds(200)) {
    net.random = Random(seed);
    net.loss = {static_cast<std::uint32_t>(seed % 4), 10};
    const std::size_t bytes = net.random.below(40'000);
    ++get_table.transaction_id;
    request_table();
    answer(bytes);
    std::optional<ManagementPort::Message> message;
    while (!(message = net.port(1).next_message()) && net.advance()) answer(bytes);
    ASSERT_TRUE(message) << "seed " << seed;
    ASSERT_FALSE(message->timed_out) << "seed " << seed;
    const auto expected = table(header_in(message->mad), bytes);
    ASSERT_EQ(message->mad.size(), expected.size()) << "seed " << seed;
    ASSERT_TRUE(std::equal(expected.begin() + 56, expected.end(), message->mad.begin() + 56))
        << "seed " << seed;
    net.loss = {};
    while (net.advance()) answer(bytes);
    while (net.port(1).next_message()) {
    }
  }
}

// Loses the MADs from LID 2 to LID 1 after the first segments of a table.
class StalledTableTest : public RmppTest {
 protected:
  void stall() {
    request_table();
    stall_response();
  }
  void stall_response() {
    const auto request = net.port(2).next_message();
    ASSERT_TRUE(request);
    ASSERT_TRUE(net.port(2).send(
        server,
        {.to = request->from, .retries = 20, .mad = table(header_in(request->mad), 100'000)},
        net.now));
    deliver_one(2);
    deliver_one(1);  // the ACK opens the window
    deliver_one(2);
    while (net.port(2).next_packet()) {
    }
  }
  void deliver_one(std::uint16_t from) {
    const auto other = static_cast<std::uint16_t>(3 - from);
    const auto packet = net.port(from).next_packet();
    ASSERT_TRUE(packet);
    net.port(other).receive(
        {.destination_qpn = wire::kGsiQpn, .from = lid_address(other, from), .mad = packet->mad},
        net.now);
  }
  // Runs only the timers of the client for this time, and returns the MADs that the client sends.
  std::vector<Mad> wait_for(Duration duration) {
    std::vector<Mad> sent;
    const Time end = net.now + duration;
    while (net.port(1).deadline() <= end) {
      net.now = net.port(1).deadline();
      net.port(1).on_timer(net.now);
      while (const auto packet = net.port(1).next_packet()) sent.push_back(packet->mad);
    }
    net.now = end;
    return sent;
  }
};

TEST_F(StalledTableTest, RequestIsNotRepeatedWhileItsResponseArrives) {
  stall();
  EXPECT_TRUE(wait_for(ManagementPort::kSegmentGapMax - 1ms).empty());
  // The sender continues, and the complete table arrives.
  std::optional<ManagementPort::Message> message;
  net.port(2).on_timer(net.now);
  net.deliver_all();
  while (!(message = net.port(1).next_message()) && net.advance()) {
  }
  ASSERT_TRUE(message);
  EXPECT_FALSE(message->timed_out);
  EXPECT_EQ(message->mad.size(), 56 + 100'000U);
}

TEST_F(StalledTableTest, StalledResponseIsAbortedAndItsRequestIsRepeated) {
  stall();
  const auto sent = wait_for(ManagementPort::kSegmentGapMax);
  ASSERT_EQ(sent.size(), 2U);
  EXPECT_EQ(rmpp_in(sent[0]).type, wire::RmppType::kAbort);
  EXPECT_EQ(header_in(sent[1]).method, Method::kGetTable);
  EXPECT_FALSE(header_in(sent[1]).response);
  // A late segment of the old response finds no receiver.
  const std::uint64_t dropped = net.port(1).counters().segments_dropped;
  net.port(2).on_timer(net.now);
  deliver_one(2);
  EXPECT_EQ(net.port(1).counters().segments_dropped, dropped + 1);
}

// Once the peer has acknowledged all segments of a request, the port stores only the headers of the
// request.  So it cannot repeat the request.
TEST_F(StalledTableTest, RequestThatHadSegmentsIsReportedAsTimedOut) {
  auto request = mad_of(get_table, 56 + 1000);
  wire::encode_to(std::span(request).subspan<wire::kMadHeaderBytes, wire::kRmppHeaderBytes>(),
                  wire::RmppHeader{.active = true});
  ASSERT_TRUE(net.port(1).send(
      client, {.to = lid_address(1, 2), .timeout = 1s, .retries = 20, .mad = request}, net.now));
  net.deliver_all();
  stall_response();
  const auto sent = wait_for(ManagementPort::kSegmentGapMax);
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(rmpp_in(sent[0]).type, wire::RmppType::kAbort);
  const auto message = net.port(1).next_message();
  ASSERT_TRUE(message);
  EXPECT_TRUE(message->timed_out);
}

TEST_F(StalledTableTest, CancelTellsTheSenderToStop) {
  stall();
  EXPECT_TRUE(net.port(1).cancel(client, MgmtClass::kSubnetAdministration, 5));
  EXPECT_EQ(net.port(1).deadline(), kNever);
  net.deliver_all();
  const auto message = net.port(2).next_message();
  ASSERT_TRUE(message);
  EXPECT_TRUE(message->timed_out);
  EXPECT_EQ(net.port(2).deadline(), kNever);
}

TEST_F(RmppTest, AbortEndsTheResponseAtOnce) {
  request_table();
  const auto request = net.port(2).next_message();
  ASSERT_TRUE(net.port(2).send(
      server, {.to = request->from, .cookie = 3, .mad = table(header_in(request->mad), 1000)},
      net.now));
  const auto segment = net.port(2).next_packet();
  MadHeader header = header_in(segment->mad);
  header.response = false;
  Mad abort = segment->mad;
  wire::encode_to(std::span(abort).first<wire::kMadHeaderBytes>(), header);
  wire::encode_to(
      std::span(abort).subspan<wire::kMadHeaderBytes, wire::kRmppHeaderBytes>(),
      wire::RmppHeader{
          .type = wire::RmppType::kAbort, .active = true, .status = wire::RmppStatus::kBadSegment});
  net.port(2).receive({.destination_qpn = wire::kGsiQpn, .from = lid_address(2, 1), .mad = abort},
                      net.now);
  const auto message = net.port(2).next_message();
  ASSERT_TRUE(message);
  EXPECT_TRUE(message->timed_out);
  EXPECT_EQ(message->cookie, 3U);
}

TEST_F(RmppTest, SegmentOfAnUnexpectedResponseTakesNoMemory) {
  MadHeader header = get_table;
  header.response = true;
  header.transaction_id = std::uint64_t{client.value} << 32 | 77;
  auto mad = mad_of(header);
  wire::encode_to(
      std::span(mad).subspan<wire::kMadHeaderBytes, wire::kRmppHeaderBytes>(),
      wire::RmppHeader{.type = wire::RmppType::kData, .first = true, .active = true, .segment = 1});
  net.port(1).receive({.destination_qpn = wire::kGsiQpn,
                       .from = lid_address(1, 2),
                       .mad = std::span(mad).first<wire::kMadBytes>()},
                      net.now);
  EXPECT_FALSE(net.port(1).next_packet());
  EXPECT_EQ(net.port(1).deadline(), kNever);
}

TEST_F(RmppTest, SenderThatStopsIsAbortedAfterFortySeconds) {
  // LID 1 sends a request of several segments, of which only the first arrives.
  MadHeader header = get_table;
  header.transaction_id = 9;
  auto mad = mad_of(header);
  wire::encode_to(
      std::span(mad).subspan<wire::kMadHeaderBytes, wire::kRmppHeaderBytes>(),
      wire::RmppHeader{.type = wire::RmppType::kData, .first = true, .active = true, .segment = 1});
  auto& port = net.port(2);
  port.receive({.destination_qpn = wire::kGsiQpn,
                .from = lid_address(2, 1),
                .mad = std::span(mad).first<wire::kMadBytes>()},
               net.now);
  const auto ack = port.next_packet();
  ASSERT_TRUE(ack);
  EXPECT_EQ(rmpp_in(ack->mad).type, wire::RmppType::kAck);
  EXPECT_EQ(rmpp_in(ack->mad).length_or_window, 1 + RmppReceiver::kWindow);
  EXPECT_EQ(port.deadline(), net.now + ManagementPort::kReceiverTimeout);
  port.on_timer(port.deadline());
  const auto abort = port.next_packet();
  ASSERT_TRUE(abort);
  EXPECT_EQ(rmpp_in(abort->mad).status, wire::RmppStatus::kTotalTimeTooLong);
  EXPECT_EQ(port.deadline(), kNever);
}

TEST_F(RmppTest, RequestAndAnswerOfOneTransactionMayBothHaveSegments) {
  auto request = mad_of(get_table, 56 + 1000);
  wire::encode_to(std::span(request).subspan<wire::kMadHeaderBytes, wire::kRmppHeaderBytes>(),
                  wire::RmppHeader{.active = true});
  for (std::size_t i = 56; i < request.size(); ++i) request[i] = static_cast<std::byte>(i);
  ASSERT_TRUE(net.port(1).send(
      client, {.to = lid_address(1, 2), .timeout = 1s, .retries = 3, .mad = request}, net.now));
  net.deliver_all();
  const auto arrived = net.port(2).next_message();
  ASSERT_TRUE(arrived);
  ASSERT_EQ(arrived->mad.size(), request.size());
  EXPECT_TRUE(std::equal(request.begin() + 56, request.end(), arrived->mad.begin() + 56));
  ASSERT_TRUE(net.port(2).send(
      server, {.to = arrived->from, .retries = 3, .mad = table(header_in(arrived->mad), 3000)},
      net.now));
  net.deliver_all();
  const auto message = net.port(1).next_message();
  ASSERT_TRUE(message);
  EXPECT_FALSE(message->timed_out);
  EXPECT_EQ(message->mad.size(), 56u + 3000);
  EXPECT_EQ(net.port(1).counters().timeouts, 0u);
}

TEST_F(RmppTest, PendingRequestsAreLimited) {
  ManagementPort& port = net.port(1);
  for (std::size_t i = 0; i < ManagementPort::kTransactionsMax; ++i) {
    get_table.transaction_id = i + 1;
    ASSERT_TRUE(port.send(
        client, {.to = lid_address(1, 2), .timeout = 1s, .mad = mad_of(get_table)}, net.now));
  }
  get_table.transaction_id = ManagementPort::kTransactionsMax + 1;
  const auto one_more = port.send(
      client, {.to = lid_address(1, 2), .timeout = 1s, .mad = mad_of(get_table)}, net.now);
  ASSERT_FALSE(one_more);
  EXPECT_EQ(one_more.error().code, Errc::kNoResources);
}

// A new message may replace a message that has arrived completely, even if a message that is still
// arriving is older.
TEST_F(RmppTest, SimultaneouslyArrivingMessagesAreLimited) {
  ManagementPort& port = net.port(2);
  const auto receive_segment = [&](std::uint64_t id, std::uint32_t number, bool is_last) {
    get_table.transaction_id = id;
    auto mad = mad_of(get_table);
    wire::encode_to(std::span(mad).subspan<wire::kMadHeaderBytes, wire::kRmppHeaderBytes>(),
                    wire::RmppHeader{.type = wire::RmppType::kData,
                                     .last = is_last,
                                     .first = number == 1,
                                     .active = true,
                                     .segment = number,
                                     .length_or_window = is_last ? 20U + 100 : 0});
    port.receive({.destination_qpn = wire::kGsiQpn,
                  .from = lid_address(2, 1),
                  .mad = std::span(mad).first<wire::kMadBytes>()},
                 net.now);
    return rmpp_in(port.next_packet().value().mad);
  };
  const auto arriving_count = ManagementPort::kReceiversMax - 1;
  for (std::size_t id = 1; id <= arriving_count; ++id) {
    ASSERT_EQ(receive_segment(id, 1, false).type, wire::RmppType::kAck);
  }
  ASSERT_EQ(receive_segment(10'000, 1, true).type, wire::RmppType::kAck);
  EXPECT_TRUE(port.next_message());
  EXPECT_EQ(receive_segment(10'001, 1, false).type, wire::RmppType::kAck)
      << "replaces the complete message";
  const auto refusal = receive_segment(10'002, 1, false);
  EXPECT_EQ(refusal.type, wire::RmppType::kStop);
  EXPECT_EQ(refusal.status, wire::RmppStatus::kResourcesExhausted);
}

// The segments of a window may arrive in any order.
TEST(RmppReceiverTest, WindowThatArrivesInReverseOrderIsJoined) {
  constexpr std::uint32_t kSegments = 1 + RmppReceiver::kWindow;
  RmppReceiver receiver(56, 100'000);
  Mad mad{};
  const auto accept = [&](std::uint32_t segment) {
    mad[56] = static_cast<std::byte>(segment);
    return receiver.accept({.type = wire::RmppType::kData,
                            .last = segment == kSegments,
                            .first = segment == 1,
                            .active = true,
                            .segment = segment,
                            .length_or_window = segment == kSegments ? 220U : 0},
                           mad);
  };
  EXPECT_EQ(accept(1), RmppReceiver::Outcome::kAck);
  EXPECT_EQ(accept(kSegments + 1), RmppReceiver::Outcome::kDropped) << "beyond the window";
  for (std::uint32_t segment = kSegments; segment > 2; --segment) {
    EXPECT_EQ(accept(segment), RmppReceiver::Outcome::kStored);
  }
  ASSERT_EQ(accept(2), RmppReceiver::Outcome::kComplete);
  const auto message = receiver.take_message();
  ASSERT_EQ(message.size(), 56 + kSegments * 200U);
  for (std::uint32_t segment = 1; segment <= kSegments; ++segment) {
    EXPECT_EQ(message[56 + (segment - 1) * 200], static_cast<std::byte>(segment));
  }
}

TEST(RmppReceiverTest, MessageThatIsTooLongIsRefused) {
  RmppReceiver receiver(56, 1000);
  Mad mad{};
  wire::RmppHeader header{.type = wire::RmppType::kData, .first = true, .active = true};
  auto outcome = RmppReceiver::Outcome::kStored;
  while (outcome != RmppReceiver::Outcome::kTooLong) {
    ++header.segment;
    ASSERT_LE(header.segment, 5u);
    outcome = receiver.accept(header, mad);
    header.first = false;
  }
  EXPECT_EQ(header.segment, 5u) << "56 bytes of headers, and 200 with each segment";
}

}  // namespace
}  // namespace verbena::mad
