// Waits for events of the RDMA CM in the ways that programs use: with several threads, on one
// channel or two, with signals, with cancellation, with longjmp(), with poll(2), and while other
// threads wait for the agent.  The program resolves addresses to create events.  Each event must be
// reported exactly once.  Prints "NAME: ok" for each way.  With an argument the program does not
// fork.
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "echo.h"

enum { kEventCount = 200, kTimeoutSeconds = 60 };

struct waiter {
  pthread_t thread;
  struct rdma_event_channel* channel;
  int events;  // the number of events that the thread takes
  atomic_int thread_id;
  atomic_int taken;
};

static atomic_int interruptions;

static struct rdma_event_channel* make_channel(void) {
  struct rdma_event_channel* channel = rdma_create_event_channel();
  CHECK(channel != NULL);
  return channel;
}

// Starts to resolve an address, which creates an event.
static struct rdma_cm_id* resolve(struct rdma_event_channel* channel) {
  struct rdma_cm_id* id = NULL;
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
  to.sin_port = htons(7999);
  CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr*)&to, 5000) == 0);
  return id;
}

static void finish_event(struct rdma_cm_event* event) {
  CHECK(event->event == RDMA_CM_EVENT_ADDR_RESOLVED && event->status == 0);
  struct rdma_cm_id* const id = event->id;
  CHECK(rdma_ack_cm_event(event) == 0);
  CHECK(rdma_destroy_id(id) == 0);
}

static void take_event(struct rdma_event_channel* channel) {
  struct rdma_cm_event* event = NULL;
  CHECK(rdma_get_cm_event(channel, &event) == 0);
  finish_event(event);
}

static void take_event_by_polling(struct rdma_event_channel* channel) {
  struct rdma_cm_event* event = NULL;
  while (rdma_get_cm_event(channel, &event) != 0) CHECK(errno == EAGAIN);
  finish_event(event);
}

static void* take_all_events(void* argument) {
  struct waiter* const waiter = argument;
  waiter->thread_id = (int)syscall(SYS_gettid);
  while (waiter->taken < waiter->events) {
    take_event(waiter->channel);
    ++waiter->taken;
  }
  return NULL;
}

static void begin_wait(struct waiter* waiter, struct rdma_event_channel* channel, int events) {
  memset(waiter, 0, sizeof *waiter);
  waiter->channel = channel;
  waiter->events = events;
  CHECK(pthread_create(&waiter->thread, NULL, take_all_events, waiter) == 0);
}

static void end_wait(struct waiter* waiter) { CHECK(pthread_join(waiter->thread, NULL) == 0); }

static int join_within_one_second(struct waiter* waiter) {
  struct timespec deadline;
  CHECK(clock_gettime(CLOCK_REALTIME, &deadline) == 0);
  deadline.tv_sec += 1;
  return pthread_timedjoin_np(waiter->thread, NULL, &deadline) == 0;
}

// Returns when the thread sleeps in a call by which the library waits for an event.
static void wait_until_asleep(const struct waiter* waiter) {
  for (;;) {
    char path[64], number[32] = "";
    while (waiter->thread_id == 0) sched_yield();
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", waiter->thread_id);
    const int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    CHECK(read(fd, number, sizeof number - 1) > 0);
    close(fd);
    // The text is "running" if the thread does not sleep.
    const int call = number[0] == 'r' ? -1 : atoi(number);
    if (call == SYS_read || call == SYS_ppoll) return;
    sched_yield();
  }
}

static void one_event_after_the_other(void) {
  struct rdma_event_channel* const channel = make_channel();
  for (int i = 0; i < kEventCount; ++i) {
    resolve(channel);
    take_event(channel);
  }
  rdma_destroy_event_channel(channel);
}

static void many_events_at_once(void) {
  struct rdma_event_channel* const channel = make_channel();
  struct waiter waiter;
  begin_wait(&waiter, channel, 4 * kEventCount);
  for (int i = 0; i < 4 * kEventCount; ++i) resolve(channel);
  end_wait(&waiter);
  rdma_destroy_event_channel(channel);
}

