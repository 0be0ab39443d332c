// Implements an actor of sockets_fuzz.c: a process that makes the calls that the coordinator
// requests.  The comment above an operation gives the text of the order that requests it.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sockets_fuzz_transfers.h"
#include "sockets_fuzz_waits.h"

enum { kTimeoutUs = 12000, kWords = 12 };

// ---- descriptors

// dup FROM_SLOT TO_SLOT dup|dup2|dup3|dupfd|cloexec: copies a descriptor; the last two words stand
// for fcntl() with F_DUPFD and F_DUPFD_CLOEXEC
static void do_dup(char** w, char* result) {
  const int from = *descriptor_at(w[1]);
  int* to = descriptor_at(w[2]);
  remove_from_sets(to);
  if (strcmp(w[3], "dup2") == 0 && *to >= 0) {
    report(result, dup2(from, *to) == *to ? 0 : -1);
    return;
  }
  if (strcmp(w[3], "dup3") == 0 && *to >= 0) {
    report(result, dup3(from, *to, O_CLOEXEC) == *to ? 0 : -1);
    return;
  }
  close_slot(to);
  if (strcmp(w[3], "dupfd") == 0) {
    *to = fcntl(from, F_DUPFD, 50);
  } else if (strcmp(w[3], "cloexec") == 0) {
    *to = fcntl(from, F_DUPFD_CLOEXEC, 70);
  } else {
    *to = dup(from);
  }
  report(result, *to >= 0 ? 0 : -1);
}

// close SLOT [s]: calls close(), or with "s" makes the system call itself
static void do_close(char** w, char* result) {
  int* slot = descriptor_at(w[1]);
  const int fd = *slot;
  remove_from_sets(slot);
  *slot = -1;
  const int is_system_call = w[2] != NULL && strcmp(w[2], "s") == 0;
  const int done = is_system_call ? (int)syscall(SYS_close, fd) : close(fd);
  report(result, done);
}

// shut SLOT HOW: calls shutdown() with the number HOW (SHUT_RD, SHUT_WR or SHUT_RDWR)
static void do_shut(char** w, char* result) {
  report(result, shutdown(*descriptor_at(w[1]), number(w[2])));
}

// cloexec SLOT ON: sets FD_CLOEXEC of the descriptor, or clears it if ON is 0
static void do_cloexec(char** w, char* result) {
  report(result, fcntl(*descriptor_at(w[1]), F_SETFD, number(w[2]) ? FD_CLOEXEC : 0));
}

