#include "os/fd.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <csignal>
#include <thread>

#include "gtest/gtest.h"
#include "os/clock.h"
#include "os/entropy.h"
#include "os/event_fd.h"
#include "os/poller.h"
#include "os/process.h"
#include "os/signal_block.h"
#include "os/test_process.h"
#include "os/thread.h"

namespace verbena::os {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Fd, NewDescriptorsAreAboveStandardError) {
  EXPECT_EQ(run_in_child([] {
              for (int fd = 0; fd <= 2; ++fd) ::close(fd);
              const auto event = EventFd::create();
              const auto poller = Poller::create();
              const bool all_ok = event.has_value() && event->fd() > 2 && poller.has_value() &&
                                  poller->fd() > 2 && ::fcntl(0, F_GETFD) == -1 &&
                                  (::fcntl(event->fd(), F_GETFD) & FD_CLOEXEC) != 0;
              ::_exit(all_ok ? 0 : 1);
            }),
            0);
}

TEST(Fd, MoveLeavesTheSourceEmptyAndResetClosesTheDescriptor) {
  Fd first(::eventfd(0, EFD_CLOEXEC));
  const int number = first.get();
  Fd second = std::move(first);
  EXPECT_FALSE(first);
  EXPECT_EQ(second.get(), number);
  const Fd copy = *second.duplicate();
  EXPECT_NE(copy.get(), number);
  EXPECT_NE(::fcntl(copy.get(), F_GETFD) & FD_CLOEXEC, 0);
  second.reset();
  EXPECT_EQ(::fcntl(number, F_GETFD), -1);
}

TEST(Fd, WaitForEndsAtTheDeadline) {
  const Fd quiet(::eventfd(0, EFD_CLOEXEC));
  EXPECT_EQ(wait_for(quiet.get(), POLLIN, Time{}).value(), 0);
  const Time before = now();
  EXPECT_EQ(wait_for(quiet.get(), POLLIN, before + milliseconds(20)).value(), 0);
  EXPECT_GE(now() - before, milliseconds(20));
  EXPECT_EQ(wait_for(quiet.get(), POLLOUT, kNever).value(), POLLOUT);
}

TEST(Clock, GoesForwardAndConvertsToWallClockTime) {
  const Time first = now();
  EXPECT_GE(now(), first);
  const auto wall_ns =
      wall_clock_offset_ns() + static_cast<std::uint64_t>(now().time_since_epoch().count());
  EXPECT_GT(wall_ns, 1'600'000'000ull * 1'000'000'000);
}

TEST(Entropy, ReturnsAnotherKeyEachTime) { EXPECT_NE(random_key(), random_key()); }

TEST(EventFd, IsReadableFromPostUntilTaken) {
  EventFd event = *EventFd::create();
  const auto readable = [&] { return *wait_for(event.fd(), POLLIN, Time{}) == POLLIN; };
  EXPECT_FALSE(readable());
  EXPECT_FALSE(event.try_take());
  event.post();
  event.post();
  EXPECT_TRUE(readable());
  EXPECT_TRUE(event.try_take());  // takes both posts
  EXPECT_FALSE(readable());
  event.post();
  EXPECT_EQ(event.take_blocking(), 0);
  EXPECT_FALSE(readable());
}

TEST(EventFd, TakeBlockingDoesNotWaitIfTheUserSetONonblock) {
  EventFd event = *EventFd::create();
  ASSERT_TRUE(set_nonblocking(event.fd(), true).has_value());
  EXPECT_EQ(event.take_blocking(), EAGAIN);
  EXPECT_FALSE(event.try_take());
  ASSERT_TRUE(set_nonblocking(event.fd(), false).has_value());
  EXPECT_FALSE(event.try_take());  // does not wait, although the descriptor is blocking
  event.post();
  EXPECT_TRUE(event.try_take());
}

TEST(EventFd, SignalHandlerEndsTheWaitWithEintr) {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) {};  // without SA_RESTART
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  EventFd event = *EventFd::create();
  std::atomic<bool> done = false;
  int result = 0;
  std::thread waiter([&] {
    result = event.take_blocking();
    done = true;
  });
  while (!done) {  // the first signals may come before the thread waits
    ::pthread_kill(waiter.native_handle(), SIGUSR1);
    std::this_thread::yield();
  }
  waiter.join();
  EXPECT_EQ(result, EINTR);
  ::sigaction(SIGUSR1, &before, nullptr);
}

// GCC 12's AddressSanitizer, without the preset's options, reports a broken stack when a cancelled
// thread runs destructors.
TEST(EventFd, TakeBlockingIsACancellationPointThatUnwinds) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer does not support cancellation";
#endif
  static std::atomic<bool> unwound;
  unwound = false;
  EventFd event = *EventFd::create();
  pthread_t thread{};
  ASSERT_EQ(::pthread_create(
                &thread, nullptr,
                [](void* argument) -> void* {
                  struct Guard {
                    ~Guard() { unwound = true; }
                  } const guard;
                  static_cast<EventFd*>(argument)->take_blocking();
                  return nullptr;
                },
                &event),
            0);
  ::pthread_cancel(thread);
  void* result = nullptr;
  ::pthread_join(thread, &result);
  EXPECT_EQ(result, PTHREAD_CANCELED);
  EXPECT_TRUE(unwound);
}

