// Implements the operations of sockets_fuzz.c that wait for connections or query their state.
#pragma once

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/select.h>

#include "sockets_fuzz_slots.h"

// ---- waiting

// poll SLOT EVENTS SLOT EVENTS MS [MASK]: calls poll(), or with a mask ppoll()
static void do_poll(char** w, char* result) {
  struct pollfd fds[2] = {{*descriptor_at(w[1]), (short)parse_words(kEventWords, w[2]), 0},
                          {*descriptor_at(w[3]), (short)parse_words(kEventWords, w[4]), 0}};
  const int ms = number(w[5]);
  const struct timespec limit = time_of(ms);
  sigset_t mask;
  const int count =
      w[6] == NULL ? poll(fds, 2, ms) : ppoll(fds, 2, ms < 0 ? NULL : &limit, mask_of(w[6], &mask));
  report(result, count);
  for (int i = 0; count > 0 && i < 2; ++i) {
    append(result, i == 0 ? " " : " / ");
    append_words(result, kEventWords, (uint16_t)fds[i].revents);
  }
}

// select SLOT SETS SLOT SETS MS [MASK]: calls select(), or with a mask pselect().  SETS is a sum of
// 1 (read), 2 (write) and 4 (except).
static void do_select(char** w, char* result) {
  fd_set sets[3];
  const int fds[2] = {*descriptor_at(w[1]), *descriptor_at(w[3])};
  const int set_bits[2] = {number(w[2]), number(w[4])};
  int nfds = 0;
  for (int i = 0; i < 3; ++i) {
    FD_ZERO(&sets[i]);
    for (int j = 0; j < 2; ++j) {
      if (fds[j] < 0 || (set_bits[j] >> i & 1) == 0) continue;
      FD_SET(fds[j], &sets[i]);
      if (fds[j] >= nfds) nfds = fds[j] + 1;
    }
  }
  const int ms = number(w[5]);
  struct timeval limit = {ms / 1000, ms % 1000 * 1000};
  const struct timespec same_limit = time_of(ms);
  sigset_t mask;
  const int count = w[6] == NULL
                        ? select(nfds, &sets[0], &sets[1], &sets[2], ms < 0 ? NULL : &limit)
                        : pselect(nfds, &sets[0], &sets[1], &sets[2], ms < 0 ? NULL : &same_limit,
                                  mask_of(w[6], &mask));
  report(result, count);
  for (int j = 0; count > 0 && j < 2; ++j) {
    append(result, " ");
    for (int i = 0; i < 3; ++i) append(result, "%d", fds[j] >= 0 && FD_ISSET(fds[j], &sets[i]));
  }
}

// epnew SLOT: creates an epoll set
static void do_epnew(char** w, char* result) {
  int* slot = descriptor_at(w[1]);
  close_slot(slot);
  *slot = epoll_create1(EPOLL_CLOEXEC);
  append(result, "%d", *slot >= 0 ? 0 : -1);
}

// epctl SLOT add|mod|del SLOT EVENTS: changes the entry of the second slot in the set of the first
static void do_epctl(char** w, char* result) {
  const int operation = w[2][0] == 'a'   ? EPOLL_CTL_ADD
                        : w[2][0] == 'm' ? EPOLL_CTL_MOD
                                         : EPOLL_CTL_DEL;
  struct epoll_event event = {.events = parse_words(kEventWords, w[4])};
  event.data.u64 = (event.events & EPOLLET ? 2000u : 1000u) + (unsigned)number(w[3]);
  report(result, epoll_ctl(*descriptor_at(w[1]), operation, *descriptor_at(w[3]), &event));
}

// Returns the events that are compared between TCP and the ring.  Removes output events that an
// entry with EPOLLET reports without input, because TCP also reports these when acknowledgements
// arrive.
static uint32_t compared_events(const struct epoll_event* event) {
  const int is_output_edge = event->data.u64 >= 2000u && (event->events & EPOLLIN) == 0;
  return is_output_edge ? event->events & ~(EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND) : event->events;
}

