#include <gtest/gtest.h>

#include <cerrno>
#include <optional>

#include "node/node.h"
#include "wire/ip.h"

namespace verbena::node {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kOwnUser = 0, kUser = 1000, kOtherUser = 1001;
const Gid kOwnAddress = wire::ipv4_gid(0x0a000001);
constexpr std::uint32_t kRangesPerUserMax = 3, kIdsPerUserMax = 5;

// Provides a node that serves several users.  The test acts as the programs and as the host.
class NodeUsers : public ::testing::Test {
 protected:
  NodeUsers() {
    node_.on_addresses({{.gid = kOwnAddress, .interface = 2, .mtu_bytes = 1500, .up = true}}, now_);
    node_.set_port(std::nullopt, now_);
  }

  ClientId add_program(std::uint32_t user) { return node_.add_program(now_, {.user = user}); }

  // Sends a request and returns the error that it ends with, if any.
  template <class Message>
  std::optional<ipc::Done> failure(ClientId client, const Message& message) {
    node_.on_message(client, ipc::encode(7, message), now_);
    std::optional<ipc::Done> failed;
    while (auto output = node_.poll()) {
      if (const auto* lease = std::get_if<Node::LeaseRequest>(&*output)) {
        node_.on_lease(lease->token, next_range_++, now_);
      }
      const auto* reply = std::get_if<Node::ToClient>(&*output);
      if (reply == nullptr) continue;
      const auto done = ipc::decode<ipc::Done>(*ipc::open(reply->message));
      if (done && done->failed) failed = *done;
    }
    return failed;
  }
  rdmacm::IdHandle create_id(ClientId client, std::uint16_t port_space) {
    const rdmacm::IdHandle id{(std::uint64_t{1} << 32) | ipc::kNameBit | next_id_++};
    EXPECT_FALSE(failure(client, ipc::CreateId{id, port_space, 2}));
    return id;
  }
  std::optional<ipc::Done> bind(ClientId client, std::uint16_t port) {
    return failure(client,
                   ipc::Bind{.id = create_id(client, rdmacm::kPortSpaceTcp),
                             .address = {.ip = wire::ipv4_gid(0), .port = port, .family = 4}});
  }
  // Listens on a service id, with an id without a port space.
  std::optional<ipc::Done> listen_on_service(ClientId client, std::uint64_t service,
                                             std::uint64_t mask = ~std::uint64_t{0}) {
    const rdmacm::IdHandle id = create_id(client, rdmacm::kPortSpaceNone);
    const auto refused = failure(client, ipc::Bind{.id = id, .address = address_of(service)});
    if (refused) return refused;
    return failure(client, ipc::Listen{.id = id, .filter = {.mask = {mask}}});
  }
  static rdmacm::SocketAddress address_of(std::uint64_t service) {
    return {.ip = kOwnAddress, .family = 4, .by_gid = true, .service = {service}};
  }

  Time now_{1s};
  Node node_{{.node_guid = {5},
              .build = "test",
              .unprivileged_port_start = 1024,
              .leases_per_user_max = kRangesPerUserMax,
              .ids_per_user_max = kIdsPerUserMax,
              .own_user = kOwnUser},
             Random(1)};
  std::uint16_t next_range_ = 100;
  std::uint32_t next_id_ = 1;
};

TEST_F(NodeUsers, AllProgramsOfAnotherUserShareALimitOfRanges) {
  const ClientId one = add_program(kUser), two = add_program(kUser);
  EXPECT_FALSE(failure(one, ipc::Lease{}));
  EXPECT_FALSE(failure(one, ipc::Lease{}));
  EXPECT_FALSE(failure(two, ipc::Lease{}));
  const auto refused = failure(two, ipc::Lease{});
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code, Errc::kNoResources);
  EXPECT_NE(refused->text.find("leases_per_user_max"), std::string::npos) << refused->text;
  EXPECT_FALSE(failure(add_program(kOtherUser), ipc::Lease{}));
  const ClientId own = add_program(kOwnUser);
  for (std::uint32_t i = 0; i <= kRangesPerUserMax; ++i) EXPECT_FALSE(failure(own, ipc::Lease{}));
}

TEST_F(NodeUsers, AllProgramsOfAnotherUserShareALimitOfIds) {
  const ClientId one = add_program(kUser), two = add_program(kUser), own = add_program(kOwnUser);
  const auto create = [&](ClientId client) {
    const rdmacm::IdHandle id{(std::uint64_t{1} << 32) | ipc::kNameBit | next_id_++};
    return failure(client, ipc::CreateId{id, rdmacm::kPortSpaceTcp, 2});
  };
  for (std::uint32_t i = 0; i < kIdsPerUserMax; ++i) EXPECT_FALSE(create(i % 2 == 0 ? one : two));
  const auto refused = create(two);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code, Errc::kNoResources);
  EXPECT_NE(refused->text.find("ids_per_user_max"), std::string::npos) << refused->text;
  EXPECT_FALSE(create(add_program(kOtherUser)));
  for (std::uint32_t i = 0; i <= kIdsPerUserMax; ++i) EXPECT_FALSE(create(own));
  node_.remove_program(one, now_);  // frees three ids
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(create(two));
  EXPECT_TRUE(create(two));
}

TEST_F(NodeUsers, OnlyRootMayBindAPortBelowUnprivilegedPortStart) {
  const ClientId user = add_program(kUser);
  const auto refused = bind(user, 1023);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code, Errc::kPermission);
  EXPECT_EQ(refused->detail, EACCES);
  EXPECT_FALSE(bind(user, 1024));
  EXPECT_FALSE(bind(user, 0));
  EXPECT_FALSE(bind(add_program(kOwnUser), 1023));
}

// The port p of TCP is the service id 0x01060000 + p (annex A11.2).
TEST_F(NodeUsers, OnlyRootMayListenOnTheServiceIdOfAPrivilegedPort) {
  const ClientId user = add_program(kUser), own = add_program(kOwnUser);
  constexpr std::uint64_t kOtherServicesToo = 0x0000'0000'00ff'ffff;
  for (const auto& refused : {listen_on_service(user, 0x0106'0016),
                              listen_on_service(user, 0x0206'0016, kOtherServicesToo)}) {
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->code, Errc::kPermission);
    EXPECT_EQ(refused->detail, EACCES);
  }
  EXPECT_FALSE(listen_on_service(user, 0x0106'0400));
  EXPECT_FALSE(listen_on_service(user, 0x1000'0000'0000'0016));
  EXPECT_FALSE(listen_on_service(own, 0x0106'0016));
}

TEST_F(NodeUsers, OnlyRootMayConnectPeerToPeerByAPrivilegedPort) {
  for (const std::uint32_t user : {kUser, kOwnUser}) {
    const ClientId client = add_program(user);
    const rdmacm::IdHandle id = create_id(client, rdmacm::kPortSpaceNone);
    EXPECT_FALSE(failure(
        client,
        ipc::ResolveAddress{.id = id, .destination = address_of(0x0106'0016), .timeout = 1s}));
    const auto refused = failure(client, ipc::Connect{.id = id, .param = {.peer_to_peer = true}});
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->code == Errc::kPermission, user == kUser);
  }
}

}  // namespace
}  // namespace verbena::node
