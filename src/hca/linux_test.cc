// Tests against captures of Linux.  The engine replaces one of two Linux machines.  It receives the
// captured packets of the other machine, and must send the same packets as the replaced machine.
// The captures contain behaviours of soft-RoCE that differ from ours.

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "hca/test_pair.h"
#include "wire/icrc.h"
#include "wire/ip.h"
#include "wire/mad.h"
#include "wire/test_captures.h"

namespace verbena::hca {
namespace {

using namespace testing;

constexpr Qpn kQpn{0x11};  // the QPN of both sides in all captures except those of atomics

struct CapturedPacket {
  link::Address address;
  std::vector<std::byte> transport;

  wire::TransportPacket packet() const { return wire::parse_transport(transport).value(); }
};

class LinuxTest : public ::testing::Test {
 protected:
  // Loads a capture.  Its frames have the numbers of tshark, from 1 on.  The last byte of our
  // address is `own_byte`.
  void load_capture(const char* capture, std::uint32_t own_byte) {
    frames = wire::testing::read_pcap(wire::testing::captures() / capture);
    ASSERT_FALSE(frames.empty()) << capture;
    self = wire::ipv4_gid(0x0a4d0000 + own_byte);
    peer = wire::ipv4_gid(0x0a4d0000 + (own_byte == 2 ? 3 : 2));
  }
  CapturedPacket frame(std::size_t number) const {
    const auto parsed = wire::parse_frame(frames.at(number - 1)).value();
    const auto transport = wire::split_icrc(parsed.udp_payload)->bth_to_pad;
    return {{.source = parsed.headers.source,
             .destination = parsed.headers.destination,
             .source_port = parsed.headers.source_port},
            {transport.begin(), transport.end()}};
  }
  // Returns the packets that we must send, as text.
  std::vector<std::string> expected(std::size_t first, std::size_t last) const {
    std::vector<std::string> lines;
    for (std::size_t i = first; i <= last; ++i) {
      EXPECT_EQ(frame(i).address.source, self) << i;
      lines.push_back(text(frame(i).transport));
    }
    return lines;
  }
  void receive_frames(std::size_t first, std::size_t last) {
    for (std::size_t i = first; i <= last; ++i) {
      const CapturedPacket captured = frame(i);
      ASSERT_EQ(captured.address.source, peer) << i;
      EXPECT_FALSE(captured.packet().bth.migration_request) << "soft-RoCE does not set MigReq";
      host.engine.receive({captured.address, captured.transport}, now);
    }
  }
  void connect(Psn own_psn, Psn peer_psn, Qpn qpn = kQpn, std::uint8_t rd_atomic = 4,
               QpType type = QpType::kRc) {
    const Options o{.rd_atomic = rd_atomic, .type = type};
    qp = create_connected_qp(host, o, qpn);
    QpAttributes a = attributes_for(host, host, o, qpn, own_psn, peer_psn);
    a.path.address = {.source = self, .destination = peer, .source_port = 0xc123};
    bring_to_state(host, qp, a, QpState::kRts);
  }
  void post(WrOpcode opcode, std::uint64_t id, std::size_t bytes, wire::Reth remote = {}) {
    const Sge sge = host.sge(0, bytes);
    host.engine
        .post_send(qp, {.wr_id = id,
                        .opcode = opcode,
                        .flags = send_flag::kSignaled,
                        .sges = {&sge, 1},
                        .remote_address = remote.virtual_address,
                        .r_key = remote.r_key})
        .value();
  }
  void receive(std::uint64_t id, std::size_t offset, std::size_t bytes) {
    const Sge sge = host.sge(offset, bytes);
    host.engine.post_recv(qp, {.wr_id = id, .sges = {&sge, 1}}).value();
  }
  // Receives an atomic of the capture.  The key of our region replaces the key of Linux.
  void receive_atomic(std::size_t number) {
    const CapturedPacket captured = frame(number);
    wire::TransportPacket packet = captured.packet();
    packet.atomic.r_key = atomic_key;
    host.engine.receive({captured.address, packet_of(packet, 0)}, now);
  }
  // Expects our packets to be equal to these frames of Linux, except for the MigReq bit, which
  // Linux never sets.
  void expect_frames(std::span<const std::size_t> numbers) {
    std::vector<std::vector<std::byte>> ours;
    for (bool more = true; more;) {
      more = host.engine.transmit(burst, now);
      for (const auto& packet : burst.packets()) {
        const auto bytes = burst.transport(packet);
        ours.emplace_back(bytes.begin(), bytes.end()).at(1) &= ~std::byte{0x40};
      }
      burst.clear();
    }
    ASSERT_EQ(ours.size(), numbers.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      EXPECT_EQ(frame(numbers[i]).address.source, self);
      EXPECT_EQ(ours[i], frame(numbers[i]).transport) << numbers[i];
    }
  }
  std::vector<std::string> out() {
    std::vector<std::string> lines;
    for (bool more = true; more;) {
      more = host.engine.transmit(burst, now);
      for (const auto& packet : burst.packets()) {
        const auto bytes = burst.transport(packet);
        last_sent.assign(bytes.begin(), bytes.end());
        lines.push_back(text(bytes));
      }
      burst.clear();
    }
    return lines;
  }
  QpState state() const { return host.engine.query_qp(qp).value().attributes.state; }

