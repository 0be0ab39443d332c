// Tests the rules of memory windows one by one, and the access of peers through windows.

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <set>

#include "hca/memory.h"
#include "hca/test_pair.h"

namespace verbena::hca {
namespace {

using namespace testing;
using Lines = std::vector<std::string>;
using wire::Opcode;

constexpr std::uint32_t kRights =
    access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic;
constexpr std::uint64_t kAddressMax = ~std::uint64_t{0};

// Returns the next key of a window, as ibv_inc_rkey() does.
constexpr std::uint32_t next_key(std::uint32_t key) {
  return (key & 0xffffff00) | ((key + 1) & 0xff);
}

// ---- the rules, with Memory only ----------------------------------------------------------------

struct Fixture {
  Fixture() {
    memory.add(region);
    memory.add(type_1);
    memory.add(type_2);
  }
  WindowBinding binding(std::uint64_t offset, std::uint64_t length,
                        std::uint32_t flags = kRights) const {
    return {.address = kIova + offset, .length = length, .lkey = region.key, .access_flags = flags};
  }
  bool bind(MemoryWindow& window, const WindowBinding& new_binding) {
    return memory.bind(pd, kQp, next_key(window.key), new_binding);
  }
  std::optional<std::span<std::byte>> find(const MemoryWindow& window, std::uint64_t iova,
                                           std::uint64_t length,
                                           std::uint32_t needed = access::kRemoteRead) {
    return memory.find_remote(pd, kQp, window.key, iova, length, needed);
  }

