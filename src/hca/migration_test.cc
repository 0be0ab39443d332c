#include "hca/migration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hca/test_pair.h"

// Tests path migration: arming, and each of the three causes of a migration.

namespace verbena::hca {
namespace {

using namespace std::chrono_literals;
using namespace testing;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Kind = QpEvent::Kind;

class Migration : public ::testing::Test {
 protected:
  explicit Migration(const Options& options = {}) : pair(options) {
    // Discards the events of the setup.
    (void)pair.a.events();
    (void)pair.b.events();
  }
  static constexpr std::uint32_t kLoadAndRearm =
      attribute::kAlternatePath | attribute::kMigrationState;

  // Loads an alternate path between the second addresses of both hosts, and requests REARM.
  Result<void> load_alternate_path(Host& self, const Host& peer, QpHandle qp,
                                   std::uint32_t mask = kLoadAndRearm) {
    QpAttributes a;
    a.alternate_path.address = {.source = other_gid_of(self.number),
                                .destination = other_gid_of(peer.number),
                                .source_port = 0xc999};
    a.alternate_timeout = 13;
    a.migration = MigrationState::kRearm;
    return self.engine.modify_qp(qp, a, mask, pair.wire.now);
  }
  Result<void> request_state(Host& self, QpHandle qp, MigrationState state) {
    QpAttributes a;
    a.migration = state;
    return self.engine.modify_qp(qp, a, attribute::kMigrationState, pair.wire.now);
  }
  void arm() {
    load_alternate_path(pair.a, pair.b, pair.qa).value();
    load_alternate_path(pair.b, pair.a, pair.qb).value();
    exchange();
    ASSERT_EQ(state_a(), MigrationState::kArmed);
    ASSERT_EQ(state_b(), MigrationState::kArmed);
  }
  // Sends a message in each direction.
  void exchange(std::size_t bytes = 100) {
    send(pair.a, pair.qa, pair.b, pair.qb, bytes);
    send(pair.b, pair.qb, pair.a, pair.qa, bytes);
  }
  void send(Host& from, QpHandle qp, Host& to, QpHandle peer, std::size_t bytes) {
    const std::size_t at = (next_id_ % 64) * 8192;
    from.fill(at, bytes, static_cast<std::uint8_t>(next_id_));
    const Sge into = to.sge((1 << 20) + at, bytes);
    const Sge out = from.sge(at, bytes);
    to.engine.post_recv(peer, {.wr_id = next_id_, .sges = {&into, 1}}).value();
    from.engine.post_send(qp, {.wr_id = next_id_, .flags = send_flag::kSignaled, .sges = {&out, 1}})
        .value();
    ++next_id_;
    pair.wire.run();
    const auto sent = from.poll();
    const auto received = to.poll();
    ASSERT_THAT(sent, SizeIs(1));
    EXPECT_EQ(sent[0].status, WcStatus::kSuccess);
    ASSERT_THAT(received, SizeIs(1));
    EXPECT_EQ(received[0].status, WcStatus::kSuccess);
    EXPECT_EQ(received[0].byte_len, bytes);
    EXPECT_TRUE(std::equal(from.memory.begin() + static_cast<std::ptrdiff_t>(at),
                           from.memory.begin() + static_cast<std::ptrdiff_t>(at + bytes),
                           to.memory.begin() + static_cast<std::ptrdiff_t>((1 << 20) + at)));
  }
  static std::vector<Kind> kinds(Host& host) {
    std::vector<Kind> out;
    for (const Event& event : host.events()) {
      if (const auto* qp = std::get_if<QpEvent>(&event)) out.push_back(qp->kind);
    }
    std::erase(out, Kind::kFirstPacket);
    return out;
  }
  QpAttributes attributes_a() const { return pair.a.engine.query_qp(pair.qa).value().attributes; }
  QpAttributes attributes_b() const { return pair.b.engine.query_qp(pair.qb).value().attributes; }
  MigrationState state_a() const { return attributes_a().migration; }
  MigrationState state_b() const { return attributes_b().migration; }

