#include "wire/source_port.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace verbena::wire {
namespace {

// Linux uses these values in rxe-rping.pcap.  The two ports of the connection determine the flow
// label, and the flow label determines the UDP port.
static_assert(connection_flow_label(0xcd45, 0x1c06) == 0x8f761);
static_assert(source_port(0x8f761) == 0xf742);

static_assert(source_port(0) == 0xc000);
static_assert(source_port(0x3fff) == 0xffff);
static_assert(source_port(0xfffff) == (0xc000 | (0x3fff ^ 0x3f)));
static_assert(source_port(0xfff00000) == source_port(0));  // only the lower 20 bits are used
static_assert(default_flow_label({0x11}, {0x12}) == 0x132);
static_assert(default_flow_label({0xffffff}, {0xffffff}) <= kFlowLabelMask);

TEST(SourcePort, BothEndsOfAConnectionUseTheSamePort) {
  Random random(9);
  for (int i = 0; i < 1000; ++i) {
    const Qpn a{random.next32() & kMask24};
    const Qpn b{random.next32() & kMask24};
    EXPECT_EQ(default_flow_label(a, b), default_flow_label(b, a));
    EXPECT_GE(source_port(default_flow_label(a, b)), 0xc000);
  }
}

}  // namespace
}  // namespace verbena::wire
