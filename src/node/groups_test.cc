#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "ipc/counters.h"
#include "node/node.h"
#include "wire/ip.h"

namespace verbena::node {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const Gid kGroup = wire::ipv4_gid(0xef4d0105);
const Gid kOtherGroup = wire::ipv4_gid(0xef4d0106);

HostAddress ipv4_address(std::uint32_t last_byte, std::uint32_t interface) {
  return {.gid = wire::ipv4_gid(0x0a000000 + last_byte), .interface = interface};
}
HostAddress ipv6_address(std::uint32_t interface) {
  Gid gid;
  gid.bytes[0] = std::byte{0xfd};
  return {.gid = gid, .interface = interface};
}

// Provides a node with two programs, which have the QPN ranges 1 and 2.  The test acts as the
// programs and as the node's owner.
class Groups : public ::testing::Test {
 protected:
  std::uint64_t counter(const char* name) const {
    const auto all = node_.counters();
    return std::ranges::find(all, name, &ipc::NamedCount::name)->value;
  }
  Groups() {
    node_.on_addresses({ipv4_address(1, 2), ipv4_address(2, 2), ipv6_address(3)}, now_);
    node_.set_port(std::nullopt, now_);
    for (const std::uint16_t range : std::to_array<std::uint16_t>({1, 2})) {
      clients_.push_back(node_.add_program(now_));
      node_.on_message(clients_.back(), ipc::encode(1, ipc::Lease{}), now_);
      while (const auto output = node_.poll()) {
        if (const auto* lease = std::get_if<Node::LeaseRequest>(&*output)) {
          node_.on_lease(lease->token, range, now_);
        }
      }
    }
  }
  // Formats the node's outputs: memberships as "range: interfaces", such as "1: 2 3", and replies
  // to programs.  Answers each membership with `answer`.
  std::vector<std::string> outputs(const Result<void>& answer = {}) {
    std::vector<std::string> lines;
    while (const auto output = node_.poll()) {
      if (const auto* wanted = std::get_if<Node::Membership>(&*output)) {
        std::string line = std::to_string(wanted->range) + ":";
        for (const auto interface : wanted->interfaces) line += " " + std::to_string(interface);
        lines.push_back(line + (wanted->group == kGroup ? "" : " of the other group"));
        node_.on_membership(wanted->token, answer);
      } else if (const auto* to = std::get_if<Node::ToClient>(&*output)) {
        const auto envelope = ipc::open(to->message).value();
        if (envelope.request == 0) continue;
        const auto done = ipc::decode<ipc::Done>(envelope).value();
        lines.push_back(done.failed ? done.text : "done");
      }
    }
    return lines;
  }
  template <class Message>
  std::vector<std::string> ask(std::size_t client, const Message& message,
                               const Result<void>& answer = {}) {
    node_.on_message(clients_[client], ipc::encode(7, message), now_);
    return outputs(answer);
  }

