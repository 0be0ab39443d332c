#include <gtest/gtest.h>

#include <string_view>
#include <utility>

#include "rdmacm/hosts_test.h"

// Compares this stack with Linux: replays a capture of rping between two kernels
// (tests/captures/rxe-rping.pcap, frames 3, 4, 5, 42, 43), with this stack in place of one kernel.

namespace verbena::rdmacm {
namespace {

using wire::cm::Drep;
using wire::cm::Dreq;
using wire::cm::Rep;
using wire::cm::Req;
using wire::cm::Rtu;

constexpr Guid kActiveGuid{0x505400fffe770002};
constexpr Guid kPassiveGuid{0x505400fffe770001};

// Decodes hex; the rest of the MAD is zero.
mad::Mad from_hex(std::string_view hex) {
  mad::Mad mad{};
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  for (std::size_t i = 0; i < hex.size() / 2; ++i) {
    mad[i] = static_cast<std::byte>(digit(hex[2 * i]) << 4 | digit(hex[2 * i + 1]));
  }
  return mad;
}

const mad::Mad kReq = from_hex(
    "010702030000000000000002e8e11bdf0010000000000000df1be1e800000000"
    "0000000001061c06505400fffe77000200000000000000000000110100000001"
    "000000a0375335a7ffff37f0ffffffff00000000000000000000ffff0a4d0003"
    "00000000000000000000ffff0a4d00028f761000004000980000000000000000"
    "0000000000000000000000000000000000000000000000000000000000000000"
    "000000000040cd450000000000000000000000000a4d00030000000000000000"
    "000000000a4d0002");
const mad::Mad kRep = from_hex(
    "010702030000000000000002e8e11bdf0013000000000000933e8855df1be1e8"
    "0000000000001100000000002e7e4e00010178e0505400fffe770001");
const mad::Mad kRtu = from_hex("010702030000000000000002e8e11bdf0014000000000000df1be1e8933e8855");
const mad::Mad kDreq = from_hex(
    "010702030000000000000002e8e11bdf0015000000000000df1be1e8933e8855"
    "000011");
const mad::Mad kDrep = from_hex("010702030000000000000002e8e11bdf0016000000000000933e8855df1be1e8");

template <class M>
M message(const mad::Mad& mad) {
  return *wire::decode<M>(std::span(mad).subspan(wire::kMadHeaderBytes));
}

// Replaces the comm id of Linux, at byte 24 or 28 of the MAD, by ours.
mad::Mad with_id(mad::Mad mad, std::size_t at, CommId id) {
  for (std::size_t i = 0; i < 4; ++i) mad[at + i] = static_cast<std::byte>(id.value >> 8 * (3 - i));
  return mad;
}

class LinuxTest : public testing::Test {
 protected:
  explicit LinuxTest(Guid guid = kPassiveGuid) : cm({.cm = {.ca_guid = guid}}, Random(1)) {
    const Gid ip = guid == kPassiveGuid ? passive_gid : active_gid;
    cm.on_interfaces(
        {{.address = ip, .gid = ip, .index = 2, .mtu = 3, .sgid_index = 1, .up = true}}, now);
  }
  void receive(const mad::Mad& mad, const Gid& from, const Gid& to) {
    const auto received =
        dispatcher.receive({.path = {.source = to, .destination = from, .interface = 2}}, mad);
    cm.receive(std::get<mad::Delivered>(received), now);
    drain();
  }
  void drain() {
    while (auto output = cm.poll()) {
      if (const auto* send = std::get_if<mad::SendMad>(&*output)) last_mad = send->mad;
      if (const auto* event = std::get_if<Event>(&*output)) last_event = *event;
      if (const auto* query = std::get_if<RouteQuery>(&*output)) token = query->token;
    }
  }

