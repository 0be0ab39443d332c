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

#include "sockets_fuzz.h"

enum { kTimeoutUs = 12000, kWords = 12 };

static int self;         // this actor's number
static int slot[kSlots]; /* descriptors, or -1 */
static struct counters* counters;
static volatile sig_atomic_t broken_pipes;
static unsigned char bytes[kPieceMax + kUnreadMax];

static void on_signal(int number) {
  if (number == SIGPIPE) {
    ++broken_pipes;
  } else {
    __atomic_fetch_add(&counters->signals[self], 1, __ATOMIC_SEQ_CST);
  }
}

static uint32_t hash_of(const unsigned char* from, size_t size) {
  uint32_t hash = 2166136261u;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ from[i]) * 16777619u;
  return hash;
}

// Fills the buffer with the bytes of one direction of a connection from an offset on.
static void fill(unsigned end, unsigned offset, size_t size) {
  for (size_t i = 0; i < size; ++i) {
    const uint32_t x = (offset + (uint32_t)i + end * 77777u) * 2654435761u;
    bytes[i] = (unsigned char)(x >> 24 ^ x >> 9);
  }
}

static void report(char* result, ssize_t value) {
  if (value >= 0) {
    append(result, "%zd", value);
  } else {
    append(result, "-1 %s", strerrorname_np(errno));
  }
}

static int* place(const char* word) {
  const int at = number(word);
  static int none;
  none = -1;
  return at >= 0 && at < kSlots ? &slot[at] : &none;
}

static int is_set(int fd) {
  char path[32], name[32] = "";
  snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  return fd >= 0 && readlink(path, name, sizeof(name) - 1) > 0 && strstr(name, "eventpoll") != NULL;
}

// Takes a slot's descriptor out of all sets: one that is closed while a copy lives stays in the
// kernel's set (docs/limits.md).
static void leave_sets(int* at) {
  for (int i = 0; *at >= 0 && i < kSlots; ++i) {
    if (&slot[i] != at && is_set(slot[i])) epoll_ctl(slot[i], EPOLL_CTL_DEL, *at, NULL);
  }
}
static void empty(int* at) {
  leave_sets(at);
  if (*at >= 0) close(*at);
  *at = -1;
}

// ---- bytes

