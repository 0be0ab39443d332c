// Waits for events of the RDMA CM in all ways that programs use: with several threads, on one
// channel or two, with signals, with cancellation, with longjmp(), with poll(2), and while other
// threads wait for the agent.  Resolving addresses creates the events; each must come exactly once.
// Prints "NAME: ok" for each way.  With an argument the program does not fork.
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

enum { kMany = 200, kTimeoutSeconds = 60 };

struct waiter {
  pthread_t thread;
  struct rdma_event_channel* channel;
  int events;  // number of events to take
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

static void use(struct rdma_cm_event* event) {
  CHECK(event->event == RDMA_CM_EVENT_ADDR_RESOLVED && event->status == 0);
  struct rdma_cm_id* const id = event->id;
  CHECK(rdma_ack_cm_event(event) == 0);
  CHECK(rdma_destroy_id(id) == 0);
}

static void take(struct rdma_event_channel* channel) {
  struct rdma_cm_event* event = NULL;
  CHECK(rdma_get_cm_event(channel, &event) == 0);
  use(event);
}

static void take_by_polling(struct rdma_event_channel* channel) {
  struct rdma_cm_event* event = NULL;
  while (rdma_get_cm_event(channel, &event) != 0) CHECK(errno == EAGAIN);
  use(event);
}

static void* take_all(void* argument) {
  struct waiter* const waiter = argument;
  waiter->thread_id = (int)syscall(SYS_gettid);
  while (waiter->taken < waiter->events) {
    take(waiter->channel);
    ++waiter->taken;
  }
  return NULL;
}

static void begin(struct waiter* waiter, struct rdma_event_channel* channel, int events) {
  memset(waiter, 0, sizeof *waiter);
  waiter->channel = channel;
  waiter->events = events;
  CHECK(pthread_create(&waiter->thread, NULL, take_all, waiter) == 0);
}

static void end(struct waiter* waiter) { CHECK(pthread_join(waiter->thread, NULL) == 0); }

static int has_ended(struct waiter* waiter) {
  struct timespec until;
  CHECK(clock_gettime(CLOCK_REALTIME, &until) == 0);
  until.tv_sec += 1;
  return pthread_timedjoin_np(waiter->thread, NULL, &until) == 0;
}

// Returns when the thread sleeps in a call by which the library waits for an event.
static void until_it_waits(const struct waiter* waiter) {
  for (;;) {
    char path[64], number[32] = "";
    while (waiter->thread_id == 0) sched_yield();
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", waiter->thread_id);
    const int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    CHECK(read(fd, number, sizeof number - 1) > 0);
    close(fd);
    const int call = number[0] == 'r' ? -1 : atoi(number);  // "running"
    if (call == SYS_read || call == SYS_ppoll) return;
    sched_yield();
  }
}

static void one_after_the_other(void) {
  struct rdma_event_channel* const channel = make_channel();
  for (int i = 0; i < kMany; ++i) {
    resolve(channel);
    take(channel);
  }
  rdma_destroy_event_channel(channel);
}

static void many_at_once(void) {
  struct rdma_event_channel* const channel = make_channel();
  struct waiter waiter;
  begin(&waiter, channel, 4 * kMany);
  for (int i = 0; i < 4 * kMany; ++i) resolve(channel);
  end(&waiter);
  rdma_destroy_event_channel(channel);
}

// Checks that events arrive for calls that a thread makes while it still has unread events.
static void from_one_event_to_the_next(void) {
  struct rdma_event_channel* const channel = make_channel();
  enum { kTogether = 32 };
  for (int i = 0; i < kTogether; ++i) resolve(channel);
  for (int i = 0; i < 4 * kMany; ++i) {
    take(channel);
    resolve(channel);
  }
  for (int i = 0; i < kTogether; ++i) take(channel);
  rdma_destroy_event_channel(channel);
}

// Checks that the messages of a thread reach the agent although it does not take its next event.
static void busy_while_more_wait(void) {
  struct rdma_event_channel *const channel = make_channel(), *const other = make_channel();
  for (int i = 0; i < 20; ++i) {
    struct waiter waiter;
    for (int event = 0; event < 10; ++event) resolve(channel);
    take(channel);
    begin(&waiter, other, 1);
    resolve(other);
    end(&waiter);
    for (int event = 1; event < 10; ++event) take(channel);
  }
  rdma_destroy_event_channel(channel);
  rdma_destroy_event_channel(other);
}

// Destroys a channel while a thread waits on it, as rping does when it ends.  That thread must not
// block others.
static void beside_a_destroyed_channel(void) {
  struct rdma_event_channel *const channel = make_channel(), *const other = make_channel();
  struct waiter left, waiter;
  begin(&left, channel, 1);
  until_it_waits(&left);
  rdma_destroy_event_channel(channel);
  begin(&waiter, other, kMany);
  for (int i = 0; i < kMany; ++i) resolve(other);
  end(&waiter);
  CHECK(pthread_cancel(left.thread) == 0);
  end(&left);
  rdma_destroy_event_channel(other);
}

static void two_channels(void) {
  struct rdma_event_channel* const channels[2] = {make_channel(), make_channel()};
  struct waiter waiters[2];
  for (int i = 0; i < 2; ++i) begin(&waiters[i], channels[i], kMany);
  for (int i = 0; i < 2 * kMany; ++i) resolve(channels[i % 2]);
  for (int i = 0; i < 2; ++i) end(&waiters[i]);
  for (int i = 0; i < 2; ++i) rdma_destroy_event_channel(channels[i]);
}

static void two_threads(void) {
  struct rdma_event_channel* const channel = make_channel();
  struct waiter waiters[2];
  for (int i = 0; i < 2; ++i) begin(&waiters[i], channel, kMany);
  for (int i = 0; i < 2 * kMany; ++i) resolve(channel);
  for (int i = 0; i < 2; ++i) end(&waiters[i]);
  rdma_destroy_event_channel(channel);
}

// Checks that a channel is readable only while it has an event.  An event that is dropped with its
// id leaves nothing to read.
static void poll_first(void) {
  struct rdma_event_channel* const channel = make_channel();
  struct pollfd one = {.fd = channel->fd, .events = POLLIN};
  struct rdma_cm_event* event = NULL;
  for (int i = 0; i < kMany; ++i) {
    if (i == kMany / 2) {
      CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
      CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == EAGAIN);
    }
    CHECK(rdma_destroy_id(resolve(channel)) == 0);
    resolve(channel);
    CHECK(poll(&one, 1, kTimeoutMs) == 1);
    take(channel);
    CHECK(poll(&one, 1, 0) == 0);
  }
  rdma_destroy_event_channel(channel);
}

