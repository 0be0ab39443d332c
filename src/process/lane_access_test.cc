// Tests how long a program waits for peers that access its memory directly, which packets of other
// users' programs it accepts, and what a closed lane means for the other queue pairs.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ipc/lane_messages.h"
#include "process/lane_manager.h"

namespace verbena::process {
namespace {

constexpr LaneManager::Id kLane = 7;
constexpr std::uint16_t kPeerRange = 5;
constexpr Gid kOwnAddress{.bytes = {std::byte{1}}};

struct FakePeerMemory final : link::PeerMemory {
  explicit FakePeerMemory(const link::AccessTable& table) : PeerMemory(table) {}
  bool write(std::uint64_t, std::span<const std::span<std::byte>>) override { return false; }
  bool read(std::uint64_t, std::span<const std::span<std::byte>>) override { return false; }
  bool exists() override { return is_alive; }
  bool is_alive = true;
};

// Holds both ends of a lane: lanes_ has the program's end, and peer_ is the peer's end.
class LaneAccess : public ::testing::Test {
 protected:
  LaneAccess() {
    lanes_.enable();
    lanes_.publish(table_);
    attach(&peer_memory_);
  }
  ~LaneAccess() override = default;

  void attach(link::PeerMemory* memory, bool other_user = false) {
    const auto bytes = std::as_writable_bytes(std::span(pages_.get(), kPages));
    lanes_.set_lane_memory(kLane, bytes, memory);
    lanes_.on(ipc::Lane{.lane = kLane, .ranges = {kPeerRange}, .other_user = other_user});
    peer_ = *link::Lane::attach(bytes, link::Lane::Side::kSecond);
  }
  void close_lane() {
    lanes_.on(ipc::LaneClosed{kLane}, [](const auto&) {});
  }

  // Creates a UC QP in RTS, whose peer is the program at the other end of the lane.
  hca::QpHandle create_qp() {
    using namespace hca::attribute;
    lanes_.on_devices({{.ports = {{.gids = {{.gid = kOwnAddress}}}}}});
    const auto pd = engine_.create_pd().value();
    cq_ = engine_.create_cq(4, 0).value();
    const hca::QpInit init{.type = hca::QpType::kUc,
                           .pd = pd,
                           .send_cq = cq_,
                           .recv_cq = cq_,
                           .caps = {.max_send_wr = 4, .max_recv_wr = 4}};
    const auto qp = engine_.create_qp(init, Qpn{1}).value();
    hca::QpAttributes attributes{.destination_qpn = Qpn{kPeerRange * link::Lanes::kRangeQpns}};
    attributes.path.address = {.source = kOwnAddress, .destination = kOwnAddress};
    for (const auto& [state, mask] :
         {std::pair(hca::QpState::kInit, kPkeyIndex | kPort | kAccessFlags),
          std::pair(hca::QpState::kRtr, kPath | kPathMtu | kDestinationQpn | kRqPsn),
          std::pair(hca::QpState::kRts, kSqPsn)}) {
      attributes.state = state;
      engine_.modify_qp(qp, attributes, kState | mask, {}).value();
    }
    return qp;
  }
  // Sends a message without bytes.  Returns true if it left by the lane.
  bool sends_by_lane(hca::QpHandle qp) {
    engine_.post_send(qp, {}).value();
    link::Burst burst;
    engine_.transmit(burst, {});
    return burst.empty();
  }

