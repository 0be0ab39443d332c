// Measures throughput over a lossy, congested or long network, in virtual time.  These tests do not
// run under sanitizers, which would make them ten times slower.  Other tests run the same code.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "hca/test_pair.h"

namespace verbena::hca {
namespace {

using namespace testing;

constexpr std::uint32_t kMessageBytes = 64 * 1024;

// Models a line that carries one packet after the other, and delays each packet.
struct Line {
  Duration delay{};                  // 0: the network has no such line
  std::uint64_t queued_max = 10000;  // the number of packets that may wait; more packets are lost
  Time free_at{};

  // Returns the time to send a packet at 1 Gbit/s.
  static Duration time_of(std::size_t bytes) {
    return Duration(8 * static_cast<std::int64_t>(bytes));
  }
  PacketOutcome carry(std::size_t bytes, Time now) {
    const Duration waiting_time = std::max(free_at - now, Duration{});
    if (waiting_time > static_cast<std::int64_t>(queued_max) * time_of(1024)) return {.copies = 0};
    free_at = std::max(free_at, now) + time_of(bytes);
    return {.delay = free_at - now + delay};
  }
};

struct Load {
  unsigned senders = 1;  // the number of sending hosts
  unsigned qps = 1;      // QPs of each sending host
  Mtu mtu = Mtu::k1024;
  std::uint64_t inbox_bytes = 212'992;
  Duration service = std::chrono::microseconds(2);
  Ratio loss{};        // the share of packets that are lost, in both directions
  Line line{};         // the line to the sink; packets from the sink have the same delay
  unsigned depth = 4;  // outstanding messages per QP
  Duration time = std::chrono::milliseconds(100);
};

struct IncastResult {
  double packets_per_ms = 0;  // packets of completed messages
  std::uint64_t lost_in_inbox = 0;
  std::uint64_t slowest = 0, fastest = 0;  // messages of the slowest and of the fastest QP
};

// Makes all senders WRITE to one host for the load's time.
IncastResult run(Load load) {
  Options options{.mtu = load.mtu, .timeout = 19};
  Wire wire;
  Random random(7);
  if (load.loss.numerator > 0 || load.line.delay > Duration{}) {
    wire.faults = [&](std::uint64_t, std::span<const std::byte> packet) {
      if (random.chance(load.loss)) return PacketOutcome{.copies = 0};
      if (load.line.delay == Duration{}) return PacketOutcome{};
      constexpr std::size_t kAcknowledgementBytesMax = 64;
      return packet.size() <= kAcknowledgementBytesMax ? PacketOutcome{.delay = load.line.delay}
                                                       : load.line.carry(packet.size(), wire.now);
    };
  }
  Host sink(1);
  wire.attach(sink);
  wire.inboxes[1] = {.capacity_bytes = load.inbox_bytes, .service = load.service};
  std::vector<std::unique_ptr<Host>> senders;
  std::vector<std::vector<QpHandle>> qps(load.senders);
  std::vector<std::uint64_t> done(std::size_t{load.senders} * load.qps);
  const auto post = [&](unsigned s, unsigned q) {
    const Sge sge = senders[s]->sge(0, kMessageBytes);
    senders[s]
        ->engine
        .post_send(qps[s][q], {.wr_id = q,
                               .opcode = WrOpcode::kWrite,
                               .flags = send_flag::kSignaled,
                               .sges = {&sge, 1},
                               .remote_address = sink.address(0),
                               .r_key = sink.mr.rkey})
        .value();
  };
  for (unsigned s = 0; s < load.senders; ++s) {
    senders.push_back(std::make_unique<Host>(2 + s));
    Host& from = *senders[s];
    wire.attach(from);
    for (unsigned q = 0; q < load.qps; ++q) {
      const Qpn sink_qpn{0x100 + s * 256 + q}, sender_qpn{0x1000 + q};
      const QpHandle to = create_connected_qp(sink, options, sink_qpn);
      qps[s].push_back(create_connected_qp(from, options, sender_qpn));
      bring_to_state(sink, to,
                     attributes_for(sink, from, options, sender_qpn, options.psn_b, options.psn_a),
                     QpState::kRts);
      bring_to_state(from, qps[s][q],
                     attributes_for(from, sink, options, sink_qpn, options.psn_a, options.psn_b),
                     QpState::kRts);
      for (unsigned i = 0; i < load.depth; ++i) post(s, q);
    }
  }
  const Time end = wire.now + load.time;
  while (wire.now < end) {
    wire.run(std::chrono::microseconds(20));
    for (unsigned s = 0; s < load.senders; ++s) {
      for (const WorkCompletion& wc : senders[s]->poll()) {
        EXPECT_EQ(wc.status, WcStatus::kSuccess);
        ++done[std::size_t{s} * load.qps + wc.wr_id];
        post(s, static_cast<unsigned>(wc.wr_id));
      }
    }
  }
  IncastResult outcome;
  std::uint64_t messages = 0;
  for (const std::uint64_t n : done) messages += n;
  outcome.packets_per_ms = static_cast<double>(messages) *
                           (kMessageBytes / static_cast<double>(bytes_of(load.mtu))) /
                           (static_cast<double>(load.time.count()) / 1e6);
  outcome.slowest = *std::ranges::min_element(done);
  outcome.fastest = *std::ranges::max_element(done);
  outcome.lost_in_inbox = wire.inboxes[1].lost;
  return outcome;
}

// The initial windows of 16 QPs together are larger than a stock socket buffer, which holds 200
// small packets.
TEST(Incast, SixteenQpsShareOneBufferWithoutCollapse) {
  for (const Mtu mtu : {Mtu::k1024, Mtu::k4096}) {
    const IncastResult one_qp = run({.mtu = mtu});
    EXPECT_EQ(one_qp.lost_in_inbox, 0u);  // a QP alone never fills the buffer
    for (const auto& [senders, qps] : {std::pair(1u, 16u), std::pair(16u, 1u)}) {
      const IncastResult all_qps = run({.senders = senders, .qps = qps, .mtu = mtu});
      EXPECT_GT(all_qps.packets_per_ms, one_qp.packets_per_ms / 2);
      EXPECT_GT(all_qps.lost_in_inbox, 0u);
      EXPECT_GT(all_qps.slowest, all_qps.fastest / 4) << "the slowest QP gets too small a share";
    }
  }
}

TEST(Incast, MoreSendersThanPacketsInTheBufferStillProgress) {
  const IncastResult one_qp = run({.mtu = Mtu::k4096});
  const IncastResult all_qps = run({.senders = 64, .mtu = Mtu::k4096});
  EXPECT_GT(all_qps.packets_per_ms, one_qp.packets_per_ms / 2);
}

TEST(Loss, ThroughputDegradesGracefully) {
  for (const Mtu mtu : {Mtu::k1024, Mtu::k4096}) {
    const auto share = [&](std::uint32_t permille) {
      return run({.mtu = mtu, .loss = {permille, 1000}}).packets_per_ms /
             run({.mtu = mtu}).packets_per_ms;
    };
    EXPECT_GT(share(1), 0.9);
    EXPECT_GT(share(10), 0.7);
    EXPECT_GT(share(100), 0.15);
  }
}

// With a round trip of 10 ms, 128 KiB in flight would use only a tenth of the capacity of the line.
TEST(LongLine, TheWindowGrowsToTheCapacityOfTheLine) {
  const double line_rate =
      1e6 / static_cast<double>(Line::time_of(1100).count());  // packets per ms
  const Load load{.line = {.delay = std::chrono::milliseconds(5)},
                  .depth = 60,
                  .time = std::chrono::milliseconds(500)};
  const IncastResult one_qp = run(load);
  EXPECT_GT(one_qp.packets_per_ms, 0.7 * line_rate);
  EXPECT_EQ(one_qp.lost_in_inbox, 0u);
}

TEST(LongLine, AShortQueueBeforeTheLineDoesNotCollapseTheThroughput) {
  const double line_rate = 1e6 / static_cast<double>(Line::time_of(1100).count());
  const IncastResult one_qp =
      run({.line = {.delay = std::chrono::milliseconds(5), .queued_max = 100},
           .depth = 60,
           .time = std::chrono::seconds(1)});
  EXPECT_GT(one_qp.packets_per_ms, 0.3 * line_rate);
}

TEST(LongLine, SixteenQpsShareALossyLine) {
  const Line line{.delay = std::chrono::milliseconds(5), .queued_max = 500};
  const IncastResult all_qps =
      run({.qps = 16, .line = line, .depth = 20, .time = std::chrono::seconds(1)});
  const double line_rate = 1e6 / static_cast<double>(Line::time_of(1100).count());
  EXPECT_GT(all_qps.packets_per_ms, 0.5 * line_rate);
  EXPECT_GT(all_qps.slowest, all_qps.fastest / 8);
}

}  // namespace
}  // namespace verbena::hca
#endif