  const Gid active_gid = wire::ipv4_gid(0x0a4d0003);
  const Gid passive_gid = wire::ipv4_gid(0x0a4d0002);
  Time now{};
  Manager cm;
  mad::Dispatcher dispatcher;
  mad::Mad last_mad{};
  Event last_event{};
  std::uint64_t token = 0;
};

TEST_F(LinuxTest, AnswersLinuxAsLinuxDoes) {
  const IdHandle listener = *cm.create_id(kProgram, kPortSpaceTcp, kQpTypeRc, now);
  ASSERT_TRUE(cm.bind(kProgram, listener, any4(kPort), now).has_value());
  ASSERT_TRUE(cm.listen(kProgram, listener, 3).has_value());

  receive(kReq, active_gid, passive_gid);
  ASSERT_EQ(last_event.kind, EventKind::kConnectRequest);
  EXPECT_EQ(last_event.source, address(passive_gid, kPort));
  EXPECT_EQ(last_event.destination, address(active_gid, 0xcd45));
  EXPECT_EQ(last_event.qp.remote_qpn, 0x11u);
  // In rxe-rping.pcap, the server's first READ request has this PSN.
  EXPECT_EQ(last_event.qp.sq_psn, 0x375335u);
  EXPECT_EQ(last_event.qp.path.address.flow_label, 0x8f761u);
  EXPECT_EQ(last_event.qp.ack_timeout, 0x13);

  const ConnParam answer{.responder_resources = 1,
                         .initiator_depth = 1,
                         .rnr_retry_count = 7,
                         .qpn = 0x11,
                         .psn = 0x2e7e4e};
  ASSERT_TRUE(cm.accept(kProgram, last_event.id, answer, now).has_value());
  drain();
  const CommId our_id = message<Rep>(last_mad).local_comm_id;
  EXPECT_EQ(last_mad, with_id(kRep, 24, our_id));

  receive(with_id(kRtu, 28, our_id), active_gid, passive_gid);
  EXPECT_EQ(last_event.kind, EventKind::kEstablished);
  receive(wire::cm::encode_mad(
              wire::cm::mad_header(wire::cm::AttributeId::kLap, 7),
              wire::cm::Lap{.local_comm_id = message<wire::cm::Req>(kReq).local_comm_id,
                            .remote_comm_id = our_id,
                            .remote_qpn = {0x11}}),
          active_gid, passive_gid);
  EXPECT_EQ(message<wire::cm::Apr>(last_mad).status, wire::cm::AprStatus::kNotSupported);
  receive(with_id(kDreq, 28, our_id), active_gid, passive_gid);
  EXPECT_EQ(last_event.kind, EventKind::kDisconnected);
  EXPECT_EQ(last_mad, with_id(kDrep, 24, our_id));
}

// The RDMA CM's header in the private data has the addresses 10.77.0.3 and 10.77.0.2.  One address
// of the packet and of the REQ's path differs from it.
TEST_F(LinuxTest, RequestWithAnotherHostsAddressIsRejected) {
  const IdHandle listener = *cm.create_id(kProgram, kPortSpaceTcp, kQpTypeRc, now);
  ASSERT_TRUE(cm.bind(kProgram, listener, any4(kPort), now).has_value());
  ASSERT_TRUE(cm.listen(kProgram, listener, 3).has_value());
  const Gid other_gid = wire::ipv4_gid(0x0a4d0004);
  for (const auto& [from, to] :
       {std::pair{other_gid, passive_gid}, std::pair{active_gid, other_gid}}) {
    Req req = message<Req>(kReq);
    req.primary_path.local_gid = from;
    req.primary_path.remote_gid = to;
    last_mad = {};
    receive(wire::cm::encode_mad(wire::cm::mad_header(wire::cm::AttributeId::kReq, 9), req), from,
            to);
    EXPECT_EQ(message<wire::cm::Rej>(last_mad).reason, wire::cm::RejReason::kConsumer);
    EXPECT_NE(last_event.kind, EventKind::kConnectRequest);
  }
}

class LinuxServerTest : public LinuxTest {
 protected:
  LinuxServerTest() : LinuxTest(kActiveGuid) {}
};

TEST_F(LinuxServerTest, ConnectsToLinuxAsLinuxDoes) {
  const IdHandle id = *cm.create_id(kProgram, kPortSpaceTcp, kQpTypeRc, now);
  const SocketAddress from = address(active_gid, 0xcd45);
  ASSERT_TRUE(cm.resolve_addr(kProgram, id, &from, address(passive_gid, kPort),
                              std::chrono::seconds(2), now)
                  .has_value());
  drain();
  cm.on_route(token,
              Route{.source = active_gid,
                    .address = {.source = active_gid, .interface = 2},
                    .sgid_index = 1,
                    .mtu = 3},
              now);
  const ConnParam request{.responder_resources = 1,
                          .initiator_depth = 1,
                          .retry_count = 7,
                          .rnr_retry_count = 7,
                          .qpn = 0x11,
                          .psn = 0x375335};
  ASSERT_TRUE(cm.connect(kProgram, id, request, now).has_value());
  drain();

  // The first two of the fields below are random for each connection.  The others are timeouts,
  // which this stack may choose itself: it answers sooner than Linux.
  const Req ours = message<Req>(last_mad);
  Req theirs = message<Req>(kReq);
  theirs.local_comm_id = ours.local_comm_id;
  theirs.primary_path.flow_label = ours.primary_path.flow_label;
  theirs.local_cm_response_timeout = ours.local_cm_response_timeout;
  theirs.primary_path.local_ack_timeout = ours.primary_path.local_ack_timeout;
  EXPECT_EQ(ours, theirs);

  receive(with_id(kRep, 28, ours.local_comm_id), passive_gid, active_gid);
  ASSERT_EQ(last_event.kind, EventKind::kConnectResponse);
  EXPECT_EQ(last_event.qp.sq_psn, 0x2e7e4eu);  // the client's first SEND has this PSN
  EXPECT_EQ(last_event.qp.rnr_retry_count, 7);
  ASSERT_TRUE(cm.establish(kProgram, id, now).has_value());
  drain();
  EXPECT_EQ(message<Rtu>(last_mad), message<Rtu>(with_id(kRtu, 24, ours.local_comm_id)));
  ASSERT_TRUE(cm.disconnect(kProgram, id, now).has_value());
  drain();
  EXPECT_EQ(message<Dreq>(last_mad), message<Dreq>(with_id(kDreq, 24, ours.local_comm_id)));
  receive(with_id(kDrep, 28, ours.local_comm_id), passive_gid, active_gid);
  EXPECT_EQ(last_event.kind, EventKind::kDisconnected);
}

}  // namespace
}  // namespace verbena::rdmacm
