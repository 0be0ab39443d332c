#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cm/manager.h"
#include "fabric/infiniband_line.h"
#include "fabric/test_scene.h"
#include "hca/engine.h"
#include "mad/dispatcher.h"
#include "node/general_services.h"
#include "sim/world.h"
#include "wire/ip.h"
#include "wire/mad.h"

// Tests traffic between two hosts with packets that have LIDs, with and without a GRH.
namespace verbena::fabric {
namespace {

using hca::QpState;
namespace attribute = hca::attribute;
using namespace std::chrono_literals;
using testing::kGrhBytes;
using testing::kQkey;

constexpr ServiceId kService{0x1000000000001234};

Gid gid_of(std::uint8_t host) {
  Gid gid;
  gid.bytes[0] = std::byte{0xfe};
  gid.bytes[1] = std::byte{0x80};
  gid.bytes[15] = std::byte{host};
  return gid;
}

// Runs a host's engine, QP1 and CM on one port of the line.
class IbHost {
 public:
  IbHost(sim::World& world, InfinibandLine& line, std::uint8_t number, Lid lid)
      : number_(number),
        lid_(lid),
        world_(world),
        line_(line),
        qp1_(Random(number)),
        cm_({.ca_guid = {number}}, Random(100 + number)),
        engine_({}, Random(200 + number)) {
    // The port has two LIDs.  The second LID belongs to another path of the subnet.
    line.attach(lid, 1, [this](const link::Arrival& arrival) { receive(arrival); });
    pd_ = engine_.create_pd().value();
    cq_ = engine_.create_cq(16, 0).value();
    const auto at = reinterpret_cast<std::uintptr_t>(memory_.data());
    lkey_ = engine_.register_mr(pd_, at, memory_.size(), at, hca::access::kLocalWrite)->lkey;
    EXPECT_TRUE(cm_.listen({.id = kService}, 7));
  }

  Lid lid() const { return lid_; }
  std::uint8_t number() const { return number_; }
  std::span<std::byte> memory() { return memory_; }
  hca::Engine& engine() { return engine_; }

  // Returns the path to the peer, from the second LID of this port to the first LID of the peer.
  link::Address address_to(const IbHost& peer, bool has_grh) const {
    return {.link_layer = LinkLayer::kInfiniband,
            .source = gid_of(number_),
            .destination = gid_of(peer.number_),
            .flow_label = has_grh ? 0x12345u : 0u,
            .traffic_class = static_cast<std::uint8_t>(has_grh ? 0x28 : 0),
            .hop_limit = 7,
            .source_lid = {static_cast<std::uint16_t>(lid_.value + 1)},
            .destination_lid = peer.lid_,
            .service_level = 3,
            .has_grh = has_grh};
  }

