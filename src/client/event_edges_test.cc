// Tests that a program that watches a descriptor edge-triggered (EPOLLET) is woken for each event,
// although it has not read the events before it.  Linux's device files wake it, too.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>

#include <array>
#include <cstdint>
#include <thread>

#include "c_api/requests.h"
#include "client/channels.h"
#include "os/fd.h"

namespace verbena::client {
namespace {

// Watches a descriptor edge-triggered.
class EdgeWatcher {
 public:
  explicit EdgeWatcher(int fd) {
    epoll_event event{.events = EPOLLIN | EPOLLET, .data = {.fd = fd}};
    EXPECT_EQ(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event), 0);
  }
  // Returns true if there was an edge since the last call.
  bool saw_edge() {
    epoll_event event{};
    return ::epoll_wait(epoll_.get(), &event, 1, 0) == 1;
  }

 private:
  os::Fd epoll_{::epoll_create1(EPOLL_CLOEXEC)};
};

bool is_readable(int fd) {
  pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&one, 1, 0) == 1;
}

// A channel with a watcher.
struct WatchedChannel {
  CompletionChannel channel{*os::EventFd::create()};
  EdgeWatcher watcher{channel.fd()};
};

TEST(EventEdges, EachCompletionEventWakesAnEdgeTriggeredWatcher) {
  Channels channels;
  const auto handle = *channels.create_completion();
  const std::uint64_t cq = *channels.add_object({.channel = handle, .cookie = 1});
  EdgeWatcher watcher(channels.completion(handle)->fd());
  EXPECT_FALSE(watcher.saw_edge());
  for (int i = 0; i < 3; ++i) {
    channels.dispatch(process::CqNotice{cq});
    EXPECT_TRUE(watcher.saw_edge()) << "event " << i;
    EXPECT_FALSE(watcher.saw_edge());
  }
}

TEST(EventEdges, EachConnectionEventWakesAnEdgeTriggeredWatcher) {
  Channels channels;
  const auto handle = *channels.create_cm();
  const process::ConnectionHandle id{3};
  ASSERT_TRUE(channels.add_id(id, handle));
  EdgeWatcher watcher(channels.cm(handle)->fd());
  for (int i = 0; i < 3; ++i) {
    channels.dispatch(process::CmNotice{.id = id});
    EXPECT_TRUE(watcher.saw_edge()) << "event " << i;
  }
  ASSERT_TRUE(channels.write_event(process::CmNotice{.id = id}));
  EXPECT_TRUE(watcher.saw_edge()) << "an event of the program itself";
}

TEST(EventEdges, EachAsynchronousEventWakesAnEdgeTriggeredWatcher) {
  constexpr std::uint32_t kCommEst = 4, kPortErr = 10;
  Channels channels;
  const auto handle = *channels.create_context();
  const std::uint64_t qp = *channels.add_object({.context = handle, .cookie = 1});
  EdgeWatcher watcher(channels.context(handle)->fd());
  for (int i = 0; i < 2; ++i) {
    channels.dispatch(process::AsyncNotice{.type = kCommEst, .cookie = qp});
    EXPECT_TRUE(watcher.saw_edge()) << "event " << i << " of a QP";
    channels.dispatch(process::AsyncNotice{.type = kPortErr});
    EXPECT_TRUE(watcher.saw_edge()) << "event " << i << " of a port";
  }
}

TEST(EventEdges, EachFinishedRequestWakesAnEdgeTriggeredWatcher) {
  const auto queue = *c_api::RequestQueue::create();
  EdgeWatcher watcher(queue->fd());
  std::array<vb_request, 3> requests{};
  for (vb_request& request : requests) queue->begin(request);
  for (vb_request& request : requests) {
    queue->finish(request, 0, "");
    EXPECT_TRUE(watcher.saw_edge());
  }
  for (vb_request& request : requests) EXPECT_EQ(queue->next(), &request);
  EXPECT_FALSE(is_readable(queue->fd()));
}

// A program may read one event each time it is woken.
TEST(EventEdges, WatcherThatReadsOneEventForEachEdgeReadsAllEvents) {
  WatchedChannel one;
  CqEvent event;
  one.channel.push({.object = 1});
  one.channel.push({.object = 2});
  EXPECT_TRUE(one.watcher.saw_edge());
  EXPECT_TRUE(one.channel.try_next(event));
  one.channel.push({.object = 3});
  EXPECT_TRUE(one.watcher.saw_edge());
  EXPECT_TRUE(one.channel.try_next(event));
  EXPECT_EQ(event.object, 2U);
}

TEST(EventEdges, EventsThatTheReceivingThreadLeavesWakeAWatcher) {
  WatchedChannel one;
  CqEvent event;
  one.channel.push({.object = 1});
  EXPECT_TRUE(one.watcher.saw_edge());
  one.channel.will_receive();
  one.channel.push({.object = 2});
  EXPECT_TRUE(one.channel.take_received(event));
  EXPECT_EQ(event.object, 1U);
  EXPECT_TRUE(one.watcher.saw_edge());
  EXPECT_TRUE(one.channel.try_next(event));
  EXPECT_FALSE(is_readable(one.channel.fd()));
}

TEST(EventEdges, ReceivingThreadThatTakesItsOnlyEventWakesNoWatcher) {
  WatchedChannel one;
  CqEvent event;
  one.channel.will_receive();
  one.channel.push({.object = 1});
  EXPECT_TRUE(one.channel.take_received(event));
  EXPECT_FALSE(one.watcher.saw_edge());
}

TEST(EventEdges, DescriptorIsUnreadableAfterAReceivingThreadAndAnotherReaderTookAllEvents) {
  WatchedChannel one;
  CqEvent event;
  one.channel.push({.object = 1});
  one.channel.will_receive();
  one.channel.push({.object = 2});
  EXPECT_TRUE(one.channel.try_next(event));
  EXPECT_TRUE(one.channel.take_received(event));
  EXPECT_EQ(event.object, 2U);
  EXPECT_FALSE(is_readable(one.channel.fd()));
}

TEST(EventEdges, SleepingReaderAndWatcherOfOneChannelMissNoEvent) {
  constexpr std::uint64_t kEvents = 2000;
  WatchedChannel one;
  std::uint64_t read_by_thread = 0, read_by_watcher = 0;
  std::thread reader([&] {
    for (CqEvent event; one.channel.next(event) == 0 && event.object != 0;) ++read_by_thread;
  });
  for (std::uint64_t i = 1; i <= kEvents; ++i) {
    one.channel.push({.object = i});
    CqEvent event;
    if (one.watcher.saw_edge() && one.channel.try_next(event)) ++read_by_watcher;
  }
  one.channel.push({.object = 0});
  reader.join();
  EXPECT_EQ(read_by_thread + read_by_watcher, kEvents);
  EXPECT_FALSE(is_readable(one.channel.fd()));
}

}  // namespace
}  // namespace verbena::client
