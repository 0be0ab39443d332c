#include "client/blocked_wait.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csetjmp>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace verbena::client {
namespace {

constexpr std::uint8_t kNoChannel = 0xff;

// Simulates a program's engine with a socket, a lane and an agent.  A packet is one byte: the
// number of the channel that gets an event for the packet, or kNoChannel.  Each message of the
// agent causes an event of a connection.
struct Engine final : Driver::Work {
  explicit Engine(Watches& watches) : watches_(watches) {
    std::array<int, 2> pair{};
    VB_CHECK(::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair.data()) == 0);
    socket = os::Fd(pair[0]);
    peer = os::Fd(pair[1]);
    VB_CHECK(watches.add_socket(socket.get()).has_value());
    VB_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()) == 0);
    to_agent = os::Fd(pair[0]);
    agent = os::Fd(pair[1]);
    VB_CHECK(watches.add_agent(to_agent.get()).has_value());
    auto wake = *os::WakeFd::create();
    doorbell = ::dup(wake.fd());
    VB_CHECK(watches.add_lanes(std::move(wake)).has_value());
  }
  ~Engine() { ::close(doorbell); }

  // ---- the peer ----
  void send_by_udp(std::uint8_t channel) { ASSERT_EQ(::send(peer.get(), &channel, 1, 0), 1); }
  void send_by_lane(std::uint8_t channel) {
    in_lane = channel + 1;
    if (!is_parked.exchange(false)) return;
    ++doorbell_writes;
    const std::uint64_t one = 1;
    ASSERT_EQ(::write(doorbell, &one, sizeof one), 8);
  }

  void send_from_agent() { ASSERT_EQ(::send(agent.get(), "", 1, 0), 1); }

  // ---- Driver::Work ----
  bool receive(Time, std::optional<os::UdpReceiver::Poll> poll_mode) override {
    std::uint8_t channel = 0;
    if (message_noted.exchange(false)) {
      while (::recv(to_agent.get(), &channel, 1, MSG_DONTWAIT) == 1) connections.push({});
    }
    if (!poll_mode) return false;
    bool any_packets = false;
    while (::recv(socket.get(), &channel, 1, MSG_DONTWAIT) == 1) any_packets = take(channel);
    if (const int packet = in_lane.exchange(0); packet != 0) {
      any_packets = take(static_cast<std::uint8_t>(packet - 1));
    }
    return any_packets;
  }
  bool take(std::uint8_t channel) {
    if (channel != kNoChannel) channels[channel].push({.object = channel + 1u});
    ++received_packets;
    received_packets.notify_all();
    return true;
  }
  void flush() override { ++flushes; }
  bool take_unfinished() override { return false; }
  void deliver(Time) override {}
  Time deadline() const override { return kNever; }
  void begin_iteration() override {}
  bool end_iteration(Time) override { return false; }
  bool park() override {
    is_parked = true;
    if (in_lane == 0) return true;
    is_parked = false;
    return false;
  }
  void unpark() override {
    watches_.clear_lanes();
    is_parked = false;
  }
  bool has_lanes() override { return true; }
  bool waits_for_lane_space() override { return lane_is_full.load(); }
  bool has_posts() override { return false; }
  bool posts_can_wait() const override { return false; }
  bool acknowledgements_can_wait() const override { return true; }
  bool needs_flush() const override { return false; }
  bool needs_progress_thread() const override { return message_noted; }
  bool delegate_messages() override { return !answer_awaited; }
  void after_iteration() override {}
  void on_ready(Watches::Kind kind) override {
    if (kind == Watches::Kind::kAgent) message_noted = true;
  }

  os::Fd socket, peer, to_agent, agent;
  int doorbell = -1;
  std::array<CompletionChannel, 2> channels{CompletionChannel(*os::EventFd::create()),
                                            CompletionChannel(*os::EventFd::create())};
  CmChannel connections{*os::EventFd::create()};
  std::atomic<bool> message_noted{false};
  std::atomic<bool> answer_awaited{false};
  std::atomic<int> in_lane{0};  // 1 + the byte of the packet in the lane; 0: no packet
  std::atomic<bool> is_parked{false};
  std::atomic<bool> lane_is_full{false};
  std::atomic<int> doorbell_writes{0};
  std::atomic<int> received_packets{0};
  std::atomic<int> flushes{0};

 private:
  Watches& watches_;
};

// Waits until the thread sleeps in one of the system calls, and returns that call.  `id` is 0 until
// the thread has started.
long wait_until_thread_sleeps(const std::atomic<int>& id, std::initializer_list<long> calls) {
  id.wait(0);
  for (;;) {
    std::string text;
    std::ifstream("/proc/self/task/" + std::to_string(id) + "/syscall") >> text;
    const long call = std::atoi(text.c_str());
    if (std::ranges::find(calls, call) != calls.end() && text != "running") return call;
    std::this_thread::yield();
  }
}

