#include "wire/cm.h"

#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <vector>

#include "base/random.h"
#include "wire/hex.h"

// Compares CM messages with the tables of the specification.  layout_test.cc tests their round
// trips, and captures_test.cc tests MADs of Linux.
namespace verbena::wire::cm {
namespace {

// Counts the bits of a message that belong to a field, and so are not reserved.
template <wire::Message M>
constexpr std::size_t field_bits() {
  std::array<std::byte, kSize<M>> ones;
  ones.fill(std::byte{0xff});
  std::size_t bits = 0;
  for (std::byte b : encode(decode_exact<M>(ones))) {
    bits += static_cast<std::size_t>(std::popcount(std::to_integer<unsigned>(b)));
  }
  return bits;
}

constexpr std::size_t kMessageBits = kMessageBytes * 8;

static_assert(kSize<Path> == 44 && field_bits<Path>() == 44 * 8 - 6 - 3 - 3);
static_assert(field_bits<Req>() == kMessageBits - 8 - 32 - 2 * (6 + 3) - 3 - 2);
static_assert(field_bits<Mra>() == kMessageBits - 6 - 3);
static_assert(field_bits<Rej>() == kMessageBits - 6 - 1);
static_assert(field_bits<Rep>() == kMessageBits - 4);
static_assert(field_bits<Rtu>() == kMessageBits);
static_assert(field_bits<Dreq>() == kMessageBits - 8);
static_assert(field_bits<Drep>() == kMessageBits);
static_assert(field_bits<SidrReq>() == kMessageBits - 16);
static_assert(field_bits<SidrRep>() == kMessageBits);
static_assert(field_bits<Lap>() == kMessageBits - 32 - 3 - 32 - 4 - 2 - 3 - 3);
static_assert(field_bits<Apr>() == kMessageBits - 16);

constexpr std::byte byte_at(const auto& message, std::size_t i) { return encode(message)[i]; }

// Fields in the same byte do not overlap.
static_assert(byte_at(Req{.remote_cm_response_timeout = 20,
                          .transport_service = TransportService::kUc,
                          .end_to_end_flow_control = true},
                      43) == std::byte{20 << 3 | 1 << 1 | 1});
static_assert(byte_at(Req{.local_cm_response_timeout = 21, .retry_count = 7}, 47) ==
              std::byte{21 << 3 | 7});
static_assert(byte_at(Req{.path_mtu = 3, .rnr_retry_count = 7}, 50) == std::byte{0x37});
static_assert(byte_at(Req{.rdc_exists = true}, 50) == std::byte{0x08});
static_assert(byte_at(Req{.max_cm_retries = 15, .srq = true, .extended_transport = 1}, 51) ==
              std::byte{0xf9});
static_assert(byte_at(Req{.primary_path = {.flow_label = 0x8f761}}, 88) == std::byte{0x8f});
static_assert(byte_at(Req{.primary_path = {.flow_label = 0x8f761}}, 90) == std::byte{0x10});
static_assert(byte_at(Req{.primary_path = {.packet_rate = 0x3f}}, 91) == std::byte{0x3f});
static_assert(byte_at(Req{.primary_path = {.sl = 15, .subnet_local = true}}, 94) ==
              std::byte{0xf8});
static_assert(byte_at(Req{.alternate_path = {.local_lid = {0xabcd}}}, 97) == std::byte{0xcd});
static_assert(byte_at(Req{.alternate_path = {.local_ack_timeout = 31}, .sap_supported = true},
                      139) == std::byte{0xfc});
static_assert(byte_at(Mra{.message_mraed = MraSubject::kLap, .service_timeout = 31}, 8) ==
              std::byte{0x80});
static_assert(byte_at(Mra{.service_timeout = 31}, 9) == std::byte{0xf8});
static_assert(byte_at(Rej{.message_rejected = RejSubject::kRep}, 8) == std::byte{0x40});
static_assert(byte_at(Rej{.reject_info_length_bytes = 72}, 9) == std::byte{144});
static_assert(byte_at(Rep{.target_ack_delay = 15,
                          .failover_accepted = FailoverAccepted::kNotSupported,
                          .end_to_end_flow_control = true},
                      26) == std::byte{15 << 3 | 1 << 1 | 1});
static_assert(byte_at(Rep{.rnr_retry_count = 7, .srq = true}, 27) == std::byte{0xf0});
static_assert(byte_at(Lap{.alternate_sl = 15, .alternate_subnet_local = true}, 62) ==
              std::byte{0xf8});

// vendor_id() combines the vendor id from several fields.
static_assert(Rep{.vendor_id_high = 1, .vendor_id_middle = 2, .vendor_id_low = 3}.vendor_id() ==
              0x010203);
static_assert(SidrRep{.vendor_id_high = 0x0102, .vendor_id_low = 3}.vendor_id() == 0x010203);

// alternate_path() returns the path of a LAP in the form of a REQ's path.
static_assert(Lap{.alternate_flow_label = 0xfffff, .alternate_packet_rate = 3}.alternate_path() ==
              Path{.flow_label = 0xfffff, .packet_rate = 3});

TEST(CmMessage, EveryAttributeIsDecodedAsItsMessage) {
  const std::vector<std::byte> data(kMessageBytes, std::byte{0xff});
  std::size_t decoded_count = 0;
  for (unsigned id = 0; id <= 0xffff; ++id) {
    const auto message = decode_message(static_cast<std::uint16_t>(id), data);
    if (message) {
      ++decoded_count;
      EXPECT_EQ(static_cast<unsigned>(attribute_id(*message)), id);
      EXPECT_STRNE(to_string(attribute_id(*message)), "unknown");
    } else {
      EXPECT_EQ(drop_reason(message.error()), Drop::kUnknownAttribute);
    }
  }
  EXPECT_EQ(decoded_count, std::variant_size_v<wire::cm::Message>);
}

TEST(CmMessage, AShortMadIsMalformed) {
  const std::vector<std::byte> data(kMessageBytes - 1);
  for (std::uint16_t id = 0x10; id <= 0x1a; ++id) {
    EXPECT_EQ(drop_reason(decode_message(id, data).error()), Drop::kTooShort);
  }
}

TEST(CmMessage, UnknownNumbersSurviveARoundTrip) {
  const Rej rej{.message_rejected = RejSubject{3}, .reason = RejReason{0xfedc}};
  const auto message = decode_message(0x12, encode(rej));
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(std::get<Rej>(*message), rej);
}

TEST(CmMessage, RejectInfoIsLimitedToItsField) {
  Rej rej{.reject_info_length_bytes = 8};
  EXPECT_EQ(reject_info(rej).size(), 8u);
  rej.reject_info_length_bytes = 127;
  EXPECT_EQ(reject_info(rej).size(), 72u);
}

TEST(CmMessage, AMadConsistsOfTheHeaderAndTheMessage) {
  const Rej rej{
      .local_comm_id = {1}, .remote_comm_id = {2}, .reason = RejReason::kInvalidServiceId};
  auto header = mad_header(AttributeId::kReq, 0x0000000212345678);  // encode_mad() replaces kReq
  const auto mad = encode_mad(header, rej);
  const auto expected =
      hex<"01070203 00000000 00000002 12345678 00120000 00000000 | 00000001 00000002 00000008">();
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), mad.begin()));
  header.attribute_id = 0x12;
  EXPECT_EQ(*decode<MadHeader>(mad), header);
  EXPECT_EQ(std::get<Rej>(*decode_message(0x12, std::span(mad).subspan(kMadHeaderBytes))), rej);
}

TEST(CmNames, EveryReasonOfTheSpecHasAName) {
  for (std::uint16_t number = 0; number < 64; ++number) {
    const bool has_name = (number >= 1 && number <= 33) || number == 35;
    EXPECT_EQ(std::string(to_string(RejReason{number})) != "unknown", has_name) << number;
  }
  EXPECT_STREQ(to_string(RejReason{0xffff}), "unknown");
}

}  // namespace
}  // namespace verbena::wire::cm