  struct alignas(4096) Page {
    std::array<std::byte, 4096> bytes;
  };
  struct Table {
    alignas(64) std::array<std::byte, link::AccessTable::kBytes> bytes{};
  };
  static constexpr std::size_t kPages = link::Lane::kBytes / sizeof(Page);
  std::unique_ptr<Page[]> pages_ = std::make_unique<Page[]>(kPages);
  std::unique_ptr<Table> memory_ = std::make_unique<Table>();
  link::AccessTable table_ = *link::AccessTable::attach(memory_->bytes);
  FakePeerMemory peer_memory_{table_};
  hca::Engine engine_{{}, Random(1)};
  hca::CqHandle cq_{};
  LaneManager lanes_{engine_};
  std::optional<link::Lane> peer_;
};

TEST_F(LaneAccess, AccessRemainsUntilThePeerEndsIt) {
  EXPECT_TRUE(lanes_.accesses().empty());
  peer_->begin_access();
  EXPECT_TRUE(peer_->peer_allows_access());
  auto accesses = lanes_.accesses();
  ASSERT_EQ(accesses.size(), 1U);
  EXPECT_FALSE(lanes_.remove_ended_accesses(accesses));
  peer_->leave();
  EXPECT_TRUE(lanes_.remove_ended_accesses(accesses));
}

TEST_F(LaneAccess, ProgramDoesNotWaitForTheNextAccessOfThePeer) {
  peer_->begin_access();
  auto accesses = lanes_.accesses();
  peer_->leave();
  peer_->begin_access();
  EXPECT_TRUE(lanes_.remove_ended_accesses(accesses));
}

TEST_F(LaneAccess, ProgramDoesNotWaitForAPeerThatDiedInAnAccess) {
  peer_->begin_access();
  auto accesses = lanes_.accesses();
  EXPECT_FALSE(lanes_.remove_ended_accesses(accesses));
  peer_memory_.is_alive = false;
  close_lane();
  EXPECT_TRUE(lanes_.remove_ended_accesses(accesses));
  EXPECT_EQ(lanes_.poll_closed(), kLane);
}

TEST_F(LaneAccess, ProgramStillWaitsForThePeerAfterTheDeathOfTheAgent) {
  peer_->begin_access();
  auto accesses_before = lanes_.accesses();
  lanes_.on_agent_died();
  EXPECT_FALSE(peer_->peer_allows_access());
  auto accesses_after = lanes_.accesses();
  EXPECT_EQ(accesses_after.size(), 1U);
  EXPECT_FALSE(lanes_.remove_ended_accesses(accesses_before));
  EXPECT_FALSE(lanes_.remove_ended_accesses(accesses_after));
  EXPECT_FALSE(lanes_.poll_closed()) << "this memory has the record of the peer's access";
  peer_->leave();
  EXPECT_TRUE(lanes_.remove_ended_accesses(accesses_before));
  EXPECT_TRUE(lanes_.remove_ended_accesses(accesses_after));
  EXPECT_EQ(lanes_.poll_closed(), kLane);
  EXPECT_FALSE(lanes_.poll_closed());
}

// A flush tells the program that no peer writes to its memory through this QP any more.
class ErrorDuringAccess : public LaneAccess {
 protected:
  ErrorDuringAccess() : qp_(create_qp()) {
    engine_.post_recv(qp_, {}).value();
    peer_->begin_access();
  }
  void move_to_error() {
    engine_.modify_qp(qp_, {.state = hca::QpState::kError}, hca::attribute::kState, {}).value();
  }
  bool is_flushed_at_deadline() {
    if (engine_.deadline() != kNever) engine_.on_timer(engine_.deadline());
    std::array<hca::WorkCompletion, 1> completions;
    return engine_.poll_cq(cq_, completions).value() == 1;
  }
  hca::QpHandle qp_;
};

TEST_F(ErrorDuringAccess, QpIsFlushedAfterTheAccessIfTheAgentHasDied) {
  lanes_.on_agent_died();
  move_to_error();
  EXPECT_FALSE(is_flushed_at_deadline());
  peer_->leave();
  EXPECT_TRUE(is_flushed_at_deadline());
}

TEST_F(ErrorDuringAccess, QpIsFlushedAfterTheAccessIfItsLaneHasClosed) {
  move_to_error();
  close_lane();
  EXPECT_FALSE(is_flushed_at_deadline());
  peer_->leave();
  EXPECT_TRUE(is_flushed_at_deadline());
}

TEST_F(ErrorDuringAccess, QpIsFlushedWhenAgentAndPeerHaveDied) {
  lanes_.on_agent_died();
  move_to_error();
  EXPECT_FALSE(is_flushed_at_deadline());
  peer_memory_.is_alive = false;
  EXPECT_EQ(lanes_.poll_closed(), kLane);
  EXPECT_TRUE(is_flushed_at_deadline());
}

TEST_F(LaneAccess, DeathOfAgentAndPeerEndsTheAccess) {
  peer_->begin_access();
  auto accesses = lanes_.accesses();
  lanes_.on_agent_died();
  EXPECT_FALSE(lanes_.remove_ended_accesses(accesses));
  peer_memory_.is_alive = false;
  EXPECT_TRUE(lanes_.remove_ended_accesses(accesses));
  EXPECT_EQ(lanes_.poll_closed(), kLane);
}

TEST_F(LaneAccess, PeerWhoseDeathCannotBeDetectedMayNotAccessTheMemory) {
  close_lane();
  EXPECT_EQ(lanes_.poll_closed(), kLane);
  attach(nullptr);
  peer_->begin_access();
  EXPECT_FALSE(peer_->peer_allows_access());
  EXPECT_TRUE(lanes_.accesses().empty())
      << "a command would wait forever for the end of the access";
}

TEST_F(LaneAccess, ProgramOfAnotherUserCannotUseTheAddressOfAnotherHost) {
  constexpr Gid kOtherHost{.bytes = {std::byte{2}}};
  lanes_.on_devices({{.ports = {{.gids = {{.gid = kOwnAddress}}}}}});
  for (const bool other_user : {false, true}) {
    close_lane();
    EXPECT_EQ(lanes_.poll_closed(), kLane);
    attach(nullptr, other_user);
    for (const Gid& source : {kOtherHost, kOwnAddress}) {
      ASSERT_TRUE(peer_->prepare({.source = source, .destination = kOwnAddress}));
      peer_->commit(link::Lane::kPacketBytesMin);
    }
    std::vector<Gid> sources;
    lanes_.receive([&]<class Record>(const Record& record) {
      if constexpr (std::is_same_v<Record, link::Arrival>) {
        sources.push_back(record.address.source);
      }
    });
    EXPECT_EQ(sources.size(), other_user ? 1U : 2U);
    EXPECT_EQ(sources.back(), kOwnAddress);
  }
  EXPECT_EQ(lanes_.counters().foreign_sources, 1U);
}

// Packets of a UC QP must not overtake each other, so the QP cannot change its link while the lane
// has packets that the peer has not read.
TEST_F(LaneAccess, AUcQpKeepsItsLaneWhenAnotherLaneCloses) {
  constexpr LaneManager::Id kOtherLane = 8;
  const auto other_pages = std::make_unique<Page[]>(kPages);
  const auto qp = create_qp();
  ASSERT_TRUE(sends_by_lane(qp));
  lanes_.set_lane_memory(kOtherLane, std::as_writable_bytes(std::span(other_pages.get(), kPages)));
  lanes_.on(ipc::Lane{.lane = kOtherLane, .ranges = {kPeerRange + 1}});
  ASSERT_EQ(lanes_.size(), 2U);
  lanes_.on(ipc::LaneClosed{kOtherLane}, [](const auto&) {});
  ASSERT_EQ(lanes_.size(), 1U);
  EXPECT_TRUE(sends_by_lane(qp));
  close_lane();
  EXPECT_FALSE(sends_by_lane(qp));
}

}  // namespace
}  // namespace verbena::process