  hca::QpHandle create_qp(hca::QpType type, Qpn qpn) {
    return engine_
        .create_qp(
            {.type = type,
             .pd = pd_,
             .send_cq = cq_,
             .recv_cq = cq_,
             .caps = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1}},
            qpn)
        .value();
  }
  void modify(hca::QpHandle qp, const hca::QpAttributes& attributes, std::uint32_t mask) {
    EXPECT_TRUE(engine_.modify_qp(qp, attributes, mask | attribute::kState, world_.now()));
  }
  // Moves an RC QP to RTS on this path.
  void connect(hca::QpHandle qp, const link::Address& path, Qpn peer_qpn) {
    modify(qp, {.state = QpState::kInit},
           attribute::kPkeyIndex | attribute::kPort | attribute::kAccessFlags);
    modify(qp, {.state = QpState::kRtr, .destination_qpn = peer_qpn, .path = {.address = path}},
           attribute::kPath | attribute::kPathMtu | attribute::kDestinationQpn | attribute::kRqPsn |
               attribute::kMaxDestRdAtomic | attribute::kMinRnrTimer);
    modify(qp, {.state = QpState::kRts, .timeout = 12, .retry_count = 7},
           attribute::kSqPsn | attribute::kTimeout | attribute::kRetryCount | attribute::kRnrRetry |
               attribute::kMaxRdAtomic);
  }
  hca::QpHandle create_ud(Qpn qpn) {
    const hca::QpHandle qp = create_qp(hca::QpType::kUd, qpn);
    modify(qp, {.state = QpState::kInit, .qkey = kQkey},
           attribute::kPkeyIndex | attribute::kPort | attribute::kQkey);
    modify(qp, {.state = QpState::kRtr}, 0);
    modify(qp, {.state = QpState::kRts}, attribute::kSqPsn);
    return qp;
  }
  hca::Sge sge(std::size_t at, std::uint32_t bytes) {
    return {reinterpret_cast<std::uintptr_t>(memory_.data()) + at, bytes, lkey_};
  }
  void post_receive(hca::QpHandle qp, std::uint32_t bytes) {
    const hca::Sge memory_sge = sge(0, bytes);
    EXPECT_TRUE(engine_.post_recv(qp, {.wr_id = 1, .sges = {&memory_sge, 1}}));
  }
  hca::AhHandle create_ah(const link::Address& path) {
    return engine_.create_ah(pd_, {.address = path}).value();
  }
  std::vector<hca::WorkCompletion> poll() {
    std::vector<hca::WorkCompletion> all(16);
    all.resize(engine_.poll_cq(cq_, all).value());
    return all;
  }
  void connect_by_cm(const link::Address& path) {
    EXPECT_TRUE(cm_.connect({.address = {.path = path},
                             .service_id = kService,
                             .qpn = {0x500},
                             .path_mtu = 3,
                             .packet_life = 8,
                             .local_ack_timeout = 9,
                             .round_trip = 1ms},
                            1, world_.now()));
    pump();
  }

  // Sends all packets of QP1, the engine and the CM, and sets a timer for the next deadline.
  void pump() {
    while (auto output = cm_.poll()) {
      if (const auto* mad = std::get_if<mad::SendMad>(&*output)) {
        qp1_.send(*mad, world_.now());
      } else {
        handle(std::get<cm::Event>(*output));
      }
    }
    for (bool has_packets = true; has_packets;) {
      has_packets = qp1_.transmit(burst_, world_.now());
      line_.send(burst_);
    }
    for (bool has_packets = true; has_packets;) {
      has_packets = engine_.transmit(burst_, world_.now());
      line_.send(burst_);
    }
    const Time deadline = std::min(engine_.deadline(), cm_.deadline());
    if (deadline >= timer_deadline_) return;
    timer_deadline_ = deadline;
    world_.at(deadline, [this] {
      timer_deadline_ = kNever;
      engine_.on_timer(world_.now());
      cm_.on_timer(world_.now());
      pump();
    });
  }

  std::vector<link::Address> arrived_addresses;  // the addresses of all received packets
  std::optional<cm::ReqReceived> request;
  bool accepted = false;     // this host has received a REP and sent an RTU
  bool established = false;  // this host has received an RTU

 private:
  void receive(const link::Arrival& arrival) {
    arrived_addresses.push_back(arrival.address);
    if (const auto mad = qp1_.receive(arrival, world_.now())) {
      const auto received = mads_.receive({.path = arrival.address.reversed()}, *mad);
      if (const auto* delivered = std::get_if<mad::Delivered>(&received)) {
        cm_.receive(*delivered, world_.now());
      }
    } else {
      engine_.receive(arrival, world_.now());
    }
    pump();
  }
  void handle(const cm::Event& event) {
    if (const auto* req = std::get_if<cm::ReqReceived>(&event)) {
      request = *req;
      EXPECT_TRUE(cm_.accept(req->endpoint, {.qpn = {0x900}}, world_.now()));
    } else if (const auto* rep = std::get_if<cm::RepReceived>(&event)) {
      accepted = cm_.establish(rep->endpoint, {}, world_.now()).has_value();
    } else if (std::holds_alternative<cm::Established>(event)) {
      established = true;
    }
  }

