#include "wire/layout.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"
#include "base/strong.h"
#include "wire/bth.h"
#include "wire/cm.h"
#include "wire/hex.h"
#include "wire/infiniband.h"
#include "wire/ip.h"
#include "wire/ipoib.h"
#include "wire/mad.h"
#include "wire/notice.h"
#include "wire/performance.h"
#include "wire/port_info.h"
#include "wire/rdma_ip_cm.h"
#include "wire/sa.h"
#include "wire/smp.h"

namespace verbena::wire {
namespace {

// Inner and Odd have fields of all kinds, some of which are not aligned to bytes or words.
struct Inner {
  std::uint8_t five{};
  std::uint16_t nine{};

  friend bool operator==(const Inner&, const Inner&) = default;
  static consteval auto layout() {
    return wire::layout<3>(field<&Inner::five>({.byte = 0, .bit = 1, .bits = 5}),
                           field<&Inner::nine>({.byte = 1, .bit = 5, .bits = 9}));
  }
};

struct Odd {
  bool flag{};
  Qpn qpn{};
  std::uint64_t across{};  // bytes 5 to 12 are in two words
  Opcode opcode{};
  Inner inner{};
  std::array<std::byte, 2> tail{};

  friend bool operator==(const Odd&, const Odd&) = default;
  static consteval auto layout() {
    return wire::layout<19>(
        field<&Odd::flag>({.byte = 0, .bit = 7, .bits = 1}),
        field<&Odd::qpn>({.byte = 1, .bit = 4, .bits = 24}),
        field<&Odd::across>({.byte = 5, .bits = 64}), field<&Odd::opcode>({.byte = 13, .bits = 8}),
        field<&Odd::inner>({.byte = 14, .bits = 24}), field<&Odd::tail>({.byte = 17, .bits = 16}));
  }
};

constexpr Odd kOdd{.flag = true,
                   .qpn = {0xabcdef},
                   .across = 0x0123456789abcdef,
                   .opcode = Opcode::kUdSendOnly,
                   .inner = {.five = 0x1f, .nine = 0x101},
                   .tail = {std::byte{0x7e}, std::byte{0x5a}}};
static_assert(encode(kOdd) == hex<"01 0abcdef0 0123456789abcdef 64 7c 0404 7e5a">());
static_assert(decode_exact<Odd>(encode(kOdd)) == kOdd);

// If a member has more bits than its place, neighbouring fields do not change.
static_assert(encode(Odd{.qpn = {0xffffffff}}) == encode(Odd{.qpn = {0xffffff}}));
static_assert(encode(Inner{.five = 0xff, .nine = 0xffff}) == hex<"7c 07fc">());

// decode_exact() ignores reserved bits.
static_assert(decode_exact<Inner>(hex<"83 f803">()) == Inner{});

TEST(Layout, EncodeToDoesNotChangeOtherBytes) {
  std::array<std::byte, 5> out;
  out.fill(std::byte{0xee});
  encode_to(out, Inner{.five = 1, .nine = 2});
  EXPECT_EQ(out, (hex<"04 0008 eeee">()));
}

TEST(LayoutDeathTest, WritingPastTheEndStopsTheProgram) {
  std::array<std::byte, 2> out{};
  EXPECT_DEATH(encode_to(out, Inner{}), "never happen");
}

// The list contains all messages of this layer.
template <class M>
class EveryMessage : public testing::Test {};

using Messages = testing::Types<
    Bth, Deth, Reth, AtomicEth, Aeth, AtomicAckEth, ImmDt, Ieth, XrcEth, EthernetHeader, Ipv4Header,
    Ipv6Header, UdpHeader, MadHeader, ClassPortInfo, RdmaIpCmHeader, cm::Path, cm::Req, cm::Mra,
    cm::Rej, cm::Rep, cm::Rtu, cm::Dreq, cm::Drep, cm::SidrReq, cm::SidrRep, cm::Lap, cm::Apr, Smp,
    NodeDescription, NodeInfo, SwitchInfo, PortInfo, SmInfo, Notice, LinkStateChange, LocalChange,
    BadMkey, BadKey, BadPkeyAtSwitch, PortCounters, PortCountersExtended, PortRcvErrorDetails,
    PortXmitDiscardDetails, RmppHeader, SaHeader, PathRecord, McMemberRecord, InformInfo,
    InformInfoRecord, SaNotice, GidChange, ServiceRecord, Lrh, IpoibHeader, IpoibAddress, IpoibArp,
    NeighbourHeader, LinkAddressOption, Odd>;
TYPED_TEST_SUITE(EveryMessage, Messages);

template <class M>
std::array<std::byte, kSize<M>> random_bytes(Random& random) {
  std::array<std::byte, kSize<M>> bytes;
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.next());
  return bytes;
}

// Decoding and encoding arbitrary bytes preserves all fields, and clears reserved bits.
TYPED_TEST(EveryMessage, RoundTripsThroughDecodeAndEncode) {
  using M = TypeParam;
  std::array<std::byte, kSize<M>> ones;
  ones.fill(std::byte{0xff});
  const auto field_mask = encode(decode_exact<M>(ones));

  Random random(17);
  for (int round = 0; round < 200; ++round) {
    const auto bytes = random_bytes<M>(random);
    const M message = decode_exact<M>(bytes);
    const auto encoded = encode(message);
    EXPECT_EQ(decode_exact<M>(encoded), message);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      ASSERT_EQ(encoded[i], bytes[i] & field_mask[i]) << "byte " << i;
    }
  }
}

TYPED_TEST(EveryMessage, ZeroBytesRoundTrip) {
  constexpr std::array<std::byte, kSize<TypeParam>> kZero{};
  EXPECT_EQ(encode(decode_exact<TypeParam>(kZero)), kZero);
}

// Each vector has exactly the size of the bytes, so that a sanitizer detects a read past the end.
TYPED_TEST(EveryMessage, TooFewBytesAreMalformedAndExtraBytesAreIgnored) {
  for (std::size_t size = 0; size <= kSize<TypeParam> + 1; ++size) {
    const std::vector<std::byte> bytes(size, std::byte{0x5a});
    const auto message = decode<TypeParam>(bytes);
    if (size < kSize<TypeParam>) {
      ASSERT_FALSE(message.has_value()) << size;
      EXPECT_EQ(drop_reason(message.error()), Drop::kTooShort);
    } else {
      EXPECT_TRUE(message.has_value()) << size;
    }
  }
}

}  // namespace
}  // namespace verbena::wire
