// Holds the state of an actor of sockets_fuzz.c: its number, and the descriptor in each slot.
#pragma once

#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include "sockets_fuzz.h"

static int self;          // this actor's number
static int slot[kSlots];  // descriptors, or -1
static struct counters* counters;
static volatile sig_atomic_t sigpipe_count;
static __thread unsigned char bytes[kBytesMax];

static void on_signal(int number) {
  if (number == SIGPIPE) {
    ++sigpipe_count;
  } else if (number != kEndOfWait) {
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

// Reads a word like "usr1,usr2", or "-" for an empty mask.  Returns NULL if there is no word.
static const sigset_t* mask_of(const char* word, sigset_t* mask) {
  if (word == NULL) return NULL;
  const uint32_t signals = value_of(kMaskWords, word);
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

// Fills the buffer with the bytes of one direction of a connection from an offset on.
static void fill(unsigned char* to, unsigned end, unsigned offset, size_t size) {
  for (size_t i = 0; i < size; ++i) {
    const uint32_t x = (offset + (uint32_t)i + end * 77777u) * 2654435761u;
    to[i] = (unsigned char)(x >> 24 ^ x >> 9);
  }
}

static void report(char* result, ssize_t value) {
  if (value >= 0) {
    append(result, "%zd", value);
  } else {
    append(result, "-1 %s", strerrorname_np(errno));
  }
}

// Returns a pointer to the descriptor in the slot that the word names.
static int* descriptor_at(const char* word) {
  const int at = number(word);
  static int none, listener;
  none = -1;
  listener = kListener;
  if (at == kListenerSlot) return &listener;
  return at >= 0 && at < kSlots ? &slot[at] : &none;
}

static int tcp_info(int fd, struct tcp_info* info) {
  socklen_t length = sizeof(*info);
  memset(info, 0, sizeof(*info));
  return getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &length);
}

// Returns 1 if the descriptor is an epoll set.
static int is_set(int fd) {
  char path[32], name[32] = "";
  snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  return fd >= 0 && readlink(path, name, sizeof(name) - 1) > 0 && strstr(name, "eventpoll") != NULL;
}

// Removes a slot's descriptor from all epoll sets of the actor.  Otherwise the kernel would keep it
// in its sets if it is closed while a copy of it is open (docs/limits.md).
static void remove_from_sets(int* at) {
  for (int i = 0; *at >= 0 && i < kSlots; ++i) {
    if (&slot[i] != at && is_set(slot[i])) epoll_ctl(slot[i], EPOLL_CTL_DEL, *at, NULL);
  }
}
// Closes the descriptor of a slot.
static void close_slot(int* at) {
  remove_from_sets(at);
  if (*at >= 0) close(*at);
  *at = -1;
}
