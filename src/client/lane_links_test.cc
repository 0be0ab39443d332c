#include "client/lane_links.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/random.h"

namespace verbena::client {
namespace {

// A thread parks all existing lanes before it sleeps.  It must wake up to park a lane that is added
// later.
TEST(LaneLinks, ANewLaneWakesTheThreadThatWaitsForPackets) {
  hca::Engine engine(hca::Limits{}, Random(1));
  process::LaneManager lanes(engine);
  Watches watches = std::move(*Watches::create());
  LaneLinks links(lanes, watches);
  std::vector<os::Fd> fds;
  fds.push_back(std::move(os::create_shared_memory("lane", link::Lane::kBytes)->fd));
  for (int i = 0; i < 2; ++i) {
    fds.push_back(os::Fd(::fcntl(os::WakeFd::create()->fd(), F_DUPFD_CLOEXEC, 0)));
  }
  ASSERT_TRUE(links.add({.lane = 1}, std::move(fds)).has_value());
  const auto ready = watches.wait(Watches::For::kAll, Time{});
  EXPECT_NE(std::ranges::find(ready, Watches::Kind::kLanes), ready.end());
}

}  // namespace
}  // namespace verbena::client
