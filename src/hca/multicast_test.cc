#include "hca/multicast.h"

#include <gtest/gtest.h>

#include "hca/test_pair.h"

namespace verbena::hca {
namespace {

using namespace testing;

const Gid kGroup = wire::ipv4_gid(0xef4d0105);  // 239.77.1.5
const Gid kOtherGroup = wire::ipv4_gid(0xef4d0106);
constexpr Qpn kAllMembers{0xffffff};

struct Groups : ::testing::Test {
  Groups() {
    for (Host* host : {&a, &b, &c}) wire.attach(*host);
    qa = create_ud(a, Qpn{0x11});
    qb = create_ud(b, Qpn{0x22});
    qb2 = create_ud(b, Qpn{0x23});
    qc = create_ud(c, Qpn{0x33});
    for (const auto& [host, qp] : {std::pair(&a, qa), {&b, qb}, {&b, qb2}, {&c, qc}}) {
      for (std::uint64_t id = 0; id < 4; ++id) receive(*host, qp, 10 * qpn(*host, qp) + id);
    }
    a.fill(0, 100, 3);
  }
  static std::uint32_t qpn(Host& host, QpHandle qp) {
    return host.engine.query_qp(qp).value().qpn.value;
  }
  static void receive(Host& host, QpHandle qp, std::uint64_t id) {
    const Sge sge = host.sge(4096 * (id % 64), 140);
    host.engine.post_recv(qp, {.wr_id = id, .sges = {&sge, 1}}).value();
  }
  void send(const Gid& to, Qpn qpn, Qkey qkey = kUdQkey) {
    const AhHandle ah =
        a.engine.create_ah(a.pd, {.address = {.source = gid_of(1), .destination = to}}).value();
    const Sge sge = a.sge(0, 100);
    a.engine.post_send(qa, {.sges = {&sge, 1}, .remote_qpn = qpn, .remote_qkey = qkey, .ah = ah})
        .value();
    wire.run();
  }
  void attach(Host& host, QpHandle qp, const Gid& group = kGroup) {
    host.engine.attach_multicast(qp, group).value();
  }
  // Returns the ids of the receives that completed since the last call.
  std::string completed_receives() {
    std::string all;
    for (Host* host : {&a, &b, &c}) {
      for (const WorkCompletion& wc : host->poll()) {
        if (wc.opcode != WcOpcode::kReceive) continue;
        EXPECT_EQ(wc.byte_len, 140u);
        EXPECT_EQ(wc.source_qpn, Qpn{0x11});
        all += std::to_string(wc.wr_id) + " ";
      }
    }
    return all;
  }

