#include <gtest/gtest.h>

#include <cerrno>
#include <set>

#include "rdmacm/hosts_test.h"

// Tests ids, addresses, ports and routes.

namespace verbena::rdmacm {
namespace {

using namespace std::chrono_literals;

class AddressTest : public testing::Test {
 protected:
  Errc bind(const SocketAddress& at, bool reuse = false, bool af_only = false) {
    const IdHandle id = hosts.a.create_id();
    if (reuse) (void)cm.set_option(kProgram, id, Option::kReuseAddr, 1);
    if (af_only) (void)cm.set_option(kProgram, id, Option::kAfOnly, 1);
    const auto bound = cm.bind(kProgram, id, at, hosts.world.now());
    return bound ? kOk : bound.error().code;
  }
  static constexpr Errc kOk = static_cast<Errc>(0xff);

  Hosts hosts;
  Manager& cm = hosts.a.cm;
  Gid ip4 = hosts.a.ip4();
  Gid ip6 = hosts.a.ip6();
  Gid localhost = wire::ipv4_gid(kLocalhost);
  Gid localhost6 = ipv6(1, 0);
};

TEST_F(AddressTest, WildcardConflictsWithAddressesOfTheSamePort) {
  EXPECT_EQ(bind(any4(kPort)), kOk);
  EXPECT_EQ(bind(any4(kPort)), Errc::kAddressInUse);
  EXPECT_EQ(bind(address(ip4, kPort)), Errc::kAddressInUse);
  EXPECT_EQ(bind(any6(kPort)), Errc::kAddressInUse);  // an IPv6 wildcard includes IPv4
  EXPECT_EQ(bind(any6(kPort), false, true), kOk);
  EXPECT_EQ(bind(address(ip6, kPort)), Errc::kAddressInUse);
  EXPECT_EQ(bind(any4(kPort + 1)), kOk);
}

TEST_F(AddressTest, AddressConflictsWithWildcardsOfTheSamePort) {
  EXPECT_EQ(bind(address(ip4, kPort)), kOk);
  EXPECT_EQ(bind(address(ip4, kPort)), Errc::kAddressInUse);
  EXPECT_EQ(bind(address(ip6, kPort)), kOk);  // the same port on another address
  // A loopback address counts as a wildcard.
  EXPECT_EQ(bind(address(localhost, kPort)), Errc::kAddressInUse);
  EXPECT_EQ(bind(any4(kPort)), Errc::kAddressInUse);
  EXPECT_EQ(bind(any6(kPort), false, true), Errc::kAddressInUse);
}

TEST_F(AddressTest, ReuseAddrAllowsTwoBindsAndOneListener) {
  EXPECT_EQ(bind(address(ip4, kPort), true), kOk);
  EXPECT_EQ(bind(address(ip4, kPort), false), Errc::kAddressInUse);
  const IdHandle one = hosts.a.create_id();
  const IdHandle two = hosts.a.create_id();
  for (const IdHandle id : {one, two}) {
    EXPECT_TRUE(cm.set_option(kProgram, id, Option::kReuseAddr, 1).has_value());
    EXPECT_TRUE(cm.bind(kProgram, id, address(ip4, kPort), hosts.world.now()).has_value());
    EXPECT_EQ(cm.set_option(kProgram, id, Option::kReuseAddr, 0).error().code, Errc::kBadState);
  }
  EXPECT_TRUE(cm.listen(kProgram, one, 0).has_value());
  EXPECT_EQ(cm.listen(kProgram, two, 0).error().code, Errc::kAddressInUse);
  EXPECT_TRUE(cm.destroy_id(kProgram, one, {}).has_value());
  EXPECT_TRUE(cm.listen(kProgram, two, 0).has_value());
}

TEST_F(AddressTest, IdBindsOnlyToAddressesOfItsHost) {
  EXPECT_EQ(bind(address(hosts.p.ip4(), kPort)), Errc::kAddressNotFound);
  // The interface of this address is down.
  EXPECT_EQ(bind(address(wire::ipv4_gid(0x0a630001), kPort)), Errc::kAddressNotFound);
  EXPECT_EQ(bind(address(wire::ipv4_gid(0x7f123456), kPort + 1)), kOk);  // all of 127/8
  EXPECT_EQ(bind(address(hosts.a.link_local(), kPort, 2)), kOk);
  EXPECT_EQ(bind(address(hosts.a.link_local(), kPort, 3)), Errc::kAddressNotFound);
  EXPECT_EQ(bind({.ip = ip4, .port = kPort, .family = 0}), Errc::kInvalidArgument);
  EXPECT_EQ(bind({.ip = ip6, .port = kPort, .family = 4}), Errc::kInvalidArgument);
  EXPECT_EQ(bind({.ip = ip4, .port = kPort, .family = 6}), kOk);  // ::ffff:10.77.0.3
}

TEST_F(AddressTest, PortSpacesDoNotConflict) {
  EXPECT_EQ(bind(any4(kPort)), kOk);
  const IdHandle udp = hosts.a.create_id(kProgram, kPortSpaceUdp);
  EXPECT_TRUE(cm.bind(kProgram, udp, any4(kPort), hosts.world.now()).has_value());
  EXPECT_TRUE(cm.listen(kProgram, udp, 0).has_value());
  const IdHandle ipoib = hosts.a.create_id(kProgram, kPortSpaceIpoib);
  EXPECT_TRUE(cm.bind(kProgram, ipoib, any4(kPort), hosts.world.now()).has_value());
  EXPECT_EQ(cm.create_id(kProgram, 0x0003, 4, {}).error().code, Errc::kNotSupported);
}

TEST_F(AddressTest, EphemeralPortsAreUniqueAndInRange) {
  std::set<std::uint16_t> seen;
  for (int i = 0; i < 1000; ++i) {
    const IdHandle id = hosts.a.create_id();
    ASSERT_TRUE(cm.bind(kProgram, id, any4(), hosts.world.now()).has_value());
    const std::uint16_t port = cm.info(kProgram, id)->source.port;
    EXPECT_GE(port, kEphemeralFirst);
    EXPECT_LE(port, kEphemeralLast);
    EXPECT_TRUE(seen.insert(port).second);
  }
}

TEST_F(AddressTest, EphemeralPortsRunOut) {
  constexpr int kPortCount = kEphemeralLast - kEphemeralFirst + 1;
  Ports ports;
  Random random(1);
  for (int i = 0; i < kPortCount; ++i) {
    ASSERT_TRUE(
        ports.bind_ephemeral(6, {static_cast<std::uint64_t>(i)}, {.address = any4()}, random));
  }
  EXPECT_EQ(ports.bind_ephemeral(6, {1u << 20}, {.address = any4()}, random).error().code,
            Errc::kAddressInUse);
}

TEST_F(AddressTest, SpecificListenerPrecedesAWildcard) {
  const auto create_listener = [&](const SocketAddress& at) {
    const IdHandle id = hosts.p.create_id();
    EXPECT_TRUE(hosts.p.cm.set_option(kProgram, id, Option::kReuseAddr, 1).has_value());
    EXPECT_TRUE(hosts.p.cm.bind(kProgram, id, at, hosts.world.now()).has_value());
    EXPECT_TRUE(hosts.p.cm.listen(kProgram, id, 0).has_value());
    return id;
  };
  const IdHandle wildcard = create_listener(any6(kPort));
  const IdHandle specific = create_listener(address(hosts.p.ip4(), kPort));
  const auto listener_of = [&](const Gid& to) {
    hosts.a.connect(address(to, kPort));
    hosts.run(5s);
    const IdHandle found = hosts.p.last(EventKind::kConnectRequest)->listen_id;
    hosts.a.call([&](Manager& m) { m.remove_client(kProgram, hosts.world.now()); });
    hosts.run(5s);
    return found;
  };
  EXPECT_EQ(listener_of(hosts.p.ip4()), specific);
  EXPECT_EQ(listener_of(hosts.p.ip6()), wildcard);
  EXPECT_TRUE(hosts.p.cm.destroy_id(kProgram, specific, hosts.world.now()).has_value());
  EXPECT_EQ(listener_of(hosts.p.ip4()), wildcard);
}

TEST_F(AddressTest, ALoopbackAddressNamesNoDevice) {
  const SocketAddress addresses[] = {address(localhost, kPort), address(wire::ipv4_gid(0x7f123456)),
                                     address(localhost6)};
  for (const SocketAddress& at : addresses) {
    const IdHandle id = hosts.p.create_id();
    ASSERT_TRUE(hosts.p.cm.bind(kProgram, id, at, hosts.world.now()).has_value());
    EXPECT_EQ(hosts.p.cm.info(kProgram, id)->source.ip, at.ip) << "the address must not change";
    EXPECT_EQ(hosts.p.cm.info(kProgram, id)->bound_to_device, 0);
  }
}

TEST_F(AddressTest, LoopbackListenerAcceptsForAllAddresses) {
  const auto connects = [&](Host& from, const Gid& to) {
    hosts.p.events.clear();
    from.qpn += 1;  // one connection for each QP
    from.connect(address(to, kPort));
    hosts.run(5s);
    return hosts.p.count(EventKind::kConnectRequest) == 1;
  };
  const IdHandle ipv4_listener = hosts.p.create_listener(address(localhost, kPort));
  EXPECT_TRUE(connects(hosts.a, hosts.p.ip4()));
  EXPECT_TRUE(connects(hosts.p, localhost));
  EXPECT_FALSE(connects(hosts.a, hosts.p.ip6())) << "the IPv4 wildcard does not include IPv6";
  EXPECT_TRUE(hosts.p.cm.destroy_id(kProgram, ipv4_listener, hosts.world.now()).has_value());

  hosts.p.create_listener(address(localhost6, kPort));
  EXPECT_TRUE(connects(hosts.a, hosts.p.ip6()));
  EXPECT_TRUE(connects(hosts.a, hosts.p.ip4())) << "the IPv6 wildcard includes IPv4";
}

TEST_F(AddressTest, ListenersShareAPortOnDifferentAddresses) {
  const IdHandle ipv4_listener = hosts.p.create_listener(address(hosts.p.ip4(), kPort));
  const IdHandle ipv6_listener = hosts.p.create_listener(address(hosts.p.ip6(), kPort));
  hosts.a.connect(address(hosts.p.ip6(), kPort));
  hosts.run(5s);
  EXPECT_EQ(hosts.p.last(EventKind::kConnectRequest)->listen_id, ipv6_listener);
  EXPECT_TRUE(hosts.p.cm.destroy_id(kProgram, ipv6_listener, hosts.world.now()).has_value());
  hosts.a.connect(address(hosts.p.ip4(), kPort));
  hosts.run(5s);
  EXPECT_EQ(hosts.p.last(EventKind::kConnectRequest)->listen_id, ipv4_listener);
  // The second REQ names the same QP 0x11, but comes from another address, so the first connection
  // stays.
  EXPECT_EQ(hosts.p.last(EventKind::kDisconnected), nullptr);
}

TEST_F(AddressTest, ResolveAsksForARoute) {
  hosts.a.auto_continue = false;
  const IdHandle id = hosts.a.connect(address(hosts.p.ip4(), kPort));
  ASSERT_EQ(hosts.a.queries.size(), 1u);
  EXPECT_EQ(hosts.a.queries[0].destination, address(hosts.p.ip4(), kPort));
  EXPECT_EQ(hosts.a.queries[0].source.family, 0);
  EXPECT_EQ(hosts.a.last(EventKind::kAddrResolved)->id, id);
  const IdInfo info = *cm.info(kProgram, id);
  EXPECT_EQ(info.source.ip, ip4);
  EXPECT_GE(info.source.port, kEphemeralFirst);
  EXPECT_EQ(info.path.sgid_index, 1u);
  EXPECT_EQ(info.bound_to_device, 1);
}

TEST_F(AddressTest, RouteQueryNamesTheSource) {
  hosts.a.auto_continue = false;
  const SocketAddress from = address(ip4, 999);
  const IdHandle id = hosts.a.create_id();
  hosts.a.call([&](Manager& m) {
    EXPECT_TRUE(
        m.resolve_addr(kProgram, id, &from, address(hosts.p.ip4(), kPort), 1s, {}).has_value());
  });
  EXPECT_EQ(hosts.a.queries[0].source, from);
  EXPECT_EQ(cm.info(kProgram, id)->source, from);
  const SocketAddress ipv6_source = address(ip6);
  EXPECT_EQ(cm.resolve_addr(kProgram, hosts.a.create_id(), &ipv6_source,
                            address(hosts.p.ip4(), kPort), 1s, {})
                .error()
                .code,
            Errc::kInvalidArgument);
}

TEST_F(AddressTest, ResolveMayBeRetriedAfterAnError) {
  hosts.a.auto_continue = false;
  hosts.a.route = [](const RouteQuery&) -> Result<Route> {
    return fail(Errc::kSystem, "netlink", ENETUNREACH);
  };
  const IdHandle id = hosts.a.connect(address(hosts.p.ip4(), kPort));
  EXPECT_EQ(hosts.a.last(EventKind::kAddrError)->status, -ENETUNREACH);
  hosts.a.route = [](const RouteQuery&) -> Result<Route> {
    return fail(Errc::kAddressNotFound, "no host answers", EHOSTUNREACH);
  };
  hosts.a.connect(address(hosts.p.ip4(), kPort));
  EXPECT_EQ(hosts.a.last(EventKind::kAddrError)->status, -EHOSTUNREACH);
  hosts.a.route = [](const RouteQuery&) -> Result<Route> { return Route{.mtu = 3}; };
  hosts.a.call([&](Manager& m) {
    EXPECT_TRUE(
        m.resolve_addr(kProgram, id, nullptr, address(hosts.p.ip4(), kPort), 1s, {}).has_value());
  });
  EXPECT_NE(hosts.a.last(EventKind::kAddrResolved), nullptr);
}

TEST_F(AddressTest, ResolveTimesOut) {
  hosts.a.answer_routes = false;
  const IdHandle id = hosts.a.connect(address(hosts.p.ip4(), kPort));
  EXPECT_EQ(cm.bind(kProgram, id, any4(), hosts.world.now()).error().code, Errc::kBadState);
  hosts.run(1999ms);
  EXPECT_TRUE(hosts.a.events.empty());
  hosts.run(1ms);
  EXPECT_EQ(hosts.a.last(EventKind::kAddrError)->status, -ETIMEDOUT);
  // This answer comes too late.
  cm.on_route(hosts.a.queries[0].token, Route{.mtu = 3}, hosts.world.now());
  EXPECT_FALSE(cm.poll().has_value());
  EXPECT_EQ(cm.deadline(), kNever);
}

TEST_F(AddressTest, RouteOfADestroyedIdIsIgnored) {
  hosts.a.answer_routes = false;
  const IdHandle id = hosts.a.connect(address(hosts.p.ip4(), kPort));
  EXPECT_TRUE(cm.destroy_id(kProgram, id, {}).has_value());
  cm.on_route(hosts.a.queries[0].token, Route{.mtu = 3}, {});
  cm.on_route(12345, Route{.mtu = 3}, {});
  EXPECT_FALSE(cm.poll().has_value());
  EXPECT_EQ(cm.deadline(), kNever);
}

TEST_F(AddressTest, CallsInTheWrongStateOrWithInvalidValuesFail) {
  hosts.a.auto_continue = false;
  const IdHandle id = hosts.a.create_id();
  const ConnParam valid = param(1);
  EXPECT_EQ(cm.connect(kProgram, id, valid, {}).error().code, Errc::kBadState);
  EXPECT_EQ(cm.accept(kProgram, id, valid, {}).error().code, Errc::kBadState);
  EXPECT_EQ(cm.reject(kProgram, id, {}, {}).error().code, Errc::kBadState);
  EXPECT_EQ(cm.establish(kProgram, id, {}).error().code, Errc::kBadState);
  EXPECT_EQ(cm.disconnect(kProgram, id, {}).error().code, Errc::kBadState);
  EXPECT_TRUE(cm.listen(kProgram, id, 0).has_value());  // binds to any port, as on Linux
  EXPECT_EQ(cm.listen(kProgram, id, 0).error().code, Errc::kBadState);
  EXPECT_EQ(cm.bind(kProgram, id, any4(), hosts.world.now()).error().code, Errc::kBadState);
  EXPECT_EQ(cm.resolve_addr(kProgram, id, nullptr, any4(1), 1s, {}).error().code, Errc::kBadState);

  const IdHandle udp = hosts.a.create_id(kProgram, kPortSpaceUdp);
  EXPECT_EQ(cm.connect(kProgram, udp, valid, {}).error().code, Errc::kBadState);
  EXPECT_EQ(cm.accept(kProgram, udp, valid, {}).error().code, Errc::kBadState);
  EXPECT_EQ(cm.set_option(kProgram, id, Option::kTos, 256).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(cm.set_option(kProgram, id, Option::kAckTimeout, 32).error().code,
            Errc::kInvalidArgument);

  const IdHandle ready = hosts.a.connect(address(hosts.p.ip4(), kPort));
  ConnParam big = param(1);
  big.private_data_bytes = 57;
  EXPECT_EQ(cm.connect(kProgram, ready, big, {}).error().code, Errc::kInvalidArgument);
}

TEST_F(AddressTest, ForgedAndForeignIdsAreErrors) {
  const IdHandle mine = hosts.a.create_id();
  const IdHandle destroyed = hosts.a.create_id();
  EXPECT_TRUE(cm.destroy_id(kProgram, destroyed, {}).has_value());
  const auto is_bad_handle = [&](Owner owner, IdHandle id) {
    return cm.bind(owner, id, any4(), hosts.world.now()).error().code == Errc::kBadHandle &&
           cm.listen(owner, id, 0).error().code == Errc::kBadHandle &&
           cm.connect(owner, id, {}, {}).error().code == Errc::kBadHandle &&
           cm.accept(owner, id, {}, {}).error().code == Errc::kBadHandle &&
           cm.reject(owner, id, {}, {}).error().code == Errc::kBadHandle &&
           cm.establish(owner, id, {}).error().code == Errc::kBadHandle &&
           cm.disconnect(owner, id, {}).error().code == Errc::kBadHandle &&
           cm.resolve_addr(owner, id, nullptr, any4(1), 1s, {}).error().code == Errc::kBadHandle &&
           cm.set_option(owner, id, Option::kTos, 0).error().code == Errc::kBadHandle &&
           cm.info(owner, id).error().code == Errc::kBadHandle &&
           cm.destroy_id(owner, id, {}).error().code == Errc::kBadHandle;
  };
  EXPECT_TRUE(is_bad_handle(kOther, mine));
  EXPECT_TRUE(is_bad_handle(kProgram, destroyed));
  EXPECT_TRUE(is_bad_handle(kProgram, {0}));
  EXPECT_TRUE(is_bad_handle(kProgram, {~std::uint64_t{0}}));
  EXPECT_TRUE(is_bad_handle(kProgram, {mine.value + 1}));
}

TEST_F(AddressTest, LimitsIdsPerHostAndOwner) {
  Manager limited_manager({.ids_max = 3, .ids_per_owner_max = 2}, Random(1));
  EXPECT_TRUE(limited_manager.create_id(1, kPortSpaceTcp, kQpTypeRc, {}).has_value());
  EXPECT_TRUE(limited_manager.create_id(1, kPortSpaceTcp, kQpTypeRc, {}).has_value());
  EXPECT_EQ(limited_manager.create_id(1, kPortSpaceTcp, kQpTypeRc, {}).error().code,
            Errc::kNoResources);
  EXPECT_TRUE(limited_manager.create_id(2, kPortSpaceTcp, kQpTypeRc, {}).has_value());
  EXPECT_EQ(limited_manager.create_id(2, kPortSpaceTcp, kQpTypeRc, {}).error().code,
            Errc::kNoResources);
  EXPECT_EQ(limited_manager.limit_refusals(),
            (Manager::LimitRefusals{.ids = 1, .ids_per_owner = 1}));
}

TEST_F(AddressTest, RowsShowTheStatesOfIds) {
  hosts.p.create_listener(any4(kPort));
  hosts.a.connect(address(hosts.p.ip4(), kPort));
  hosts.run(5s);
  std::string text;
  for (const Manager* m : {&hosts.a.cm, &hosts.p.cm}) {
    m->visit([&](const Row& row) {
      text += std::string("\n") + row.state + " | " + row.cm_state + " | " +
              std::to_string(row.qpn) + " " + std::to_string(row.remote_qpn);
    });
  }
  EXPECT_EQ(text, R"(
connected | ESTABLISHED | 17 34
listening |  | 0 0
connected | ESTABLISHED | 34 17)");
}

}  // namespace
}  // namespace verbena::rdmacm
