#include <gtest/gtest.h>

#include "rdmacm/hosts_test.h"

// Tests alternate paths that come with the route on InfiniBand.  The RDMA CM has no events for
// alternate paths: the REQ offers a path, and accept() accepts or declines it.
namespace verbena::rdmacm {
namespace {

using namespace std::chrono_literals;

class AlternatePathsTest : public testing::Test {
 protected:
  static constexpr Lid kLidOfA{3}, kLidOfP{2};
  static constexpr std::uint16_t kLmcDistance = 16;  // between the two LIDs of a port

  // Makes all routes of A InfiniBand routes.  If `with_alternate` is set, each route has a second
  // path, by the other LIDs of both ports.
  void use_infiniband(bool with_alternate) {
    hosts.a.route = [this, with_alternate](const RouteQuery& query) -> Result<Route> {
      const Gid source = hosts.a.ip4();
      link::Address address{.link_layer = LinkLayer::kInfiniband,
                            .source = source,
                            .destination = query.destination.ip,
                            .source_lid = kLidOfA,
                            .destination_lid = kLidOfP,
                            .service_level = 1};
      Route route{.source = source,
                  .address = address,
                  .sgid_index = 1,
                  .pkey = wire::kDefaultPkey.value,
                  .mtu = 4};
      address.source_lid.value += kLmcDistance;
      address.destination_lid.value += kLmcDistance;
      address.service_level = 2;
      if (with_alternate) route.alternate = address;
      return route;
    };
  }
  void connect() {
    ++hosts.a.qpn;  // a REQ with the same QP would end the old connection as stale
    ++hosts.p.accepting_qpn;
    hosts.a.connect(address(hosts.p.ip4(), kPort));
    hosts.run(100ms);
  }
  // Returns the latest event of this kind at the host.  REQUIRES: there was one.
  static const Event& last(const Host& host, EventKind kind) {
    const Event* event = host.last(kind);
    VB_CHECK(event != nullptr);
    return *event;
  }

  Hosts hosts;
};

TEST_F(AlternatePathsTest, AcceptMayTakeOrDeclineTheOfferedPath) {
  use_infiniband(true);
  hosts.p.create_listener(any4(kPort));
  for (const bool accepts : {true, false}) {
    hosts.p.adjust = [&](ConnParam& sent) { sent.alternate_accepted = accepts; };
    connect();
    const PathInfo& offered = last(hosts.p, EventKind::kConnectRequest).param.alternate;
    EXPECT_EQ(offered.address.source, hosts.p.ip4());
    EXPECT_EQ(offered.address.destination, hosts.a.ip4());
    EXPECT_EQ(offered.address.source_lid.value, kLidOfP.value + kLmcDistance);
    EXPECT_EQ(offered.address.destination_lid.value, kLidOfA.value + kLmcDistance);
    EXPECT_EQ(offered.address.service_level, 2);
    const Event& response = last(hosts.a, EventKind::kConnectResponse);
    EXPECT_EQ(response.param.alternate_accepted, accepts);
    EXPECT_EQ(response.param.alternate.address.destination_lid.value, kLidOfP.value + kLmcDistance);
    EXPECT_EQ(response.qp.path.address.destination_lid, kLidOfP) << "the primary path stays";
  }
  EXPECT_EQ(hosts.p.count(EventKind::kEstablished), 2U);
}

TEST_F(AlternatePathsTest, RouteWithOnePathOffersNoAlternatePath) {
  use_infiniband(false);
  hosts.p.create_listener(any4(kPort));
  hosts.p.adjust = [&](ConnParam& sent) { sent.alternate_accepted = true; };
  connect();
  EXPECT_EQ(last(hosts.p, EventKind::kConnectRequest).param.alternate.address.source, Gid{});
  EXPECT_FALSE(last(hosts.a, EventKind::kConnectResponse).param.alternate_accepted);
}

TEST_F(AlternatePathsTest, RefusedAcceptOnEthernetChangesNothing) {
  hosts.p.create_listener(any4(kPort));
  hosts.p.auto_continue = false;
  connect();
  const Event request = last(hosts.p, EventKind::kConnectRequest);
  ConnParam sent = param(0x22);
  sent.alternate_accepted = true;
  hosts.p.call([&](Manager& m) {
    const auto result = m.accept(kProgram, request.id, sent, hosts.p.now());
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Errc::kNotSupported);
    sent.alternate_accepted = false;
    EXPECT_TRUE(m.accept(kProgram, request.id, sent, hosts.p.now()));
  });
  hosts.run(100ms);
  EXPECT_FALSE(last(hosts.a, EventKind::kConnectResponse).param.alternate_accepted);
  EXPECT_EQ(hosts.p.count(EventKind::kEstablished), 1U);
}

}  // namespace
}  // namespace verbena::rdmacm