  const std::uint8_t number_;
  const Lid lid_;
  sim::World& world_;
  InfinibandLine& line_;
  node::GeneralServices qp1_;
  mad::Dispatcher mads_;
  cm::Manager cm_;
  hca::Engine engine_;
  hca::PdHandle pd_{};
  hca::CqHandle cq_{};
  std::uint32_t lkey_ = 0;
  std::vector<std::byte> memory_ = std::vector<std::byte>(8192);
  link::Burst burst_;
  Time timer_deadline_ = kNever;
};

// Runs each test with packets that have a GRH (the parameter is true) and without a GRH.
struct InfinibandTest : ::testing::TestWithParam<bool> {
  // Returns the address that a receiver reads from a packet.  The GRH's fields are missing in a
  // packet without a GRH.
  static link::Address as_received(link::Address address) {
    if (address.has_grh) return address;
    return {.link_layer = LinkLayer::kInfiniband,
            .source_lid = address.source_lid,
            .destination_lid = address.destination_lid,
            .service_level = address.service_level};
  }
  link::Address path_to_b() const { return a.address_to(b, GetParam()); }
  void run() {
    a.pump();
    b.pump();
    world.run_until(world.now() + 20s);
  }

  sim::World world;
  InfinibandLine line{world, Random(1), faults()};
  IbHost a{world, line, 1, Lid{0x10}}, b{world, line, 2, Lid{0x20}};

