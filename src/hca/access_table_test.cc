// Tests the access table, which an engine publishes for peers that carry out WRITEs and READs by
// direct access.  The table must never grant more rights than the responder of the engine.
#include "link/access_table.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "hca/test_pair.h"

namespace verbena::hca {
namespace {

using namespace testing;

constexpr std::uint32_t kQpn = 0x22;

// Owns an engine with one QP, and the access table that the engine publishes.
class PublishedAccess : public ::testing::Test {
 protected:
  PublishedAccess() {
    engine_.set_access_table(&table_);
    pd_ = engine_.create_pd().value();
    cq_ = engine_.create_cq(16, 0).value();
    qp_ = engine_
              .create_qp({.type = QpType::kRc,
                          .pd = pd_,
                          .send_cq = cq_,
                          .recv_cq = cq_,
                          .caps = {.max_send_wr = 4, .max_recv_wr = 4}},
                         Qpn{kQpn})
              .value();
  }
  ~PublishedAccess() override = default;

  void bring_qp_to(QpState state) {
    QpAttributes a;
    a.path_mtu = Mtu::k1024;
    a.access_flags = access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic;
    a.path.address = {.source = gid_of(2), .destination = gid_of(1), .source_port = 0xc123};
    a.destination_qpn = Qpn{0x11};
    a.rq_psn = Psn{1000};
    a.max_rd_atomic = a.max_dest_rd_atomic = 4;
    for (const auto& [next, mask] :
         {std::pair(QpState::kInit, kToInit), std::pair(QpState::kRtr, kToRtr),
          std::pair(QpState::kRts, kToRts)}) {
      if (next > state) break;
      a.state = next;
      engine_.modify_qp(qp_, a, mask, now_).value();
    }
  }
  void change(const QpAttributes& attributes, std::uint32_t mask) {
    engine_.modify_qp(qp_, attributes, mask, now_).value();
  }
  void deliver_write(std::uint32_t psn, const MrInfo& mr) {
    wire::TransportPacket packet;
    packet.bth.opcode = wire::Opcode::kRcWriteOnly;
    packet.bth.psn = Psn{psn};
    packet.bth.destination_qpn = Qpn{kQpn};
    packet.reth = {reinterpret_cast<std::uintptr_t>(memory_.data()), mr.rkey, 8};
    engine_.receive({{.source = gid_of(1), .destination = gid_of(2)}, packet_of(packet, 8)}, now_);
  }
  MrInfo register_region(std::uint32_t access_flags) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    return engine_.register_mr(pd_, address, memory_.size(), address, access_flags).value();
  }
  auto row() const { return table_.qp(kQpn); }

