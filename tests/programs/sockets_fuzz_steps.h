// Makes the steps of a sequence of sockets_fuzz.c from a seed.
#pragma once

#include "sockets_fuzz.h"

enum { kStdioBytes = 4096 };  // size of a FILE's buffer
enum { kStepsMax = 80, kConnectionsMax = 3, kEnds = 2 * kConnectionsMax };

struct steps {
  int count;
  char text[kStepsMax][kLineMax / 4];
};

// Stores the content that the generator expects in each slot.  If a slot has other content, a step
// only fails.
enum { kNone = -1, kSet = 100 };
struct plan {
  struct steps* out;
  uint64_t random;
  int is_alive[kActors];
  int content[kActors][kSlots];  // kNone, kSet, or an end: 2 * connection + side
  int connections;
  int has_urgent[kConnectionsMax];  // urgent bytes were sent in one of the directions
};

// Returns a random number that is smaller than `bound`.
static uint32_t random_below(struct plan* p, uint32_t bound) {
  p->random ^= p->random << 13;
  p->random ^= p->random >> 7;
  p->random ^= p->random << 17;
  return (uint32_t)(p->random * 0x2545f4914f6cdd1dull >> 33) % bound;
}
static const char* one_of(struct plan* p, const char* const* words) {
  uint32_t count = 0;
  while (words[count] != NULL) ++count;
  return words[random_below(p, count)];
}
#define ONE_OF(p, ...) one_of(p, (const char* const[]){__VA_ARGS__, NULL})

static void add_step(struct plan* p, const char* format, ...) __attribute__((format(printf, 2, 3)));
static void add_step(struct plan* p, const char* format, ...) {
  if (p->out->count == kStepsMax) return;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(p->out->text[p->out->count++], sizeof(p->out->text[0]), format, arguments);
  va_end(arguments);
}

// Chooses a random slot that has this content: an end, kSet, or any end if the content is kNone.
// Returns 0 if there is no such slot.
static int find_slot(struct plan* p, int content_to_find, int* actor, int* at) {
  int found = 0;
  for (int a = 0; a < kActors; ++a) {
    for (int s = 0; s < kSlots; ++s) {
      const int content = p->content[a][s];
      if (!p->is_alive[a] || (content_to_find == kNone ? content < 0 || content >= kSet
                                                       : content != content_to_find)) {
        continue;
      }
      if (random_below(p, (uint32_t)++found) == 0) *actor = a, *at = s;
    }
  }
  return found;
}
static int random_slot_with(struct plan* p, int actor, int content_to_find) {
  int chosen = -1;
  for (int s = 0, found = 0; s < kSlots; ++s) {
    if (p->content[actor][s] == content_to_find && random_below(p, (uint32_t)++found) == 0)
      chosen = s;
  }
  return chosen;
}
static int random_actor(struct plan* p) {
  for (;;) {
    const int a = (int)random_below(p, kActors);
    if (p->is_alive[a]) return a;
  }
}

static unsigned random_size(struct plan* p) {
  switch (random_below(p, 10)) {
    case 0: return random_below(p, 2);
    case 1:
    case 2: return 1000 + random_below(p, 15000);
    case 3: return 100 + random_below(p, 900);
    default: return 1 + random_below(p, 60);
  }
}

static void plan_connection(struct plan* p) {
  if (p->connections == kConnectionsMax) return;
  const int a = random_actor(p), b = random_actor(p);
  const int s = random_slot_with(p, a, kNone);
  if (s < 0) return;
  const int end = 2 * p->connections++;
  p->content[a][s] = end;
  const int t = random_slot_with(p, b, kNone);
  if (t < 0) return;
  p->content[b][t] = end + 1;
  add_step(p, "connect %d %d %d %d %u %u", a, s, b, t, random_below(p, 16), random_below(p, 16));
  if (random_below(p, 5) != 0) add_step(p, "warm %d %d %d %d", a, s, b, t);
}

// Records that the connection of a slot carries urgent data.
static void record_urgent(struct plan* p, int a, int at) {
  const int end = p->content[a][at];
  if (end >= 0 && end < kEnds) p->has_urgent[end / 2] = 1;
}