  std::vector<std::vector<std::byte>> frames;
  Gid self, peer;
  Host host{1};
  QpHandle qp;
  link::Burst burst;
  std::vector<std::byte> last_sent;
  std::uint32_t atomic_key = 0;
  Time now{std::chrono::seconds(1)};
};

// In the capture MigReq is 0, and both ends use the same source port.  Our source port differs.
TEST_F(LinuxTest, AnswersAPingPongAsLinuxDoes) {
  load_capture("rxe-rc-pingpong.pcap", 2);
  connect({4433273}, {16223668});
  constexpr std::size_t kRounds = 3, kFramesOfRound = 8;
  for (std::size_t round = 0; round < kRounds; ++round) {
    const std::size_t first = 14 + round * kFramesOfRound;
    EXPECT_EQ(frame(first).address.source_port, frame(first + 3).address.source_port);
    receive(round, 8192, 4096);
    receive_frames(first, first + 2);
    EXPECT_EQ(out(), expected(first + 3, first + 3));
    post(WrOpcode::kSend, 100 + round, 3000);
    EXPECT_EQ(out(), expected(first + 4, first + 6));
    if (round + 1 == kRounds) break;
    receive_frames(first + 7, first + 7);
    EXPECT_EQ(text(host.poll()), std::to_string(round) + " " + std::to_string(100 + round));
  }
  // In the capture Linux sent the last message twice, so three of the four acknowledgements are
  // duplicates.
  receive_frames(40, 43);
  EXPECT_EQ(text(host.poll()), "2 102");
  EXPECT_TRUE(out().empty());
  EXPECT_EQ(state(), QpState::kRts);
}

// Linux sends an RNR NAK, and then a sequence NAK for the next packet.  The requester must ignore
// the sequence NAK.
TEST_F(LinuxTest, ASequenceNakAfterAnRnrNakDoesNotShortenTheDelay) {
  load_capture("rxe-rnr.pcap", 3);
  connect({714559}, {1});
  for (std::uint64_t id = 1; id <= 32; ++id) post(WrOpcode::kSend, id, 64);
  const auto lines = out();
  ASSERT_GE(lines.size(), 4u);
  EXPECT_EQ(lines, expected(24, 24 + lines.size() - 1));
  receive_frames(56, 59);
  EXPECT_EQ(text(host.poll()), "1 2");
  EXPECT_TRUE(out().empty());
  const auto counters = host.engine.counters();
  EXPECT_EQ(counters[Counter::kRnrNaksIn], 1u);
  EXPECT_EQ(counters[Counter::kSequenceNaksIn], 1u);
  EXPECT_EQ(host.engine.deadline(), now + wire::rnr_timer(frame(58).packet().aeth.syndrome & 31));
  now = host.engine.deadline();
  host.engine.on_timer(now);
  const auto again = out();
  ASSERT_FALSE(again.empty());
  EXPECT_EQ(again.front(), expected(60, 60).front());
  receive_frames(63, 63);
  EXPECT_EQ(text(host.poll()), "3");
}

// A packet in the middle of a response was lost.  Linux answers the repeated request with a MIDDLE
// packet.
TEST_F(LinuxTest, AcceptsAResponseToARepeatedReadWithoutAFirstPacket) {
  load_capture("rxe-rping-lossy.pcap", 2);
  connect({7917046}, {1});
  post(WrOpcode::kRead, 1, 3000, frame(165).packet().reth);
  EXPECT_EQ(out(), expected(165, 165));
  receive_frames(166, 167);
  EXPECT_EQ(out(), expected(168, 168));
  EXPECT_EQ(wire::parse_transport(last_sent)->reth, frame(168).packet().reth);
  ASSERT_EQ(frame(169).packet().bth.opcode, wire::Opcode::kRcReadResponseMiddle);
  receive_frames(169, 170);
  EXPECT_EQ(text(host.poll()), "1");
  std::size_t at = 0;
  for (const std::size_t number : {166u, 169u, 170u}) {
    const CapturedPacket captured = frame(number);
    for (const std::byte byte : captured.packet().payload) EXPECT_EQ(host.memory[at++], byte);
  }
  EXPECT_EQ(at, 3000u);
}

// Lists the frames in a capture of ib_atomic_bw: five requests of 10.77.0.3, and five responses of
// 10.77.0.2.
struct Atomics {
  const char* capture;
  WrOpcode opcode;
  std::uint32_t psn;
  std::array<std::size_t, 5> requests, answers;
};
constexpr Atomics kAtomics[] = {{"rxe-atomic-cas.pcap",
                                 WrOpcode::kCompareSwap,
                                 4727179,
                                 {45, 46, 47, 49, 52},
                                 {48, 50, 51, 53, 54}},
                                {"rxe-atomic-faa.pcap",
                                 WrOpcode::kFetchAdd,
                                 8841171,
                                 {45, 46, 47, 48, 50},
                                 {49, 51, 52, 53, 54}}};

TEST_F(LinuxTest, SendsAtomicsAsLinuxDoes) {
  for (const Atomics& c : kAtomics) {
    SCOPED_TRACE(c.capture);
    load_capture(c.capture, 3);
    connect({c.psn}, {1}, Qpn{0x12}, 5);
    for (std::size_t i = 0; i < c.requests.size(); ++i) {
      const wire::AtomicEth operands = frame(c.requests[i]).packet().atomic;
      const bool swaps = c.opcode == WrOpcode::kCompareSwap;
      const Sge sge = host.sge(8 * i, 8);
      ASSERT_TRUE(
          host.engine.post_send(qp, {.wr_id = i,
                                     .opcode = c.opcode,
                                     .flags = send_flag::kSignaled,
                                     .sges = {&sge, 1},
                                     .remote_address = operands.virtual_address,
                                     .r_key = operands.r_key,
                                     .compare_add = swaps ? operands.compare : operands.swap_or_add,
                                     .swap = swaps ? operands.swap_or_add : 0}));
    }
    expect_frames(c.requests);
    for (std::size_t i = 0; i < c.answers.size(); ++i) {
      const CapturedPacket answer = frame(c.answers[i]);
      receive_frames(c.answers[i], c.answers[i]);
      std::uint64_t got = 0;
      std::memcpy(&got, host.memory.data() + 8 * i, 8);
      EXPECT_EQ(got, answer.packet().atomic_ack.original);
    }
    EXPECT_EQ(text(host.poll()), "0 1 2 3 4");
    host.engine.destroy_qp(qp).value();
  }
}

TEST_F(LinuxTest, RespondsToAtomicsAsLinuxDoes) {
  for (const Atomics& c : kAtomics) {
    SCOPED_TRACE(c.capture);
    load_capture(c.capture, 2);
    connect({1}, {c.psn}, Qpn{0x12}, 5);
    const std::uint64_t first = frame(c.requests[0]).packet().atomic.virtual_address;
    atomic_key = host.engine.register_mr(host.pd, host.address(0), 4096, first, Host::kAllAccess)
                     .value()
                     .rkey;
    for (std::size_t i = 0; i < c.requests.size(); ++i) {
      const std::uint64_t before = frame(c.answers[i]).packet().atomic_ack.original;
      const std::uint64_t at = frame(c.requests[i]).packet().atomic.virtual_address - first;
      std::memcpy(host.memory.data() + at, &before, 8);
    }
    for (const std::size_t number : c.requests) receive_atomic(number);
    expect_frames(c.answers);
    if (c.opcode == WrOpcode::kFetchAdd) {
      std::uint64_t sum = 0;
      std::memcpy(&sum, host.memory.data(), 8);
      EXPECT_EQ(sum, frame(c.answers[0]).packet().atomic_ack.original + 1);
    }
    host.engine.destroy_qp(qp).value();
  }
}

// In the capture, ibv_uc_pingpong sends one message after the other in alternating directions.
// There are no other packets.
TEST_F(LinuxTest, RunsAUcPingPongAsLinuxDoes) {
  load_capture("rxe-uc-pingpong.pcap", 2);
  connect({1955438}, {1955438}, kQpn, 0, QpType::kUc);
  constexpr std::size_t kBytes = 3000, kRounds = 2;
  for (std::size_t round = 0; round < kRounds; ++round) {
    const std::size_t first = 15 + 6 * round;
    receive(round, 8192, 4096);
    receive_frames(first, first + 2);
    const auto got = host.poll();
    ASSERT_EQ(text(got), std::to_string(round));
    EXPECT_EQ(got[0].byte_len, kBytes);
    std::fill_n(host.memory.begin(), kBytes, std::byte{0x7b});
    EXPECT_TRUE(
        std::equal(host.memory.begin(), host.memory.begin() + kBytes, host.memory.begin() + 8192));
    post(WrOpcode::kSend, 100 + round, kBytes);
    const std::size_t ours[] = {first + 3, first + 4, first + 5};
    expect_frames(ours);
    EXPECT_EQ(text(host.poll()), std::to_string(100 + round));
  }
}

// Linux sets AckReq in datagrams.  The engine must accept such datagrams, and must not acknowledge
// them.
TEST_F(LinuxTest, DatagramsAreNotAcknowledged) {
  load_capture("rxe-rping-lossy.pcap", 2);
  qp = host.engine
           .create_qp({.type = QpType::kUd,
                       .pd = host.pd,
                       .send_cq = host.cq,
                       .recv_cq = host.cq,
                       .caps = {.max_send_wr = 1, .max_recv_wr = 1, .max_recv_sge = 1}},
                      wire::kGsiQpn)
           .value();
  QpAttributes a{.state = QpState::kInit, .qkey = wire::kGsiQkey};
  using namespace attribute;
  host.engine.modify_qp(qp, a, kState | kPkeyIndex | kPort | kQkey, now).value();
  a.state = QpState::kRtr;
  host.engine.modify_qp(qp, a, kState, now).value();
  a.state = QpState::kRts;
  host.engine.modify_qp(qp, a, kState | kSqPsn, now).value();
  receive(1, 0, 40 + wire::kMadBytes);
  EXPECT_TRUE(frame(3).packet().bth.acknowledge_request);
  receive_frames(3, 3);
  EXPECT_EQ(text(host.poll()), "1");
  EXPECT_TRUE(out().empty());
}

}  // namespace
}  // namespace verbena::hca
