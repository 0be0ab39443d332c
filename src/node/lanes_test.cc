#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ipc/lane_messages.h"
#include "link/lane.h"
#include "node/node.h"
#include "wire/ip.h"

namespace verbena::node {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Makes a node to which tests connect programs.  The programs lease QPN ranges.  A lane is memory
// that two programs share for their packets (link/lane.h).  The test acts as the programs and as
// the node's owner.
class NodeLanes : public ::testing::Test {
 protected:
  NodeLanes() {
    node_.on_addresses(
        {{.gid = wire::ipv4_gid(0x0a000001), .interface = 2, .mtu_bytes = 1500, .up = true}}, now_);
    node_.set_port(std::nullopt, now_);
  }

  // Connects a program, which leases a QPN range.
  ClientId add_program(std::uint16_t range, bool supports_lanes = true, std::uint32_t user = 0) {
    const ClientId client =
        node_.add_program(now_, {.pid = 1, .user = user, .lanes = supports_lanes});
    lease(client, range);
    return client;
  }
  void lease(ClientId client, std::uint16_t range) {
    const ipc::Lease request{.direct = {.mark_address = 0x1000, .mark_value = 1}};
    node_.on_message(client, ipc::encode(7, request), now_);
    while (auto output = node_.poll()) {
      if (const auto* lease = std::get_if<Node::LeaseRequest>(&*output)) {
        node_.on_lease(lease->token, range, now_);
      } else {
        record(*output);
      }
    }
  }
  // Sends a request, and returns the outputs of the node as text.
  template <class Message>
  std::vector<std::string> send(ClientId client, const Message& message) {
    node_.on_message(client, ipc::encode(0, message), now_);
    return take_texts();
  }
  std::vector<std::string> take_texts() {
    while (auto output = node_.poll()) record(*output);
    return std::exchange(texts_, {});
  }
  void record(const Node::Output& output) {
    if (const auto* wanted = std::get_if<Node::LaneMemoryRequest>(&output)) {
      requested_lane_ = wanted->lane;
      // The text means that the node has asked for the memory of a lane.
      if (lane_memory_ == LaneMemory::kLater) return texts_.push_back("wanted");
      const bool is_made = lane_memory_ == LaneMemory::kAtOnce;
      node_.on_lane_memory(wanted->lane,
                           is_made ? Result<void>() : fail(Errc::kSystem, "no memory"));
    } else if (std::holds_alternative<Node::LaneHandedOver>(output)) {
      texts_.push_back("handed over");
    } else if (const auto* to_client = std::get_if<Node::ToClient>(&output)) {
      record(*to_client);
    }
  }
  void record(const Node::ToClient& output) {
    const auto envelope = *ipc::open(output.message);
    const std::string client = std::to_string(output.client) + ": ";
    if (const auto lane = ipc::decode<ipc::Lane>(envelope)) {
      std::string text = client + "lane to " + std::to_string(output.peer) + " side " +
                         std::to_string(lane->side) + " ranges";
      for (const auto range : lane->ranges) text += " " + std::to_string(range);
      if (lane->other_user) text += " of another user";
      if (lane->direct.pid == 0) text += " without access";
      texts_.push_back(text + (output.lane == lane->lane ? "" : " without memory"));
    } else if (const auto closed = ipc::decode<ipc::LaneClosed>(envelope)) {
      texts_.push_back(client + "closed");
    } else if (const auto no_lane = ipc::decode<ipc::NoLane>(envelope)) {
      texts_.push_back(client + "no lane to " + std::to_string(no_lane->range));
    } else if (const auto change = ipc::decode<ipc::LaneRange>(envelope)) {
      texts_.push_back(client + (change->taken ? "lane serves " : "lane no longer serves ") +
                       std::to_string(change->range));
    }
  }
  std::uint64_t counter(const std::string& name) const {
    for (const auto& entry : node_.counters()) {
      if (entry.name == name) return entry.value;
    }
    ADD_FAILURE() << "no counter " << name;
    return 0;
  }

  enum class LaneMemory { kAtOnce, kNever, kLater };