static void write_send(struct plan* p, char* order, int a, int at, unsigned size) {
  const char* call = ONE_OF(p, "send", "send", "write", "writev", "sendmsg", "sendto", "sendmmsg",
                            "sendfile", "splice", "stdio", "send", "write", "sendmsg", "dprintf");
  const char* flags =
      ONE_OF(p, "-", "-", "-", "dontwait", "nosignal", "-", "-", "dontwait", "-", "oob");
  const int is_rare =
      strcmp(call, "dprintf") == 0 || strcmp(call, "stdio") == 0 || strcmp(call, "splice") == 0;
  if (is_rare && random_below(p, 3) != 0) call = "send";
  if (strcmp(flags, "oob") == 0 && random_below(p, 3) != 0) flags = "-";
  if (strcmp(flags, "oob") == 0) record_urgent(p, a, at);
  snprintf(order, 100, "send %d %s %u %s", at, call, size, flags);
}
static void write_receive(struct plan* p, char* order, int a, int at, const char* flags) {
  const char* call = ONE_OF(p, "recv", "recv", "read", "readv", "recvmsg", "recvfrom", "recvmmsg",
                            "recv", "read", "recvmsg", "splice", "stdio");
  const int is_rare = strcmp(call, "splice") == 0 || strcmp(call, "stdio") == 0;
  if (is_rare && random_below(p, 3) != 0) call = "recv";
  unsigned size = random_size(p);
  // Before an urgent byte, recv() of 0 bytes and splice() return other results by the ring than by
  // TCP (docs/limits.md).
  const int end = p->content[a][at];
  const int has_urgent = end >= 0 && end < kEnds && p->has_urgent[end / 2];
  if (size == 0 && has_urgent) size = 1;
  if (strcmp(call, "splice") == 0 && has_urgent) call = "recv";
  snprintf(order, 100, "recv %d %s %u %s", at, call, size, flags);
}

// Writes an order of a receive that waits.  Returns 0 if the random order is not suitable, because
// splice() and stdio do not wait here.  The kernel ends a recv() of 0 bytes whenever anything wakes
// the call, so 0 bytes are not suitable either.
static int write_blocking_receive(struct plan* p, char* order, int a, int at) {
  unsigned size = 0;
  write_receive(p, order, a, at, "-");
  sscanf(order, "recv %*d %*s %u", &size);
  if (strstr(order, "recvmmsg") != NULL) size /= 2;  // each of the two messages gets one half
  return size > 0 && strstr(order, "stdio") == NULL && strstr(order, "splice") == NULL;
}

static const char* random_events(struct plan* p) {
  return ONE_OF(p, "in", "in", "in,out", "in,rdhup", "in,out,rdhup,pri", "out", "rdhup", "rdnorm",
                "in,pri", "in,rdnorm,wrnorm,rdband,wrband");
}

// Writes an order of actor a to wait for the slot, for at most `ms`.
static void write_wait(struct plan* p, char* order, int a, int at, int ms) {
  const int second =
      random_slot_with(p, a, random_below(p, 6) == 0 ? kSet : (int)random_below(p, kEnds));
  const int set = random_slot_with(p, a, kSet);
  const char* mask = random_below(p, 5) != 0 ? "" : ONE_OF(p, " -", " usr1", " usr2", " usr1,usr2");
  switch (random_below(p, 4)) {
    case 0:
      snprintf(order, 100, "select %d %u %d %u %d%s", at, 1 + random_below(p, 7), second,
               random_below(p, 8), ms, mask);
      return;
    case 1:
      snprintf(order, 100, "poll %d %s %d %s %d%s", at, random_events(p), second, random_events(p),
               ms, mask);
      return;
    default:
      if (set >= 0) {
        snprintf(order, 100, "epwait %d %d %d%s%s", set, random_below(p, 6) == 0 ? 1 : kSlots + 1,
                 ms, mask, mask[0] != '\0' ? ONE_OF(p, "", " 2") : "");
      } else {
        snprintf(order, 100, "poll %d %s -1 - %d%s", at, random_events(p), ms, mask);
      }
  }
}

// Finds a set of the actor, or plans a new set.  Returns its slot, or -1.
static int find_or_plan_set(struct plan* p, int a, int is_new) {
  int set = is_new ? -1 : random_slot_with(p, a, kSet);
  if (set >= 0) return set;
  set = random_slot_with(p, a, kNone);
  if (set < 0) return -1;
  add_step(p, "do %d epnew %d", a, set);
  p->content[a][set] = kSet;
  return set;
}

