#include "os/agent_name.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "os/test_process.h"

namespace verbena::os {
namespace {

constexpr const char* kHostUidMap = "         0          0 4294967295\n";

TEST(AgentName, UsesTheUserIdOutsideOfTheUserNamespace) {
  EXPECT_EQ(uid_outside(1000, kHostUidMap), 1000u);
  EXPECT_EQ(uid_outside(0, "0 1000 1\n"), 1000u);                    // unshare --map-root-user
  EXPECT_EQ(uid_outside(7, "0 1000 1\n1 100000 65536\n"), 100006u);  // newuidmap
  EXPECT_EQ(uid_outside(65534, "0 1000 1\n"), 65534u);               // not in the map
  EXPECT_EQ(uid_outside(3, ""), 3u);
}

TEST(AgentName, OnlyTheHostsRootGetsRootsName) {
  EXPECT_EQ(agent_socket_name(1000, false, 7), "verbena-1000");
  EXPECT_EQ(agent_socket_name(0, true, 7), "verbena-0");
  EXPECT_EQ(agent_socket_name(0, false, 7), "verbena-0-in-7");
}

TEST(AgentName, EachHostOfAFabricHasItsOwnName) {
  const std::string user_agent = agent_socket_name(0, false, ~std::uint64_t{0});
  EXPECT_EQ(agent_socket_name("verbena-1000", {"lab", "node-1"}).value(),
            "verbena-1000/lab/node-1");
  EXPECT_NE(agent_socket_name(user_agent, {"a", "b-c"}).value(),
            agent_socket_name(user_agent, {"a-b", "c"}).value());
  const std::string longest(32, 'x');
  EXPECT_LT(agent_socket_name(user_agent, {longest, longest}).value().size(), 107u);
  for (const FabricHost& invalid :
       {FabricHost{"", "a"}, FabricHost{"a", ""}, FabricHost{"a/b", "c"}, FabricHost{"a", "b c"},
        FabricHost{"a", longest + "x"}}) {
    const auto name = agent_socket_name(user_agent, invalid);
    ASSERT_FALSE(name.has_value()) << invalid.fabric << " " << invalid.host;
    EXPECT_EQ(name.error().code, Errc::kInvalidArgument);
  }
}

TEST(AgentName, IsTheSameInsideUnshareMapRootUser) {
  const std::string outside = agent_socket_name();
  EXPECT_EQ(run_in_child([&] {
              if (::getuid() == 0) ::_exit(0);  // the test needs an ordinary user
              const std::string map = "0 " + std::to_string(::geteuid()) + " 1";
              if (::unshare(CLONE_NEWUSER) != 0) ::_exit(0);
              std::ofstream("/proc/self/uid_map") << map;
              EXPECT_EQ(agent_socket_name(), outside);
            }),
            0);
}

}  // namespace
}  // namespace verbena::os
