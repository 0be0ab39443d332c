// Runs random requests over a random wire, and compares completions and every byte of memory with a
// model.  The seed determines the whole run.  While the wire loses packets, no request may fail.
// When the wire loses none, every request must complete within a bounded time.  A second test
// injects errors, to show that the checks detect them.
//
// VB_SEED=17 runs only the seed 17.  VB_SEEDS=1000 runs 1000 seeds.

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "hca/operations.h"
#include "hca/test_pair.h"
#include "sim/seeds.h"

namespace verbena::hca {
namespace {

using namespace testing;

constexpr std::size_t kRequests = 16;    // requests of one QP in one direction
constexpr std::size_t kSlot = 8 * 1024;  // the memory of one request
constexpr std::size_t kQps = 3;
constexpr std::size_t kArea = kRequests * kSlot;  // the memory of one QP
constexpr std::size_t kSources = 0, kTargets = kQps * kArea, kReceives = 2 * kQps * kArea;
// The results of READs and atomics begin here.
constexpr std::size_t kResults = 3 * kQps * kArea;
// The targets of atomics begin here: one number for each end.
constexpr std::size_t kAtomicTargets = 4 * kQps * kArea;
constexpr std::size_t kMemory = kAtomicTargets + 2 * kQps * 8;

// Stores the state of one end of a connection: its posts and its completions.
struct End {
  Host& host;
  Host& peer;
  QpHandle qp{};
  std::size_t base = 0;          // the offset of this end's area
  std::size_t next_request = 0;  // the index of the next request to be posted
  std::size_t completed = 0;
  std::size_t receives_posted = 0;
  std::size_t received = 0;
  std::vector<WrOpcode> opcodes{};
  std::vector<std::uint32_t> sizes{};
  // The requests of this end that need a receive of the peer.
  std::vector<std::size_t> requests_with_receive{};
  std::uint64_t atomic_value = 0;          // the target number after all posted atomics
  std::vector<std::uint64_t> originals{};  // the target number before each atomic
  std::vector<std::uint32_t> keys{};       // keys of windows that requests bind or invalidate
  // The keys of bound windows that this end may invalidate: its own windows, and those of the peer.
  std::vector<std::uint32_t> own_window_keys{};
  std::vector<std::uint32_t> peer_window_keys{};
};

// Selects the error that is injected in the middle of a run.
enum class InjectedError : std::uint8_t {
  kNothing,
  kPayload,       // changes a byte of packets that carry data
  kStrayWrite,    // changes a byte of memory that no request names
  kAtomicTarget,  // changes the target of atomics
  kLost,          // loses a completion
  kDuplicated,    // returns a completion twice
  kSwapped,       // exchanges the ids of two completions
  kStatus,        // makes a completion fail
  kLength,        // changes the length in the completion of a receive
};

class Trial {
 public:
  explicit Trial(std::uint64_t seed, InjectedError error = InjectedError::kNothing)
      : random_(seed), error_(error) {
    wire_.attach(a_);
    wire_.attach(b_);
    ends_.reserve(2 * kQps);
    for (std::size_t i = 0; i < kQps; ++i) connect(i);
    for (Host* host : {&a_, &b_}) host->fill(kSources, kQps * kArea, host == &a_ ? 1 : 99);
    for (Host* host : {&a_, &b_}) host->fill(kTargets, kQps * kArea, host == &a_ ? 2 : 98);
    for (Host* host : {&a_, &b_}) models_.emplace_back(host->memory.begin(), host->memory.end());
    if (error_ == InjectedError::kPayload) {
      wire_.tamper = [this](std::span<std::byte> bytes) {
        const auto packet = wire::parse_transport(bytes);
        // Changes all packets from the 20th on, because a single packet may be a duplicate.
        if (!packet || packet->payload.empty() || ++opportunities_ < 20) return;
        bytes[bytes.size() - packet->bth.pad_count - 1] ^= std::byte{1};
      };
    }
    const Ratio loss{static_cast<std::uint32_t>(random_.below(8)), 100};
    const Ratio duplicates{static_cast<std::uint32_t>(random_.below(6)), 100};
    const Ratio delays{static_cast<std::uint32_t>(random_.below(10)), 100};
    wire_.faults = [this, loss, duplicates, delays](auto, auto) {
      if (random_.chance(loss)) return PacketOutcome{.copies = 0};
      PacketOutcome fate;
      if (random_.chance(duplicates)) fate.copies = 2;
      if (random_.chance(delays)) fate.delay = Duration(random_.below(60'000));
      return fate;
    };
  }

  void run_with_faults() {
    for (int step = 0; step < 60; ++step) {
      for (End& end : ends_) post_some(end);
      wire_.run(Duration(random_.below(300'000)));
      poll();
    }
  }
  void run_without_faults() {
    wire_.faults = nullptr;
    for (int step = 0; step < 200 && !all_done(); ++step) {
      for (End& end : ends_) post_some(end);
      wire_.run(std::chrono::milliseconds(5));
      poll();
    }
  }
  void check() {
    if (error_ == InjectedError::kStrayWrite) a_.memory[kReceives + kArea - 1] ^= std::byte{1};
    if (error_ == InjectedError::kAtomicTarget)
      b_.memory[atomic_target_offset(ends_[0])] ^= std::byte{1};
    for (End& end : ends_) {
      EXPECT_EQ(end.completed, kRequests);
      EXPECT_EQ(word(end.peer, atomic_target_offset(end)), end.atomic_value);
      EXPECT_EQ(end.received, other(end).requests_with_receive.size());
      for (std::size_t i = 0; i < kRequests; ++i) check_data(end, i);
      apply_to_model(end);
    }
    for (Host* host : {&a_, &b_}) EXPECT_TRUE(std::ranges::equal(host->memory, model(*host)));
  }

 private:
  void connect(std::size_t i) {
    Options o;
    o.mtu = static_cast<Mtu>(1 + random_.below(5));
    o.psn_a = Psn{random_.chance({1, 3}) ? 0xfffff0 : random_.next32() & kMask24};
    o.psn_b = Psn{random_.next32() & kMask24};
    o.timeout = 1;
    o.min_rnr_timer = static_cast<std::uint8_t>(1 + random_.below(6));
    o.rd_atomic = static_cast<std::uint8_t>(1 + random_.below(4));
    o.signal_all = true;
    const auto n = static_cast<std::uint32_t>(i);
    const Qpn na{0x100 + n}, nb{0x200 + n};
    End a{.host = a_, .peer = b_, .qp = create_connected_qp(a_, o, na), .base = i * kArea};
    End b{.host = b_, .peer = a_, .qp = create_connected_qp(b_, o, nb), .base = i * kArea};
    bring_to_state(a_, a.qp, attributes_for(a_, b_, o, nb, o.psn_a, o.psn_b), QpState::kRts);
    bring_to_state(b_, b.qp, attributes_for(b_, a_, o, na, o.psn_b, o.psn_a), QpState::kRts);
    ends_.push_back(a);
    ends_.push_back(b);
  }
  End& other(const End& end) { return ends_[static_cast<std::size_t>(&end - ends_.data()) ^ 1]; }

  // Posts a few requests and a few receives.
  void post_some(End& end) {
    for (auto count = random_.below(3); count > 0 && end.next_request < kRequests; --count)
      post(end);
    for (auto count = random_.below(3); count > 0 && end.receives_posted < kRequests; --count) {
      const std::size_t i = end.receives_posted++;
      const Sge sge = end.host.sge(kReceives + end.base + i * kSlot, kSlot);
      ASSERT_TRUE(end.host.engine.post_recv(end.qp, {.wr_id = id(end, i), .sges = {&sge, 1}}));
    }
  }
  void post(End& end) {
    const std::size_t i = end.next_request++;
    const WrOpcode opcode = next_opcode(end);
    end.opcodes.push_back(opcode);
    end.originals.push_back(end.atomic_value);
    end.keys.push_back(0);
    if (is_atomic(opcode)) {
      post_atomic(end, i, opcode);
      return;
    }
    if (is_local(opcode)) {
      post_local(end, i, opcode);
      return;
    }
    const auto bytes =
        opcode == WrOpcode::kAtomicWrite
            ? kAtomicBytes
            : static_cast<std::uint32_t>(random_.below(random_.chance({1, 4}) ? kSlot : 600));
    if (opcode == WrOpcode::kSendInvalidate) end.keys[i] = remove_any(end.peer_window_keys);
    const auto cut = static_cast<std::uint32_t>(random_.below(bytes + 1));
    const std::size_t local =
        (opcode == WrOpcode::kRead ? kResults : kSources) + end.base + i * kSlot;
    const Sge sges[] = {end.host.sge(local, cut), end.host.sge(local + cut, bytes - cut)};
    end.sizes.push_back(bytes);
    if (needs_receive(opcode)) end.requests_with_receive.push_back(i);
    const std::size_t remote = kTargets + end.base + i * kSlot;
    ASSERT_TRUE(end.host.engine.post_send(
        end.qp, {.wr_id = id(end, i),
                 .opcode = opcode,
                 .sges = sges,
                 .immediate = static_cast<std::uint32_t>(i),
                 .remote_address = end.peer.address(remote),
                 .r_key = opcode == WrOpcode::kSendInvalidate ? end.keys[i] : end.peer.mr.rkey}));
  }
  WrOpcode next_opcode(const End& end) {
    using enum WrOpcode;
    static constexpr WrOpcode kKinds[] = {
        kSend,       kSendImm,    kWrite,           kWriteImm,
        kRead,       kFetchAdd,   kCompareSwap,     kAtomicWrite,
        kBindWindow, kBindWindow, kLocalInvalidate, kSendInvalidate};
    const WrOpcode opcode = kKinds[random_.below(std::size(kKinds))];
    // There may be no window to invalidate.
    if (opcode == kLocalInvalidate && end.own_window_keys.empty()) return kSend;
    if (opcode == kSendInvalidate && end.peer_window_keys.empty()) return kSend;
    return opcode;
  }
  std::uint32_t remove_any(std::vector<std::uint32_t>& keys) {
    std::swap(keys[random_.below(keys.size())], keys.back());
    const std::uint32_t key = keys.back();
    keys.pop_back();
    return key;
  }
  // Binds a new type 2 window, or invalidates one.  Each window is bound once, and invalidated at
  // most once, by this end or by the peer.
  void post_local(End& end, std::size_t i, WrOpcode opcode) {
    Engine& engine = end.host.engine;
    end.sizes.push_back(0);
    end.keys[i] = opcode == WrOpcode::kBindWindow
                      ? engine.create_mw(end.host.pd, WindowType::kTwo).value().rkey
                      : remove_any(end.own_window_keys);
    ASSERT_TRUE(engine.post_send(end.qp, {.wr_id = id(end, i),
                                          .opcode = opcode,
                                          .r_key = end.keys[i],
                                          .bind = {.address = end.host.address(kTargets),
                                                   .length = kArea,
                                                   .lkey = end.host.mr.lkey,
                                                   .access_flags = access::kRemoteRead}}));
  }
  // Atomics are executed once and in order, so the result of each is known when it is posted.
  void post_atomic(End& end, std::size_t i, WrOpcode opcode) {
    const bool equal = random_.chance({3, 4});
    const std::uint64_t operand = random_.next(), swap = random_.next();
    const std::uint64_t compare = equal ? end.atomic_value : operand;
    const Sge sge = end.host.sge(kResults + end.base + i * kSlot, 8);
    end.sizes.push_back(8);
    ASSERT_TRUE(end.host.engine.post_send(
        end.qp, {.wr_id = id(end, i),
                 .opcode = opcode,
                 .sges = {&sge, 1},
                 .remote_address = end.peer.address(atomic_target_offset(end)),
                 .r_key = end.peer.mr.rkey,
                 .compare_add = opcode == WrOpcode::kFetchAdd ? operand : compare,
                 .swap = swap}));
    if (opcode == WrOpcode::kFetchAdd) end.atomic_value += operand;
    if (opcode == WrOpcode::kCompareSwap && equal) end.atomic_value = swap;
  }
  std::size_t atomic_target_offset(const End& end) const {
    return kAtomicTargets + 8 * static_cast<std::size_t>(&end - ends_.data());
  }
  static std::uint64_t word(const Host& host, std::size_t offset) {
    std::uint64_t value = 0;
    std::memcpy(&value, host.memory.data() + offset, 8);
    return value;
  }
  std::uint64_t id(const End& end, std::size_t i) const {
    return static_cast<std::uint64_t>(&end - ends_.data()) << 32 | i;
  }

  // Applies all requests of this end to the model of both memories.
  void apply_to_model(const End& end) {
    const auto copy = [&](const Host& from, std::size_t at, const Host& to, std::size_t where,
                          std::size_t bytes) {
      std::copy_n(model(from).begin() + static_cast<std::ptrdiff_t>(at), bytes,
                  model(to).begin() + static_cast<std::ptrdiff_t>(where));
    };
    const auto write = [&](const Host& host, std::size_t where, std::uint64_t value) {
      std::memcpy(model(host).data() + where, &value, sizeof value);
    };
    std::size_t receive = 0;
    for (std::size_t i = 0; i < end.opcodes.size(); ++i) {
      const std::size_t own = end.base + i * kSlot;
      const WrOpcode opcode = end.opcodes[i];
      if (opcode == WrOpcode::kRead) {
        copy(end.peer, kTargets + own, end.host, kResults + own, end.sizes[i]);
      } else if (is_atomic(opcode)) {
        write(end.host, kResults + own, end.originals[i]);
      } else if (opcode == WrOpcode::kWrite || opcode == WrOpcode::kWriteImm ||
                 opcode == WrOpcode::kAtomicWrite) {
        copy(end.host, kSources + own, end.peer, kTargets + own, end.sizes[i]);
      } else if (needs_receive(opcode)) {
        copy(end.host, kSources + own, end.peer, kReceives + end.base + receive * kSlot,
             end.sizes[i]);
      }
      receive += needs_receive(opcode) ? 1 : 0;
    }
    write(end.peer, atomic_target_offset(end), end.atomic_value);
  }
  std::vector<std::byte>& model(const Host& host) { return models_[&host == &a_ ? 0 : 1]; }

  // Returns true at the one call at which the error must be injected.
  bool must_inject_now() { return error_ != InjectedError::kNothing && ++opportunities_ == 20; }
  void inject_error(std::vector<WorkCompletion>& done) {
    if (done.size() < 2 || error_ < InjectedError::kLost || !must_inject_now()) return;
    switch (error_) {
      case InjectedError::kLost: done.erase(done.begin()); break;
      case InjectedError::kDuplicated: done.insert(done.begin(), done.front()); break;
      case InjectedError::kSwapped: std::swap(done.front().wr_id, done.back().wr_id); break;
      case InjectedError::kStatus: done.front().status = WcStatus::kRemoteAccessError; break;
      default: {
        const auto received = std::ranges::find(done, WcOpcode::kReceive, &WorkCompletion::opcode);
        if (received != done.end()) {
          received->byte_len += 1;
        } else {
          --opportunities_;  // tries again at the next call
        }
      }
    }
  }

  // Polls both hosts, and checks that each request completes once and in order.
  void poll() {
    for (Host* host : {&a_, &b_}) {
      auto done = host->poll();
      inject_error(done);
      for (const auto& wc : done) {
        ASSERT_EQ(wc.status, WcStatus::kSuccess) << to_string(wc.status);
        End& end = ends_[wc.wr_id >> 32];
        ASSERT_EQ(&end.host, host);
        const std::size_t i = wc.wr_id & 0xffffffff;
        if (static_cast<unsigned>(wc.opcode) < 128) {
          ASSERT_EQ(i, end.completed++);
          if (wc.opcode == WcOpcode::kBindWindow) {
            (random_.chance({1, 2}) ? end.own_window_keys : other(end).peer_window_keys)
                .push_back(end.keys[i]);
          }
        } else {
          ASSERT_EQ(i, end.received++);
          check_receive(end, i, wc);
        }
      }
    }
  }
  void check_receive(End& end, std::size_t i, const WorkCompletion& wc) {
    const End& sender = other(end);
    ASSERT_LT(i, sender.requests_with_receive.size());
    const std::size_t request = sender.requests_with_receive[i];
    EXPECT_EQ(wc.byte_len, sender.sizes[request]);
    const WrOpcode opcode = sender.opcodes[request];
    const bool has_immediate = opcode == WrOpcode::kSendImm || opcode == WrOpcode::kWriteImm;
    const bool invalidates = opcode == WrOpcode::kSendInvalidate;
    EXPECT_EQ(wc.flags, has_immediate ? wc_flag::kWithImm
                        : invalidates ? wc_flag::kWithInvalidate
                                      : 0);
    EXPECT_EQ(wc.invalidated_r_key, sender.keys[request]);
    EXPECT_EQ(wc.immediate, has_immediate ? request : 0);
    if (sender.opcodes[request] == WrOpcode::kWriteImm) return;
    expect_same(sender.host, kSources + end.base + request * kSlot, end.host,
                kReceives + end.base + i * kSlot, wc.byte_len);
  }
  void check_data(const End& end, std::size_t i) {
    const std::size_t own = end.base + i * kSlot;
    if (end.opcodes[i] == WrOpcode::kRead) {
      expect_same(end.host, kResults + own, end.peer, kTargets + own, end.sizes[i]);
    } else if (is_atomic(end.opcodes[i])) {
      EXPECT_EQ(word(end.host, kResults + own), end.originals[i]);
    } else if (end.opcodes[i] == WrOpcode::kWrite || end.opcodes[i] == WrOpcode::kWriteImm ||
               end.opcodes[i] == WrOpcode::kAtomicWrite) {
      expect_same(end.host, kSources + own, end.peer, kTargets + own, end.sizes[i]);
    }
  }
  void expect_same(const Host& a, std::size_t at_a, const Host& b, std::size_t at_b,
                   std::size_t bytes) {
    EXPECT_TRUE(std::equal(a.memory.begin() + static_cast<std::ptrdiff_t>(at_a),
                           a.memory.begin() + static_cast<std::ptrdiff_t>(at_a + bytes),
                           b.memory.begin() + static_cast<std::ptrdiff_t>(at_b)));
  }
  bool all_done() {
    return std::ranges::all_of(ends_, [&](const End& end) {
      return end.completed == kRequests &&
             end.received == other(end).requests_with_receive.size() &&
             end.next_request == kRequests;
    });
  }

  Random random_;
  InjectedError error_;
  unsigned opportunities_ = 0;  // the packets or polls that could have had the error so far
  Wire wire_;
  Host a_{1, kMemory}, b_{2, kMemory};
  std::vector<std::vector<std::byte>> models_;  // models of a's and b's memory
  std::vector<End> ends_;
};

TEST(Chaos, EveryRequestCompletesOnceInOrderWithItsBytes) {
  for (const std::uint64_t seed : sim::seeds(200)) {
    SCOPED_TRACE(::testing::Message() << "VB_SEED=" << seed);
    Trial run(seed);
    run.run_with_faults();
    if (!::testing::Test::HasFailure()) run.run_without_faults();
    if (!::testing::Test::HasFailure()) run.check();
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
}

TEST(Chaos, ChecksDetectEachInjectedError) {
  for (const InjectedError error :
       {InjectedError::kPayload, InjectedError::kStrayWrite, InjectedError::kAtomicTarget,
        InjectedError::kLost, InjectedError::kDuplicated, InjectedError::kSwapped,
        InjectedError::kStatus, InjectedError::kLength}) {
    for (std::uint64_t seed = 1; seed <= (sim::kSanitized ? 2 : 5); ++seed) {
      ::testing::TestPartResultArray found;
      {
        const ::testing::ScopedFakeTestPartResultReporter reporter(&found);
        Trial run(seed, error);
        run.run_with_faults();
        run.run_without_faults();
        run.check();
      }
      EXPECT_GT(found.size(), 0) << "error " << static_cast<int>(error) << ", seed " << seed;
    }
  }
}

}  // namespace
}  // namespace verbena::hca
