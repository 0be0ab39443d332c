#include "wire/sa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "wire/hex.h"

// Compares encoded messages with the tables of the specification.  layout_test.cc tests their
// round trips.
namespace verbena::wire {
namespace {

constexpr Gid gid_of(std::uint8_t last_byte) {
  Gid gid{};
  gid.bytes[0] = std::byte{0xfe};
  gid.bytes[1] = std::byte{0x80};
  gid.bytes[15] = std::byte{last_byte};
  return gid;
}

TEST(Sa, HeaderHasTheBytesOfTheSpec) {
  const SaHeader header{.mad = {.mgmt_class = MgmtClass::kSubnetAdministration,
                                .class_version = 2,
                                .response = true,
                                .method = Method::kGetTable,
                                .status = mad_status_of(SaStatus::kNoRecords),
                                .transaction_id = 0x0102030405060708,
                                .attribute_id = 0x35},
                        .rmpp = {.type = RmppType::kData,
                                 .response_time = 0x1f,
                                 .last = true,
                                 .first = true,
                                 .active = true,
                                 .segment = 1,
                                 .length_or_window = 84},
                        .sm_key = 0x1122334455667788,
                        .attribute_offset = 8,
                        .component_mask = PathRecord::Mask::kDestinationGid};
  EXPECT_EQ(encode(header), (hex<"01 03 02 92 0300 0000 0102030405060708 0035 0000 00000000"
                                 "01 01 ff 00 00000001 00000054"
                                 "1122334455667788 0008 0000 0000000000000004">()));
  EXPECT_EQ(sa_status_of(header.mad.status), SaStatus::kNoRecords);
}

TEST(Sa, PathRecordHasTheBytesOfTheSpec) {
  const PathRecord path{.service_id = {0x1000000000000002},
                        .destination_gid = gid_of(2),
                        .source_gid = gid_of(1),
                        .destination_lid = {0x0203},
                        .source_lid = {0x0405},
                        .raw_traffic = true,
                        .flow_label = 0xabcde,
                        .hop_limit = 64,
                        .traffic_class = 0x21,
                        .reversible = true,
                        .numb_path = 3,
                        .pkey = {0x8001},
                        .qos_class = 0xabc,
                        .service_level = 0xd,
                        .mtu_selector = Selector::kExactly,
                        .mtu = 4,
                        .rate_selector = Selector::kLess,
                        .rate = 3,
                        .packet_life_selector = Selector::kBest,
                        .packet_life = 18,
                        .preference = 1};
  EXPECT_EQ(encode(path), (hex<"1000000000000002 fe800000000000000000000000000002"
                               "fe800000000000000000000000000001 0203 0405 8abcde40 21 83 8001 abcd"
                               "84 43 d2 01 000000000000">()));
  EXPECT_EQ(decode_exact<PathRecord>(encode(path)), path);
}

TEST(Sa, McMemberRecordHasTheBytesOfTheSpec) {
  const McMemberRecord member{.mgid = {{std::byte{0xff}, std::byte{0x12}}},
                              .port_gid = gid_of(1),
                              .qkey = {0x0b1b},
                              .mlid = {0xc001},
                              .mtu_selector = Selector::kExactly,
                              .mtu = 4,
                              .traffic_class = 0x11,
                              .pkey = {0xffff},
                              .rate_selector = Selector::kExactly,
                              .rate = 6,
                              .packet_life_selector = Selector::kExactly,
                              .packet_life = 18,
                              .service_level = 0xa,
                              .flow_label = 0x12345,
                              .hop_limit = 0x40,
                              .scope = 2,
                              .join_state = join_state::kFullMember,
                              .proxy_join = true};
  EXPECT_EQ(encode(member), (hex<"ff120000000000000000000000000000"
                                 "fe800000000000000000000000000001 00000b1b c001 84 11 ffff"
                                 "86 92 a1234540 21 80 0000">()));
}

TEST(Sa, InformInfoHasTheBytesOfTheSpec) {
  const InformInfo inform{.lid_begin = InformInfo::kAnyLid,
                          .subscribe = true,
                          .type = InformInfo::kAnyType,
                          .trap_number = 64,
                          .qpn = {1},
                          .resp_time_value = 18,
                          .producer_type = InformInfo::kAnyProducer};
  EXPECT_EQ(encode(inform), (hex<"00000000000000000000000000000000 ffff 0000 0000 01 01 ffff 0040"
                                 "000001 12 00 ffffff">()));
  const InformInfoRecord record{
      .subscriber_gid = gid_of(1), .subscriber_enum = 7, .inform_info = inform};
  const auto bytes = encode(record);
  EXPECT_TRUE(std::ranges::equal(std::span(bytes).first<24>(),
                                 (hex<"fe800000000000000000000000000001 0007 000000000000">())));
  EXPECT_TRUE(std::ranges::equal(std::span(bytes).subspan<24>(), encode(inform)));
}

TEST(Sa, NoticeOfAGidChangeHasTheBytesOfTheSpec) {
  SaNotice report{.notice = {.type = NoticeType::kSubnetManagement,
                             .producer = 4,
                             .trap_number = TrapNumber::kGidOutOfService,
                             .issuer = {9}},
                  .issuer_gid = gid_of(9)};
  report.notice.details = encode(GidChange{.gid = gid_of(5)});
  EXPECT_EQ(encode(report),
            (hex<"83 000004 0041 0009 0000 000000000000 fe800000000000000000000000000005"
                 "0000000000000000000000000000000000000000000000000000000000000000"
                 "fe800000000000000000000000000009">()));
}

TEST(Sa, ServiceRecordHasTheBytesOfTheSpec) {
  ServiceRecord service{.service_id = {0x10},
                        .service_gid = gid_of(3),
                        .service_pkey = {0x8001},
                        .lease_seconds = 60};
  service.key[0] = std::byte{0xaa};
  service.name[0] = std::byte{'x'};
  service.data8[0] = std::byte{1};
  service.data16[1] = std::byte{2};
  service.data32[3] = std::byte{3};
  service.data64[15] = std::byte{4};
  const auto bytes = encode(service);
  EXPECT_TRUE(
      std::ranges::equal(std::span(bytes).first<49>(),
                         hex<"0000000000000010 fe800000000000000000000000000003 8001 0000 0000003c"
                             "aa000000000000000000000000000000 78">()));
  EXPECT_EQ(bytes[112], std::byte{1});
  EXPECT_EQ(bytes[129], std::byte{2});
  EXPECT_EQ(bytes[147], std::byte{3});
  EXPECT_EQ(bytes[175], std::byte{4});
  EXPECT_EQ(ServiceRecord::Mask::kData, 0x1fffffff80U);
}

TEST(SaTable, AttributeOffsetIsTheDistanceBetweenRecords) {
  std::vector<std::byte> data(3 * 72);
  for (std::size_t i = 0; i < 3; ++i) {
    encode_to(std::span(data).subspan(i * 72),
              PathRecord{.destination_lid = {static_cast<std::uint16_t>(i + 1)}});
  }
  const auto table = SaTable::of<PathRecord>(data, 9);
  ASSERT_TRUE(table);
  ASSERT_EQ(table->size(), 3U);
  EXPECT_EQ(table->at<PathRecord>(2).destination_lid, Lid{3});
  // The last record has no padding here.
  const auto shorter = SaTable::of<PathRecord>(std::span(data).first(2 * 72 + 64), 9);
  ASSERT_TRUE(shorter);
  EXPECT_EQ(shorter->size(), 3U);
}

TEST(SaTable, TablesThatDoNotFitTheirRecordsAreRefused) {
  const std::vector<std::byte> data(128);
  EXPECT_FALSE(SaTable::of<PathRecord>(data, 0));
  EXPECT_FALSE(SaTable::of<PathRecord>(data, 7));
  EXPECT_FALSE(SaTable::of<PathRecord>(std::span(data).first(65), 8));
  EXPECT_EQ(SaTable::of<PathRecord>({}, 0)->size(), 0U);
  EXPECT_EQ(SaTable::of<PathRecord>(data, 8)->size(), 2U);
}

}  // namespace
}  // namespace verbena::wire
