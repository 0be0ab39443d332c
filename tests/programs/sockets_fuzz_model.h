// Models the actors and connections for the coordinator of sockets_fuzz.c: which slot has which
// end, how many bytes are under way, and whether all bytes that the kernel carries have arrived.
#pragma once

#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "sockets_fuzz_actor.h"
#include "sockets_fuzz_steps.h"

enum {
  kHangMs = 10000,    // an actor that has not answered after this time has failed
  kSettleMs = 10000,  // the longest wait for bytes that the kernel carries
  kAsleepMs = 40,     // nothing wakes a thread that has slept for longer
  kDelayedMs = 400,   // replaces kAsleepMs if a delayed acknowledgement may wake the thread
  kWarmRounds = 600,  // the largest number of messages that are sent until the ring is used
};

// Models one end of a connection.
struct end {
  unsigned sent;         // bytes that this end has sent
  unsigned received;     // bytes of `sent` that the peer has read
  unsigned flooded;      // bytes of `sent` by floods, whose number differs between TCP and the ring
  int has_shut_send;     // this end has shut down its sending direction
  int has_shut_receive;  // this end has shut down its receiving direction
  int is_closed;         // no actor has a descriptor of this end
  int sent_after_close;  // this end has sent bytes after the peer was closed
  int has_urgent;        // this end has sent an urgent byte, and bytes before it are unread
  int is_edge_triggered;  // an epoll set has this end with EPOLLET
  int was_killed;         // a process with a descriptor of this end was killed
  pid_t owner;            // the process that gets the signals of this end
  int is_async;           // signals report bytes at this end
};

static pid_t pids[kActors];            // 0 if there is no such actor
static int contents[kActors][kSlots];  // of each slot: kNone, kSet, or an index of `ends`
static struct end ends[kEnds];         // the two ends of connection c are 2 * c and 2 * c + 1
static uint32_t masks[kActors];        // the signals that an actor blocks, as in kMaskWords
static int has_no_library[kActors];    // set by "exec plain", which preloads no library
// These bits are properties of the epoll set in a slot; see may_change_set().
enum set_property {
  kMayDiffer = 1,             // the set may be ready at other times than with TCP
  kIsInner = 2,               // another set contains the set
  kIsEdgeTriggeredInner = 4,  // another set contains the set with EPOLLET
};
static int set_properties[kActors][kSlots];
static int connections;  // the number of connections so far
static int is_aborted;   // set if the rest of the sequence cannot run
static int is_verbena;   // set if the library is preloaded
static int is_delayed;   // set if a connection uses Nagle's algorithm, which delays segments
// These are the numbers of connections that should use the ring, and that have used the ring.
static unsigned ring_attempts, ring_successes;

static long now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

// ---- orders

static void send_order(int actor, const char* text) {
  if (write(kOrders + actor, text, strlen(text) + 1) < 0) die("write an order");
}

// Stores the actor's answer in `result`.  Returns 0 if it has not answered within `ms`.
static int read_answer(int actor, char* result, int ms) {
  struct pollfd one = {kOrders + actor, POLLIN, 0};
  result[0] = '\0';
  if (poll(&one, 1, ms) != 1) return 0;
  const ssize_t got = read(kOrders + actor, result, kLineMax - 1);
  result[got > 0 ? got : 0] = '\0';
  return 1;
}

// Orders a call and waits for the result.
static void order_and_wait(int actor, const char* text, char* result) {
  send_order(actor, text);
  if (read_answer(actor, result, kHangMs)) return;
  strcpy(result, "NO ANSWER");
  is_aborted = 1;
}

// Finds an actor and a slot with a descriptor of this end.  Returns 0 if there is none.
static int find_end(int end, int* actor, int* at) {
  for (*actor = 0; *actor < kActors; ++*actor) {
    for (*at = 0; *at < kSlots; ++*at) {
      if (pids[*actor] != 0 && contents[*actor][*at] == end) return 1;
    }
  }
  return 0;
}

// ---- arrival

// These are the kernel's numbers of TCP states.  They are copied, because the header that defines
// them conflicts with others.
enum { kFinWait1 = 4, kCloseWait = 8, kTimeWait = 6, kClose = 7, kLastAck = 9, kClosing = 11 };