// Checks that events arrive for calls that a thread makes while it still has unread events.
static void calls_with_unread_events(void) {
  struct rdma_event_channel* const channel = make_channel();
  enum { kTogether = 32 };
  for (int i = 0; i < kTogether; ++i) resolve(channel);
  for (int i = 0; i < 4 * kEventCount; ++i) {
    take_event(channel);
    resolve(channel);
  }
  for (int i = 0; i < kTogether; ++i) take_event(channel);
  rdma_destroy_event_channel(channel);
}

// Checks that the messages of a thread reach the agent although the thread does not take its next
// event.
static void agent_is_reached_with_unread_events(void) {
  struct rdma_event_channel *const channel = make_channel(), *const other = make_channel();
  for (int i = 0; i < 20; ++i) {
    struct waiter waiter;
    for (int event = 0; event < 10; ++event) resolve(channel);
    take_event(channel);
    begin_wait(&waiter, other, 1);
    resolve(other);
    end_wait(&waiter);
    for (int event = 1; event < 10; ++event) take_event(channel);
  }
  rdma_destroy_event_channel(channel);
  rdma_destroy_event_channel(other);
}

// Destroys a channel while a thread waits on it, as rping does when it ends.  That thread must not
// block others.
static void wait_beside_a_destroyed_channel(void) {
  struct rdma_event_channel *const channel = make_channel(), *const other = make_channel();
  struct waiter stuck, waiter;
  begin_wait(&stuck, channel, 1);
  wait_until_asleep(&stuck);
  rdma_destroy_event_channel(channel);
  begin_wait(&waiter, other, kEventCount);
  for (int i = 0; i < kEventCount; ++i) resolve(other);
  end_wait(&waiter);
  CHECK(pthread_cancel(stuck.thread) == 0);
  end_wait(&stuck);
  rdma_destroy_event_channel(other);
}

static void two_channels(void) {
  struct rdma_event_channel* const channels[2] = {make_channel(), make_channel()};
  struct waiter waiters[2];
  for (int i = 0; i < 2; ++i) begin_wait(&waiters[i], channels[i], kEventCount);
  for (int i = 0; i < 2 * kEventCount; ++i) resolve(channels[i % 2]);
  for (int i = 0; i < 2; ++i) end_wait(&waiters[i]);
  for (int i = 0; i < 2; ++i) rdma_destroy_event_channel(channels[i]);
}

static void two_threads(void) {
  struct rdma_event_channel* const channel = make_channel();
  struct waiter waiters[2];
  for (int i = 0; i < 2; ++i) begin_wait(&waiters[i], channel, kEventCount);
  for (int i = 0; i < 2 * kEventCount; ++i) resolve(channel);
  for (int i = 0; i < 2; ++i) end_wait(&waiters[i]);
  rdma_destroy_event_channel(channel);
}

// Checks that a channel is readable only while it has an event.  rdma_destroy_id() removes the
// events of the id, so the channel must not be readable afterwards.
static void poll_before_each_event(void) {
  struct rdma_event_channel* const channel = make_channel();
  struct pollfd readable = {.fd = channel->fd, .events = POLLIN};
  struct rdma_cm_event* event = NULL;
  for (int i = 0; i < kEventCount; ++i) {
    if (i == kEventCount / 2) {
      CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
      CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == EAGAIN);
    }
    CHECK(rdma_destroy_id(resolve(channel)) == 0);
    resolve(channel);
    CHECK(poll(&readable, 1, kTimeoutMs) == 1);
    take_event(channel);
    CHECK(poll(&readable, 1, 0) == 0);
  }
  rdma_destroy_event_channel(channel);
}

static void set_nonblocking(struct rdma_event_channel* channel) {
  CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
}

static void polling(void) {
  struct rdma_event_channel* const channel = make_channel();
  set_nonblocking(channel);
  for (int i = 0; i < kEventCount; ++i) {
    resolve(channel);
    take_event_by_polling(channel);
  }
  rdma_destroy_event_channel(channel);
}

