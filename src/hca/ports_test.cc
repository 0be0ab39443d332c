#include "hca/ports.h"

#include <gtest/gtest.h>

#include <utility>

#include "hca/test_pair.h"

// Tests QPs on hosts with several ports.
namespace verbena::hca {
namespace {

using namespace testing;

constexpr PortId kSecondPort{0, 2}, kPortOfSecondDevice{1, 1};
constexpr Pkey kPrivate{0x8123};

TEST(Ports, APortExistsAfterItsPkeyTableIsSet) {
  Ports ports;
  EXPECT_TRUE(ports.has({}));
  EXPECT_FALSE(ports.has(kSecondPort));
  ASSERT_TRUE(ports.set(kSecondPort, std::array{kPrivate}).has_value());
  EXPECT_TRUE(ports.has(kSecondPort));
  EXPECT_EQ(ports.pkeys(kSecondPort).at(0), kPrivate);
  EXPECT_EQ(ports.pkeys({}).at(0), wire::kDefaultPkey);
  for (const PortId invalid :
       {PortId{0, 0}, PortId{0, kPortsPerDeviceMax + 1}, PortId{kDevicesMax, 1}}) {
    EXPECT_FALSE(ports.set(invalid, std::array{kPrivate}).has_value());
    EXPECT_FALSE(ports.has(invalid));
  }
}

TEST(Ports, TheLmcIsTheNumberOfPathBits) {
  Ports ports;
  EXPECT_EQ(ports.path_bits({}, {0x1234 + 3}), 0);
  ports.set_lmc({}, 3);
  EXPECT_EQ(ports.path_bits({}, {0x1238 + 5}), 5);
}

struct QpPorts : ::testing::Test {
  QpPorts() {
    EXPECT_TRUE(host.engine.set_pkeys(std::array{wire::kDefaultPkey, kPrivate}, kSecondPort));
    EXPECT_TRUE(host.engine.set_pkeys(std::array{wire::kDefaultPkey}, kPortOfSecondDevice));
  }
  QpHandle create(std::uint8_t device, Qpn qpn) {
    QpInit init{.type = QpType::kRc, .pd = host.pd, .send_cq = host.cq, .recv_cq = host.cq};
    init.caps = Options{}.caps;
    init.device = device;
    return host.engine.create_qp(init, qpn).value();
  }
  bool modify(QpHandle qp, const QpAttributes& target, std::uint32_t mask) {
    return host.engine.modify_qp(qp, target, mask, {}).has_value();
  }
  QpAttributes to_init(std::uint8_t port, std::uint16_t pkey_index) {
    return {.state = QpState::kInit, .pkey_index = pkey_index, .port = port};
  }

