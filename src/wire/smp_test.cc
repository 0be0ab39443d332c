#include "wire/smp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>

#include "base/random.h"
#include "wire/hex.h"
#include "wire/notice.h"
#include "wire/port_info.h"

// Compares encoded messages with the tables of the specification.  layout_test.cc tests their
// round trips.
namespace verbena::wire {
namespace {

// Returns the first bytes of the data, and checks that the other bytes are zero.
template <std::size_t Bytes>
std::array<std::byte, Bytes> first_bytes(const SmpData& data) {
  EXPECT_TRUE(std::ranges::all_of(std::span(data).subspan(Bytes),
                                  [](std::byte b) { return b == std::byte{0}; }));
  std::array<std::byte, Bytes> first;
  std::copy_n(data.begin(), Bytes, first.begin());
  return first;
}

SmpData random_smp_data(Random& random) {
  SmpData data;
  for (std::byte& b : data) b = static_cast<std::byte>(random.next());
  return data;
}

TEST(Smp, DirectedRouteFieldsAreAtThePlacesOfTheSpec) {
  Smp smp{.header = {.mgmt_class = MgmtClass::kSubnetManagementDirected,
                     .class_version = 1,
                     .response = true,
                     .method = Method::kGet,
                     .status = kSmpReturning | 0x1c,
                     .transaction_id = 0x0102030405060708,
                     .attribute_id = 0x11,
                     .attribute_modifier = 5},
          .m_key = 0x1122334455667788,
          .dr_source = Lid{0xffff},
          .dr_destination = Lid{0xfffe}};
  smp.set_hop_pointer(3);
  smp.set_hop_count(7);
  smp.data[0] = std::byte{0xaa};
  smp.initial_path[1] = std::byte{0xbb};
  smp.return_path[63] = std::byte{0xcc};
  const auto bytes = encode(smp);
  std::array<std::byte, 36> front;
  std::copy_n(bytes.begin(), front.size(), front.begin());
  EXPECT_EQ(front, (hex<"01 81 01 81 801c 03 07 0102030405060708 0011 0000 00000005"
                        "1122334455667788 ffff fffe">()));
  EXPECT_EQ(bytes[64], std::byte{0xaa});
  EXPECT_EQ(bytes[129], std::byte{0xbb});
  EXPECT_EQ(bytes[255], std::byte{0xcc});
  EXPECT_TRUE(smp.is_directed());
  EXPECT_TRUE(smp.is_returning());
  EXPECT_EQ(decode_exact<Smp>(bytes), smp);
  EXPECT_EQ(smp.hop_pointer(), 3);
  EXPECT_EQ(smp.hop_count(), 7);
}

TEST(Smp, NodeInfoHasTheBytesOfTheSpec) {
  EXPECT_EQ(encode(NodeInfo{.node_type = NodeType::kSwitch,
                            .num_ports = 36,
                            .system_image_guid = Guid{1},
                            .node_guid = Guid{0x0002c90300000002},
                            .port_guid = Guid{3},
                            .partition_cap = 64,
                            .device_id = 0x1003,
                            .revision = 0xa1,
                            .local_port_num = 4,
                            .vendor_id = 0x0002c9}),
            (hex<"01 01 02 24 0000000000000001 0002c90300000002 0000000000000003 0040 1003"
                 "000000a1 04 0002c9">()));
}

TEST(Smp, SwitchInfoHasTheBytesOfTheSpec) {
  EXPECT_EQ(encode(SwitchInfo{.linear_fdb_cap = 0xc000,
                              .random_fdb_cap = 1,
                              .multicast_fdb_cap = 0x1000,
                              .linear_fdb_top = 0x17,
                              .default_port = 1,
                              .default_multicast_primary_port = 2,
                              .default_multicast_not_primary_port = 3,
                              .life_time_value = 0x12,
                              .port_state_change = true,
                              .optimized_sl_to_vl = 1,
                              .lids_per_port = 4,
                              .partition_enforcement_cap = 32,
                              .inbound_enforcement_cap = true,
                              .filter_raw_outbound_cap = true,
                              .enhanced_port_0 = true,
                              .multicast_fdb_top = 0xc00f}),
            (hex<"c000 0001 1000 0017 01 02 03 95 0004 0020 98 00 c00f">()));
}

TEST(Smp, SmInfoHasTheBytesOfTheSpec) {
  EXPECT_EQ(encode(SmInfo{.guid = Guid{0x10},
                          .sm_key = 0x20,
                          .act_count = 0x30,
                          .priority = 14,
                          .sm_state = SmState::kMaster}),
            (hex<"0000000000000010 0000000000000020 00000030 e3">()));
}

TEST(Smp, PortInfoHasTheBytesOfTheSpec) {
  const PortInfo info{.m_key = 0x0102030405060708,
                      .gid_prefix = 0xfe80000000000000,
                      .lid = Lid{0x1234},
                      .master_sm_lid = Lid{0x5678},
                      .capability_mask = 0x02514868,
                      .diag_code = 0x1111,
                      .m_key_lease_period = 0x2222,
                      .local_port_num = 1,
                      .link_width_enabled = 2,
                      .link_width_supported = 3,
                      .link_width_active = 2,
                      .link_speed_supported = 7,
                      .port_state = PortState::kActive,
                      .port_physical_state = PortPhysicalState::kLinkUp,
                      .link_down_default_state = PortPhysicalState::kPolling,
                      .m_key_protect_bits = 2,
                      .lmc = 3,
                      .link_speed_active = 4,
                      .link_speed_enabled = 7,
                      .neighbor_mtu = 5,
                      .master_sm_sl = 1,
                      .vl_cap = 4,
                      .init_type = 6,
                      .vl_high_limit = 9,
                      .vl_arbitration_high_cap = 8,
                      .vl_arbitration_low_cap = 7,
                      .init_type_reply = 10,
                      .mtu_cap = 5,
                      .vl_stall_count = 7,
                      .hoq_life = 0x12,
                      .operational_vls = 4,
                      .partition_enforcement_inbound = true,
                      .filter_raw_outbound = true,
                      .m_key_violations = 1,
                      .p_key_violations = 2,
                      .q_key_violations = 3,
                      .guid_cap = 32,
                      .client_reregister = true,
                      .multicast_pkey_trap_suppression = 1,
                      .subnet_timeout = 18,
                      .resp_time_value = 16,
                      .local_phy_errors = 8,
                      .overrun_errors = 4,
                      .max_credit_hint = 0x99,
                      .link_round_trip_latency = 0xabcdef,
                      .capability_mask2 = 0x30,
                      .link_speed_ext_active = 2,
                      .link_speed_ext_supported = 3,
                      .link_speed_ext_enabled = 0x1f};
  EXPECT_EQ(encode(info), (hex<"0102030405060708 fe80000000000000 1234 5678 02514868 1111 2222"
                               "01 02 03 02 74 52 83 47 51 46 09 08 07 a5 f2 49"
                               "0001 0002 0003 20 b2 10 84 0099 00 abcdef 0030 23 1f">()));
}

TEST(Smp, TablesHaveTheBytesOfTheSpec) {
  EXPECT_EQ(first_bytes<16>(encode_guids({Guid{1}, Guid{0x0203}})),
            (hex<"0000000000000001 0000000000000203">()));
  EXPECT_EQ(first_bytes<4>(encode_pkeys({Pkey{0xffff}, Pkey{0x7fff}})), (hex<"ffff 7fff">()));
  EXPECT_EQ(first_bytes<8>(encode_sl_to_vl({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})),
            (hex<"0123456789abcdef">()));
  EXPECT_EQ(first_bytes<4>(encode_vl_arbitration({VlWeight{1, 2}, VlWeight{15, 255}})),
            (hex<"0102 0fff">()));
  EXPECT_EQ(first_bytes<3>(encode_lft({1, 255, 3})), (hex<"01 ff 03">()));
  EXPECT_EQ(first_bytes<4>(encode_mft({0x0102, 0x8000})), (hex<"0102 8000">()));
}

TEST(Smp, TablesRoundTrip) {
  Random random(3);
  for (int i = 0; i < 100; ++i) {
    const SmpData data = random_smp_data(random);
    EXPECT_EQ(encode_guids(decode_guids(data)), data);
    EXPECT_EQ(encode_pkeys(decode_pkeys(data)), data);
    EXPECT_EQ(encode_lft(decode_lft(data)), data);
    EXPECT_EQ(encode_mft(decode_mft(data)), data);
    const auto lanes = decode_sl_to_vl(data);
    EXPECT_EQ(decode_sl_to_vl(encode_sl_to_vl(lanes)), lanes);
    const auto weights = decode_vl_arbitration(data);
    EXPECT_EQ(decode_vl_arbitration(encode_vl_arbitration(weights)), weights);
  }
}

TEST(Notice, HasTheBytesOfTheSpec) {
  Notice notice{.type = NoticeType::kUrgent,
                .producer = 2,
                .trap_number = TrapNumber::kLinkStateChange,
                .issuer = Lid{7},
                .toggle = true,
                .count = 1};
  notice.details = encode(LinkStateChange{.switch_lid = Lid{7}});
  EXPECT_EQ(first_bytes<12>(smp_data(notice)), (hex<"81 000002 0080 0007 8001 0007">()));
  EXPECT_EQ(from_smp_data<Notice>(smp_data(notice)), notice);
}

TEST(Notice, DetailsOfTrapsHaveTheBytesOfTheSpec) {
  const auto starts_with = []<std::size_t Bytes>(
                               const std::array<std::byte, kNoticeDetailsBytes>& all,
                               const std::array<std::byte, Bytes>& expected) {
    return std::equal(expected.begin(), expected.end(), all.begin());
  };
  EXPECT_TRUE(starts_with(encode(LocalChange{.lid = Lid{3},
                                             .other_local_changes = true,
                                             .capability_mask = 0x01020304,
                                             .change_flags = 5,
                                             .capability_mask2 = 6}),
                          hex<"0000 0003 00 01 01020304 0005 0006">()));
  BadMkey bad_mkey{.lid = Lid{3},
                   .dr_source = Lid{0xffff},
                   .method = 2,
                   .attribute_id = 0x15,
                   .attribute_modifier = 4,
                   .m_key = 0x1122,
                   .is_directed = true,
                   .hop_count = 2};
  bad_mkey.return_path[0] = std::byte{9};
  EXPECT_TRUE(starts_with(encode(bad_mkey),
                          hex<"0000 0003 ffff 02 00 0015 00000004 0000000000001122 00 82 09">()));
  EXPECT_TRUE(starts_with(encode(BadKey{.source = Lid{1},
                                        .destination = Lid{2},
                                        .key = 0x8001,
                                        .service_level = 3,
                                        .source_qpn = Qpn{4},
                                        .destination_qpn = Qpn{5},
                                        .source_gid = {{std::byte{6}}},
                                        .destination_gid = {{std::byte{7}}}}),
                          hex<"0000 0001 0002 00008001 30 000004 00 000005"
                              "06000000000000000000000000000000 07">()));
  EXPECT_TRUE(starts_with(encode(BadPkeyAtSwitch{.data_valid = 0x3f,
                                                 .source = Lid{1},
                                                 .destination = Lid{2},
                                                 .pkey = Pkey{0x8001},
                                                 .service_level = 3,
                                                 .source_qpn = Qpn{4},
                                                 .destination_qpn = Qpn{5},
                                                 .switch_lid = Lid{6},
                                                 .port = 7}),
                          hex<"003f 0001 0002 8001 30 000004 00 000005"
                              "00000000000000000000000000000000 00000000000000000000000000000000"
                              "0006 07">()));
}

}  // namespace
}  // namespace verbena::wire
