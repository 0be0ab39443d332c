#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <string>
#include <vector>

#include "rdmacm/hosts_test.h"

// Tests ids without a port space: arbitrary service ids, peer to peer, alternate paths, and all
// fields of the InfiniBand CM's messages.

namespace verbena::rdmacm {
namespace {

using namespace std::chrono_literals;

constexpr ServiceId kService{0x1000'0000'abcd'0042};
constexpr std::uint16_t kPathRejected = 3;

std::vector<std::byte> bytes(const std::string& text) {
  const auto raw = std::as_bytes(std::span(text));
  return {raw.begin(), raw.end()};
}

SocketAddress service_at(const Gid& gid, ServiceId service = kService) {
  SocketAddress result = address(gid, static_cast<std::uint16_t>(service.value));
  result.by_gid = true;
  result.service = service;
  return result;
}

class ServiceTest : public testing::Test {
 protected:
  // Returns an id that is bound to all GIDs or to one GID.
  IdHandle bound_id(Host& host, const SocketAddress& at = service_at({})) {
    const IdHandle id = host.create_id(kProgram, kPortSpaceNone);
    EXPECT_TRUE(host.cm.bind(kProgram, id, at, hosts.world.now()));
    return id;
  }
  IdHandle create_listener(const Filter& filter = {}, const SocketAddress& at = service_at({})) {
    const IdHandle id = bound_id(hosts.p, at);
    EXPECT_TRUE(hosts.p.cm.listen_for(kProgram, id, filter, 0));
    return id;
  }
  IdHandle connect(const std::string& data = "", ServiceId service = kService) {
    const IdHandle id = hosts.a.connect(service_at(hosts.p.ip4(), service), data, kPortSpaceNone);
    hosts.run(100ms);
    ++hosts.a.qpn, ++hosts.p.accepting_qpn;  // each QP is connected once
    return id;
  }
  void establish_connection() {
    listener_id = create_listener();
    active_id = connect();
    passive_id = hosts.p.last(EventKind::kConnectRequest)->id;
    ASSERT_EQ(hosts.p.count(EventKind::kEstablished), 1u) << hosts.text();
    hosts.clear();
  }
  Time now() const { return hosts.world.now(); }

  Hosts hosts;
  IdHandle listener_id{};
  IdHandle active_id{};
  IdHandle passive_id{};
};

TEST_F(ServiceTest, EachMessageCarriesPrivateData) {
  listener_id = create_listener();
  hosts.a.auto_continue = false;
  active_id = connect();
  const std::string max_data(kConnectByGidPrivateBytes, 'q');
  hosts.a.call([&](Manager& m) {
    EXPECT_TRUE(m.connect(kProgram, active_id, param(0x11, max_data), now()));
  });
  hosts.run(100ms);
  hosts.a.call([&](Manager& m) {
    EXPECT_EQ(m.establish(kProgram, active_id, now(), bytes(std::string(225, 'x'))).error().code,
              Errc::kInvalidArgument);
    EXPECT_TRUE(m.establish(kProgram, active_id, now(), bytes("ready")));
  });
  hosts.run(100ms);
  const Event& request = *hosts.p.last(EventKind::kConnectRequest);
  EXPECT_EQ(text_of(request.param), max_data);
  EXPECT_EQ(request.listen_id, listener_id);
  EXPECT_EQ(request.source, service_at(hosts.p.ip4()));
  EXPECT_EQ(request.port_space, kPortSpaceNone);
  ASSERT_EQ(hosts.p.count(EventKind::kEstablished), 1u) << hosts.text();
  EXPECT_EQ(text_of(hosts.p.last(EventKind::kEstablished)->param), "ready");
  hosts.a.call(
      [&](Manager& m) { EXPECT_TRUE(m.disconnect(kProgram, active_id, now(), bytes("bye"))); });
  hosts.run(100ms);
  EXPECT_EQ(text_of(hosts.p.last(EventKind::kDisconnected)->param), "bye");
}

TEST_F(ServiceTest, MasksAndDataSelectTheListener) {
  const Filter red_filter{.mask = {~std::uint64_t{0xff}},
                          .data = bytes("red"),
                          .data_mask = std::vector(3, std::byte{0xff})};
  const Filter blue_filter{.mask = {~std::uint64_t{0xff}},
                           .data = bytes("blu"),
                           .data_mask = std::vector(3, std::byte{0xff})};
  const IdHandle red = create_listener(red_filter);
  const IdHandle blue = create_listener(blue_filter);
  connect("blue", {kService.value + 1});
  EXPECT_EQ(hosts.p.last(EventKind::kConnectRequest)->listen_id, blue) << hosts.text();
  EXPECT_EQ(hosts.p.last(EventKind::kConnectRequest)->source.service.value, kService.value + 1);
  connect("red", {kService.value + 2});
  EXPECT_EQ(hosts.p.last(EventKind::kConnectRequest)->listen_id, red);
  connect("green", {kService.value + 2});
  EXPECT_EQ(hosts.a.last(EventKind::kRejected)->status, 8);
  connect("red", {kService.value + 0x100});
  EXPECT_EQ(hosts.a.count(EventKind::kRejected), 2u);

  const IdHandle unfiltered = bound_id(hosts.p);
  EXPECT_EQ(hosts.p.cm.listen_for(kProgram, unfiltered, {}, 0).error().code, Errc::kAddressInUse);
  EXPECT_TRUE(hosts.p.cm.destroy_id(kProgram, red, now()));
  EXPECT_TRUE(hosts.p.cm.destroy_id(kProgram, blue, now()));
  EXPECT_TRUE(hosts.p.cm.listen_for(kProgram, unfiltered, {}, 0));
}

// Ports are service ids, so a listener that overlaps with a port is refused.
TEST_F(ServiceTest, PortsConflictWithServiceIds) {
  ASSERT_TRUE(hosts.p.create_listener(any4(kPort)));
  const IdHandle all_ports = bound_id(hosts.p, service_at({}, service_id(kPortSpaceTcp, 0)));
  for (const std::uint64_t ignored_bits :
       {std::uint64_t{0xffff}, ~std::uint64_t{0}, std::uint64_t{2}}) {
    EXPECT_EQ(hosts.p.cm.listen_for(kProgram, all_ports, {.mask = {~ignored_bits}}, 0).error().code,
              Errc::kInvalidArgument);
  }
  const IdHandle one = bound_id(hosts.p, service_at({}, service_id(kPortSpaceTcp, kPort)));
  EXPECT_EQ(hosts.p.cm.listen_for(kProgram, one, {}, 0).error().code, Errc::kAddressInUse);
  create_listener({}, service_at({}, service_id(kPortSpaceTcp, kPort + 1)));
  EXPECT_FALSE(hosts.p.create_listener(any4(kPort + 1)));
  // The listener gets the request with its header.
  hosts.a.connect(address(hosts.p.ip4(), kPort + 1), "ping");
  hosts.run(100ms);
  const Event& request = *hosts.p.last(EventKind::kConnectRequest);
  EXPECT_EQ(request.param.private_data.at(wire::kRdmaIpCmHeaderBytes), std::byte{'p'});
}

TEST_F(ServiceTest, ListenerAtOneGidGetsNoRequestsForOtherGids) {
  create_listener({}, service_at(hosts.p.ip6()));
  connect();
  EXPECT_EQ(hosts.a.last(EventKind::kRejected)->status, 8) << hosts.text();
  hosts.a.connect(service_at(hosts.p.ip6()), "", kPortSpaceNone);
  hosts.run(100ms);
  EXPECT_EQ(hosts.p.count(EventKind::kConnectRequest), 1u) << hosts.text();
}

TEST_F(ServiceTest, EveryRejectReasonCarriesInfoAndData) {
  listener_id = create_listener();
  hosts.p.auto_continue = false;
  std::vector<std::uint16_t> reasons{kRejectVendorOption};
  for (std::uint16_t reason = 1; reason <= kRejectReasonMax; ++reason) reasons.push_back(reason);
  for (const std::uint16_t reason : reasons) {
    connect();
    passive_id = hosts.p.last(EventKind::kConnectRequest)->id;
    const auto info = bytes("more info");
    const auto data = bytes("sorry");
    hosts.p.call([&](Manager& m) {
      const auto result =
          m.reject(kProgram, passive_id,
                   {.reason = reason, .additional_info = info, .private_data = data}, now());
      EXPECT_TRUE(result) << reason;
    });
    hosts.run(100ms);
    const Event& event = *hosts.a.last(EventKind::kRejected);
    EXPECT_EQ(event.status, reason);
    EXPECT_EQ(event.additional_info, info);
    EXPECT_EQ(text_of(event.param), "sorry");
  }
  connect();
  passive_id = hosts.p.last(EventKind::kConnectRequest)->id;
  for (const std::uint16_t reason : std::to_array<std::uint16_t>({0, 34, 36})) {
    EXPECT_EQ(hosts.p.cm.reject(kProgram, passive_id, {.reason = reason}, now()).error().code,
              Errc::kInvalidArgument);
  }
  const std::vector<std::byte> too_much(73);
  EXPECT_FALSE(hosts.p.cm.reject(kProgram, passive_id, {.additional_info = too_much}, now()));
}

TEST_F(ServiceTest, PeerToPeerMakesOneConnection) {
  hosts.a.adjust = hosts.p.adjust = [](ConnParam& sent) { sent.peer_to_peer = true; };
  const IdHandle a = hosts.a.connect(service_at(hosts.p.ip4()), "from a", kPortSpaceNone);
  const IdHandle p = hosts.p.connect(service_at(hosts.a.ip4()), "from p", kPortSpaceNone);
  hosts.run(100ms);
  // One id has become the passive side, although it called connect().
  Host& passive_host = hosts.a.count(EventKind::kConnectRequest) == 1 ? hosts.a : hosts.p;
  Host& active_host = &passive_host == &hosts.a ? hosts.p : hosts.a;
  const IdHandle id_of_passive_host = &passive_host == &hosts.a ? a : p;
  ASSERT_EQ(passive_host.count(EventKind::kConnectRequest), 1u) << hosts.text();
  EXPECT_EQ(active_host.count(EventKind::kConnectRequest), 0u);
  EXPECT_EQ(passive_host.last(EventKind::kConnectRequest)->id, id_of_passive_host);
  EXPECT_EQ(passive_host.last(EventKind::kConnectRequest)->listen_id, id_of_passive_host);
  EXPECT_EQ(passive_host.last(EventKind::kConnectRequest)->source.service, kService);
  EXPECT_EQ(passive_host.last(EventKind::kEstablished)->id, id_of_passive_host);
  EXPECT_EQ(active_host.count(EventKind::kConnectResponse), 1u);
  EXPECT_EQ(hosts.a.cm.ids() + hosts.p.cm.ids(), 2u);
  EXPECT_EQ(text_of(passive_host.last(EventKind::kConnectRequest)->param),
            &passive_host == &hosts.a ? "from p" : "from a");
  hosts.a.call([&](Manager& m) { EXPECT_TRUE(m.disconnect(kProgram, a, now())); });
  hosts.run(5s);
  EXPECT_EQ(hosts.p.count(EventKind::kDisconnected), 1u);
}

// The side that connects first waits for the other.
TEST_F(ServiceTest, PeerMayConnectLater) {
  hosts.a.adjust = hosts.p.adjust = [](ConnParam& sent) { sent.peer_to_peer = true; };
  hosts.a.connect(service_at(hosts.p.ip4()), "", kPortSpaceNone);
  hosts.run(3s);
  EXPECT_EQ(hosts.a.count(EventKind::kRejected), 0u) << hosts.text();
  hosts.p.connect(service_at(hosts.a.ip4()), "", kPortSpaceNone);
  hosts.run(5s);
  EXPECT_EQ(hosts.a.count(EventKind::kEstablished) + hosts.p.count(EventKind::kEstablished), 1u)
      << hosts.text();
}

TEST_F(ServiceTest, ProgramChoosesTheTimeout) {
  hosts.lose_all = true;
  hosts.a.adjust = [](ConnParam& sent) { sent.timeout = 2s; };
  connect();
  hosts.run(1500ms);
  EXPECT_EQ(hosts.a.count(EventKind::kUnreachable), 0u);
  hosts.run(1s);
  EXPECT_EQ(hosts.a.last(EventKind::kUnreachable)->status, -ETIMEDOUT) << hosts.text();
}

TEST_F(ServiceTest, ReqOffersAnAlternatePath) {
  listener_id = create_listener();
  const PathInfo other{.address = {.source = hosts.a.ip6(),
                                   .destination = hosts.p.ip6(),
                                   .flow_label = 0x12345,
                                   .hop_limit = 9}};
  hosts.a.adjust = [&](ConnParam& sent) { sent.alternate = other; };
  for (const bool accepts : {true, false}) {
    hosts.p.adjust = [&](ConnParam& sent) { sent.alternate_accepted = accepts; };
    connect();
    const PathInfo& offered = hosts.p.last(EventKind::kConnectRequest)->param.alternate;
    EXPECT_EQ(offered.address.source, hosts.p.ip6());
    EXPECT_EQ(offered.address.destination, hosts.a.ip6());
    EXPECT_EQ(offered.sgid_index, 2u);
    EXPECT_EQ(offered.address.flow_label, 0x12345u);
    EXPECT_EQ(offered.address.hop_limit, 9);
    const ConnParam& response = hosts.a.last(EventKind::kConnectResponse)->param;
    EXPECT_EQ(response.alternate_accepted, accepts);
    EXPECT_EQ(response.alternate, other);
  }
  hosts.a.adjust = [&](ConnParam& sent) {
    sent.alternate = {.address = {.source = hosts.p.ip6()}};
  };
  connect();  // not an address of this host, so nothing is sent
  EXPECT_EQ(hosts.p.count(EventKind::kConnectRequest), 2u);
}

TEST_F(ServiceTest, OfferedPathIsAnsweredAndUsed) {
  establish_connection();
  const PathInfo other{.address = {.source = hosts.a.ip6(), .destination = hosts.p.ip6()}};
  hosts.a.call([&](Manager& m) {
    EXPECT_TRUE(m.load_path(kProgram, active_id, other, bytes("offer"), now()));
    EXPECT_EQ(m.load_path(kProgram, active_id, other, {}, now()).error().code, Errc::kBusy);
  });
  hosts.p.call([&](Manager& m) {  // the passive side must not load a path
    EXPECT_EQ(
        m.load_path(kProgram, passive_id,
                    {.address = {.source = hosts.p.ip6(), .destination = hosts.a.ip6()}}, {}, now())
            .error()
            .code,
        Errc::kNotSupported);
  });
  hosts.run(2ms);
  const Event& offered = *hosts.p.last(EventKind::kPathOffered);
  EXPECT_EQ(offered.id, passive_id);
  EXPECT_EQ(text_of(offered.param), "offer");
  EXPECT_EQ(offered.param.alternate.address.source, hosts.p.ip6());
  EXPECT_EQ(offered.param.alternate.address.destination, hosts.a.ip6());
  const auto info = bytes("why");
  hosts.p.call([&](Manager& m) {
    EXPECT_EQ(m.answer_path(kProgram, passive_id, {.status = 14}, now()).error().code,
              Errc::kInvalidArgument);
    EXPECT_TRUE(m.answer_path(kProgram, passive_id,
                              {.status = kPathRejected, .additional_info = info}, now()));
    EXPECT_EQ(m.answer_path(kProgram, passive_id, {}, now()).error().code, Errc::kBadState);
  });
  hosts.run(100ms);
  EXPECT_EQ(hosts.a.last(EventKind::kPathAnswered)->status, kPathRejected);
  EXPECT_EQ(hosts.a.last(EventKind::kPathAnswered)->additional_info, info);

  hosts.a.call(
      [&](Manager& m) { EXPECT_TRUE(m.load_path(kProgram, active_id, other, {}, now())); });
  hosts.run(2ms);
  hosts.p.call([&](Manager& m) { EXPECT_TRUE(m.answer_path(kProgram, passive_id, {}, now())); });
  hosts.run(100ms);
  EXPECT_EQ(hosts.a.last(EventKind::kPathAnswered)->status, 0);
  // After the QP has migrated, messages take the new path, too.
  hosts.a.cm.path_migrated({0x11});
  hosts.a.cm.path_migrated({0x99});  // no connection has this QPN
  std::vector<mad::SendMad> sent;
  ASSERT_TRUE(hosts.a.cm.disconnect(kProgram, active_id, now()));
  while (auto output = hosts.a.cm.poll()) {
    if (const auto* send = std::get_if<mad::SendMad>(&*output)) sent.push_back(*send);
  }
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].to.local(), hosts.a.ip6());
  EXPECT_EQ(sent[0].to.remote(), hosts.p.ip6());
}

TEST_F(ServiceTest, UnansweredPathIsGivenUp) {
  establish_connection();
  hosts.a.call([&](Manager& m) {
    EXPECT_TRUE(m.load_path(kProgram, active_id,
                            {.address = {.source = hosts.a.ip6(), .destination = hosts.p.ip6()}},
                            {}, now()));
  });
  hosts.lose_all = true;
  hosts.run(60s);
  const Event& event = *hosts.a.last(EventKind::kPathUnanswered);
  EXPECT_EQ(event.status, -ETIMEDOUT);
  EXPECT_GT(event.tries, 1u);
  EXPECT_EQ(hosts.a.count(EventKind::kDisconnected), 0u);
}

TEST_F(ServiceTest, DatagramsConnectByServiceId) {
  const auto id = hosts.p.cm.create_id(kProgram, kPortSpaceNone, kQpTypeUd, now());
  ASSERT_TRUE(id);
  ASSERT_TRUE(hosts.p.cm.bind(kProgram, *id, service_at({}), hosts.world.now()));
  ASSERT_TRUE(hosts.p.cm.listen_for(kProgram, *id, {}, 0));
  const auto connecting_id = hosts.a.cm.create_id(kProgram, kPortSpaceNone, kQpTypeUd, now());
  hosts.a.call([&](Manager& m) {
    EXPECT_TRUE(
        m.resolve_addr(kProgram, *connecting_id, nullptr, service_at(hosts.p.ip4()), 2s, now()));
  });
  hosts.run(100ms);
  ASSERT_EQ(hosts.p.count(EventKind::kConnectRequest), 1u) << hosts.text();
  EXPECT_EQ(hosts.p.last(EventKind::kConnectRequest)->listen_id, *id);
  EXPECT_EQ(hosts.a.last(EventKind::kEstablished)->param.qpn, 0x22u);
}

TEST_F(ServiceTest, RdmaCmIdsRejectInfinibandCmCalls) {
  const IdHandle by_port = hosts.p.create_id();
  ASSERT_TRUE(hosts.p.cm.bind(kProgram, by_port, any4(7174), hosts.world.now()));
  EXPECT_EQ(hosts.p.cm.listen_for(kProgram, by_port, {}, 0).error().code, Errc::kNotSupported);
  EXPECT_EQ(hosts.p.cm.load_path(kProgram, by_port, {}, {}, now()).error().code,
            Errc::kNotSupported);
  hosts.a.adjust = [](ConnParam& sent) { sent.peer_to_peer = true; };
  hosts.a.connect(address(hosts.p.ip4(), 7174));
  hosts.run(1s);
  EXPECT_FALSE(hosts.text().contains("REQ")) << hosts.text();

  const IdHandle id = hosts.p.create_id(kProgram, kPortSpaceNone);
  EXPECT_EQ(hosts.p.cm.bind(kProgram, id, any4(7175), hosts.world.now()).error().code,
            Errc::kInvalidArgument);
  EXPECT_EQ(hosts.p.cm.listen_for(kProgram, id, {}, 0).error().code, Errc::kBadState);
  EXPECT_EQ(hosts.p.cm.listen(kProgram, id, 0).error().code, Errc::kBadState);
  ASSERT_TRUE(hosts.p.cm.bind(kProgram, id, service_at({}), hosts.world.now()));
  EXPECT_EQ(hosts.p.cm.listen_for(kProgram, id, {.data = bytes("a")}, 0).error().code,
            Errc::kInvalidArgument);
  EXPECT_EQ(hosts.p.cm.load_path(kProgram, id, {}, {}, now()).error().code, Errc::kBadState);
  EXPECT_TRUE(hosts.p.cm.listen(kProgram, id, 0));  // for the whole service id, without a filter
}

}  // namespace
}  // namespace verbena::rdmacm