  static constexpr std::uint64_t kIova = 4096;
  static constexpr QpHandle kQp{77}, kOtherQp{78};
  std::array<std::byte, 256> bytes{};
  Pd pd, other;
  MemoryRegion region{pd, reinterpret_cast<std::uintptr_t>(bytes.data()), bytes.size(), kIova,
                      access::kLocalWrite | access::kWindowBind};
  MemoryWindow type_1{pd, WindowType::kOne}, type_2{pd, WindowType::kTwo};
  Memory memory{Random(1)};
};

TEST(Windows, AWindowGivesAccessToExactlyItsRange) {
  Fixture f;
  for (MemoryWindow* window : {&f.type_1, &f.type_2}) {
    EXPECT_FALSE(f.find(*window, Fixture::kIova, 1));  // the window is not bound yet
    ASSERT_TRUE(f.bind(*window, f.binding(16, 32)));
    EXPECT_EQ(f.find(*window, Fixture::kIova + 16, 32)->data(), f.bytes.data() + 16);
    EXPECT_TRUE(f.find(*window, Fixture::kIova + 47, 1));
    EXPECT_FALSE(f.find(*window, Fixture::kIova + 15, 1));
    EXPECT_FALSE(f.find(*window, Fixture::kIova + 48, 1));
    EXPECT_FALSE(f.find(*window, Fixture::kIova + 16, 33));
    EXPECT_FALSE(f.find(*window, Fixture::kIova + 47, kAddressMax));
    EXPECT_FALSE(f.find(*window, kAddressMax, 1));
    EXPECT_FALSE(f.find(*window, 0, kAddressMax));
  }
  EXPECT_EQ(f.region.windows, 2u);
}

TEST(Windows, AWindowHasItsOwnRights) {
  Fixture f;
  ASSERT_TRUE(f.bind(f.type_2, f.binding(0, 64, access::kRemoteRead)));
  EXPECT_TRUE(f.find(f.type_2, Fixture::kIova, 8, access::kRemoteRead));
  EXPECT_FALSE(f.find(f.type_2, Fixture::kIova, 8, access::kRemoteWrite));
  EXPECT_FALSE(f.find(f.type_2, Fixture::kIova, 8, access::kRemoteAtomic));
  EXPECT_FALSE(f.memory.find_remote(f.pd, Fixture::kQp, f.region.key, Fixture::kIova, 8,
                                    access::kRemoteRead))
      << "the region itself gives peers no access";
  EXPECT_FALSE(f.memory.find(f.pd, f.type_2.key, Fixture::kIova, 8, 0))
      << "the key is not an L_Key";
}

TEST(Windows, OnlyType2CanBeZeroBased) {
  Fixture f;
  EXPECT_FALSE(f.bind(f.type_1, f.binding(16, 32, kRights | access::kZeroBased)));
  ASSERT_TRUE(f.bind(f.type_2, f.binding(16, 32, kRights | access::kZeroBased)));
  EXPECT_EQ(f.find(f.type_2, 0, 32)->data(), f.bytes.data() + 16);
  EXPECT_FALSE(f.find(f.type_2, 32, 1));
  EXPECT_FALSE(f.find(f.type_2, Fixture::kIova + 16, 1));
}

TEST(Windows, Type1IsForAllQpsOfItsDomainAndType2OnlyForItsQp) {
  Fixture f;
  ASSERT_TRUE(f.bind(f.type_1, f.binding(0, 64)));
  ASSERT_TRUE(f.bind(f.type_2, f.binding(0, 64)));
  const auto reaches = [&](const Pd& pd, QpHandle qp, const MemoryWindow& window) {
    return f.memory.find_remote(pd, qp, window.key, Fixture::kIova, 1, access::kRemoteRead)
        .has_value();
  };
  EXPECT_TRUE(reaches(f.pd, Fixture::kQp, f.type_1));
  EXPECT_TRUE(reaches(f.pd, Fixture::kOtherQp, f.type_1));
  EXPECT_FALSE(reaches(f.other, Fixture::kQp, f.type_1));
  EXPECT_TRUE(reaches(f.pd, Fixture::kQp, f.type_2));
  EXPECT_FALSE(reaches(f.pd, Fixture::kOtherQp, f.type_2));
  EXPECT_FALSE(reaches(f.other, Fixture::kQp, f.type_2));
}

TEST(Windows, InvalidBindingsAreRefused) {
  Fixture f;
  const WindowBinding good = f.binding(0, 64);
  const auto refused = [&](MemoryWindow& window, const WindowBinding& binding) {
    const std::uint32_t key = window.key;
    const bool is_refused = !f.bind(window, binding);
    EXPECT_EQ(window.key, key);
    EXPECT_EQ(window.region, nullptr);
    return is_refused;
  };
  MemoryRegion unbindable_region{f.pd, f.region.address, 256, Fixture::kIova, access::kLocalWrite};
  MemoryRegion read_only_region{f.pd, f.region.address, 256, Fixture::kIova, access::kWindowBind};
  MemoryRegion foreign_region{f.other, f.region.address, 256, Fixture::kIova,
                              f.region.access_flags};
  for (MemoryRegion* region : {&unbindable_region, &read_only_region, &foreign_region})
    f.memory.add(*region);
  for (MemoryWindow* window : {&f.type_1, &f.type_2}) {
    EXPECT_TRUE(refused(*window, f.binding(256, 1)));
    EXPECT_TRUE(refused(*window, f.binding(0, 257)));
    EXPECT_TRUE(refused(*window, f.binding(255, kAddressMax)));
    EXPECT_TRUE(refused(*window, f.binding(kAddressMax - Fixture::kIova, 2)));
    EXPECT_TRUE(refused(*window, f.binding(0, 64, access::kWindowBind)));
    WindowBinding other = good;
    ++other.lkey;
    EXPECT_TRUE(refused(*window, other)) << "there is no such region";
    other.lkey = f.type_1.key;
    EXPECT_TRUE(refused(*window, other)) << "a window is not a region";
    other.lkey = unbindable_region.key;
    EXPECT_TRUE(refused(*window, other)) << "the region lacks the right to bind";
    other.lkey = foreign_region.key;
    EXPECT_TRUE(refused(*window, other)) << "the region is in another domain";
    other.lkey = read_only_region.key;
    for (const std::uint32_t writes : {access::kRemoteWrite, access::kRemoteAtomic}) {
      other.access_flags = writes;
      EXPECT_TRUE(refused(*window, other)) << "the region lacks local write";
    }
    EXPECT_FALSE(f.memory.bind(f.other, Fixture::kQp, next_key(window->key), good))
        << "the QP is in another domain";
    other.access_flags = access::kRemoteRead;
    EXPECT_TRUE(f.bind(*window, other));
  }
  MemoryWindow local_write_window{f.pd, WindowType::kOne};
  f.memory.add(local_write_window);
  EXPECT_TRUE(
      f.bind(local_write_window, f.binding(0, 64, access::kRemoteWrite | access::kLocalWrite)));
  EXPECT_FALSE(f.memory.bind(f.pd, Fixture::kQp, f.region.key, good)) << "a region is not a window";
  MemoryWindow unbound_window{f.pd, WindowType::kTwo};
  f.memory.add(unbound_window);
  EXPECT_TRUE(refused(unbound_window, f.binding(0, 0)));
}

TEST(Windows, Type1CanBeReboundAndIsUnboundByLength0) {
  Fixture f;
  ASSERT_TRUE(f.bind(f.type_1, f.binding(0, 64)));
  const std::uint32_t old = f.type_1.key;
  ASSERT_TRUE(f.bind(f.type_1, f.binding(64, 64)));
  EXPECT_FALSE(f.memory.find_remote(f.pd, Fixture::kQp, old, Fixture::kIova + 64, 1, 0));
  EXPECT_TRUE(f.find(f.type_1, Fixture::kIova + 64, 1));
  EXPECT_EQ(f.region.windows, 1u);
  EXPECT_FALSE(f.memory.invalidate(f.pd, Fixture::kQp, f.type_1.key));
  ASSERT_TRUE(f.bind(f.type_1, {.length = 0}));
  EXPECT_FALSE(f.find(f.type_1, Fixture::kIova + 64, 1));
  EXPECT_EQ(f.region.windows, 0u);
}

TEST(Windows, OnlyTheQpThatHasBoundAType2WindowInvalidatesTheWindow) {
  Fixture f;
  EXPECT_FALSE(f.memory.invalidate(f.pd, Fixture::kQp, f.type_2.key));  // the window is not bound
  ASSERT_TRUE(f.bind(f.type_2, f.binding(0, 64)));
  const std::uint32_t key = f.type_2.key;
  EXPECT_FALSE(f.bind(f.type_2, f.binding(0, 64)));  // the window is already bound
  EXPECT_FALSE(f.memory.invalidate(f.pd, Fixture::kOtherQp, key));
  EXPECT_FALSE(f.memory.invalidate(f.other, Fixture::kQp, key));
  EXPECT_FALSE(f.memory.invalidate(f.pd, Fixture::kQp, next_key(key)));
  EXPECT_FALSE(f.memory.invalidate(f.pd, Fixture::kQp, f.region.key));
  EXPECT_TRUE(f.find(f.type_2, Fixture::kIova, 1));
  ASSERT_TRUE(f.memory.invalidate(f.pd, Fixture::kQp, key));
  EXPECT_FALSE(f.find(f.type_2, Fixture::kIova, 1));
  EXPECT_FALSE(f.memory.invalidate(f.pd, Fixture::kQp, key));
  EXPECT_EQ(f.region.windows, 0u);
  ASSERT_TRUE(f.bind(f.type_2, f.binding(0, 64)));
  EXPECT_EQ(f.type_2.key, next_key(key));
}

TEST(Windows, KeysOfRegionsAndWindowsDifferInTheirUpperBits) {
  Memory memory(Random(5));
  Pd pd;
  std::deque<MemoryWindow> windows;
  std::deque<MemoryRegion> regions;
  std::set<std::uint32_t> seen;
  for (int i = 0; i < 5000; ++i) {
    memory.add(windows.emplace_back(pd, WindowType::kTwo));
    memory.add(regions.emplace_back(pd, 4096u, 4096u, 0u, 0u));
    EXPECT_TRUE(seen.insert(windows.back().key >> 8).second);
    EXPECT_TRUE(seen.insert(regions.back().key >> 8).second);
  }
  EXPECT_FALSE(seen.contains(0));
}

// ---- with QPs -----------------------------------------------------------------------------------

// Owns a window of b.  bind() binds the window to bytes [1024, 2048) of b's memory.
struct WindowPair : Pair {
  explicit WindowPair(WindowType type = WindowType::kTwo, const Options& options = {})
      : Pair(options) {
    bindable = b.engine
                   .register_mr(b.pd, b.address(0), 8192, b.address(0),
                                access::kLocalWrite | access::kWindowBind)
                   .value();
    window = b.engine.create_mw(b.pd, type).value();
  }
  Result<void> bind(std::uint64_t id, std::uint32_t key, std::uint64_t length = 1024,
                    std::uint32_t flags = send_flag::kSignaled) {
    return b.engine.post_send(qb, {.wr_id = id,
                                   .opcode = WrOpcode::kBindWindow,
                                   .flags = flags,
                                   .r_key = key,
                                   .bind = {.address = b.address(1024),
                                            .length = length,
                                            .lkey = bindable.lkey,
                                            .access_flags = kRights}});
  }
  Result<void> invalidate(std::uint64_t id, std::uint32_t key) {
    return b.engine.post_send(qb, {.wr_id = id,
                                   .opcode = WrOpcode::kLocalInvalidate,
                                   .flags = send_flag::kSignaled,
                                   .r_key = key});
  }
  Result<void> write(std::uint64_t id, std::uint32_t key, std::size_t bytes = 1024) {
    const Sge sge = a.sge(0, bytes);
    return a.engine.post_send(qa, {.wr_id = id,
                                   .opcode = WrOpcode::kWrite,
                                   .flags = send_flag::kSignaled,
                                   .sges = {&sge, 1},
                                   .remote_address = b.address(1024),
                                   .r_key = key});
  }
  Result<void> send_invalidate(std::uint64_t id, std::uint32_t key, std::size_t bytes,
                               std::uint32_t flags = send_flag::kSignaled) {
    const Sge sge = a.sge(0, bytes);
    return a.engine.post_send(qa, {.wr_id = id,
                                   .opcode = WrOpcode::kSendInvalidate,
                                   .flags = flags,
                                   .sges = {&sge, 1},
                                   .r_key = key});
  }

