#include "node/node.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ipc/counters.h"
#include "node/test_addresses.h"
#include "wire/headers.h"
#include "wire/ip.h"
#include "wire/mad.h"

namespace verbena::node {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint16_t kRange = 0x123;

// Provides a node with two programs.  The test acts as the programs and as the node's owner.
class NodeTest : public ::testing::Test {
 protected:
  NodeTest() {
    node_.on_addresses({address(kLocalIp, 2, true)}, now_);
    node_.set_port(std::nullopt, now_);
    one_ = node_.add_program(now_);
    two_ = node_.add_program(now_);
    (void)outputs();
  }

  std::vector<Node::Output> outputs() {
    std::vector<Node::Output> all;
    while (auto output = node_.poll()) all.push_back(std::move(*output));
    return all;
  }
  // Sends a request and returns its only reply.  Answers the node's route and lease requests
  // meanwhile.
  template <class Reply = ipc::Done, class Message>
  Reply ask(ClientId client, const Message& message) {
    const std::uint64_t number = ++last_request_;
    node_.on_message(client, ipc::encode(number, message), now_);
    std::vector<Reply> replies;
    for (auto all = outputs(); !all.empty(); all = outputs()) {
      for (const Node::Output& output : all) {
        if (const auto* route = std::get_if<Node::RouteRequest>(&output)) {
          node_.on_route(route->token, HostRoute{kLocalIp, 2, 1500, false}, now_);
        } else if (const auto* lease = std::get_if<Node::LeaseRequest>(&output)) {
          node_.on_lease(lease->token, kRange, now_);
        } else if (const auto* to = std::get_if<Node::ToClient>(&output)) {
          const auto envelope = ipc::open(to->message).value();
          if (envelope.request != number || to->client != client) continue;
          replies.push_back(ipc::decode<Reply>(envelope).value());
        }
      }
    }
    EXPECT_EQ(replies.size(), 1u);
    return replies.empty() ? Reply{} : replies[0];
  }
  template <class Message>
  Errc error_of(ClientId client, const Message& message) {
    const auto done = ask(client, message);
    EXPECT_TRUE(done.failed);
    return done.code;
  }
  static rdmacm::IdHandle name(std::uint32_t index, std::uint64_t generation = 1) {
    return {generation << 32 | ipc::kNameBit | index};
  }
  rdmacm::IdHandle create_id(ClientId client) {
    const rdmacm::IdHandle id = name(++last_index_);
    EXPECT_FALSE(ask(client, ipc::CreateId{id, rdmacm::kPortSpaceTcp, 2}).failed);
    return id;
  }
  // Sends a request without a number and returns the messages to programs that it causes.
  template <class Message>
  std::vector<ipc::Bytes> send(ClientId client, const Message& message) {
    node_.on_message(client, ipc::encode(0, message), now_);
    std::vector<ipc::Bytes> all;
    for (const Node::Output& output : outputs()) {
      if (const auto* to = std::get_if<Node::ToClient>(&output)) all.push_back(to->message);
      if (const auto* route = std::get_if<Node::RouteRequest>(&output)) {
        node_.on_route(route->token, HostRoute{kLocalIp, 2, 1500, false}, now_);
      }
    }
    for (const Node::Output& output : outputs()) {
      if (const auto* to = std::get_if<Node::ToClient>(&output)) all.push_back(to->message);
    }
    return all;
  }
  std::uint64_t counter(const std::string& name) const {
    for (const auto& entry : node_.counters()) {
      if (entry.name == name) return entry.value;
    }
    ADD_FAILURE() << "no counter " << name;
    return 0;
  }
  // Sends all kinds of requests that name this id and returns their errors.
  std::vector<Errc> errors_of_all_requests(ClientId client, rdmacm::IdHandle id,
                                           std::uint32_t qpn) {
    return {error_of(client, ipc::Bind{id, {.ip = kLocalIp, .family = 4}}),
            error_of(client, ipc::ResolveAddress{id, {}, {.ip = kRemoteIp, .family = 4}, 1s}),
            error_of(client, ipc::Listen{id, 1}),
            error_of(client, ipc::Connect{id, {.qpn = qpn}}),
            error_of(client, ipc::Accept{id, {.qpn = qpn}}),
            error_of(client, ipc::Reject{id, {}}),
            error_of(client, ipc::Establish{id}),
            error_of(client, ipc::Disconnect{id}),
            error_of(client, ipc::SetOption{id, 0, 0, 0}),
            error_of(client, ipc::DestroyId{id})};
  }

