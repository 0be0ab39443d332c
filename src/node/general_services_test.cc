#include "node/general_services.h"

#include <gtest/gtest.h>

#include <vector>

#include "wire/cm.h"
#include "wire/headers.h"
#include "wire/ip.h"
#include "wire/mad.h"

namespace verbena::node {
namespace {

constexpr Time kNow{std::chrono::seconds(1)};

mad::SendMad loopback_mad() {
  mad::SendMad out{};
  out.to.path.source = wire::ipv4_gid(0x7f000001);
  out.to.path.destination = wire::ipv4_gid(0x7f000001);
  out.to.remote_qpn = wire::kGsiQpn;
  return out;
}

// An agent sends more MADs in its lifetime than its queue has entries.
TEST(GeneralServices, SendsMoreThanItsQueueHolds) {
  GeneralServices qp1(Random(1));
  link::Burst burst;
  std::size_t packets = 0;
  for (std::uint32_t i = 0; i < 3 * GeneralServices::kSends; ++i) {
    qp1.send(loopback_mad(), kNow);
    while (qp1.transmit(burst, kNow)) {
    }
    packets += burst.packets().size();
    burst.clear();
  }
  EXPECT_EQ(packets, 3 * GeneralServices::kSends);
  EXPECT_EQ(qp1.sends_dropped(), 0u);
}

TEST(GeneralServices, DropsAndCountsMadsThatTheQueueCannotHold) {
  GeneralServices qp1(Random(1));
  for (std::uint32_t i = 0; i < GeneralServices::kSends + 3; ++i) qp1.send(loopback_mad(), kNow);
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

// Queues thousands of REQs and then one REP.
TEST(GeneralServices, RepliesOvertakeNewRequests) {
  GeneralServices qp1(Random(1));
  const auto mad_of_kind = [](wire::cm::AttributeId id) {
    mad::SendMad out = loopback_mad();
    out.mad =
        wire::cm::encode_mad(wire::cm::mad_header(id, 1), id == wire::cm::AttributeId::kReq
                                                              ? wire::cm::Message(wire::cm::Req{})
                                                              : wire::cm::Message(wire::cm::Rep{}));
    return out;
  };
  for (int i = 0; i < 5000; ++i) qp1.send(mad_of_kind(wire::cm::AttributeId::kReq), kNow);
  qp1.send(mad_of_kind(wire::cm::AttributeId::kRep), kNow);
  link::Burst burst;
  std::size_t packets_before_rep = 0, packets = 0;
  bool found_rep = false;
  for (bool more = true; more;) {
    more = qp1.transmit(burst, kNow);
    for (const auto& packet : burst.packets()) {
      ++packets;
      const auto bytes = burst.transport(packet);
      const auto attribute = static_cast<std::uint16_t>(bytes[bytes.size() - 256 + 17]);
      found_rep = found_rep || attribute == 0x13;
      if (!found_rep) ++packets_before_rep;
    }
    burst.clear();
  }
  EXPECT_TRUE(found_rep);
  EXPECT_LE(packets_before_rep, GeneralServices::kPostedSendsMax);
  EXPECT_EQ(packets, 5001u);
}

// QP1 also returns MADs of a wrong length, because the dispatcher counts them.
TEST(GeneralServices, ReturnsMadsOfAnyLength) {
  GeneralServices qp1(Random(1));
  const Gid local = wire::ipv4_gid(0x7f000001);
  wire::TransportPacket packet;
  packet.bth.opcode = wire::Opcode::kUdSendOnly;
  packet.bth.destination_qpn = wire::kGsiQpn;
  packet.deth = {wire::kGsiQkey, wire::kGsiQpn};
  for (const std::size_t bytes : {0u, 4u, 256u}) {
    std::vector<std::byte> transport(wire::header_bytes(packet.bth.opcode) + bytes);
    wire::write_headers(transport, packet);
    const auto mad = qp1.receive({{.source = local, .destination = local}, transport}, kNow);
    ASSERT_TRUE(mad.has_value()) << bytes;
    EXPECT_EQ(mad->size(), bytes);
  }
}

}  // namespace
}  // namespace verbena::node
