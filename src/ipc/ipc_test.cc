#include <gtest/gtest.h>

#include <memory>

#include "base/random.h"
#include "ipc/counters.h"
#include "ipc/messages.h"
#include "ipc/qp_table.h"
#include "ipc/sa_messages.h"
#include "ipc/subnet_messages.h"
#include "ipc/tool_messages.h"

namespace verbena::ipc {
namespace {

rdmacm::Event some_event() {
  rdmacm::Event event{
      .owner = 7, .id = {0x100000002}, .kind = rdmacm::EventKind::kConnectRequest, .status = -110};
  event.param.private_data[3] = std::byte{9};
  event.path.mtu = 5;
  event.qp.sq_psn = 0xabcdef;
  event.destination.port = 7174;
  return event;
}

TEST(Message, FieldsSurviveARoundTrip) {
  const Bytes bytes = encode(42, CmEvent{some_event()});
  const auto envelope = open(bytes);
  ASSERT_TRUE(envelope);
  EXPECT_EQ(envelope->type, Type::kCmEvent);
  EXPECT_EQ(envelope->request, 42u);
  const auto decoded = decode<CmEvent>(*envelope);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->event, some_event());
}

TEST(Message, ListsAndTextsSurviveARoundTrip) {
  Welcome welcome{.agent_pid = 9, .build = "b", .refusal = "no", .capture = true};
  const Port port{.link_layer = LinkLayer::kInfiniband,
                  .gids = {{.interface = 1, .index = 0, .mtu_bytes = 1500}, {.index = 1}},
                  .lid = {7}};
  welcome.devices = {Device{}, {.name = "hca0", .ports = {Port{}, port}}};
  const Bytes bytes = encode(1, welcome);
  const auto decoded = decode<Welcome>(*open(bytes));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->refusal, "no");
  ASSERT_EQ(decoded->devices.size(), 2u);
  const Port* const found = find_port(decoded->devices, {1, 2});
  ASSERT_NE(found, nullptr);
  ASSERT_EQ(found->gids.size(), 2u);
  EXPECT_EQ(found->gids[0].mtu_bytes, 1500u);
  EXPECT_EQ(found->link_layer, LinkLayer::kInfiniband);
  EXPECT_EQ(found->lid, Lid{7});
  EXPECT_EQ(decoded->devices[1].name, "hca0");
  EXPECT_EQ(find_port(decoded->devices, {0, 2}), nullptr);
  EXPECT_EQ(find_port(decoded->devices, {1, 0}), nullptr);
  EXPECT_EQ(find_port(decoded->devices, {2, 1}), nullptr);
}

TEST(Message, MulticastMessagesSurviveARoundTrip) {
  Gid group{};
  group.bytes[0] = std::byte{0xff};
  group.bytes[15] = std::byte{7};
  const Bytes join = encode(4, JoinMulticast{.port = {1, 2},
                                             .port_space = 0x0002,
                                             .pkey = {0x8001},
                                             .group = group,
                                             .is_mgid = true,
                                             .join_state = 8});
  const auto request = decode<JoinMulticast>(*open(join));
  ASSERT_TRUE(request);
  EXPECT_EQ(request->port, (PortId{1, 2}));
  EXPECT_EQ(request->port_space, 0x0002);
  EXPECT_EQ(request->pkey, Pkey{0x8001});
  EXPECT_EQ(request->group, group);
  EXPECT_TRUE(request->is_mgid);
  EXPECT_EQ(request->join_state, 8);

  const MulticastJoined joined{.membership = 0x100000003,
                               .mgid = group,
                               .mlid = {0xc003},
                               .qkey = {0x0b1b},
                               .pkey = {0xffff},
                               .mtu = 4,
                               .rate = 3,
                               .service_level = 5,
                               .traffic_class = 6,
                               .hop_limit = 7,
                               .flow_label = 0xabcde};
  EXPECT_EQ(decode<MulticastJoined>(*open(encode(4, joined))), joined);

  const Bytes leave = encode(0, LeaveMulticast{joined.membership});
  EXPECT_EQ(decode<LeaveMulticast>(*open(leave)).value().membership, joined.membership);
  const Bytes lost = encode(0, MulticastLost{joined.membership, 110});
  EXPECT_EQ(decode<MulticastLost>(*open(lost)).value().membership, joined.membership);
  EXPECT_EQ(decode<MulticastLost>(*open(lost)).value().error, 110);
}

SaPathRow some_sa_path() {
  Gid destination{};
  destination.bytes[15] = std::byte{7};
  Gid source{};
  source.bytes[15] = std::byte{8};
  return {.port = {1, 2},
          .state = "known",
          .destination = destination,
          .source = source,
          .destination_lid = {3},
          .source_lid = {4},
          .pkey = {0x8001},
          .service_level = 5,
          .mtu = 4,
          .rate = 3,
          .packet_life = 18,
          .age = std::chrono::seconds(9),
          .waiters = 10,
          .error = "why"};
}