TEST(SignalBlock, ReportsWhichSignalsWouldEndAWait) {
  static std::atomic<int> handled;
  handled = 0;
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) { ++handled; };
  const auto ends_wait_with = [&](int flags) {
    action.sa_flags = flags;
    EXPECT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
    bool ends = false;
    {
      SignalBlock hold;
      EXPECT_FALSE(hold.would_end_wait());
      EXPECT_FALSE(hold.is_pending());
      ::pthread_kill(::pthread_self(), SIGUSR1);
      EXPECT_EQ(handled, 0);
      EXPECT_TRUE(hold.is_pending());
      ends = hold.would_end_wait();
      hold.release();
      EXPECT_EQ(handled, 1);
    }
    EXPECT_EQ(handled.exchange(0), 1);
    ::sigaction(SIGUSR1, &before, nullptr);
    return ends;
  };
  EXPECT_TRUE(ends_wait_with(0));
  EXPECT_FALSE(ends_wait_with(SA_RESTART));
  // A signal that the program itself has blocked remains blocked.
  sigset_t blocked;
  sigset_t pending;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &blocked, nullptr), 0);
  action.sa_flags = 0;
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  ::pthread_kill(::pthread_self(), SIGUSR1);
  {
    const SignalBlock hold;
    EXPECT_FALSE(hold.would_end_wait());
    EXPECT_FALSE(hold.is_pending());
  }
  EXPECT_EQ(handled, 0);
  ASSERT_EQ(::sigpending(&pending), 0);
  EXPECT_EQ(sigismember(&pending, SIGUSR1), 1);
  ASSERT_EQ(::pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr), 0);
  EXPECT_EQ(handled, 1);
  ::sigaction(SIGUSR1, &before, nullptr);
}

TEST(Fd, FunctionsAreNotCancellationPoints) {
  EventFd event = *EventFd::create();
  event.post();
  bool has_finished = false;
  std::thread thread([&] {
    ::pthread_cancel(::pthread_self());  // the request remains pending
    EXPECT_TRUE(event.try_take());
    event.post();
    Poller poller = *Poller::create();
    EXPECT_TRUE(poller.add(event.fd(), 7).has_value());
    std::array<Poller::Ready, 4> ready;
    EXPECT_EQ(poller.wait(ready, kNever), 1u);
    EXPECT_EQ(*wait_for(event.fd(), POLLIN, kNever), POLLIN);
    EXPECT_FALSE(process_name(::getpid()).empty());
    Fd(*duplicate_fd(event.fd())).reset();
    sleep_shortest();
    ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
    has_finished = true;
  });
  thread.join();
  EXPECT_TRUE(has_finished) << "a function was a cancellation point and ended the thread";
}

TEST(WakeFd, SeveralWakesCountAsOne) {
  WakeFd wake = *WakeFd::create();
  wake.wake();
  wake.wake();
  EXPECT_EQ(*wait_for(wake.fd(), POLLIN, Time{}), POLLIN);
  wake.clear();
  EXPECT_EQ(*wait_for(wake.fd(), POLLIN, Time{}), 0);
  wake.clear();  // does not wait
}

TEST(Poller, ReturnsTheTokensOfReadyDescriptors) {
  Poller poller = *Poller::create();
  EventFd first = *EventFd::create();
  EventFd second = *EventFd::create();
  ASSERT_TRUE(poller.add(first.fd(), 1).has_value());
  ASSERT_TRUE(poller.add(second.fd(), UINT64_MAX).has_value());
  std::array<Poller::Ready, 8> ready;
  EXPECT_EQ(poller.wait(ready, Time{}), 0u);
  second.post();
  ASSERT_EQ(poller.wait(ready, kNever), 1u);
  EXPECT_EQ(ready[0].token, UINT64_MAX);
  EXPECT_TRUE(ready[0].readable);
  EXPECT_FALSE(ready[0].writable);
  ASSERT_TRUE(poller.change(second.fd(), 2, false, true).has_value());
  ASSERT_EQ(poller.wait(ready, kNever), 1u);
  EXPECT_TRUE(ready[0].writable);
  ASSERT_TRUE(poller.remove(second.fd()).has_value());
  EXPECT_EQ(poller.wait(ready, Time{}), 0u);
  EXPECT_EQ(poller.remove(second.fd()).error().detail, ENOENT);
}

TEST(Poller, NeverReturnsBeforeTheDeadline) {
  Poller poller = *Poller::create();
  std::array<Poller::Ready, 1> ready;
  const Time deadline = now() + std::chrono::microseconds(1500);
  EXPECT_EQ(poller.wait(ready, deadline), 0u);
  EXPECT_GE(now(), deadline);
  EXPECT_LT(now() - deadline, seconds(5));
}

TEST(Thread, StartsWithAllSignalsBlockedExceptThoseOfFaults) {
  sigset_t mask{};
  auto thread =
      start_thread("a name longer than 15", [&] { ::pthread_sigmask(SIG_BLOCK, nullptr, &mask); });
  ASSERT_TRUE(thread.has_value());
  thread->join();
  EXPECT_EQ(::sigismember(&mask, SIGINT), 1);
  EXPECT_EQ(::sigismember(&mask, SIGCHLD), 1);
  for (const int fault : kFaultSignals) EXPECT_EQ(::sigismember(&mask, fault), 0) << fault;
  sigset_t own_mask{};
  ::pthread_sigmask(SIG_BLOCK, nullptr, &own_mask);
  EXPECT_EQ(::sigismember(&own_mask, SIGINT), 0);
}

}  // namespace
}  // namespace verbena::os
