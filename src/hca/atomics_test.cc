// Tests atomics from end to end: their results, and the refusal of invalid requests.

#include "hca/atomics.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "hca/test_pair.h"

namespace verbena::hca {
namespace {

using namespace testing;
using Lines = std::vector<std::string>;
using wire::Opcode;

std::uint64_t& number_at(Host& host, std::size_t offset) {
  return *reinterpret_cast<std::uint64_t*>(host.memory.data() + offset);
}

constexpr std::size_t kResult = 512, kTarget = 1024;

struct AtomicPair : Pair {
  using Pair::Pair;
  Result<void> post(WrOpcode opcode, std::uint64_t id, std::uint64_t compare_add,
                    std::uint64_t swap = 0, std::size_t target = kTarget,
                    std::uint32_t flags = send_flag::kSignaled) {
    const Sge sge = a.sge(kResult + id * 8, 8);
    return a.engine.post_send(qa, {.wr_id = id,
                                   .opcode = opcode,
                                   .flags = flags,
                                   .sges = {&sge, 1},
                                   .remote_address = b.address(target),
                                   .r_key = b.mr.rkey,
                                   .compare_add = compare_add,
                                   .swap = swap});
  }
  std::uint64_t result(std::uint64_t id) { return number_at(a, kResult + id * 8); }
};

TEST(Atomics, FetchAddReturnsTheOldNumberAndAdds) {
  AtomicPair p;
  number_at(p.b, kTarget) = 0xfffffffffffffff0;
  ASSERT_TRUE(p.post(WrOpcode::kFetchAdd, 1, 0x21));
  ASSERT_TRUE(p.post(WrOpcode::kFetchAdd, 2, 1));
  p.wire.run();
  const auto done = p.a.poll();
  ASSERT_EQ(text(done), "1 2");
  EXPECT_EQ(done[0].opcode, WcOpcode::kFetchAdd);
  EXPECT_EQ(done[0].byte_len, 8u);
  EXPECT_EQ(p.result(1), 0xfffffffffffffff0);
  EXPECT_EQ(p.result(2), 0x11u);  // the sum wraps
  EXPECT_EQ(number_at(p.b, kTarget), 0x12u);
}

TEST(Atomics, CompareSwapSwapsOnlyAnEqualNumber) {
  AtomicPair p;
  number_at(p.b, kTarget) = 5;
  ASSERT_TRUE(p.post(WrOpcode::kCompareSwap, 1, 4, 100));
  ASSERT_TRUE(p.post(WrOpcode::kCompareSwap, 2, 5, 200));
  ASSERT_TRUE(p.post(WrOpcode::kCompareSwap, 3, 5, 300));
  p.wire.run();
  const auto done = p.a.poll();
  ASSERT_EQ(text(done), "1 2 3");
  EXPECT_EQ(done[0].opcode, WcOpcode::kCompareSwap);
  EXPECT_EQ(p.result(1), 5u);
  EXPECT_EQ(p.result(2), 5u);
  EXPECT_EQ(p.result(3), 200u);
  EXPECT_EQ(number_at(p.b, kTarget), 200u);
}

TEST(Atomics, AResultMayFillSeveralElements) {
  AtomicPair p;
  number_at(p.b, kTarget) = 0x0102030405060708;
  const Sge sges[] = {p.a.sge(2000, 3), p.a.sge(3000, 0), p.a.sge(4001, 20)};
  ASSERT_TRUE(p.a.engine.post_send(p.qa, {.wr_id = 1,
                                          .opcode = WrOpcode::kFetchAdd,
                                          .flags = send_flag::kSignaled,
                                          .sges = sges,
                                          .remote_address = p.b.address(kTarget),
                                          .r_key = p.b.mr.rkey}));
  p.wire.run();
  ASSERT_EQ(text(p.a.poll()), "1");
  std::array<std::byte, 8> got{};
  std::copy_n(p.a.memory.begin() + 2000, 3, got.begin());
  std::copy_n(p.a.memory.begin() + 4001, 5, got.begin() + 3);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(got), 0x0102030405060708u);
  EXPECT_EQ(p.a.memory[4006], std::byte{0});
}

// The engine and a thread of the program add to the same number at the same time.
TEST(Atomics, AdditionsAreAtomicWithTheProgramsOwnThreads) {
  constexpr std::uint64_t kTimes = 20'000;
  Host host{7};
  alignas(8) std::uint64_t number = 0;
  std::atomic<bool> started = false;
  std::thread program([&] {
    while (!started.load()) {
    }
    for (std::uint64_t i = 0; i < kTimes; ++i) std::atomic_ref(number).fetch_add(1);
  });
  started = true;
  const std::span<std::byte> at(reinterpret_cast<std::byte*>(&number), 8);
  for (std::uint64_t i = 0; i < kTimes; ++i) {
    execute_atomic(Opcode::kRcFetchAdd, {.swap_or_add = 1}, at);
  }
  program.join();
  EXPECT_EQ(number, 2 * kTimes);
}

// ---- the requester ------------------------------------------------------------------------------

struct RequestingHost : HostUnderTest {
  using HostUnderTest::HostUnderTest;
  void atomic(std::uint64_t id, std::uint32_t flags = 0) {
    post(WrOpcode::kFetchAdd, id, 8, flags);
  }
  void respond_atomic(std::uint32_t psn, std::uint64_t original) {
    wire::TransportPacket packet;
    packet.bth.opcode = Opcode::kRcAtomicAcknowledge;
    packet.bth.psn = Psn{psn};
    packet.aeth = wire::ack(1);
    packet.atomic_ack.original = original;
    deliver(packet, 0);
  }
};

TEST(Atomics, LimitsOutstandingAtomicsToMaxRdAtomic) {
  RequestingHost s({.rd_atomic = 2});
  for (std::uint64_t id = 1; id <= 4; ++id) s.atomic(id);
  EXPECT_EQ(s.out(), (Lines{"FETCH_ADD 1000 A", "FETCH_ADD 1001 A"}));
  s.respond_atomic(1000, 77);
  EXPECT_EQ(number_at(s.host, 0), 77u);
  EXPECT_EQ(s.out(), Lines{"FETCH_ADD 1002 A"});
  s.respond_atomic(1001, 78);
  s.respond_atomic(1002, 79);
  EXPECT_EQ(s.out(), Lines{"FETCH_ADD 1003 A"});
  s.respond_atomic(1003, 80);
  EXPECT_EQ(text(s.host.poll()), "1 2 3 4");
}

TEST(Atomics, ReadsAndAtomicsShareOneLimit) {
  RequestingHost s({.rd_atomic = 1});
  s.post(WrOpcode::kRead, 1, 100);
  s.atomic(2);
  EXPECT_EQ(s.out(), Lines{"READ 1000 100 A"});
  s.response(Opcode::kRcReadResponseOnly, 1000, 100);
  EXPECT_EQ(s.out(), Lines{"FETCH_ADD 1001 A"});
}

TEST(Atomics, AFenceWaitsForAtomics) {
  RequestingHost s;
  s.atomic(1);
  s.post(WrOpcode::kSend, 2, 10, send_flag::kFence);
  EXPECT_EQ(s.out(), Lines{"FETCH_ADD 1000 A"});
  s.respond_atomic(1000, 1);
  EXPECT_EQ(s.out(), Lines{"SEND_ONLY 1001 10 A"});
}

TEST(Atomics, AnAcknowledgementOfALaterRequestRevealsALostResponse) {
  RequestingHost s;
  s.atomic(1);
  s.post(WrOpcode::kSend, 2, 10);
  EXPECT_EQ(s.out(), (Lines{"FETCH_ADD 1000 A", "SEND_ONLY 1001 10 A"}));
  s.acknowledge(1001, wire::ack(2));
  EXPECT_EQ(text(s.host.poll()), "");
  EXPECT_EQ(s.out(), (Lines{"FETCH_ADD 1000 A", "SEND_ONLY 1001 10 A"}));
  s.respond_atomic(1000, 9);
  s.acknowledge(1001, wire::ack(2));
  EXPECT_EQ(text(s.host.poll()), "1 2");
}

TEST(Atomics, IgnoresAResponseOfAnotherKind) {
  RequestingHost s;
  s.atomic(1);
  s.post(WrOpcode::kRead, 2, 8);
  s.out();
  s.response(Opcode::kRcReadResponseOnly, 1000, 8);
  EXPECT_EQ(text(s.host.poll()), "");
  s.respond_atomic(1000, 1);
  EXPECT_EQ(text(s.host.poll()), "1");
  s.respond_atomic(1001, 1);
  EXPECT_EQ(text(s.host.poll()), "");
  EXPECT_EQ(s.host.engine.counters()[Counter::kDropUnexpectedResponse], 2u);
  s.respond_atomic(1000, 1);  // the response is a duplicate
  EXPECT_EQ(s.host.engine.counters()[Counter::kDropUnexpectedResponse], 3u);
  EXPECT_EQ(s.state(), QpState::kRts);
}

TEST(Atomics, AnInvalidAtomicCompletesWithAnError) {
  struct Case {
    Sge sge;
    std::uint8_t rd_atomic;
    const char* completion;
  };
  Host model{1};
  const Sge good = model.sge(0, 8);
  for (const Case& c : {Case{{good.address, 7, good.lkey}, 4, "1:local length error"},
                        Case{{good.address, 8, good.lkey + 1}, 4, "1:local protection error"},
                        Case{{good.address, 8, good.lkey}, 0, "1:local QP operation error"}}) {
    RequestingHost s({.rd_atomic = c.rd_atomic});
    Sge sge = s.host.sge(0, c.sge.length);
    sge.lkey += c.sge.lkey - good.lkey;
    ASSERT_TRUE(s.host.engine.post_send(
        s.qp, {.wr_id = 1, .opcode = WrOpcode::kCompareSwap, .sges = {&sge, 1}}));
    EXPECT_EQ(s.out(), Lines{});
    EXPECT_EQ(text(s.host.poll()), c.completion);
    EXPECT_EQ(s.state(), QpState::kError);
  }
}

TEST(Atomics, AResultElementNeedsLocalWriteAndCannotBeInline) {
  RequestingHost s;
  const MrInfo readable =
      s.host.engine.register_mr(s.host.pd, s.host.address(0), 64, s.host.address(0), 0).value();
  const Sge sge{s.host.address(0), 8, readable.lkey};
  SendRequest request{.wr_id = 1, .opcode = WrOpcode::kFetchAdd, .sges = {&sge, 1}};
  request.flags = send_flag::kInline;
  EXPECT_EQ(s.host.engine.post_send(s.qp, request).error().code, Errc::kInvalidArgument);
  request.flags = 0;
  ASSERT_TRUE(s.host.engine.post_send(s.qp, request));
  s.out();
  EXPECT_EQ(text(s.host.poll()), "1:local protection error");
}

// ---- the responder ------------------------------------------------------------------------------

struct RespondingHost : HostUnderTest {
  explicit RespondingHost(const Options& options = {.mtu = Mtu::k256}) : HostUnderTest(options) {
    host.engine.mark_established(qp).value();
  }
  void request_atomic(Opcode opcode, std::uint32_t psn, wire::AtomicEth operands) {
    wire::TransportPacket packet;
    packet.bth.opcode = opcode;
    packet.bth.psn = Psn{psn};
    packet.bth.acknowledge_request = true;
    packet.atomic = operands;
    deliver(packet, 0);
  }
  wire::AtomicEth operands_at(std::size_t offset, std::uint64_t add = 1) {
    return {.virtual_address = host.address(offset), .r_key = host.mr.rkey, .swap_or_add = add};
  }
  // Returns the packets that the host sends now, as text.  The text of an atomic response ends with
  // the number in it.
  Lines out() {
    Lines lines;
    for (bool more = true; more;) {
      more = host.engine.transmit(burst, now);
      for (const auto& packet : burst.packets()) {
        const auto bytes = burst.transport(packet);
        lines.push_back(text(bytes));
        const auto parsed = wire::parse_transport(bytes).value();
        if (parsed.bth.opcode == Opcode::kRcAtomicAcknowledge) {
          lines.back() += " " + std::to_string(parsed.atomic_ack.original);
        }
      }
      burst.clear();
    }
    return lines;
  }
};

TEST(Atomics, ADuplicateGetsTheStoredResultAndIsNotExecuted) {
  RespondingHost b;
  b.request_atomic(Opcode::kRcFetchAdd, 2000, b.operands_at(0, 5));
  b.request_atomic(Opcode::kRcFetchAdd, 2001, b.operands_at(0, 5));
  EXPECT_EQ(b.out(), (Lines{"ATOMIC_ACK 2000 0", "ATOMIC_ACK 2001 5"}));
  number_at(b.host, 0) = 1000;
  b.request_atomic(Opcode::kRcFetchAdd, 2000, b.operands_at(0, 5));
  b.request_atomic(Opcode::kRcFetchAdd, 2001, b.operands_at(0, 5));
  b.request_atomic(Opcode::kRcFetchAdd, 2000, b.operands_at(0, 5));
  EXPECT_EQ(b.out(), (Lines{"ATOMIC_ACK 2000 0", "ATOMIC_ACK 2001 5"}));
  EXPECT_EQ(number_at(b.host, 0), 1000u);
}

TEST(Atomics, ResponsesKeepTheOrderOfTheRequests) {
  RespondingHost b;
  b.receive(1, 100);
  b.request(Opcode::kRcReadRequest, 2000, 0, true, {b.host.address(0), b.host.mr.rkey, 300});
  b.request_atomic(Opcode::kRcFetchAdd, 2002, b.operands_at(512));
  b.request(Opcode::kRcSendOnly, 2003, 5);
  EXPECT_EQ(b.out(),
            (Lines{"RESP_FIRST 2000 256", "RESP_LAST 2001 44", "ATOMIC_ACK 2002 0", "ACK 2003"}));
}

TEST(Atomics, ADuplicateWithoutAStoredResultGetsNoResponse) {
  constexpr std::uint8_t kRdAtomic = 4;
  RespondingHost b({.mtu = Mtu::k256, .rd_atomic = kRdAtomic});
  constexpr std::uint32_t kAtomics = kRdAtomic + 1;
  for (std::uint32_t i = 0; i < kAtomics; ++i) {
    b.request_atomic(Opcode::kRcFetchAdd, 2000 + i, b.operands_at(0));
    EXPECT_EQ(b.out().size(), 1u);
  }
  b.request_atomic(Opcode::kRcFetchAdd, 2000, b.operands_at(0));
  EXPECT_EQ(b.out(), Lines{});
  b.request_atomic(Opcode::kRcFetchAdd, 2001, b.operands_at(0));
  EXPECT_EQ(b.out(), Lines{"ATOMIC_ACK 2001 1"});
  b.request_atomic(Opcode::kRcFetchAdd, 1990, b.operands_at(0));  // this atomic was never executed
  EXPECT_EQ(b.out(), Lines{});
  EXPECT_EQ(number_at(b.host, 0), kAtomics);
}

// max_dest_rd_atomic may grow in SQD while duplicates arrive.
TEST(Atomics, StoredResultsSurviveALargerMaxDestRdAtomic) {
  RespondingHost b({.mtu = Mtu::k256, .rd_atomic = 2});
  for (std::uint32_t i = 0; i < 3; ++i) {
    b.request_atomic(Opcode::kRcFetchAdd, 2000 + i, b.operands_at(0));
    EXPECT_EQ(b.out().size(), 1u);
  }
  const auto modify = [&](const QpAttributes& target, std::uint32_t mask) {
    return b.host.engine.modify_qp(b.qp, target, mask, b.now);
  };
  ASSERT_TRUE(modify({.state = QpState::kSqd}, attribute::kState));
  ASSERT_TRUE(modify({.state = QpState::kSqd, .max_dest_rd_atomic = 4},
                     attribute::kState | attribute::kMaxDestRdAtomic));
  for (std::uint32_t i = 1; i < 3; ++i) {
    b.request_atomic(Opcode::kRcFetchAdd, 2000 + i, b.operands_at(0));
    EXPECT_EQ(b.out(), Lines{"ATOMIC_ACK " + std::to_string(2000 + i) + " " + std::to_string(i)});
  }
  for (std::uint32_t i = 3; i < 5; ++i) {
    b.request_atomic(Opcode::kRcFetchAdd, 2000 + i, b.operands_at(0));
    EXPECT_EQ(b.out().size(), 1u);
  }
  b.request_atomic(Opcode::kRcFetchAdd, 2001, b.operands_at(0));
  EXPECT_EQ(b.out(), Lines{"ATOMIC_ACK 2001 1"});
  EXPECT_EQ(number_at(b.host, 0), 5u);
}

TEST(Atomics, RefusesMoreAtomicsThanMaxDestRdAtomic) {
  RespondingHost b({.mtu = Mtu::k256, .rd_atomic = 1});
  b.request_atomic(Opcode::kRcFetchAdd, 2000, b.operands_at(0));
  b.request_atomic(Opcode::kRcFetchAdd, 2001, b.operands_at(0));
  EXPECT_EQ(b.out(), (Lines{"ATOMIC_ACK 2000 0", "NAK1 2001"}));
  EXPECT_EQ(b.state(), QpState::kError);
  EXPECT_EQ(number_at(b.host, 0), 1u);
}

TEST(Atomics, RefusesInvalidAtomicsWithoutTouchingMemory) {
  enum class Flaw {
    kMisaligned,
    kMisalignedMemory,
    kBadKey,
    kOutside,
    kNoRightOfRegion,
    kNoRightOfQp,
    kInTheMiddleOfAMessage,
    kZeroDepth
  };
  using enum Flaw;
  struct Case {
    Flaw flaw;
    const char* nak;
    QpEvent::Kind event;
  };
  constexpr auto kRequest = QpEvent::Kind::kRequestError, kAccess = QpEvent::Kind::kAccessError;
  for (const Case& c :
       {Case{kMisaligned, "NAK1 2000", kRequest}, Case{kMisalignedMemory, "NAK1 2000", kRequest},
        Case{kBadKey, "NAK2 2000", kAccess}, Case{kOutside, "NAK2 2000", kAccess},
        Case{kNoRightOfRegion, "NAK2 2000", kAccess}, Case{kNoRightOfQp, "NAK1 2000", kRequest},
        Case{kInTheMiddleOfAMessage, "NAK1 2001", kRequest},
        Case{kZeroDepth, "NAK1 2000", kRequest}}) {
    SCOPED_TRACE(static_cast<int>(c.flaw));
    RespondingHost b(
        {.mtu = Mtu::k256, .rd_atomic = static_cast<std::uint8_t>(c.flaw != kZeroDepth)});
    Engine& engine = b.host.engine;
    b.host.fill(0, 256, 3);
    const std::vector<std::byte> before(b.host.memory.begin(), b.host.memory.begin() + 256);
    wire::AtomicEth operands = b.operands_at(64);
    std::uint32_t psn = 2000;
    if (c.flaw == kMisaligned) operands.virtual_address += 4;
    if (c.flaw == kMisalignedMemory) {
      operands.r_key =
          engine.register_mr(b.host.pd, b.host.address(4), 64, 0x1000, Host::kAllAccess)
              .value()
              .rkey;
      operands.virtual_address = 0x1000;
    }
    if (c.flaw == kBadKey) ++operands.r_key;
    if (c.flaw == kOutside) operands.virtual_address = b.host.address(b.host.memory.size());
    if (c.flaw == kNoRightOfRegion) {
      operands.r_key = engine
                           .register_mr(b.host.pd, b.host.address(0), 256, b.host.address(0),
                                        Host::kAllAccess & ~access::kRemoteAtomic)
                           .value()
                           .rkey;
    }
    if (c.flaw == kNoRightOfQp) {
      QpAttributes a;
      a.access_flags = access::kRemoteWrite | access::kRemoteRead;
      engine.modify_qp(b.qp, a, attribute::kAccessFlags, b.now).value();
    }
    if (c.flaw == kInTheMiddleOfAMessage) {
      b.receive(1, 1000);
      b.request(Opcode::kRcSendFirst, psn++, 256, false);
      std::copy(before.begin(), before.end(), b.host.memory.begin());
    }
    b.request_atomic(Opcode::kRcCompareSwap, psn, operands);
    EXPECT_EQ(b.out(), Lines{c.nak});
    EXPECT_EQ(b.state(), QpState::kError);
    EXPECT_EQ(b.host.events(), (std::vector<Event>{QpEvent{b.qp, 500 + 0x11, Qpn{0x11}, c.event}}));
    EXPECT_TRUE(std::equal(before.begin(), before.end(), b.host.memory.begin()));
  }
}

// Tests the requester's side of a refused atomic.
TEST(Atomics, ARefusedAtomicCompletesWithTheStatusOfTheNak) {
  AtomicPair p;
  ASSERT_TRUE(p.post(WrOpcode::kFetchAdd, 1, 1, 0, kTarget + 1));
  p.wire.run();
  EXPECT_EQ(text(p.a.poll()), "1:remote invalid request");
  EXPECT_EQ(p.state_a(), QpState::kError);
  EXPECT_EQ(p.state_b(), QpState::kError);
}

// Repeats a series of additions.  Each run loses another packet, and each addition must still be
// executed once.
TEST(Atomics, EachAdditionIsExecutedOnceDespiteALoss) {
  constexpr std::uint64_t kAdditions = 6;
  for (std::uint64_t lost = 0; lost < 2 * kAdditions; ++lost) {
    SCOPED_TRACE(lost);
    AtomicPair p;
    p.wire.faults = [lost](std::uint64_t number, auto) {
      return PacketOutcome{.copies = number != lost};
    };
    for (std::uint64_t id = 0; id < kAdditions; ++id) {
      ASSERT_TRUE(p.post(WrOpcode::kFetchAdd, id, 1));
    }
    p.wire.run();
    EXPECT_EQ(text(p.a.poll()), "0 1 2 3 4 5");
    for (std::uint64_t id = 0; id < kAdditions; ++id) EXPECT_EQ(p.result(id), id);
    EXPECT_EQ(number_at(p.b, kTarget), kAdditions);
  }
}

// ---- ATOMIC WRITE -------------------------------------------------------------------------------

TEST(Atomics, AnAtomicWriteStoresEightBytesAtOnce) {
  for (const std::uint32_t flags : {0u, send_flag::kInline}) {
    AtomicPair p;
    number_at(p.a, kResult) = 0x0102030405060708;
    const Sge sge = p.a.sge(kResult, 8);
    p.wire.keep_log = true;
    ASSERT_TRUE(p.a.engine.post_send(p.qa, {.wr_id = 1,
                                            .opcode = WrOpcode::kAtomicWrite,
                                            .flags = flags | send_flag::kSignaled,
                                            .sges = {&sge, 1},
                                            .remote_address = p.b.address(kTarget),
                                            .r_key = p.b.mr.rkey}));
    p.wire.run();
    EXPECT_EQ(p.wire.log, (Lines{"1: ATOMIC_WRITE 1000 8 A", "2: RESP_ONLY 1000 0"}));
    const auto done = p.a.poll();
    ASSERT_EQ(text(done), "1");
    EXPECT_EQ(done[0].opcode, WcOpcode::kAtomicWrite);
    EXPECT_EQ(done[0].byte_len, 8u);
    EXPECT_EQ(number_at(p.b, kTarget), 0x0102030405060708u);
  }
}

struct WriteTarget : RespondingHost {
  using RespondingHost::RespondingHost;
  void write(std::uint32_t psn, std::size_t at, std::size_t bytes = 8, std::uint32_t length = 8) {
    request(Opcode::kRcAtomicWrite, psn, bytes, true, {host.address(at), host.mr.rkey, length});
  }
};

TEST(Atomics, ADuplicateAtomicWriteIsAnsweredAndNotStoredAgain) {
  WriteTarget b;
  b.write(2000, 0);
  EXPECT_EQ(b.out(), Lines{"RESP_ONLY 2000 0"});
  EXPECT_EQ(number_at(b.host, 0), 0x5a5a5a5a5a5a5a5au);
  number_at(b.host, 0) = 1;
  b.write(2000, 0);
  EXPECT_EQ(b.out(), Lines{"RESP_ONLY 2000 0"});
  EXPECT_EQ(number_at(b.host, 0), 1u);
}

TEST(Atomics, RefusesInvalidAtomicWrites) {
  struct Case {
    std::size_t at, bytes;
    std::uint32_t length;
    const char* nak;
  };
  for (const Case& c : {Case{4, 8, 8, "NAK1 2000"}, Case{0, 4, 8, "NAK1 2000"},
                        Case{0, 8, 4, "NAK1 2000"}, Case{0, 0, 0, "NAK1 2000"},
                        Case{0, 16, 16, "NAK1 2000"}, Case{4 << 20, 8, 8, "NAK2 2000"}}) {
    WriteTarget b;
    b.write(2000, c.at, c.bytes, c.length);
    EXPECT_EQ(b.out(), Lines{c.nak});
    EXPECT_EQ(number_at(b.host, 0), 0u);
  }
  WriteTarget b;
  QpAttributes a;
  a.access_flags = access::kRemoteRead | access::kRemoteAtomic;
  ASSERT_TRUE(b.host.engine.modify_qp(b.qp, a, attribute::kAccessFlags, b.now));
  b.write(2000, 0);
  EXPECT_EQ(b.out(), Lines{"NAK1 2000"});
}

TEST(Atomics, AnAtomicWriteMustHaveEightBytes) {
  for (const std::size_t bytes : {0u, 4u, 9u}) {
    RequestingHost s;
    s.post(WrOpcode::kAtomicWrite, 1, bytes);
    EXPECT_EQ(s.out(), Lines{});
    EXPECT_EQ(text(s.host.poll()), "1:local length error");
  }
}

}  // namespace
}  // namespace verbena::hca
