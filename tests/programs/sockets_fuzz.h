// Defines the names of flags and events in orders, and the numbers of the descriptors that all
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
  kListenerSlot = kSlots,  // stands for kListener in orders
  kLineMax = 1024,         // bytes of a step, or of its result
  kFloodBytes = 16 << 20,  // bytes; TCP and a ring together cannot hold so many
  kBytesMax = 70000,       // bytes of the longest send or receive, with some to spare
  kUnreadMax = 50000,  // bytes in one direction; the kernel's buffers always have room for these
  kEndOfWait = 14,     // SIGALRM, by which the coordinator ends a wait that nothing else ends
  // These descriptors are the same in all processes.
  kListener = 500,
  kCounters = 501,
  // The number of the actor is added to each of these four.
  kOrders = 510,   // the coordinator's end of the socket for orders and results
  kResults = 520,  // the actor's end of this socket
  kMailIn = 530,   // other actors send descriptors for the actor here
  kMailOut = 540,  // the actor receives descriptors here
};

// Counts the signals that each actor has handled, in memory that survives exec().
enum signal_kind { kUsr1, kUsr2, kUrgent, kAsync, kSignalKinds };
struct counters {
  unsigned signals[kActors][kSignalKinds];
  int helpers[kActors];  // id of the second thread while it makes a call; -1 while it starts
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

// Names the signals that orders block.
enum { kMaskUsr1 = 1, kMaskUsr2 = 2 };
static const struct word kMaskWords[] = {{"usr1", kMaskUsr1}, {"usr2", kMaskUsr2}, {NULL, 0}};

static inline void die(const char* what) {
  fprintf(stderr, "sockets_fuzz: %s: %s\n", what, strerror(errno));
  exit(1);
}

// Reads words like "dontwait,peek".  "-" is none.
static inline uint32_t value_of(const struct word* words, const char* text) {
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
  int any = 0;
  for (const struct word* w = words; w->name != NULL; ++w) {
    if ((value & w->value) == 0) continue;
    strcat(strcat(text, any ? "," : ""), w->name);
    any = 1;
  }
  if (!any) strcat(text, "-");
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
