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

Target target() {
  Target target;
  std::string problem;
  EXPECT_TRUE(target.read(kFacts, problem)) << problem;
  return target;
}

// Returns a frame to mutate: a SEND of 64 bytes.
Bytes captured() {
  wire::TransportPacket packet;
  packet.bth.opcode = wire::Opcode::kRcSendOnly;
  Bytes frame(14 + 20 + 8 + 12 + 64 + 4);
  wire::write_frame_headers(frame, {.source = wire::ipv4_gid(1), .destination = wire::ipv4_gid(2)},
                            12 + 64 + 4);
  wire::write_headers(std::span(frame).subspan(42), packet);
  return frame;
}

Bytes copy(const Barrage::Shot& shot) { return {shot.frame.begin(), shot.frame.end()}; }

// Returns the transport packet of a frame whose ICRC is right.
std::optional<Bytes> transport(std::span<const std::byte> bytes) {
  const auto frame = wire::parse_frame(bytes);
  if (!frame || frame->headers.destination_port != wire::kRoceUdpPort) return std::nullopt;
  const auto split = wire::split_icrc(frame->udp_payload);
  if (!split || wire::icrc(wire::icrc_inputs(frame->headers), split->bth_to_pad) != split->icrc) {
    return std::nullopt;
  }
  return Bytes(split->bth_to_pad.begin(), split->bth_to_pad.end());
}

TEST(Barrage, TheSameSeedAndNumberGiveTheSameFrame) {
  const Target one = target();
  Barrage first(7, one, {captured()}), second(7, one, {captured()}), other(8, one, {captured()});
  int different = 0;
  for (std::uint64_t number = 0; number < 2000; ++number) {
    const Bytes frame = copy(first.shot(number));
    ASSERT_EQ(frame, copy(second.shot(number))) << number;
    different += frame != copy(other.shot(number)) ? 1 : 0;
  }
  EXPECT_GT(different, 1900);
  // A frame does not depend on the frames before it.
  const Bytes again = copy(first.shot(1234));
  EXPECT_EQ(again, copy(second.shot(1234)));
}

TEST(Barrage, OneTurnOfTheGridSendsEachOpcodeToEachQp) {
  const Target one = target();
  Barrage barrage(1, one, {});
  std::map<unsigned, std::set<std::uint32_t>> reached;
  std::set<std::size_t> lengths;
  const std::uint64_t slots = one.qps.size() + one.absent.size() + one.spared.size() + 6;
  // 8 of 20 runs are of the grid, so these packets contain two turns of the grid.
  for (std::uint64_t number = 0; number < 2 * 256 * slots * 20 / 8 + 400; ++number) {
    const auto shot = barrage.shot(number);
    if (shot.kind != Barrage::Kind::kGrid) continue;
    const auto frame = wire::parse_frame(shot.frame);
    ASSERT_TRUE(frame.has_value()) << number;
    const auto bth = wire::decode<wire::Bth>(frame->udp_payload);
    if (!bth) continue;
    reached[static_cast<unsigned>(bth->opcode)].insert(bth->destination_qpn.value);
    lengths.insert(frame->udp_payload.size());
  }
  ASSERT_EQ(reached.size(), 256u);
  for (const auto& [opcode, qpns] : reached) {
    for (const auto& qp : one.qps) EXPECT_TRUE(qpns.contains(qp.qpn.value)) << opcode;
    EXPECT_TRUE(qpns.contains(1) && qpns.contains(0) && qpns.contains(0xffffff)) << opcode;
    EXPECT_TRUE(qpns.contains(0x6001)) << opcode;
  }
}

TEST(Barrage, TheGridVisitsEveryLengthInTurn) {
  const Target one = target();
  Barrage barrage(1, one, {});
  const std::uint64_t slots = one.qps.size() + one.absent.size() + one.spared.size() + 6;
  std::set<std::size_t> lengths;
  // Takes one packet of each turn.  A turn has 256 * slots packets of the grid, and 8 of 20 runs
  // are of the grid.
  for (std::uint64_t turn = 0; turn < 2 * (Barrage::kBodyBytesMax + 1); ++turn) {
    const std::uint64_t place = turn * 256 * slots + 17;
    const std::uint64_t run = place / Barrage::kRun;
    // The first grid run of a cycle is its first run.
    const std::uint64_t number = (run / 8 * 20) * Barrage::kRun + place % Barrage::kRun;
    const auto shot = barrage.shot(number);
    ASSERT_EQ(shot.kind, Barrage::Kind::kGrid);
    lengths.insert(shot.frame.size());
  }
  EXPECT_GT(lengths.size(), Barrage::kBodyBytesMax / 4);  // most packets are padded to 4 bytes
}

TEST(Barrage, NoPacketReachesASparedQpExceptFromThePeersAddress) {
  const Target one = target();
  Barrage barrage(3, one, {captured()});
  int to_spared = 0;
  for (std::uint64_t number = 0; number < 300'000; ++number) {
    const auto shot = barrage.shot(number);
    const auto frame = wire::parse_frame(shot.frame);
    if (!frame || frame->udp_payload.size() < 12) continue;
    if (wire::decode<wire::Bth>(frame->udp_payload)->destination_qpn != Qpn{0x7001}) continue;
    ++to_spared;
    EXPECT_TRUE(frame->headers.source == one.peer.ipv4 || frame->headers.source == one.peer.ipv6)
        << number;
  }
  EXPECT_GT(to_spared, 1000);
}

