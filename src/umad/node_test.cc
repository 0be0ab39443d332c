#include "umad/node.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>

namespace verbena::umad {
namespace {

using namespace std::chrono_literals;
using ipc::umad::Register;
using ipc::umad::UserMad;
using wire::MadHeader;
using wire::Method;
using wire::MgmtClass;

// Provides two HCAs at one switch, and the node of the first HCA.
class UmadNodeTest : public testing::Test {
 protected:
  UmadNodeTest() {
    subnet::Topology topology;
    const auto sw = topology.add_switch("S1", 2);
    for (const char* name : {"H1", "H2"}) {
      const auto hca = topology.add_hca(name);
      topology.connect({.node = sw, .port = static_cast<std::uint8_t>(hca)},
                       {.node = hca, .port = 1});
    }
    subnet::set_missing_guids(topology);
    net = std::make_unique<subnet::Subnet>(topology);
    node = std::make_unique<Node>(*net, 1, "verbena0");
  }

  // Delivers the packets of the subnet, until none is under way.
  void deliver_packets() {
    while (const auto delivery = net->next_delivery()) {
      if (delivery->port.node != 1) continue;
      if (const auto mad = net->as_mad(*delivery)) node->receive(*mad, now);
    }
  }
  std::vector<std::byte> direct_get(std::uint32_t id) const {
    std::vector<std::byte> mad(wire::kMadBytes);
    wire::encode_to(std::span(mad).first<wire::kMadHeaderBytes>(),
                    MadHeader{.mgmt_class = MgmtClass::kSubnetManagementDirected,
                              .class_version = 1,
                              .method = Method::kGet,
                              .transaction_id = id,
                              .attribute_id = 0x11});
    mad[32] = mad[33] = mad[34] = mad[35] = std::byte{0xff};  // DrSLID and DrDLID
    return mad;
  }
  UserMad header(std::uint32_t agent) const {
    return {.agent_id = agent, .timeout_ms = 100, .lid_be = 0xffff};
  }
  static constexpr Register kSmpClient{.qpn = 0, .mgmt_class = 0x81, .class_version = 1};

