// Implements an actor of sockets_fuzz.c: a process that makes the calls which the coordinator
// orders.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "sockets_fuzz_waits.h"

enum { kTimeoutUs = 12000, kWords = 12 };

// ---- bytes

// send SLOT HOW SIZE FLAGS END OFFSET
static void do_send(char** w, char* result) {
  const int fd = *place(w[1]);
  const size_t size = (size_t)number(w[3]);
  const int flags = (int)value_of(kFlagWords, w[4]);
  fill(bytes, (unsigned)number(w[5]), (unsigned)number(w[6]), size);
  struct iovec parts[3] = {
      {bytes, size / 3}, {bytes + size / 3, 0}, {bytes + size / 3, size - size / 3}};
  struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 1}},
                                {.msg_hdr = {.msg_iov = parts + 2, .msg_iovlen = 1}}};
  struct msghdr whole = {.msg_iov = parts, .msg_iovlen = 3};
  ssize_t sent = 0;
  if (strcmp(w[2], "write") == 0) {
    sent = write(fd, bytes, size);
  } else if (strcmp(w[2], "writev") == 0) {
    sent = writev(fd, parts, 3);
  } else if (strcmp(w[2], "sendmsg") == 0) {
    sent = sendmsg(fd, &whole, flags);
  } else if (strcmp(w[2], "sendto") == 0) {
    sent = sendto(fd, bytes, size, flags, NULL, 0);
  } else if (strcmp(w[2], "sendmmsg") == 0) {
    sent = sendmmsg(fd, messages, 2, flags);
    if (sent > 0) {
      sent = 0;
      for (int i = 0; i < 2; ++i) sent += messages[i].msg_len;
    }
  } else if (strcmp(w[2], "sendfile") == 0) {
    // The kernel sends the file's pages themselves, so a file is not used again.
    off_t offset = 0;
    const int file = memfd_create("sockets_fuzz", 0);
    if (pwrite(file, bytes, size, 0) != (ssize_t)size) die("pwrite");
    sent = sendfile(fd, file, &offset, size);
    const int error = errno;
    close(file);
    errno = error;
  } else if (strcmp(w[2], "splice") == 0) {
    int pipe_ends[2];
    const size_t part = size < 60000 ? size : 60000;
    if (pipe(pipe_ends) != 0 || write(pipe_ends[1], bytes, part) != (ssize_t)part) die("pipe");
    close(pipe_ends[1]);
    sent = splice(pipe_ends[0], NULL, fd, NULL, part, SPLICE_F_NONBLOCK);
    const int error = errno;
    close(pipe_ends[0]);
    errno = error;
  } else if (strcmp(w[2], "stdio") == 0) {
    FILE* file = fdopen(dup(fd), "w");
    if (file == NULL) die("fdopen");
    sent = (ssize_t)fwrite(bytes, 1, size, file);
    if (fclose(file) != 0) sent = -1;
  } else if (strcmp(w[2], "dprintf") == 0) {
    sent = dprintf(fd, "%-*s", (int)(size % 1000), "x");
  } else {
    sent = send(fd, bytes, size, flags);
  }
  report(result, sent);
}

