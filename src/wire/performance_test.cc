#include "wire/performance.h"

#include <gtest/gtest.h>

#include "wire/hex.h"

namespace verbena::wire {
namespace {

TEST(Performance, PortCountersHasTheBytesOfTheSpec) {
  EXPECT_EQ(encode(PortCounters{.port_select = 1,
                                .counter_select = 0xf0ff,
                                .symbol_errors = 2,
                                .link_error_recoveries = 3,
                                .link_downed = 4,
                                .rcv_errors = 5,
                                .rcv_remote_physical_errors = 6,
                                .rcv_switch_relay_errors = 7,
                                .xmit_discards = 8,
                                .xmit_constraint_errors = 9,
                                .rcv_constraint_errors = 10,
                                .counter_select2 = 1,
                                .local_link_integrity_errors = 11,
                                .excessive_buffer_overrun_errors = 12,
                                .qp1_dropped = 0x99,
                                .vl15_dropped = 13,
                                .xmit_data = 14,
                                .rcv_data = 15,
                                .xmit_packets = 16,
                                .rcv_packets = 17,
                                .xmit_wait = 18}),
            (hex<"00 01 f0ff 0002 03 04 0005 0006 0007 0008 09 0a 01 bc 0099 000d"
                 "0000000e 0000000f 00000010 00000011 00000012">()));
}

TEST(Performance, PortCountersExtendedHasTheBytesOfTheSpec) {
  EXPECT_EQ(encode(PortCountersExtended{.port_select = 1,
                                        .counter_select = 0x00ff,
                                        .counter_select2 = 0x3fff,
                                        .xmit_data = 1,
                                        .rcv_data = 2,
                                        .xmit_packets = 3,
                                        .rcv_packets = 4,
                                        .unicast_xmit_packets = 5,
                                        .unicast_rcv_packets = 6,
                                        .multicast_xmit_packets = 7,
                                        .multicast_rcv_packets = 8,
                                        .symbol_errors = 9,
                                        .link_error_recoveries = 10,
                                        .link_downed = 11,
                                        .rcv_errors = 12,
                                        .rcv_remote_physical_errors = 13,
                                        .rcv_switch_relay_errors = 14,
                                        .xmit_discards = 15,
                                        .xmit_constraint_errors = 16,
                                        .rcv_constraint_errors = 17,
                                        .local_link_integrity_errors = 18,
                                        .excessive_buffer_overrun_errors = 19,
                                        .vl15_dropped = 20,
                                        .xmit_wait = 21,
                                        .qp1_dropped = 22}),
            (hex<"00 01 00ff 00003fff"
                 "0000000000000001 0000000000000002 0000000000000003 0000000000000004"
                 "0000000000000005 0000000000000006 0000000000000007 0000000000000008"
                 "0000000000000009 000000000000000a 000000000000000b 000000000000000c"
                 "000000000000000d 000000000000000e 000000000000000f 0000000000000010"
                 "0000000000000011 0000000000000012 0000000000000013 0000000000000014"
                 "0000000000000015 0000000000000016">()));
}

TEST(Performance, ErrorDetailsHaveTheBytesOfTheSpec) {
  EXPECT_EQ(encode(PortRcvErrorDetails{.port_select = 1,
                                       .counter_select = 0x3f,
                                       .local_physical_errors = 2,
                                       .malformed_packet_errors = 3,
                                       .buffer_overrun_errors = 4,
                                       .dlid_mapping_errors = 5,
                                       .vl_mapping_errors = 6,
                                       .looping_errors = 7}),
            (hex<"00 01 003f 0002 0003 0004 0005 0006 0007">()));
  EXPECT_EQ(encode(PortXmitDiscardDetails{.port_select = 1,
                                          .counter_select = 0x0f,
                                          .inactive_discards = 2,
                                          .neighbor_mtu_discards = 3,
                                          .switch_lifetime_discards = 4,
                                          .switch_hoq_lifetime_discards = 5}),
            (hex<"00 01 000f 0002 0003 0004 0005">()));
}

}  // namespace
}  // namespace verbena::wire