static void plan_epoll(struct plan* p, int a, int at) {
  const int set = find_or_plan_set(p, a, random_below(p, 5) == 0);
  if (set < 0) return;
  const char* events = random_events(p);
  const char* modes = ONE_OF(p, "", "", ",et", ",et", ",oneshot", ",et,oneshot", ",exclusive");
  if (strcmp(modes, ",exclusive") == 0 && random_below(p, 4) != 0)
    events = ONE_OF(p, "in", "in,out");
  add_step(p, "do %d epctl %d %s %d %s%s", a, set, ONE_OF(p, "add", "add", "mod", "mod", "del"), at,
           events, modes);
  add_step(p, "do %d epwait %d 9 0", a, set);
}

// Plans to put a set into another set, or the same connection into two sets.
static void plan_two_sets(struct plan* p, int a, int at) {
  const int inner = find_or_plan_set(p, a, 0);
  const int outer = find_or_plan_set(p, a, 1);
  if (inner < 0 || outer < 0) return;
  const int is_nested = random_below(p, 3) != 0;
  add_step(p, "do %d epctl %d %s %d %s%s", a, inner, ONE_OF(p, "add", "add", "mod"), at,
           random_events(p), ONE_OF(p, "", "", ",et", ",oneshot"));
  add_step(p, "do %d epctl %d add %d %s%s", a, outer, is_nested ? inner : at,
           is_nested ? ONE_OF(p, "in", "in,out") : random_events(p),
           ONE_OF(p, "", "", "", ",et", ",oneshot"));
  add_step(p, "do %d epwait %d 9 0", a, outer);
}

// Plans that two actors wait for epoll sets that both contain the same connection or the listener,
// sometimes with EPOLLEXCLUSIVE.
static void plan_race(struct plan* p, int a, int at) {
  const int end = p->content[a][at];
  int b = 0, t = 0, c = 0, u = 0, is_found = 0;
  for (c = 0; c < kActors && !is_found; ++c) {
    if (c == a || !p->is_alive[c]) continue;
    u = random_slot_with(p, c, end);
    is_found = u >= 0;
    if (is_found) break;
  }
  const int has_peer = find_slot(p, end ^ 1, &b, &t);
  const int uses_listener = !is_found || !has_peer || b == a || b == c;
  if (uses_listener) {
    for (c = 0; c < kActors && (c == a || !p->is_alive[c]); ++c) {
    }
    for (b = 0; b < kActors && (b == a || b == c || !p->is_alive[b]); ++b) {
    }
    if (b >= kActors || p->connections == kConnectionsMax) return;
    at = u = kListenerSlot;
  }
  const int sets[2] = {find_or_plan_set(p, a, 0), find_or_plan_set(p, c, 0)};
  if (sets[0] < 0 || sets[1] < 0) return;
  const char* mode = ONE_OF(p, ",exclusive", ",exclusive", "", ",et");
  add_step(p, "do %d epctl %d add %d in%s", a, sets[0], at, mode);
  add_step(p, "do %d epctl %d add %d in%s", c, sets[1], u, mode);
  const int is_swapped = random_below(p, 3) == 2;
  const int first = is_swapped ? c : a, second = is_swapped ? a : c;
  char act[60];
  if (uses_listener) {
    const int s = random_slot_with(p, b, kNone);
    if (s < 0) return;
    p->content[b][s] = 2 * p->connections;
    const int accepted = random_slot_with(p, b, kNone);
    if (accepted < 0) return;
    p->content[b][accepted] = 2 * p->connections++ + 1;
    snprintf(act, sizeof(act), "connect_accept %d %u %d %u", s, random_below(p, 16), accepted,
             random_below(p, 16));
  } else {
    // Send few bytes, which are one TCP segment and so wake the waiting actors only once.
    snprintf(act, sizeof(act), "send %d send %u -", t, 1 + random_below(p, 500));
  }
  add_step(p, "race %d epwait %d 9 -1 | %d epwait %d 9 -1 | %d %s", first,
           first == a ? sets[0] : sets[1], second, second == a ? sets[0] : sets[1], b, act);
  add_step(p, "do %d epwait %d 9 0", a, sets[0]);
  add_step(p, "do %d epwait %d 9 0", c, sets[1]);
}

static void plan_copy(struct plan* p, int a, int at) {
  const int to = (int)random_below(p, kSlots);
  if (to == at || p->content[a][to] == kSet) return;
  add_step(p, "do %d dup %d %d %s", a, at, to,
           ONE_OF(p, "dup", "dup2", "dup3", "dupfd", "cloexec"));
  p->content[a][to] = p->content[a][at];
}