 private:
  // The line does not corrupt packets, because only a variant CRC would protect the LIDs of a
  // packet with a GRH.
  static sim::Faults faults() { return {.loss = {1, 20}, .duplicate = {1, 20}}; }
};

TEST_P(InfinibandTest, RcMessageArrivesOnItsPath) {
  const auto sender_qp = a.create_qp(hca::QpType::kRc, Qpn{0x11});
  const auto receiver_qp = b.create_qp(hca::QpType::kRc, Qpn{0x22});
  a.connect(sender_qp, path_to_b(), Qpn{0x22});
  b.connect(receiver_qp, path_to_b().reversed(), Qpn{0x11});
  std::ranges::fill(a.memory(), std::byte{0x5a});
  b.post_receive(receiver_qp, 5000);
  const hca::Sge data = a.sge(0, 5000);
  ASSERT_TRUE(
      a.engine().post_send(sender_qp, {.flags = hca::send_flag::kSignaled, .sges = {&data, 1}}));
  run();
  ASSERT_EQ(b.poll().size(), 1u);
  ASSERT_EQ(a.poll().size(), 1u);
  EXPECT_TRUE(std::ranges::equal(a.memory().first(5000), b.memory().first(5000)));
  for (const link::Address& address : b.arrived_addresses)
    EXPECT_EQ(address, as_received(path_to_b()));
  ASSERT_FALSE(a.arrived_addresses.empty());
  for (const link::Address& address : a.arrived_addresses) {
    EXPECT_EQ(address, as_received(path_to_b().reversed()));
  }
}

// The peer's port may have several LIDs, but a QP accepts packets from only one of them.
TEST_P(InfinibandTest, RcPacketFromAnotherLidIsDropped) {
  const auto sender_qp = a.create_qp(hca::QpType::kRc, Qpn{0x11});
  const auto receiver_qp = b.create_qp(hca::QpType::kRc, Qpn{0x22});
  link::Address expected = path_to_b().reversed();
  expected.destination_lid = a.lid();  // packets come from the second LID
  a.connect(sender_qp, path_to_b(), Qpn{0x22});
  b.connect(receiver_qp, expected, Qpn{0x11});
  const hca::Sge data = a.sge(0, 10);
  ASSERT_TRUE(a.engine().post_send(sender_qp, {.sges = {&data, 1}}));
  run();
  EXPECT_GT(b.engine().counters()[hca::Counter::kDropWrongSource], 0u);
}

TEST_P(InfinibandTest, UdReceiverLearnsTheSendersAddress) {
  const auto sender_qp = a.create_ud(Qpn{0x11});
  const auto receiver_qp = b.create_ud(Qpn{0x22});
  const hca::AhHandle ah = a.create_ah(path_to_b());
  std::ranges::fill(a.memory(), std::byte{0x5a});
  const hca::Sge data = a.sge(0, 100);
  std::vector<hca::WorkCompletion> received;
  for (int tries = 0; tries < 8 && received.empty(); ++tries) {  // the line loses packets
    b.post_receive(receiver_qp, 200);
    ASSERT_TRUE(a.engine().post_send(
        sender_qp, {.sges = {&data, 1}, .remote_qpn = {0x22}, .remote_qkey = kQkey, .ah = ah}));
    run();
    received = b.poll();
  }
  ASSERT_FALSE(received.empty());
  const hca::WorkCompletion& wc = received.front();
  EXPECT_EQ(wc.source_qpn, Qpn{0x11});
  EXPECT_EQ(wc.source_lid, path_to_b().source_lid);
  EXPECT_EQ(wc.service_level, path_to_b().service_level);
  EXPECT_EQ((wc.flags & hca::wc_flag::kGrh) != 0, GetParam());
  EXPECT_EQ(b.memory()[kGrhBytes], std::byte{0x5a});
  const auto grh = wire::decode_exact<wire::Ipv6Header>(b.memory().first<kGrhBytes>());
  EXPECT_EQ(grh.source, GetParam() ? path_to_b().source : Gid{});
  EXPECT_EQ(grh.destination, GetParam() ? path_to_b().destination : Gid{});
  EXPECT_EQ(grh.flow_label, path_to_b().flow_label);
  EXPECT_EQ(grh.traffic_class, path_to_b().traffic_class);
  EXPECT_EQ(b.arrived_addresses.front(), as_received(path_to_b()));
}

TEST_P(InfinibandTest, CmConnectsByLids) {
  a.connect_by_cm(path_to_b());
  run();
  EXPECT_TRUE(a.accepted);
  EXPECT_TRUE(b.established);
  ASSERT_TRUE(b.request.has_value());
  // The REQ contains the path.  If the packet has no GRH, only the REQ contains the GIDs.
  const wire::cm::Path& path = b.request->req.primary_path;
  EXPECT_EQ(path.local_lid, path_to_b().source_lid);
  EXPECT_EQ(path.remote_lid, path_to_b().destination_lid);
  EXPECT_EQ(path.sl, path_to_b().service_level);
  EXPECT_EQ(path.subnet_local, !GetParam());
  const link::Address& from = b.request->address.path;
  EXPECT_EQ(from.source, path_to_b().destination);
  EXPECT_EQ(from.destination, path_to_b().source);
  EXPECT_EQ(from.source_lid, path_to_b().destination_lid);
  EXPECT_EQ(from.destination_lid, path_to_b().source_lid);
  ASSERT_FALSE(a.arrived_addresses.empty());
  for (const link::Address& address : a.arrived_addresses) {
    EXPECT_EQ(address, as_received(path_to_b().reversed()));
  }
}

TEST_P(InfinibandTest, PacketsToAnUnusedLidAreDropped) {
  link::Address unused = path_to_b();
  unused.destination_lid = {0x30};
  a.connect_by_cm(unused);
  run();
  EXPECT_GT(line.counters().unknown_lid, 0u);
  EXPECT_TRUE(b.arrived_addresses.empty());
  EXPECT_FALSE(a.accepted);
}

INSTANTIATE_TEST_SUITE_P(Packets, InfinibandTest, ::testing::Bool(),
                         [](const ::testing::TestParamInfo<bool>& with_grh) {
                           return with_grh.param ? "WithGrh" : "WithoutGrh";
                         });

}  // namespace
}  // namespace verbena::fabric