static void do_not_wait(struct rdma_event_channel* channel) {
  CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
}

static void polling(void) {
  struct rdma_event_channel* const channel = make_channel();
  do_not_wait(channel);
  for (int i = 0; i < kMany; ++i) {
    resolve(channel);
    take_by_polling(channel);
  }
  rdma_destroy_event_channel(channel);
}

// Makes calls that wait for the agent, rdma_bind_addr() and rdma_listen(), while a thread waits for
// events.
static void beside_calls(void) {
  struct rdma_event_channel* const channel = make_channel();
  struct waiter waiter;
  begin(&waiter, channel, kMany);
  for (int i = 0; i < kMany; ++i) {
    struct sockaddr_in any = {.sin_family = AF_INET};
    struct rdma_cm_id* id = NULL;
    resolve(channel);
    CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_bind_addr(id, (struct sockaddr*)&any) == 0);
    CHECK(rdma_listen(id, 1) == 0);
    CHECK(rdma_destroy_id(id) == 0);
  }
  end(&waiter);
  rdma_destroy_event_channel(channel);
}

static atomic_int polls_on;

static void* poll_in_vain(void* argument) {
  struct rdma_cm_event* event = NULL;
  while (polls_on) CHECK(rdma_get_cm_event(argument, &event) == -1 && errno == EAGAIN);
  return NULL;
}

// Checks that a polling thread takes no events or answers away from threads that wait.
static void beside_one_that_polls(void) {
  struct rdma_event_channel* const channel = make_channel();
  do_not_wait(channel);
  polls_on = 1;
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, poll_in_vain, channel) == 0);
  one_after_the_other();
  beside_calls();
  polls_on = 0;
  CHECK(pthread_join(thread, NULL) == 0);
  rdma_destroy_event_channel(channel);
}