// Runs a thread of the program that takes events of a channel.  The thread ends when a wait fails,
// when it has taken `events_max` events, or when stop() is called.
struct Waiter {
  Waiter(BlockedWait& wait, CompletionChannel& channel, int events_max = 1 << 30)
      : Waiter(wait, channel, CqEvent(), events_max) {}
  Waiter(BlockedWait& wait, CmChannel& channel)
      : Waiter(wait, channel, process::CmNotice(), 1 << 30) {}
  template <class Queue, class Entry>
  Waiter(BlockedWait& wait, Queue& channel, const Entry&, int events_max)
      : push_event([&channel] { channel.push(Entry()); }),
        thread([this, &wait, &channel, events_max] {
          id = static_cast<int>(::syscall(SYS_gettid));
          id.notify_all();
          Entry event;
          while (events < events_max && (error = wait.next(channel, event)) == 0) {
            if (should_stop) return;
            ++events;
            events.notify_all();
          }
        }) {}

  void wait_for_events(int count) {
    for (int now = events; now < count; now = events) events.wait(now);
  }
  // Returns when the thread sleeps in this system call.
  void wait_until_sleeping(long call = SYS_ppoll) { wait_until_thread_sleeps(id, {call}); }
  // Waits until the thread sleeps.  Returns true if it has the role of the receiver.
  bool has_role() { return wait_until_thread_sleeps(id, {SYS_ppoll, SYS_read}) == SYS_ppoll; }
  void cancel() {
    ::pthread_cancel(thread.native_handle());
    thread.join();
  }
  void stop() {
    should_stop = true;
    push_event();
    thread.join();
  }
  void interrupt(int signal) { ASSERT_EQ(::pthread_kill(thread.native_handle(), signal), 0); }

  std::atomic<int> id{0};
  std::atomic<int> events{0};
  std::atomic<bool> should_stop{false};
  int error = 0;
  std::function<void()> push_event;
  std::jthread thread;
};

void wait_until_readable(int fd) {
  pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&one, 1, -1), 1);
}

struct BlockedWaitTest : testing::Test {
  void SetUp() override { ASSERT_TRUE(driver.start()); }

  Watches watches = std::move(*Watches::create());
  Engine client{watches};
  Driver driver{client, watches};
  os::ForkMark fork_mark = std::move(*os::ForkMark::create());
  BlockedWait wait{driver, fork_mark};
};

// Sends one message after the other to a blocked thread, and checks which threads the messages
// wake.  A thread that waits long for a processor loses the role for a while.  Messages that come
// while the thread does not have the role are not checked.
template <class Send>
void exchange(BlockedWaitTest& test, Waiter& waiter, Send send) {
  constexpr int kBatch = 8, kMessages = 1000;
  // The thread may also lose the role within a batch and have it again at the end.
  constexpr std::uint64_t kSlack = kMessages / 4;
  int sent = 0;
  std::uint64_t progress_wakes = 0;
  for (int checked_messages = 0; checked_messages < kMessages;) {
    const bool has_role = waiter.has_role();
    const std::uint64_t before = test.driver.progress_wakes();
    for (int i = 0; i < kBatch; ++i) {
      send();
      waiter.wait_for_events(++sent);
    }
    if (!has_role || !waiter.has_role()) continue;
    checked_messages += kBatch;
    progress_wakes += test.driver.progress_wakes() - before;
  }
  EXPECT_LE(progress_wakes, kSlack);
  EXPECT_LE(test.driver.receiver_wakes(), static_cast<std::uint64_t>(sent) + kSlack);
  EXPECT_LE(test.client.doorbell_writes, sent);
  waiter.stop();
}

TEST_F(BlockedWaitTest, APacketByUdpWakesOnlyTheBlockedThread) {
  Waiter waiter(wait, client.channels[0]);
  exchange(*this, waiter, [&] { client.send_by_udp(0); });
}

TEST_F(BlockedWaitTest, APacketByALaneWakesOnlyTheBlockedThread) {
  Waiter waiter(wait, client.channels[0]);
  exchange(*this, waiter, [&] { client.send_by_lane(0); });
}

TEST_F(BlockedWaitTest, AMessageOfTheAgentWakesOnlyTheBlockedThread) {
  Waiter waiter(wait, client.connections);
  exchange(*this, waiter, [&] { client.send_from_agent(); });
}

