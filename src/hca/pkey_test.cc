#include <gtest/gtest.h>

#include <vector>

#include "hca/pkey_table.h"
#include "hca/test_pair.h"
#include "wire/mad.h"

// Tests partitions: a packet is admitted if the P_Keys of both ends match (vol1 10.9.3).
namespace verbena::hca {
namespace {

using namespace testing;

constexpr Pkey kFull{0x8012}, kLimited{0x0012}, kOtherFull{0x8013}, kInvalid{0x8000};

static_assert(wire::pkeys_match(kFull, kFull));
static_assert(wire::pkeys_match(kFull, kLimited) && wire::pkeys_match(kLimited, kFull));
static_assert(!wire::pkeys_match(kLimited, kLimited));
static_assert(!wire::pkeys_match(kFull, kOtherFull));
static_assert(!wire::pkeys_match(kInvalid, kInvalid));

// Returns options for a pair of QPs.  Each QP uses index 1 of the P_Key table of its port.
Options with_pkeys(Pkey a, Pkey b) {
  Options options;
  options.pkey_index = 1;
  options.pkeys_a = {wire::kDefaultPkey, a};
  options.pkeys_b = {wire::kDefaultPkey, b};
  return options;
}

// Sends one message from a to b, and returns true if it arrives.
bool message_arrives(Pair& p) {
  EXPECT_TRUE(p.receive(1, 0, 10));
  EXPECT_TRUE(p.send(2, 0, 10));
  p.wire.run();
  return text(p.b.poll()) == "1";
}

TEST(Partitions, FullMembersReachFullAndLimitedMembers) {
  for (const auto& [a, b] : {std::pair(kFull, kFull), {kFull, kLimited}, {kLimited, kFull}}) {
    Pair p(with_pkeys(a, b));
    EXPECT_TRUE(message_arrives(p)) << a.value << " " << b.value;
    EXPECT_EQ(p.b.engine.counters()[Counter::kDropBadPkey], 0u);
  }
}

TEST(Partitions, PacketsBetweenLimitedMembersAreDroppedAndCounted) {
  Pair p(with_pkeys(kLimited, kLimited));
  EXPECT_FALSE(message_arrives(p));
  EXPECT_GT(p.b.engine.counters()[Counter::kDropBadPkey], 0u);
}

TEST(Partitions, PacketsOfAnotherPartitionAreDroppedAndCounted) {
  Pair p(with_pkeys(kFull, kOtherFull));
  EXPECT_FALSE(message_arrives(p));
  EXPECT_GT(p.b.engine.counters()[Counter::kDropBadPkey], 0u);
}

TEST(Partitions, PacketsCarryThePkeyAtTheIndexOfTheQp) {
  Pair p(with_pkeys(kLimited, kFull));
  std::vector<std::uint16_t> seen;
  p.wire.tamper = [&](std::span<std::byte> packet) {
    seen.push_back(wire::parse_transport(packet)->bth.pkey.value);
  };
  EXPECT_TRUE(message_arrives(p));
  EXPECT_EQ(seen, (std::vector<std::uint16_t>{kLimited.value, kFull.value}));  // SEND and ACK
}

TEST(Partitions, AChangedTableTakesEffectForTheNextPacket) {
  Pair p(with_pkeys(kFull, kFull));
  EXPECT_TRUE(message_arrives(p));
  const std::array table{wire::kDefaultPkey};
  p.b.engine.set_pkeys(table).value();  // removes the entry of b's QP
  EXPECT_FALSE(message_arrives(p));
}

TEST(Partitions, AQpNeedsAnIndexInsideTheTable) {
  Pair p(with_pkeys(kFull, kFull));
  const QpHandle qp = create_connected_qp(p.a, p.o, Qpn{0x33});
  QpAttributes a;
  a.state = QpState::kInit;
  a.pkey_index = 2;
  const auto refused = p.a.engine.modify_qp(qp, a, kToInit, {});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::kInvalidArgument);
  a.pkey_index = 1;
  EXPECT_TRUE(p.a.engine.modify_qp(qp, a, kToInit, {}).has_value());
}

TEST(Partitions, ATableHasOneTo128Entries) {
  PkeyTable table;
  EXPECT_EQ(table.size(), 1u);
  EXPECT_EQ(table.at(0), wire::kDefaultPkey);
  EXPECT_FALSE(table.set({}).has_value());
  EXPECT_FALSE(table.set(std::vector<Pkey>(PkeyTable::kEntriesMax + 1)).has_value());
  EXPECT_TRUE(table.set(std::vector<Pkey>(PkeyTable::kEntriesMax, kLimited)).has_value());
  EXPECT_EQ(table.at(PkeyTable::kEntriesMax), Pkey{});
  EXPECT_TRUE(table.admits(kFull));
  EXPECT_FALSE(table.admits(kLimited));
}

// QP1 belongs to all partitions of the port.
TEST(Partitions, Qp1AdmitsEveryPkeyOfTheTable) {
  Wire wire;
  Host a{1}, b{2};
  wire.attach(a);
  wire.attach(b);
  const std::array table{wire::kDefaultPkey, kFull};
  const std::array table_a{kLimited};
  a.engine.set_pkeys(table_a).value();
  b.engine.set_pkeys(table).value();
  const QpHandle from = create_ud(a, Qpn{0x11});
  const QpHandle qp1 = create_ud(b, wire::kGsiQpn), other = create_ud(b, Qpn{0x22});
  const AhHandle ah =
      a.engine.create_ah(a.pd, {.address = {.source = gid_of(1), .destination = gid_of(2)}})
          .value();
  for (const QpHandle to : {qp1, other}) {
    const Sge in = b.sge(0, 100), out = a.sge(0, 10);
    b.engine.post_recv(to, {.wr_id = 1, .sges = {&in, 1}}).value();
    a.engine
        .post_send(from, {.sges = {&out, 1},
                          .remote_qpn = b.engine.query_qp(to)->qpn,
                          .remote_qkey = kUdQkey,
                          .ah = ah})
        .value();
    wire.run();
    EXPECT_EQ(text(b.poll()), to == qp1 ? "1" : "");
  }
}

}  // namespace
}  // namespace verbena::hca