// Makes calls that wait for the agent, rdma_bind_addr() and rdma_listen(), while a thread waits for
// events.
static void wait_beside_calls(void) {
  struct rdma_event_channel* const channel = make_channel();
  struct waiter waiter;
  begin_wait(&waiter, channel, kEventCount);
  for (int i = 0; i < kEventCount; ++i) {
    struct sockaddr_in any = {.sin_family = AF_INET};
    struct rdma_cm_id* id = NULL;
    resolve(channel);
    CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_bind_addr(id, (struct sockaddr*)&any) == 0);
    CHECK(rdma_listen(id, 1) == 0);
    CHECK(rdma_destroy_id(id) == 0);
  }
  end_wait(&waiter);
  rdma_destroy_event_channel(channel);
}

static atomic_int should_poll;

static void* poll_without_events(void* argument) {
  struct rdma_cm_event* event = NULL;
  while (should_poll) CHECK(rdma_get_cm_event(argument, &event) == -1 && errno == EAGAIN);
  return NULL;
}

// Checks that a polling thread takes no events or answers away from threads that wait.
static void wait_beside_a_polling_thread(void) {
  struct rdma_event_channel* const channel = make_channel();
  set_nonblocking(channel);
  should_poll = 1;
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, poll_without_events, channel) == 0);
  one_event_after_the_other();
  wait_beside_calls();
  should_poll = 0;
  CHECK(pthread_join(thread, NULL) == 0);
  rdma_destroy_event_channel(channel);
}

// Checks that an event wakes a thread that has polled first and then sleeps.
static void wait_after_polling(void) {
  struct rdma_event_channel* const channel = make_channel();
  struct pollfd readable = {.fd = channel->fd, .events = POLLIN};
  for (int i = 0; i < kEventCount; ++i) {
    struct rdma_cm_event* event = NULL;
    set_nonblocking(channel);
    for (int poll = 0; poll < 100; ++poll) {
      CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == EAGAIN);
    }
    resolve(channel);
    if (i % 2 == 0) {
      CHECK(poll(&readable, 1, kTimeoutMs) == 1);
    } else {
      CHECK(fcntl(channel->fd, F_SETFL, 0) == 0);
    }
    take_event(channel);
  }
  rdma_destroy_event_channel(channel);
}

static void on_signal(int number) {
  (void)number;
  ++interruptions;
}

static void set_handler(int flags) {
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags};
  CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
}

static void* expect_eintr(void* argument) {
  struct waiter* const waiter = argument;
  struct rdma_cm_event* event = NULL;
  waiter->thread_id = (int)syscall(SYS_gettid);
  CHECK(rdma_get_cm_event(waiter->channel, &event) == -1 && errno == EINTR);
  return NULL;
}

// Checks that a signal interrupts the wait as it interrupts read(2): only without SA_RESTART.
static void interrupted_wait(void) {
  struct rdma_event_channel* const channel = make_channel();
  struct waiter waiter = {.channel = channel};
  set_handler(0);
  CHECK(pthread_create(&waiter.thread, NULL, expect_eintr, &waiter) == 0);
  wait_until_asleep(&waiter);
  CHECK(pthread_kill(waiter.thread, SIGUSR1) == 0);
  end_wait(&waiter);
  set_handler(SA_RESTART);
  begin_wait(&waiter, channel, 1);
  for (int i = 0; i < 20; ++i) {
    const int before = interruptions;
    wait_until_asleep(&waiter);
    CHECK(pthread_kill(waiter.thread, SIGUSR1) == 0);
    while (interruptions == before) sched_yield();
  }
  CHECK(waiter.taken == 0);
  resolve(channel);
  end_wait(&waiter);
  rdma_destroy_event_channel(channel);
}

// Checks that a signal also interrupts a thread that is woken for the events of other channels.
static void interrupted_wait_among_other_events(void) {
  struct rdma_event_channel *const channel = make_channel(), *const other = make_channel();
  set_handler(0);
  for (int i = 0; i < kEventCount; ++i) {
    struct waiter waiter = {.channel = channel};
    CHECK(pthread_create(&waiter.thread, NULL, expect_eintr, &waiter) == 0);
    wait_until_asleep(&waiter);
    for (int event = 0; event < 4; ++event) resolve(other);
    // A signal that arrives just before the thread sleeps again has no effect.  So send signals
    // until the thread has ended.
    do CHECK(pthread_kill(waiter.thread, SIGUSR1) == 0);
    while (!join_within_one_second(&waiter));
    for (int event = 0; event < 4; ++event) take_event(other);
  }
  rdma_destroy_event_channel(channel);
  rdma_destroy_event_channel(other);
}

