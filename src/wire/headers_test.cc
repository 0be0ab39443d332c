#include "wire/headers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/random.h"
#include "wire/hex.h"

namespace verbena::wire {
namespace {

// Compares the sizes of the headers with vol1 table 38.
static_assert(header_bytes(Opcode::kRcSendOnly) == 12);
static_assert(header_bytes(Opcode::kRcSendOnlyImm) == 12 + 4);
static_assert(header_bytes(Opcode::kRcSendLastInvalidate) == 12 + 4);
static_assert(header_bytes(Opcode::kRcWriteFirst) == 12 + 16);
static_assert(header_bytes(Opcode::kRcWriteMiddle) == 12);
static_assert(header_bytes(Opcode::kRcWriteLastImm) == 12 + 4);
static_assert(header_bytes(Opcode::kUcWriteOnlyImm) == 12 + 16 + 4);
static_assert(header_bytes(Opcode::kRcReadRequest) == 12 + 16);
static_assert(header_bytes(Opcode::kRcReadResponseMiddle) == 12);
static_assert(header_bytes(Opcode::kRcReadResponseLast) == 12 + 4);
static_assert(header_bytes(Opcode::kRcAtomicAcknowledge) == 12 + 4 + 8);
static_assert(header_bytes(Opcode::kRcFetchAdd) == 12 + 28);
static_assert(header_bytes(Opcode::kUdSendOnly) == 12 + 8);
static_assert(header_bytes(Opcode::kUdSendOnlyImm) == 12 + 8 + 4);
static_assert(header_bytes(Opcode::kXrcCompareSwap) == kHeaderBytesMax);
static_assert(header_bytes(Opcode::kXrcAcknowledge) == 12 + 4);

static_assert(opcode_of(Transport::kUd, Operation::kSendOnlyImm) == Opcode::kUdSendOnlyImm);
static_assert(opcode_of(Transport::kXrc, Operation::kFetchAdd) == Opcode::kXrcFetchAdd);
static_assert(transport_of(Opcode::kUcSendLast) == Transport::kUc);
static_assert(operation_of(Opcode::kUcSendLast) == Operation::kSendLast);

static_assert(!is_known(Opcode{0x15}) && !is_known(Opcode{0x18}) && !is_known(Opcode{0x2c}));
static_assert(!is_known(Opcode{0x60}) && !is_known(Opcode{0x77}) && !is_known(Opcode{0x44}));
static_assert(!is_known(Opcode{0xb5}) && !is_known(Opcode{0xff}));

static_assert(is_request(Opcode::kRcReadRequest) && !is_response(Opcode::kRcReadRequest));
static_assert(is_response(Opcode::kRcReadResponseMiddle) && is_response(Opcode::kRcAcknowledge));
static_assert(!is_response(Opcode{0x15}) && !is_request(Opcode{0x15}));
static_assert(starts_message(Opcode::kRcFetchAdd) && ends_message(Opcode::kRcFetchAdd));
static_assert(!has_payload(Opcode::kRcAtomicAcknowledge) && has_payload(Opcode::kUcWriteLast));

std::vector<Opcode> known_opcodes() {
  std::vector<Opcode> all;
  for (unsigned op = 0; op < 256; ++op) {
    if (is_known(static_cast<Opcode>(op))) all.push_back(static_cast<Opcode>(op));
  }
  return all;
}

Drop reason(const Result<TransportPacket>& packet) {
  return packet ? Drop::kNone : drop_reason(packet.error());
}

std::vector<std::byte> random_payload(Random& random, std::size_t bytes) {
  std::vector<std::byte> payload(bytes);
  for (std::byte& b : payload) b = static_cast<std::byte>(random.next());
  return payload;
}

TransportPacket random_packet(Random& random, Opcode op, std::span<const std::byte> payload) {
  const auto number = [&] { return random.next(); };
  const auto number24 = [&] { return random.next32() & kMask24; };
  TransportPacket packet;
  packet.bth = {.opcode = op,
                .solicited_event = (number() & 1) != 0,
                .migration_request = (number() & 1) != 0,
                .pad_count = pad_count(payload.size()),
                .pkey = {static_cast<std::uint16_t>(number())},
                .fecn = (number() & 1) != 0,
                .becn = (number() & 1) != 0,
                .destination_qpn = {number24()},
                .acknowledge_request = (number() & 1) != 0,
                .psn = {number24()}};
  if (carries_xrc(op)) packet.xrc = {.srq = {number24()}};
  if (carries_deth(op)) packet.deth = {.qkey = {random.next32()}, .source_qpn = {number24()}};
  if (carries_reth(op)) packet.reth = {number(), random.next32(), random.next32()};
  if (carries_atomic(op)) packet.atomic = {number(), random.next32(), number(), number()};
  if (carries_aeth(op)) packet.aeth = {static_cast<std::uint8_t>(number()), number24()};
  if (carries_atomic_ack(op)) packet.atomic_ack = {number()};
  if (carries_immediate(op)) packet.immediate = random.next32();
  if (carries_invalidate(op)) packet.invalidate_r_key = random.next32();
  packet.payload = payload;
  return packet;
}

std::vector<std::byte> to_bytes(const TransportPacket& packet) {
  std::vector<std::byte> bytes(header_bytes(packet.bth.opcode) + packet.payload.size() +
                               packet.bth.pad_count);
  const std::size_t at = write_headers(bytes, packet);
  std::ranges::copy(packet.payload, bytes.begin() + static_cast<std::ptrdiff_t>(at));
  return bytes;
}

TEST(Headers, EveryOpcodeHasOnePositionInItsMessage) {
  EXPECT_EQ(known_opcodes().size(), 24u + 12u + 2u + 23u);
  for (Opcode op : known_opcodes()) {
    EXPECT_EQ(is_first(op) + is_middle(op) + is_last(op) + is_only(op), 1) << int(op);
    EXPECT_NE(is_request(op), is_response(op)) << int(op);
    EXPECT_EQ(opcode_of(transport_of(op), operation_of(op)), op);
  }
}

TEST(Headers, EveryOpcodeRoundTrips) {
  Random random(5);
  for (Opcode op : known_opcodes()) {
    for (std::size_t size : {0, 1, 2, 3, 4, 64, 1021, 4096}) {
      const auto payload = random_payload(random, has_payload(op) ? size : 0);
      const TransportPacket sent = random_packet(random, op, payload);
      const auto bytes = to_bytes(sent);
      const auto received = parse_transport(bytes);
      ASSERT_TRUE(received.has_value()) << int(op) << ' ' << to_string(reason(received));
      EXPECT_EQ(received->bth, sent.bth);
      EXPECT_EQ(received->xrc, sent.xrc);
      EXPECT_EQ(received->deth, sent.deth);
      EXPECT_EQ(received->reth, sent.reth);
      EXPECT_EQ(received->atomic, sent.atomic);
      EXPECT_EQ(received->aeth, sent.aeth);
      EXPECT_EQ(received->atomic_ack, sent.atomic_ack);
      EXPECT_EQ(received->immediate, sent.immediate);
      EXPECT_EQ(received->invalidate_r_key, sent.invalidate_r_key);
      EXPECT_TRUE(std::ranges::equal(received->payload, payload));
    }
  }
}

TEST(Headers, ExtensionHeadersAreInTheOrderOfTheSpec) {
  TransportPacket packet;
  packet.bth = {.opcode = Opcode::kXrcWriteOnlyImm, .destination_qpn = {0x12}, .psn = {7}};
  packet.xrc = {.srq = {0x34}};
  packet.reth = {.virtual_address = 1, .r_key = 2, .dma_length_bytes = 0};
  packet.immediate = 5;
  EXPECT_EQ(to_bytes(packet), [] {
    constexpr auto kBytes = hex<
        "ab00ffff 00000012 00000007 | 00000034 | 0000000000000001 00000002 00000000 | 00000005">();
    return std::vector(kBytes.begin(), kBytes.end());
  }());
}

TEST(Headers, TruncatedPacketsAreDropped) {
  Random random(6);
  for (Opcode op : known_opcodes()) {
    const auto bytes = to_bytes(random_packet(random, op, {}));
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      const std::vector<std::byte> truncated(bytes.begin(),
                                             bytes.begin() + static_cast<std::ptrdiff_t>(size));
      const Drop actual = reason(parse_transport(truncated));
      EXPECT_TRUE(actual == Drop::kTooShort || (size > 12 && actual == Drop::kNotMultipleOfFour))
          << int(op) << ' ' << size << ' ' << to_string(actual);
    }
  }
}

TEST(Headers, UnknownOpcodesAreDropped) {
  unsigned unknown_count = 0;
  for (unsigned op = 0; op < 256; ++op) {
    if (is_known(static_cast<Opcode>(op))) continue;
    ++unknown_count;
    std::vector<std::byte> bytes(64);
    bytes[0] = static_cast<std::byte>(op);
    EXPECT_EQ(reason(parse_transport(bytes)), Drop::kUnknownOpcode) << op;
  }
  EXPECT_EQ(unknown_count, 256u - 61u);
}

TEST(Headers, InvalidPacketsAreDroppedWithTheirReason) {
  EXPECT_EQ(reason(parse_transport({})), Drop::kTooShort);
  EXPECT_EQ(reason(parse_transport(hex<"0401ffff 00000011 00000000">())), Drop::kTransportVersion);
  EXPECT_EQ(reason(parse_transport(hex<"0400ffff 00000011 00000000 00">())),
            Drop::kNotMultipleOfFour);
  EXPECT_EQ(reason(parse_transport(hex<"0410ffff 00000011 00000000">())), Drop::kPadTooLong);
  EXPECT_EQ(reason(parse_transport(hex<"1100ffff 00000011 00000000 1f000001 00000000">())),
            Drop::kPayloadNotAllowed);
  EXPECT_EQ(reason(parse_transport(hex<"0c00ffff 00000011 00000000 1f000001">())), Drop::kTooShort);
  for (unsigned i = 0; i < static_cast<unsigned>(Drop::kCount); ++i) {
    EXPECT_STRNE(to_string(static_cast<Drop>(i)), "unknown") << i;
  }
  EXPECT_STREQ(to_string(Drop::kCount), "unknown");
}

TEST(Headers, PadIsNotPayload) {
  const auto bytes = hex<"0430ffff 00000011 80000000 | 7b000000">();
  const auto packet = parse_transport(bytes);
  ASSERT_TRUE(packet.has_value());
  ASSERT_EQ(packet->payload.size(), 1u);
  EXPECT_EQ(packet->payload[0], std::byte{0x7b});
  EXPECT_EQ(pad_count(0), 0);
  EXPECT_EQ(pad_count(1), 3);
  EXPECT_EQ(pad_count(4095), 1);
  EXPECT_EQ(pad_count(4096), 0);
}

TEST(HeadersDeathTest, WritingAnUnknownOpcodeOrPastTheEndStopsTheProgram) {
  std::array<std::byte, 11> small{};
  EXPECT_DEATH(write_headers(small, {}), "never happen");
  std::array<std::byte, 64> large{};
  TransportPacket packet;
  packet.bth.opcode = Opcode{0x15};
  EXPECT_DEATH(write_headers(large, packet), "never happen");
}

}  // namespace
}  // namespace verbena::wire