  Time now_{1s};
  Node node_{{.groups_per_client_max = 2}, Random(1)};
  std::vector<ClientId> clients_;
};

TEST_F(Groups, JoinIsForOneInterfaceOrForAllInterfacesWithTheIpVersionOfTheGroup) {
  EXPECT_THAT(ask(0, ipc::JoinGroup{1, kGroup, 5}), ElementsAre("1: 5", "done"));
  EXPECT_THAT(ask(0, ipc::JoinGroup{1, kGroup, 0}), ElementsAre("1: 2 5", "done"));
  EXPECT_THAT(ask(1, ipc::JoinGroup{2, kGroup, 0}), ElementsAre("2: 2", "done"));
  EXPECT_THAT(ask(0, ipc::LeaveGroup{1, kGroup, 5}), ElementsAre("1: 2", "done"));
  EXPECT_THAT(ask(0, ipc::LeaveGroup{1, kGroup, 0}), ElementsAre("1:", "done"));
  EXPECT_THAT(ask(0, ipc::LeaveGroup{1, kGroup, 0}), ElementsAre("done"));
}

TEST_F(Groups, JoinOfAllInterfacesIncludesLaterInterfaces) {
  ask(0, ipc::JoinGroup{1, kGroup, 0});
  ask(1, ipc::JoinGroup{2, kGroup, 2});
  node_.on_addresses({ipv4_address(1, 2), ipv4_address(3, 4)}, now_);
  EXPECT_THAT(outputs(), ElementsAre("1: 2 4"));
  node_.on_addresses({ipv4_address(3, 4)}, now_);
  EXPECT_THAT(outputs(), ElementsAre("1: 4"));
}

TEST_F(Groups, JoinThatTheHostRefusesIsReportedAndUndone) {
  const Result<void> refusal = fail(Errc::kNoResources, "the host's limit");
  EXPECT_THAT(ask(0, ipc::JoinGroup{1, kGroup, 0}, refusal),
              ElementsAre("1: 2", "1:", "the host's limit"));
  EXPECT_EQ(counter("limit_groups"), 1u);
  node_.on_addresses({ipv4_address(1, 2), ipv4_address(3, 4)}, now_);
  EXPECT_THAT(outputs(), IsEmpty());
}

TEST_F(Groups, RefusedRepeatOfAJoinKeepsTheMembership) {
  EXPECT_THAT(ask(0, ipc::JoinGroup{1, kGroup, 5}), ElementsAre("1: 5", "done"));
  const Result<void> refusal = fail(Errc::kNoResources, "the host's limit");
  EXPECT_THAT(ask(0, ipc::JoinGroup{1, kGroup, 5}, refusal),
              ElementsAre("1: 5", "the host's limit"));
  EXPECT_THAT(ask(0, ipc::LeaveGroup{1, kGroup, 5}), ElementsAre("1:", "done"));
}

TEST_F(Groups, JoinNeedsAGroupAddressAndARangeOfTheProgram) {
  EXPECT_THAT(ask(0, ipc::JoinGroup{2, kGroup, 0}), ElementsAre("not a range of this program"));
  EXPECT_THAT(ask(0, ipc::LeaveGroup{2, kGroup, 0}), ElementsAre("not a range of this program"));
  EXPECT_THAT(ask(0, ipc::JoinGroup{1, wire::ipv4_gid(0x0a000001), 0}),
              ElementsAre("not the address of a multicast group"));
}

TEST_F(Groups, TheGroupsOfAProgramAreLimited) {
  ask(0, ipc::JoinGroup{1, kGroup, 0});
  ask(0, ipc::JoinGroup{1, kOtherGroup, 0});
  EXPECT_THAT(ask(0, ipc::JoinGroup{1, wire::ipv4_gid(0xef000001), 0}),
              ElementsAre("the limit of multicast groups (groups_per_client_max) is reached"));
  EXPECT_THAT(ask(0, ipc::JoinGroup{1, kOtherGroup, 5}),
              ElementsAre("1: 2 5 of the other group", "done"));
  EXPECT_EQ(counter("limit_groups_of_client"), 1u);
}

TEST_F(Groups, TheNodeLeavesTheGroupsOfADeadProgram) {
  ask(0, ipc::JoinGroup{1, kGroup, 0});
  ask(0, ipc::JoinGroup{1, kOtherGroup, 5});
  ask(1, ipc::JoinGroup{2, kGroup, 0});
  node_.remove_program(clients_[0], now_);
  EXPECT_THAT(outputs(), ElementsAre("1:", "1: of the other group"));
}

TEST_F(Groups, TheNodeLeavesTheGroupsOfAReturnedRange) {
  ask(0, ipc::JoinGroup{1, kGroup, 0});
  ask(1, ipc::JoinGroup{2, kGroup, 0});
  EXPECT_THAT(ask(0, ipc::ReturnRange{1}), ElementsAre("1:", "done"));
  node_.on_addresses({ipv4_address(1, 2), ipv4_address(3, 4)}, now_);
  EXPECT_THAT(outputs(), ElementsAre("2: 2 4"));
}

TEST_F(Groups, ProgramThatDiesWhileJoiningGetsNoReply) {
  node_.on_message(clients_[0], ipc::encode(7, ipc::JoinGroup{1, kGroup, 0}), now_);
  node_.remove_program(clients_[0], now_);
  EXPECT_THAT(outputs(), ElementsAre("1: 2", "1:"));
}

}  // namespace
}  // namespace verbena::node