// send SLOT HOW SIZE FLAGS END OFFSET
static void do_send(char** w, char* result) {
  const int fd = *place(w[1]);
  const size_t size = (size_t)number(w[3]);
  const int flags = (int)value_of(kFlagWords, w[4]);
  fill((unsigned)number(w[5]), (unsigned)number(w[6]), size);
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

// ---- waiting

// poll SLOT EVENTS SLOT EVENTS MS
static void do_poll(char** w, char* result) {
  struct pollfd fds[2] = {{*place(w[1]), (short)value_of(kEventWords, w[2]), 0},
                          {*place(w[3]), (short)value_of(kEventWords, w[4]), 0}};
  const int count = poll(fds, 2, number(w[5]));
  report(result, count);
  for (int i = 0; count > 0 && i < 2; ++i) {
    append(result, i == 0 ? " " : " / ");
    append_words(result, kEventWords, (uint16_t)fds[i].revents);
  }
}

// select SLOT SETS SLOT SETS MS, where SETS is of 1 (read), 2 (write), 4 (except)
static void do_select(char** w, char* result) {
  fd_set sets[3];
  const int fds[2] = {*place(w[1]), *place(w[3])};
  const int wanted[2] = {number(w[2]), number(w[4])};
  int most = 0;
  for (int i = 0; i < 3; ++i) {
    FD_ZERO(&sets[i]);
    for (int j = 0; j < 2; ++j) {
      if (fds[j] < 0 || (wanted[j] >> i & 1) == 0) continue;
      FD_SET(fds[j], &sets[i]);
      if (fds[j] >= most) most = fds[j] + 1;
    }
  }
  const int ms = number(w[5]);
  struct timeval limit = {ms / 1000, ms % 1000 * 1000};
  const int count = select(most, &sets[0], &sets[1], &sets[2], ms < 0 ? NULL : &limit);
  report(result, count);
  for (int j = 0; count > 0 && j < 2; ++j) {
    append(result, " ");
    for (int i = 0; i < 3; ++i) append(result, "%d", fds[j] >= 0 && FD_ISSET(fds[j], &sets[i]));
  }
}

// epnew SLOT
static void do_epnew(char** w, char* result) {
  int* at = place(w[1]);
  empty(at);
  *at = epoll_create1(EPOLL_CLOEXEC);
  append(result, "%d", *at >= 0 ? 0 : -1);
}

// epctl SLOT add|mod|del SLOT EVENTS
static void do_epctl(char** w, char* result) {
  const int operation = w[2][0] == 'a'   ? EPOLL_CTL_ADD
                        : w[2][0] == 'm' ? EPOLL_CTL_MOD
                                         : EPOLL_CTL_DEL;
  struct epoll_event event = {.events = value_of(kEventWords, w[4])};
  event.data.u64 = (event.events & EPOLLET ? 2000u : 1000u) + (unsigned)number(w[3]);
  report(result, epoll_ctl(*place(w[1]), operation, *place(w[3]), &event));
}

// epwait SLOT MOST MS
static void do_epwait(char** w, char* result) {
  struct epoll_event events[kSlots];
  const int most = number(w[2]) < kSlots ? number(w[2]) : kSlots;
  const int count = epoll_wait(*place(w[1]), events, most, number(w[3]));
  report(result, count);
  for (unsigned s = 0; most == kSlots && s < kSlots; ++s) {
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 % 1000u != s) continue;
      // An edge of the ring is one of input only; docs/limits.md says so.
      const uint32_t input = events[i].events & (EPOLLIN | EPOLLRDNORM);
      const int is_edge = events[i].data.u64 >= 2000u && input != 0;
      append(result, " %u:", s);
      append_words(result, kEventWords,
                   is_edge ? events[i].events & ~(EPOLLOUT | EPOLLWRNORM) : events[i].events);
    }
  }
}

// ---- options

static const struct option_name {
  const char* name;
  int level, option;
} kOptions[] = {{"nodelay", IPPROTO_TCP, TCP_NODELAY},     {"lowat", SOL_SOCKET, SO_RCVLOWAT},
                {"keepalive", SOL_SOCKET, SO_KEEPALIVE},   {"oobinline", SOL_SOCKET, SO_OOBINLINE},
                {"error", SOL_SOCKET, SO_ERROR},           {"type", SOL_SOCKET, SO_TYPE},
                {"acceptconn", SOL_SOCKET, SO_ACCEPTCONN}, {"keepidle", IPPROTO_TCP, TCP_KEEPIDLE}};

static const struct option_name* option_of(const char* name) {
  for (size_t i = 0; i < sizeof(kOptions) / sizeof(kOptions[0]); ++i) {
    if (strcmp(kOptions[i].name, name) == 0) return &kOptions[i];
  }
  return &kOptions[0];
}

// set SLOT OPTION VALUE
static void do_set(char** w, char* result) {
  const int value = number(w[3]);
  if (strcmp(w[2], "linger") == 0) {
    const struct linger l = {value >= 0, value > 0 ? value : 0};
    report(result, setsockopt(*place(w[1]), SOL_SOCKET, SO_LINGER, &l, sizeof(l)));
    return;
  }
  const struct option_name* o = option_of(w[2]);
  report(result, setsockopt(*place(w[1]), o->level, o->option, &value, sizeof(value)));
}

// get SLOT OPTION
static void do_get(char** w, char* result) {
  const struct option_name* o = option_of(w[2]);
  int value = 0;
  socklen_t length = sizeof(value);
  report(result, getsockopt(*place(w[1]), o->level, o->option, &value, &length));
  append(
      result, " %s",
      o->option == SO_ERROR && o->level == SOL_SOCKET && value != 0 ? strerrorname_np(value) : "");
  if (o->option != SO_ERROR || o->level != SOL_SOCKET) append(result, "%d", value);
}

