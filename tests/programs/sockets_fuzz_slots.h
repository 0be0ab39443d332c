// Stores the state of an actor of sockets_fuzz.c: its number, and the descriptor in each slot.
#pragma once

#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include "sockets_fuzz.h"

static int self;           // this actor's number
static int slots[kSlots];  // the descriptor in each slot, or -1
static struct counters* counters;
static volatile sig_atomic_t sigpipe_count;
static __thread unsigned char bytes[kBytesMax];

static void on_signal(int number) {
  if (number == SIGPIPE) {
    ++sigpipe_count;
  } else if (number != kEndWaitSignal) {
    const enum signal_kind kind = number == SIGUSR1   ? kUsr1
                                  : number == SIGUSR2 ? kUsr2
                                  : number == SIGURG  ? kUrgent
                                                      : kAsync;
    __atomic_fetch_add(&counters->signals[self][kind], 1, __ATOMIC_SEQ_CST);
  }
}
static unsigned handled_signals(int actor, enum signal_kind kind) {
  return __atomic_load_n(&counters->signals[actor][kind], __ATOMIC_SEQ_CST);
}

// Parses a word like "usr1,usr2", or "-" for an empty mask.  Returns NULL if there is no word.
static const sigset_t* mask_of(const char* word, sigset_t* mask) {
  if (word == NULL) return NULL;
  const uint32_t signals = parse_words(kMaskWords, word);
  sigemptyset(mask);
  if (signals & kMaskUsr1) sigaddset(mask, SIGUSR1);
  if (signals & kMaskUsr2) sigaddset(mask, SIGUSR2);
  return mask;
}
static struct timespec time_of(int ms) {
  return (struct timespec){ms / 1000, ms % 1000 * 1000000L};
}

static uint32_t hash_of(const unsigned char* from, size_t size) {
  uint32_t hash = 2166136261u;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ from[i]) * 16777619u;
  return hash;
}

// Fills the buffer with the bytes that this end of a connection sends from this offset on.
static void fill(unsigned char* to, unsigned end, unsigned offset, size_t size) {
  for (size_t i = 0; i < size; ++i) {
    const uint32_t x = (offset + (uint32_t)i + end * 77777u) * 2654435761u;
    to[i] = (unsigned char)(x >> 24 ^ x >> 9);
  }
}

// Appends the return value of a call, or -1 and the name of the error.
static void report(char* result, ssize_t value) {
  if (value >= 0) {
    append(result, "%zd", value);
  } else {
    append(result, "-1 %s", strerrorname_np(errno));
  }
}

// Returns a pointer to the descriptor in the slot that the word names.  Returns a pointer to -1 if
// there is no such slot.
static int* descriptor_at(const char* word) {
  const int at = number(word);
  static int none, listener;
  none = -1;  // the last caller may have changed these two variables
  listener = kListener;
  if (at == kListenerSlot) return &listener;
  return at >= 0 && at < kSlots ? &slots[at] : &none;
}

static int tcp_info(int fd, struct tcp_info* info) {
  socklen_t length = sizeof(*info);
  memset(info, 0, sizeof(*info));
  return getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &length);
}

// Returns 1 if the descriptor is an epoll set.
static int is_epoll_set(int fd) {
  char path[32], name[32] = "";
  snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  return fd >= 0 && readlink(path, name, sizeof(name) - 1) > 0 && strstr(name, "eventpoll") != NULL;
}

// Removes a slot's descriptor from all epoll sets of the actor, before the descriptor is closed.
// Otherwise its entries would remain in the kernel's sets while a copy of the descriptor is open
// (docs/limits.md).
static void remove_from_sets(int* slot) {
  for (int i = 0; *slot >= 0 && i < kSlots; ++i) {
    if (&slots[i] != slot && is_epoll_set(slots[i])) {
      epoll_ctl(slots[i], EPOLL_CTL_DEL, *slot, NULL);
    }
  }
}
// Closes the descriptor of a slot.
static void close_slot(int* slot) {
  remove_from_sets(slot);
  if (*slot >= 0) close(*slot);
  *slot = -1;
}