static void cancelled_wait(void) {
  struct rdma_event_channel* const channel = make_channel();
  struct waiter waiter;
  for (int i = 0; i < 20; ++i) {
    void* result = NULL;
    begin_wait(&waiter, channel, 1);
    wait_until_asleep(&waiter);
    CHECK(pthread_cancel(waiter.thread) == 0);
    CHECK(pthread_join(waiter.thread, &result) == 0 && result == PTHREAD_CANCELED);
    resolve(channel);
    take_event(channel);
  }
  rdma_destroy_event_channel(channel);
}

static sigjmp_buf jump_target;

static void jump(int number) {
  (void)number;
  siglongjmp(jump_target, 1);
}

static void* jump_out_and_come_back(void* argument) {
  struct waiter* const waiter = argument;
  if (sigsetjmp(jump_target, 1) == 0) {
    struct rdma_cm_event* event = NULL;
    waiter->thread_id = (int)syscall(SYS_gettid);
    rdma_get_cm_event(waiter->channel, &event);
    CHECK(!"the call must not return");
  }
  return take_all_events(waiter);
}

// Makes a signal handler jump out of the wait.  No other thread may depend on this thread, and no
// event may be lost.
static void jump_out_of_a_wait(void) {
  struct rdma_event_channel* const channel = make_channel();
  struct waiter waiter = {.channel = channel, .events = kEventCount}, other;
  struct sigaction action = {.sa_handler = jump};
  CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
  CHECK(pthread_create(&waiter.thread, NULL, jump_out_and_come_back, &waiter) == 0);
  wait_until_asleep(&waiter);
  CHECK(pthread_kill(waiter.thread, SIGUSR2) == 0);
  for (int i = 0; i < kEventCount; ++i) resolve(channel);
  end_wait(&waiter);
  begin_wait(&other, channel, kEventCount);
  for (int i = 0; i < kEventCount; ++i) resolve(channel);
  end_wait(&other);
  struct pollfd readable = {.fd = channel->fd, .events = POLLIN};
  CHECK(poll(&readable, 1, 0) == 0);
  rdma_destroy_event_channel(channel);
}

static void wait_beside_a_fork(void) {
  struct rdma_event_channel* const channel = make_channel();
  struct waiter waiter;
  begin_wait(&waiter, channel, 2 * kEventCount);
  for (int i = 0; i < kEventCount; ++i) {
    resolve(channel);
    if (i % 20 != 0) continue;
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {  // the child opens a device of its own
      alarm(kTimeoutSeconds);
      one_event_after_the_other();
      _exit(0);
    }
    int status = 0;
    resolve(channel);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
  }
  while (waiter.taken < kEventCount + kEventCount / 20) sched_yield();
  for (int i = 0; i < kEventCount - kEventCount / 20; ++i) resolve(channel);
  end_wait(&waiter);
  rdma_destroy_event_channel(channel);
}

#define RUN(wait)              \
  do {                         \
    alarm(kTimeoutSeconds);    \
    wait();                    \
    printf("%s: ok\n", #wait); \
    fflush(stdout);            \
  } while (0)

int main(int argc, char** argv) {
  (void)argv;
  RUN(one_event_after_the_other);
  RUN(many_events_at_once);
  RUN(calls_with_unread_events);
  RUN(agent_is_reached_with_unread_events);
  RUN(two_channels);
  RUN(two_threads);
  RUN(poll_before_each_event);
  RUN(polling);
  RUN(wait_beside_a_polling_thread);
  RUN(wait_after_polling);
  RUN(interrupted_wait);
  RUN(interrupted_wait_among_other_events);
  RUN(cancelled_wait);
  RUN(wait_beside_calls);
  if (argc == 1) RUN(wait_beside_a_fork);
  RUN(wait_beside_a_destroyed_channel);
  RUN(jump_out_of_a_wait);
  return 0;
}