// Most REQs of the captures are for the same port.  Here that is the spared port.
TEST(Barrage, NoReqIsForTheSparedPort) {
  Target one = target();
  const wire::cm::Req req{.service_id = {0x1061c06}};  // TCP, 7174
  const auto mad = wire::cm::encode_mad(wire::cm::mad_header(wire::cm::AttributeId::kReq, 1), req);
  wire::TransportPacket packet;
  packet.bth.opcode = wire::Opcode::kUdSendOnly;
  packet.bth.destination_qpn = wire::kGsiQpn;
  Bytes frame(42 + 20 + mad.size() + 4);
  wire::write_frame_headers(frame, {.source = one.peer.ipv4, .destination = one.victim.ipv4},
                            20 + mad.size() + 4);
  wire::write_headers(std::span(frame).subspan(42), packet);
  std::ranges::copy(mad, frame.begin() + 62);
  const auto asks = [&](const Target& of) {
    Barrage barrage(3, of, {frame});
    int found = 0;
    for (std::uint64_t number = 0; number < 50'000; ++number) {
      const auto bytes = transport(barrage.shot(number).frame);
      const auto sent = bytes ? wire::parse_transport(*bytes) : wire::parse_transport({});
      if (!sent || sent->payload.size() != wire::kMadBytes) continue;
      const auto message = wire::cm::decode_message(0x10, sent->payload.subspan(24));
      found += message && std::get<wire::cm::Req>(*message).service_id == req.service_id ? 1 : 0;
    }
    return found;
  };
  EXPECT_EQ(asks(one), 0);
  one.spared_port = 0;
  EXPECT_GT(asks(one), 100);
}

TEST(Barrage, MostPacketsPassTheIcrcAndAllKindsAreMade) {
  const Target one = target();
  Barrage barrage(5, one, {captured()});
  std::map<Barrage::Kind, int> made, right;
  std::set<std::uint16_t> attributes;
  std::set<unsigned> opcodes_parsed;
  constexpr int kShots = 100'000;
  for (std::uint64_t number = 0; number < kShots; ++number) {
    const auto shot = barrage.shot(number);
    ++made[shot.kind];
    const auto bytes = transport(shot.frame);
    if (!bytes) continue;
    ++right[shot.kind];
    const auto packet = wire::parse_transport(*bytes);
    if (!packet) continue;
    opcodes_parsed.insert(static_cast<unsigned>(packet->bth.opcode));
    if (shot.kind != Barrage::Kind::kMad || packet->payload.size() != wire::kMadBytes) continue;
    const auto header = wire::decode<wire::MadHeader>(packet->payload);
    if (header && header->mgmt_class == wire::MgmtClass::kCommunication) {
      attributes.insert(header->attribute_id);
    }
  }
  for (const auto& [kind, count] : made) {
    EXPECT_GT(right[kind] * 2, count) << to_string(kind);
  }
  EXPECT_EQ(made.size(), static_cast<std::size_t>(Barrage::Kind::kCount));
  for (std::uint16_t id = 0x10; id <= 0x1a; ++id) EXPECT_TRUE(attributes.contains(id)) << id;
  unsigned known = 0;
  for (unsigned op = 0; op < 256; ++op) known += wire::is_known(static_cast<wire::Opcode>(op));
  EXPECT_EQ(opcodes_parsed.size(), known);
}

TEST(Target, LearnsConnectionsAndPsns) {
  Target one = target();
  const auto send = [&](const wire::TransportPacket& packet, std::span<const std::byte> payload) {
    const std::size_t headers = wire::header_bytes(packet.bth.opcode);
    Bytes frame(42 + headers + payload.size() + 4);
    wire::write_frame_headers(frame, {.source = one.victim.ipv4, .destination = one.peer.ipv4},
                              headers + payload.size() + 4);
    wire::write_headers(std::span(frame).subspan(42), packet);
    std::ranges::copy(payload, frame.begin() + static_cast<std::ptrdiff_t>(42 + headers));
    one.learn(frame);
  };
  wire::TransportPacket packet;
  packet.bth.opcode = wire::Opcode::kRcAcknowledge;
  packet.bth.destination_qpn = {0x700000};
  packet.bth.psn = {500};
  packet.aeth = wire::ack(1);
  send(packet, {});
  EXPECT_EQ(one.qps[0].expected, Psn{501});
  packet.aeth = wire::nak(1, wire::NakCode::kPsnSequenceError);
  send(packet, {});
  EXPECT_EQ(one.qps[0].expected, Psn{500});
  packet.bth.opcode = wire::Opcode::kRcReadRequest;
  packet.bth.psn = {600};
  send(packet, {});
  EXPECT_EQ(one.qps[0].unacked, Psn{600});

  packet = {};
  packet.bth.opcode = wire::Opcode::kUdSendOnly;
  packet.bth.destination_qpn = wire::kGsiQpn;
  const wire::cm::Rep rep{.local_comm_id = {77}, .remote_comm_id = {5}, .local_qpn = {0x5099}};
  const auto mad = wire::cm::encode_mad(wire::cm::mad_header(wire::cm::AttributeId::kRep, 1), rep);
  send(packet, mad);
  send(packet, mad);
  ASSERT_EQ(one.connections.size(), 1u);
  EXPECT_EQ(one.connections[0].theirs, CommId{77});
  EXPECT_EQ(one.connections[0].ours, CommId{5});
}

TEST(Target, AnErrorNamesTheWrongFact) {
  Target one;
  std::string problem;
  EXPECT_FALSE(one.read("qkey 1\nrc 5 5 5\n", problem));
  EXPECT_EQ(problem, "rc 5 5 5");
}

}  // namespace
}  // namespace verbena::wire_bench