// Plans that one actor waits, and another actor makes a call that wakes the first one.
static void plan_wake(struct plan* p, int a, int at) {
  char wait[100], act[100];
  int b = 0, t = 0;
  if (!find_slot(p, p->content[a][at] ^ 1, &b, &t) || a == b) return;
  const unsigned size = 6 + random_size(p) / 2;
  if (random_below(p, 2)) {
    if (!write_blocking_receive(p, wait, a, at)) return;
    if (random_below(p, 4) == 0) snprintf(wait, sizeof(wait), "recv %d recv %u waitall", at, size);
  } else {
    write_wait(p, wait, a, at, -1);
  }
  switch (random_below(p, 12)) {
    case 0: snprintf(act, sizeof(act), "shut %d %u", t, 1 + random_below(p, 2)); break;
    case 1: snprintf(act, sizeof(act), "close %d", t); break;
    default:
      write_send(p, act, b, t, size);
      // If a send makes several TCP segments, the waiting actor may read between two of them.
      const int is_in_pieces =
          strstr(act, "sendmmsg") != NULL ||
          (size > kStdioBytes && (strstr(act, "stdio") || strstr(act, "dprintf")));
      if (is_in_pieces) snprintf(act, sizeof(act), "send %d send %u -", t, size);
  }
  if (starts_with(act, "close ")) p->content[b][t] = kNone;
  if (random_below(p, 4) == 0) {
    add_step(p, "signal %d %s | %s | %d %s", a, wait, ONE_OF(p, "USR1", "USR2"), b, act);
  } else {
    add_step(p, "wake %d %s | %d %s", a, wait, b, act);
  }
}

static void plan_option(struct plan* p, int a, int at) {
  switch (random_below(p, 8)) {
    case 0: add_step(p, "do %d set %d linger %d", a, at, (int)random_below(p, 3) - 1); return;
    case 1: add_step(p, "do %d set %d lowat %u", a, at, random_below(p, 6)); return;
    case 2: add_step(p, "do %d set %d oobinline %u", a, at, random_below(p, 2)); return;
    case 3:
      add_step(p, "do %d set %d %s %u", a, at, ONE_OF(p, "nodelay", "keepalive"),
               random_below(p, 2));
      return;
    case 4:
      add_step(p, "do %d nonblock %d %u %s", a, at, random_below(p, 2),
               ONE_OF(p, "fcntl", "ioctl"));
      return;
    default:
      add_step(p, "do %d get %d %s", a, at,
               ONE_OF(p, "error", "nodelay", "lowat", "type", "error", "keepalive", "acceptconn"));
  }
}

// Plans signals of the kernel (SIGURG, SIGIO), and signals of other processes.  A call with a
// signal mask may unblock these.
static void plan_signals(struct plan* p, int a, int at) {
  int b = 0, t = 0;
  char wait[100];
  switch (random_below(p, 5)) {
    case 0:
      add_step(p, "do %d sigmask - %s", a, ONE_OF(p, "-", "usr1", "usr2", "usr1,usr2"));
      break;
    case 1:
      add_step(p, "post %d %s", a, ONE_OF(p, "USR1", "USR2"));
      write_wait(p, wait, a, at, random_below(p, 3) == 0 ? 10 : 0);
      add_step(p, "do %d %s", a, wait);
      break;
    case 2: break;
    default:
      add_step(p, "do %d own %d", a, at);
      if (random_below(p, 2)) {
        add_step(p, "do %d async %d %d %s %s", a, at, random_below(p, 4) != 0,
                 ONE_OF(p, "fcntl", "ioctl"), ONE_OF(p, "-", "-", "rt"));
      }
      if (find_slot(p, p->content[a][at] ^ 1, &b, &t)) {
        const char* flags = ONE_OF(p, "-", "oob");
        if (strcmp(flags, "oob") == 0) record_urgent(p, b, t);
        add_step(p, "do %d send %d send %u %s", b, t, 1 + random_below(p, 30), flags);
      }
  }
  add_step(p, "do %d signals -", a);
}

