#include <cerrno>

#include "process/fixture_test.h"

// Tests paths and services of ids on InfiniBand.  The test acts as the agent, so it also gives the
// answers of the subnet administration.

namespace verbena::process {
namespace {

using namespace std::chrono_literals;
using ::testing::SizeIs;

const Gid kOwnGid = [] {
  Gid gid{};
  gid.bytes[0] = std::byte{0xfe};
  gid.bytes[1] = std::byte{0x80};
  gid.bytes[15] = std::byte{0x31};
  return gid;
}();
const Gid kServiceGid = [] {
  Gid gid = kOwnGid;
  gid.bytes[15] = std::byte{0x32};
  return gid;
}();

class IdsOnInfiniband : public ProcessTest {
 protected:
  void SetUp() override {
    ProcessTest::SetUp();
    report_devices({{.ports = {{.link_layer = LinkLayer::kInfiniband,
                                .active = true,
                                .active_mtu = 4,
                                .gids = {{.gid = kOwnGid, .index = 0}},
                                .lid = {5}}}}});
  }
  static rdmacm::PathInfo path(Lid lid) {
    return {.address = {.link_layer = LinkLayer::kInfiniband,
                        .source = kOwnGid,
                        .destination = kServiceGid,
                        .source_lid = {5},
                        .destination_lid = lid},
            .mtu = 4,
            .packet_life_time = 18};
  }
  ConnectionHandle bound_id() {
    const ConnectionHandle id = create_id(rdmacm::kPortSpaceIb);
    const rdmacm::SocketAddress address{.ip = kOwnGid, .family = 6, .by_gid = true};
    keep_pending(process_.bind(id, address, [](auto) {}));
    answer<ipc::Bind>(ipc::Bound{.source = address, .on_device = true, .path = path({})});
    return id;
  }
  Started<ipc::Done> find_services(ConnectionHandle id) {
    return process_.find_services_for(id, {.service_id = ServiceId{7}, .timeout = 3s});
  }
  const Connection& connection(ConnectionHandle id) { return *process_.connection(id).value(); }
};

TEST_F(IdsOnInfiniband, SetPathReplacesThePathThatTheAgentHasFound) {
  const ConnectionHandle id = create_id();
  EXPECT_EQ(error_of(process_.set_path(id, path({9}), {})), Errc::kBadState);
  EXPECT_TRUE(is_done(process_.resolve_address(id, {}, {.ip = kRemoteGid, .family = 4}, {}, {})));
  drop_messages();
  deliver(rdmacm::Event{.id = kFirstId, .kind = EventKind::kAddrResolved, .path = path({6})});
  EXPECT_THAT(cm_notices(), SizeIs(1));

  keep_pending(process_.set_path(id, path({9}), [](auto) {}));
  answer<ipc::SetPath>(ipc::refusal({Errc::kInvalidArgument, 0, "no"}));
  EXPECT_THAT(cm_notices(), SizeIs(0));
  EXPECT_EQ(connection(id).path.address.destination_lid, Lid{6});

  bool done = false;
  keep_pending(process_.set_path(id, path({9}), [&](auto result) { done = result.has_value(); }));
  answer<ipc::SetPath>(ipc::Done{});
  EXPECT_TRUE(done);
  const auto notices = cm_notices();
  ASSERT_THAT(notices, SizeIs(1));
  EXPECT_EQ(notices[0].event.kind, EventKind::kRouteResolved);
  EXPECT_EQ(notices[0].event.path.address.destination_lid, Lid{9});
  EXPECT_EQ(connection(id).path.address.destination_lid, Lid{9});
  EXPECT_EQ(error_of(process_.set_path(id, path({9}), {})), Errc::kBadState)
      << "the route is resolved already";
}

TEST_F(IdsOnInfiniband, TheTypeOfServiceDoesNotChangeThePathRecord) {
  const ConnectionHandle id = create_id();
  EXPECT_TRUE(is_done(process_.resolve_address(id, {}, {.ip = kRemoteGid, .family = 4}, {}, {})));
  drop_messages();
  rdmacm::PathInfo found = path({6});
  found.address.traffic_class = 5;
  deliver(rdmacm::Event{.id = kFirstId, .kind = EventKind::kAddrResolved, .path = found});
  keep_pending(process_.set_option(id, 0, 0, 0x28, [](auto) {}));
  answer<ipc::SetOption>(ipc::Done{});
  EXPECT_TRUE(is_done(process_.resolve_route(id, 1s, {})));
  EXPECT_EQ(cm_notices().back().event.path.address.traffic_class, 5);
}

TEST_F(IdsOnInfiniband, TheFirstServiceThatIsFoundIsTheDestination) {
  const ConnectionHandle id = bound_id();
  EXPECT_TRUE(is_done(find_services(id)));
  EXPECT_EQ(error_of(find_services(id)), Errc::kBadState) << "a lookup is under way";
  const auto [number, find_request] = expect_message<ipc::FindServices>();
  EXPECT_FALSE(find_request.by_name);
  EXPECT_TRUE(find_request.by_id);
  EXPECT_EQ(find_request.service_id, ServiceId{7});
  EXPECT_EQ(find_request.timeout, 3s);
  EXPECT_EQ(error_of(process_.resolve_route(id, 1s, {})), Errc::kBadState);
  deliver(
      ipc::encode(number, ipc::ServicesFound{.services = {{.service_id = {7}, .gid = kServiceGid},
                                                          {.service_id = {7}, .gid = kOwnGid}}}));
  auto notices = cm_notices();
  ASSERT_THAT(notices, SizeIs(1));
  EXPECT_EQ(notices[0].event.kind, EventKind::kAddrInfoResolved);
  EXPECT_EQ(notices[0].event.status, 0);
  EXPECT_THAT(connection(id).services, SizeIs(2));

  keep_pending(process_.resolve_route(id, 4s, [](auto) {}));
  const auto [request, resolve] = expect_message<ipc::ResolveAddress>();
  EXPECT_EQ(resolve.destination.ip, kServiceGid);
  EXPECT_TRUE(resolve.destination.by_gid);
  EXPECT_EQ(resolve.destination.service, ServiceId{7});
  EXPECT_EQ(resolve.timeout, 4s);
  deliver(ipc::encode(request, ipc::Done{}));
  deliver(rdmacm::Event{.id = kFirstId, .kind = EventKind::kAddrResolved, .path = path({6})});
  notices = cm_notices();
  ASSERT_THAT(notices, SizeIs(1));
  EXPECT_EQ(notices[0].event.kind, EventKind::kRouteResolved);
  EXPECT_EQ(connection(id).stage, Connection::Stage::kRouteResolved);
}

TEST_F(IdsOnInfiniband, ResolveAddressAfterARefusedServiceRouteReportsAddrResolved) {
  const ConnectionHandle id = bound_id();
  EXPECT_TRUE(is_done(find_services(id)));
  answer<ipc::FindServices>(ipc::ServicesFound{.services = {{.gid = kServiceGid}}});
  keep_pending(process_.resolve_route(id, 4s, [](auto) {}));
  answer<ipc::ResolveAddress>(ipc::refusal({Errc::kInvalidArgument, 0, "no"}));
  keep_pending(process_.resolve_address(id, {}, {.ip = kServiceGid, .family = 6, .by_gid = true},
                                        4s, [](auto) {}));
  answer<ipc::ResolveAddress>(ipc::Done{});
  deliver(rdmacm::Event{.id = kFirstId, .kind = EventKind::kAddrResolved, .path = path({6})});
  const auto notices = cm_notices();
  ASSERT_THAT(notices, SizeIs(2));
  EXPECT_EQ(notices[1].event.kind, EventKind::kAddrResolved);
  EXPECT_EQ(connection(id).stage, Connection::Stage::kAddressResolved);
}

TEST_F(IdsOnInfiniband, AServiceWithoutARouteRaisesARouteError) {
  const ConnectionHandle id = bound_id();
  EXPECT_TRUE(is_done(find_services(id)));
  answer<ipc::FindServices>(ipc::ServicesFound{.services = {{.gid = kServiceGid}}});
  keep_pending(process_.resolve_route(id, 4s, [](auto) {}));
  answer<ipc::ResolveAddress>(ipc::Done{});
  deliver(rdmacm::Event{.id = kFirstId, .kind = EventKind::kAddrError, .status = -EHOSTUNREACH});
  const auto notices = cm_notices();
  ASSERT_THAT(notices, SizeIs(2));
  EXPECT_EQ(notices[1].event.kind, EventKind::kRouteError);
  EXPECT_EQ(notices[1].event.status, -EHOSTUNREACH);
  keep_pending(process_.resolve_route(id, 4s, [](auto) {}));  // the program may try again
  EXPECT_EQ(expect_message<ipc::ResolveAddress>().message.destination.ip, kServiceGid);
}

TEST_F(IdsOnInfiniband, TheProgramMayLookUpServicesAgainAfterAFailure) {
  const ConnectionHandle id = bound_id();
  EXPECT_TRUE(is_done(find_services(id)));
  answer<ipc::FindServices>(ipc::ServicesFound{});
  auto notices = cm_notices();
  ASSERT_THAT(notices, SizeIs(1));
  EXPECT_EQ(notices[0].event.kind, EventKind::kAddrInfoError);
  EXPECT_EQ(notices[0].event.status, -EADDRNOTAVAIL);
  EXPECT_FALSE(notices[0].why.empty());

  EXPECT_TRUE(is_done(find_services(id)));
  answer<ipc::FindServices>(ipc::refusal({Errc::kTimedOut, 0, "the manager is silent"}));
  notices = cm_notices();
  ASSERT_THAT(notices, SizeIs(1));
  EXPECT_EQ(notices[0].event.status, -ETIMEDOUT);
  EXPECT_EQ(notices[0].why, "the manager is silent");
}

TEST_F(IdsOnInfiniband, ServicesNeedAnIdThatIsBoundToAnInfinibandPort) {
  EXPECT_EQ(error_of(find_services(create_id())), Errc::kBadState);
  const ConnectionHandle id = bound_id();
  report_devices({{.ports = {{.active = true}}}});
  EXPECT_EQ(error_of(find_services(id)), Errc::kNotSupported);
}

TEST_F(IdsOnInfiniband, AReplyForADestroyedIdIsDropped) {
  const ConnectionHandle id = bound_id();
  EXPECT_TRUE(is_done(find_services(id)));
  const auto number = expect_message<ipc::FindServices>().request;
  ASSERT_TRUE(process_.destroy_id(id));
  deliver(ipc::encode(number, ipc::ServicesFound{.services = {{.gid = kServiceGid}}}));
  EXPECT_THAT(cm_notices(), SizeIs(0));
}

class AlternatePathsOfRoutes : public IdsOnInfiniband {
 protected:
  static constexpr Lid kOtherLid{19};