// inq SLOT, atmark SLOT
static void do_ioctl(char** w, char* result) {
  int value = 0;
  const int done = ioctl(*place(w[1]), w[0][0] == 'i' ? FIONREAD : SIOCATMARK, &value);
  report(result, done);
  append(result, " %d", value);
}

// nonblock SLOT ON fcntl|ioctl
static void do_nonblock(char** w, char* result) {
  const int fd = *place(w[1]);
  int on = number(w[2]);
  int done = 0;
  if (w[3][0] == 'f') {
    const int flags = fcntl(fd, F_GETFL);
    done = fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
  } else {
    done = ioctl(fd, FIONBIO, &on);
  }
  report(result, done);
}

static int tcp_info(int fd, struct tcp_info* info) {
  socklen_t length = sizeof(*info);
  memset(info, 0, sizeof(*info));
  return getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &length);
}

// state SLOT: acknowledgements take time, so what differs only by them is the same
static void do_state(char** w, char* result) {
  static const char* const kNames[] = {"?",       "ESTABLISHED", "SYN",    "SYN",
                                       "FIN",     "FIN",         "CLOSED", "CLOSED",
                                       "PASSIVE", "CLOSED",      "LISTEN", "CLOSED"};
  struct tcp_info info;
  const int done = tcp_info(*place(w[1]), &info);
  report(result, done);
  if (done == 0) append(result, " %s", kNames[info.tcpi_state % 12]);
}

// info SLOT: for the coordinator only
static void do_info(char** w, char* result) {
  struct tcp_info info;
  if (tcp_info(*place(w[1]), &info) != 0) {
    append(result, "-1");
  } else {
    append(result, "%u %llu %llu %u", info.tcpi_state,
           (unsigned long long)(info.tcpi_bytes_sent - info.tcpi_bytes_retrans),
           (unsigned long long)info.tcpi_bytes_received, info.tcpi_notsent_bytes);
  }
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

// rings SLOT: says whether unread bytes lie where the kernel does not see them, and reads them
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

static const struct operation {
  const char* name;
  void (*perform)(char** words, char* result);
} kOperations[] = {
    {"send", do_send},       {"recv", do_recv},      {"poll", do_poll},
    {"select", do_select},   {"epnew", do_epnew},    {"epctl", do_epctl},
    {"epwait", do_epwait},   {"set", do_set},        {"get", do_get},
    {"inq", do_ioctl},       {"atmark", do_ioctl},   {"nonblock", do_nonblock},
    {"state", do_state},     {"info", do_info},      {"dup", do_dup},
    {"close", do_close},     {"shut", do_shut},      {"cloexec", do_cloexec},
    {"connect", do_connect}, {"accept", do_connect}, {"rings", do_rings},
    {"give", do_pass},       {"take", do_pass},
};

static void perform(char* order, char* result) {
  char* w[kWords];
  if (split(order, w, kWords) == 0) return;
  const int signals = broken_pipes;
  for (size_t i = 0; i < sizeof(kOperations) / sizeof(kOperations[0]); ++i) {
    if (strcmp(kOperations[i].name, w[0]) == 0) kOperations[i].perform(w, result);
  }
  if (broken_pipes != signals) append(result, " SIGPIPE");
}

// ---- the process

static void be_actor(void) __attribute__((noreturn));

// Forks.  The child becomes actor `child`.
static void fork_actor(int child, char* result) {
  const pid_t pid = fork();
  if (pid == 0) {
    self = child;
    // What one process changes in a set the other one does not know (docs/limits.md).
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
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR2, &action, NULL);
}

// Obeys until the coordinator says "quit".  An order with "!" may block for long, and says "go"
// before.
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