TEST(Message, SaMessagesSurviveARoundTrip) {
  const Bytes show = encode(4, ShowSa{.topic = SaTopic::kAddresses, .skip = 512});
  const auto request = decode<ShowSa>(*open(show));
  ASSERT_TRUE(request);
  EXPECT_EQ(request->topic, SaTopic::kAddresses);
  EXPECT_EQ(request->skip, 512u);

  const SaGroupRow group{.port = {1, 2},
                         .mgid = some_sa_path().destination,
                         .join_state = 1,
                         .wanted = 9,
                         .members = 3,
                         .busy = true,
                         .mlid = {0xc001},
                         .qkey = {0xb1b},
                         .pkey = {0xffff},
                         .mtu = 4,
                         .rate = 2,
                         .service_level = 6};
  const SaAddressRow address{.port = {1, 2},
                             .ip = some_sa_path().source,
                             .state = "probe",
                             .gid = some_sa_path().destination,
                             .qpn = {0x4b},
                             .age = std::chrono::seconds(11),
                             .waiters = 12,
                             .tries = 13};
  const SaReply reply{.paths = {some_sa_path(), {}},
                      .groups = {{}, group},
                      .addresses = {address},
                      .counters = {{"sa_queries", 7}},
                      .more = true};
  const auto decoded = decode<SaReply>(*open(encode(4, reply)));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->paths, reply.paths);
  EXPECT_EQ(decoded->groups, reply.groups);
  EXPECT_EQ(decoded->addresses, reply.addresses);
  ASSERT_EQ(decoded->counters.size(), 1u);
  EXPECT_EQ(decoded->counters[0].value, 7u);
  EXPECT_TRUE(decoded->more);

  const SaFlushed flushed{.paths = 3, .addresses = 0x100000002};
  EXPECT_EQ(decode<SaFlushed>(*open(encode(4, flushed))), flushed);
}

TEST(Message, APageOfTheLargestSaRowsFitsIntoAMessage) {
  SaPathRow largest = some_sa_path();
  largest.error = std::string(kSaTextBytesMax, 'x');
  const SaReply page{.paths = std::vector<SaPathRow>(kSaRowsPerReply, largest)};
  const Bytes bytes = encode(1, page);
  EXPECT_LE(bytes.size(), kMessageBytesMax);
  EXPECT_TRUE(decode<SaReply>(*open(bytes)));
}

// The reply to a join carries the group's parameters, so a join needs a request number.
TEST(Message, LeaveMulticastMayHaveNoReplyButJoinMulticastMustHaveOne) {
  EXPECT_TRUE(is_for_node(Type::kJoinMulticast));
  EXPECT_TRUE(is_for_node(Type::kLeaveMulticast));
  EXPECT_FALSE(is_for_node(Type::kFlushCapture));
  EXPECT_FALSE(needs_no_reply(Type::kJoinMulticast));
  EXPECT_TRUE(needs_no_reply(Type::kLeaveMulticast));
}

// Types such as Qpn are encoded by their member `value`.  NamedCount has such a member too,
// but all of its members must be encoded.
TEST(Message, NamedCountsAreEncodedWithTheirNames) {
  StatusReply status{.pid = 4, .counters = {{"data_packets", 7}}};
  const Bytes bytes = encode(1, status);
  const auto decoded = decode<StatusReply>(*open(bytes));
  ASSERT_TRUE(decoded);
  ASSERT_EQ(decoded->counters.size(), 1u);
  EXPECT_EQ(decoded->counters[0].name, "data_packets");
  EXPECT_EQ(decoded->counters[0].value, 7u);
}