  hca::QpHandle give_qp(ConnectionHandle id) {
    const auto qp = drop_messages_and_create_qp();
    EXPECT_TRUE(process_.set_qp(id, qp, kNow).has_value());
    return qp;
  }
  rdmacm::Event event(EventKind kind) {
    rdmacm::Event made{.id = kFirstId, .kind = kind, .port_space = rdmacm::kPortSpaceTcp};
    made.qp_type = rdmacm::kQpTypeRc;
    made.path = path({6});
    made.qp = transition();
    made.qp.path = path({6});
    made.param.alternate = path(kOtherLid);
    return made;
  }
  // Accepts the request with a QP of the new id.  Then checks whether the request's alternate path
  // was accepted and loaded.
  void accept_request(rdmacm::Event request, bool expects_alternate) {
    const ConnectionHandle listener = create_id();
    keep_pending(process_.listen(listener, 1, [](auto) {}));
    answer<ipc::Listen>(ipc::Bound{});
    request.id = kChildId;
    request.listen_id = kFirstId;
    deliver(request);
    const ConnectionHandle child = cm_notices().at(0).new_id;
    const auto qp = give_qp(child);
    EXPECT_TRUE(is_done(process_.accept(child, {}, kNow, {})));
    EXPECT_EQ(expect_message<ipc::Accept>().message.param.alternate_accepted, expects_alternate);
    expect_alternate(qp, expects_alternate);
  }
  void expect_alternate(hca::QpHandle qp, bool loaded) {
    const auto attributes = process_.engine().query_qp(qp).value().attributes;
    EXPECT_EQ(attributes.state, QpState::kRts);
    EXPECT_EQ(attributes.alternate_path.address.destination_lid, loaded ? kOtherLid : Lid{});
    EXPECT_EQ(attributes.migration,
              loaded ? hca::MigrationState::kRearm : hca::MigrationState::kMigrated);
  }
};

TEST_F(AlternatePathsOfRoutes, AreLoadedWhenThePeerHasAcceptedThem) {
  for (const bool accepted : {false, true}) {
    const ConnectionHandle id = create_id();
    EXPECT_TRUE(is_done(process_.resolve_address(id, {}, {.ip = kRemoteGid, .family = 4}, {}, {})));
    drop_messages();
    rdmacm::Event resolved = event(EventKind::kAddrResolved);
    rdmacm::Event response = event(EventKind::kConnectResponse);
    resolved.id = response.id = accepted ? kSecondId : kFirstId;
    response.param.alternate_accepted = accepted;
    deliver(resolved);
    EXPECT_TRUE(is_done(process_.resolve_route(id, 1s, {})));
    const auto qp = give_qp(id);
    EXPECT_TRUE(is_done(process_.connect(id, {}, {})));
    (void)expect_message<ipc::Connect>();
    deliver(response);
    (void)expect_message<ipc::Establish>();
    expect_alternate(qp, accepted);
  }
}

TEST_F(AlternatePathsOfRoutes, AreAcceptedFromThePeerIfTheQpCanLoadThem) {
  accept_request(event(EventKind::kConnectRequest), true);
}

TEST_F(AlternatePathsOfRoutes, AreNotAcceptedIfTheyBeginAtNoPortOfTheDevice) {
  rdmacm::Event request = event(EventKind::kConnectRequest);
  request.param.alternate.address.source = kServiceGid;
  accept_request(request, false);
}

}  // namespace
}  // namespace verbena::process