// Many programs have one thread for connections and one for completions, which both wait all the
// time.
TEST_F(BlockedWaitTest, AThreadThatWaitsForCompletionsTakesTheRoleFromOneThatWaitsForConnections) {
  Waiter connections(wait, client.connections);
  connections.wait_until_sleeping();
  Waiter waiter(wait, client.channels[0]);
  exchange(*this, waiter, [&] { client.send_by_udp(0); });
  client.send_from_agent();
  connections.wait_for_events(1);
  connections.stop();
}

TEST_F(BlockedWaitTest, TheProgressThreadListensWhileACallWaitsForAnAnswer) {
  Waiter waiter(wait, client.channels[0], 1);
  waiter.wait_until_sleeping();
  client.answer_awaited = true;
  driver.wake();
  client.send_by_udp(0);
  waiter.wait_for_events(1);
  client.send_from_agent();
  wait_until_readable(client.connections.fd());
}

TEST_F(BlockedWaitTest, TheProgressThreadTakesOverFromAThreadThatIsCancelled) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer misses the locks of a thread that is cancelled in a system call";
#elif defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer keeps the stack of a cancelled thread poisoned";
#endif
  Waiter waiter(wait, client.channels[0]);
  waiter.wait_until_sleeping();
  waiter.cancel();
  client.send_by_udp(0);
  client.received_packets.wait(0);
  client.send_by_lane(1);
  client.received_packets.wait(1);
  wait_until_readable(client.channels[0].fd());
  wait_until_readable(client.channels[1].fd());
}

TEST_F(BlockedWaitTest, TheProgressThreadTakesOverFromAThreadThatDoesNotWaitAgain) {
  Waiter waiter(wait, client.channels[0], 1);
  waiter.wait_until_sleeping();
  client.send_by_lane(0);
  waiter.wait_for_events(1);
  for (int i = 1; i <= 10; ++i) {
    client.send_by_lane(1);
    client.received_packets.wait(i);
  }
  wait_until_readable(client.channels[1].fd());
}

TEST_F(BlockedWaitTest, AThreadGetsItsEventAfterTheProgressThreadTookOver) {
  {
    Waiter once(wait, client.channels[0], 1);
    once.wait_until_sleeping();
    client.send_by_udp(0);
  }
  Waiter waiter(wait, client.channels[1]);
  for (int i = 0; i < 100; ++i) {
    client.send_by_udp(1);
    waiter.wait_for_events(i + 1);
  }
  waiter.stop();
}

TEST_F(BlockedWaitTest, TwoThreadsOnTwoChannelsGetTheirEvents) {
  Waiter first(wait, client.channels[0]);
  Waiter second(wait, client.channels[1]);
  for (int i = 0; i < 1000; ++i) {
    client.send_by_udp(0);
    client.send_by_lane(1);
    first.wait_for_events(i + 1);
    second.wait_for_events(i + 1);
  }
  first.stop();
  second.stop();
}

TEST_F(BlockedWaitTest, TwoThreadsOnOneChannelTakeEachEventOnce) {
  Waiter first(wait, client.channels[0]);
  Waiter second(wait, client.channels[0]);
  constexpr int kMessages = 1000;
  for (int i = 0; i < kMessages; ++i) client.send_by_udp(0);
  while (first.events + second.events < kMessages) std::this_thread::yield();
  first.should_stop = second.should_stop = true;
  for (Waiter* waiter : {&first, &second}) waiter->push_event();
  first.thread.join();
  second.thread.join();
  EXPECT_EQ(first.events + second.events, kMessages);
}

TEST_F(BlockedWaitTest, AThreadThatGetsOnlyPacketsForOthersGivesTheRoleBack) {
  Waiter waiter(wait, client.channels[0]);
  for (int sent = 0; waiter.has_role(); ++sent) {
    client.send_by_udp(kNoChannel);
    client.received_packets.wait(sent);
  }
  client.send_by_udp(0);
  waiter.wait_for_events(1);
  waiter.stop();
}

TEST_F(BlockedWaitTest, APostOfAnotherThreadDoesNotWakeTheBlockedThread) {
  Waiter waiter(wait, client.channels[0]);
  waiter.wait_until_sleeping();
  const auto wakes = driver.receiver_wakes();
  // Expects only one flush, because a kick that does not get the lock makes the owner of the lock
  // flush.
  const int flushes = client.flushes;
  for (int i = 0; i < 100; ++i) driver.kick();
  while (client.flushes == flushes) std::this_thread::yield();
  waiter.wait_until_sleeping();  // a thread that was woken counts that before it sleeps again
  EXPECT_EQ(driver.receiver_wakes(), wakes);
  waiter.stop();
}

