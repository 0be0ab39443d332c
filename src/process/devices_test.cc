#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "process/async_type.h"
#include "process/fixture_test.h"

// Tests a program on a host with an Ethernet device and an InfiniBand device of two ports.
namespace verbena::process {
namespace {

constexpr PortId kEthernet{0, 1}, kInfiniband{1, 2};
constexpr Lid kLid{0x40};
constexpr Lid kPeerLid{0x77};

Gid gid_of(std::uint8_t number) {
  Gid gid{};
  gid.bytes[0] = std::byte{0xfe};
  gid.bytes[1] = std::byte{0x80};
  gid.bytes[15] = std::byte{number};
  return gid;
}

class Devices : public ProcessTest {
 protected:
  void SetUp() override {
    ProcessTest::SetUp();
    const ipc::Port first_port{.link_layer = LinkLayer::kInfiniband,
                               .active = true,
                               .gids = {{.gid = gid_of(1)}},
                               .lid = {0x10}};
    ipc::Port second_port = first_port;
    second_port.gids = {{.gid = gid_of(2)}};
    second_port.pkeys = {wire::kDefaultPkey, {0x8012}};
    second_port.lid = kLid;
    second_port.lmc = 2;
    devices_ = {device(), {.name = "hca0", .node_guid = {7}, .ports = {first_port, second_port}}};
    report_devices(devices_);
    (void)async_notices();
  }
  std::vector<AsyncNotice> async_notices() {
    std::vector<AsyncNotice> all;
    while (const auto notice = process_.poll_notice()) {
      if (const auto* async = std::get_if<AsyncNotice>(&*notice)) all.push_back(*async);
    }
    return all;
  }
  static link::Address address_by_lid() {
    return {
        .source_lid = {3}, .destination_lid = kPeerLid, .service_level = 5, .port = kInfiniband};
  }
  Errc path_error(const link::Address& to) {
    const auto path = process_.path(0, to);
    return path ? Errc{} : path.error().code;
  }

  std::vector<ipc::Device> devices_;
};

TEST_F(Devices, PathOnInfinibandUsesLids) {
  const auto path = process_.path(0, address_by_lid());
  ASSERT_TRUE(path.has_value());
  EXPECT_EQ(path->source_path_bits, 3);
  EXPECT_EQ(path->address, (link::Address{.link_layer = LinkLayer::kInfiniband,
                                          .source_lid = {kLid.value + 3},
                                          .destination_lid = kPeerLid,
                                          .service_level = 5,
                                          .port = kInfiniband}));
}

TEST_F(Devices, GlobalPathOnInfinibandAlsoHasTheGids) {
  link::Address to = address_by_lid();
  to.destination = gid_of(9);
  to.has_grh = true;
  to.hop_limit = 0;
  const auto path = process_.path(0, to);
  ASSERT_TRUE(path.has_value());
  EXPECT_EQ(path->address.source, gid_of(2));
  EXPECT_EQ(path->address.destination, gid_of(9));
  EXPECT_TRUE(path->address.has_grh);
  EXPECT_EQ(path->address.hop_limit, 64);
}

TEST_F(Devices, PathsThatThePortDoesNotAllowAreRefused) {
  link::Address to = address_by_lid();
  to.source_lid = {4};
  EXPECT_EQ(path_error(to), Errc::kInvalidArgument) << "the LMC allows four LIDs";
  to = address_by_lid();
  to.destination_lid = {};
  EXPECT_EQ(path_error(to), Errc::kInvalidArgument) << "there is no destination";
  to = address_by_lid();
  to.service_level = 16;
  EXPECT_EQ(path_error(to), Errc::kInvalidArgument);
  to = address_by_lid();
  to.port = {1, 3};
  EXPECT_EQ(path_error(to), Errc::kInvalidArgument) << "there is no such port";
  EXPECT_EQ(path_error({.destination = kRemoteGid, .port = kEthernet}), Errc::kInvalidArgument)
      << "Ethernet needs a global address";
}

TEST_F(Devices, PortChangesRaiseEventsOfThatPort) {
  ipc::Port& port = devices_[1].ports[1];
  port.lid = {0x80};
  report_devices(devices_);
  port.sm_lid = {5};
  report_devices(devices_);
  port.link.reregistrations = 1;
  report_devices(devices_);
  port.active = false;
  report_devices(devices_);
  const auto notices = async_notices();
  ASSERT_EQ(notices.size(), 4u);
  EXPECT_EQ(notices[0].type, std::to_underlying(AsyncType::kLidChange));
  EXPECT_EQ(notices[1].type, std::to_underlying(AsyncType::kSmChange));
  EXPECT_EQ(notices[2].type, std::to_underlying(AsyncType::kClientReregister));
  EXPECT_EQ(notices[3].type, std::to_underlying(AsyncType::kPortError));
  for (const AsyncNotice& notice : notices) EXPECT_EQ(notice.port, kInfiniband);
}

TEST_F(Devices, InvalidDeviceListsAreRefused) {
  const auto accepts = [&](const std::vector<ipc::Device>& devices) {
    return process_.on_message(ipc::encode(0, ipc::DevicesChanged{devices}), kNow).has_value();
  };
  EXPECT_TRUE(accepts(devices_));
  EXPECT_FALSE(accepts({}));
  EXPECT_FALSE(accepts({{.ports = {}}}));
  EXPECT_FALSE(accepts(std::vector<ipc::Device>(kDevicesMax + 1)));
  EXPECT_FALSE(accepts({{.ports = std::vector<ipc::Port>(kPortsPerDeviceMax + 1)}}));
  EXPECT_FALSE(accepts({{.ports = {{.pkeys = {}}}}}));
  EXPECT_FALSE(accepts({{.ports = {{.pkeys = std::vector<Pkey>(ipc::Port::kPkeysMax + 1)}}}}));
  EXPECT_FALSE(accepts({{.ports = {{.lmc = 8}}}}));
  EXPECT_EQ(process_.devices().size(), 2u) << "the last valid list remains";
}

TEST_F(Devices, IdRefusesAQueuePairOfAnotherDevice) {
  const ConnectionHandle id = create_resolved_id();
  init_.device = 1;
  const auto refused = process_.set_qp(id, create_qp(), kNow);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::kInvalidArgument);
  init_.device = 0;
  EXPECT_TRUE(process_.set_qp(id, create_qp(), kNow).has_value());
}

}  // namespace
}  // namespace verbena::process
