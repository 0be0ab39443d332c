#include "node/general_services.h"

#include <gtest/gtest.h>

#include "wire/ip.h"
#include "wire/mad.h"

namespace verbena::node {
namespace {

constexpr Time kNow{std::chrono::seconds(1)};

mad::SendMad some_mad() {
  mad::SendMad out{};
  out.to.local = wire::ipv4_gid(0x7f000001);
  out.to.remote = wire::ipv4_gid(0x7f000001);
  out.to.remote_qpn = wire::kGsiQpn;
  return out;
}

// An agent lives for longer than its queue is long.
TEST(GeneralServices, SendsMoreThanItsQueueHolds) {
  GeneralServices qp1(Random(1));
  link::Burst burst;
  std::size_t packets = 0;
  for (std::uint32_t i = 0; i < 3 * GeneralServices::kSends; ++i) {
    qp1.send(some_mad(), kNow);
    while (qp1.transmit(burst, kNow)) {
    }
    packets += burst.packets().size();
    burst.clear();
  }
  EXPECT_EQ(packets, 3 * GeneralServices::kSends);
  EXPECT_EQ(qp1.sends_dropped(), 0u);
}

TEST(GeneralServices, WhatTheQueueDoesNotHoldIsDroppedAndCounted) {
  GeneralServices qp1(Random(1));
  for (std::uint32_t i = 0; i < GeneralServices::kSends + 3; ++i) qp1.send(some_mad(), kNow);
  EXPECT_EQ(qp1.sends_dropped(), 3u);
  link::Burst burst;
  std::size_t packets = 0;
  for (bool more = true; more;) {
    more = qp1.transmit(burst, kNow);
    packets += burst.packets().size();
    burst.clear();
  }
  EXPECT_EQ(packets, GeneralServices::kSends);
}

}  // namespace
}  // namespace verbena::node
