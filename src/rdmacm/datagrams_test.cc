#include <gtest/gtest.h>

#include <cerrno>

#include "rdmacm/hosts_test.h"

// Tests ids for datagrams: RDMA_PS_UDP with SIDR.

namespace verbena::rdmacm {
namespace {

using namespace std::chrono_literals;

class DatagramsTest : public testing::Test {
 protected:
  void listen(std::uint32_t backlog = 0) {
    listener = hosts.p.create_listener(any4(kPort), backlog, kProgram, kPortSpaceUdp);
  }
  IdHandle connect(const std::string& data = "", std::uint16_t port = kPort) {
    return hosts.a.connect(address(hosts.p.ip4(), port), data, kPortSpaceUdp);
  }
  Hosts hosts;
  IdHandle listener{};
};

TEST_F(DatagramsTest, ConnectResolvesThePeersQp) {
  listen();
  const IdHandle active_id = connect("ping");
  hosts.run(100ms);
  EXPECT_EQ(hosts.text(), R"(
A ADDR_RESOLVED
A --- SIDR_REQ -->
P CONNECT_REQUEST 'ping'
  <-- SIDR_REP --- P
A ESTABLISHED 'hello')");
  const Event& request = *hosts.p.last(EventKind::kConnectRequest);
  EXPECT_EQ(request.listen_id, listener);
  EXPECT_EQ(request.qp_type, kQpTypeUd);
  EXPECT_EQ(request.port_space, kPortSpaceUdp);
  EXPECT_EQ(request.source, address(hosts.p.ip4(), kPort));
  EXPECT_EQ(request.destination.ip, hosts.a.ip4());
  EXPECT_GE(request.destination.port, kEphemeralFirst);
  EXPECT_EQ(request.param.private_data_bytes, kConnectDatagramPrivateBytes);
  EXPECT_EQ(request.path.address.source, hosts.p.ip4());
  EXPECT_EQ(request.path.address.destination, hosts.a.ip4());
  EXPECT_EQ(request.path.sgid_index, 1u);
  EXPECT_EQ(request.qp.valid, 0);

  const Event& established = *hosts.a.last(EventKind::kEstablished);
  EXPECT_EQ(established.id, active_id);
  EXPECT_EQ(established.param.qpn, 0x22u);
  EXPECT_EQ(established.param.qkey, kDatagramQkey);
  EXPECT_EQ(established.param.private_data_bytes, kAcceptDatagramPrivateBytes);
  EXPECT_EQ(established.path.address.destination, hosts.p.ip4());

  // There is no connection to end: no message is sent, and no timer runs.
  const Time now = hosts.world.now();
  hosts.clear();
  EXPECT_TRUE(hosts.a.cm.disconnect(kProgram, active_id, now).has_value());
  EXPECT_TRUE(hosts.a.cm.destroy_id(kProgram, active_id, now).has_value());
  EXPECT_TRUE(hosts.p.cm.destroy_id(kProgram, request.id, now).has_value());
  EXPECT_TRUE(hosts.p.cm.destroy_id(kProgram, listener, now).has_value());
  hosts.run(1s);
  EXPECT_EQ(hosts.text(), "");
  EXPECT_TRUE(hosts.world.is_idle());
}

// RDMA_PS_IPOIB has no fixed Q_Key, because IPoIB chooses it.  So the passive side sends the Q_Key
// in its answer.
TEST_F(DatagramsTest, IpoibPortSpaceGetsTheQkeyOfThePassiveId) {
  hosts.p.create_listener(any4(kPort), 0, kProgram, kPortSpaceIpoib);
  hosts.p.adjust = [](ConnParam& param) { param.qkey = 0x0b1b; };
  hosts.a.connect(address(hosts.p.ip4(), kPort), "", kPortSpaceIpoib);
  hosts.run(100ms);
  EXPECT_EQ(hosts.p.last(EventKind::kConnectRequest)->port_space, kPortSpaceIpoib);
  EXPECT_EQ(hosts.a.last(EventKind::kEstablished)->param.qkey, 0x0b1bu);
}

TEST_F(DatagramsTest, RejectIsReportedAsUnreachableWithAStatus) {
  hosts.p.auto_continue = false;
  listen();
  connect();
  hosts.run(10ms);
  const IdHandle passive_id = hosts.p.last(EventKind::kConnectRequest)->id;
  hosts.p.call([&](Manager& m) {
    const std::array<std::byte, 2> no{std::byte{'n'}, std::byte{'o'}};
    EXPECT_TRUE(
        m.reject(kProgram, passive_id, {.private_data = no}, hosts.world.now()).has_value());
    EXPECT_EQ(m.accept(kProgram, passive_id, param(1), hosts.world.now()).error().code,
              Errc::kBadState);
  });
  hosts.run(10ms);
  const Event& rejected = *hosts.a.last(EventKind::kUnreachable);
  EXPECT_EQ(rejected.status, 2);
  EXPECT_EQ(text_of(rejected.param), "no");
  EXPECT_EQ(hosts.a.count(EventKind::kUnreachable), 1u);
}

TEST_F(DatagramsTest, MissingListenerIsReportedAtOnce) {
  listen();
  connect("", kPort + 1);
  hosts.run(10ms);
  EXPECT_EQ(hosts.a.last(EventKind::kUnreachable)->status, 1);
  // Ports of connections and of datagrams are independent.
  EXPECT_TRUE(hosts.p.create_listener(any4(kPort)));
  hosts.a.connect(address(hosts.p.ip4(), kPort));
  hosts.run(10ms);
  EXPECT_EQ(hosts.a.count(EventKind::kConnectResponse), 1u);
}

TEST_F(DatagramsTest, MissingAnswerIsReportedAsUnreachable) {
  hosts.lose_all = true;
  connect();
  hosts.run(1min);
  const Event& end = *hosts.a.last(EventKind::kUnreachable);
  EXPECT_EQ(end.status, -ETIMEDOUT);
  EXPECT_GT(end.tries, 10u);
  EXPECT_TRUE(hosts.world.is_idle());
}

TEST_F(DatagramsTest, AnswerFreesABacklogEntry) {
  hosts.p.auto_continue = false;
  listen(1);
  connect("one");
  connect("two");
  hosts.run(100ms);
  ASSERT_EQ(hosts.p.count(EventKind::kConnectRequest), 1u);
  const Event first = *hosts.p.last(EventKind::kConnectRequest);
  hosts.p.call([&](Manager& m) {
    EXPECT_TRUE(m.accept(kProgram, first.id, param(0x22), hosts.world.now()).has_value());
  });
  hosts.run(2s);
  EXPECT_EQ(hosts.p.count(EventKind::kConnectRequest), 2u);
  EXPECT_GT(hosts.p.cm.cm_counters().requests_dropped, 0u);
}

TEST_F(DatagramsTest, DestroyedIdRejectsItsRequest) {
  hosts.p.auto_continue = false;
  listen();
  const IdHandle destroyed_id = connect("one");
  connect("two");
  hosts.run(10ms);
  hosts.a.call([&](Manager& m) {
    EXPECT_TRUE(m.destroy_id(kProgram, destroyed_id, hosts.world.now()).has_value());
  });
  hosts.p.call([&](Manager& m) { m.remove_client(kProgram, hosts.world.now()); });
  hosts.run(1s);
  EXPECT_EQ(hosts.a.count(EventKind::kUnreachable), 1u);
  EXPECT_EQ(hosts.a.last(EventKind::kUnreachable)->status, 2);
  EXPECT_EQ(hosts.p.cm.ids(), 0u);
  EXPECT_TRUE(hosts.world.is_idle());
}

TEST_F(DatagramsTest, PrivateDataHasLimits) {
  hosts.a.auto_continue = hosts.p.auto_continue = false;
  listen();
  const IdHandle active_id = connect();
  const Time now = hosts.world.now();
  EXPECT_EQ(
      hosts.a.cm.connect(kProgram, active_id, param(1, std::string(181, 'x')), now).error().code,
      Errc::kInvalidArgument);
  hosts.a.call([&](Manager& m) {
    EXPECT_TRUE(m.connect(kProgram, active_id, param(1, std::string(180, 'x')), now).has_value());
  });
  hosts.run(10ms);
  const Event& request = *hosts.p.last(EventKind::kConnectRequest);
  EXPECT_EQ(text_of(request.param), std::string(180, 'x'));
  EXPECT_EQ(
      hosts.p.cm.accept(kProgram, request.id, param(1, std::string(137, 'x')), now).error().code,
      Errc::kInvalidArgument);
  hosts.p.call([&](Manager& m) {
    EXPECT_TRUE(m.accept(kProgram, request.id, param(1, std::string(136, 'y')), now).has_value());
  });
  hosts.run(10ms);
  EXPECT_EQ(text_of(hosts.a.last(EventKind::kEstablished)->param), std::string(136, 'y'));
}

TEST_F(DatagramsTest, PortSpaceDecidesTheQpTypes) {
  Manager& cm = hosts.a.cm;
  const auto creates = [&](std::uint16_t space, std::uint8_t type) {
    return cm.create_id(kProgram, space, type, Time{}).has_value();
  };
  EXPECT_TRUE(creates(kPortSpaceTcp, kQpTypeRc));
  EXPECT_TRUE(creates(kPortSpaceUdp, kQpTypeUd));
  EXPECT_TRUE(creates(kPortSpaceIb, kQpTypeRc));
  EXPECT_TRUE(creates(kPortSpaceIb, kQpTypeUd));
  EXPECT_FALSE(creates(kPortSpaceTcp, kQpTypeUd));
  EXPECT_FALSE(creates(kPortSpaceUdp, kQpTypeRc));
  EXPECT_FALSE(creates(kPortSpaceIb, 3));  // UC
  EXPECT_TRUE(creates(kPortSpaceIpoib, kQpTypeUd));
  EXPECT_FALSE(creates(kPortSpaceIpoib, kQpTypeRc));
}

TEST_F(DatagramsTest, RequestBeforeListenIsReportedAfterwards) {
  const IdHandle id = hosts.p.create_id(kProgram, kPortSpaceUdp);
  ASSERT_TRUE(hosts.p.cm.bind(kProgram, id, any4(7175), hosts.world.now()).has_value());
  hosts.a.connect(address(hosts.p.ip4(), 7175), "", kPortSpaceUdp);
  hosts.run(300ms);
  EXPECT_EQ(hosts.a.count(EventKind::kUnreachable), 0u);
  ASSERT_TRUE(hosts.p.cm.listen(kProgram, id, 0).has_value());
  hosts.run(5s);
  EXPECT_EQ(hosts.a.count(EventKind::kEstablished), 1u);
}

// Both QP types of RDMA_PS_IB share the ports, but each connects in its own way.
TEST_F(DatagramsTest, IbPortSpaceConnectsBothQpTypes) {
  for (const std::uint8_t type : {kQpTypeUd, kQpTypeRc}) {
    const SocketAddress at = any4(type);
    const IdHandle listening_id = *hosts.p.cm.create_id(kProgram, kPortSpaceIb, type, Time{});
    ASSERT_TRUE(hosts.p.cm.bind(kProgram, listening_id, at, hosts.world.now()).has_value());
    ASSERT_TRUE(hosts.p.cm.listen(kProgram, listening_id, 0).has_value());
    const IdHandle active_id = *hosts.a.cm.create_id(kProgram, kPortSpaceIb, type, Time{});
    hosts.a.call([&](Manager& m) {
      const SocketAddress to = address(hosts.p.ip4(), type);
      EXPECT_TRUE(
          m.resolve_addr(kProgram, active_id, nullptr, to, 2s, hosts.world.now()).has_value());
    });
    hosts.run(100ms);
    const Event& request = *hosts.p.last(EventKind::kConnectRequest);
    EXPECT_EQ(request.listen_id, listening_id);
    EXPECT_EQ(request.qp_type, type);
    EXPECT_EQ(request.port_space, kPortSpaceIb);
    const EventKind answer =
        type == kQpTypeUd ? EventKind::kEstablished : EventKind::kConnectResponse;
    ASSERT_NE(hosts.a.last(answer), nullptr);
    EXPECT_EQ(hosts.a.last(answer)->id, active_id);
  }
}

}  // namespace
}  // namespace verbena::rdmacm