// Plans that a second thread of an actor waits, while the first thread changes the descriptors for
// which the second one waits.
static void plan_thread(struct plan* p, int a, int at) {
  char wait[100], change[100], act[100];
  int b = 0, t = 0;
  if (!find_slot(p, p->content[a][at] ^ 1, &b, &t)) return;
  if (random_below(p, 2)) {
    if (!write_blocking_receive(p, wait, a, at)) return;
  } else {
    write_wait(p, wait, a, at, -1);
  }
  const int set = random_slot_with(p, a, kSet);
  const int to = random_slot_with(p, a, (int)random_below(p, kEnds));
  const int waits_for_set = starts_with(wait, "epwait ") && set >= 0;
  switch (random_below(p, waits_for_set ? 9 : 5)) {
    case 0: snprintf(change, sizeof(change), "close %d", at); break;
    case 1: snprintf(change, sizeof(change), "shut %d %u", at, random_below(p, 3)); break;
    case 2: write_send(p, change, a, at, random_size(p)); break;
    case 3: snprintf(change, sizeof(change), "recv %d recv %u dontwait", at, random_size(p)); break;
    case 4:
      if (to < 0 || to == at) return;
      snprintf(change, sizeof(change), "dup %d %d %s", to, at, ONE_OF(p, "dup2", "dup3"));
      break;
    case 5: snprintf(change, sizeof(change), "close %d", set); break;
    default:
      snprintf(change, sizeof(change), "epctl %d %s %d %s%s", set, ONE_OF(p, "add", "mod", "del"),
               at, random_events(p), ONE_OF(p, "", "", ",et", ",oneshot"));
  }
  // poll() and select() notice a closed descriptor whenever anything wakes them, which may be at
  // any moment.
  const int is_poll = starts_with(wait, "poll ") || starts_with(wait, "select ");
  // The library makes several calls for one recvmmsg().  The later calls would fail, because the
  // descriptor is closed (docs/limits.md).
  const int makes_several_calls = strstr(wait, "recvmmsg") != NULL;
  const int closes = starts_with(change, "close "), replaces = starts_with(change, "dup ");
  if ((is_poll || makes_several_calls) && (closes || replaces)) return;
  if (closes) p->content[a][number(strchr(change, ' '))] = kNone;
  if (replaces) p->content[a][at] = p->content[a][to];
  switch (random_below(p, 6)) {
    case 0: snprintf(act, sizeof(act), "shut %d %u", t, 1 + random_below(p, 2)); break;
    case 1: snprintf(act, sizeof(act), "close %d", t); break;
    default: snprintf(act, sizeof(act), "send %d send %u -", t, 1 + random_size(p) / 2);
  }
  if (starts_with(act, "close ")) p->content[b][t] = kNone;
  add_step(p, "thread %d %s | %d %s | %d %s", a, wait, a, change, b, act);
}

// Plans that the actor reads all unread bytes of its connections.
static void plan_reads(struct plan* p, int a) {
  for (int s = 0; s < kSlots; ++s) {
    if (p->content[a][s] < 0 || p->content[a][s] == kSet) continue;
    add_step(p, "do %d recv %d recv 60000 dontwait", a, s);
  }
}

// Plans that one actor sends until a send blocks because the buffers are full, and that something
// ends the blocked send.
static void plan_flood(struct plan* p, int a, int at) {
  int b = 0, t = 0;
  if (!find_slot(p, p->content[a][at] ^ 1, &b, &t) || a == b) return;
  const char* ending =
      ONE_OF(p, "drain", "some", "close", "timeout", "USR1", "exit", "kill", "self");
  const char* call = ONE_OF(p, "call", "full");
  // The handler of SIGUSR2 restarts calls.  But the library waits by poll(), which the kernel does
  // not restart (docs/limits.md).  A call that has sent some bytes returns their number in both
  // cases.  So plan SIGUSR2 only for such a call.
  if (strcmp(ending, "USR1") == 0 && strcmp(call, "call") == 0) ending = ONE_OF(p, "USR1", "USR2");
  // At least two actors must remain.
  int living = 0;
  for (int i = 0; i < kActors; ++i) living += p->is_alive[i];
  const int ends_sender = strcmp(ending, "self") == 0;
  const int ends_actor = ends_sender || strcmp(ending, "exit") == 0 || strcmp(ending, "kill") == 0;
  if (ends_actor && living <= 2) ending = "drain";
  plan_reads(p, a);
  plan_reads(p, b);
  add_step(p, "flood %d %d %s | %d %d %s", a, at, call, b, t, ending);
  if (ends_actor && living > 2) {
    const int ended = ends_sender ? a : b;
    p->is_alive[ended] = 0;
    for (int s = 0; s < kSlots; ++s) p->content[ended][s] = kNone;
    if (ended == a) return;
  }
  if (random_below(p, 2)) add_step(p, "do %d get %d error", a, at);
  add_step(p, "do %d send %d send 10 -", a, at);
  add_step(p, "do %d recv %d recv 100 dontwait", a, at);
}