// recv SLOT HOW SIZE FLAGS
static void do_recv(char** w, char* result) {
  const int fd = *place(w[1]);
  const size_t size = (size_t)number(w[3]);
  const int flags = (int)value_of(kFlagWords, w[4]);
  struct iovec parts[3] = {
      {bytes, size / 2}, {bytes + size / 2, 0}, {bytes + size / 2, size - size / 2}};
  char control[64];
  struct sockaddr_storage from;
  struct msghdr whole = {.msg_name = &from,
                         .msg_namelen = sizeof(from),
                         .msg_iov = parts,
                         .msg_iovlen = 3,
                         .msg_control = control,
                         .msg_controllen = sizeof(control),
                         .msg_flags = 0x7000};
  memset(bytes, 0xee, size);
  ssize_t got = 0;
  char more[64] = "";
  if (strcmp(w[2], "read") == 0) {
    got = read(fd, bytes, size);
  } else if (strcmp(w[2], "readv") == 0) {
    got = readv(fd, parts, 3);
  } else if (strcmp(w[2], "recvmsg") == 0) {
    got = recvmsg(fd, &whole, flags);
    if (got >= 0) {
      append(more, " name=%u control=%zu flags=%x", whole.msg_namelen, whole.msg_controllen,
             (unsigned)whole.msg_flags);
    }
  } else if (strcmp(w[2], "recvfrom") == 0) {
    socklen_t length = sizeof(from);
    got = recvfrom(fd, bytes, size, flags, (struct sockaddr*)&from, &length);
    if (got >= 0) append(more, " name=%u", length);
  } else if (strcmp(w[2], "recvmmsg") == 0) {
    struct mmsghdr messages[2] = {
        {.msg_hdr = {.msg_iov = parts, .msg_iovlen = 1, .msg_controllen = 5}},
        {.msg_hdr = {.msg_iov = parts + 2, .msg_iovlen = 1, .msg_controllen = 5}}};
    const int count = recvmmsg(fd, messages, 2, flags | MSG_WAITFORONE, NULL);
    got = count < 0 ? -1 : 0;
    for (int i = 0; i < count; ++i) {
      append(more, " %u", messages[i].msg_len);
      got += messages[i].msg_len;
    }
  } else if (strcmp(w[2], "splice") == 0) {
    int pipe_ends[2];
    if (pipe(pipe_ends) != 0) die("pipe");
    got = splice(fd, NULL, pipe_ends[1], NULL, size < 4096 ? size : 4096, SPLICE_F_NONBLOCK);
    const int error = errno;
    if (got > 0 && read(pipe_ends[0], bytes, (size_t)got) != got) die("read from a pipe");
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    errno = error;
  } else if (strcmp(w[2], "stdio") == 0) {
    FILE* file = fdopen(dup(fd), "r");
    if (file == NULL) die("fdopen");
    got = (ssize_t)fread(bytes, 1, size, file);
    fclose(file);
  } else {
    got = recv(fd, bytes, size, flags);
  }
  report(result, got);
  if (got > 0 && (flags & MSG_TRUNC) == 0) {
    const int in_two = strcmp(w[2], "recvmmsg") == 0;
    append(result, " #%08x", hash_of(bytes, in_two ? size / 2 : (size_t)got));
  }
  append(result, "%s", more);
}

static unsigned char* flood_bytes(void) {
  static unsigned char* buffer;
  if (buffer == NULL && (buffer = malloc(kFlood)) == NULL) die("malloc");
  return buffer;
}

// flood SLOT END OFFSET: sends more than there is room for, in one call
static void do_flood(char** w, char* result) {
  unsigned char* buffer = flood_bytes();
  fill(buffer, (unsigned)number(w[2]), (unsigned)number(w[3]), kFlood);
  report(result, send(*place(w[1]), buffer, kFlood, 0));
}

// fill SLOT END OFFSET: sends until there is no room for a long while
static void do_fill(char** w, char* result) {
  const int fd = *place(w[1]);
  unsigned char* buffer = flood_bytes();
  size_t sent = 0;
  fill(buffer, (unsigned)number(w[2]), (unsigned)number(w[3]), kFlood);
  for (int has_waited = 0; sent < kFlood;) {
    const ssize_t n = send(fd, buffer + sent, kFlood - sent, MSG_DONTWAIT);
    if (n > 0) {
      sent += (size_t)n;
      has_waited = 0;
    } else if (errno == EAGAIN && !has_waited) {
      // The peer's buffer may take more from this one's for a moment.
      struct pollfd one = {fd, POLLOUT, 0};
      has_waited = poll(&one, 1, 30) == 0;
    } else {
      break;
    }
  }
  report(result, (ssize_t)sent);
}

// drain SLOT SIZE END OFFSET: receives so many bytes, or all up to the end, and checks them
static void do_drain(char** w, char* result) {
  const int fd = *place(w[1]);
  const size_t wanted = (size_t)number(w[2]);
  static unsigned char got[65536];
  size_t done = 0, bad = 0;
  while (done < wanted) {
    const size_t rest = wanted - done;
    const ssize_t n = recv(fd, got, rest < sizeof(got) ? rest : sizeof(got), 0);
    if (n <= 0) {
      append(result, "%zu %s %s", done, bad ? "bad" : "good",
             n == 0 ? "end" : strerrorname_np(errno));
      return;
    }
    fill(bytes, (unsigned)number(w[3]), (unsigned)number(w[4]) + (unsigned)done, (size_t)n);
    bad += memcmp(bytes, got, (size_t)n) != 0;
    done += (size_t)n;
  }
  append(result, "%zu %s", done, bad ? "bad" : "good");
}

// ---- descriptors

