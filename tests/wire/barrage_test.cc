#include "barrage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "wire/cm.h"
#include "wire/icrc.h"
#include "wire/mad.h"

namespace verbena::wire_bench {
namespace {

using Bytes = std::vector<std::byte>;

constexpr const char* kFacts =
    "victim 10.78.0.1 fd78::1\n"
    "peer 10.78.0.2 fd78::2\n"
    "stranger 10.77.0.1 fd77::1\n"
    "rc 0x5010 0x700000 100 200 1024 4\n"
    "rc 0x5011 0x700001 0xfffffe 0xfffffe 256 6\n"
    "ud 0x5012 0x700002 0 0 4096 4\n"
    "absent 0x6001\n"
    "spared 0x7001\n"
    "memory 0x7f0000001000 65536 0x1234\n"
    "qkey 0x11111111\n"
    "port 7471\n"
    "spared_port 7174\n"
    "unknown lines are ignored\n";

Target make_target() {
  Target target;
  std::string problem;
  EXPECT_TRUE(target.read(kFacts, problem)) << problem;
  return target;
}

// Returns a frame to mutate: a SEND of 64 bytes.
Bytes captured_frame() {
  wire::TransportPacket packet;
  packet.bth.opcode = wire::Opcode::kRcSendOnly;
  Bytes frame(14 + 20 + 8 + 12 + 64 + 4);
  wire::write_frame_headers(frame, {.source = wire::ipv4_gid(1), .destination = wire::ipv4_gid(2)},
                            12 + 64 + 4);
  wire::write_headers(std::span(frame).subspan(42), packet);
  return frame;
}

Bytes copy(const Barrage::Packet& packet) { return {packet.frame.begin(), packet.frame.end()}; }

// Returns the transport packet of a frame whose ICRC is right.
std::optional<Bytes> transport_packet(std::span<const std::byte> bytes) {
  const auto frame = wire::parse_frame(bytes);
  if (!frame || frame->headers.destination_port != wire::kRoceUdpPort) return std::nullopt;
  const auto split = wire::split_icrc(frame->udp_payload);
  if (!split || wire::icrc(wire::icrc_inputs(frame->headers), split->bth_to_pad) != split->icrc) {
    return std::nullopt;
  }
  return Bytes(split->bth_to_pad.begin(), split->bth_to_pad.end());
}

TEST(Barrage, TheSameSeedAndNumberGiveTheSameFrame) {
  const Target target = make_target();
  Barrage first(7, target, {captured_frame()}), second(7, target, {captured_frame()}),
      other(8, target, {captured_frame()});
  int different = 0;
  for (std::uint64_t number = 0; number < 2000; ++number) {
    const Bytes frame = copy(first.packet_at(number));
    ASSERT_EQ(frame, copy(second.packet_at(number))) << number;
    different += frame != copy(other.packet_at(number)) ? 1 : 0;
  }
  EXPECT_GT(different, 1900);
  // A frame does not depend on the frames before it.
  const Bytes again = copy(first.packet_at(1234));
  EXPECT_EQ(again, copy(second.packet_at(1234)));
}

TEST(Barrage, OnePassOfTheGridSendsEachOpcodeToEachQp) {
  const Target target = make_target();
  Barrage barrage(1, target, {});
  std::map<unsigned, std::set<std::uint32_t>> reached;
  const std::uint64_t slots = target.qps.size() + target.absent.size() + target.spared.size() + 6;
  // 8 of 20 runs are of kind grid, so these packets contain two passes of the grid.
  for (std::uint64_t number = 0; number < 2 * 256 * slots * 20 / 8 + 400; ++number) {
    const auto packet = barrage.packet_at(number);
    if (packet.kind != Barrage::Kind::kGrid) continue;
    const auto frame = wire::parse_frame(packet.frame);
    ASSERT_TRUE(frame.has_value()) << number;
    const auto bth = wire::decode<wire::Bth>(frame->udp_payload);
    if (!bth) continue;
    reached[static_cast<unsigned>(bth->opcode)].insert(bth->destination_qpn.value);
  }
  ASSERT_EQ(reached.size(), 256u);
  for (const auto& [opcode, qpns] : reached) {
    for (const auto& qp : target.qps) EXPECT_TRUE(qpns.contains(qp.qpn.value)) << opcode;
    EXPECT_TRUE(qpns.contains(1) && qpns.contains(0) && qpns.contains(0xffffff)) << opcode;
    EXPECT_TRUE(qpns.contains(0x6001)) << opcode;
  }
}

TEST(Barrage, TheGridUsesEveryLength) {
  const Target target = make_target();
  Barrage barrage(1, target, {});
  const std::uint64_t slots = target.qps.size() + target.absent.size() + target.spared.size() + 6;
  // A packet with this opcode has no headers after the BTH, so its length is that of the pass.
  constexpr std::uint64_t kUnknownOpcode = 0x80;
  ASSERT_FALSE(wire::is_known(static_cast<wire::Opcode>(kUnknownOpcode)));
  std::set<std::uint64_t> lengths;
  // Takes one packet of each pass.  A pass has 256 * slots packets of the grid, and 8 of 20 runs
  // are of kind grid.
  for (std::uint64_t pass = 0; pass < 2 * (Barrage::kBodyBytesMax + 1); ++pass) {
    const std::uint64_t run = (pass * 256 * slots + kUnknownOpcode) / Barrage::kPacketsPerRun;
    ASSERT_EQ(run % 8, 0u);  // so the packet is in the first run of a cycle
    const auto packet = barrage.packet_at(run / 8 * 20 * Barrage::kPacketsPerRun);
    ASSERT_EQ(packet.kind, Barrage::Kind::kGrid);
    const auto frame = wire::parse_frame(packet.frame);
    ASSERT_TRUE(frame.has_value()) << pass;
    const auto bth = wire::decode<wire::Bth>(frame->udp_payload);
    ASSERT_TRUE(bth && static_cast<std::uint64_t>(bth->opcode) == kUnknownOpcode) << pass;
    const std::uint64_t sent =
        frame->udp_payload.size() - wire::kSize<wire::Bth> - wire::kIcrcBytes;
    const std::uint64_t length = Barrage::grid_length(pass);
    EXPECT_TRUE(sent == length || sent == length + wire::pad_count(length)) << pass;
    if (pass % 2 != 0) lengths.insert(length);
  }
  EXPECT_EQ(lengths.size(), Barrage::kBodyBytesMax + 1);
  EXPECT_EQ(*lengths.rbegin(), Barrage::kBodyBytesMax);
}

TEST(Barrage, NoPacketReachesASparedQpExceptFromThePeersAddress) {
  const Target target = make_target();
  Barrage barrage(3, target, {captured_frame()});
  int to_spared = 0;
  for (std::uint64_t number = 0; number < 300'000; ++number) {
    const auto packet = barrage.packet_at(number);
    const auto frame = wire::parse_frame(packet.frame);
    if (!frame || frame->udp_payload.size() < 12) continue;
    if (wire::decode<wire::Bth>(frame->udp_payload)->destination_qpn != Qpn{0x7001}) continue;
    ++to_spared;
    EXPECT_TRUE(frame->headers.source == target.peer.ipv4 ||
                frame->headers.source == target.peer.ipv6)
        << number;
  }
  EXPECT_GT(to_spared, 1000);
}

// The frame that this barrage mutates is a REQ for the spared port, as are most REQs in
// tests/captures.
TEST(Barrage, NoReqIsForTheSparedPort) {
  Target target = make_target();
  const wire::cm::Req req{.service_id = {0x1061c06}};  // TCP, 7174
  const auto mad = wire::cm::encode_mad(wire::cm::mad_header(wire::cm::AttributeId::kReq, 1), req);
  wire::TransportPacket packet;
  packet.bth.opcode = wire::Opcode::kUdSendOnly;
  packet.bth.destination_qpn = wire::kGsiQpn;
  Bytes frame(42 + 20 + mad.size() + 4);
  wire::write_frame_headers(frame, {.source = target.peer.ipv4, .destination = target.victim.ipv4},
                            20 + mad.size() + 4);
  wire::write_headers(std::span(frame).subspan(42), packet);
  std::ranges::copy(mad, frame.begin() + 62);
  const auto reqs_for_port = [&](const Target& tested) {
    Barrage barrage(3, tested, {frame});
    int found = 0;
    for (std::uint64_t number = 0; number < 50'000; ++number) {
      const auto bytes = transport_packet(barrage.packet_at(number).frame);
      const auto sent = bytes ? wire::parse_transport(*bytes) : wire::parse_transport({});
      if (!sent || sent->payload.size() != wire::kMadBytes) continue;
      const auto message = wire::cm::decode_message(0x10, sent->payload.subspan(24));
      found += message && std::get<wire::cm::Req>(*message).service_id == req.service_id ? 1 : 0;
    }
    return found;
  };
  EXPECT_EQ(reqs_for_port(target), 0);
  target.spared_port = 0;
  EXPECT_GT(reqs_for_port(target), 100);
}

TEST(Barrage, MostPacketsHaveARightIcrcAndAllKindsAppear) {
  const Target target = make_target();
  Barrage barrage(5, target, {captured_frame()});
  std::map<Barrage::Kind, int> packets, valid_packets;
  std::set<std::uint16_t> attributes;
  std::set<unsigned> opcodes_parsed;
  constexpr int kPackets = 100'000;
  for (std::uint64_t number = 0; number < kPackets; ++number) {
    const auto sent = barrage.packet_at(number);
    ++packets[sent.kind];
    const auto bytes = transport_packet(sent.frame);
    if (!bytes) continue;
    ++valid_packets[sent.kind];
    const auto packet = wire::parse_transport(*bytes);
    if (!packet) continue;
    opcodes_parsed.insert(static_cast<unsigned>(packet->bth.opcode));
    if (sent.kind != Barrage::Kind::kMad || packet->payload.size() != wire::kMadBytes) continue;
    const auto header = wire::decode<wire::MadHeader>(packet->payload);
    if (header && header->mgmt_class == wire::MgmtClass::kCommunication) {
      attributes.insert(header->attribute_id);
    }
  }
  for (const auto& [kind, count] : packets) {
    EXPECT_GT(valid_packets[kind] * 2, count) << to_string(kind);
  }
  EXPECT_EQ(packets.size(), static_cast<std::size_t>(Barrage::Kind::kCount));
  for (std::uint16_t id = 0x10; id <= 0x1a; ++id) EXPECT_TRUE(attributes.contains(id)) << id;
  unsigned known = 0;
  for (unsigned op = 0; op < 256; ++op) known += wire::is_known(static_cast<wire::Opcode>(op));
  EXPECT_EQ(opcodes_parsed.size(), known);
}

TEST(Target, LearnsConnectionsAndPsns) {
  Target target = make_target();
  const auto send = [&](const wire::TransportPacket& packet, std::span<const std::byte> payload) {
    const std::size_t headers = wire::header_bytes(packet.bth.opcode);
    Bytes frame(42 + headers + payload.size() + 4);
    wire::write_frame_headers(frame,
                              {.source = target.victim.ipv4, .destination = target.peer.ipv4},
                              headers + payload.size() + 4);
    wire::write_headers(std::span(frame).subspan(42), packet);
    std::ranges::copy(payload, frame.begin() + static_cast<std::ptrdiff_t>(42 + headers));
    target.learn(frame);
  };
  wire::TransportPacket packet;
  packet.bth.opcode = wire::Opcode::kRcAcknowledge;
  packet.bth.destination_qpn = {0x700000};
  packet.bth.psn = {500};
  packet.aeth = wire::ack(1);
  send(packet, {});
  EXPECT_EQ(target.qps[0].expected_psn, Psn{501});
  packet.aeth = wire::nak(1, wire::NakCode::kPsnSequenceError);
  send(packet, {});
  EXPECT_EQ(target.qps[0].expected_psn, Psn{500});
  packet.bth.opcode = wire::Opcode::kRcReadRequest;
  packet.bth.psn = {600};
  send(packet, {});
  EXPECT_EQ(target.qps[0].requester_psn, Psn{600});

  packet = {};
  packet.bth.opcode = wire::Opcode::kUdSendOnly;
  packet.bth.destination_qpn = wire::kGsiQpn;
  const wire::cm::Rep rep{.local_comm_id = {77}, .remote_comm_id = {5}, .local_qpn = {0x5099}};
  const auto mad = wire::cm::encode_mad(wire::cm::mad_header(wire::cm::AttributeId::kRep, 1), rep);
  send(packet, mad);
  send(packet, mad);
  ASSERT_EQ(target.connections.size(), 1u);
  EXPECT_EQ(target.connections[0].target_id, CommId{77});
  EXPECT_EQ(target.connections[0].our_id, CommId{5});
}

TEST(Target, AnErrorNamesTheWrongLine) {
  Target target;
  std::string problem;
  EXPECT_FALSE(target.read("qkey 1\nrc 5 5 5\n", problem));
  EXPECT_EQ(problem, "rc 5 5 5");
}

}  // namespace
}  // namespace verbena::wire_bench