  std::unique_ptr<subnet::Subnet> net;
  std::unique_ptr<Node> node;
  Time now{1s};
};

TEST_F(UmadNodeTest, AgentNumbersStartAtZeroAndAreReused) {
  ASSERT_TRUE(node->open(7, "verbena0", 1));
  EXPECT_EQ(node->add_agent(7, kSmpClient).value, 0U);
  EXPECT_EQ(node->add_agent(7, kSmpClient).value, 1U);
  EXPECT_EQ(node->remove_agent(7, {.agent = 0}).error, 0);
  EXPECT_EQ(node->remove_agent(7, {.agent = 0}).error, EINVAL);
  EXPECT_EQ(node->add_agent(7, kSmpClient).value, 0U);
}

TEST_F(UmadNodeTest, SessionHasAtMostThirtyTwoAgents) {
  ASSERT_TRUE(node->open(7, "verbena0", 1));
  for (std::uint32_t i = 0; i < 32; ++i) ASSERT_EQ(node->add_agent(7, kSmpClient).error, 0);
  EXPECT_EQ(node->add_agent(7, kSmpClient).error, ENOMEM);
}

TEST_F(UmadNodeTest, ClosingASessionUnregistersItsAgents) {
  constexpr Register kManager{
      .qpn = 0, .mgmt_class = 0x81, .class_version = 1, .methods = {0b110, 0}};
  ASSERT_TRUE(node->open(7, "verbena0", 1));
  ASSERT_EQ(node->add_agent(7, kManager).error, 0);
  ASSERT_TRUE(node->open(8, "verbena0", 1));
  EXPECT_EQ(node->add_agent(8, kManager).error, EINVAL) << "another agent has these methods";
  node->close(7);
  EXPECT_EQ(node->add_agent(8, kManager).error, 0);
}

TEST_F(UmadNodeTest, UnknownDevicesAndPortsCannotBeOpened) {
  EXPECT_FALSE(node->open(7, "mlx5_0", 1));
  EXPECT_FALSE(node->open(7, "verbena0", 0));
  EXPECT_FALSE(node->open(7, "verbena0", 2));
}

TEST_F(UmadNodeTest, DirectedRouteRequestToTheOwnPortIsAnswered) {
  ASSERT_TRUE(node->open(7, "verbena0", 1));
  const std::uint32_t agent = node->add_agent(7, kSmpClient).value;
  ASSERT_EQ(node->send(7, header(agent), direct_get(1), now).error, 0);
  deliver_packets();
  const auto answer = node->next_output();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->session, 7U);
  EXPECT_EQ(answer->header.agent_id, agent);
  EXPECT_EQ(answer->header.status, 0U);
  EXPECT_EQ(answer->header.length, 64U + 256);
  // NodeInfo begins with base version, class version, node type and number of ports.
  EXPECT_EQ(answer->mad[64 + 2], std::byte{1});
  EXPECT_EQ(answer->mad[64 + 3], std::byte{1});
}

TEST_F(UmadNodeTest, UnansweredRequestIsReturnedWithItsTimeoutAndStatus) {
  ASSERT_TRUE(node->open(7, "verbena0", 1));
  const std::uint32_t agent = node->add_agent(7, kSmpClient).value;
  auto lost_request = direct_get(2);
  lost_request[7] = std::byte{1};        // HopCount is 1
  lost_request[128 + 1] = std::byte{9};  // InitialPath[1] is a port that does not exist
  ASSERT_EQ(node->send(7, header(agent), lost_request, now).error, 0);
  deliver_packets();
  EXPECT_FALSE(node->next_output());
  ASSERT_EQ(node->deadline(), now + 100ms);
  now = node->deadline();
  node->on_timer(now);
  const auto report = node->next_output();
  ASSERT_TRUE(report);
  EXPECT_EQ(report->header.status, static_cast<std::uint32_t>(ETIMEDOUT));
  EXPECT_EQ(report->header.timeout_ms, 100U);
  EXPECT_EQ(report->mad.size(), wire::kMadHeaderBytes);
}

TEST_F(UmadNodeTest, InvalidMadsAreRefused) {
  ASSERT_TRUE(node->open(7, "verbena0", 1));
  const std::uint32_t agent = node->add_agent(7, kSmpClient).value;
  const auto mad = direct_get(3);
  EXPECT_EQ(node->send(8, header(agent), mad, now).error, EINVAL);
  EXPECT_EQ(node->send(7, header(agent + 1), mad, now).error, EINVAL);
  EXPECT_EQ(node->send(7, header(32), mad, now).error, EINVAL);
  EXPECT_EQ(node->send(7, header(agent), std::span(mad).first(20), now).error, EINVAL);
  UserMad unknown_pkey = header(agent);
  unknown_pkey.pkey_index = 9999;
  EXPECT_EQ(node->send(7, unknown_pkey, mad, now).error, EINVAL);
}

TEST_F(UmadNodeTest, PortReportsASubnetManagerWhileItsSmFileIsOpen) {
  constexpr std::uint32_t kIsSm = 2;
  const auto is_sm = [&] { return (node->describe().ports[0].capability_mask & kIsSm) != 0; };
  EXPECT_FALSE(is_sm());
  node->set_sm_file_open(1, true, now);
  EXPECT_TRUE(is_sm());
  node->set_sm_file_open(1, false, now);
  EXPECT_FALSE(is_sm());
}

TEST_F(UmadNodeTest, RatesAreTheSameAsOnLinux) {
  EXPECT_EQ(rate_of(subnet::LinkWidth::k1x, subnet::LinkSpeed::kSdr), 2U);
  EXPECT_EQ(rate_of(subnet::LinkWidth::k4x, subnet::LinkSpeed::kSdr), 10U);
  EXPECT_EQ(rate_of(subnet::LinkWidth::k4x, subnet::LinkSpeed::kFdr), 56U);
  EXPECT_EQ(rate_of(subnet::LinkWidth::k4x, subnet::LinkSpeed::kEdr), 100U);
  EXPECT_EQ(rate_of(subnet::LinkWidth::k4x, subnet::LinkSpeed::kFdr10), 40U);
  EXPECT_EQ(rate_of(subnet::LinkWidth::k4x, subnet::LinkSpeed::kXdr), 800U);
}

}  // namespace
}  // namespace verbena::umad