  struct Memory {
    alignas(64) std::array<std::byte, link::AccessTable::kBytes> bytes{};
  };
  std::unique_ptr<Memory> table_memory_ = std::make_unique<Memory>();
  link::AccessTable table_ = *link::AccessTable::attach(table_memory_->bytes);
  std::array<std::byte, 4096> memory_{};
  Engine engine_{{}, Random(1)};
  PdHandle pd_;
  CqHandle cq_;
  QpHandle qp_;
  Time now_{std::chrono::seconds(1)};
};

constexpr std::uint32_t kWritable = access::kLocalWrite | access::kRemoteWrite;

TEST_F(PublishedAccess, RegionIsPublishedUntilItIsDeregistered) {
  const MrInfo mr = register_region(kWritable);
  const auto row = table_.region(mr.rkey);
  ASSERT_TRUE(row);
  EXPECT_EQ(row->access_flags, access::kRemoteWrite);
  EXPECT_EQ(row->address, reinterpret_cast<std::uintptr_t>(memory_.data()));
  EXPECT_EQ(row->length, memory_.size());
  engine_.deregister_mr(mr.handle).value();
  EXPECT_FALSE(table_.region(mr.rkey));
}

TEST_F(PublishedAccess, RegionWithoutRemoteRightsIsNotPublished) {
  EXPECT_FALSE(table_.region(register_region(access::kLocalWrite).rkey));
  EXPECT_FALSE(table_.region(engine_.register_null_mr(pd_)->rkey));
}

TEST_F(PublishedAccess, NewRightsOfARegionReplaceTheOldRights) {
  const MrInfo mr = register_region(kWritable | access::kRemoteRead);
  engine_
      .reregister_mr(mr.handle,
                     {.what = Engine::MrChange::kAccess, .access_flags = access::kRemoteRead})
      .value();
  EXPECT_EQ(table_.region(mr.rkey)->access_flags, access::kRemoteRead);
  engine_.reregister_mr(mr.handle, {.what = Engine::MrChange::kAccess}).value();
  EXPECT_FALSE(table_.region(mr.rkey));
}

TEST_F(PublishedAccess, RegionAndQueuePairHaveEqualDomainIdsOnlyInTheSameDomain) {
  bring_qp_to(QpState::kRtr);
  const PdHandle other = engine_.create_pd().value();
  const MrInfo mr = register_region(kWritable);
  EXPECT_EQ(table_.region(mr.rkey)->domain, row()->domain);
  engine_.reregister_mr(mr.handle, {.what = Engine::MrChange::kPd, .pd = other}).value();
  EXPECT_NE(table_.region(mr.rkey)->domain, row()->domain);
}

TEST_F(PublishedAccess, MemoryWindowIsNotPublished) {
  EXPECT_FALSE(table_.region(engine_.create_mw(pd_, WindowType::kOne)->rkey));
}

TEST_F(PublishedAccess, QueuePairIsPublishedOnlyWhileItAcceptsRequests) {
  EXPECT_FALSE(row());
  bring_qp_to(QpState::kInit);
  EXPECT_FALSE(row());
  bring_qp_to(QpState::kRtr);
  ASSERT_TRUE(row());
  EXPECT_EQ(row()->peer_qpn, 0x11U);
  EXPECT_EQ(row()->peer, gid_of(1));
  EXPECT_EQ(row()->pkey, 0xffff);
  EXPECT_EQ(row()->expected_psn, 1000U);
  change({.state = QpState::kError}, attribute::kState);
  EXPECT_FALSE(row());
}

TEST_F(PublishedAccess, DestroyingTheQueuePairRemovesItsRow) {
  bring_qp_to(QpState::kRts);
  ASSERT_TRUE(row());
  engine_.destroy_qp(qp_).value();
  EXPECT_FALSE(row());
}

TEST_F(PublishedAccess, InvalidRequestRemovesTheRowOfTheQueuePair) {
  bring_qp_to(QpState::kRts);
  deliver_write(1000, {.rkey = 0x12345});
  EXPECT_FALSE(row());
}

TEST_F(PublishedAccess, ExpectedPsnFollowsExecutedRequests) {
  bring_qp_to(QpState::kRts);
  const MrInfo mr = register_region(kWritable);
  deliver_write(1000, mr);
  deliver_write(1001, mr);
  ASSERT_TRUE(row());
  EXPECT_EQ(row()->expected_psn, 1002U);
}

TEST_F(PublishedAccess, RowHasTheAccessFlagsOfTheQueuePair) {
  bring_qp_to(QpState::kRts);
  EXPECT_EQ(row()->access_flags, access::kRemoteWrite | access::kRemoteRead);
  change({.access_flags = access::kRemoteRead}, attribute::kAccessFlags);
  EXPECT_EQ(row()->access_flags, access::kRemoteRead);
  change({.access_flags = 0}, attribute::kAccessFlags);
  EXPECT_EQ(row()->access_flags, 0U);
}

TEST_F(PublishedAccess, EachConnectionOfAQueuePairHasAGenerationOfItsOwn) {
  bring_qp_to(QpState::kRts);
  const std::uint64_t first = row()->generation;
  change({.access_flags = 0}, attribute::kAccessFlags);
  EXPECT_EQ(row()->generation, first);
  change({.state = QpState::kReset}, attribute::kState);
  EXPECT_FALSE(row());
  bring_qp_to(QpState::kRts);
  EXPECT_NE(row()->generation, first);
}

TEST_F(PublishedAccess, NewPkeyOfThePortChangesTheRowOfTheQueuePair) {
  bring_qp_to(QpState::kRts);
  const std::array keys{Pkey{0x8001}};
  engine_.set_pkeys(keys).value();
  EXPECT_EQ(row()->pkey, 0x8001);
}

}  // namespace
}  // namespace verbena::hca