// Checks that a thread is woken that has polled before and then sleeps.
static void polling_and_then_waiting(void) {
  struct rdma_event_channel* const channel = make_channel();
  struct pollfd one = {.fd = channel->fd, .events = POLLIN};
  for (int i = 0; i < kMany; ++i) {
    struct rdma_cm_event* event = NULL;
    do_not_wait(channel);
    for (int poll = 0; poll < 100; ++poll) {
      CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == EAGAIN);
    }
    resolve(channel);
    if (i % 2 == 0) {
      CHECK(poll(&one, 1, kTimeoutMs) == 1);
    } else {
      CHECK(fcntl(channel->fd, F_SETFL, 0) == 0);
    }
    take(channel);
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

static void* be_interrupted(void* argument) {
  struct waiter* const waiter = argument;
  struct rdma_cm_event* event = NULL;
  waiter->thread_id = (int)syscall(SYS_gettid);
  CHECK(rdma_get_cm_event(waiter->channel, &event) == -1 && errno == EINTR);
  return NULL;
}

// Checks that a signal interrupts the wait as it interrupts read(2): only without SA_RESTART.
static void interrupted(void) {
  struct rdma_event_channel* const channel = make_channel();
  struct waiter waiter = {.channel = channel};
  set_handler(0);
  CHECK(pthread_create(&waiter.thread, NULL, be_interrupted, &waiter) == 0);
  until_it_waits(&waiter);
  CHECK(pthread_kill(waiter.thread, SIGUSR1) == 0);
  end(&waiter);
  set_handler(SA_RESTART);
  begin(&waiter, channel, 1);
  for (int i = 0; i < 20; ++i) {
    const int before = interruptions;
    until_it_waits(&waiter);
    CHECK(pthread_kill(waiter.thread, SIGUSR1) == 0);
    while (interruptions == before) sched_yield();
  }
  CHECK(waiter.taken == 0);
  resolve(channel);
  end(&waiter);
  rdma_destroy_event_channel(channel);
}

// Checks that a signal also interrupts a thread that is woken for the events of other channels.
static void interrupted_among_others_events(void) {
  struct rdma_event_channel *const channel = make_channel(), *const other = make_channel();
  set_handler(0);
  for (int i = 0; i < kMany; ++i) {
    struct waiter waiter = {.channel = channel};
    CHECK(pthread_create(&waiter.thread, NULL, be_interrupted, &waiter) == 0);
    until_it_waits(&waiter);
    for (int event = 0; event < 4; ++event) resolve(other);
    // A signal may come just before the thread sleeps again, and then has no effect.  So it is sent
    // until the thread has ended.
    do CHECK(pthread_kill(waiter.thread, SIGUSR1) == 0);
    while (!has_ended(&waiter));
    for (int event = 0; event < 4; ++event) take(other);
  }
  rdma_destroy_event_channel(channel);
  rdma_destroy_event_channel(other);
}

static void cancelled(void) {
  struct rdma_event_channel* const channel = make_channel();
  struct waiter waiter;
  for (int i = 0; i < 20; ++i) {
    void* result = NULL;
    begin(&waiter, channel, 1);
    until_it_waits(&waiter);
    CHECK(pthread_cancel(waiter.thread) == 0);
    CHECK(pthread_join(waiter.thread, &result) == 0 && result == PTHREAD_CANCELED);
    resolve(channel);
    take(channel);
  }
  rdma_destroy_event_channel(channel);
}

static sigjmp_buf out;

static void jump(int number) {
  (void)number;
  siglongjmp(out, 1);
}

static void* jump_out_and_come_back(void* argument) {
  struct waiter* const waiter = argument;
  if (sigsetjmp(out, 1) == 0) {
    struct rdma_cm_event* event = NULL;
    waiter->thread_id = (int)syscall(SYS_gettid);
    rdma_get_cm_event(waiter->channel, &event);
    CHECK(!"it is jumped out of");
  }
  return take_all(waiter);
}

// Lets a signal handler jump out of the wait.  No other thread may depend on this thread, and no
// event may be lost.
static void jumped_out_of(void) {
  struct rdma_event_channel* const channel = make_channel();
  struct waiter waiter = {.channel = channel, .events = kMany}, other;
  struct sigaction action = {.sa_handler = jump};
  CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
  CHECK(pthread_create(&waiter.thread, NULL, jump_out_and_come_back, &waiter) == 0);
  until_it_waits(&waiter);
  CHECK(pthread_kill(waiter.thread, SIGUSR2) == 0);
  for (int i = 0; i < kMany; ++i) resolve(channel);
  end(&waiter);
  begin(&other, channel, kMany);
  for (int i = 0; i < kMany; ++i) resolve(channel);
  end(&other);
  struct pollfd one = {.fd = channel->fd, .events = POLLIN};
  CHECK(poll(&one, 1, 0) == 0);
  rdma_destroy_event_channel(channel);
}

static void beside_a_fork(void) {
  struct rdma_event_channel* const channel = make_channel();
  struct waiter waiter;
  begin(&waiter, channel, 2 * kMany);
  for (int i = 0; i < kMany; ++i) {
    resolve(channel);
    if (i % 20 != 0) continue;
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {  // the child has its own device
      alarm(kTimeoutSeconds);
      one_after_the_other();
      _exit(0);
    }
    int status = 0;
    resolve(channel);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
  }
  while (waiter.taken < kMany + kMany / 20) sched_yield();
  for (int i = 0; i < kMany - kMany / 20; ++i) resolve(channel);
  end(&waiter);
  rdma_destroy_event_channel(channel);
}

#define RUN(way)              \
  do {                        \
    alarm(kTimeoutSeconds);         \
    way();                    \
    printf("%s: ok\n", #way); \
    fflush(stdout);           \
  } while (0)

int main(int argc, char** argv) {
  (void)argv;
  RUN(one_after_the_other);
  RUN(many_at_once);
  RUN(from_one_event_to_the_next);
  RUN(busy_while_more_wait);
  RUN(two_channels);
  RUN(two_threads);
  RUN(poll_first);
  RUN(polling);
  RUN(beside_one_that_polls);
  RUN(polling_and_then_waiting);
  RUN(interrupted);
  RUN(interrupted_among_others_events);
  RUN(cancelled);
  RUN(beside_calls);
  if (argc == 1) RUN(beside_a_fork);
  RUN(beside_a_destroyed_channel);
  RUN(jumped_out_of);
  return 0;
}