// epwait SLOT MAXEVENTS MS [MASK [2]]: calls epoll_wait(), or with a mask epoll_pwait() or
// epoll_pwait2().  If all entries fit into the array, reports the events of each slot in order, and
// "+" or "0" instead of the number of entries.
static void do_epwait(char** w, char* result) {
  struct epoll_event events[kSlots + 1];
  const int entries_max = kSlots + 1;
  const int maxevents = number(w[2]) < entries_max ? number(w[2]) : entries_max;
  const int set = *descriptor_at(w[1]), ms = number(w[3]);
  const struct timespec limit = time_of(ms);
  sigset_t mask;
  const int count = w[4] == NULL   ? epoll_wait(set, events, maxevents, ms)
                    : w[5] == NULL ? epoll_pwait(set, events, maxevents, ms, mask_of(w[4], &mask))
                                   : epoll_pwait2(set, events, maxevents, ms < 0 ? NULL : &limit,
                                                  mask_of(w[4], &mask));
  int compared_count = count;
  for (int i = 0; i < count; ++i) compared_count -= compared_events(&events[i]) == 0;
  report(result, compared_count);
  if (count > 0 && maxevents == entries_max) strcpy(result, "0");
  for (unsigned s = 0; maxevents == entries_max && s <= kSlots; ++s) {
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 % 1000u != s) continue;
      const uint32_t slot_events = compared_events(&events[i]);
      if (slot_events == 0) continue;
      append(result, " %u:", s);
      append_words(result, kEventWords, slot_events);
      result[0] = '+';
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

// set SLOT OPTION VALUE: sets an option of the socket by setsockopt()
static void do_set(char** w, char* result) {
  const int value = number(w[3]);
  if (strcmp(w[2], "linger") == 0) {
    const struct linger l = {value >= 0, value > 0 ? value : 0};
    report(result, setsockopt(*descriptor_at(w[1]), SOL_SOCKET, SO_LINGER, &l, sizeof(l)));
    return;
  }
  const struct option_name* o = option_of(w[2]);
  report(result, setsockopt(*descriptor_at(w[1]), o->level, o->option, &value, sizeof(value)));
}

// get SLOT OPTION: reports an option of the socket by getsockopt()
static void do_get(char** w, char* result) {
  const struct option_name* o = option_of(w[2]);
  int value = 0;
  socklen_t length = sizeof(value);
  report(result, getsockopt(*descriptor_at(w[1]), o->level, o->option, &value, &length));
  append(
      result, " %s",
      o->option == SO_ERROR && o->level == SOL_SOCKET && value != 0 ? strerrorname_np(value) : "");
  if (o->option != SO_ERROR || o->level != SOL_SOCKET) append(result, "%d", value);
}

// inq SLOT, atmark SLOT: reports the number of unread bytes (FIONREAD), or whether the urgent mark
// is reached (SIOCATMARK)
static void do_ioctl(char** w, char* result) {
  int value = 0;
  const int done = ioctl(*descriptor_at(w[1]), w[0][0] == 'i' ? FIONREAD : SIOCATMARK, &value);
  report(result, done);
  append(result, " %d", value);
}

// nonblock SLOT ON fcntl|ioctl: makes the descriptor non-blocking, or blocking if ON is 0
static void do_nonblock(char** w, char* result) {
  const int fd = *descriptor_at(w[1]);
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

// state SLOT: reports the TCP state.  Gives states the same name if only an acknowledgement makes
// the difference.
static void do_state(char** w, char* result) {
  static const char* const kNames[] = {"?",       "ESTABLISHED", "SYN",    "SYN",
                                       "FIN",     "FIN",         "CLOSED", "CLOSED",
                                       "PASSIVE", "CLOSED",      "LISTEN", "CLOSED"};
  struct tcp_info info;
  const int done = tcp_info(*descriptor_at(w[1]), &info);
  report(result, done);
  if (done == 0) append(result, " %s", kNames[info.tcpi_state % 12]);
}

// info SLOT: reports the TCP state and the numbers of bytes to the coordinator
static void do_info(char** w, char* result) {
  struct tcp_info info;
  if (tcp_info(*descriptor_at(w[1]), &info) != 0) {
    append(result, "-1");
  } else {
    append(result, "%u %llu %llu %u", info.tcpi_state,
           (unsigned long long)(info.tcpi_bytes_sent - info.tcpi_bytes_retrans),
           (unsigned long long)info.tcpi_bytes_received, info.tcpi_notsent_bytes);
  }
}