// Plans a fork(), an exec(), the transfer of a descriptor, or the end of an actor.
static void plan_process(struct plan* p, int a, int at) {
  const int b = (int)random_below(p, kActors);
  switch (random_below(p, 4)) {
    case 0:
      if (p->is_alive[b]) return;
      add_step(p, "fork %d %d", a, b);
      p->is_alive[b] = 1;
      for (int s = 0; s < kSlots; ++s) {
        p->content[b][s] = p->content[a][s] == kSet ? kNone : p->content[a][s];
      }
      return;
    case 1:
      add_step(p, "exec %d %s", a, ONE_OF(p, "lib", "lib", "plain"));
      for (int s = 0; s < kSlots; ++s) {
        if (p->content[a][s] == kSet) p->content[a][s] = kNone;
      }
      return;
    case 2: {
      const int to = (int)random_below(p, kSlots);
      if (!p->is_alive[b] || (a == b && at == to)) return;
      add_step(p, "pass %d %d %d %d", a, at, b, to);
      p->content[b][to] = p->content[a][at];
      return;
    }
    default:
      // The first two actors do not end here, because at least two actors must remain.
      if (a < 2) return;
      if (random_below(p, 2)) {
        add_step(p, "exit %d", a);
      } else {
        char wait[100] = "";
        if (random_below(p, 2)) write_wait(p, wait, a, at, -1);
        plan_reads(p, a);
        add_step(p, "kill %d%s%s", a, wait[0] != '\0' ? " " : "", wait);
      }
      p->is_alive[a] = 0;
      for (int s = 0; s < kSlots; ++s) p->content[a][s] = kNone;
  }
}

static void plan_random_step(struct plan* p) {
  char order[100];
  int a = 0, at = 0;
  if (!find_slot(p, kNone, &a, &at)) return plan_connection(p);
  if (random_below(p, 200) == 0) return plan_flood(p, a, at);
  const uint32_t kind = random_below(p, 100);
  if (kind < 26) {
    write_send(p, order, a, at, random_size(p));
    add_step(p, "do %d %s", a, order);
  } else if (kind < 48) {
    write_receive(
        p, order, a, at,
        ONE_OF(p, "dontwait", "dontwait", "dontwait,peek", "peek", "dontwait,waitall", "waitall",
               "trunc,dontwait", "dontwait", "dontwait", "-", "dontwait,oob", "dontwait"));
    add_step(p, "do %d %s", a, order);
  } else if (kind < 56) {
    write_wait(p, order, a, at, random_below(p, 8) == 0 ? 10 : 0);
    add_step(p, "do %d %s", a, order);
  } else if (kind < 60) {
    plan_epoll(p, a, at);
  } else if (kind < 61) {
    plan_two_sets(p, a, at);
  } else if (kind < 62) {
    plan_race(p, a, at);
  } else if (kind < 72) {
    plan_wake(p, a, at);
  } else if (kind < 74) {
    plan_thread(p, a, at);
  } else if (kind < 77) {
    plan_option(p, a, at);
  } else if (kind < 80) {
    plan_signals(p, a, at);
  } else if (kind < 84) {
    add_step(p, "do %d %s %d", a, ONE_OF(p, "inq", "inq", "state", "atmark"), at);
  } else if (kind < 88) {
    plan_copy(p, a, at);
  } else if (kind < 91) {
    add_step(p, "do %d shut %d %u", a, at, random_below(p, 3));
  } else if (kind < 94) {
    add_step(p, "do %d close %d%s", a, at, random_below(p, 4) ? "" : " s");
    p->content[a][at] = kNone;
  } else if (kind < 95) {
    plan_connection(p);
  } else {
    plan_process(p, a, at);
  }
}

static void make_steps(uint64_t seed, struct steps* out) {
  static struct plan p;
  memset(&p, 0, sizeof(p));
  memset(p.content, 0xff, sizeof(p.content));
  p.out = out;
  p.random = (seed + 1) * 0x9e3779b97f4a7c15ull;
  out->count = 0;
  p.is_alive[0] = p.is_alive[1] = 1;
  p.is_alive[2] = random_below(&p, 2) != 0;
  for (uint32_t i = 1 + random_below(&p, 2); i > 0; --i) plan_connection(&p);
  for (int tries = 8 + (int)random_below(&p, 40); tries > 0; --tries) plan_random_step(&p);
}