  Pair pair;
  std::uint64_t next_id_ = 1;
};

TEST_F(Migration, BothSidesArmEachOther) {
  EXPECT_EQ(state_a(), MigrationState::kMigrated);
  load_alternate_path(pair.a, pair.b, pair.qa).value();
  exchange();
  EXPECT_EQ(state_a(), MigrationState::kRearm);  // the packets of b still have MigReq set
  load_alternate_path(pair.b, pair.a, pair.qb).value();
  exchange();
  EXPECT_EQ(state_a(), MigrationState::kArmed);
  EXPECT_EQ(state_b(), MigrationState::kArmed);
  EXPECT_THAT(kinds(pair.a), IsEmpty());
  EXPECT_THAT(kinds(pair.b), IsEmpty());
}

TEST_F(Migration, BothSidesMigrateOnRequest) {
  arm();
  ASSERT_TRUE(request_state(pair.a, pair.qa, MigrationState::kMigrated).has_value());
  EXPECT_EQ(attributes_a().path.address.source, other_gid_of(1));
  EXPECT_EQ(attributes_a().timeout, 13);
  EXPECT_EQ(attributes_a().alternate_path.address.source, gid_of(1));
  EXPECT_THAT(kinds(pair.a), ElementsAre(Kind::kPathMigrated));
  pair.wire.unreachable = {gid_of(1), gid_of(2)};  // the old path is no longer used
  exchange(5000);
  EXPECT_EQ(state_b(), MigrationState::kMigrated);
  EXPECT_EQ(attributes_b().path.address.destination, other_gid_of(1));
  EXPECT_THAT(kinds(pair.b), ElementsAre(Kind::kPathMigrated));
  EXPECT_EQ(pair.a.engine.counters()[Counter::kTimeouts], 0u);

  // Both QPs migrate back to the old path, which is now the alternate path.
  ASSERT_TRUE(request_state(pair.a, pair.qa, MigrationState::kRearm).has_value());
  ASSERT_TRUE(request_state(pair.b, pair.qb, MigrationState::kRearm).has_value());
  exchange();
  ASSERT_EQ(state_b(), MigrationState::kArmed);
  pair.wire.unreachable.clear();
  ASSERT_TRUE(request_state(pair.b, pair.qb, MigrationState::kMigrated).has_value());
  pair.wire.unreachable = {other_gid_of(1), other_gid_of(2)};
  send(pair.b, pair.qb, pair.a, pair.qa, 100);
  EXPECT_EQ(attributes_a().path.address.source, gid_of(1));
}

TEST_F(Migration, MigratesFromAFailedPathWithoutLoss) {
  arm();
  pair.wire.unreachable = {gid_of(1), gid_of(2)};
  exchange(5000);
  EXPECT_EQ(pair.state_a(), QpState::kRts);
  EXPECT_EQ(state_a(), MigrationState::kMigrated);
  EXPECT_EQ(state_b(), MigrationState::kMigrated);
  EXPECT_THAT(kinds(pair.a), ElementsAre(Kind::kPathMigrated));
  EXPECT_THAT(kinds(pair.b), ElementsAre(Kind::kPathMigrated));
  EXPECT_EQ(pair.a.engine.counters()[Counter::kMigrations], 1u);
}

// Requests of several kinds, READs and atomics among them, are outstanding when the path fails.
TEST_F(Migration, OutstandingRequestsCompleteOnceAndInOrder) {
  arm();
  pair.a.fill(0, 64 * 1024, 1);
  const Sge out = pair.a.sge(0, 64 * 1024);
  const Sge in = pair.a.sge(1 << 20, 64 * 1024);
  const auto post = [&](WrOpcode opcode, std::uint64_t id, const Sge& sge) {
    pair.a.engine
        .post_send(pair.qa, {.wr_id = id,
                             .opcode = opcode,
                             .flags = send_flag::kSignaled,
                             .sges = {&sge, 1},
                             .remote_address = pair.b.address(2 << 20),
                             .r_key = pair.b.mr.rkey,
                             .compare_add = 1})
        .value();
  };
  const Sge word = pair.a.sge(3 << 20, 8);
  post(WrOpcode::kWrite, 1, out);
  post(WrOpcode::kRead, 2, in);
  post(WrOpcode::kFetchAdd, 3, word);
  pair.wire.run(20us);
  pair.wire.unreachable = {gid_of(1), gid_of(2)};
  pair.wire.run();
  const auto done = pair.a.poll();
  ASSERT_THAT(done, SizeIs(3));
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(done[i].wr_id, i + 1);
    EXPECT_EQ(done[i].status, WcStatus::kSuccess);
  }
  EXPECT_TRUE(std::equal(pair.a.memory.begin(), pair.a.memory.begin() + 64 * 1024,
                         pair.a.memory.begin() + (1 << 20)));
  std::uint64_t before = 0;
  std::uint64_t after = 0;
  std::memcpy(&before, pair.a.memory.data() + (3 << 20), 8);
  std::memcpy(&after, pair.b.memory.data() + (2 << 20), 8);
  EXPECT_EQ(after, before + 1);  // the atomic was executed once
}

TEST_F(Migration, RequestsFailAfterTheRetriesOnBothPaths) {
  arm();
  pair.wire.unreachable = {gid_of(1), gid_of(2), other_gid_of(1), other_gid_of(2)};
  ASSERT_TRUE(pair.send(1, 0, 8).has_value());
  pair.wire.run(60s);
  const auto done = pair.a.poll();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_EQ(done[0].status, WcStatus::kRetryExceeded);
  EXPECT_EQ(pair.state_a(), QpState::kError);
  EXPECT_EQ(pair.a.engine.counters()[Counter::kTimeouts], 16u);  // eight on each path
}

// Host a has almost used up its retries on the failed path when host b migrates.
TEST_F(Migration, MigratingWithThePeerResetsTheRetries) {
  arm();
  pair.wire.unreachable = {gid_of(1), gid_of(2)};
  ASSERT_TRUE(pair.receive(1, 0, 8).has_value());
  ASSERT_TRUE(pair.send(1, 0, 8).has_value());
  while (pair.a.engine.counters()[Counter::kTimeouts] < 7) pair.wire.run(1ms);
  ASSERT_EQ(state_a(), MigrationState::kArmed);
  ASSERT_TRUE(request_state(pair.b, pair.qb, MigrationState::kMigrated).has_value());
  pair.wire.faults = [](std::uint64_t, std::span<const std::byte> bytes) {
    const bool is_request = wire::is_request(wire::parse_transport(bytes)->bth.opcode);
    return PacketOutcome{.copies = is_request ? 1U : 0U};  // a response would reset the retries
  };
  const Sge out = pair.b.sge(0, 8);
  const Sge in = pair.a.sge(64, 8);
  ASSERT_TRUE(pair.a.engine.post_recv(pair.qa, {.wr_id = 2, .sges = {&in, 1}}).has_value());
  ASSERT_TRUE(pair.b.engine.post_send(pair.qb, {.wr_id = 2, .sges = {&out, 1}}).has_value());
  while (pair.a.engine.counters()[Counter::kTimeouts] < 8) pair.wire.run(1ms);
  EXPECT_EQ(state_a(), MigrationState::kMigrated);
  pair.wire.faults = {};
  pair.wire.run();
  const auto done = pair.a.poll();
  ASSERT_THAT(done, SizeIs(2));
  for (const WorkCompletion& completion : done) EXPECT_EQ(completion.status, WcStatus::kSuccess);
  EXPECT_EQ(pair.state_a(), QpState::kRts);
}

TEST_F(Migration, DoesNotMigrateWithThePeerToAnUnknownPath) {
  arm();
  // b's alternate path differs from the path that a switches to.
  QpAttributes other;
  other.alternate_path.address = {.source = other_gid_of(2), .destination = other_gid_of(9)};
  pair.b.engine.modify_qp(pair.qb, other, attribute::kAlternatePath, pair.wire.now).value();
  ASSERT_TRUE(request_state(pair.a, pair.qa, MigrationState::kMigrated).has_value());
  ASSERT_TRUE(pair.receive(1, 0, 8).has_value());
  ASSERT_TRUE(pair.send(1, 0, 8).has_value());
  pair.wire.run(60s);
  EXPECT_THAT(kinds(pair.b), ElementsAre(Kind::kPathMigrationError));
  EXPECT_EQ(state_b(), MigrationState::kArmed);
  EXPECT_EQ(pair.a.poll().at(0).status, WcStatus::kRetryExceeded);
  EXPECT_GT(pair.b.engine.counters()[Counter::kDropWrongSource], 0u);
}

TEST_F(Migration, ArmingNeedsAnAlternatePath) {
  EXPECT_EQ(request_state(pair.a, pair.qa, MigrationState::kRearm).error().code,
            Errc::kInvalidArgument);
  EXPECT_EQ(request_state(pair.a, pair.qa, MigrationState::kArmed).error().code,
            Errc::kInvalidArgument);
  EXPECT_TRUE(request_state(pair.a, pair.qa, MigrationState::kMigrated).has_value());
  load_alternate_path(pair.a, pair.b, pair.qa, attribute::kAlternatePath).value();
  EXPECT_EQ(state_a(), MigrationState::kMigrated);  // loading a path does not arm the QP
  EXPECT_TRUE(request_state(pair.a, pair.qa, MigrationState::kRearm).has_value());
  EXPECT_TRUE(request_state(pair.a, pair.qa, MigrationState::kMigrated).has_value());
  EXPECT_EQ(attributes_a().path.address.source,
            gid_of(1));  // a QP that is not armed stays on its path
  EXPECT_THAT(kinds(pair.a), IsEmpty());
  QpAttributes bad;
  bad.alternate_port = 2;
  EXPECT_EQ(pair.a.engine.modify_qp(pair.qa, bad, attribute::kAlternatePath, {}).error().code,
            Errc::kInvalidArgument);
  bad = {};
  bad.alternate_timeout = 32;
  EXPECT_EQ(pair.a.engine.modify_qp(pair.qa, bad, attribute::kAlternatePath, {}).error().code,
            Errc::kInvalidArgument);
}

class UcMigration : public Migration {
 protected:
  UcMigration() : Migration({.type = QpType::kUc}) {}
};

TEST_F(UcMigration, MigratesOnRequestAndWithThePeer) {
  arm();
  ASSERT_TRUE(request_state(pair.b, pair.qb, MigrationState::kMigrated).has_value());
  pair.wire.unreachable = {gid_of(1), gid_of(2)};
  send(pair.b, pair.qb, pair.a, pair.qa, 3000);
  EXPECT_EQ(state_a(), MigrationState::kMigrated);
  EXPECT_THAT(kinds(pair.a), ElementsAre(Kind::kPathMigrated));
  exchange();
}

}  // namespace
}  // namespace verbena::hca