  Host host{1};
};

TEST_F(QpPorts, AQpUsesOnlyPortsOfItsDevice) {
  EXPECT_TRUE(modify(create(0, {0x100}), to_init(2, 0), kToInit));
  EXPECT_FALSE(modify(create(0, {0x101}), to_init(3, 0), kToInit));
  EXPECT_TRUE(modify(create(1, {0x102}), to_init(1, 0), kToInit));
  EXPECT_FALSE(modify(create(1, {0x103}), to_init(2, 0), kToInit));
}

TEST_F(QpPorts, EachPortHasItsOwnPkeyTable) {
  EXPECT_TRUE(modify(create(0, {0x100}), to_init(2, 1), kToInit));
  EXPECT_FALSE(modify(create(0, {0x101}), to_init(1, 1), kToInit));
}

TEST_F(QpPorts, APathMustBeginAtThePortOfTheQp) {
  QpAttributes target = attributes_for(host, host, {}, {0x200}, {1}, {2});
  target.state = QpState::kRtr;
  const QpHandle qp = create(0, {0x100});
  ASSERT_TRUE(modify(qp, to_init(2, 0), kToInit));
  EXPECT_FALSE(modify(qp, target, kToRtr)) << "the path begins at port 1";
  target.path.address.port = kSecondPort;
  EXPECT_TRUE(modify(qp, target, kToRtr));
  target.state = QpState::kRts;
  ASSERT_TRUE(modify(qp, target, kToRts));
  target.alternate_path = target.path;
  target.alternate_port = 1;
  EXPECT_FALSE(modify(qp, target, attribute::kAlternatePath)) << "the path begins at port 2";
  target.alternate_port = 2;
  EXPECT_TRUE(modify(qp, target, attribute::kAlternatePath));
}

TEST_F(QpPorts, AQpNeedsAnExistingDevice) {
  QpInit init{.type = QpType::kRc, .pd = host.pd, .send_cq = host.cq, .recv_cq = host.cq};
  init.caps = Options{}.caps;
  init.device = 2;
  EXPECT_FALSE(host.engine.create_qp(init, {0x100}).has_value());
}

// Creates a UD QP of a port, in the state RTS.
QpHandle create_datagram_qp(Host& host, PortId port, Qpn qpn) {
  QpInit init{.type = QpType::kUd, .pd = host.pd, .send_cq = host.cq, .recv_cq = host.cq};
  init.caps = Options{}.caps;
  init.device = port.device;
  const QpHandle qp = host.engine.create_qp(init, qpn).value();
  QpAttributes target{.state = QpState::kInit, .qkey = {0x11}, .port = port.number};
  using namespace attribute;
  EXPECT_TRUE(host.engine.modify_qp(qp, target, kState | kPkeyIndex | kPort | kQkey, {}));
  target.state = QpState::kRtr;
  EXPECT_TRUE(host.engine.modify_qp(qp, target, kState, {}));
  target.state = QpState::kRts;
  EXPECT_TRUE(host.engine.modify_qp(qp, target, kState | kSqPsn, {}));
  return qp;
}

TEST_F(QpPorts, DatagramsOfAnotherPortAreDropped) {
  const QpHandle sender = create_datagram_qp(host, {}, {0x100});
  const QpHandle receiver = create_datagram_qp(host, kSecondPort, {0x200});
  const Sge sge = host.sge(0, 100);
  ASSERT_TRUE(host.engine.post_recv(receiver, {.wr_id = 1, .sges = {&sge, 1}}));
  const AhHandle ah =
      host.engine.create_ah(host.pd, {.address = {.source = gid_of(1), .destination = gid_of(1)}})
          .value();
  const Sge out = host.sge(200, 10);
  ASSERT_TRUE(host.engine.post_send(sender, {.wr_id = 2,
                                             .flags = send_flag::kSignaled,
                                             .sges = {&out, 1},
                                             .remote_qpn = {0x200},
                                             .remote_qkey = {0x11},
                                             .ah = ah}));
  link::Burst burst;
  (void)host.engine.transmit(burst, {});
  ASSERT_EQ(burst.packets().size(), 1u);
  const auto& packet = burst.packets()[0];
  link::Arrival arrival{packet.address, burst.transport(packet)};
  host.engine.receive(arrival, {});
  EXPECT_EQ(host.engine.counters()[Counter::kDropWrongSource], 1u);
  arrival.address.port = kSecondPort;
  host.engine.receive(arrival, {});
  EXPECT_EQ(host.engine.counters()[Counter::kReceives], 1u);
}

TEST_F(QpPorts, AddressHandleOfAnotherDeviceIsRefused) {
  const QpHandle qp = create_datagram_qp(host, {}, {0x100});
  const auto ah_at = [&](PortId port) {
    return host.engine
        .create_ah(host.pd,
                   {.address = {.source = gid_of(1), .destination = gid_of(2), .port = port}})
        .value();
  };
  const Sge out = host.sge(0, 10);
  const auto post = [&](PortId port) {
    return host.engine.post_send(qp, {.sges = {&out, 1}, .remote_qpn = {0x200}, .ah = ah_at(port)})
        .has_value();
  };
  EXPECT_FALSE(post(kPortOfSecondDevice));
  ASSERT_TRUE(post(kSecondPort)) << "only transmit() compares the port with that of the QP";
  link::Burst burst;
  (void)host.engine.transmit(burst, {});
  EXPECT_TRUE(burst.empty());
  std::array<WorkCompletion, 1> done{};
  ASSERT_EQ(host.engine.poll_cq(host.cq, done).value(), 1u);
  EXPECT_EQ(done[0].status, WcStatus::kLocalQpOperationError);
}

}  // namespace
}  // namespace verbena::hca