  Wire wire;
  Host a{1}, b{2}, c{3};
  QpHandle qa, qb, qb2, qc;
};

TEST_F(Groups, EachMemberIncludingTheSenderGetsACopy) {
  attach(a, qa);
  attach(b, qb);
  attach(b, qb2);
  send(kGroup, kAllMembers);
  EXPECT_EQ(completed_receives(), "170 340 350 ");
  EXPECT_TRUE(std::equal(a.memory.begin(), a.memory.begin() + 100,
                         b.memory.begin() + 4096 * (340 % 64) + 40));
  EXPECT_EQ(c.engine.counters()[Counter::kDropNoMember], 1u);
  b.engine.detach_multicast(qb, kGroup).value();
  send(kGroup, kAllMembers);
  EXPECT_EQ(completed_receives(), "171 351 ");
}

TEST_F(Groups, AttachingTwiceHasNoFurtherEffect) {
  attach(b, qb);
  attach(b, qb);
  send(kGroup, kAllMembers);
  EXPECT_EQ(completed_receives(), "340 ");
  b.engine.detach_multicast(qb, kGroup).value();
  EXPECT_EQ(b.engine.detach_multicast(qb, kGroup).error().code, Errc::kInvalidArgument);
  send(kGroup, kAllMembers);
  EXPECT_EQ(completed_receives(), "");
}

TEST_F(Groups, MembersOfAnotherGroupGetNoCopy) {
  attach(b, qb);
  attach(c, qc, kOtherGroup);
  send(kOtherGroup, kAllMembers);
  EXPECT_EQ(completed_receives(), "510 ");
}

TEST_F(Groups, AMemberNeedsTheQkeyAndAReceiveRequestToGetACopy) {
  const QpHandle with_other_qkey = create_ud(b, Qpn{0x24}, Qkey{5});
  receive(b, with_other_qkey, 360);
  const QpHandle without_receive = create_ud(b, Qpn{0x25});
  attach(b, with_other_qkey);
  attach(b, without_receive);
  attach(b, qb);
  send(kGroup, kAllMembers);
  EXPECT_EQ(completed_receives(), "340 ");
  EXPECT_EQ(b.engine.counters()[Counter::kDropBadQkey], 1u);
  EXPECT_EQ(b.engine.counters()[Counter::kDropNoReceive], 1u);
}

TEST_F(Groups, DropsPacketsWhoseAddressAndQpnDisagree) {
  attach(b, qb);
  send(kGroup, Qpn{0x22});
  send(gid_of(2), kAllMembers);
  EXPECT_EQ(completed_receives(), "");
  EXPECT_EQ(b.engine.counters()[Counter::kDropBadGroup], 2u);
}

TEST_F(Groups, AttachesOnlyUdQpsAndOnlyToGroups) {
  const QpHandle rc = create_connected_qp(b, {}, Qpn{0x26});
  EXPECT_EQ(b.engine.attach_multicast(rc, kGroup).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(b.engine.attach_multicast(qb, gid_of(2)).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(b.engine.attach_multicast({}, kGroup).error().code, Errc::kBadHandle);
  Gid ipv6;
  ipv6.bytes[0] = std::byte{0xff};
  ipv6.bytes[1] = std::byte{0x0e};
  EXPECT_TRUE(b.engine.attach_multicast(qb, ipv6).has_value());
}

TEST_F(Groups, AnAttachedQpCannotBeDestroyed) {
  attach(b, qb);
  attach(b, qb, kOtherGroup);
  EXPECT_EQ(b.engine.destroy_qp(qb).error().code, Errc::kBusy);
  b.engine.detach_multicast(qb, kGroup).value();
  EXPECT_EQ(b.engine.destroy_qp(qb).error().code, Errc::kBusy);
  b.engine.detach_multicast(qb, kOtherGroup).value();
  EXPECT_TRUE(b.engine.destroy_qp(qb).has_value());
}

TEST_F(Groups, AMemberInResetDropsThePacket) {
  attach(b, qb);
  b.engine.modify_qp(qb, {.state = QpState::kReset}, attribute::kState, {}).value();
  send(kGroup, kAllMembers);
  EXPECT_EQ(completed_receives(), "");
  EXPECT_EQ(b.engine.counters()[Counter::kDropBadState], 1u);
}

TEST(GroupLimits, AReachedLimitIsNamedAndCounted) {
  Engine engine({.groups = 2, .group_members = 1}, Random(1));
  const PdHandle pd = engine.create_pd().value();
  const CqHandle cq = engine.create_cq(8, 0).value();
  const QpInit init{.type = QpType::kUd, .pd = pd, .send_cq = cq, .recv_cq = cq};
  const QpHandle first_qp = engine.create_qp(init, Qpn{1}).value();
  const QpHandle second_qp = engine.create_qp(init, Qpn{2}).value();
  engine.attach_multicast(first_qp, kGroup).value();
  EXPECT_STREQ(engine.attach_multicast(second_qp, kGroup).error().context,
               "the limit of QPs in a multicast group (max_mcast_qp_attach) is reached");
  engine.attach_multicast(second_qp, kOtherGroup).value();
  const auto third = engine.attach_multicast(first_qp, wire::ipv4_gid(0xef000001));
  EXPECT_EQ(third.error().code, Errc::kNoResources);
  EXPECT_STREQ(third.error().context, "the limit of multicast groups (max_mcast_grp) is reached");
  EXPECT_EQ(engine.counters()[Counter::kLimitGroups], 2u);
  engine.detach_multicast(second_qp, kOtherGroup).value();
  EXPECT_TRUE(engine.attach_multicast(first_qp, wire::ipv4_gid(0xef000001)).has_value());
}

}  // namespace
}  // namespace verbena::hca