// dup SLOT SLOT HOW
static void do_dup(char** w, char* result) {
  const int from = *place(w[1]);
  int* to = place(w[2]);
  leave_sets(to);
  if (strcmp(w[3], "dup2") == 0 && *to >= 0) {
    report(result, dup2(from, *to) == *to ? 0 : -1);
    return;
  }
  if (strcmp(w[3], "dup3") == 0 && *to >= 0) {
    report(result, dup3(from, *to, O_CLOEXEC) == *to ? 0 : -1);
    return;
  }
  empty(to);
  if (strcmp(w[3], "dupfd") == 0) {
    *to = fcntl(from, F_DUPFD, 50);
  } else if (strcmp(w[3], "cloexec") == 0) {
    *to = fcntl(from, F_DUPFD_CLOEXEC, 70);
  } else {
    *to = dup(from);
  }
  report(result, *to >= 0 ? 0 : -1);
}

static void do_close(char** w, char* result) {
  int* at = place(w[1]);
  const int fd = *at;
  leave_sets(at);
  *at = -1;
  const int done = w[2] != NULL && w[2][0] == 's' ? (int)syscall(SYS_close, fd) : close(fd);
  report(result, done);
}

static void do_shut(char** w, char* result) {
  report(result, shutdown(*place(w[1]), number(w[2])));
}

// cloexec SLOT ON
static void do_cloexec(char** w, char* result) {
  report(result, fcntl(*place(w[1]), F_SETFD, number(w[2]) ? FD_CLOEXEC : 0));
}

static void set_timeouts(int fd, long us) {
  const struct timeval limit = {us / 1000000, us % 1000000};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

// connect SLOT WAYS, accept SLOT WAYS: calls and options by the bits of WAYS
static void do_connect(char** w, char* result) {
  const int ways = number(w[2]);
  int* at = place(w[1]);
  empty(at);
  if (w[0][0] == 'a') {
    *at = ways & 1 ? accept4(kListener, NULL, NULL, SOCK_NONBLOCK) : accept(kListener, NULL, NULL);
    if (*at < 0) die("accept");
    if (ways & 1) fcntl(*at, F_SETFL, fcntl(*at, F_GETFL) & ~O_NONBLOCK);
  } else {
    struct sockaddr_in name;
    socklen_t length = sizeof(name);
    getsockname(kListener, (struct sockaddr*)&name, &length);
    *at = socket(AF_INET, SOCK_STREAM | (ways & 1 ? SOCK_NONBLOCK : 0), 0);
    const int low = 3;
    if (ways == 6) setsockopt(*at, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low));
    const int done = connect(*at, (struct sockaddr*)&name, length);
    if (done != 0 && errno != EINPROGRESS) die("connect");
    if (ways & 1) {
      struct pollfd one = {*at, POLLOUT, 0};
      poll(&one, 1, 5000);
      int off = 0;
      ioctl(*at, FIONBIO, &off);
    }
  }
  const int on = 1;
  setsockopt(*at, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  set_timeouts(*at, kTimeoutUs);
  append(result, "0");
}

// rings SLOT: reports whether unread bytes lie where the kernel does not see them, and reads them
static void do_rings(char** w, char* result) {
  int seen = 0, in_kernel = 0;
  ioctl(*place(w[1]), FIONREAD, &seen);
  syscall(SYS_ioctl, *place(w[1]), FIONREAD, &in_kernel);
  const ssize_t got = recv(*place(w[1]), bytes, sizeof(bytes), MSG_DONTWAIT);
  append(result, "%zd %d", got, seen > in_kernel);
}

// give SLOT ACTOR, take SLOT: passes a copy of the descriptor
static void do_pass(char** w, char* result) {
  char control[CMSG_SPACE(sizeof(int))] = {0};
  char byte = 'x';
  struct iovec part = {&byte, 1};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
  if (w[0][0] == 'g') {
    struct cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), place(w[1]), sizeof(int));
    report(result, sendmsg(kMailIn + number(w[2]), &message, 0));
    return;
  }
  int* at = place(w[1]);
  empty(at);
  const ssize_t got = recvmsg(kMailOut + self, &message, MSG_DONTWAIT);
  if (got == 1 && CMSG_FIRSTHDR(&message) != NULL) {
    memcpy(at, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
  }
  report(result, *at >= 0 ? 0 : -1);
}

// ---- signals

// own SLOT: this process gets the signals of the connection
static void do_own(char** w, char* result) {
  report(result, fcntl(*place(w[1]), F_SETOWN, getpid()));
}