TEST(Message, AMessageThatIsTooShortOrTooLongIsMalformed) {
  const Bytes bytes = encode(1, CmEvent{some_event()});
  const Envelope envelope = open(bytes).value();
  for (std::size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(open(std::span(bytes).first(n)));
  for (std::size_t n = 0; n < envelope.body.size(); ++n) {
    EXPECT_FALSE(decode<CmEvent>({envelope.type, envelope.request, envelope.body.first(n)}));
  }
  Bytes longer = bytes;
  longer.push_back(std::byte{});
  EXPECT_FALSE(open(longer));
  const auto longer_body = std::span(longer).last(envelope.body.size() + 1);
  EXPECT_FALSE(decode<CmEvent>({envelope.type, envelope.request, longer_body}));
}

TEST(Datagram, TakeMessageReturnsTheMessagesInOrder) {
  Bytes datagram = encode(0, Reject{{}, 28, Bytes(3)});
  const Bytes second = encode(7, Status{});
  datagram.insert(datagram.end(), second.begin(), second.end());
  std::span<const std::byte> rest = datagram;
  EXPECT_EQ(open(take_message(rest).value()).value().type, Type::kReject);
  EXPECT_EQ(open(take_message(rest).value()).value().request, 7u);
  EXPECT_TRUE(rest.empty());
}

TEST(Datagram, ADatagramThatEndsWithinAMessageIsMalformed) {
  const Bytes message = encode(7, Reject{{}, 28, Bytes(3)});
  for (std::size_t n = 1; n < message.size(); ++n) {
    std::span<const std::byte> rest = std::span(message).first(n);
    EXPECT_FALSE(take_message(rest));
    EXPECT_EQ(rest.size(), n);
  }
  // A message shorter than its header is malformed, too.  Otherwise a length of 0 would cause an
  // endless loop.
  for (const unsigned size : {0u, 1u, 13u}) {
    Bytes bytes(20);
    bytes[0] = static_cast<std::byte>(size);
    std::span<const std::byte> rest = bytes;
    EXPECT_FALSE(take_message(rest));
  }
}

TEST(Message, AMessageWhoseListIsLongerThanTheMessageIsMalformed) {
  Bytes bytes = encode(1, Reject{{}, 28, Bytes(3)});
  bytes[14 + 8 + 2] = std::byte{0xff};  // the list's count
  EXPECT_FALSE(decode<Reject>(*open(bytes)));
}

TEST(Message, DecodingRandomBytesDoesNotCrash) {
  Random random(1);
  for (int i = 0; i < 20000; ++i) {
    Bytes bytes(random.below(600));
    for (auto& b : bytes) b = static_cast<std::byte>(random.next());
    std::span<const std::byte> rest = bytes;
    while (!rest.empty() && take_message(rest)) {
    }
    (void)open(bytes).has_value();
    for (const Type type : {Type::kCmEvent, Type::kWelcome, Type::kReject, Type::kProcessesReply,
                            Type::kJoinMulticast, Type::kMulticastJoined, Type::kMulticastLost,
                            Type::kShowSa, Type::kSaReply}) {
      const Envelope envelope{type, 1, bytes};
      (void)decode<CmEvent>(envelope).has_value();
      (void)decode<Welcome>(envelope).has_value();
      (void)decode<Reject>(envelope).has_value();
      (void)decode<ProcessesReply>(envelope).has_value();
      (void)decode<JoinMulticast>(envelope).has_value();
      (void)decode<MulticastJoined>(envelope).has_value();
      (void)decode<MulticastLost>(envelope).has_value();
      (void)decode<ShowSa>(envelope).has_value();
      (void)decode<SaReply>(envelope).has_value();
    }
  }
}

TEST(QpTable, ReadReturnsOnlyRowsThatAreNotEmpty) {
  auto memory = std::make_unique<std::array<std::uint64_t, QpTable::kBytes / 8>>();
  QpTable table(std::as_writable_bytes(std::span(*memory)));
  EXPECT_FALSE(table.read(0));
  table.write(3, {.qpn = 17, .retransmissions = 5});
  ASSERT_TRUE(table.read(3));
  EXPECT_EQ(table.read(3)->retransmissions, 5u);
  table.write(3, {});
  EXPECT_FALSE(table.read(3));
}

TEST(QpTable, ReaderFindsTheNamesOfTheCountersInTheTable) {
  auto memory = std::make_unique<std::array<std::uint64_t, QpTable::kBytes / 8>>();
  QpTable writer(std::as_writable_bytes(std::span(*memory)));
  const std::string longest(QpTable::kCounterNameBytes, 'x');
  EXPECT_EQ(writer.add_counter("a"), 0u);
  EXPECT_EQ(writer.add_counter(longest), 1u);
  EXPECT_EQ(writer.add_counter("a"), 0u);  // exists already
  writer.set_counter(0, 5);
  writer.set_counter(1, ~std::uint64_t{0});
  const QpTable reader(std::as_writable_bytes(std::span(*memory)));
  const auto counters = reader.counters();
  ASSERT_EQ(counters.size(), 2u);
  EXPECT_EQ(counters[0].name, "a");
  EXPECT_EQ(counters[0].value, 5u);
  EXPECT_EQ(counters[1].name, longest);
  EXPECT_EQ(counters[1].value, ~std::uint64_t{0});
}

TEST(QpTable, AnInvalidNumberOfCountersIsLimited) {
  auto memory = std::make_unique<std::array<std::uint64_t, QpTable::kBytes / 8>>();
  memory->fill(~std::uint64_t{0});
  const QpTable reader(std::as_writable_bytes(std::span(*memory)));
  EXPECT_EQ(reader.counters().size(), QpTable::kCounters);
}

TEST(Counters, CounterNamesHaveOnlyLettersDigitsAndUnderscores) {
  EXPECT_EQ(counter_name("cm_ignored_wrong QPN"), "cm_ignored_wrong_qpn");
  EXPECT_EQ(counter_name("IPv4: (a) b."), "ipv4_a_b");
  EXPECT_EQ(counter_name(""), "");
}

}  // namespace
}  // namespace verbena::ipc