  Time now_{1s};
  Node node_{{.node_guid = {5}, .build = "test"}, Random(1)};
  ClientId one_ = 0;
  ClientId two_ = 0;
  std::uint64_t last_request_ = 0;
  std::uint32_t last_index_ = 0;
};

TEST_F(NodeTest, ProgramCannotUseIdsOfAnotherProgram) {
  const rdmacm::IdHandle id = create_id(one_);
  ASSERT_EQ(ask<ipc::Leased>(two_, ipc::Lease{}).range, kRange);
  EXPECT_THAT(errors_of_all_requests(two_, id, kRange << 12), ::testing::Each(Errc::kBadHandle));
  constexpr rdmacm::IdHandle kHandleOfOne{0x100000001};  // the handle of the first id of the host
  EXPECT_THAT(errors_of_all_requests(two_, kHandleOfOne, kRange << 12),
              ::testing::Each(Errc::kBadHandle));
  EXPECT_FALSE(ask(one_, ipc::DestroyId{id}).failed);
}

TEST_F(NodeTest, EventsUseTheNamesThatAProgramGaveItsIds) {
  const ipc::CreateId create{name(7), rdmacm::kPortSpaceTcp, 2};
  EXPECT_THAT(send(one_, create), ::testing::IsEmpty()) << "a request without a number";
  EXPECT_THAT(send(two_, create), ::testing::IsEmpty()) << "each program has its own names";
  EXPECT_EQ(error_of(one_, create), Errc::kInvalidArgument) << "another id has this name";
  EXPECT_EQ(error_of(one_, ipc::CreateId{name(7, 2), rdmacm::kPortSpaceTcp, 2}),
            Errc::kInvalidArgument);
  const auto messages =
      send(one_, ipc::ResolveAddress{name(7), {}, {.ip = kRemoteIp, .port = 9, .family = 4}, 1s});
  ASSERT_EQ(messages.size(), 1u);
  const auto event = ipc::decode<ipc::CmEvent>(ipc::open(messages[0]).value()).value().event;
  EXPECT_EQ(event.kind, rdmacm::EventKind::kAddrResolved);
  EXPECT_EQ(event.id, name(7));
  // The index can be used again.  The old name does not refer to the new id.
  EXPECT_THAT(send(one_, ipc::DestroyId{name(7)}), ::testing::IsEmpty());
  EXPECT_THAT(send(one_, ipc::CreateId{name(7, 2), rdmacm::kPortSpaceTcp, 2}),
              ::testing::IsEmpty());
  EXPECT_EQ(error_of(one_, ipc::Disconnect{name(7)}), Errc::kBadHandle);
  EXPECT_EQ(error_of(one_, ipc::Disconnect{name(7, 2)}), Errc::kBadState);
}

TEST_F(NodeTest, RefusesInvalidNames) {
  for (const std::uint64_t wrong : {0ull, 1ull, 0x100000001ull, 0x1ffffffffull, 0x180000000ull,
                                    0x180000001ull + rdmacm::kIdsPerOwnerMax}) {
    EXPECT_EQ(error_of(one_, ipc::CreateId{{wrong}, rdmacm::kPortSpaceTcp, 2}),
              Errc::kInvalidArgument)
        << wrong;
  }
}

TEST_F(NodeTest, RequestWithoutANumberIsAnsweredOnlyIfItFails) {
  const rdmacm::IdHandle id = create_id(one_);
  const auto messages = send(one_, ipc::Connect{id, {.qpn = kRange << 12}});
  ASSERT_EQ(messages.size(), 1u);
  const auto refusal = ipc::decode<ipc::Refused>(ipc::open(messages[0]).value()).value();
  EXPECT_EQ(refusal.request, ipc::Type::kConnect);
  EXPECT_EQ(refusal.id, id);
  EXPECT_EQ(refusal.code, Errc::kInvalidArgument);
  EXPECT_EQ(refusal.text, "not a QP of this program");
  EXPECT_THAT(send(one_, ipc::Notify{{7}}), ::testing::IsEmpty())
      << "an error is reported only for an id";
}

// A program that creates an id without waiting for the reply may send more requests that name it.
TEST_F(NodeTest, ListeningBindsAnUnboundIdAndRepliesWithItsPort) {
  const rdmacm::IdHandle id = create_id(one_);
  const rdmacm::SocketAddress source = ask<ipc::Bound>(one_, ipc::Listen{id, 1}).source;
  EXPECT_EQ(source.family, 4);
  EXPECT_EQ(source.ip, wire::ipv4_gid(0));
  EXPECT_NE(source.port, 0);
  EXPECT_EQ(error_of(two_, ipc::Bind{create_id(two_), source}), Errc::kAddressInUse);
}

TEST_F(NodeTest, RequestsForAnIdThatCouldNotBeCreatedGetTheReason) {
  const ClientId three = node_.add_program(now_);
  for (std::uint32_t index = 1; index <= rdmacm::kIdsPerOwnerMax; ++index) {
    for (const ClientId client : {one_, two_}) {
      node_.on_message(client, ipc::encode(0, ipc::CreateId{name(index), rdmacm::kPortSpaceTcp, 2}),
                       now_);
    }
  }
  EXPECT_TRUE(outputs().empty());
  EXPECT_EQ(send(three, ipc::CreateId{name(1), rdmacm::kPortSpaceTcp, 2}).size(), 1u);
  EXPECT_EQ(error_of(three, ipc::Listen{name(1), 1}), Errc::kNoResources);
  EXPECT_FALSE(ask(one_, ipc::DestroyId{name(1)}).failed);
  EXPECT_EQ(error_of(three, ipc::Listen{name(1), 1}), Errc::kNoResources)
      << "the id was not created again";
  EXPECT_THAT(send(three, ipc::CreateId{name(1), rdmacm::kPortSpaceTcp, 2}), ::testing::IsEmpty());
  EXPECT_NE(ask<ipc::Bound>(three, ipc::Listen{name(1), 1}).source.port, 0);
  EXPECT_EQ(send(three, ipc::CreateId{name(2), rdmacm::kPortSpaceTcp, 2}).size(), 1u);
  EXPECT_FALSE(ask(three, ipc::DestroyId{name(2)}).failed);
  EXPECT_EQ(error_of(three, ipc::Listen{name(2), 1}), Errc::kBadHandle);
}

TEST_F(NodeTest, RefusesAStaleId) {
  const rdmacm::IdHandle id = create_id(one_);
  ASSERT_EQ(ask<ipc::Leased>(one_, ipc::Lease{}).range, kRange);
  ASSERT_FALSE(ask(one_, ipc::DestroyId{id}).failed);
  const rdmacm::IdHandle next_id = create_id(one_);
  EXPECT_NE(next_id, id);
  EXPECT_THAT(errors_of_all_requests(one_, id, kRange << 12), ::testing::Each(Errc::kBadHandle));
}

TEST_F(NodeTest, ProgramCannotUseAQpnOfAnotherProgram) {
  const rdmacm::IdHandle id = create_id(two_);
  ASSERT_EQ(ask<ipc::Leased>(one_, ipc::Lease{}).range, kRange);
  const std::uint32_t qpn_of_one = kRange << 12 | 7;
  for (const std::uint32_t qpn : {qpn_of_one, 0u, 1u, 0xffffffu, 0xff000000u | qpn_of_one}) {
    EXPECT_EQ(error_of(two_, ipc::Connect{id, {.qpn = qpn}}), Errc::kInvalidArgument);
    EXPECT_EQ(error_of(two_, ipc::Accept{id, {.qpn = qpn}}), Errc::kInvalidArgument);
    EXPECT_EQ(error_of(two_, ipc::Notify{{qpn}}), Errc::kInvalidArgument);
  }
  EXPECT_FALSE(ask(one_, ipc::Notify{{qpn_of_one}}).failed);
}

TEST_F(NodeTest, LimitsTheRangesOfAProgram) {
  const std::uint32_t limit = Node::Config{}.leases_per_client_max;
  EXPECT_EQ(limit, 64u);
  // Requests that the owner has not answered yet count towards the limit.
  for (std::uint32_t i = 0; i < limit; ++i) {
    node_.on_message(one_, ipc::encode(i + 1, ipc::Lease{}), now_);
  }
  (void)outputs();  // drops the LeaseRequest outputs without an answer
  EXPECT_EQ(error_of(one_, ipc::Lease{}), Errc::kNoResources);
  EXPECT_EQ(ask<ipc::Leased>(two_, ipc::Lease{}).range, kRange);
  EXPECT_EQ(counter("limit_leases_of_client"), 1u);
}

TEST_F(NodeTest, RangeOfADeadProgramQuiesces) {
  ASSERT_EQ(ask<ipc::Leased>(one_, ipc::Lease{}).range, kRange);
  EXPECT_THAT(node_.ranges_of(one_), ElementsAre(kRange));
  node_.remove_program(one_, now_);
  node_.remove_program(two_, now_);
  EXPECT_FALSE(node_.is_idle());
  ASSERT_EQ(node_.deadline(), now_ + 1s);
  node_.on_timer(now_ + 999ms);
  EXPECT_THAT(outputs(), IsEmpty());
  node_.on_timer(now_ + 1s);
  const auto all = outputs();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(std::get<Node::RangeReleased>(all[0]).range, kRange);
  EXPECT_TRUE(node_.is_idle());
  EXPECT_EQ(node_.deadline(), kNever);
}

TEST_F(NodeTest, RangeLeasedAfterItsProgramDiedQuiesces) {
  node_.on_message(one_, ipc::encode(1, ipc::Lease{}), now_);
  const auto requests = outputs();
  ASSERT_EQ(requests.size(), 1u);
  node_.remove_program(one_, now_);
  node_.on_lease(std::get<Node::LeaseRequest>(requests[0]).token, kRange, now_);
  EXPECT_THAT(outputs(), IsEmpty());
  node_.on_timer(now_ + 1s);
  ASSERT_EQ(outputs().size(), 1u);
}

TEST_F(NodeTest, RefusesLeasesWhileThePortIsDown) {
  node_.set_port("UDP port 4791 is taken by rdma_rxe", now_);
  for (const Node::Output& output : outputs()) {  // one message for each program
    const auto& message = std::get<Node::ToClient>(output).message;
    const auto changed = ipc::decode<ipc::DevicesChanged>(ipc::open(message).value()).value();
    EXPECT_FALSE(changed.devices.at(0).ports.at(0).active);
    EXPECT_EQ(changed.devices.at(0).ports.at(0).down_reason, "UDP port 4791 is taken by rdma_rxe");
  }
  EXPECT_EQ(error_of(one_, ipc::Lease{}), Errc::kUnreachable);
}

TEST_F(NodeTest, LeasesWithoutSocketsNeedNoPort) {
  node_.set_port("UDP port 4791 is taken by rdma_rxe", now_);
  (void)outputs();
  node_.on_message(one_, ipc::encode(1, ipc::Lease{.sockets = false}), now_);
  const auto requests = outputs();
  ASSERT_EQ(requests.size(), 1u);
  const auto& wanted = std::get<Node::LeaseRequest>(requests[0]);
  EXPECT_FALSE(wanted.sockets);
  node_.on_lease(wanted.token, kRange, now_);
  const auto replies = outputs();
  ASSERT_EQ(replies.size(), 1u);
  const auto& reply = std::get<Node::ToClient>(replies[0]);
  EXPECT_EQ(ipc::decode<ipc::Leased>(ipc::open(reply.message).value())->range, kRange);
  EXPECT_FALSE(reply.sockets.has_value());
  EXPECT_THAT(node_.ranges_of(one_), ElementsAre(kRange));
}

// ---- after the death of an earlier agent --------------------------------------------------------

rdmacm::PendingDisconnect pending_disconnect(std::uint32_t id) {
  return {.address = {.source = kLocalIp, .destination = kRemoteIp},
          .local_comm_id = {id},
          .remote_comm_id = {9},
          .local_qpn = {0x777001},
          .remote_qpn = {0x888001}};
}

TEST_F(NodeTest, DisconnectsConnectionsThatAProgramHandsOver) {
  rdmacm::PendingDisconnect disconnect_of_another_host = pending_disconnect(3);
  disconnect_of_another_host.address.source = kRemoteIp;
  EXPECT_FALSE(ask(one_, ipc::UnfinishedWork{{0x777},
                                             {pending_disconnect(1), pending_disconnect(2),
                                              disconnect_of_another_host}})
                   .failed);
  EXPECT_EQ(counter("cm_dreq_sent"), 2u);
  EXPECT_EQ(counter("cm_inherited"), 2u);
  EXPECT_EQ(counter("cm_inherited_refused"), 1u);
  node_.remove_program(one_, now_);
  node_.remove_program(two_, now_);
  EXPECT_FALSE(node_.is_idle());
  while (node_.deadline() != kNever) node_.on_timer(now_ = node_.deadline());
  EXPECT_TRUE(node_.is_idle());
}

TEST_F(NodeTest, RefusesAHandOverBeyondTheLimits) {
  const std::vector many(ipc::UnfinishedWork::kDisconnectsMax + 1, pending_disconnect(1));
  EXPECT_EQ(error_of(one_, ipc::UnfinishedWork{{}, many}), Errc::kInvalidArgument);
  const std::vector<std::uint16_t> ranges(ipc::UnfinishedWork::kRangesMax + 1, 0x777);
  EXPECT_EQ(error_of(one_, ipc::UnfinishedWork{ranges, {}}), Errc::kInvalidArgument);
}

TEST_F(NodeTest, DoesNotLeaseRangesThatAProgramStillHasFromAnEarlierAgent) {
  EXPECT_FALSE(ask(one_, ipc::UnfinishedWork{{0x777, 0x778}, {}}).failed);
  const auto avoided = [&] {
    node_.on_message(two_, ipc::encode(++last_request_, ipc::Lease{}), now_);
    return std::get<Node::LeaseRequest>(outputs().at(0)).avoid;
  };
  EXPECT_THAT(avoided(), ElementsAre(0x777, 0x778));
  node_.remove_program(one_, now_);
  EXPECT_THAT(avoided(), IsEmpty());
}

TEST_F(NodeTest, ReturnedRangeQuiescesAndNoLongerBelongsToTheProgram) {
  ASSERT_EQ(ask<ipc::Leased>(one_, ipc::Lease{}).range, kRange);
  EXPECT_EQ(error_of(two_, ipc::ReturnRange{kRange}), Errc::kInvalidArgument);
  EXPECT_FALSE(ask(one_, ipc::ReturnRange{kRange}).failed);
  EXPECT_EQ(error_of(one_, ipc::ReturnRange{kRange}), Errc::kInvalidArgument);
  EXPECT_THAT(node_.ranges_of(one_), IsEmpty());
  now_ = node_.deadline();
  node_.on_timer(now_);
  const auto all = outputs();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(std::get<Node::RangeReleased>(all[0]).range, kRange);
}

TEST_F(NodeTest, QuiescingRangesCountTowardsTheProgramsLimit) {
  const std::uint32_t limit = Node::Config{}.leases_per_client_max;
  for (std::uint32_t i = 0; i < limit; ++i) {
    ASSERT_EQ(ask<ipc::Leased>(one_, ipc::Lease{}).range, kRange);
    ASSERT_FALSE(ask(one_, ipc::ReturnRange{kRange}).failed);
  }
  node_.on_message(one_, ipc::encode(++last_request_, ipc::Lease{}), now_);
  EXPECT_THAT(outputs(), IsEmpty());  // the lease waits
  EXPECT_EQ(counter("leases_held"), 1u);
  EXPECT_EQ(ask<ipc::Leased>(two_, ipc::Lease{}).range, kRange);  // another program does not wait
  const Time time_of_return = std::exchange(now_, node_.deadline());
  EXPECT_EQ(now_ - time_of_return, 1s);
  node_.on_timer(now_);
  const auto all = outputs();
  ASSERT_EQ(all.size(), limit + 1);
  for (std::uint32_t i = 0; i < limit; ++i) {
    EXPECT_TRUE(std::holds_alternative<Node::RangeReleased>(all[i]));
  }
  EXPECT_EQ(std::get<Node::LeaseRequest>(all[limit]).client, one_);
}

TEST_F(NodeTest, LeaseWaitsForAQuiescingRangeWhenNoneIsFree) {
  ASSERT_EQ(ask<ipc::Leased>(one_, ipc::Lease{}).range, kRange);
  node_.remove_program(one_, now_);
  const auto refuse_lease = [&](const Node::Output& output) {
    node_.on_lease(std::get<Node::LeaseRequest>(output).token, fail(Errc::kNoResources, "all"),
                   now_);
  };
  node_.on_message(two_, ipc::encode(++last_request_, ipc::Lease{}), now_);
  const auto wanted = outputs();
  ASSERT_EQ(wanted.size(), 1u);
  refuse_lease(wanted[0]);
  EXPECT_THAT(outputs(), IsEmpty());
  EXPECT_EQ(counter("limit_leases"), 0u);

  now_ = node_.deadline();
  node_.on_timer(now_);
  const auto after_quiescence = outputs();
  ASSERT_EQ(after_quiescence.size(), 2u);
  EXPECT_EQ(std::get<Node::RangeReleased>(after_quiescence[0]).range, kRange);
  // No range is quiescing now, so the lease fails.
  refuse_lease(after_quiescence[1]);
  const auto reply = outputs();
  ASSERT_EQ(reply.size(), 1u);
  const auto envelope = ipc::open(std::get<Node::ToClient>(reply[0]).message).value();
  EXPECT_EQ(envelope.request, last_request_);
  EXPECT_EQ(ipc::decode<ipc::Done>(envelope).value().code, Errc::kNoResources);
  EXPECT_EQ(counter("limit_leases"), 1u);
}

TEST_F(NodeTest, DropsAWaitingLeaseWhenItsProgramDies) {
  ASSERT_EQ(ask<ipc::Leased>(one_, ipc::Lease{}).range, kRange);
  node_.remove_program(one_, now_);
  node_.on_message(two_, ipc::encode(++last_request_, ipc::Lease{}), now_);
  node_.on_lease(std::get<Node::LeaseRequest>(outputs().at(0)).token,
                 fail(Errc::kNoResources, "all"), now_);
  node_.remove_program(two_, now_);
  node_.on_timer(node_.deadline());
  EXPECT_EQ(outputs().size(), 1u);  // only RangeReleased
  EXPECT_TRUE(node_.is_idle());
}

TEST_F(NodeTest, RefusesUnknownOptionsAndLargeValues) {
  const rdmacm::IdHandle id = create_id(one_);
  EXPECT_FALSE(ask(one_, ipc::SetOption{id, 0, 0, 16}).failed);
  EXPECT_EQ(error_of(one_, ipc::SetOption{id, 0, 0, 0x100000010}), Errc::kInvalidArgument);
  EXPECT_EQ(error_of(one_, ipc::SetOption{id, 0, 99, 0}), Errc::kNotSupported);
  EXPECT_EQ(error_of(one_, ipc::SetOption{id, 0, 256, 0}), Errc::kNotSupported);
}

TEST_F(NodeTest, AnswersAMalformedRequestIfItHasANumber) {
  ipc::Bytes bytes = ipc::encode(3, ipc::Listen{{}, 1});
  bytes.pop_back();
  bytes[0] = static_cast<std::byte>(bytes.size());
  node_.on_message(one_, bytes, now_);
  const auto all = outputs();
  ASSERT_EQ(all.size(), 1u);
  const auto& message = std::get<Node::ToClient>(all[0]).message;
  const auto envelope = ipc::open(message).value();
  EXPECT_EQ(envelope.request, 3u);
  EXPECT_EQ(ipc::decode<ipc::Done>(envelope).value().code, Errc::kMalformed);
  node_.on_message(one_, std::span(bytes).first(5), now_);  // too short to have a number
  EXPECT_THAT(outputs(), IsEmpty());
}

// ---- random input -------------------------------------------------------------------------------

TEST_F(NodeTest, SurvivesRandomMessages) {
  Random random(4);
  const rdmacm::IdHandle id = create_id(one_);
  const rdmacm::SocketAddress remote{.ip = kRemoteIp, .port = 9, .family = 4};
  const std::vector<ipc::Bytes> valid_messages = {
      ipc::encode(1, ipc::Lease{}),
      ipc::encode(0, ipc::CreateId{name(1), rdmacm::kPortSpaceTcp, 2}),
      ipc::encode(0, ipc::DestroyId{id}),
      ipc::encode(1, ipc::Bind{id, {.ip = kLocalIp, .port = 9, .family = 4}}),
      ipc::encode(1, ipc::ResolveAddress{id, {}, remote, 1s}),
      ipc::encode(1, ipc::Listen{id, 1}),
      ipc::encode(1, ipc::Connect{id, {.qpn = kRange << 12}}),
      ipc::encode(1, ipc::Accept{id, {.qpn = kRange << 12}}),
      ipc::encode(1, ipc::Reject{id, {}}),
      ipc::encode(1, ipc::Establish{id}),
      ipc::encode(1, ipc::Disconnect{id}),
      ipc::encode(1, ipc::Notify{{kRange << 12}}),
      ipc::encode(1, ipc::SetOption{id, 0, 1, 1}),
      ipc::encode(1, ipc::CreateId{name(2), rdmacm::kPortSpaceNone, 2}),
      ipc::encode(1, ipc::Listen{id, 1, {.data = {std::byte{1}}, .data_mask = {std::byte{1}}}}),
      ipc::encode(
          1, ipc::LoadPath{id, {.address = {.source = kLocalIp, .destination = kRemoteIp}}, {}}),
      ipc::encode(1, ipc::AnswerPath{id, 0, {}, {}}),
      ipc::encode(1, ipc::Migrated{{kRange << 12}}),
  };
  link::Burst burst;
  for (int i = 0; i < 20'000; ++i) {
    ipc::Bytes bytes = valid_messages[random.below(valid_messages.size())];
    if (random.chance({1, 8})) {
      bytes.resize(random.below(400));
      for (auto& byte : bytes) byte = static_cast<std::byte>(random.next());
    }
    const auto wrong_bytes = bytes.empty() ? 0 : random.below(3);
    for (std::uint64_t n = 0; n < wrong_bytes; ++n) {
      bytes[random.below(bytes.size())] = static_cast<std::byte>(random.next());
    }
    // With the correct length, the message passes the first check.
    if (bytes.size() >= 4 && random.chance({3, 4})) {
      const auto size = static_cast<std::uint32_t>(bytes.size());
      std::memcpy(bytes.data(), &size, sizeof(size));
    }
    node_.on_message(random.chance({1, 2}) ? one_ : two_, bytes, now_);
    for (const Node::Output& output : outputs()) {
      if (const auto* route = std::get_if<Node::RouteRequest>(&output)) {
        node_.on_route(route->token, HostRoute{kLocalIp, 2, 1500, false}, now_);
      } else if (const auto* lease = std::get_if<Node::LeaseRequest>(&output)) {
        node_.on_lease(lease->token, kRange, now_);
      }
    }
    (void)node_.transmit(burst, now_);
    burst.clear();
    now_ += 1ms;
    if (node_.deadline() <= now_) node_.on_timer(now_);
  }
  node_.remove_program(one_, now_);
  node_.remove_program(two_, now_);
  EXPECT_EQ(node_.ids(), 0u);
  for (int i = 0; i < 1000 && node_.deadline() != kNever; ++i) {
    now_ = std::max(now_, node_.deadline());
    node_.on_timer(now_);
    (void)outputs();
    (void)node_.transmit(burst, now_);
    burst.clear();
  }
  EXPECT_TRUE(node_.is_idle());
}

// Sends packets that QP1's engine accepts, with random MADs.
TEST_F(NodeTest, SurvivesRandomMads) {
  Random random(8);
  link::Burst burst;
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::byte> mad(random.chance({1, 20}) ? random.below(257) : 256);
    for (auto& byte : mad) byte = static_cast<std::byte>(random.next());
    if (mad.size() > 24 && random.chance({7, 8})) {
      mad[0] = std::byte{1};  // base version
      mad[1] = std::byte{7};  // CM
      mad[2] = std::byte{2};
      mad[3] = std::byte{3};  // Send
      mad[16] = std::byte{0};
      mad[17] = static_cast<std::byte>(0x10 + random.below(12));
    }
    wire::TransportPacket packet{.bth = {.opcode = wire::Opcode::kUdSendOnly,
                                         .pad_count = wire::pad_count(mad.size()),
                                         .destination_qpn = wire::kGsiQpn},
                                 .deth = {.qkey = wire::kGsiQkey, .source_qpn = wire::kGsiQpn}};
    std::vector<std::byte> bytes(wire::header_bytes(packet.bth.opcode));
    wire::write_headers(bytes, packet);
    bytes.insert(bytes.end(), mad.begin(), mad.end());
    bytes.resize(bytes.size() + packet.bth.pad_count);
    node_.receive({.address = {.source = kRemoteIp, .destination = kLocalIp}, .transport = bytes},
                  now_);
    (void)outputs();
    (void)node_.transmit(burst, now_);
    burst.clear();
    now_ += 1ms;
  }
  const auto counters = node_.counters();
  EXPECT_GT(counters.size(), 10u);
  std::set<std::string> names;
  for (const auto& counter : counters) {
    EXPECT_EQ(counter.name, ipc::counter_name(counter.name)) << "not a name for scripts";
    EXPECT_TRUE(names.insert(counter.name).second) << counter.name << " twice";
  }
  EXPECT_TRUE(names.contains("cm_req_received"));
}