// async SLOT ON fcntl|ioctl SIGNAL: SIGIO, or a real-time signal, tells of bytes
static void do_async(char** w, char* result) {
  const int fd = *place(w[1]);
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

// sigmask - MASK: blocks these signals
static void do_sigmask(char** w, char* result) {
  sigset_t mask;
  report(result, sigprocmask(SIG_SETMASK, mask_of(w[2], &mask), NULL));
}

// signals -: reports which signals have come.  Two of a kind may become one in the kernel, so those
// that it sends are not counted.
static void do_signals(char** w, char* result) {
  unsigned* told = counters->told[self];
  unsigned news[kSignalKinds];
  (void)w;
  for (int kind = 0; kind < kSignalKinds; ++kind) {
    const unsigned now = handled(self, (enum signal_kind)kind);
    news[kind] = now - told[kind];
    told[kind] = now;
  }
  append(result, "usr1=%u usr2=%u urg=%d io=%d", news[kUsr1], news[kUsr2], news[kUrgent] != 0,
         news[kAsync] != 0);
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
    {"async", do_async},     {"sigmask", do_sigmask}, {"signals", do_signals},
};

static void perform(char* order, char* result) {
  char* w[kWords];
  if (split(order, w, kWords) == 0) return;
  const int signals = broken_pipes;
  const unsigned usr1 = handled(self, kUsr1), usr2 = handled(self, kUsr2);
  for (size_t i = 0; i < sizeof(kOperations) / sizeof(kOperations[0]); ++i) {
    if (strcmp(kOperations[i].name, w[0]) == 0) kOperations[i].perform(w, result);
  }
  if (broken_pipes != signals) append(result, " SIGPIPE");
  if (handled(self, kUsr1) != usr1) append(result, " SIGUSR1");
  if (handled(self, kUsr2) != usr2) append(result, " SIGUSR2");
}

// ---- the process

static void be_actor(void) __attribute__((noreturn));

// Forks.  The child becomes actor `child`.
static void fork_actor(int child, char* result) {
  const pid_t pid = fork();
  if (pid == 0) {
    self = child;
    // The two processes do not know what the other one changes in a set (docs/limits.md).
    for (int i = 0; i < kSlots; ++i) {
      if (is_set(slot[i])) empty(&slot[i]);
    }
    be_actor();
  }
  append(result, "%d", (int)pid);
}

// Replaces the program by itself: with the preloaded library, or without.
static void exec_actor(const char* how, char* result) {
  char text[kSlots + 1][16];
  char* argv[kSlots + 4] = {(char*)"sockets_fuzz", (char*)"actor", text[kSlots]};
  snprintf(text[kSlots], sizeof(text[0]), "%d", self);
  for (int i = 0; i < kSlots; ++i) {
    snprintf(text[i], sizeof(text[i]), "%d", slot[i]);
    argv[3 + i] = text[i];
  }
  const char* preload = getenv("LD_PRELOAD");
  if (preload != NULL) setenv("FUZZ_PRELOAD", preload, 1);
  if (strcmp(how, "plain") == 0) {
    unsetenv("LD_PRELOAD");
  } else if (getenv("FUZZ_PRELOAD") != NULL) {
    setenv("LD_PRELOAD", getenv("FUZZ_PRELOAD"), 1);
  }
  execv("/proc/self/exe", argv);
  report(result, -1);
}

static void prepare_actor(void) {
  // Only the coordinator has these, so that all actors end with it.
  for (int a = 0; a < kActors; ++a) close(kOrders + a);
  counters = mmap(NULL, sizeof(*counters), PROT_READ | PROT_WRITE, MAP_SHARED, kCounters, 0);
  if (counters == MAP_FAILED) die("mmap");
  struct sigaction action = {.sa_handler = on_signal};
  sigaction(SIGPIPE, &action, NULL);
  sigaction(SIGUSR1, &action, NULL);
  sigaction(kEndOfWait, &action, NULL);
  action.sa_flags = SA_RESTART;
  const int restarting[] = {SIGUSR2, SIGURG, SIGIO, SIGRTMIN + 1};
  for (int i = 0; i < 4; ++i) sigaction(restarting[i], &action, NULL);
}

// Carries out orders until "quit".  An order with "!" may block for long, so the actor prints "go"
// before it.
static void be_actor(void) {
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
    } else if (strncmp(order, "exec ", 5) == 0) {
      exec_actor(order + 5, result);
    } else if (order[0] == '!') {
      char copy[kLineMax];
      char* w[kWords];
      strcpy(copy, order + 1);
      split(copy, w, kWords);
      set_timeouts(*place(w[1]), 0);
      if (write(kResults + self, "go", 2) != 2) _exit(1);
      perform(order + 1, result);
      set_timeouts(*place(w[1]), kTimeoutUs);
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
    slot[i] = i + 3 < argc ? atoi(argv[i + 3]) : -1;
    if (slot[i] >= 0 && fcntl(slot[i], F_GETFD) < 0) slot[i] = -1;
  }
  prepare_actor();
  if (write(kResults + self, "0", 2) != 2) _exit(1);
  be_actor();
}
