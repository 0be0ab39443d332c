// Defines the words for flags and events in orders, and the numbers of the descriptors that all
// processes of sockets_fuzz.c inherit.
#pragma once

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

enum {
  kActors = 4,
  kSlots = 8,              // the number of descriptors that orders can name
  kListenerSlot = kSlots,  // the slot number that represents kListener in orders
  kLineMax = 1024,         // bytes of a step, or of its result
  kFloodBytes = 16 << 20,  // exceeds the buffers of TCP and of a ring together
  kBytesMax = 70000,       // exceeds the longest send or receive
  kUnreadMax = 50000,      // unread bytes in one direction; always fit into the kernel's buffers
  kEndWaitSignal = 14,     // SIGALRM: the coordinator ends a call with it if nothing else does
  // These descriptors are the same in all processes.
  kListener = 500,
  kCounters = 501,
  // Add the number of the actor to each of these four numbers.
  kOrders = 510,       // the coordinator's end of the socket for orders and results
  kResults = 520,      // the actor's end of this socket
  kPassSend = 530,     // other actors send descriptors to the actor by this socket
  kPassReceive = 540,  // the actor receives these descriptors by this socket
};

// Counts the signals that each actor has handled, in memory that survives exec().
enum signal_kind { kUsr1, kUsr2, kUrgent, kAsync, kSignalKinds };
struct counters {
  unsigned signals[kActors][kSignalKinds];
  int helpers[kActors];  // thread id of the second thread during its call; -1 while it starts
  unsigned reported[kActors][kSignalKinds];  // the number of signals that the actor has reported
};

struct word {
  const char* name;
  uint32_t value;
};

static const struct word kFlagWords[] = {{"dontwait", MSG_DONTWAIT},
                                         {"peek", MSG_PEEK},
                                         {"waitall", MSG_WAITALL},
                                         {"trunc", MSG_TRUNC},
                                         {"oob", MSG_OOB},
                                         {"nosignal", MSG_NOSIGNAL},
                                         {NULL, 0}};
static const struct word kEventWords[] = {{"in", EPOLLIN},
                                          {"pri", EPOLLPRI},
                                          {"out", EPOLLOUT},
                                          {"err", EPOLLERR},
                                          {"hup", EPOLLHUP},
                                          {"rdnorm", EPOLLRDNORM},
                                          {"rdband", EPOLLRDBAND},
                                          {"wrnorm", EPOLLWRNORM},
                                          {"wrband", EPOLLWRBAND},
                                          {"rdhup", EPOLLRDHUP},
                                          {"et", EPOLLET},
                                          {"oneshot", EPOLLONESHOT},
                                          {"nval", 0x20},
                                          {"exclusive", EPOLLEXCLUSIVE},
                                          {NULL, 0}};

// Defines the words for signals that orders block.
enum { kMaskUsr1 = 1, kMaskUsr2 = 2 };
static const struct word kMaskWords[] = {{"usr1", kMaskUsr1}, {"usr2", kMaskUsr2}, {NULL, 0}};

static inline void die(const char* what) {
  fprintf(stderr, "sockets_fuzz: %s: %s\n", what, strerror(errno));
  exit(1);
}

// Returns true if the text begins with the prefix.
static inline int starts_with(const char* text, const char* prefix) {
  return strncmp(text, prefix, strlen(prefix)) == 0;
}

// Parses words like "dontwait,peek".  Returns 0 for "-".
static inline uint32_t parse_words(const struct word* words, const char* text) {
  uint32_t value = 0;
  while (*text != '\0') {
    const size_t length = strcspn(text, ",");
    for (const struct word* w = words; w->name != NULL; ++w) {
      if (strlen(w->name) == length && strncmp(w->name, text, length) == 0) value |= w->value;
    }
    text += length;
    if (*text == ',') ++text;
  }
  return value;
}

// Appends words like "dontwait,peek" to the text.
static inline void append_words(char* text, const struct word* words, uint32_t value) {
  int is_first = 1;
  for (const struct word* w = words; w->name != NULL; ++w) {
    if ((value & w->value) == 0) continue;
    strcat(strcat(text, is_first ? "" : ","), w->name);
    is_first = 0;
  }
  if (is_first) strcat(text, "-");
}

static inline void append(char* text, const char* format, ...)
    __attribute__((format(printf, 2, 3)));
#include <stdarg.h>
static inline void append(char* text, const char* format, ...) {
  const size_t used = strlen(text);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + used, kLineMax - used, format, arguments);
  va_end(arguments);
}

// Splits a line at its blanks.  Returns the number of words.
static inline int split(char* line, char** words, int max_words) {
  int count = 0;
  for (char* word = strtok(line, " \n"); word != NULL && count < max_words;
       word = strtok(NULL, " \n")) {
    words[count++] = word;
  }
  for (int i = count; i < max_words; ++i) words[i] = NULL;
  return count;
}

static inline int number(const char* word) { return word == NULL ? -1 : atoi(word); }
