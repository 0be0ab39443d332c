#include "wire/bth.h"

#include <gtest/gtest.h>

#include "wire/hex.h"

namespace verbena::wire {
namespace {

using std::chrono::microseconds;

// A Linux peer sent these headers; see tests/captures.
static_assert(encode(Bth{.opcode = Opcode::kRcReadRequest,
                         .destination_qpn = {0x11},
                         .acknowledge_request = true,
                         .psn = {0x375335}}) == hex<"0c00ffff 00000011 80375335">());
static_assert(encode(Reth{
                  .virtual_address = 0x56231779fd50, .r_key = 0x50a, .dma_length_bytes = 0x40}) ==
              hex<"000056231779fd50 0000050a 00000040">());
static_assert(encode(Deth{.qkey = {0x80010000}, .source_qpn = {1}}) == hex<"80010000 00000001">());
static_assert(encode(ack(1)) == hex<"1f000001">());

// Each of these headers sets one field of the BTH.
static_assert(encode(Bth{.solicited_event = true, .pkey = {}}) ==
              hex<"0080 0000 00000000 00000000">());
static_assert(encode(Bth{.migration_request = true, .pkey = {}}) ==
              hex<"0040 0000 00000000 00000000">());
static_assert(encode(Bth{.pad_count = 3, .pkey = {}}) == hex<"0030 0000 00000000 00000000">());
static_assert(encode(Bth{.transport_version = 15, .pkey = {}}) ==
              hex<"000f 0000 00000000 00000000">());
static_assert(encode(Bth{.pkey = {0x8001}}) == hex<"0000 8001 00000000 00000000">());
static_assert(encode(Bth{.pkey = {}, .fecn = true}) == hex<"0000 0000 80000000 00000000">());
static_assert(encode(Bth{.pkey = {}, .becn = true}) == hex<"0000 0000 40000000 00000000">());
static_assert(encode(Bth{.pkey = {}, .destination_qpn = kMulticastQpn}) ==
              hex<"0000 0000 00ffffff 00000000">());
static_assert(encode(Bth{.pkey = {}, .psn = {0xffffff}}) == hex<"0000 0000 00000000 00ffffff">());

static_assert(encode(AtomicEth{.virtual_address = 1, .r_key = 2, .swap_or_add = 3, .compare = 4}) ==
              hex<"0000000000000001 00000002 0000000000000003 0000000000000004">());
static_assert(encode(AtomicAckEth{0x405bdc6e8e829a1b}) == hex<"405bdc6e8e829a1b">());
static_assert(encode(ImmDt{0x80000180}) == hex<"80000180">());
static_assert(encode(Ieth{0x3a4}) == hex<"000003a4">());
static_assert(encode(XrcEth{{0x123456}}) == hex<"00123456">());

// The encoded PSN wraps at 24 bits, as the type Psn does.
static_assert(decode_exact<Bth>(encode(Bth{.psn = Psn{0xffffff} + 1})).psn == Psn{0});
static_assert(decode_exact<Bth>(encode(Bth{.psn = Psn{0} - 1})).psn == Psn{0xffffff});

static_assert(kind(ack(0)) == AethKind::kAck && code(ack(0, 7)) == 7);
static_assert(rnr_nak(5, 12) == Aeth{.syndrome = 0x2c, .msn = 5});
static_assert(kind(rnr_nak(5, 31)) == AethKind::kRnrNak && code(rnr_nak(5, 31)) == 31);
static_assert(nak(0x1000005, NakCode::kRemoteAccessError) == Aeth{.syndrome = 0x62, .msn = 5});
static_assert(kind(nak(0, NakCode::kPsnSequenceError)) == AethKind::kNak);
static_assert(nak_code(nak(0, NakCode::kInvalidRdRequest)) == NakCode::kInvalidRdRequest);
static_assert(kind(Aeth{.syndrome = 0x40}) == AethKind::kReserved);
static_assert(kind(Aeth{.syndrome = 0x80}) == AethKind::kReserved);
static_assert(kind(Aeth{.syndrome = 0xff}) == AethKind::kReserved);

TEST(Aeth, CreditsDoubleEverySecondCode) {
  EXPECT_EQ(credits(0), 0u);
  EXPECT_EQ(credits(5), 6u);
  EXPECT_EQ(credits(30), 32768u);
  EXPECT_EQ(credits(31), std::nullopt);
  for (std::uint8_t code = 2; code <= 28; ++code) {
    EXPECT_EQ(*credits(static_cast<std::uint8_t>(code + 2)), 2 * *credits(code)) << int{code};
  }
}

TEST(Aeth, ACreditCodeNeverGrantsTooManyReceives) {
  for (std::uint32_t receives = 0; receives < 40000; ++receives) {
    const std::uint8_t code = credit_code(receives);
    ASSERT_LE(*credits(code), receives);
    if (code < 30) {
      ASSERT_GT(*credits(static_cast<std::uint8_t>(code + 1)), receives);
    }
  }
}

TEST(Aeth, RnrTimersMatchTheTable) {
  EXPECT_EQ(rnr_timer(0), microseconds(655'360));
  EXPECT_EQ(rnr_timer(1), microseconds(10));
  EXPECT_EQ(rnr_timer(7), microseconds(120));
  EXPECT_EQ(rnr_timer(12), microseconds(640));
  EXPECT_EQ(rnr_timer(31), microseconds(491'520));
  EXPECT_EQ(rnr_timer(32 + 12), rnr_timer(12));
  for (std::uint8_t code = 2; code <= 29; ++code) {
    EXPECT_EQ(rnr_timer(static_cast<std::uint8_t>(code + 2)), 2 * rnr_timer(code)) << int{code};
  }
}

}  // namespace
}  // namespace verbena::wire