  Time now_{1s};
  Node node_{{.node_guid = {5}, .build = "test"}, Random(1)};
  LaneMemory lane_memory_ = LaneMemory::kAtOnce;
  LaneId requested_lane_ = 0;
  std::vector<std::string> texts_;
};

TEST_F(NodeLanes, BothProgramsGetALaneIfOneRequestsIt) {
  const ClientId one = add_program(11);
  const ClientId two = add_program(22);
  lease(two, 23);
  EXPECT_THAT(send(one, ipc::AttachLane{23}),
              ElementsAre("1: lane to 2 side 0 ranges 22 23", "2: lane to 1 side 1 ranges 11",
                          "handed over"));
  EXPECT_THAT(send(two, ipc::AttachLane{11}), ElementsAre("2: lane serves 11"));
  EXPECT_EQ(counter("lanes_opened"), 1U);
}

// A program gets no lane to a range that nobody has leased, to its own range, or to a program that
// does not support lanes.
TEST_F(NodeLanes, NoLaneIsMadeToAFreeRangeToAnOwnRangeOrWithoutSupportOfBothPrograms) {
  const ClientId one = add_program(11);
  const ClientId without_lanes = add_program(22, false);
  EXPECT_THAT(send(one, ipc::AttachLane{99}), ElementsAre("1: no lane to 99"));
  EXPECT_THAT(send(one, ipc::AttachLane{11}), ElementsAre("1: no lane to 11"));
  EXPECT_THAT(send(one, ipc::AttachLane{22}), ElementsAre("1: no lane to 22"));
  EXPECT_THAT(send(without_lanes, ipc::AttachLane{11}), ElementsAre("2: no lane to 11"));
}

// The peer of a program learns which ranges the program leases or returns after the lane was made.
TEST_F(NodeLanes, NewAndReturnedRangesAreReportedToThePeers) {
  const ClientId one = add_program(11);
  const ClientId two = add_program(22);
  send(one, ipc::AttachLane{22});
  lease(two, 23);
  EXPECT_THAT(take_texts(), ElementsAre("1: lane serves 23"));
  EXPECT_THAT(send(two, ipc::ReturnRange{23}), ElementsAre("1: lane no longer serves 23"));
}

TEST_F(NodeLanes, TheDeathOfAProgramClosesItsLaneAtThePeer) {
  const ClientId one = add_program(11);
  const ClientId two = add_program(22);
  send(one, ipc::AttachLane{22});
  node_.remove_program(two, now_);
  EXPECT_THAT(take_texts(), ElementsAre("1: closed"));
  EXPECT_THAT(send(one, ipc::AttachLane{22}), ElementsAre("1: no lane to 22"));
}

// No program gets the lane if one of the two dies before the lane is made.
TEST_F(NodeLanes, NoLaneIsSentIfAProgramDiesBeforeTheLaneIsMade) {
  lane_memory_ = LaneMemory::kLater;
  const ClientId one = add_program(11);
  const ClientId two = add_program(22);
  EXPECT_THAT(send(one, ipc::AttachLane{22}), ElementsAre("wanted"));
  EXPECT_THAT(send(two, ipc::AttachLane{11}), IsEmpty()) << "the lane is being made";
  node_.remove_program(two, now_);
  EXPECT_THAT(take_texts(), IsEmpty());
  node_.on_lane_memory(requested_lane_, {});
  EXPECT_THAT(take_texts(), ElementsAre("handed over"));
}

TEST_F(NodeLanes, WithoutMemoryNeitherProgramGetsALane) {
  lane_memory_ = LaneMemory::kNever;
  const ClientId one = add_program(11);
  add_program(22);
  EXPECT_THAT(send(one, ipc::AttachLane{22}),
              ElementsAre("1: no lane to 22", "2: no lane to 11", "handed over"));
  EXPECT_EQ(counter("lanes_failed"), 1U);
}

TEST_F(NodeLanes, TwoProgramsGetNoSecondLaneIfOneProgramCannotUseTheFirstLane) {
  const ClientId one = add_program(11);
  const ClientId two = add_program(22);
  send(one, ipc::AttachLane{22});
  EXPECT_THAT(send(one, ipc::CloseLane{.lane = requested_lane_, .broken = false}),
              ElementsAre("2: closed"));
  EXPECT_THAT(send(two, ipc::AttachLane{11}), ElementsAre("2: no lane to 11"));
  EXPECT_EQ(counter("lanes_unusable"), 1U);
  EXPECT_EQ(counter("lanes_broken"), 0U);
}

TEST_F(NodeLanes, TwoProgramsGetNoSecondLaneIfTheFirstLaneIsBroken) {
  const ClientId one = add_program(11);
  const ClientId two = add_program(22);
  send(one, ipc::AttachLane{22});
  EXPECT_THAT(send(add_program(33), ipc::CloseLane{requested_lane_, true}), IsEmpty())
      << "this program does not use the lane";
  EXPECT_THAT(send(one, ipc::CloseLane{requested_lane_, true}), ElementsAre("2: closed"));
  EXPECT_THAT(send(two, ipc::AttachLane{11}), ElementsAre("2: no lane to 11"));
  EXPECT_EQ(counter("lanes_broken"), 1U);
}

TEST_F(NodeLanes, TheLanesOfAProgramAreLimited) {
  const ClientId one = add_program(1);
  for (std::size_t i = 0; i < LaneTable::kPerProgramMax; ++i) {
    const auto range = static_cast<std::uint16_t>(100 + i);
    add_program(range);
    ASSERT_EQ(send(one, ipc::AttachLane{range}).size(), 3U);
  }
  add_program(99);
  EXPECT_THAT(send(one, ipc::AttachLane{99}), ElementsAre("1: no lane to 99"));
  EXPECT_EQ(counter("limit_lanes_of_client"), 1U);
}

TEST(LaneTable, TheLanesOfAHostAreLimited) {
  LaneTable table;
  for (std::size_t i = 0; i < LaneTable::kPerHostMax; ++i) {
    ASSERT_TRUE(table.open(1000 + i / 8, 2000 + i).has_value());
  }
  EXPECT_EQ(table.open(1, 2).error().code, Errc::kNoResources);
  EXPECT_EQ(table.counters().limit_host, 1U);
}

TEST_F(NodeLanes, ProgramsOfTwoUsersGetNoAccessToEachOthersMemory) {
  const ClientId one = add_program(11, true, 1000);
  add_program(22, true, 1001);
  EXPECT_THAT(
      send(one, ipc::AttachLane{22}),
      ElementsAre("1: lane to 2 side 0 ranges 22 of another user without access",
                  "2: lane to 1 side 1 ranges 11 of another user without access", "handed over"));
  add_program(33, true, 1000);
  EXPECT_THAT(
      send(one, ipc::AttachLane{33}),
      ElementsAre("1: lane to 3 side 0 ranges 33", "3: lane to 1 side 1 ranges 11", "handed over"));
}

}  // namespace
}  // namespace verbena::node