struct info {
  unsigned state, unsent;
  unsigned long long sent, received;
};
// Returns 1 if the socket has received an end of file or a reset.
static int has_ended(unsigned state) {
  return state == kClose || state == kCloseWait || state == kLastAck || state == kClosing ||
         state == kTimeWait;
}
// Returns 1 if the socket has sent an end of file that the peer has not acknowledged yet.
static int has_unacknowledged_end(unsigned state) {
  return state == kFinWait1 || state == kClosing || state == kLastAck;
}
// Returns 1 if both directions of the socket have ended, or the socket has received a reset.
static int has_closed(unsigned state) { return has_ended(state) && state != kCloseWait; }

static struct info info_of(int actor, int at) {
  char text[64], result[kLineMax];
  struct info i = {0};
  snprintf(text, sizeof(text), "info %d", at);
  order_and_wait(actor, text, result);
  sscanf(result, "%u %llu %llu %u", &i.state, &i.sent, &i.received, &i.unsent);
  return i;
}

// Returns 1 if all bytes and ends of file of connection `c` that the kernel carries have arrived.
static int is_settled(int c) {
  int actor[2], at[2], is_open[2];
  struct info i[2];
  for (int side = 0; side < 2; ++side) {
    is_open[side] = find_end(2 * c + side, &actor[side], &at[side]);
    if (is_open[side]) i[side] = info_of(actor[side], at[side]);
  }
  if (!is_open[0] && !is_open[1]) return 1;
  if (!is_open[0] || !is_open[1]) {
    const int side = is_open[1];
    return ends[2 * c + side].sent_after_close ? has_closed(i[side].state)
                                               : has_ended(i[side].state);
  }
  if (i[0].state == kClose || i[1].state == kClose) {
    return has_closed(i[0].state) && has_closed(i[1].state);
  }
  for (int side = 0; side < 2; ++side) {
    if (i[side].unsent != 0 || i[1 - side].received < i[side].sent) return 0;
    if (ends[2 * c + side].has_shut_send && !has_ended(i[1 - side].state)) return 0;
    // Wait for the acknowledgement of an end of file, because EPOLLET reports it as an event.
    if (has_unacknowledged_end(i[side].state)) return 0;
  }
  return 1;
}

// Returns when the kernel has delivered all packets that it had queued for the loopback interface.
// Each processor has a queue.  A datagram that is sent on a processor arrives after all packets
// that were in the queue.  Packets cause further packets, so the function sends several datagrams.
static void push_packets(void) {
  enum { kRounds = 3 };  // for a packet, its acknowledgement, and the answer to the acknowledgement
  static int udp = -1;
  cpu_set_t all, one;
  if (udp < 0) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(name);
    udp = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (bind(udp, (struct sockaddr*)&name, length) != 0 ||
        getsockname(udp, (struct sockaddr*)&name, &length) != 0 ||
        connect(udp, (struct sockaddr*)&name, length) != 0) {
      die("a socket for datagrams");
    }
  }
  if (sched_getaffinity(0, sizeof(all), &all) != 0) die("sched_getaffinity");
  for (int i = 0; i < kRounds * CPU_SETSIZE; ++i) {
    char byte = 0;
    if (!CPU_ISSET(i % CPU_SETSIZE, &all)) continue;
    CPU_ZERO(&one);
    CPU_SET(i % CPU_SETSIZE, &one);
    if (sched_setaffinity(0, sizeof(one), &one) != 0) die("sched_setaffinity");
    struct pollfd arrival = {udp, POLLIN, 0};
    if (send(udp, &byte, 1, 0) != 1 || poll(&arrival, 1, kHangMs) != 1 ||
        recv(udp, &byte, 1, 0) != 1) {
      die("a datagram");
    }
  }
  if (sched_setaffinity(0, sizeof(all), &all) != 0) die("sched_setaffinity");
}

// Waits until all bytes and ends of file that the kernel carries have arrived.
static void settle(char* result) {
  const long deadline = now_ms() + kSettleMs;
  for (int c = 0; c < connections && !is_aborted; ++c) {
    for (int side = 0; side < 2; ++side) {
      int a, s;
      ends[2 * c + side].is_closed = !find_end(2 * c + side, &a, &s);
    }
    while (!is_settled(c) && !is_aborted) {
      if (now_ms() > deadline) {
        append(result, " (connection %d has not settled)", c);
        break;
      }
      // The kernel has no event for this state, which may need a delayed acknowledgement.  No
      // result depends on the length of this pause.  push_packets() would be slower, because it
      // waits until it can run on each processor.
      usleep(100);
    }
  }
}