// The blocked thread then asks the peer for a wake-up when the lane has space.
TEST_F(BlockedWaitTest, AThreadThatFillsALaneWakesTheBlockedThread) {
  Waiter waiter(wait, client.channels[0]);
  waiter.wait_until_sleeping();
  const auto wakes = driver.receiver_wakes();
  client.lane_is_full = true;
  driver.kick();
  while (driver.receiver_wakes() == wakes) std::this_thread::yield();
  waiter.stop();
}

TEST_F(BlockedWaitTest, AChannelThatDoesNotBlockIsServedByTheProgressThread) {
  CompletionChannel& channel = client.channels[0];
  ASSERT_EQ(::fcntl(channel.fd(), F_SETFL, O_NONBLOCK), 0);
  CqEvent event;
  EXPECT_EQ(wait.next(channel, event), EAGAIN);
  client.send_by_udp(0);
  wait_until_readable(channel.fd());
  EXPECT_EQ(wait.next(channel, event), 0);
}

// ---- signals

std::atomic<int> handler_calls{0};
thread_local sigjmp_buf jump_target;

void count(int) { ++handler_calls; }
void jump(int) { siglongjmp(jump_target, 1); }

// Installs a handler for a scope.
struct Handler {
  Handler(int number, void (*function)(int), int flags) : signal(number) {
    struct sigaction action {};
    action.sa_handler = function;
    action.sa_flags = flags;
    VB_CHECK(::sigaction(signal, &action, &before) == 0);
  }
  ~Handler() { ::sigaction(signal, &before, nullptr); }
  int signal;
  struct sigaction before {};
};

void wait_for_handler_calls(int count) {
  while (handler_calls < count) std::this_thread::yield();
}

TEST_F(BlockedWaitTest, AHandlerWithSaRestartDoesNotEndTheWait) {
  const Handler handler(SIGUSR1, count, SA_RESTART);
  Waiter waiter(wait, client.channels[0]);
  waiter.wait_until_sleeping();
  for (int i = 0; i < 20; ++i) {
    const int before = handler_calls;
    waiter.interrupt(SIGUSR1);
    wait_for_handler_calls(before + 1);
  }
  client.send_by_udp(0);
  waiter.wait_for_events(1);
  waiter.stop();
}

TEST_F(BlockedWaitTest, AHandlerWithoutSaRestartEndsTheWait) {
  const Handler handler(SIGUSR1, count, 0);
  Waiter waiter(wait, client.channels[0]);
  waiter.wait_until_sleeping();
  waiter.interrupt(SIGUSR1);
  waiter.thread.join();
  EXPECT_EQ(waiter.error, EINTR);
  client.send_by_udp(0);
  wait_until_readable(client.channels[0].fd());
}

TEST_F(BlockedWaitTest, HandlersWithAndWithoutSaRestartBothHaveTheirEffect) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP()
      << "ThreadSanitizer delays a handler until read(2) returns, which SA_RESTART prevents";
#endif
  const Handler restarts(SIGUSR1, count, SA_RESTART);
  const Handler stops(SIGUSR2, count, 0);
  Waiter waiter(wait, client.channels[0]);
  waiter.wait_until_sleeping(SYS_read);
  const int before = handler_calls;
  waiter.interrupt(SIGUSR1);
  wait_for_handler_calls(before + 1);
  client.send_by_udp(0);
  waiter.wait_for_events(1);
  waiter.wait_until_sleeping(SYS_read);
  waiter.interrupt(SIGUSR2);
  waiter.thread.join();
  EXPECT_EQ(waiter.error, EINTR);
}

TEST_F(BlockedWaitTest, TheProgressThreadTakesOverFromAThreadThatJumpedOutOfItsWait) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP()
      << "ThreadSanitizer delays a handler until read(2) returns, so the thread may never jump";
#endif
  const Handler handler(SIGUSR1, jump, 0);
  std::atomic<int> id{0};
  std::atomic<bool> has_jumped{false}, stops{false};
  std::thread thread([&] {
    CqEvent event;
    if (sigsetjmp(jump_target, 1) == 0) {
      id = static_cast<int>(::syscall(SYS_gettid));
      id.notify_all();
      (void)wait.next(client.channels[0], event);
    }
    has_jumped = true;
    has_jumped.notify_all();
    stops.wait(false);
  });
  wait_until_thread_sleeps(id, {SYS_ppoll});  // the thread waits for packets
  client.send_by_udp(kNoChannel);
  client.received_packets.wait(0);
  while (!has_jumped) {
    ::pthread_kill(thread.native_handle(), SIGUSR1);
    std::this_thread::yield();
  }
  client.send_by_udp(1);
  wait_until_readable(client.channels[1].fd());
  stops = true;
  stops.notify_all();
  thread.join();
}

}  // namespace
}  // namespace verbena::client