static void set_timeouts(int fd, long us) {
  const struct timeval limit = {us / 1000000, us % 1000000};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

// connect SLOT WAYS, accept SLOT WAYS: makes a connection.  WAYS is a number.  If it is odd, the
// socket is non-blocking during the call.  If it is 6, "connect" sets SO_RCVLOWAT.
static void do_connect(char** w, char* result) {
  const int ways = number(w[2]);
  int* slot = descriptor_at(w[1]);
  close_slot(slot);
  if (strcmp(w[0], "accept") == 0) {
    *slot =
        ways & 1 ? accept4(kListener, NULL, NULL, SOCK_NONBLOCK) : accept(kListener, NULL, NULL);
    if (*slot < 0) die("accept");
    if (ways & 1) fcntl(*slot, F_SETFL, fcntl(*slot, F_GETFL) & ~O_NONBLOCK);
  } else {
    struct sockaddr_in name;
    socklen_t length = sizeof(name);
    getsockname(kListener, (struct sockaddr*)&name, &length);
    *slot = socket(AF_INET, SOCK_STREAM | (ways & 1 ? SOCK_NONBLOCK : 0), 0);
    const int low = 3;
    if (ways == 6) setsockopt(*slot, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low));
    const int done = connect(*slot, (struct sockaddr*)&name, length);
    if (done != 0 && errno != EINPROGRESS) die("connect");
    if (ways & 1) {
      struct pollfd one = {*slot, POLLOUT, 0};
      poll(&one, 1, 5000);
      int off = 0;
      ioctl(*slot, FIONBIO, &off);
    }
  }
  const int on = 1;
  setsockopt(*slot, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  set_timeouts(*slot, kTimeoutUs);
  append(result, "0");
}

// rings SLOT: reads bytes.  Reports their number, and 1 if some of the unread bytes were in the
// ring of the library and not in the kernel.  FIONREAD of the library counts both, and that of the
// kernel counts only its own.
static void do_rings(char** w, char* result) {
  int in_both = 0, in_kernel = 0;
  ioctl(*descriptor_at(w[1]), FIONREAD, &in_both);
  syscall(SYS_ioctl, *descriptor_at(w[1]), FIONREAD, &in_kernel);
  const ssize_t got = recv(*descriptor_at(w[1]), bytes, sizeof(bytes), MSG_DONTWAIT);
  append(result, "%zd %d", got, in_both > in_kernel);
}

// give SLOT ACTOR, take SLOT: sends or receives a copy of a descriptor (SCM_RIGHTS)
static void do_pass(char** w, char* result) {
  char control[CMSG_SPACE(sizeof(int))] = {0};
  char byte = 'x';
  struct iovec part = {&byte, 1};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
  if (strcmp(w[0], "give") == 0) {
    struct cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), descriptor_at(w[1]), sizeof(int));
    report(result, sendmsg(kPassSend + number(w[2]), &message, 0));
    return;
  }
  int* slot = descriptor_at(w[1]);
  close_slot(slot);
  const ssize_t got = recvmsg(kPassReceive + self, &message, MSG_DONTWAIT);
  if (got == 1 && CMSG_FIRSTHDR(&message) != NULL) {
    memcpy(slot, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
  }
  report(result, *slot >= 0 ? 0 : -1);
}

// ---- signals

// own SLOT: makes this process the receiver of the connection's signals
static void do_own(char** w, char* result) {
  report(result, fcntl(*descriptor_at(w[1]), F_SETOWN, getpid()));
}

// async SLOT ON fcntl|ioctl SIGNAL: makes the kernel report events by SIGIO or a real-time signal
static void do_async(char** w, char* result) {
  const int fd = *descriptor_at(w[1]);
  int on = number(w[2]);
  int done = fcntl(fd, F_SETSIG, w[4][0] == 'r' ? SIGRTMIN + 1 : 0);
  if (w[3][0] == 'i') {
    done |= ioctl(fd, FIOASYNC, &on);
  } else {
    const int flags = fcntl(fd, F_GETFL);
    done |= fcntl(fd, F_SETFL, on ? flags | O_ASYNC : flags & ~O_ASYNC);
  }
  report(result, done);
}

// sigmask - MASK: blocks the signals of MASK and no others; the word "-" is ignored
static void do_sigmask(char** w, char* result) {
  sigset_t mask;
  report(result, sigprocmask(SIG_SETMASK, mask_of(w[2], &mask), NULL));
}

// signals -: reports the signals that have arrived since the last report.  The kernel may merge two
// signals that it sends itself, so SIGURG and SIGIO are reported only as 0 or 1.
static void do_signals(char** w, char* result) {
  unsigned* reported = counters->reported[self];
  unsigned new_signals[kSignalKinds];
  (void)w;
  for (int kind = 0; kind < kSignalKinds; ++kind) {
    const unsigned now = handled_signals(self, (enum signal_kind)kind);
    new_signals[kind] = now - reported[kind];
    reported[kind] = now;
  }
  append(result, "usr1=%u usr2=%u urg=%d io=%d", new_signals[kUsr1], new_signals[kUsr2],
         new_signals[kUrgent] != 0, new_signals[kAsync] != 0);
}

// ---- a second thread

static void make_call(char* order, char* result);

static struct helper {
  pthread_t thread;
  char order[kLineMax], result[kLineMax];
} helper;