TEST_F(NodeTest, ErrorForAPortInUseNamesTheProgramThatUsesIt) {
  const ClientId server = node_.add_program(now_, {.pid = 4711});
  const auto bind = [](rdmacm::IdHandle id) {
    return ipc::Bind{id, {.ip = kLocalIp, .port = 7000, .family = 4}};
  };
  ASSERT_FALSE(ask(server, ipc::CreateId{name(1), rdmacm::kPortSpaceTcp, 2}).failed);
  ASSERT_FALSE(ask<ipc::Bound>(server, bind(name(1))).source.port == 0);
  ASSERT_FALSE(ask(one_, ipc::CreateId{name(1), rdmacm::kPortSpaceTcp, 2}).failed);
  const auto reply = ask(one_, bind(name(1)));
  EXPECT_EQ(reply.code, Errc::kAddressInUse);
  EXPECT_EQ(reply.text, "port 7000 is in use, by PID 4711");
  // 127.0.0.1 counts as a wildcard, so it conflicts with every address.
  const auto on_loopback =
      ask(one_, ipc::Bind{name(1), {.ip = wire::ipv4_gid(0x7f000001), .port = 7000, .family = 4}});
  EXPECT_EQ(on_loopback.text, "port 7000 is in use, by PID 4711");
  // The program itself may use the port already.  Another port space has its own port 7000.
  ASSERT_FALSE(ask(server, ipc::CreateId{name(2), rdmacm::kPortSpaceTcp, 2}).failed);
  EXPECT_EQ(ask(server, bind(name(2))).text, "port 7000 is in use, by another id of this program");
  ASSERT_FALSE(ask(one_, ipc::CreateId{name(2), rdmacm::kPortSpaceUdp, 4}).failed);
  EXPECT_EQ(ask<ipc::Bound>(one_, bind(name(2))).source.port, 7000);
}

}  // namespace
}  // namespace verbena::node
