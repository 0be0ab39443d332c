#include "agent/watch.h"

#include <gtest/gtest.h>

#include <array>
#include <asio/io_context.hpp>
#include <chrono>
#include <memory>
#include <optional>

#include "os/unix_channel.h"

namespace verbena::agent {
namespace {

// Two descriptors become readable at once.  The first callback destroys the other descriptor's
// watch, and starts to watch a third descriptor, on which nothing has happened.
TEST(WatchTest, EventOfADestroyedWatchIsNotDeliveredToANewWatch) {
  for (int i = 0; i < 20; ++i) {
    asio::io_context loop{1};
    std::array<std::pair<os::UnixChannel, os::UnixChannel>, 2> pairs{
        os::UnixChannel::pair().value(), os::UnixChannel::pair().value()};
    auto silent = os::UnixChannel::pair().value();
    std::array<std::unique_ptr<Watch>, 2> watches;
    std::optional<Watch> later;
    int spurious = 0, events = 0;
    for (std::size_t index = 0; index < 2; ++index) {
      watches[index] = std::make_unique<Watch>(loop, pairs[index].first.fd(), [&, index] {
        ++events;
        watches[1 - index].reset();
        watches[index]->read(false);
        later.emplace(loop, silent.first.fd(), [&] { ++spurious; });
      });
    }
    for (auto& [watched_end, other_end] : pairs) other_end.shut_down();
    loop.run_for(std::chrono::milliseconds(20));
    EXPECT_EQ(events, 1);
    EXPECT_EQ(spurious, 0);
  }
}

}  // namespace
}  // namespace verbena::agent