static void* run_helper(void* unused) {
  __atomic_store_n(&counters->helpers[self], (int)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
  make_call(helper.order, helper.result);
  __atomic_store_n(&counters->helpers[self], 0, __ATOMIC_SEQ_CST);
  return unused;
}

// thread ORDER: starts a second thread that makes a call without a timeout
static void start_helper(const char* order, char* result) {
  char copy[kLineMax];
  char* w[kWords];
  strcpy(helper.order, order);
  helper.result[0] = '\0';
  strcpy(copy, order);
  split(copy, w, kWords);
  set_timeouts(*descriptor_at(w[1]), 0);
  // The first thread must get the signals, so the new thread blocks all except kEndWaitSignal.
  sigset_t all, before;
  sigfillset(&all);
  sigdelset(&all, kEndWaitSignal);
  sigprocmask(SIG_BLOCK, &all, &before);
  __atomic_store_n(&counters->helpers[self], -1, __ATOMIC_SEQ_CST);
  if (pthread_create(&helper.thread, NULL, run_helper, NULL) != 0) die("pthread_create");
  sigprocmask(SIG_SETMASK, &before, NULL);
  append(result, "0");
}

// join -: waits for the second thread and returns the result of its call
static void do_join(char** w, char* result) {
  (void)w;
  pthread_join(helper.thread, NULL);
  append(result, "%s", helper.result);
}

// limits SLOT: sets the connection's timeouts to kTimeoutUs again
static void do_limits(char** w, char* result) {
  set_timeouts(*descriptor_at(w[1]), kTimeoutUs);
  append(result, "0");
}

static const struct operation {
  const char* name;
  void (*perform)(char** words, char* result);
} kOperations[] = {
    {"send", do_send},       {"recv", do_recv},       {"poll", do_poll},
    {"select", do_select},   {"epnew", do_epnew},     {"epctl", do_epctl},
    {"epwait", do_epwait},   {"set", do_set},         {"get", do_get},
    {"inq", do_ioctl},       {"atmark", do_ioctl},    {"nonblock", do_nonblock},
    {"state", do_state},     {"info", do_info},       {"dup", do_dup},
    {"close", do_close},     {"shut", do_shut},       {"cloexec", do_cloexec},
    {"connect", do_connect}, {"accept", do_connect},  {"rings", do_rings},
    {"give", do_pass},       {"take", do_pass},       {"own", do_own},
    {"flood", do_flood},     {"fill", do_fill},       {"drain", do_drain},
    {"async", do_async},     {"join", do_join},       {"limits", do_limits},
    {"sigmask", do_sigmask}, {"signals", do_signals},
};

static void make_call(char* order, char* result) {
  char* w[kWords];
  if (split(order, w, kWords) == 0) return;
  for (size_t i = 0; i < sizeof(kOperations) / sizeof(kOperations[0]); ++i) {
    if (strcmp(kOperations[i].name, w[0]) == 0) kOperations[i].perform(w, result);
  }
}

// Makes the call of an order.  Also reports the signals that the actor has handled meanwhile.
static void perform(char* order, char* result) {
  const int signals = sigpipe_count;
  const unsigned usr1 = handled_signals(self, kUsr1), usr2 = handled_signals(self, kUsr2);
  make_call(order, result);
  if (sigpipe_count != signals) append(result, " SIGPIPE");
  if (handled_signals(self, kUsr1) != usr1) append(result, " SIGUSR1");
  if (handled_signals(self, kUsr2) != usr2) append(result, " SIGUSR2");
}

// ---- the process

static void run_actor(void) __attribute__((noreturn));

// Forks.  The child becomes actor `child`.
static void fork_actor(int child, char* result) {
  const pid_t pid = fork();
  if (pid == 0) {
    self = child;
    // Two processes with a shared epoll set do not learn of each other's changes (docs/limits.md),
    // so the child closes its sets.
    for (int i = 0; i < kSlots; ++i) {
      if (!is_epoll_set(slots[i])) continue;
      close(slots[i]);
      slots[i] = -1;
    }
    run_actor();
  }
  append(result, "%d", (int)pid);
}

// Executes this program again, with the preloaded library, or without it if `mode` is "plain".
static void exec_actor(const char* mode, char* result) {
  char text[kSlots + 1][16];
  char* argv[kSlots + 4] = {(char*)"sockets_fuzz", (char*)"actor", text[kSlots]};
  snprintf(text[kSlots], sizeof(text[0]), "%d", self);
  for (int i = 0; i < kSlots; ++i) {
    snprintf(text[i], sizeof(text[i]), "%d", slots[i]);
    argv[3 + i] = text[i];
  }
  const char* preload = getenv("LD_PRELOAD");
  if (preload != NULL) setenv("FUZZ_PRELOAD", preload, 1);
  if (strcmp(mode, "plain") == 0) {
    unsetenv("LD_PRELOAD");
  } else if (getenv("FUZZ_PRELOAD") != NULL) {
    setenv("LD_PRELOAD", getenv("FUZZ_PRELOAD"), 1);
  }
  execv("/proc/self/exe", argv);
  report(result, -1);
}

static void prepare_actor(void) {
  // Close the coordinator's ends of the sockets.  So all actors end when the coordinator ends.
  for (int a = 0; a < kActors; ++a) close(kOrders + a);
  counters = mmap(NULL, sizeof(*counters), PROT_READ | PROT_WRITE, MAP_SHARED, kCounters, 0);
  if (counters == MAP_FAILED) die("mmap");
  struct sigaction action = {.sa_handler = on_signal};
  sigaction(SIGPIPE, &action, NULL);
  sigaction(SIGUSR1, &action, NULL);
  sigaction(kEndWaitSignal, &action, NULL);
  action.sa_flags = SA_RESTART;
  const int restarting[] = {SIGUSR2, SIGURG, SIGIO, SIGRTMIN + 1};
  for (int i = 0; i < 4; ++i) sigaction(restarting[i], &action, NULL);
}

// Executes orders until "quit".  If an order begins with "!", its call has no timeout, and the
// actor answers "go" before the call, so that the coordinator can continue.  The descriptor
// kResults + self is the actor's end of the socket: it receives orders from it, and sends results
// to it.
static void run_actor(void) {
  char order[kLineMax], result[kLineMax];
  for (;;) {
    const ssize_t got = read(kResults + self, order, sizeof(order) - 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) _exit(1);
    order[got] = '\0';
    result[0] = '\0';
    if (strcmp(order, "quit") == 0) _exit(0);
    if (strncmp(order, "fork ", 5) == 0) {
      fork_actor(atoi(order + 5), result);
    } else if (strncmp(order, "thread ", 7) == 0) {
      start_helper(order + 7, result);
    } else if (strncmp(order, "exec ", 5) == 0) {
      exec_actor(order + 5, result);
    } else if (order[0] == '!') {
      char copy[kLineMax];
      char* w[kWords];
      strcpy(copy, order + 1);
      split(copy, w, kWords);
      set_timeouts(*descriptor_at(w[1]), 0);
      if (write(kResults + self, "go", 2) != 2) _exit(1);
      perform(order + 1, result);
      set_timeouts(*descriptor_at(w[1]), kTimeoutUs);
    } else {
      perform(order, result);
    }
    if (write(kResults + self, result, strlen(result) + 1) < 0) _exit(1);
  }
}

// Continues as an actor after exec().
static void continue_actor(char** argv, int argc) {
  self = atoi(argv[2]);
  for (int i = 0; i < kSlots; ++i) {
    slots[i] = i + 3 < argc ? atoi(argv[i + 3]) : -1;
    if (slots[i] >= 0 && fcntl(slots[i], F_GETFD) < 0) slots[i] = -1;
  }
  prepare_actor();
  if (write(kResults + self, "0", 2) != 2) _exit(1);
  run_actor();
}