  MrInfo bindable;
  MwInfo window;
};

TEST(Windows, APeerWritesThroughAWindowUntilItIsInvalidated) {
  WindowPair p;
  p.a.fill(0, 1024, 5);
  const std::uint32_t key = next_key(p.window.rkey);
  ASSERT_TRUE(p.bind(1, key));
  ASSERT_TRUE(p.write(1, key));
  p.wire.run();
  const auto bound = p.b.poll();
  ASSERT_EQ(text(bound), "1");
  EXPECT_EQ(bound[0].opcode, WcOpcode::kBindWindow);
  EXPECT_EQ(text(p.a.poll()), "1");
  EXPECT_TRUE(p.same(0, 1024, 1024));
  ASSERT_TRUE(p.invalidate(2, key));
  ASSERT_TRUE(p.write(2, key));
  p.wire.run();
  const auto invalidated = p.b.poll();
  ASSERT_EQ(text(invalidated), "2");
  EXPECT_EQ(invalidated[0].opcode, WcOpcode::kLocalInvalidate);
  EXPECT_EQ(text(p.a.poll()), "2:remote access error");
}

TEST(Windows, Type1HasTheKeyOfItsLastBinding) {
  WindowPair p(WindowType::kOne);
  const std::uint32_t key = next_key(p.window.rkey);
  ASSERT_TRUE(p.bind(1, key));
  ASSERT_TRUE(p.write(1, key));
  p.wire.run();
  EXPECT_EQ(text(p.a.poll()), "1");
  ASSERT_TRUE(p.bind(2, next_key(key), 0));
  ASSERT_TRUE(p.write(2, next_key(key)));
  p.wire.run();
  EXPECT_EQ(text(p.b.poll()), "1 2");
  EXPECT_EQ(text(p.a.poll()), "2:remote access error");
}

TEST(Windows, ASendWithInvalidateInvalidatesTheWindow) {
  for (const std::size_t bytes : {0u, 10u, 3000u}) {
    SCOPED_TRACE(bytes);
    WindowPair p;
    const std::uint32_t key = next_key(p.window.rkey);
    ASSERT_TRUE(p.bind(1, key));
    ASSERT_TRUE(p.receive(7, 4096, 4000));
    p.wire.run();
    EXPECT_EQ(text(p.b.poll()), "1");
    ASSERT_TRUE(p.send_invalidate(1, key, bytes));
    ASSERT_TRUE(p.write(2, key, 10));
    p.wire.run();
    const auto got = p.b.poll();
    ASSERT_EQ(text(got), "7");
    EXPECT_EQ(got[0].opcode, WcOpcode::kReceive);
    EXPECT_EQ(got[0].flags, wc_flag::kWithInvalidate);
    EXPECT_EQ(got[0].invalidated_r_key, key);
    EXPECT_EQ(got[0].byte_len, bytes);
    const auto sent = p.a.poll();
    ASSERT_EQ(text(sent), "1 2:remote access error");
    EXPECT_EQ(sent[0].opcode, WcOpcode::kSend);
  }
}

TEST(Windows, ASendWithABadInvalidateEndsBothQps) {
  for (const bool is_region : {true, false}) {
    WindowPair p;
    ASSERT_TRUE(p.receive(7, 4096, 100));
    ASSERT_TRUE(p.send_invalidate(1, is_region ? p.b.mr.rkey : p.window.rkey, 10));
    p.wire.run();
    EXPECT_EQ(text(p.b.poll()), "7:remote invalid request");
    EXPECT_EQ(text(p.a.poll()), "1:retries exceeded");  // b sent no response
    EXPECT_EQ(p.state_a(), QpState::kError);
    EXPECT_EQ(p.state_b(), QpState::kError);
    // The region is unchanged.
    EXPECT_TRUE(p.b.engine.deregister_mr(p.b.mr.handle));
  }
}

TEST(Windows, AnInvalidBindOrInvalidateEndsItsQp) {
  for (const bool is_bind : {true, false}) {
    WindowPair p;
    ASSERT_TRUE(is_bind ? p.bind(1, p.window.rkey, 0) : p.invalidate(1, p.window.rkey));
    ASSERT_TRUE(p.receive(2, 0, 10));
    p.wire.run();
    EXPECT_EQ(text(p.b.poll()), "1:memory management operation error 2:flushed");
    EXPECT_EQ(p.state_b(), QpState::kError);
  }
}

// Binds and invalidates complete in order with the other requests, even when packets are
// retransmitted.
TEST(Windows, CompletionsKeepTheOrderOfTheRequests) {
  for (std::uint64_t lost = 0; lost < 6; ++lost) {
    SCOPED_TRACE(lost);
    WindowPair p;
    p.wire.faults = [lost](std::uint64_t number, auto) {
      return PacketOutcome{.copies = number != lost};
    };
    std::uint32_t key = p.window.rkey;
    const Sge sge = p.b.sge(0, 100), target = p.b.sge(5000, 8);
    std::uint64_t id = 1;
    for (int round = 0; round < 3; ++round) {
      key = next_key(key);
      ASSERT_TRUE(p.bind(id++, key));
      ASSERT_TRUE(p.b.engine.post_send(p.qb, {.wr_id = id++,
                                              .opcode = WrOpcode::kWrite,
                                              .flags = send_flag::kSignaled,
                                              .sges = {&sge, 1},
                                              .remote_address = p.a.address(0),
                                              .r_key = p.a.mr.rkey}));
      ASSERT_TRUE(p.b.engine.post_send(p.qb, {.wr_id = id++,
                                              .opcode = WrOpcode::kRead,
                                              .flags = send_flag::kSignaled,
                                              .sges = {&target, 1},
                                              .remote_address = p.a.address(0),
                                              .r_key = p.a.mr.rkey}));
      ASSERT_TRUE(p.invalidate(id++, key));
    }
    p.wire.run();
    EXPECT_EQ(text(p.b.poll()), "1 2 3 4 5 6 7 8 9 10 11 12");
  }
}

TEST(Windows, AFencedInvalidateWaitsForReads) {
  WindowPair p;
  const std::uint32_t key = next_key(p.window.rkey);
  ASSERT_TRUE(p.bind(1, key));
  const Sge sge = p.b.sge(0, 8);
  ASSERT_TRUE(p.b.engine.post_send(p.qb, {.wr_id = 2,
                                          .opcode = WrOpcode::kRead,
                                          .sges = {&sge, 1},
                                          .remote_address = p.a.address(0),
                                          .r_key = p.a.mr.rkey}));
  ASSERT_TRUE(p.b.engine.post_send(p.qb, {.wr_id = 3,
                                          .opcode = WrOpcode::kLocalInvalidate,
                                          .flags = send_flag::kFence | send_flag::kSignaled,
                                          .r_key = key}));
  p.wire.drain(p.b);
  ASSERT_TRUE(p.write(1, key, 8));  // the WRITE arrives before the response to the READ
  p.wire.run();
  EXPECT_EQ(text(p.a.poll()), "1");
  EXPECT_EQ(text(p.b.poll()), "1 3");
}

TEST(Windows, ARegionWithBoundWindowsCannotBeDeregistered) {
  WindowPair p;
  ASSERT_TRUE(p.bind(1, next_key(p.window.rkey)));
  p.wire.run();
  EXPECT_EQ(p.b.engine.deregister_mr(p.bindable.handle).error().code, Errc::kBusy);
  ASSERT_TRUE(p.b.engine.destroy_mw(p.window.handle));  // also unbinds the window
  EXPECT_TRUE(p.b.engine.deregister_mr(p.bindable.handle));
  EXPECT_EQ(p.b.engine.destroy_mw(p.window.handle).error().code, Errc::kBadHandle);
}

TEST(Windows, ADomainWithWindowsCannotBeDestroyed) {
  Engine engine({.mws = 1}, Random(1));
  const PdHandle pd = engine.create_pd().value();
  EXPECT_EQ(engine.create_mw(pd, WindowType{3}).error().code, Errc::kInvalidArgument);
  const MwInfo window = engine.create_mw(pd, WindowType::kTwo).value();
  EXPECT_EQ(engine.create_mw(pd, WindowType::kOne).error().code, Errc::kNoResources);
  EXPECT_EQ(engine.counters()[Counter::kLimitMws], 1u);
  EXPECT_EQ(engine.destroy_pd(pd).error().code, Errc::kBusy);
  ASSERT_TRUE(engine.destroy_mw(window.handle));
  EXPECT_TRUE(engine.destroy_pd(pd));
}

// No peer can use a window whose QP was destroyed, but the window remains bound until it is
// destroyed.
TEST(Windows, AWindowRemainsBoundWhenItsQpIsDestroyed) {
  WindowPair p;
  ASSERT_TRUE(p.bind(1, next_key(p.window.rkey)));
  p.wire.run();
  ASSERT_TRUE(p.b.engine.destroy_qp(p.qb));
  EXPECT_EQ(p.b.engine.deregister_mr(p.bindable.handle).error().code, Errc::kBusy);
  ASSERT_TRUE(p.b.engine.destroy_mw(p.window.handle));
  EXPECT_TRUE(p.b.engine.deregister_mr(p.bindable.handle));
}

// The access is checked again for every packet, because a READ response may have many packets.
TEST(Windows, AReadResponseStopsWhenItsWindowIsDestroyed) {
  constexpr std::uint32_t kPackets = 2 * link::Burst::kPacketsMax, kBytes = 256 * kPackets;
  HostUnderTest s({.mtu = Mtu::k256});
  s.host.engine.mark_established(s.qp).value();
  const MrInfo region = s.host.engine
                            .register_mr(s.host.pd, s.host.address(0), kBytes, s.host.address(0),
                                         access::kLocalWrite | access::kWindowBind)
                            .value();
  const MwInfo window = s.host.engine.create_mw(s.host.pd, WindowType::kOne).value();
  ASSERT_TRUE(s.host.engine.post_send(s.qp, {.opcode = WrOpcode::kBindWindow,
                                             .r_key = window.rkey,
                                             .bind = {.address = s.host.address(0),
                                                      .length = kBytes,
                                                      .lkey = region.lkey,
                                                      .access_flags = kRights}}));
  EXPECT_EQ(s.out(), Lines{});
  s.request(Opcode::kRcReadRequest, 2000, 0, true, {s.host.address(0), window.rkey, kBytes});
  link::Burst first_burst;
  s.host.engine.transmit(first_burst, s.now);
  ASSERT_GT(first_burst.size(), 0u);
  ASSERT_LT(first_burst.size(), kPackets);
  ASSERT_TRUE(s.host.engine.destroy_mw(window.handle));
  EXPECT_EQ(s.out(), Lines{"NAK2 " + std::to_string(2000 + first_burst.size())});
}

}  // namespace
}  // namespace verbena::hca
