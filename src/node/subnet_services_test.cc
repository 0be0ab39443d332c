#include "node/subnet_services.h"

#include <string_view>

#include "node/test_subnet_node.h"
#include "rdmacm/types.h"
#include "sa/services.h"

namespace verbena::node {
namespace {

using namespace std::chrono_literals;

constexpr ServiceId kService{0x1061bbd};

ipc::Service service(std::string_view name, ServiceId id = kService) {
  ipc::Service made{
      .service_id = id, .lease_seconds = 3600, .name = sa::ServiceQuery::name_of(name)};
  for (std::size_t i = 0; i < made.data.size(); ++i) made.data[i] = static_cast<std::byte>(i);
  return made;
}

// Tests services of programs at a simulated subnet administration.
class SubnetServicesTest : public SubnetNodeTest {
 protected:
  SubnetServicesTest() { other_client_ = node_.add_program(now()); }

  // Sends a request and returns the reply, or the error in it.
  template <class Reply, class Message>
  Result<Reply> ask(ClientId client, const Message& message) {
    exchange();
    messages_.clear();
    node_.on_message(client, ipc::encode(++last_request_, message), now());
    exchange();
    for (const ipc::Bytes& bytes : messages_[client]) {
      const auto envelope = ipc::open(bytes);
      if (envelope->request != last_request_) continue;
      if (envelope->type == ipc::Type::kDone && Reply::kType != ipc::Type::kDone) {
        return std::unexpected(Error{ipc::decode<ipc::Done>(*envelope)->code, 0, ""});
      }
      const auto reply = ipc::decode<Reply>(*envelope);
      if constexpr (Reply::kType == ipc::Type::kDone) {
        if (reply && reply->failed) return std::unexpected(Error{reply->code, 0, ""});
      }
      return reply;
    }
    return fail(Errc::kTimedOut, "no reply yet");
  }
  Result<ipc::ServiceAdded> add(ClientId client, const ipc::Service& what) {
    return ask<ipc::ServiceAdded>(client, ipc::AddService{.service = what});
  }
  Result<ipc::ServicesFound> find(const ipc::FindServices& wanted) {
    return ask<ipc::ServicesFound>(client_, wanted);
  }
  static ipc::FindServices by_name(std::string_view name) {
    return {.by_name = true, .name = sa::ServiceQuery::name_of(name), .timeout = 5s};
  }

  ClientId other_client_ = 0;
  std::uint64_t last_request_ = 100;
};

TEST_F(SubnetServicesTest, ARegisteredServiceIsFoundByItsNameAndByItsId) {
  ASSERT_TRUE(add(other_client_, service("database")));
  ASSERT_TRUE(add(other_client_, service("printer", {77})));

  ipc::Service expected = service("database");
  expected.gid = gid(1);
  expected.pkey = {0xffff};
  const auto found_by_name = find(by_name("database"));
  ASSERT_TRUE(found_by_name);
  ASSERT_EQ(found_by_name->services.size(), 1u);
  EXPECT_EQ(found_by_name->services[0], expected);
  EXPECT_EQ(found_by_name->omitted, 0u);

  const auto found_by_id = find({.by_id = true, .service_id = {77}, .timeout = 5s});
  ASSERT_TRUE(found_by_id);
  ASSERT_EQ(found_by_id->services.size(), 1u);
  EXPECT_EQ(found_by_id->services[0].name, sa::ServiceQuery::name_of("printer"));
  EXPECT_EQ(find({.timeout = 5s})->services.size(), 2u) << "all services";
  EXPECT_TRUE(find(by_name("nothing"))->services.empty());
}

TEST_F(SubnetServicesTest, AServiceEndsWhenItsProgramEndsOrRemovesIt) {
  ASSERT_TRUE(add(other_client_, service("database")));
  const auto printer = add(client_, service("printer", {77}));
  ASSERT_TRUE(printer);
  node_.remove_program(other_client_, now());
  exchange();
  EXPECT_EQ(manager_.services.size(), 1u);
  EXPECT_TRUE(ask<ipc::Done>(client_, ipc::RemoveService{printer->registration}));
  exchange();
  EXPECT_TRUE(manager_.services.empty());
  EXPECT_EQ(ask<ipc::Done>(client_, ipc::RemoveService{printer->registration}).error().code,
            Errc::kInvalidArgument);
}

TEST_F(SubnetServicesTest, OneServiceIsNotRegisteredTwice) {
  const auto first = add(other_client_, service("database"));
  ASSERT_TRUE(first);
  EXPECT_EQ(add(client_, service("database")).error().code, Errc::kAddressInUse);
  ipc::Service service_with_gid = service("database");
  service_with_gid.gid = gid(1);  // the same as the port's own GID, which is the default
  EXPECT_EQ(add(client_, service_with_gid).error().code, Errc::kAddressInUse);
  EXPECT_EQ(ask<ipc::Done>(client_, ipc::RemoveService{first->registration}).error().code,
            Errc::kInvalidArgument)
      << "this is the registration of another program";
  ASSERT_TRUE(ask<ipc::Done>(other_client_, ipc::RemoveService{first->registration}));
  EXPECT_TRUE(add(client_, service("database")));
}

TEST_F(SubnetServicesTest, QueriesWithoutAManagerEndAtTheirTimeout) {
  manager_.die();
  EXPECT_EQ(find(by_name("database")).error().code, Errc::kTimedOut) << "no reply yet";
  node_.on_message(client_, ipc::encode(5, by_name("database")), now());
  for (int i = 0; i < 1000 && node_.deadline() <= now() + 5s; ++i) {
    world_.run_until(std::max(node_.deadline(), now()));
    node_.on_timer(now());
    exchange();
  }
  const auto replies = messages_[client_];
  ASSERT_FALSE(replies.empty());
  const auto reply = ipc::decode<ipc::Done>(*ipc::open(replies.back()));
  ASSERT_TRUE(reply);
  EXPECT_TRUE(reply->failed);
  EXPECT_EQ(reply->code, Errc::kTimedOut);
}

TEST_F(SubnetServicesTest, InvalidRequestsAndLimitsAreRefused) {
  EXPECT_EQ(find({.port = {7, 1}, .timeout = 5s}).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(find({.timeout = -1s}).error().code, Errc::kInvalidArgument);
  ipc::Service no_lease = service("database");
  no_lease.lease_seconds = 0;
  EXPECT_EQ(add(client_, no_lease).error().code, Errc::kInvalidArgument);
  for (std::size_t i = 0; i < SubnetServices::kPerClientMax; ++i) {
    ASSERT_TRUE(add(other_client_, service("many", {1000 + i}))) << i;
  }
  EXPECT_EQ(add(other_client_, service("one more")).error().code, Errc::kNoResources);
  EXPECT_TRUE(add(client_, service("of another program")));
  const auto many = find(by_name("many"));
  ASSERT_TRUE(many);
  EXPECT_EQ(many->services.size(), ipc::kServicesPerReply);
  EXPECT_EQ(many->omitted, SubnetServices::kPerClientMax - ipc::kServicesPerReply);
}

// A program may set the path of an id whose address is resolved.
TEST_F(SubnetServicesTest, AnIdAcceptsOnlyAPathThatBeginsAtItsPort) {
  const rdmacm::IdHandle id{std::uint64_t{1} << 32 | ipc::kNameBit | ++id_count_};
  node_.on_message(client_, ipc::encode(0, ipc::CreateId{id, rdmacm::kPortSpaceTcp, 2}), now());
  rdmacm::PathInfo path{.address = {.link_layer = LinkLayer::kInfiniband,
                                    .source = gid(1),
                                    .destination = gid(2),
                                    .source_lid = lid(1),
                                    .destination_lid = lid(7),
                                    .service_level = 3},
                        .mtu = 4,
                        .packet_life_time = 14};
  const auto set_path = [&] {
    const auto done = ask<ipc::Done>(client_, ipc::SetPath{id, path});
    return done ? std::optional<Errc>() : done.error().code;
  };
  EXPECT_EQ(set_path(), Errc::kBadState) << "no address is resolved";
  node_.on_message(
      client_,
      ipc::encode(
          0,
          ipc::ResolveAddress{
              id, {}, {.ip = gid(2), .family = 6, .by_gid = true, .service = kService}, 30s}),
      now());
  exchange();
  EXPECT_EQ(set_path(), std::nullopt);
  path.address.source = gid(2);
  EXPECT_EQ(set_path(), Errc::kInvalidArgument) << "the GID is that of another port";
  path.address.source = gid(1);
  path.mtu = 6;
  EXPECT_EQ(set_path(), Errc::kInvalidArgument);
  path.mtu = 4;
  path.address.destination_lid = {};
  EXPECT_EQ(set_path(), Errc::kInvalidArgument);
}

}  // namespace
}  // namespace verbena::node
